#include "copy_region.h"

#include <array>
#include <cstring>

#include "kernel_copy.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace meshrun::emu {
namespace {

constexpr uint64_t kRowRun = 16 << 10;      // runs longer than this are streams that the machine follows by itself
constexpr uint64_t kWorthStreaming = 1024;  // a run
constexpr uint64_t kRowsAhead = 12;         // of short rows
constexpr uint64_t kChainBlock = 64 << 10;  // stays in the cache while it is copied to all places

// Fetches a run into the caches ahead of its use. Where runs lie pages apart, the machine's own prefetching does not see the next.
void prefetch_run(const std::byte* at, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i);
}

// The length known, memcpy becomes a few moves.
template <uint64_t run>
void copy_fixed_rows(std::byte* to, uint64_t to_stride, const std::byte* from, uint64_t from_stride, uint64_t rows) {
  for (; rows != 0; --rows, to += to_stride, from += from_stride) {
    prefetch_run(from + kRowsAhead * from_stride, run);
    for (uint64_t i = 0; i < run; i += 64) __builtin_prefetch(to + kRowsAhead * to_stride + i, 1);
    std::memcpy(to, from, run);
  }
}

// Past the caches, and fetching the next row while this one is copied. All of it in whole lines.
void stream_rows(std::byte* to, uint64_t to_stride, const std::byte* from, uint64_t from_stride, uint64_t run, uint64_t rows) {
#if defined(__SSE2__)
  for (; rows != 0; --rows, to += to_stride, from += from_stride)
    for (uint64_t i = 0; i < run; i += 64) {
      __builtin_prefetch(from + from_stride + i);
      const __m128i* source = reinterpret_cast<const __m128i*>(from + i);
      __m128i* target = reinterpret_cast<__m128i*>(to + i);
      const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1), c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
      _mm_stream_si128(target, a);
      _mm_stream_si128(target + 1, b);
      _mm_stream_si128(target + 2, c);
      _mm_stream_si128(target + 3, d);
    }
  _mm_sfence();  // streamed stores are not ordered by locks and atomics
#else
  copy_rows(to, to_stride, from, from_stride, run, rows);
#endif
}

bool whole_lines(const std::byte* to, uint64_t to_stride, uint64_t run) {
  return (reinterpret_cast<uintptr_t>(to) | to_stride | run) % 64 == 0;
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
      for (; rows != 0; --rows, to += to_stride, from += from_stride) {
        if (run > 64) prefetch_run(from + from_stride, run);
        std::memcpy(to, from, run);
      }
  }
}

void CopyRegion::operator()(Parallel&) const {
  // Rows of the same length on both sides; a side that is contiguous has rows of any length.
  const Region& rows = single(source) ? target : source;
  const bool match = single(source) || single(target) || (source.run == target.run && source.from % source.run == target.from % target.run);
  if (!match || rows.run > kRowRun || single(rows)) {
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
  if (streaming && run >= kWorthStreaming && whole_lines(b, run + gap_to, run)) {
    stream_rows(b, run + gap_to, a, run + gap_from, run, whole);
  } else {
    copy_rows(b, run + gap_to, a, run + gap_from, run, whole);
  }
  std::memcpy(b + whole * (run + gap_to), a + whole * (run + gap_from), left % run);
}

void CopyRegion::run_chain(const CopyRegion* const* steps, size_t n, Parallel& parallel) {
  const CopyRegion& first = *steps[0];
  std::array<std::byte, kChainBlock> block;
  const uint64_t bytes = first.source.bytes();
  for (uint64_t done = 0; done < bytes; done += kChainBlock) {
    const uint64_t end = std::min(done + kChainBlock, bytes);
    const Region piece = Region::contiguous(0, end - done);
    CopyRegion{first.from, block.data(), first.source.part(first.source.from + done, first.source.from + end), piece}(parallel);
    for (size_t i = 0; i < n; ++i) {
      const CopyRegion& s = *steps[i];
      CopyRegion{block.data(), s.to, piece, s.target.part(s.target.from + done, s.target.from + end), s.streaming}(parallel);
    }
  }
}

}  // namespace meshrun::emu
