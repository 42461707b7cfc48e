// program_halo_scatter.cpp: a compact halo is written round its interior: in place, or into a new padded tensor.
#include "ops.h"
#include "program_halo_exchange.h"

namespace meshrun::emu {
namespace {

class HaloScatter final : public Plan {
 public:
  const char* name() const override { return "halo_scatter"; }

  Program run(Context& ctx) const override {
    if (interior.tensor) copy_box(ctx, interior, inside, ctx.device());
    for (uint32_t region = 0; region < kHaloRegions; ++region)
      if (!to[region].box.empty()) copy_box(ctx, job.regions[region], to[region], ctx.device());
    const uint64_t moved = job.halo_bytes() + (interior.tensor ? interior.box.bytes() : 0);
    co_await ctx.compute({.bytes = 2.0 * static_cast<double>(moved)});
  }

  HaloJob job;  // only the pads and the regions of the compact buffer
  std::array<HaloPlace, kHaloRegions> to;
  HaloPlace interior, inside;  // to be copied; none where `padded` has it
};

}  // namespace

std::unique_ptr<Plan> plan_halo_scatter(Request& r, mr_halo_scatter& op) {
  auto plan = std::make_unique<HaloScatter>();
  r.allow_present(0);
  r.choice("border_only", op.border_only, 0, 1);
  const Operand compact = r.input("compact", op.compact), padded = r.input("padded", op.padded);
  const uint32_t rank = padded.spec.shape.rank;
  if (rank < 3 || rank > 6) throw r.reject("padded is %s: must be [.., H, W, C] of rank 3 to 6", text(padded.spec.shape).c_str());
  if (padded.spec.layout != MR_ROW_MAJOR) throw r.reject("padded is %s: must be row major", text(padded.spec).c_str());
  const uint32_t h = rank - 3;
  HaloJob& job = plan->job;
  job.dims[0].pad = {op.pad_h_left, op.pad_h_right};
  job.dims[1].pad = {op.pad_w_left, op.pad_w_right};
  job.has_w = true;

  Shape interior = padded.spec.shape, full = padded.spec.shape;
  for (const uint32_t i : {0u, 1u}) {
    const uint64_t sum = uint64_t{job.dims[i].pad[0]} + job.dims[i].pad[1], extent = full.dims[h + i];
    const char* const field = i == 0 ? "pad_h_left and pad_h_right" : "pad_w_left and pad_w_right";
    const unsigned long long shown = sum;
    if (op.border_only && extent <= sum) throw r.reject("%s are %llu in all: padded %s must have an interior within", field, shown, text(full).c_str());
    if (!op.border_only && extent + sum > UINT32_MAX) throw r.reject("%s are %llu in all: too much for padded %s", field, shown, text(full).c_str());
    if (op.border_only) {
      interior.dims[h + i] -= static_cast<uint32_t>(sum);
    } else {
      full.dims[h + i] += static_cast<uint32_t>(sum);
    }
  }
  Spec wanted = padded.spec;
  wanted.shape = interior;
  wanted = compact_spec(r, job, wanted, interior);
  if (wanted.shape.dims[0] == 0) throw r.reject("the pads are all 0: there is no halo to write");
  r.check_spec("compact", compact, wanted);

  r.reads(*plan, compact);
  Operand output = padded;
  if (op.border_only) {
    if (op.output != 0) {
      output = r.input("output", op.output);
      if (output.storage != padded.storage) throw r.reject("output is another tensor than padded: with border_only it is written in place");
      r.check_spec("output", output, padded.spec);
    }
  } else {
    r.reads(*plan, padded);
    Spec grown = in_dram(padded.spec);
    grown.shape = full;
    output = r.output("output", op.output, grown);
  }
  r.writes(*plan, output);

  const Box inner = Box::of(interior, element_bytes(padded.spec.dtype)).fold(h);
  job.dims[0].dim = 1;
  job.dims[1].dim = 2;
  job.interior = {padded, inner};
  set_compact(job, compact);
  const HaloPlace whole{output, Box::of(full, inner.unit).fold(h)};
  const HaloPlace columns = whole.cut(2, op.pad_w_left, inner.extent[2]);
  plan->to[kHaloTop] = columns.cut(1, 0, op.pad_h_left);
  plan->to[kHaloBottom] = columns.cut(1, op.pad_h_left + inner.extent[1], op.pad_h_right);
  plan->to[kHaloLeft] = whole.cut(2, 0, op.pad_w_left);
  plan->to[kHaloRight] = whole.cut(2, op.pad_w_left + inner.extent[2], op.pad_w_right);
  if (op.border_only) {
    op.output = op.output != 0 ? op.output : op.padded;
  } else {
    plan->interior = {padded, inner};
    plan->inside = columns.cut(1, op.pad_h_left, inner.extent[1]);
  }
  return plan;
}

}  // namespace meshrun::emu
