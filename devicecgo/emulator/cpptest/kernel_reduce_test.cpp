#include "../kernel_reduce.h"

#include "kernel_test.h"

using namespace meshrun::emu;
using namespace meshrun::emu::test;

namespace {

// Rounding to nearest even done another way: by comparing distances in double precision.
uint16_t reference_round(float f) {
  const double x = f;
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if (std::isnan(f)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  const uint16_t down = static_cast<uint16_t>(bits >> 16), up = static_cast<uint16_t>(down + 1);  // away from zero
  if (std::isinf(f)) return down;
  const auto wide = [](uint16_t b) {  // as if the exponent had no end
    const double v = to_float(b);
    return std::isinf(v) ? std::copysign(0x1p128, v) : v;
  };
  const double to_down = std::fabs(x - wide(down)), to_up = std::fabs(wide(up) - x);
  if (to_down != to_up) return to_down < to_up ? down : up;
  return down % 2 == 0 ? down : up;
}

std::vector<float> interesting_floats(Random& random, size_t n) {
  std::vector<float> v(n);
  for (auto& f : v) {
    uint32_t bits = static_cast<uint32_t>(random.engine());
    if (random.chance(4)) bits = (bits & 0xffff0000u) | 0x8000u;                         // a tie
    if (random.chance(8)) bits = (bits & 0x80000000u) | 0x7f7f0000u | (bits & 0xffffu);  // at the largest
    if (random.chance(8)) bits &= 0x807fffffu;                                           // subnormal
    if (random.chance(16)) bits |= 0x7f800000u;                                          // NaN
    std::memcpy(&f, &bits, 4);
  }
  return v;
}

uint32_t bits_of(float f) {
  uint32_t b;
  std::memcpy(&b, &f, 4);
  return b;
}

}  // namespace

TEST_CASE("bf16: all patterns widen exactly and round to themselves") {
  std::vector<uint16_t> all(65536), back(65536);
  std::vector<float> wide(65536);
  for (uint32_t i = 0; i < 65536; ++i) all[i] = static_cast<uint16_t>(i);
  widen_bf16(wide.data(), all.data(), all.size());
  round_bf16(back.data(), wide.data(), all.size());
  size_t wrong = 0;
  for (uint32_t i = 0; i < 65536; ++i) {
    const bool nan = (i & 0x7fff) > 0x7f80;
    const uint16_t expected = static_cast<uint16_t>(nan ? i | 0x40 : i);
    wrong += bits_of(wide[i]) != i << 16 || bits_of(to_float(all[i])) != i << 16;
    wrong += back[i] != expected || to_bf16(to_float(all[i])) != expected;
  }
  CHECK(wrong == 0);
  CHECK(!rounds_to(wide.data(), all.data(), all.size()));  // because of signalling NaNs
  CHECK(rounds_to(wide.data(), back.data(), all.size()));
}

TEST_CASE("bf16: rounding is to nearest even for every neighbourhood") {
  size_t wrong = 0;
  for (uint32_t high = 0; high < 65536; ++high)
    for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const uint32_t bits = high << 16 | low;
      float f;
      std::memcpy(&f, &bits, 4);
      uint16_t got;
      round_bf16(&got, &f, 1);
      wrong += got != reference_round(f) || to_bf16(f) != reference_round(f);
    }
  CHECK(wrong == 0);
}

TEST_CASE("reduce: runs of every length and place") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const size_t n = seed < 70 ? seed : random.between(1, 5000);
    const auto a = interesting_floats(random, n), b = interesting_floats(random, n);
    // Exactly as large as needed, for the sanitizer.
    std::vector<uint16_t> x(n), rounded(n), rounded2(n);
    for (size_t i = 0; i < n; ++i) x[i] = static_cast<uint16_t>(std::isnan(a[i]) ? i & 0x3fff : bits_of(b[i]) >> 16);
    const auto same = [](float got, float want) {
      return bits_of(got) == bits_of(want) || (std::isnan(got) && std::isnan(want));
    };

    std::vector<float> sum = a;
    add_bf16(sum.data(), x.data(), n);
    std::vector<float> sum32 = a;
    add_f32(sum32.data(), b.data(), n);
    std::vector<float> shadow = a;
    add_round_bf16(shadow.data(), x.data(), rounded.data(), n);
    size_t wrong = 0;
    for (size_t i = 0; i < n; ++i) {
      wrong += !same(sum[i], a[i] + to_float(x[i])) || !same(sum32[i], a[i] + b[i]) || !same(shadow[i], sum[i]);
      wrong += rounded[i] != reference_round(shadow[i]);
    }
    CHECK(wrong == 0);
    round_bf16(rounded2.data(), a.data(), n);
    for (size_t i = 0; i < n; ++i) wrong += rounded2[i] != reference_round(a[i]);
    CHECK(wrong == 0);

    CHECK(rounds_to(shadow.data(), rounded.data(), n));
    rounded[random.below(static_cast<uint32_t>(n))] ^= static_cast<uint16_t>(1u << random.below(16));
    CHECK(!rounds_to(shadow.data(), rounded.data(), n));

    // in place, and cut in two
    std::vector<float> shadow2 = a;
    std::vector<uint16_t> in_place = x;
    const size_t cut = random.below(static_cast<uint32_t>(n) + 1);
    add_round_bf16(shadow2.data(), in_place.data(), in_place.data(), cut);
    add_round_bf16(shadow2.data() + cut, in_place.data() + cut, in_place.data() + cut, n - cut);
    CHECK(std::memcmp(shadow2.data(), shadow.data(), n * 4) == 0);
    CHECK(rounds_to(shadow.data(), in_place.data(), n));
  }
}
