// copy_region.h: copies between regions of memory.
#pragma once

#include <cstring>

#include "kernel_copy.h"
#include "parallel.h"
#include "region.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace meshrun::emu {

// memcpy for the short runs that a slice along the last dim consists of: without the call, which would cost as much as the copy.
inline void copy_run(std::byte* to, const std::byte* from, uint64_t bytes) {
#if defined(__SSE2__)
  if (bytes % 16 == 0 && bytes <= 512) {
    for (uint64_t i = 0; i < bytes; i += 16)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

// Short runs, a stride apart, are latency: the machine's own prefetching does not follow them over pages.
constexpr uint64_t kShortRun = 512;
constexpr uint64_t kRowsAhead = 12;

inline void prefetch_run(const std::byte* at, uint64_t bytes, bool to_write) {
  for (uint64_t i = 0; i < bytes; i += 64) {
    if (to_write) {
      __builtin_prefetch(at + i, 1);
    } else {
      __builtin_prefetch(at + i, 0);
    }
  }
}

struct CopyRegion {
  const std::byte* from;
  std::byte* to;
  Region source, target;
  bool streaming = false;  // past the caches: for operations that move more than the caches hold

  void operator()(Parallel&) const {
    constexpr uint64_t kWorthStreaming = 2048;  // a run
    const bool rows = std::min(source.run, target.run) <= kShortRun;
    walk(source, target, [this, rows](uint64_t bytes, uint64_t a, uint64_t b) {
      if (rows) {
        prefetch_run(from + a + kRowsAhead * source.stride, bytes, false);
        prefetch_run(to + b + kRowsAhead * target.stride, bytes, true);
      }
      if (streaming && bytes >= kWorthStreaming) {
        copy_streaming(to + b, from + a, bytes);
      } else {
        copy_run(to + b, from + a, bytes);
      }
    });
  }
};

}  // namespace meshrun::emu
