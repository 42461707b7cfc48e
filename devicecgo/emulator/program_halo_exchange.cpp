#include "program_halo_exchange.h"

#include <algorithm>

#include "program_gather.h"

namespace meshrun::emu {
namespace {

constexpr uint64_t kHandshakeBytes = 32;  // of a packet that only raises a semaphore

uint32_t data_lane(uint32_t way, uint32_t link) { return 2 * link + way; }
uint32_t entry_lane(uint32_t way) { return 2 * HaloJob::kMostLinks + way; }
static_assert(2 * HaloJob::kMostLinks + 2 <= Semaphore::kLanes);

struct Nothing {
  void operator()(Parallel&) const {}
};

// Is there a device `ahead` by this way? Lines end; a ring, which is wrong for halos, does not.
bool has_ahead(const Line& line, const Collective& over, uint32_t way) {
  if (over.ring) return true;
  return way == 0 ? line.position + 1 < line.length : line.position != 0;
}
bool has_behind(const Line& line, const Collective& over, uint32_t way) { return has_ahead(line, over, 1 - way); }

// One dim of one exchange, as the programs of its ways and links see it.
struct Exchange {
  Context& ctx;
  const HaloJob& job;
  uint32_t i;  // which dim
  HaloProgress* progress;

  const HaloJob::Dim& dim() const { return job.dims[i]; }
  Line line() const { return ctx.line(dim().over.axis); }
  const HaloPlace& region(uint32_t side) const { return job.regions[2 * i + side]; }
  bool sends(uint32_t way) const { return dim().pad[way] != 0 && has_ahead(line(), dim().over, way); }
  bool receives(uint32_t way) const { return dim().pad[way] != 0 && has_behind(line(), dim().over, way); }
  bool borders(uint32_t way) const { return dim().pad[way] != 0 && !has_behind(line(), dim().over, way); }
  bool handshakes() const { return i != job.first(); }

  Chunks chunks(uint32_t way, uint32_t link) const {
    const Box& box = region(way).box;
    const uint64_t frames = box.extent[job.shared], bytes = box.bytes() / frames;
    const uint64_t chunk = dim().over.chunk_bytes(ctx.config(), box.bytes() / dim().over.links) / bytes;
    return {Span{0, frames}.share(link, dim().over.links, 1), std::max<uint64_t>(1, std::min(chunk, frames))};
  }
  HaloPlace frames(const HaloPlace& place, Span span) const {
    return place.cut(job.shared, static_cast<uint32_t>(span.from), static_cast<uint32_t>(span.bytes()));
  }
  void put(uint32_t way, Span span, uint32_t peer) const { i == 0 ? put_h(way, span, peer) : put_w(way, span, peer); }
  void put_h(uint32_t way, Span span, uint32_t peer) const;
  void put_w(uint32_t way, Span span, uint32_t peer) const;
  void border(uint32_t side, Span span) const { i == 0 ? border_h(side, span) : border_w(side, span); }
  void border_h(uint32_t side, Span span) const;
  void border_w(uint32_t side, Span span) const;
};

// The outermost rows go to the H halo of the device ahead; of them, the columns that W passes on go to its corners too.
void Exchange::put_h(uint32_t way, Span span, uint32_t peer) const {
  const uint32_t h = job.h().dim, n = job.h().pad[way], first = way == 0 ? job.extent(0) - n : 0;
  const HaloPlace rows = frames(job.interior, span).cut(h, first, n);
  job.put_rows(ctx, rows, first, frames(region(way), span), peer);
  for (const uint32_t to : {0u, 1u}) {
    const uint32_t columns = job.w().pad[to];
    if (columns == 0 || !has_ahead(ctx.line(job.w().over.axis), job.w().over, to)) continue;
    const HaloPlace corner = rows.cut(job.w().dim, to == 0 ? job.extent(1) - columns : 0, columns);
    job.put_rows(ctx, corner, first, frames(job.corners[way][to], span), peer);
  }
}

void Exchange::border_h(uint32_t side, Span span) const {
  const HaloPlace to = frames(region(side), span);
  if (!job.replicate) return zero_box(ctx, to, ctx.device());
  const uint32_t h = job.h().dim, first = side == 0 ? 0 : job.extent(0) - 1;
  const HaloPlace row = frames(job.interior, span).cut(h, first, 1);
  job.put_rows(ctx, row.repeat(h, job.h().pad[side]), first, to, ctx.device());
}

// The outermost columns of all H-padded rows go to the W halo of the device ahead.
void Exchange::put_w(uint32_t way, Span span, uint32_t peer) const {
  const uint32_t h = job.h().dim, w = job.w().dim, n = job.w().pad[way], above = job.h().pad[0], rows = job.extent(0);
  const HaloPlace columns = frames(job.interior, span).cut(w, way == 0 ? job.extent(1) - n : 0, n), to = frames(region(way), span);
  job.put_rows(ctx, columns, 0, to.cut(h, above, rows), peer);
  const Line line = ctx.line(job.h().over.axis);
  for (const uint32_t side : {0u, 1u}) {
    const uint32_t pad = job.h().pad[side];
    if (pad == 0) continue;
    const HaloPlace there = to.cut(h, side == 0 ? 0 : above + rows, pad);
    if (has_behind(line, job.h().over, side)) {
      copy_box(ctx, frames(job.corners[side][way], span), there, peer);
    } else if (job.replicate) {
      const uint32_t edge = side == 0 ? 0 : rows - 1;
      job.put_rows(ctx, columns.cut(h, edge, 1).repeat(h, pad), edge, there, peer);
    } else {
      zero_box(ctx, there, peer);
    }
  }
}

// Replicated columns repeat what lies beside them: in the H halo, then the interior.
void Exchange::border_w(uint32_t side, Span span) const {
  const HaloPlace to = frames(region(side), span);
  if (!job.replicate) return zero_box(ctx, to, ctx.device());
  const uint32_t h = job.h().dim, w = job.w().dim, n = job.w().pad[side], above = job.h().pad[0], rows = job.extent(0);
  const uint32_t edge = side == 0 ? 0 : job.extent(1) - 1;
  const auto column = [&](const HaloPlace& of) { return frames(of, span).cut(w, edge, 1).repeat(w, n); };
  job.put_rows(ctx, column(job.interior), 0, to.cut(h, above, rows), ctx.device());
  if (above != 0) copy_box(ctx, column(job.regions[kHaloTop]), to.cut(h, 0, above), ctx.device());
  if (job.h().pad[1] != 0) copy_box(ctx, column(job.regions[kHaloBottom]), to.cut(h, above + rows, job.h().pad[1]), ctx.device());
}

// Raises a semaphore on the neighbour when `bytes` have arrived there.
void send_bytes(Context& ctx, const Hop& hop, uint64_t bytes, uint64_t after, const Signal& signal) {
  ctx.send(hop, bytes, after, signal, std::span<const Access>{}, Nothing{});
}

void send_link(const Exchange& e, uint32_t way, uint32_t link, uint64_t after) {
  const Hop ahead = e.ctx.hop(e.line(), way, link);
  const Chunks share = e.chunks(way, link);
  const uint64_t frame = e.region(way).box.bytes() / e.region(way).box.extent[e.job.shared];
  for (uint32_t c = 0; c < share.count(); ++c) {
    e.put(way, share[c], ahead.peer);
    send_bytes(e.ctx, ahead, share[c].bytes() * frame, after, Signal{*e.dim().semaphore, data_lane(way, link)});
  }
}

// Before it writes into the device ahead, a writer must know that this one has entered. On the first axis the barrier has told it.
Program send_way(Exchange e, uint32_t way, uint64_t after) {
  if (e.handshakes() && !e.ctx.config().breaks.no_handshake) {
    Semaphore& semaphore = *e.dim().semaphore;
    co_await e.ctx.wait(semaphore, entry_lane(way), 1, Owed::by(e.line().device(step_of(way))));
    e.ctx.clear(semaphore, entry_lane(way));
  }
  for (uint32_t link = 0; link < e.dim().over.links; ++link) send_link(e, way, link, after);
}

Program receive_link(Exchange e, uint32_t way, uint32_t link, uint64_t* tail) {
  Semaphore& semaphore = *e.dim().semaphore;
  uint64_t here = e.ctx.now();
  if (const uint32_t due = e.chunks(way, link).count(); due != 0) {
    here = co_await e.ctx.wait(semaphore, data_lane(way, link), due, Owed::by(e.line().device(-step_of(way))));
    e.ctx.clear(semaphore, data_lane(way, link));
  }
  *tail = std::max(*tail, here);
  if (e.progress != nullptr) e.progress->arrived(e.ctx, 2 * e.i + way, link, here);
}

void write_border(Exchange e, uint32_t side) {
  for (uint32_t link = 0; link < e.dim().over.links; ++link) {
    const Span share = e.chunks(side, link).span;
    if (!share.empty()) e.border(side, share);
    if (e.progress != nullptr) e.progress->arrived(e.ctx, 2 * e.i + side, link, e.ctx.now());
  }
}

// A receiver tells the neighbour behind that it has entered.
void announce(Exchange e) {
  if (e.ctx.config().breaks.no_handshake) return;
  for (const uint32_t way : {0u, 1u})
    if (e.receives(way)) {
      const Hop behind = e.ctx.hop(e.line(), 1 - way, 0);
      send_bytes(e.ctx, behind, kHandshakeBytes, e.ctx.now(), Signal{.semaphore = *e.dim().semaphore, .lane = entry_lane(way), .announces = true});
    }
}

}  // namespace

void copy_box(Context& ctx, const HaloPlace& from, const HaloPlace& to, uint32_t device) {
  if (ctx.timing()) return;
  Memory &a = from.tensor.at(ctx.device()), &b = to.tensor.at(device);
  ctx.work({{&a, from.box.region(), false}, {&b, to.box.region(), true}}, to.box.bytes(), CopyBox::make(a.data, from.box, b.data, to.box));
}

void zero_box(Context& ctx, const HaloPlace& to, uint32_t device) {
  if (ctx.timing()) return;
  Memory& b = to.tensor.at(device);
  ctx.work({{&b, to.box.region(), true}}, to.box.bytes(), CopyBox::make(nullptr, to.box, b.data, to.box));
}

void HaloJob::put_rows(Context& ctx, const HaloPlace& rows, uint32_t first, const HaloPlace& to, uint32_t device) const {
  if (ctx.timing()) return;
  const uint32_t n = rows.box.extent[h().dim];
  uint32_t real = n;
  if (masked) {
    // Repeated rows are all the first one.
    const uint64_t begin = uint64_t{ctx.line(h().over.axis).position} * extent(0) + first;
    const uint64_t left = logical_h > begin ? logical_h - begin : 0;
    real = rows.box.stride[h().dim] == 0 && left != 0 ? n : static_cast<uint32_t>(std::min<uint64_t>(left, n));
  }
  if (real != 0) copy_box(ctx, rows.cut(h().dim, 0, real), to.cut(h().dim, 0, real), device);
  if (real != n) zero_box(ctx, to.cut(h().dim, real, n - real), device);
}

uint64_t HaloJob::halo_bytes() const {
  uint64_t bytes = 0;
  for (uint32_t region = 0; region < kHaloRegions; ++region)
    if (dims[region / 2].pad[region % 2] != 0) bytes += regions[region].box.bytes();
  return bytes;
}

Program exchange(Context& ctx, const HaloJob& job, HaloProgress* progress) {
  if (job.start) co_await barrier(ctx, job.dims[job.first()].over, *job.start);
  for (uint32_t i = job.first() + 1; i < 2; ++i)
    if (job.dims[i].active()) announce({ctx, job, i, progress});
  uint64_t tail = ctx.now();  // when all that has been awaited is there
  for (const uint32_t i : {0u, 1u}) {
    const Exchange e{ctx, job, i, progress};
    if (!e.dim().active()) continue;
    const uint64_t after = tail;
    Join parts;
    for (const uint32_t way : {0u, 1u}) {
      if (e.borders(way)) write_border(e, way);
      if (e.sends(way)) parts.start(send_way(e, way, after));
      for (uint32_t link = 0; e.receives(way) && link < e.dim().over.links; ++link) parts.start(receive_link(e, way, link, &tail));
    }
    co_await parts;
  }
}

HaloJob halo_job(Request& r, const HaloArgs& args, const Operand& input, const Shape& interior) {
  HaloJob job;
  if (input.spec.layout != MR_ROW_MAJOR) throw r.reject("input is %s: must be row major", text(input.spec).c_str());
  r.choice("mode", args.mode, MR_PAD_ZEROS, MR_PAD_REPLICATE);
  job.replicate = args.mode == MR_PAD_REPLICATE;
  job.has_w = args.count == 2;
  if (job.has_w && args.dims[0] == args.dims[1]) throw r.reject("dims are %u and %u: must be two different dims", args.dims[0], args.dims[1]);
  if (job.has_w && args.axes[0] == args.axes[1]) throw r.reject("axes are %u and %u: must be two different axes", args.axes[0], args.axes[1]);
  const Machine& machine = r.config().machine;
  uint64_t before = 0;
  for (uint32_t i = 0; i < args.count; ++i) {
    HaloJob::Dim& d = job.dims[i];
    r.choice("axes", args.axes[i], 0, 1);
    const uint32_t local = interior.dims[args.dims[i]];
    for (const uint32_t side : {0u, 1u}) {
      d.pad[side] = side == 0 ? args.left[i] : args.right[i];
      if (d.pad[side] > local)
        throw r.reject("pad_%s is %u: must be at most %u, the local extent of dim %u of %s", side == 0 ? "left" : "right", d.pad[side], local, args.dims[i],
                       text(interior).c_str());
    }
    d.over = {.axis = args.axes[i], .length = machine.axis_length(args.axes[i])};
    if (d.active() && before == 0) before = interior.product(0, args.dims[i]);
  }
  if (before == 0) throw r.reject("pad_left and pad_right are 0 on all dims: must pad on some side");
  for (uint32_t i = 0; i < args.count; ++i) {
    HaloJob::Dim& d = job.dims[i];
    if (!d.active()) {
      if (args.semaphores[i] != 0) throw r.reject("%s is given: dim %u has no pads and takes no part", args.semaphore_fields[i], args.dims[i]);
      continue;
    }
    r.along(args.dims[i]);
    d.over = r.collective(args.axes[i], args.links[i], MR_LINEAR);
    if (d.over.links > before)
      throw r.reject("num_links is %u: must be at most %llu, the product of the dims before the first padded one", d.over.links,
                     static_cast<unsigned long long>(before));
    if (d.over.links > HaloJob::kMostLinks) throw r.reject("num_links is %u: a halo exchange uses at most %u", d.over.links, HaloJob::kMostLinks);
    d.over.ring = r.config().breaks.ring_halo && machine.ring(args.axes[i]);
    if (d.over.ring)
      r.hazard("ring_halo", args.semaphores[i],
               format("exchanges halos round the ring of axis %u: the ends of its lines are borders, and get what lies at the other end", args.axes[i]));
    if (d.over.length > 1 || args.semaphores[i] != 0) d.semaphore = r.semaphore(args.semaphore_fields[i], args.semaphores[i]);
  }
  if (job.dims[job.first()].over.length > 1 || args.barrier != 0) job.start = r.barrier(args.barrier);
  std::vector<mr_handle> given{args.semaphores[0], args.semaphores[1], args.barrier};
  std::erase(given, 0);
  r.different("semaphores and barrier", std::move(given));
  return job;
}

void set_interior(HaloJob& job, const Operand& input, const std::array<uint32_t, 2>& skip) {
  Box box = Box::of(input.spec.shape, element_bytes(input.spec.dtype));
  box = box.fold(box.rank - 3);
  job.dims[0].dim = 1;
  job.dims[1].dim = 2;
  job.interior = {input, box.cut(1, skip[0], box.extent[1] - 2 * skip[0]).cut(2, skip[1], box.extent[2] - 2 * skip[1])};
}

Spec compact_spec(const Request& r, const HaloJob& job, const Spec& like, const Shape& interior) {
  const unsigned __int128 outer = interior.product(0, interior.rank - 3), rows = interior.back(2), columns = interior.back(1);
  const uint64_t above_below = uint64_t{job.h().pad[0]} + job.h().pad[1], beside = uint64_t{job.w().pad[0]} + job.w().pad[1];
  const unsigned __int128 sticks = outer * (above_below * columns + beside * (rows + above_below));
  if (sticks > UINT32_MAX) throw r.reject("input is %s: its halo has too many sticks", text(interior).c_str());
  Spec spec = in_dram(like);
  spec.shape = {};
  spec.shape.rank = 2;
  spec.shape.dims = {static_cast<uint32_t>(sticks), interior.back(0)};
  return spec;
}

void set_compact(HaloJob& job, const Operand& compact) {
  const uint32_t padded_rows = job.h().pad[0] + job.extent(0) + job.h().pad[1];
  uint64_t offset = 0;
  for (uint32_t region = 0; region < kHaloRegions; ++region) {
    const uint32_t pad = job.dims[region / 2].pad[region % 2];
    const Box& inner = job.interior.box;
    // H parts lie as the tensor does; W parts column by column, each from the top down.
    Box box = Box::dense(offset, region < kHaloLeft ? inner.with(1, pad) : inner.with(1, pad).with(2, padded_rows), inner.unit);
    if (region >= kHaloLeft) {
      std::swap(box.extent[1], box.extent[2]);
      std::swap(box.stride[1], box.stride[2]);
    }
    job.regions[region] = {compact, box};
    offset += box.bytes();
  }
}

void set_corners(Request& r, HaloJob& job) {
  if (!job.h().active() || !job.w().active()) return;
  uint64_t offset = 0;
  for (const uint32_t side : {0u, 1u})
    for (const uint32_t way : {0u, 1u}) {
      const Box extents = job.interior.box.with(job.h().dim, job.h().pad[side]).with(job.w().dim, job.w().pad[way]);
      job.corners[side][way].box = Box::dense(offset, extents, job.interior.box.unit);
      offset += job.corners[side][way].box.bytes();
    }
  const Operand area = r.static_area(offset);
  for (auto& of_side : job.corners)
    for (HaloPlace& place : of_side) place.tensor = area;
}

}  // namespace meshrun::emu
