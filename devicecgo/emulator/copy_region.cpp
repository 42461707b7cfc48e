#include "copy_region.h"

#include <cstring>

#include "kernel_copy.h"

namespace meshrun::emu {
namespace {

constexpr uint64_t kShortRun = 1024;
constexpr uint64_t kWorthStreaming = 2048;  // a run
constexpr uint64_t kRowsAhead = 12;

// The length known, memcpy becomes a few moves. Rows lie in pages of their own, where the machine's prefetching does not follow.
template <uint64_t run>
void copy_fixed_rows(std::byte* to, uint64_t to_stride, const std::byte* from, uint64_t from_stride, uint64_t rows) {
  for (; rows != 0; --rows, to += to_stride, from += from_stride) {
    for (uint64_t i = 0; i < run; i += 64) {
      __builtin_prefetch(from + kRowsAhead * from_stride + i, 0);
      __builtin_prefetch(to + kRowsAhead * to_stride + i, 1);
    }
    std::memcpy(to, from, run);
  }
}

bool single(const Region& r) { return r.to <= r.run; }

}  // namespace

void copy_rows(std::byte* to, uint64_t to_stride, const std::byte* from, uint64_t from_stride, uint64_t run, uint64_t rows) {
  switch (run) {
    case 64:
      return copy_fixed_rows<64>(to, to_stride, from, from_stride, rows);
    case 128:
      return copy_fixed_rows<128>(to, to_stride, from, from_stride, rows);
    case 256:
      return copy_fixed_rows<256>(to, to_stride, from, from_stride, rows);
    default:
      for (; rows != 0; --rows, to += to_stride, from += from_stride) std::memcpy(to, from, run);
  }
}

void CopyRegion::operator()(Parallel&) const {
  // Rows of the same length on both sides; a side that is contiguous has rows of any length.
  const Region& rows = single(source) ? target : source;
  const bool match = single(source) || single(target) || (source.run == target.run && source.from % source.run == target.from % target.run);
  if (!match || rows.run > kShortRun || single(rows)) {
    walk(source, target, [this](uint64_t bytes, uint64_t a, uint64_t b) {
      if (streaming && bytes >= kWorthStreaming) {
        copy_streaming(to + b, from + a, bytes);
      } else {
        std::memcpy(to + b, from + a, bytes);
      }
    });
    return;
  }
  const uint64_t run = rows.run, in = rows.from % run;
  const uint64_t gap_from = single(source) ? 0 : source.stride - run, gap_to = single(target) ? 0 : target.stride - run;
  const std::byte* a = from + source.first();
  std::byte* b = to + target.first();
  uint64_t left = source.bytes();
  if (in != 0) {
    const uint64_t head = std::min(left, run - in);
    std::memcpy(b, a, head);
    a += head + gap_from;
    b += head + gap_to;
    left -= head;
  }
  const uint64_t whole = left / run;
  copy_rows(b, run + gap_to, a, run + gap_from, run, whole);
  std::memcpy(b + whole * (run + gap_to), a + whole * (run + gap_from), left % run);
}

}  // namespace meshrun::emu
