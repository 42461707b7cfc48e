#include "program_gather.h"

#include "kernel_bfloat8.h"

namespace meshrun::emu {
namespace {

constexpr uint64_t kStreamFrom = uint64_t{64} << 20;  // bytes written in all: no cache keeps them for the next operation

}  // namespace

void GatherJob::add(const Config& config, const Operand& from, const Operand& to, uint32_t dim) {
  Item& item = items[count++];
  item.from = from;
  item.to = to;
  item.slices = Slices::along(to.spec, dim, over.length);
  item.wire = static_cast<double>(from.spec.device_bytes()) / static_cast<double>(from.spec.bytes());
  item.chunk = over.chunk_bytes(config, item.slices.bytes / workers_per_way());
  item.streaming = to.spec.bytes() * config.machine.devices() > kStreamFrom;
}

GatherJob::Reach GatherJob::reach(const Line& line, uint32_t way) const {
  if (over.ring) return {line.length / 2, line.length / 2};
  const uint32_t behind = way == 0 ? line.position : line.length - 1 - line.position;
  const bool last = behind == line.length - 1;
  return {behind, last ? 0 : behind + 1};
}

// On a ring of even length the slice from the other side comes half by each way, so that both carry the same.
Span GatherJob::portion(const Item& item, uint32_t way, uint32_t worker, uint32_t hops) const {
  const uint64_t unit = element_bytes(item.to.spec.dtype);
  const Span share = item.slices.all().share(worker, workers_per_way(), unit);
  const uint32_t n = over.length;
  if (!over.ring || hops < n / 2) return share;
  return n % 2 != 0 ? share : share.share(way, 2, unit);
}

uint32_t GatherJob::parts(const Line& line, uint32_t position) const {
  const uint32_t distance = line.position > position ? line.position - position : position - line.position;
  return over.ring && 2 * distance == line.length ? 2 * workers_per_way() : workers_per_way();
}

namespace {

// A chunk keeps its name on all its hops.
Chain chain_of(uint32_t slice, uint32_t way, uint32_t worker, uint32_t item, Span chunk) {
  return {(((((chunk.from << 8 | slice) << 6 | worker) << 1 | way) << 1 | item) << 1) | 1, chunk.bytes()};
}

// One worker: takes what comes from the device behind, and passes it on to the device ahead.
Program gather_way(Context& ctx, const GatherJob& job, uint32_t way, uint32_t worker, Word* arrived) {
  const Line line = ctx.line(job.over.axis);
  const GatherJob::Reach reach = job.reach(line, way);
  const Hop ahead = ctx.hop(line, way, worker / job.workers);
  const Owed behind = Owed::by(line.device(-step_of(way)));
  const GatherJob::Channel channel = job.channel(way, worker);
  Semaphore& semaphore = *channel.semaphore;
  const uint32_t lane = channel.lane;
  uint32_t due = 0;  // increments for the slices so far

  for (uint32_t hops = 0; hops <= reach.receives || hops < reach.sends; ++hops) {
    const uint32_t whose = line.wrap(-step_of(way) * int64_t{hops});
    const bool comes = hops != 0 && hops <= reach.receives;
    uint64_t here = ctx.now();
    for (uint32_t i = 0; i < job.count; ++i) {
      const GatherJob::Item& item = job.items[i];
      const Chunks arriving{job.portion(item, way, worker, hops), item.chunk};
      const Chunks leaving{job.portion(item, way, worker, hops + 1), item.chunk};
      for (uint32_t c = 0; hops < reach.sends && c < leaving.count(); ++c) {
        const Span chunk = leaving[c];
        if (comes) here = co_await ctx.wait(semaphore, lane, due + arriving.until(chunk.to), behind);
        Memory& source = comes ? item.to.at(ctx.device()) : item.from.at(ctx.device());
        Memory& target = item.to.at(ahead.peer);
        const Region from = comes ? item.slices.part(whose, chunk) : alone(item.slices, chunk);
        const Region to = item.slices.part(whose, chunk);
        ctx.send(ahead, static_cast<uint64_t>(static_cast<double>(chunk.bytes()) * item.wire), here, Signal{semaphore, lane},
                 {{&source, from, false}, {&target, to, true}}, CopyRegion{source.data, target.data, from, to, item.streaming},
                 chain_of(whose, way, worker, i, chunk));
      }
      if (!comes) continue;
      due += arriving.count();
      here = co_await ctx.wait(semaphore, lane, due, behind);
    }
    if (comes && arrived != nullptr) ctx.raise(arrived[whose], 1, here);
  }
  ctx.clear(semaphore, lane);
}

}  // namespace

Program gather(Context& ctx, const GatherJob& job, Word* arrived, bool per_way) {
  Join workers;
  for (uint32_t worker = 0; worker < job.workers_per_way(); ++worker)
    for (const uint32_t way : {0u, 1u})
      workers.start(gather_way(ctx, job, way, worker, per_way && way == 1 ? arrived + job.over.length : arrived));
  co_await workers;
}

void check_whole_blocks(const Request& r, const char* field, const Operand& operand, uint32_t dim) {
  const Shape& s = operand.spec.shape;
  if (operand.spec.dtype == DType::bfloat8_b && dim + 1 == s.rank && s.back(0) % kBlockValues != 0)
    throw r.reject("%s is %s: bfloat8_b is gathered along the last dim only in whole blocks of %zu", field, text(operand.spec).c_str(), kBlockValues);
}

void copy_own_slice(Context& ctx, const GatherJob::Item& item, uint32_t position) {
  Memory& source = item.from.at(ctx.device());
  Memory& target = item.to.at(ctx.device());
  const Region from = alone(item.slices, item.slices.all()), to = item.slices.part(position, item.slices.all());
  ctx.work({{&source, from, false}, {&target, to, true}}, from.bytes(), CopyRegion{source.data, target.data, from, to, item.streaming});
}

Program barrier(Context& ctx, const Collective& over, Semaphore& semaphore) {
  if (ctx.config().breaks.no_start_barrier || ctx.launch().drops_barrier) co_return;
  const Line line = ctx.line(over.axis);
  ctx.multicast(line, over.ring, Signal{.semaphore = semaphore, .announces = true});
  co_await ctx.wait(semaphore, 0, line.length - 1, Owed::by_line(over.axis));
  ctx.clear(semaphore, 0);
}

}  // namespace meshrun::emu
