// program_fused_norm.cpp: normalises over a width that is sharded on an axis. Each device reduces its part of every row to a few
// statistics, these go round the line, and each device normalises its part with the totals, which are combined in order of position.
//
// The stats buffer is float32 [1,1,rows,S*n]: for each row the statistics of position 0, then of position 1, ... S is 1 for RMS (sum
// of squares) and 2 for layer norm (mean, and sum of squared distances from it). rows = all dims of the input but the last.
#include <cmath>

#include "kernel_bfloat8.h"
#include "kernel_norm.h"
#include "ops.h"
#include "program_gather.h"

namespace meshrun::emu {
namespace {

class FusedNorm final : public Plan {
 public:
  const char* name() const override { return "fused_distributed_norm"; }

  Program run(Context& ctx) const override {
    const Line line = ctx.line(job.over.axis);
    const uint32_t device = ctx.device();
    const double part = static_cast<double>(input.spec.device_bytes());

    ctx.work({input.read(device), own.write(device)}, input.spec.bytes(), [this, device](Parallel& parallel) {
      norm_partial(kind, input.view(device), own.view(device).as<float>(), parallel);
    });
    co_await ctx.compute({.flops = 4 * elements(), .bytes = part});
    if (job.over.length > 1) {
      copy_own_slice(ctx, job.items[0], line.position);
      co_await gather(ctx, job, nullptr);
    }
    std::array<Access, 7> accesses;
    size_t n = 0;
    for (const Operand* in : {&input, &weight, &bias, &cos, &sin, &stats()})
      if (*in) accesses[n++] = in->read(device);
    accesses[n++] = output.write(device);
    ctx.work(std::span<const Access>(accesses.data(), n), 2 * input.spec.bytes(), [this, device](Parallel& parallel) {
      norm_apply(kind, input.view(device), stats().view(device).as<float>(), job.over.length, weight.view(device), bias.view(device), epsilon, heads,
                 cos.view(device), sin.view(device), output.view(device), parallel);
      round_blocks(output.view(device), parallel);
    });
    co_await ctx.compute({.flops = 8 * elements(), .bytes = 2 * part}, ctx.settled_ns());
  }

  uint32_t kind = 0;
  float epsilon = 0;
  uint32_t heads = 1;
  Operand input, weight, bias, cos, sin, output;
  Operand own;   // this device's statistics
  GatherJob job;  // from `own` into the stats buffer

 private:
  double elements() const { return static_cast<double>(input.spec.shape.elements()); }
  const Operand& stats() const { return job.over.length > 1 ? job.items[0].to : own; }
};

}  // namespace

std::unique_ptr<Plan> plan_fused_distributed_norm(Request& r, mr_fused_distributed_norm& op) {
  auto plan = std::make_unique<FusedNorm>();
  r.allow_present(MR_HAS_AXIS);
  r.choice("kind", op.kind, MR_NORM_LAYER, MR_NORM_RMS);
  if (!(op.epsilon >= 0) || !std::isfinite(op.epsilon)) throw r.reject("epsilon is %g: must be at least 0", static_cast<double>(op.epsilon));
  plan->kind = op.kind;
  plan->epsilon = op.epsilon;
  const Operand x = plan->input = r.input("input", op.input);
  r.floats("input", x);
  const struct {
    const char* field;
    Operand& operand;
    mr_handle handle;
  } optional[] = {{"weight", plan->weight, op.weight}, {"bias", plan->bias, op.bias}, {"rope_cos", plan->cos, op.rope_cos}, {"rope_sin", plan->sin, op.rope_sin}};
  r.reads(*plan, x);
  for (const auto& o : optional) {
    o.operand = r.optional(o.field, o.handle);
    r.floats(o.field, o.operand);
    r.reads(*plan, o.operand);
  }
  if (plan->weight) r.broadcasts("weight", plan->weight.spec.shape, x.spec.shape);
  if (plan->bias) r.broadcasts("bias", plan->bias.spec.shape, x.spec.shape);

  const Shape& in = x.spec.shape;
  const uint32_t width = in.back(0);
  if (op.num_heads < 1 || width % op.num_heads != 0)
    throw r.reject("num_heads is %u: must divide the last dim of input %s", op.num_heads, text(in).c_str());
  plan->heads = op.num_heads;
  Spec wanted = in_dram(x.spec);
  if (op.num_heads > 1) {
    if (in.rank != 4 || in.dims[1] != 1) throw r.reject("input is %s: with num_heads %u it must be [B,1,N,H*D]", text(in).c_str(), op.num_heads);
    wanted.shape = shape4(in.dims[0], op.num_heads, in.dims[2], width / op.num_heads);
  }
  if ((op.rope_cos != 0) != (op.rope_sin != 0)) throw r.reject("rope_cos and rope_sin: give both or neither");
  if (op.rope_cos != 0) {
    r.rank4("input", x);
    if (wanted.shape.back(0) % 2 != 0) throw r.reject("input is %s: with rope a head's width must be even, it is %u", text(in).c_str(), wanted.shape.back(0));
    r.rope_table("rope_cos", plan->cos, wanted.shape);
    r.rope_table("rope_sin", plan->sin, wanted.shape);
  }

  // Without an axis the width is whole: a line of one.
  Collective over;
  if (op.h.present & MR_HAS_AXIS) over = r.collective(op.axis, op.num_links, op.topology);
  plan->job.over = over;
  const uint64_t rows = in.product(0, in.rank - 1);
  const uint32_t values = static_cast<uint32_t>(norm_stats_values(op.kind));
  if (rows > UINT32_MAX) throw r.reject("input is %s: too many rows", text(in).c_str());
  Spec own;
  own.dtype = DType::float32;
  own.layout = MR_ROW_MAJOR;
  own.shape = shape4(1, 1, static_cast<uint32_t>(rows), values);
  if (over.length > 1) {
    if (op.stats == 0) throw r.reject("stats is 0: a persistent stats buffer is needed on an axis of %u", over.length);
    const Operand stats = r.input("stats", op.stats);
    Spec gathered = own;
    gathered.layout = stats.spec.layout;
    gathered.shape.dims[3] *= over.length;
    r.check_spec("stats", stats, gathered);
    r.different("semaphores", {op.semaphores[0], op.semaphores[1]});
    for (const uint32_t way : {0u, 1u}) plan->job.semaphores[way] = r.semaphore("semaphores", op.semaphores[way]);
    r.writes(*plan, stats);
    plan->own = r.scratch("stats of one device", own);
    plan->job.add(r.config(), plan->own, stats, 3);
  } else {
    plan->own = r.scratch("stats of one device", own);
  }
  plan->output = r.output("output", op.output, wanted);
  r.writes(*plan, plan->output);
  return plan;
}

}  // namespace meshrun::emu
