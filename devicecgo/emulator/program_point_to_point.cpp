// program_point_to_point.cpp: shards go from device to device; who receives none keeps its own.
#include <optional>

#include "ops.h"
#include "program_gather.h"
#include "program_halo_route.h"

namespace meshrun::emu {
namespace {

class PointToPoint final : public Plan {
 public:
  const char* name() const override { return "point_to_point"; }

  Program run(Context& ctx) const override {
    co_await barrier(ctx, over, *start);
    const uint32_t device = ctx.device();
    uint64_t copied = 0;
    if (!receives[device]) {
      copied = input.spec.device_bytes();
      ctx.work({input.read(device), output.write(device)}, input.spec.bytes(),
               CopyRegion{input.at(device).data, output.at(device).data, input.whole(), output.whole()});
    }
    co_await route->run(ctx);
    co_await ctx.until(ctx.start_ns + ctx.cost().compute_ns({.bytes = 2.0 * static_cast<double>(copied)}));
  }

  Collective over;
  Operand input, output;
  SemaphoreRef start;
  std::vector<bool> receives;  // per device
  std::optional<Route> route;
};

}  // namespace

std::unique_ptr<Plan> plan_point_to_point(Request& r, mr_point_to_point& op) {
  auto plan = std::make_unique<PointToPoint>();
  PointToPoint& p = *plan;
  r.allow_present(0);
  p.input = r.input("input", op.input);
  p.over = r.collective(op.axis, op.num_links, op.topology);
  if (2 * p.over.links > Semaphore::kLanes) throw r.reject("num_links is %u: at most %u are used", p.over.links, Semaphore::kLanes / 2);
  r.choice("count", op.count, 1, MR_MAX_PAIRS);
  p.start = r.barrier(op.barrier);
  const SemaphoreRef semaphore = r.semaphore("semaphore", op.semaphore);
  r.different("semaphore and barrier", {op.semaphore, op.barrier});

  const Machine& machine = r.config().machine;
  const Spec& in = p.input.spec;
  p.receives.resize(machine.devices());
  std::vector<bool> sends(machine.devices());
  std::vector<std::vector<Parcel>> parcels(machine.devices() / p.over.length);
  for (uint32_t i = 0; i < op.count; ++i) {
    const uint32_t from = op.from[i], to = op.to[i];
    for (const uint32_t d : {from, to})
      if (d >= machine.devices()) throw r.reject("pair %u is %u to %u: the mesh has %u devices", i, from, to, machine.devices());
    const Line a = Line::of(machine, from, op.axis), b = Line::of(machine, to, op.axis);
    if (from == to || a.base != b.base) throw r.reject("pair %u is %u to %u: must be two devices of one line of axis %u", i, from, to, op.axis);
    if (sends[from]) throw r.reject("pair %u is %u to %u: device %u sends already", i, from, to, from);
    if (p.receives[to]) throw r.reject("pair %u is %u to %u: device %u receives already", i, from, to, to);
    sends[from] = p.receives[to] = true;
    parcels[op.axis == 0 ? from % machine.cols : from / machine.cols].push_back({a.position, b.position, 0, 0, in.bytes()});
  }
  const double wire = static_cast<double>(in.device_bytes()) / static_cast<double>(in.bytes());
  p.route.emplace(machine, p.over, element_bytes(in.dtype), wire, std::move(parcels));

  p.output = p.route->bind(r, p, p.input, semaphore, op.output, in_dram(in));
  return plan;
}

}  // namespace meshrun::emu
