#include "kernel_copy.h"

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace meshrun::emu {

void copy_streaming(void* to, const void* from, size_t bytes) {
#if defined(__x86_64__)
  constexpr size_t kLine = 64;
  auto* target = static_cast<char*>(to);
  auto* source = static_cast<const char*>(from);
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(target) % kLine) % kLine;
  if (bytes >= head + kLine) {
    std::memcpy(target, source, head);
    target += head, source += head, bytes -= head;
    for (; bytes >= kLine; target += kLine, source += kLine, bytes -= kLine) {
      __m128i part[4];
      for (int i = 0; i < 4; ++i) part[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source) + i);
      for (int i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(target) + i, part[i]);
    }
    _mm_sfence();  // streamed stores are not ordered by locks and atomics
  }
  std::memcpy(target, source, bytes);
#else
  std::memcpy(to, from, bytes);
#endif
}

void copy(void* to, const void* from, size_t bytes, Parallel& par) {
  constexpr size_t kGrain = size_t{256} << 10;
  par.run(bytes, kGrain, [=](size_t begin, size_t end) {
    auto* target = static_cast<char*>(to) + begin;
    auto* source = static_cast<const char*>(from) + begin;
    if (bytes >= kStreamBytes)
      copy_streaming(target, source, end - begin);
    else
      std::memcpy(target, source, end - begin);
  });
}

}  // namespace meshrun::emu
