// program_group_norm.cpp: group norm of a shard, or of all shards with statistics that were made here and gathered meanwhile.
//
// The statistics are float32 [parts, 1, N, 3*G]: per group count, mean, and sum of squared distances from the mean. Parts are combined in
// order. Counts beyond 2^24 are rounded; they only weigh the parts.
#include <cmath>

#include "context.h"
#include "kernel_group_norm.h"
#include "ops.h"

namespace meshrun::emu {
namespace {

class GroupNorm final : public Plan {
 public:
  const char* name() const override { return "group_norm"; }

  Program run(Context& ctx) const override {
    const uint32_t device = ctx.device();
    std::array<Access, 5> accesses;
    size_t n = 0;
    for (const Operand* in : {&input, &weight, &bias, &stats})
      if (*in) accesses[n++] = in->read(device);
    accesses[n++] = output.write(device);
    const double bytes = static_cast<double>(input.spec.device_bytes()), elements = static_cast<double>(input.spec.shape.elements());
    ctx.work(std::span<const Access>(accesses.data(), n), 3 * input.spec.bytes(), [this, device](Parallel& parallel) {
      const ConstView x = input.view(device);
      std::vector<Moments> moments(x.shape.dims[0] * groups);
      if (stats)
        combine(stats.view(device), moments);
      else
        group_moments(x, groups, Window::whole(x.shape), moments.data(), parallel);
      group_norm(x, moments.data(), groups, weight.view(device), bias.view(device), epsilon, activation, output.view(device), parallel);
    });
    // Without statistics the shard is read twice.
    co_await ctx.compute({.flops = (stats ? 8 : 12) * elements, .bytes = (stats ? 2 : 3) * bytes});
  }

  Operand input, weight, bias, stats, output;
  uint32_t groups = 1, activation = MR_ACT_NONE;
  float epsilon = 0;

 private:
  static void combine(ConstView stats, std::vector<Moments>& moments) {
    const float* from = stats.as<float>();
    for (size_t part = 0; part < stats.shape.dims[0]; ++part)
      for (Moments& m : moments) {
        m.add({from[0], from[1], from[2]});
        from += kGroupStats;
      }
  }
};

class GroupNormStats final : public Plan {
 public:
  const char* name() const override { return "group_norm_stats"; }

  Program run(Context& ctx) const override {
    const uint32_t device = ctx.device();
    const Window whole = Window::whole(input.spec.shape);
    const Window window{h.valid(ctx, whole.h), w.valid(ctx, whole.w)};
    ctx.work({input.read(device), output.write(device)}, input.spec.bytes(), [this, device, window](Parallel& parallel) {
      const ConstView x = input.view(device);
      std::vector<Moments> moments(x.shape.dims[0] * groups);
      group_moments(x, groups, window, moments.data(), parallel);
      float* to = output.view(device).as<float>();
      for (const Moments& m : moments)
        for (const double value : {m.count, m.mean, m.m2}) *to++ = static_cast<float>(value);
    });
    co_await ctx.compute({.flops = 4 * static_cast<double>(input.spec.shape.elements()), .bytes = static_cast<double>(input.spec.device_bytes())});
  }

  // Logical is the extent of a whole dim, of which each device has its part.
  struct Logical {
    bool given = false;
    uint32_t extent = 0, axis = 0;
    size_t valid(const Context& ctx, size_t local) const {
      if (!given) return local;
      const size_t before = ctx.line(axis).position * local;
      return extent > before ? std::min<size_t>(extent - before, local) : 0;
    }
  };
  Operand input, output;
  Logical h, w;
  uint32_t groups = 1;
};

Operand grouped(Request& r, mr_handle handle, uint32_t groups) {
  const Operand x = r.input("input", handle);
  r.floats("input", x);
  const Shape& s = x.spec.shape;
  if (s.rank < 2) throw r.reject("input is %s: must be [N,..,C]", text(s).c_str());
  if (x.spec.layout != MR_ROW_MAJOR) throw r.reject("input is %s: must be row major", text(x.spec).c_str());
  if (groups < 1 || s.back(0) % groups != 0) throw r.reject("num_groups is %u: must divide the %u channels of input %s", groups, s.back(0), text(s).c_str());
  return x;
}

Shape stats_shape(const Shape& x, uint32_t parts, uint32_t groups) { return shape4(parts, 1, x.dims[0], static_cast<uint32_t>(kGroupStats) * groups); }

}  // namespace

std::unique_ptr<Plan> plan_group_norm(Request& r, mr_group_norm& op) {
  auto plan = std::make_unique<GroupNorm>();
  r.allow_present(0);
  plan->input = grouped(r, op.input, op.num_groups);
  const Shape& x = plan->input.spec.shape;
  r.choice("activation", op.activation, MR_ACT_NONE, MR_ACT_TANH);
  if (!(op.epsilon >= 0) || !std::isfinite(op.epsilon)) throw r.reject("epsilon is %g: must be at least 0", static_cast<double>(op.epsilon));
  const struct {
    const char* field;
    Operand& operand;
    mr_handle handle;
  } optional[] = {{"weight", plan->weight, op.weight}, {"bias", plan->bias, op.bias}};
  r.reads(*plan, plan->input);
  for (const auto& o : optional) {
    o.operand = r.optional(o.field, o.handle);
    r.floats(o.field, o.operand);
    if (o.operand && (o.operand.spec.shape.back(0) != x.back(0) || o.operand.spec.shape.elements() != x.back(0)))
      throw r.reject("%s is %s: must be [..,%u]", o.field, text(o.operand.spec.shape).c_str(), x.back(0));
    r.reads(*plan, o.operand);
  }
  plan->stats = r.optional("stats", op.stats);
  if (plan->stats) {
    const Spec& s = plan->stats.spec;
    if (s.dtype != DType::float32 || s.shape.rank != 4 || !(s.shape == stats_shape(x, s.shape.dims[0], op.num_groups)))
      throw r.reject("stats is %s: must be [parts,1,%u,%u] float32", text(s).c_str(), x.dims[0], static_cast<uint32_t>(kGroupStats) * op.num_groups);
    r.reads(*plan, plan->stats);
  }
  plan->groups = op.num_groups;
  plan->activation = op.activation;
  plan->epsilon = op.epsilon;
  plan->output = r.output("output", op.output, in_dram(plan->input.spec));
  r.writes(*plan, plan->output);
  return plan;
}

std::unique_ptr<Plan> plan_group_norm_stats(Request& r, mr_group_norm_stats& op) {
  auto plan = std::make_unique<GroupNormStats>();
  r.allow_present(uint32_t{MR_HAS_LOGICAL_H} | uint32_t{MR_HAS_LOGICAL_W});
  plan->input = grouped(r, op.input, op.num_groups);
  const Shape& x = plan->input.spec.shape;
  const struct {
    const char *field, *axis_field;
    GroupNormStats::Logical& logical;
    uint32_t bit, extent, axis, back;
  } sides[] = {{"logical_h", "axis_h", plan->h, MR_HAS_LOGICAL_H, op.logical_h, op.axis_h, 2}, {"logical_w", "axis_w", plan->w, MR_HAS_LOGICAL_W, op.logical_w, op.axis_w, 1}};
  for (const auto& side : sides) {
    if (!r.has(side.bit)) continue;
    r.choice(side.axis_field, side.axis, 0, 1);
    if (side.back + 2 > x.rank) throw r.reject("%s is given, but input is %s: must be [N,..,H,W,C]", side.field, text(x).c_str());
    const uint64_t most = uint64_t{x.back(side.back)} * r.config().machine.axis_length(side.axis);
    if (side.extent < 1 || side.extent > most)
      throw r.reject("%s is %u: must be 1..%llu, what the devices of axis %u hold of it", side.field, side.extent, static_cast<unsigned long long>(most), side.axis);
    side.logical = {true, side.extent, side.axis};
  }
  if (plan->h.given && plan->w.given && op.axis_h == op.axis_w) throw r.reject("axis_h and axis_w are both %u: must be two axes", op.axis_h);
  plan->groups = op.num_groups;
  r.reads(*plan, plan->input);
  Spec wanted;
  wanted.dtype = DType::float32;
  wanted.layout = MR_ROW_MAJOR;
  wanted.shape = stats_shape(x, 1, op.num_groups);
  plan->output = r.output("output", op.output, wanted);
  r.writes(*plan, plan->output);
  return plan;
}

}  // namespace meshrun::emu
