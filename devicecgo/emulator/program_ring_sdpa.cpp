// program_ring_sdpa.cpp: attention over a sequence that is sharded on an axis. K and V slices go round the line into the two
// buffers, while each device attends to what has arrived: its own slice first, then by distance, the lower position before the
// higher. The joint part comes last. Joint queries attend when all is there, over the whole sequence in its order, so that their
// result is the same on every device of the line.
#include "program_ring_sdpa.h"

#include "kernel_bfloat8.h"
#include "ops.h"

namespace meshrun::emu {

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
    round_blocks(output.view(device), parallel);
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
           [this, device, keys = valid_of(position)](Parallel& parallel) {
             states[device].reset();  // of a launch of this plan that failed half-way
             state(device).add(k.view(device), v.view(device), keys, parallel);
           });
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
             round_blocks(joint_output.view(device), parallel);
           });
}

std::unique_ptr<Plan> plan_ring_joint_sdpa(Request& r, mr_ring_joint_sdpa& op) {
  return plan_ring_sdpa(r, op, [&](GatherJob& job) {
    r.different("semaphores", {op.semaphores[0], op.semaphores[1]});
    for (const uint32_t way : {0u, 1u}) job.semaphores[way] = r.semaphore("semaphores", op.semaphores[way]);
  });
}

}  // namespace meshrun::emu
