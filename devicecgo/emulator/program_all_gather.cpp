// program_all_gather.cpp: every device's slice goes to every device of its line.
#include "ops.h"
#include "program_gather.h"

namespace meshrun::emu {
namespace {

class AllGather final : public Plan {
 public:
  const char* name() const override { return "all_gather"; }

  Program run(Context& ctx) const override {
    const Line line = ctx.line(job.over.axis);
    if (start) co_await barrier(ctx, job.over, *start);
    copy_own_slice(ctx, job.items[0], line.position);
    if (line.length > 1) co_await gather(ctx, job, nullptr);
    co_await ctx.until(ctx.start_ns + ctx.cost().compute_ns({.bytes = 2.0 * static_cast<double>(job.items[0].slices.bytes)}));
  }

  GatherJob job;
  SemaphoreRef start;
};

}  // namespace

std::unique_ptr<Plan> plan_all_gather(Request& r, mr_all_gather& op) {
  auto plan = std::make_unique<AllGather>();
  const Operand input = r.input("input", op.input);
  r.rank4("input", input);
  r.along(op.dim, 3);
  Collective over = r.collective(op.axis, op.num_links, op.topology);
  r.hyperparameters(over, op.chunks_per_sync, op.num_workers_per_link, op.num_buffers_per_channel);
  if (over.length > 1 && op.output == 0 && op.barrier == 0)
    throw r.reject("output and barrier are both 0: needs a persistent output or a barrier");
  if (over.length > 1) {
    for (const uint32_t way : {0u, 1u}) plan->job.semaphores[way] = r.semaphore("semaphores", op.semaphores[way]);
    if (op.barrier != 0) plan->start = r.barrier(op.barrier);
    r.different("semaphores and barrier", {op.semaphores[0], op.semaphores[1], op.barrier});
  }
  Spec gathered = op.output == 0 ? in_dram(input.spec) : input.spec;
  const uint64_t extent = uint64_t{gathered.shape.dims[op.dim]} * over.length;
  if (extent > UINT32_MAX) throw r.reject("input is %s: dim %u gathered over %u devices is too long", text(input.spec.shape).c_str(), op.dim, over.length);
  gathered.shape.dims[op.dim] = static_cast<uint32_t>(extent);
  if (over.length > 1) check_whole_blocks(r, "input", input, op.dim);
  r.reads(*plan, input);
  const Operand output = r.output("output", op.output, gathered);
  r.writes(*plan, output);
  plan->job.over = over;
  plan->job.add(r.config(), input, output, op.dim);
  return plan;
}

}  // namespace meshrun::emu
