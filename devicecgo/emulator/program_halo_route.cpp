#include "program_halo_route.h"

#include <algorithm>

namespace meshrun::emu {

Route::Route(const Machine& machine, const Collective& over, uint64_t unit, double wire, std::vector<std::vector<Parcel>> parcels)
    : over_(over), unit_(unit), wire_(wire), legs_(size_t{2} * machine.devices()) {
  const uint32_t n = over.length;
  for (uint32_t l = 0; l < parcels.size(); ++l) {
    const Line line = Line::of(machine, over.axis == 0 ? l : l * machine.cols, over.axis);
    // What the parcels on their way have last been put into: relay offsets, and the places among the legs.
    std::vector<uint64_t> kept(n, 0);
    struct Travel {
      const Parcel* parcel;
      uint32_t way, hops;
      uint64_t at = 0;  // in the relay of the device where it is
      uint32_t came = Leg::kOwn;
    };
    std::vector<Travel> travels;
    for (const Parcel& p : parcels[l]) {
      const uint32_t up = (p.to + n - p.from) % n;
      const uint32_t way = over.ring ? (2 * up <= n ? 0 : 1) : (p.to > p.from ? 0 : 1);
      travels.push_back({&p, way, way == 0 ? up : n - up});
    }
    // All first hops before all second ones, and so on: that is the order over every link.
    for (uint32_t step = 0; step < n; ++step)
      for (Travel& t : travels) {
        if (step >= t.hops) continue;
        const uint32_t here = (t.parcel->from + (t.way == 0 ? step : n - step)) % n, next = (here + (t.way == 0 ? 1 : n - 1)) % n;
        std::vector<Leg>& out = legs_[2 * line.device_at(here) + t.way];
        Leg leg{.came = t.came, .lands = step + 1 == t.hops, .source = step == 0 ? t.parcel->source : t.at, .target = t.parcel->target, .bytes = t.parcel->bytes};
        if (!leg.lands) {
          leg.target = t.at = kept[next];
          kept[next] += leg.bytes;
          relay_bytes_ = std::max(relay_bytes_, kept[next]);
        }
        t.came = static_cast<uint32_t>(out.size());
        out.push_back(leg);
      }
  }
}

Operand Route::bind(Request& r, Plan& plan, const Operand& input, SemaphoreRef semaphore, mr_handle& output, const Spec& wanted) {
  r.reads(plan, input);
  semaphore_ = std::move(semaphore);
  input_ = input;
  if (relay_bytes_ != 0) {
    constexpr uint64_t kRow = 1024;
    Spec spec;
    spec.dtype = DType::uint8;
    spec.layout = MR_ROW_MAJOR;
    spec.shape.rank = 2;
    spec.shape.dims = {static_cast<uint32_t>((relay_bytes_ + kRow - 1) / kRow), kRow};
    relay_ = r.scratch("relay", spec);
  }
  output_ = r.output("output", output, wanted);
  r.writes(plan, output_);
  return output_;
}

Chunks Route::chunks(const Context& ctx, const Leg& leg, uint32_t link) const {
  return {Span{0, leg.bytes}.share(link, over_.links, unit_), over_.chunk_bytes(ctx.config(), leg.bytes / over_.links)};
}

Program Route::run(Context& ctx) const {
  Join workers;
  for (uint32_t link = 0; link < over_.links; ++link)
    for (const uint32_t way : {0u, 1u}) workers.start(run_way(ctx, way, link));
  co_await workers;
}

Program Route::run_way(Context& ctx, uint32_t way, uint32_t link) const {
  const Line line = ctx.line(over_.axis);
  const Hop ahead = ctx.hop(line, way, link);
  const uint32_t before = line.device(-step_of(way)), lane = 2 * link + way;
  const Owed behind = Owed::by(before);
  // At the ends of a line no leg leaves the device that would be behind this one round the corner.
  const std::vector<Leg>& in = out_of(before, way);
  std::vector<uint32_t> due{0};  // increments for the legs so far
  for (const Leg& leg : in) due.push_back(due.back() + chunks(ctx, leg, link).count());

  for (const Leg& leg : out_of(ctx.device(), way)) {
    const Chunks share = chunks(ctx, leg, link);
    const bool own = leg.came == Leg::kOwn;
    Memory &source = (own ? input_ : relay_).at(ctx.device()), &target = (leg.lands ? output_ : relay_).at(ahead.peer);
    for (uint32_t c = 0; c < share.count(); ++c) {
      uint64_t here = ctx.now();
      if (!own) here = co_await ctx.wait(*semaphore_, lane, due[leg.came] + c + 1, behind);
      const Span chunk = share[c];
      const Region from = Region::contiguous(leg.source + chunk.from, chunk.bytes()), to = Region::contiguous(leg.target + chunk.from, chunk.bytes());
      ctx.send(ahead, static_cast<uint64_t>(static_cast<double>(chunk.bytes()) * wire_), here, Signal{*semaphore_, lane},
               {{&source, from, false}, {&target, to, true}}, CopyRegion{source.data, target.data, from, to});
    }
  }
  if (due.back() == 0) co_return;
  co_await ctx.wait(*semaphore_, lane, due.back(), behind);
  ctx.clear(*semaphore_, lane);
}

}  // namespace meshrun::emu
