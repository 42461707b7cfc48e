// program_ring_sdpa.cpp: attention over a sequence that is sharded on an axis. K and V slices go round the line into the two
// buffers, while each device attends to what has arrived: its own slice first, then by distance, the lower position before the
// higher. The joint part comes last. Joint queries attend when all is there, over the whole sequence in its order, so that their
// result is the same on every device of the line.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernel_attention.h"
#include "ops.h"
#include "program_gather.h"

namespace meshrun::emu {
namespace {

class RingSdpa final : public Plan {
 public:
  const char* name() const override { return "ring_joint_sdpa"; }
  Program run(Context& ctx) const override;

  Operand q, k, v, joint_q, joint_k, joint_v, output, joint_output;
  GatherJob job;
  uint32_t valid = 0;  // keys of the whole sequence
  float scale = 0;
  HostPool* pool = nullptr;
  // The state of each device's attention. All its work names the device's output, which keeps it in order.
  mutable std::vector<std::unique_ptr<Attention>> states;

 private:
  uint32_t slice_rows() const { return k.spec.shape.dims[2]; }
  uint32_t valid_of(uint32_t position) const {
    const uint64_t begin = uint64_t{position} * slice_rows();
    return begin >= valid ? 0 : static_cast<uint32_t>(std::min<uint64_t>(valid - begin, slice_rows()));
  }
  Cost cost_of(const Operand& queries, uint32_t keys) const {
    const Shape& s = queries.spec.shape;
    const double keys_and_values = 2.0 * s.dims[0] * s.dims[1] * s.dims[3] * keys * static_cast<double>(element_bytes(k.spec.dtype));
    return {4.0 * static_cast<double>(s.elements()) * keys, static_cast<double>(queries.spec.device_bytes()) + keys_and_values};
  }
  std::vector<uint32_t> order(const Line& line) const;
  void attend_own(Context& ctx, uint32_t position) const;
  void attend_arrived(Context& ctx, uint32_t position) const;
  void attend_joint(Context& ctx) const;
  void answer_joint_queries(Context& ctx) const;
  Attention& state(uint32_t device) const {
    if (!states[device]) states[device] = std::make_unique<Attention>(q.view(device), scale);
    return *states[device];
  }
};

Program RingSdpa::run(Context& ctx) const {
  const Line line = ctx.line(job.over.axis);
  const auto arrived = std::make_unique<Word[]>(line.length);
  Join gathering;
  if (line.length > 1) {
    for (const GatherJob::Item& item : job.items) copy_own_slice(ctx, item, line.position);
    gathering.start(gather(ctx, job, arrived.get()));
  }
  attend_own(ctx, line.position);
  co_await ctx.compute(cost_of(q, valid_of(line.position)));
  for (const uint32_t position : order(line)) {
    const uint64_t here = co_await ctx.wait(arrived[position], job.parts(line, position));
    if (valid_of(position) == 0) continue;
    attend_arrived(ctx, position);
    co_await ctx.compute(cost_of(q, valid_of(position)), here);
  }
  if (joint_q) {
    attend_joint(ctx);
    co_await ctx.compute(cost_of(q, joint_k.spec.shape.dims[2]));
  }
  ctx.work({output.write(ctx.device())}, output.spec.bytes(), [this, device = ctx.device()](Parallel& parallel) {
    state(device).finish(output.view(device), parallel);
    states[device].reset();
  });
  if (joint_q) {
    answer_joint_queries(ctx);
    co_await ctx.compute(cost_of(joint_q, valid + joint_k.spec.shape.dims[2]), ctx.settled_ns());
  }
  co_await gathering;
}

std::vector<uint32_t> RingSdpa::order(const Line& line) const {
  std::vector<uint32_t> positions;
  for (uint32_t distance = 1; distance < line.length; ++distance)
    for (const int64_t step : {-1, 1}) {
      const int64_t at = int64_t{line.position} + step * int64_t{distance};
      if (!job.over.ring && (at < 0 || at >= int64_t{line.length})) continue;
      const uint32_t position = line.wrap(step * int64_t{distance});
      if (std::find(positions.begin(), positions.end(), position) == positions.end()) positions.push_back(position);
    }
  return positions;
}

void RingSdpa::attend_own(Context& ctx, uint32_t position) const {
  const uint32_t device = ctx.device();
  ctx.work({q.read(device), k.read(device), v.read(device), output.write(device)}, q.spec.bytes() * valid_of(position) / 8 + k.spec.bytes(),
           [this, device, keys = valid_of(position)](Parallel& parallel) { state(device).add(k.view(device), v.view(device), keys, parallel); });
}

void RingSdpa::attend_arrived(Context& ctx, uint32_t position) const {
  const uint32_t device = ctx.device();
  const Slices& slices = job.items[0].slices;
  const Region slice = slices.part(position, slices.all());
  Memory &keys_at = job.items[0].to.at(device), &values_at = job.items[1].to.at(device);
  ctx.work({q.read(device), {&keys_at, slice, false}, {&values_at, slice, false}, output.write(device)},
           q.spec.bytes() * valid_of(position) / 8 + 2 * slices.bytes,
           [this, device, slice, from_k = keys_at.data, from_v = values_at.data, keys = valid_of(position)](Parallel& parallel) {
             // The kernel wants the slice's heads one behind the other.
             const Region packed = Region::contiguous(0, slice.bytes());
             const Block space_k = pool->take(slice.bytes()), space_v = pool->take(slice.bytes());
             CopyRegion{from_k, space_k.data(), slice, packed}(parallel);
             CopyRegion{from_v, space_v.data(), slice, packed}(parallel);
             state(device).add({space_k.data(), k.spec.dtype, k.spec.shape}, {space_v.data(), v.spec.dtype, v.spec.shape}, keys, parallel);
           });
}

void RingSdpa::attend_joint(Context& ctx) const {
  const uint32_t device = ctx.device();
  const uint32_t keys = joint_k.spec.shape.dims[2];
  ctx.work({q.read(device), joint_k.read(device), joint_v.read(device), output.write(device)}, q.spec.bytes() * keys / 8 + joint_k.spec.bytes(),
           [this, device, keys](Parallel& parallel) { state(device).add(joint_k.view(device), joint_v.view(device), keys, parallel); });
}

void RingSdpa::answer_joint_queries(Context& ctx) const {
  const uint32_t device = ctx.device();
  const Operand &all_k = job.over.length > 1 ? job.items[0].to : k, &all_v = job.over.length > 1 ? job.items[1].to : v;
  ctx.work({joint_q.read(device), all_k.read(device), all_v.read(device), joint_k.read(device), joint_v.read(device), joint_output.write(device)},
           joint_q.spec.bytes() * valid / 8 + all_k.spec.bytes(), [this, device, &all_k, &all_v](Parallel& parallel) {
             Attention attention(joint_q.view(device), scale);
             attention.add(all_k.view(device), all_v.view(device), valid, parallel);
             attention.add(joint_k.view(device), joint_v.view(device), joint_k.spec.shape.dims[2], parallel);
             attention.finish(joint_output.view(device), parallel);
           });
}

Spec fresh(Spec like) {
  like.memory = MR_DRAM;
  like.shard_rows = like.shard_cols = 0;
  return like;
}

}  // namespace

std::unique_ptr<Plan> plan_ring_joint_sdpa(Request& r, mr_ring_joint_sdpa& op) {
  auto plan = std::make_unique<RingSdpa>();
  RingSdpa& p = *plan;
  r.allow_present(MR_HAS_SCALE | MR_HAS_LOGICAL_N);
  p.q = r.input("q", op.q);
  p.k = r.input("k", op.k);
  p.v = r.input("v", op.v);
  r.attention("q", p.q, "k", p.k, "v", p.v);
  if (p.k.spec.dtype != p.v.spec.dtype || p.k.spec.layout != p.v.spec.layout) throw r.reject("k is %s and v %s: must be alike", text(p.k.spec).c_str(), text(p.v.spec).c_str());
  const int joints = (op.joint_q != 0) + (op.joint_k != 0) + (op.joint_v != 0);
  if (joints != 0 && joints != 3) throw r.reject("joint_q, joint_k and joint_v: give all three or none");
  if (joints == 3) {
    p.joint_q = r.input("joint_q", op.joint_q);
    p.joint_k = r.input("joint_k", op.joint_k);
    p.joint_v = r.input("joint_v", op.joint_v);
    r.attention("joint_q", p.joint_q, "joint_k", p.joint_k, "joint_v", p.joint_v);
    r.attention("q", p.q, "joint_k", p.joint_k, "joint_v", p.joint_v);
  } else if (op.joint_output != 0) {
    throw r.reject("joint_output is given without joint_q");
  }
  const Collective over = r.collective(op.axis, op.num_links, op.topology);
  p.job.over = over;
  const uint64_t keys = uint64_t{p.k.spec.shape.dims[2]} * over.length;
  if (keys > UINT32_MAX) throw r.reject("k is %s: gathered over %u devices it is too long", text(p.k.spec.shape).c_str(), over.length);
  p.valid = static_cast<uint32_t>(keys);
  if (r.has(MR_HAS_LOGICAL_N)) r.choice("logical_n", p.valid = op.logical_n, 1, static_cast<uint32_t>(keys));
  p.scale = r.has(MR_HAS_SCALE) ? op.scale : 1 / std::sqrt(static_cast<float>(p.q.spec.shape.dims[3]));
  p.pool = &r.pool();
  p.states.resize(r.config().machine.devices());

  for (const Operand* in : {&p.q, &p.k, &p.v, &p.joint_q, &p.joint_k, &p.joint_v}) r.reads(p, *in);
  if (over.length > 1) {
    if (op.semaphores[0] == op.semaphores[1]) throw r.reject("semaphores must be different semaphores");
    for (const uint32_t way : {0u, 1u}) p.job.semaphores[way] = r.semaphore("semaphores", op.semaphores[way]);
    Spec gathered = p.k.spec;
    gathered.shape.dims[2] = static_cast<uint32_t>(keys);
    const Operand buffer_k = r.input("buffer_k", op.buffer_k), buffer_v = r.input("buffer_v", op.buffer_v);
    r.check_spec("buffer_k", buffer_k, gathered);
    r.check_spec("buffer_v", buffer_v, gathered);
    r.writes(p, buffer_k);
    r.writes(p, buffer_v);
    p.job.add(r.config(), p.k, buffer_k, 2);
    p.job.add(r.config(), p.v, buffer_v, 2);
  }
  p.output = r.output("output", op.output, fresh(p.q.spec));
  r.writes(p, p.output);
  if (joints == 3) {
    p.joint_output = r.output("joint_output", op.joint_output, fresh(p.joint_q.spec));
    r.writes(p, p.joint_output);
  }
  return plan;
}

}  // namespace meshrun::emu
