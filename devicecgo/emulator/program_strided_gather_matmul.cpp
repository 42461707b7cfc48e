// program_strided_gather_matmul.cpp: gathers [..., M, K/n] along K while it multiplies with [K, N]. Each device begins with its own slice of K and
// goes on with the others as they arrive, by distance: in the order of order() whatever the timing, so that the float32 sums are always the
// same. They are rounded once, at the end.
//
// A slice travels by links x workers per way, each with a semaphore that counts the chunks it has brought. When all workers of a way have
// brought their parts, the way's collector raises the way's own semaphore by one, and the matmul goes by these two.
#include <algorithm>
#include <vector>

#include "kernel_bfloat8.h"
#include "kernel_matmul.h"
#include "ops.h"
#include "program_gather.h"

namespace meshrun::emu {
namespace {

class StridedGatherMatmul final : public Plan {
 public:
  const char* name() const override { return "strided_all_gather_minimal_matmul"; }
  Program run(Context& ctx) const override;

  Operand input, weight, bias, output;
  GatherJob job;
  std::array<SemaphoreRef, 2> ready;  // slices that have come by each way
  uint32_t activation = 0;
  HostPool* pool = nullptr;
  // The float32 sums of each device. All work on them names the device's output, which keeps it in order.
  mutable std::vector<Block> sums;

 private:
  Program collect(Context& ctx, uint32_t way, Word* arrived) const;
  void multiply(Context& ctx, uint32_t position, bool own) const;
  void finish(Context& ctx) const;

  const Operand& gathered() const { return job.items[0].to; }
  size_t slice_depth() const { return input.spec.shape.back(0); }
  size_t rows() const { return input.spec.shape.product(0, input.spec.shape.rank - 1); }
  Cost cost_of_slice() const {
    const double share = 1.0 / job.over.length;
    return {2.0 * static_cast<double>(output.spec.shape.elements()) * static_cast<double>(slice_depth()),
            static_cast<double>(input.spec.device_bytes()) + share * static_cast<double>(weight.spec.device_bytes()) +
                share * static_cast<double>(output.spec.device_bytes())};
  }

  // A slice that comes, and how many each way must have brought for it to be there.
  struct Coming {
    uint32_t position = 0;
    std::array<uint32_t, 2> after{};
  };
  std::vector<Coming> order(const Line& line) const;
};

std::vector<StridedGatherMatmul::Coming> StridedGatherMatmul::order(const Line& line) const {
  std::vector<Coming> all;
  for (uint32_t distance = 1; distance < line.length; ++distance)
    for (const uint32_t way : {0u, 1u}) {
      if (distance > job.reach(line, way).receives) continue;
      const uint32_t position = line.wrap(-step_of(way) * int64_t{distance});
      // The slice from the other side of an even ring comes half by each way.
      const bool again = !all.empty() && all.back().position == position;
      if (!again) all.push_back({.position = position});
      all.back().after[way] = distance;
    }
  return all;
}

Program StridedGatherMatmul::run(Context& ctx) const {
  const Line line = ctx.line(job.over.axis);
  const auto arrived = std::make_unique<Word[]>(2 * size_t{line.length});
  Join gathering;
  copy_own_slice(ctx, job.items[0], line.position);
  gathering.start(gather(ctx, job, arrived.get(), true));
  for (const uint32_t way : {0u, 1u}) gathering.start(collect(ctx, way, arrived.get() + way * line.length));

  multiply(ctx, line.position, true);
  co_await ctx.compute(cost_of_slice());
  for (const Coming& slice : order(line)) {
    uint64_t here = ctx.now();
    for (const uint32_t way : {0u, 1u})
      if (slice.after[way] != 0) here = std::max(here, co_await ctx.wait(*ready[way], 0, slice.after[way], Owed::by(ctx.device())));
    multiply(ctx, slice.position, false);
    co_await ctx.compute(cost_of_slice(), here);
  }
  finish(ctx);
  co_await gathering;
  for (const uint32_t way : {0u, 1u}) ctx.clear(*ready[way], 0);
}

// Tells the matmul of each slice of a way, when all its workers have brought their parts of it.
Program StridedGatherMatmul::collect(Context& ctx, uint32_t way, Word* arrived) const {
  const Line line = ctx.line(job.over.axis);
  for (uint32_t hops = 1; hops <= job.reach(line, way).receives; ++hops) {
    const uint64_t here = co_await ctx.wait(arrived[line.wrap(-step_of(way) * int64_t{hops})], job.workers_per_way());
    ctx.raise(Signal{*ready[way], 0}, here);
  }
}

void StridedGatherMatmul::multiply(Context& ctx, uint32_t position, bool own) const {
  const uint32_t device = ctx.device();
  const Slices& slices = job.items[0].slices;
  const Operand& from = own ? input : gathered();
  const Region region = own ? input.whole() : slices.part(position, slices.all());
  ctx.work({{&from.at(device), region, false}, weight.read(device), output.write(device)}, slices.bytes * weight.spec.shape.back(0) / 8,
           [this, device, position, own, &from](Parallel& parallel) {
             const size_t depth = slice_depth(), columns = weight.spec.shape.back(0), whole = depth * job.over.length;
             if (own) sums[device] = pool->take(rows() * columns * sizeof(float));
             matmul_part({.a = from.view(device),
                          .a_offset = own ? 0 : position * depth,
                          .a_stride = own ? depth : whole,
                          .w = weight.view(device),
                          .w_offset = position * depth * columns,
                          .w_stride = columns,
                          .rows = rows(),
                          .depth = depth,
                          .columns = columns},
                         reinterpret_cast<float*>(sums[device].data()), !own, parallel);
           });
}

void StridedGatherMatmul::finish(Context& ctx) const {
  const uint32_t device = ctx.device();
  std::array<Access, 2> accesses{output.write(device)};
  if (bias) accesses[1] = bias.read(device);
  ctx.work(std::span<const Access>(accesses.data(), bias ? 2 : 1), 2 * output.spec.bytes(), [this, device](Parallel& parallel) {
    matmul_finish(reinterpret_cast<const float*>(sums[device].data()), bias.view(device), activation, output.view(device), parallel);
    round_blocks(output.view(device), parallel);
    sums[device].release();
  });
}

}  // namespace

std::unique_ptr<Plan> plan_strided_all_gather_matmul(Request& r, mr_strided_all_gather_matmul& op) {
  auto plan = std::make_unique<StridedGatherMatmul>();
  StridedGatherMatmul& p = *plan;
  r.allow_present(MR_HAS_BUFFERS);
  p.input = r.input("input", op.input);
  p.weight = r.input("weight", op.weight);
  p.bias = r.optional("bias", op.bias);
  r.rank4("input", p.input);
  for (const auto& [field, operand] : {std::pair{"input", &p.input}, {"weight", &p.weight}, {"bias", &p.bias}}) {
    r.floats(field, *operand);
    r.reads(p, *operand);
  }
  r.choice("activation", p.activation = op.activation, MR_ACT_NONE, MR_ACT_TANH);
  Collective over = r.collective(op.axis, op.num_links, op.topology);
  if (over.length == 1) throw r.reject("axis is %u: has length 1, and nothing is gathered: use matmul", op.axis);
  if (r.has(MR_HAS_BUFFERS)) r.choice("num_buffers_per_channel", op.num_buffers_per_channel, 1, 1 << 16);
  r.choice("num_workers_per_link", op.num_workers_per_link, 1, (MR_MAX_STRIDED - 2) / (2 * over.links));
  const uint32_t per_way = over.links * op.num_workers_per_link;
  if (op.semaphore_count != 2 + 2 * per_way)
    throw r.reject("semaphore_count is %u: 2 + 2 * %u links * %u workers are needed", op.semaphore_count, over.links, op.num_workers_per_link);
  r.different("semaphores", {op.semaphores, op.semaphores + op.semaphore_count});
  p.job.over = over;
  p.job.workers = op.num_workers_per_link;
  for (const uint32_t way : {0u, 1u}) p.ready[way] = r.semaphore("semaphores", op.semaphores[way]);
  for (uint32_t i = 2; i < op.semaphore_count; ++i) p.job.channels.push_back({r.semaphore("semaphores", op.semaphores[i]), 0});

  Spec gathered = p.input.spec;
  const Shape &x = p.input.spec.shape, &w = p.weight.spec.shape;
  const uint64_t k = uint64_t{x.dims[3]} * over.length;
  if (k > UINT32_MAX) throw r.reject("input is %s: gathered over %u devices it is too long", text(x).c_str(), over.length);
  gathered.shape.dims[3] = static_cast<uint32_t>(k);
  if (w.rank < 2 || w.back(1) != k || w.elements() != k * w.back(0))
    throw r.reject("weight is %s: must be one matrix [%u, N], as the gathered input is %s", text(w).c_str(), gathered.shape.dims[3], text(gathered.shape).c_str());
  Spec wanted = in_dram(p.input.spec);
  wanted.shape.dims[3] = w.back(0);
  if (p.bias && (p.bias.spec.shape.back(0) != w.back(0) || p.bias.spec.shape.elements() != w.back(0)))
    throw r.reject("bias is %s: must be [..., 1, %u]", text(p.bias.spec.shape).c_str(), w.back(0));
  check_whole_blocks(r, "input", p.input, 3);
  const Operand buffer = r.input("gathered", op.gathered);
  r.check_spec("gathered", buffer, gathered);
  r.writes(p, buffer);
  p.job.add(r.config(), p.input, buffer, 3);
  p.pool = &r.pool();
  p.sums.resize(r.config().machine.devices());
  p.output = r.output("output", op.output, wanted);
  r.writes(p, p.output);
  return plan;
}

}  // namespace meshrun::emu
