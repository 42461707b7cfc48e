// program_slice_reshard.cpp: rows of the whole tensor, sharded along dim 0, are shared out anew.
#include <algorithm>
#include <cstring>
#include <optional>

#include "ops.h"
#include "program_gather.h"
#include "program_halo_route.h"

namespace meshrun::emu {
namespace {

class SliceReshard final : public Plan {
 public:
  const char* name() const override { return "slice_reshard"; }

  Program run(Context& ctx) const override {
    if (start) co_await barrier(ctx, over, *start);
    const Line line = ctx.line(over.axis);
    const Span own = part(line.position, line.position);
    Memory &from = input.at(ctx.device()), &to = output.at(ctx.device());
    if (!own.empty()) {
      const Region source = Region::contiguous(own.from, own.bytes()), target = Region::contiguous(lands(line.position, line.position, own.from), own.bytes());
      ctx.work({{&from, source, false}, {&to, target, true}}, own.bytes(), CopyRegion{from.data, to.data, source, target});
    }
    if (const Span rest = beyond(line.position); !rest.empty())
      ctx.work({{&to, Region::contiguous(rest.from, rest.bytes()), true}}, rest.bytes(),
               [at = to.data, rest](Parallel&) { std::memset(at + rest.from, 0, rest.bytes()); });
    if (over.length > 1) co_await route->run(ctx);
    co_await ctx.until(ctx.start_ns + ctx.cost().compute_ns({.bytes = 2.0 * static_cast<double>(own.bytes())}));
  }

  // Bytes of the whole tensor: where shares of the input and of the output begin.
  struct Cut {
    uint64_t share_in = 0, share_out = 0, offset = 0, end = 0;
  } cut;
  // The part of position i's input that goes to position j, counted in i's input.
  Span part(uint32_t i, uint32_t j) const {
    const uint64_t a = std::max(i * cut.share_in, cut.offset + j * cut.share_out), b = std::min((i + 1) * cut.share_in, cut.offset + (j + 1) * cut.share_out);
    return a < b ? Span{a - i * cut.share_in, b - i * cut.share_in} : Span{};
  }
  // Where a byte of i's input comes to lie in j's output.
  uint64_t lands(uint32_t i, uint32_t j, uint64_t at) const { return i * cut.share_in + at - cut.offset - j * cut.share_out; }
  // What lies past the end of the whole tensor, in position j's output.
  Span beyond(uint32_t j) const {
    const uint64_t begin = cut.offset + j * cut.share_out;
    return {cut.end <= begin ? 0 : std::min(cut.end - begin, cut.share_out), cut.share_out};
  }

  Collective over;
  Operand input, output;
  SemaphoreRef start;
  std::optional<Route> route;
};

}  // namespace

std::unique_ptr<Plan> plan_slice_reshard(Request& r, mr_slice_reshard& op) {
  auto plan = std::make_unique<SliceReshard>();
  SliceReshard& p = *plan;
  r.allow_present(0);
  p.input = r.input("input", op.input);
  const Spec& in = p.input.spec;
  if (in.layout != MR_ROW_MAJOR) throw r.reject("input is %s: must be row major", text(in).c_str());
  p.over = r.collective(op.axis, op.num_links, op.topology);
  const uint32_t n = p.over.length;
  if (op.size == 0 || op.size % n != 0) throw r.reject("size is %u: must be positive and divide by the %u devices of axis %u", op.size, n, op.axis);
  if (2 * p.over.links > Semaphore::kLanes) throw r.reject("num_links is %u: at most %u are used", p.over.links, Semaphore::kLanes / 2);
  if (n > 1) {
    p.start = r.barrier(op.barrier);
    r.different("semaphore and barrier", {op.semaphore, op.barrier});
  }
  const SemaphoreRef semaphore = n > 1 ? r.semaphore("semaphore", op.semaphore) : nullptr;

  const uint64_t row = in.bytes() / in.shape.dims[0], unit = element_bytes(in.dtype);
  p.cut = {.share_in = in.bytes(), .share_out = op.size / n * row, .offset = op.offset * row, .end = in.bytes() * n};
  std::vector<Parcel> parcels;
  for (uint32_t i = 0; i < n; ++i)
    for (uint32_t j = 0; j < n; ++j)
      if (const Span s = p.part(i, j); i != j && !s.empty()) parcels.push_back({i, j, s.from, p.lands(i, j, s.from), s.bytes()});
  const Machine& machine = r.config().machine;
  p.route.emplace(machine, p.over, unit, 1.0, std::vector(machine.devices() / n, parcels));

  Spec wanted = in_dram(in);
  wanted.shape.dims[0] = op.size / n;
  p.output = p.route->bind(r, p, p.input, semaphore, op.output, wanted);
  return plan;
}

}  // namespace meshrun::emu
