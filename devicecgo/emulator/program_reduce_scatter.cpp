// program_reduce_scatter.cpp: the device at position i keeps slice i of the sum over its line.
//
// Ring: half of each slice goes round each way. The partial sum of slice s sets out at the device behind which s lies last, collects
// one summand a hop, and ends at the device at position s, which rounds. So on way 0 the order is x[s+1], x[s+2], ..., x[s].
//
// Line: the partial sums of slice s come from both ends to the device at position s, and are staged in the two halves of the
// intermediate. The sum is (x[0] + ... + x[s]) + (x[n-1] + ... + x[s+1]).
#include <algorithm>

#include "kernel_bfloat8.h"
#include "ops.h"
#include "program_gather.h"
#include "reduction.h"

namespace meshrun::emu {
namespace {

// Sums are made in chunks of eight tiles of bfloat16, which are four packets of 4 KiB; a gather's chunks are packets.
constexpr uint32_t kPacketsPerChunk = 4;

class ReduceScatter final : public Plan {
 public:
  const char* name() const override { return "reduce_scatter"; }
  Program run(Context& ctx) const override;

  Collective over;
  Operand input, intermediate, output;
  Slices slices;  // of the input; those of the intermediate lie alike, in each of its halves on a line
  uint64_t chunk = 1;
  double wire = 1;
  std::array<SemaphoreRef, 3> semaphores;  // one per way, and one that tells way 0 what has come by way 1
  SemaphoreRef start;
  bool with_shadows = false;
  bool round_per_hop = false;
  HostPool* pool = nullptr;

 private:
  Program ring_way(Context& ctx, uint32_t way, uint32_t link) const;
  Program line_way(Context& ctx, uint32_t way, uint32_t link) const;

  Chunks chunks(uint32_t way, uint32_t link) const {
    const uint64_t unit = element_bytes(input.spec.dtype);
    const Span all = slices.all();
    return {over.ring ? all.share(way * over.links + link, 2 * over.links, unit) : all.share(link, over.links, unit), chunk};
  }
  // Where a chunk of a partial sum is staged.
  struct Stage {
    Memory* memory = nullptr;
    Region region;
    Shadow* shadow = nullptr;
    Access read() const { return {memory, region, false}; }
    Part part() const { return {memory->data, region, shadow}; }
  };
  Stage stage(uint32_t device, uint32_t slice, uint32_t way, uint32_t link, uint32_t index, Span span) const {
    Region region = slices.part(slice, span);
    if (!over.ring) region.offset += way * input.spec.bytes();
    const size_t slot = (((size_t{device} * over.length + slice) * 2 + way) * over.links + link) * slots_per_way_ + index;
    return {&intermediate.at(device), region, shadows_.at(slot)};
  }
  void make_shadows(uint32_t devices) const;
  // Adds the own part to what has come, if anything has, and sends the sum on.
  void pass_on(Context& ctx, const Hop& ahead, uint32_t slice, Span span, const Stage* came, const Stage& there, uint64_t here) const;
  void finish(Context& ctx, uint32_t way, uint32_t link, Span span, const Stage& came, const Stage* other) const;
  // A chunk keeps its name on all its hops. Where every hop rounds, hops are not done as one.
  Chain chain_of(uint32_t slice, uint32_t way, uint32_t link, Span span) const {
    if (round_per_hop) return {};
    return {((((span.from << 8 | slice) << 4 | link) << 1 | way) << 1) | 1, span.bytes()};
  }

  mutable Shadows shadows_;  // the engine's; made when the first device begins
  mutable size_t slots_per_way_ = 0;
};

Program ReduceScatter::run(Context& ctx) const {
  if (start) co_await barrier(ctx, over, *start);
  if (over.length == 1) {
    Memory &from = input.at(ctx.device()), &to = output.at(ctx.device());
    ctx.work({input.read(ctx.device()), output.write(ctx.device())}, input.spec.bytes(),
             CopyRegion{from.data, to.data, input.whole(), output.whole()});
    co_await ctx.copy({.bytes = 2.0 * static_cast<double>(input.spec.device_bytes())});
    co_return;
  }
  make_shadows(ctx.devices());
  Join workers;
  for (uint32_t link = 0; link < over.links; ++link)
    for (const uint32_t way : {0u, 1u}) workers.start(over.ring ? ring_way(ctx, way, link) : line_way(ctx, way, link));
  co_await workers;
  if (output.spec.dtype == DType::bfloat8_b)  // chunks end within blocks
    ctx.work({output.write(ctx.device())}, output.spec.bytes(), [to = output.view(ctx.device())](Parallel& parallel) { round_blocks(to, parallel); });
}

Program ReduceScatter::ring_way(Context& ctx, uint32_t way, uint32_t link) const {
  const Line line = ctx.line(over.axis);
  const Hop ahead = ctx.hop(line, way, link);
  const Owed behind = Owed::by(line.device(-step_of(way)));
  const Chunks share = chunks(way, link);
  Semaphore& semaphore = *semaphores[way];
  uint32_t due = 0;

  for (uint32_t hops = 0; hops < line.length; ++hops) {
    const uint32_t slice = line.wrap(-step_of(way) * (int64_t{hops} + 1));
    for (uint32_t c = 0; c < share.count(); ++c) {
      uint64_t here = ctx.now();
      if (hops != 0) here = co_await ctx.wait(semaphore, link, ++due, behind);
      const Stage came = stage(ctx.device(), slice, way, link, c, share[c]);
      if (slice == line.position) {
        finish(ctx, way, link, share[c], came, nullptr);
      } else {
        pass_on(ctx, ahead, slice, share[c], hops != 0 ? &came : nullptr, stage(ahead.peer, slice, way, link, c, share[c]), here);
      }
    }
  }
  ctx.clear(semaphore, link);
}

Program ReduceScatter::line_way(Context& ctx, uint32_t way, uint32_t link) const {
  const Line line = ctx.line(over.axis);
  const Hop ahead = ctx.hop(line, way, link);
  const Owed behind = Owed::by(line.device(-step_of(way)));
  const Chunks share = chunks(way, link);
  Semaphore &semaphore = *semaphores[way], &joined = *semaphores[2];
  const uint32_t last = line.length - 1;
  const uint32_t devices_ahead = way == 0 ? last - line.position : line.position;
  const bool comes = devices_ahead != last;  // there is a device behind
  uint32_t due = 0;

  // Slices of devices ahead, the farthest first.
  for (uint32_t distance = devices_ahead; distance != 0; --distance) {
    const uint32_t slice = line.wrap(step_of(way) * int64_t{distance});
    for (uint32_t c = 0; c < share.count(); ++c) {
      uint64_t here = ctx.now();
      if (comes) here = co_await ctx.wait(semaphore, link, ++due, behind);
      const Stage came = stage(ctx.device(), slice, way, link, c, share[c]);
      pass_on(ctx, ahead, slice, share[c], comes ? &came : nullptr, stage(ahead.peer, slice, way, link, c, share[c]), here);
    }
  }
  // The device's own slice. Way 0 finishes it, when way 1 has said that its part is there; at the beginning of the line there is
  // only way 1.
  for (uint32_t c = 0; comes && c < share.count(); ++c) {
    co_await ctx.wait(semaphore, link, ++due, behind);
    const Stage came = stage(ctx.device(), line.position, way, link, c, share[c]);
    if (way == 1 && line.position != 0) {
      ctx.raise(Signal{joined, link}, ctx.settled_ns());
    } else if (way == 1 || line.position == last) {
      finish(ctx, way, link, share[c], came, nullptr);
    } else {
      co_await ctx.wait(joined, link, c + 1, Owed::by(ctx.device()));
      const Stage other = stage(ctx.device(), line.position, 1, link, c, share[c]);
      finish(ctx, way, link, share[c], came, &other);
    }
  }
  ctx.clear(semaphore, link);
  if (way == 0) ctx.clear(joined, link);
}

void ReduceScatter::pass_on(Context& ctx, const Hop& ahead, uint32_t slice, Span span, const Stage* came, const Stage& there,
                            uint64_t here) const {
  Memory& own = input.at(ctx.device());
  const Region mine = slices.part(slice, span);
  const uint64_t bytes = static_cast<uint64_t>(static_cast<double>(span.bytes()) * wire);
  const Signal signal{*semaphores[ahead.way], ahead.link};
  std::array<Access, 3> accesses{Access{&own, mine, false}, Access{there.memory, there.region, true}};
  if (came != nullptr) accesses[2] = came->read();
  ctx.send(ahead, bytes, here, signal, std::span<const Access>(accesses.data(), came != nullptr ? 3 : 2),
           ReduceStep{.dtype = input.spec.dtype,
                      .pool = pool,
                      .behind = came != nullptr ? came->part() : Part{},
                      .own = {own.data, mine, nullptr},
                      .other = {},
                      .to = there.memory->data,
                      .target = there.region,
                      .keep = came != nullptr ? there.shadow : nullptr},  // the first summand is exact as it is
           chain_of(slice, ahead.way, ahead.link, span));
}

void ReduceScatter::finish(Context& ctx, uint32_t way, uint32_t link, Span span, const Stage& came, const Stage* other) const {
  Memory &own = input.at(ctx.device()), &result = output.at(ctx.device());
  const uint32_t position = ctx.line(over.axis).position;
  const Region mine = slices.part(position, span), target = alone(slices, span);
  std::array<Access, 4> accesses{came.read(), Access{&own, mine, false}, Access{&result, target, true}};
  if (other != nullptr) accesses[3] = other->read();
  ctx.work(std::span<const Access>(accesses.data(), other != nullptr ? 4 : 3), 3 * span.bytes(),
           ReduceStep{.dtype = input.spec.dtype,
                      .pool = pool,
                      .behind = came.part(),
                      .own = {own.data, mine, nullptr},
                      .other = other != nullptr ? other->part() : Part{},
                      .to = result.data,
                      .target = target,
                      .keep = nullptr},
           chain_of(position, way, link, span));
}

void ReduceScatter::make_shadows(uint32_t devices) const {
  if (!with_shadows || slots_per_way_ != 0) return;
  for (uint32_t link = 0; link < over.links; ++link)
    for (const uint32_t way : {0u, 1u}) slots_per_way_ = std::max<size_t>(slots_per_way_, chunks(way, link).count());
  shadows_.resize(size_t{devices} * over.length * 2 * over.links * slots_per_way_);
}

}  // namespace

std::unique_ptr<Plan> plan_reduce_scatter(Request& r, mr_reduce_scatter& op) {
  auto plan = std::make_unique<ReduceScatter>();
  const Operand input = r.input("input", op.input);
  r.rank4("input", input);
  r.along(op.dim, 3);
  Collective over = r.collective(op.axis, op.num_links, op.topology);
  r.hyperparameters(over, op.chunks_per_sync, op.num_workers_per_link, op.num_buffers_per_channel, kPacketsPerChunk);
  const DType dtype = input.spec.dtype;
  if (!is_float(dtype) && dtype != DType::uint32 && dtype != DType::int32)
    throw r.reject("input is %s: sums are of bfloat16, float32, bfloat8_b, uint32 or int32", name_of(dtype));
  if (dtype == DType::bfloat8_b && r.config().round_per_hop) throw r.reject("input is bfloat8_b: its sums are rounded once, not per_hop");
  Spec scattered = input.spec;
  if (scattered.shape.dims[op.dim] % over.length != 0)
    throw r.reject("dim %u of input %s is not divisible by the %u devices of axis %u", op.dim, text(input.spec.shape).c_str(), over.length, over.axis);
  scattered.shape.dims[op.dim] /= over.length;
  if (op.output == 0) {
    r.choice("memory", op.memory, MR_DRAM, MR_L1);
    scattered.memory = op.memory;
    scattered.shard_rows = scattered.shard_cols = 0;
  }
  Spec staged = input.spec;
  if (!over.ring) staged.shape.dims[0] *= 2;
  if (over.length > 1) {
    for (uint32_t i = 0; i < 3; ++i) plan->semaphores[i] = r.semaphore("semaphores", op.semaphores[i]);
    if (op.barrier != 0) {
      plan->start = r.barrier(op.barrier);
    } else if (op.output == 0) {
      throw r.reject("output and barrier are both 0: needs a persistent output or a barrier");
    } else if (op.intermediate == 0) {
      throw r.reject("intermediate and barrier are both 0: peers write to the intermediate, so it must be persistent or there must be a barrier");
    }
    r.different("semaphores and barrier", {op.semaphores[0], op.semaphores[1], op.semaphores[2], op.barrier});
  }
  r.reads(*plan, input);
  if (op.intermediate != 0) {
    plan->intermediate = r.input("intermediate", op.intermediate);
    if (r.config().breaks.linear_intermediate && plan->intermediate.spec.shape != staged.shape)
      r.hazard("wrong_intermediate", op.intermediate,
               format("intermediate is %s: on a %s it must be %s", text(plan->intermediate.spec.shape).c_str(), over.ring ? "ring" : "line", text(staged.shape).c_str()));
    r.check_spec(over.ring ? "intermediate (ring: the input's shape)" : "intermediate (linear: dim 0 of the input doubled)", plan->intermediate,
                 staged);
  } else if (over.length > 1) {
    plan->intermediate = r.scratch("intermediate", in_dram(staged));
  }
  if (plan->intermediate) r.writes(*plan, plan->intermediate);
  plan->output = r.output("output", op.output, scattered);
  r.writes(*plan, plan->output);
  plan->over = over;
  plan->input = input;
  plan->slices = Slices::along(input.spec, op.dim, over.length);
  plan->wire = static_cast<double>(input.spec.device_bytes()) / static_cast<double>(input.spec.bytes());
  plan->chunk = over.chunk_bytes(r.config(), plan->slices.bytes / over.links / (over.ring ? 2 : 1));
  plan->with_shadows = dtype == DType::bfloat16 && !r.config().round_per_hop && !r.config().timing;
  plan->round_per_hop = r.config().round_per_hop;
  plan->pool = &r.pool();
  return plan;
}

}  // namespace meshrun::emu
