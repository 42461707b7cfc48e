// program_ring_sdpa.h: attention over a sequence that is sharded on an axis, shared by the two kinds of ring attention, which differ in the
// semaphores by which K and V come.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "kernel_attention.h"
#include "program_gather.h"

namespace meshrun::emu {

class RingSdpa final : public Plan {
 public:
  explicit RingSdpa(const char* name) : name_(name) {}
  const char* name() const override { return name_; }
  Program run(Context& ctx) const override;

  Operand q, k, v, joint_q, joint_k, joint_v, output, joint_output;
  GatherJob job;
  uint32_t valid = 0;  // keys of the whole sequence
  float scale = 0;
  HostPool* pool = nullptr;
  // The state of each device's attention. All its work names the device's output, which keeps it in order.
  mutable std::vector<std::unique_ptr<Attention>> states;

 private:
  const char* name_;
  uint32_t slice_rows() const { return k.spec.shape.dims[2]; }
  uint32_t valid_of(uint32_t position) const {
    const uint64_t begin = uint64_t{position} * slice_rows();
    return begin >= valid ? 0 : static_cast<uint32_t>(std::min<uint64_t>(valid - begin, slice_rows()));
  }
  Cost cost_of(const Operand& queries, uint32_t keys) const {
    const Shape& s = queries.spec.shape;
    const double keys_and_values = 2.0 * s.dims[0] * s.dims[1] * s.dims[3] * keys * counted_bytes(k.spec.dtype);
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

// Checks everything but the semaphores, which `draw` puts into the job of the plan where the axis has more than one device.
template <class Op, class Draw>
std::unique_ptr<Plan> plan_ring_sdpa(Request& r, Op& op, Draw draw) {
  auto plan = std::make_unique<RingSdpa>(r.op());
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
    draw(p.job);
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
  p.output = r.output("output", op.output, in_dram(p.q.spec));
  r.writes(p, p.output);
  if (joints == 3) {
    p.joint_output = r.output("joint_output", op.joint_output, in_dram(p.joint_q.spec));
    r.writes(p, p.joint_output);
  }
  return plan;
}

}  // namespace meshrun::emu
