// program_neighbor_pad.cpp: a halo exchange right into the padded tensor, or into a compact buffer.
#include <algorithm>

#include "ops.h"
#include "program_halo_exchange.h"

namespace meshrun::emu {
namespace {

class NeighborPad final : public Plan {
 public:
  explicit NeighborPad(const char* name) : name_(name) {}
  const char* name() const override { return name_; }

  Program run(Context& ctx) const override {
    if (front.tensor) zero_box(ctx, front, ctx.device());
    if (padded.tensor) job.put_rows(ctx, job.interior, 0, padded, ctx.device());
    co_await exchange(ctx, job, nullptr);
    co_await ctx.until(ctx.start_ns + ctx.cost().compute_ns({.bytes = local_bytes()}));
  }

  HaloJob job;
  HaloPlace padded;  // where the interior is copied to; none: nowhere
  HaloPlace front;   // frames of zeros

 private:
  double local_bytes() const {
    uint64_t bytes = job.halo_bytes();
    if (padded.tensor) bytes += 2 * padded.box.bytes();
    if (front.tensor) bytes += front.box.bytes();
    return static_cast<double>(bytes);
  }
  const char* name_;
};

// The padded extent of a dim, which must be a number that a shape can hold.
uint32_t grown(const Request& r, const Shape& shape, uint32_t dim, uint64_t by) {
  const uint64_t n = shape.dims[dim] + by;
  if (n > UINT32_MAX) throw r.reject("input is %s: dim %u is too long with its pads", text(shape).c_str(), dim);
  return static_cast<uint32_t>(n);
}

}  // namespace

std::unique_ptr<Plan> plan_neighbor_pad(Request& r, mr_neighbor_pad& op) {
  auto plan = std::make_unique<NeighborPad>("neighbor_pad");
  HaloJob& job = plan->job;
  r.allow_present(MR_HAS_LOGICAL_H);
  const Operand input = r.input("input", op.input);
  const Shape& in = input.spec.shape;
  r.choice("count", op.count, 1, 2);
  HaloArgs args{.count = op.count, .barrier = op.barrier, .mode = op.mode, .semaphore_fields = {"semaphores[0]", "semaphores[1]"}};
  for (uint32_t i = 0; i < op.count; ++i) {
    r.choice("dims", op.dims[i], 0, in.rank - 1);
    args.dims[i] = op.dims[i];
    args.axes[i] = op.axes[i];
    args.left[i] = op.pad_left[i];
    args.right[i] = op.pad_right[i];
    args.links[i] = op.num_links[i];
    args.semaphores[i] = op.semaphores[i];
  }
  job = halo_job(r, args, input, in);
  const uint64_t rows = uint64_t{in.dims[op.dims[0]]} * job.h().over.length;
  if ((job.masked = r.has(MR_HAS_LOGICAL_H))) {
    if (op.logical_h > rows) throw r.reject("logical_h is %u: must be at most %llu, the rows of the whole dim %u", op.logical_h, static_cast<unsigned long long>(rows), op.dims[0]);
    job.logical_h = op.logical_h;
  }
  Spec wanted = in_dram(input.spec);
  for (uint32_t i = 0; i < op.count; ++i)
    wanted.shape.dims[op.dims[i]] = grown(r, in, op.dims[i], uint64_t{op.pad_left[i]} + op.pad_right[i]);
  const uint32_t t = op.dims[0] - 1;  // meant only with t_front_pad
  if (op.t_front_pad != 0) {
    if (op.dims[0] == 0) throw r.reject("t_front_pad is %u: there is no dim in front of dim 0", op.t_front_pad);
    if (op.count == 2 && op.dims[1] == t) throw r.reject("t_front_pad is %u: dim %u is padded by its neighbours already", op.t_front_pad, t);
    wanted.shape.dims[t] = grown(r, in, t, op.t_front_pad);
  }
  r.reads(*plan, input);
  const Operand output = r.output("output", op.output, wanted);
  r.writes(*plan, output);

  // The dims in front of those that change are one.
  const uint32_t least = op.count == 2 ? std::min(op.dims[0], op.dims[1]) : op.dims[0];
  const bool front_frames = op.t_front_pad != 0 && t < least;
  const uint32_t fold = front_frames ? t : least;
  const uint64_t unit = element_bytes(input.spec.dtype);
  job.interior = {input, Box::of(in, unit).fold(fold)};
  for (uint32_t i = 0; i < op.count; ++i) job.dims[i].dim = op.dims[i] - fold + 1;
  job.shared = front_frames && job.interior.box.extent[1] > job.interior.box.extent[0] ? 1 : 0;
  HaloPlace whole{output, Box::of(wanted.shape, unit).fold(fold)};
  if (op.t_front_pad != 0) {
    plan->front = whole.cut(t - fold + 1, 0, op.t_front_pad);
    whole = whole.cut(t - fold + 1, op.t_front_pad, in.dims[t]);
  }
  HaloPlace columns = whole;  // all rows, without the W halo
  const uint32_t h = job.h().dim, above = job.h().pad[0], height = job.extent(0);
  if (job.has_w) {
    const uint32_t w = job.w().dim, before = job.w().pad[0], width = job.extent(1);
    columns = whole.cut(w, before, width);
    job.regions[kHaloLeft] = whole.cut(w, 0, before);
    job.regions[kHaloRight] = whole.cut(w, before + width, job.w().pad[1]);
  }
  job.regions[kHaloTop] = columns.cut(h, 0, above);
  job.regions[kHaloBottom] = columns.cut(h, above + height, job.h().pad[1]);
  plan->padded = columns.cut(h, above, height);
  set_corners(r, job);
  return plan;
}

std::unique_ptr<Plan> plan_neighbor_pad_halo(Request& r, mr_neighbor_pad_halo& op) {
  auto plan = std::make_unique<NeighborPad>("neighbor_pad_halo");
  HaloJob& job = plan->job;
  r.allow_present(MR_HAS_W);
  const Operand input = r.input("input", op.input);
  const uint32_t rank = input.spec.shape.rank;
  if (rank < 3 || rank > 6) throw r.reject("input is %s: must be [.., H, W, C] of rank 3 to 6", text(input.spec.shape).c_str());
  const uint32_t h = rank - 3, w = rank - 2;
  const bool has_w = r.has(MR_HAS_W);
  if (!has_w && (op.pad_w_left != 0 || op.pad_w_right != 0 || op.semaphore_w != 0))
    throw r.reject("pad_w_left is %u and pad_w_right %u: there is no W part without MR_HAS_W", op.pad_w_left, op.pad_w_right);
  if (!has_w && op.input_pad_w != 0) throw r.reject("input_pad_w is %u: there is no W part without MR_HAS_W", op.input_pad_w);

  Shape interior = input.spec.shape;
  const struct {
    const char* field;
    uint32_t dim, pad;
  } skips[] = {{"input_pad_h", h, op.input_pad_h}, {"input_pad_w", w, op.input_pad_w}};
  for (const auto& s : skips) {
    if (2 * uint64_t{s.pad} >= interior.dims[s.dim]) throw r.reject("%s is %u: leaves nothing of dim %u of input %s", s.field, s.pad, s.dim, text(input.spec.shape).c_str());
    interior.dims[s.dim] -= 2 * s.pad;
  }
  const HaloArgs args{.count = has_w ? 2u : 1u,
                      .dims = {h, w},
                      .axes = {op.axis_h, op.axis_w},
                      .left = {op.pad_h_left, op.pad_w_left},
                      .right = {op.pad_h_right, op.pad_w_right},
                      .links = {op.links_h, op.links_w},
                      .semaphores = {op.semaphore_h, op.semaphore_w},
                      .barrier = op.barrier,
                      .mode = op.mode,
                      .semaphore_fields = {"semaphore_h", "semaphore_w"}};
  job = halo_job(r, args, input, interior);
  set_interior(job, input, {op.input_pad_h, op.input_pad_w});
  const Operand halo = r.input("halo", op.halo);
  r.check_spec("halo", halo, compact_spec(r, job, input.spec, interior));
  set_compact(job, halo);
  r.reads(*plan, input);
  r.writes(*plan, halo);
  if (op.padded_output != 0) {
    const Operand padded = r.input("padded_output", op.padded_output);
    Spec wanted = input.spec;
    wanted.shape = interior;
    for (uint32_t i = 0; i < 2; ++i) wanted.shape.dims[h + i] = grown(r, interior, h + i, job.dims[i].pad[0] + uint64_t{job.dims[i].pad[1]});
    r.check_spec("padded_output", padded, wanted);
    r.writes(*plan, padded);
    const HaloPlace whole{padded, Box::of(wanted.shape, element_bytes(wanted.dtype)).fold(h)};
    plan->padded = whole.cut(1, job.h().pad[0], interior.dims[h]).cut(2, job.w().pad[0], interior.dims[w]);
  }
  set_corners(r, job);
  return plan;
}

}  // namespace meshrun::emu
