#include "../kernel_rope.h"

#include "kernel_test.h"

using namespace meshrun::emu;
using namespace meshrun::emu::test;

TEST_CASE("rope: both modes, tables per position or per head too") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const uint32_t batch = random.between(1, 2), heads = random.between(1, 4), length = random.between(1, 20);
    const uint32_t width = random.chance(2) ? 2 * random.between(1, 50) : 32u << random.below(3);
    const uint32_t mode = random.chance(2) ? MR_ROPE_INTERLEAVED : MR_ROPE_HALF;
    const Tensor x(random.float_type(), {batch, heads, length, width}, random);
    const Tensor cos(random.float_type(), {1, random.chance(2) ? 1 : heads, length, width}, random);
    const Tensor sin(random.float_type(), {1, random.chance(2) ? 1 : heads, length, width}, random);
    Tensor out(random.float_type(), {batch, heads, length, width});
    run_all_ways(out, [&](View o, Parallel& par) { rope(mode, x, cos, sin, o, par); });
    std::vector<double> expected(out.size());
    for_each_index(out.shape(), [&](const std::vector<uint32_t>& index, size_t i) {
      const uint32_t d = index.back(), half = width / 2;
      const double rotated = mode == MR_ROPE_INTERLEAVED ? (d % 2 == 0 ? -x.at(i + 1) : x.at(i - 1))
                                                         : (d < half ? -x.at(i + half) : x.at(i - half));
      expected[i] = x.at(i) * cos.at(index) + rotated * sin.at(index);
    });
    check_close(
        out, [&](size_t i) { return expected[i]; }, 1e-6, 1e-6);
  }
}

TEST_CASE("rope: an odd width is refused") {
  const Tensor x(DType::float32, {1, 1, 2, 3}), table(DType::float32, {1, 1, 2, 3});
  Tensor out = x.like();
  Serial serial;
  CHECK_THROWS_AS(rope(MR_ROPE_HALF, x, table, table, out, serial), std::invalid_argument);
}
