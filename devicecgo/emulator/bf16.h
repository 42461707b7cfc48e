// bf16.h: bfloat16 is the upper half of a float32. Widening is exact; rounding is to nearest, ties to even.
// The same for runs: kernel_reduce.h; for vectors inside kernels: kernel_simd.h.
#pragma once

#include <bit>
#include <cstdint>

namespace meshrun::emu {

inline float to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// NaN stays NaN (made quiet, sign and upper payload kept), infinities stay, finite values past the largest bfloat16 round to
// infinity, subnormals are rounded like all others.
inline uint16_t to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace meshrun::emu
