#include "kernel_bfloat8.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace meshrun::emu {
namespace {

constexpr uint32_t kSign = 0x80000000u, kInfinity = 0x7f800000u, kHidden = 1u << 23;
constexpr uint32_t kDropped = 17;  // of a 24-bit significand, to leave 7
constexpr uint32_t kMost = 127;

}  // namespace

void round_block(float* values, size_t n) {
  uint32_t largest = 0;
  for (size_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & kInfinity);
  const uint32_t shared = largest >> 23;
  // One unit of the 7 bits is 2^(shared - 127 - 6); as a double it is exact.
  const double unit = std::bit_cast<double>(uint64_t{shared + 1023 - 133} << 52);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(values[i]), exponent = bits >> 23 & 0xff;
    if (exponent == 0xff) continue;
    const uint32_t shift = shared - exponent;
    uint32_t kept = 0;
    if (exponent != 0 && shift < 24) {
      const uint32_t aligned = (kHidden | (bits & (kHidden - 1))) >> shift;
      const uint32_t odd = aligned >> kDropped & 1;
      kept = std::min((aligned + (1u << (kDropped - 1)) - 1 + odd) >> kDropped, kMost);
    }
    const float size = static_cast<float>(kept * unit);
    values[i] = size < std::numeric_limits<float>::min() ? 0.0f : std::bit_cast<float>(std::bit_cast<uint32_t>(size) | (bits & kSign));
  }
}

void round_blocks(View tensor, Parallel& par) {
  if (tensor.dtype != DType::bfloat8_b || tensor.shape.elements() == 0) return;
  const size_t width = tensor.shape.back(0), rows = tensor.shape.elements() / width;
  float* const data = tensor.as<float>();
  par.run(rows, std::max<size_t>(1, 16384 / width), [=](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row)
      for (size_t i = 0; i < width; i += kBlockValues) round_block(data + row * width + i, std::min(kBlockValues, width - i));
  });
}

}  // namespace meshrun::emu
