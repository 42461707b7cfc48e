// program_np_conv3d.cpp: a halo exchange and the convolution over it in one. Outputs that need no halo are computed while it travels, the
// others as soon as the regions that they reach into are there: the exchange raises a region's semaphores, one per link, and the
// computing side waits for them.
#include <algorithm>
#include <vector>

#include "ops.h"
#include "program_conv3d.h"
#include "program_halo_exchange.h"

namespace meshrun::emu {
namespace {

class NPConv3D final : public Plan {
 public:
  const char* name() const override { return "np_conv3d"; }

  Program run(Context& ctx) const override {
    Regions arriving(*this);
    Join parts;
    for (const Part& part : this->parts) parts.start(compute(ctx, part));
    parts.start(exchange(ctx, job, &arriving));
    co_await parts;
    for (uint32_t region = 0; region < kHaloRegions; ++region)
      for (uint32_t link = 0; padded(region) && link < links; ++link) ctx.clear(semaphore(region, link), 0);
    // The halo's own bytes, as in an exchange alone.
    co_await ctx.until(ctx.start_ns + ctx.cost().compute_ns({.bytes = static_cast<double>(job.halo_bytes())}));
  }

  // Outputs that reach into the same regions of the halo.
  struct Part {
    OutputBox box;
    std::array<bool, kHaloRegions> needs{};
  };
  void cut();

  HaloJob job;
  Convolving c;
  Operand halo, output;
  std::array<SemaphoreRef, kHaloRegions * MR_MAX_LINKS> regions;  // the region outermost
  uint32_t links = 1;
  std::vector<Part> parts;  // that without needs first

 private:
  class Regions final : public HaloProgress {
   public:
    explicit Regions(const NPConv3D& plan) : plan_(plan) {}
    void arrived(Context& ctx, uint32_t region, uint32_t link, uint64_t tail_ns) override { ctx.raise(Signal{plan_.semaphore(region, link)}, tail_ns); }

   private:
    const NPConv3D& plan_;
  };

  bool padded(uint32_t region) const { return job.dims[region / 2].pad[region % 2] != 0; }
  Semaphore& semaphore(uint32_t region, uint32_t link) const { return *regions[region * links + link]; }
  Program compute(Context& ctx, const Part& part) const;
};

Program NPConv3D::compute(Context& ctx, const Part& part) const {
  const uint32_t device = ctx.device();
  std::array<Access, 4 + kHaloRegions> accesses;
  size_t n = 0;
  for (const Operand* in : {&c.input, &c.weight, &c.bias})
    if (*in) accesses[n++] = in->read(device);
  uint64_t here = ctx.now();
  for (uint32_t region = 0; region < kHaloRegions; ++region) {
    if (!part.needs[region]) continue;
    for (uint32_t link = 0; link < links && !ctx.config().breaks.no_region_wait; ++link) {
      const uint64_t tail = co_await ctx.wait(semaphore(region, link), 0, 1, Owed::by(device));
      here = std::max(here, tail);
    }
    accesses[n++] = {&halo.at(device), job.regions[region].box.region(), false};
  }
  const auto& [begin, end] = part.box;
  const Box written = Box::of(c.output.shape, element_bytes(c.output.dtype))
                          .cut(2, static_cast<uint32_t>(begin[0]), static_cast<uint32_t>(end[0] - begin[0]))
                          .cut(3, static_cast<uint32_t>(begin[1]), static_cast<uint32_t>(end[1] - begin[1]));
  accesses[n++] = {&output.at(device), written.region(), true};

  // Of all that a convolution moves, its share.
  const double pixels = static_cast<double>(c.output.shape.product(0, 2) * part.box.pixels());
  double bytes = static_cast<double>(output.spec.device_bytes());
  for (const Operand* in : {&c.input, &c.weight, &c.bias, &halo})
    if (*in) bytes += static_cast<double>(in->spec.device_bytes());
  const Cost cost{.flops = c.flops(pixels), .bytes = bytes * pixels / static_cast<double>(c.output.shape.product(0, 4))};
  ctx.work(std::span<const Access>(accesses.data(), n), static_cast<uint64_t>(cost.bytes + cost.flops / 8), [this, device, box = part.box](Parallel& parallel) {
    conv3d(c.conv, c.input.view(device), c.weight.view(device), c.bias.view(device), halo.view(device), box, output.view(device), parallel);
  });
  co_await ctx.compute(cost, here);
}

// Cuts the outputs where the taps begin to reach into the halo: first the part in the middle, then what is above and below it, then what is
// left and right of all of these.
void NPConv3D::cut() {
  struct Side {
    int64_t size, outputs, stride, pad, reach;
    bool before(int64_t out) const { return out * stride < pad; }
    bool behind(int64_t out) const { return out * stride - pad + reach > size; }
  };
  std::array<Side, 2> sides;
  std::array<size_t, 2> from{}, to{};  // of the outputs that stay inside
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t dim = i + 1;
    sides[i] = {c.input.spec.shape.dims[dim + 1], c.output.shape.dims[dim + 1], c.conv.stride[dim], c.conv.padding[dim],
                int64_t{c.conv.dilation[dim]} * (c.conv.kernel[dim] - 1) + 1};
    const Side& s = sides[i];
    from[i] = static_cast<size_t>(std::min(s.outputs, (s.pad + s.stride - 1) / s.stride));
    const int64_t room = s.size + s.pad - s.reach;
    to[i] = std::clamp(room < 0 ? size_t{0} : static_cast<size_t>(room / s.stride + 1), from[i], static_cast<size_t>(s.outputs));
  }
  const size_t h = static_cast<size_t>(sides[0].outputs), w = static_cast<size_t>(sides[1].outputs);
  const OutputBox boxes[] = {{{from[0], from[1]}, {to[0], to[1]}}, {{0, from[1]}, {from[0], to[1]}}, {{to[0], from[1]}, {h, to[1]}}, {{0, 0}, {h, from[1]}}, {{0, to[1]}, {h, w}}};
  for (const OutputBox& box : boxes) {
    if (box.pixels() == 0) continue;
    Part part{box, {}};
    for (uint32_t i = 0; i < 2; ++i) {
      part.needs[2 * i] = sides[i].before(static_cast<int64_t>(box.begin[i]));
      part.needs[2 * i + 1] = sides[i].behind(static_cast<int64_t>(box.end[i]) - 1);
    }
    parts.push_back(part);
  }
}

}  // namespace

std::unique_ptr<Plan> plan_np_conv3d(Request& r, mr_np_conv3d& op) {
  auto plan = std::make_unique<NPConv3D>();
  r.allow_present(MR_HAS_W);
  const bool has_w = r.has(MR_HAS_W);
  if (!has_w && (op.padding[2] != 0 || op.semaphore_w != 0)) throw r.reject("padding[2] is %u: there is no W part without MR_HAS_W", op.padding[2]);
  r.choice("links", op.links, 1, MR_MAX_LINKS);
  plan->c = convolving(r, op);
  const Convolving& c = plan->c;
  HaloJob& job = plan->job;
  const HaloArgs args{.count = has_w ? 2u : 1u,
                      .dims = {2, 3},
                      .axes = {op.axis_h, op.axis_w},
                      .left = {op.padding[1], op.padding[2]},
                      .right = {op.padding[1], op.padding[2]},
                      .links = {op.links, op.links},
                      .semaphores = {op.semaphore_h, op.semaphore_w},
                      .barrier = op.barrier,
                      .mode = op.mode,
                      .semaphore_fields = {"semaphore_h", "semaphore_w"}};
  job = halo_job(r, args, c.input, c.input.spec.shape);
  set_interior(job, c.input, {0, 0});
  plan->links = op.links;
  for (uint32_t i = 0; i < kHaloRegions * op.links; ++i) {
    plan->regions[i] = r.semaphore("region", op.region[i]);
    for (const mr_handle other : {op.semaphore_h, op.semaphore_w, op.barrier})
      if (op.region[i] == other) throw r.reject("region[%u] is also another of the operation's semaphores: must be one of its own", i);
    if (std::find(op.region, op.region + i, op.region[i]) != op.region + i) throw r.reject("region[%u] is given twice: must be a semaphore of its own", i);
  }
  plan->halo = r.input("halo", op.halo);
  r.check_spec("halo", plan->halo, compact_spec(r, job, c.input.spec, c.input.spec.shape));
  set_compact(job, plan->halo);
  set_corners(r, job);
  plan->cut();
  r.reads(*plan, c.input);
  r.reads(*plan, c.weight);
  r.reads(*plan, c.bias);
  r.writes(*plan, plan->halo);
  plan->output = r.output("output", op.output, c.output);
  r.writes(*plan, plan->output);
  return plan;
}

}  // namespace meshrun::emu
