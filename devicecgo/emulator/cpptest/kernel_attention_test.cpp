#include "../kernel_attention.h"

#include "kernel_test.h"

using namespace meshrun::emu;
using namespace meshrun::emu::test;

namespace {

// Keys and values slice by slice, of which the first `valid` of each slice count.
struct Slice {
  Tensor k, v;
  size_t valid;
};

void attend(const Tensor& q, const std::vector<Slice>& slices, float scale, View out, Parallel& par) {
  Attention attention(q, scale);
  for (const Slice& s : slices) attention.add(s.k, s.v, s.valid, par);
  attention.finish(out, par);
}

std::vector<double> reference(const Tensor& q, const std::vector<Slice>& slices, float scale) {
  const Shape& shape = q.shape();
  const size_t width = shape.back(0), rows = shape.back(1);
  std::vector<double> out(q.size(), 0);
  for (size_t row = 0; row < q.size() / width; ++row) {
    std::vector<double> scores;
    double largest = -INFINITY;
    const auto each_key = [&](auto use) {
      for (const Slice& s : slices)
        for (size_t key = 0; key < s.valid; ++key) use(s, (row / rows * s.k.shape().back(1) + key) * width);
    };
    each_key([&](const Slice& s, size_t at) {
      double score = 0;
      for (size_t d = 0; d < width; ++d) score += q.at(row * width + d) * s.k.at(at + d);
      scores.push_back(score * static_cast<double>(scale));
      largest = std::max(largest, scores.back());
    });
    double sum = 0;
    for (double& s : scores) sum += s = std::exp(s - largest);
    size_t i = 0;
    each_key([&](const Slice& s, size_t at) {
      for (size_t d = 0; d < width; ++d) out[row * width + d] += scores[i] / sum * s.v.at(at + d);
      ++i;
    });
  }
  return out;
}

}  // namespace

TEST_CASE("attention: random shapes, types and slices") {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const uint32_t widths[] = {1, 7, 16, 32, 33, 64, 100, 128, 130};
    const uint32_t batch = random.between(1, 2), heads = random.between(1, 3), width = widths[random.below(9)];
    const uint32_t queries = random.chance(4) ? random.between(50, 120) : random.between(1, 30);
    const Tensor q(random.float_type(), {batch, heads, queries, width}, random);
    std::vector<Slice> slices;
    const DType type = random.float_type();
    for (uint32_t n = random.between(1, 4); n > 0; --n) {
      const uint32_t length = random.chance(4) ? random.between(200, 600) : random.between(1, 60);
      const uint32_t valid = random.chance(4) ? 0 : random.chance(2) ? length : random.between(1, length);
      slices.push_back({Tensor(type, {batch, heads, length, width}, random),
                        Tensor(random.float_type(), {batch, heads, length, width}, random), valid});
      // What is masked must not count, whatever it is.
      const size_t masked = size_t{length} - valid;
      for (size_t h = 0; masked != 0 && h < batch * heads; ++h)
        for (size_t d = 0; d < width; ++d)
          slices.back().k.set((h * length + length - 1) * width + d, d % 2 ? NAN : INFINITY);
    }
    const float scale = static_cast<float>(random.uniform(0.3, 3)) / std::sqrt(static_cast<float>(width));
    Tensor out(random.float_type(), {batch, heads, queries, width});
    INFO("q " << text(q.shape()) << ", " << slices.size() << " slices, scale " << scale);
    run_all_ways(out, [&](View o, Parallel& par) { attend(q, slices, scale, o, par); });
    const std::vector<double> expected = reference(q, slices, scale);
    check_close(
        out, [&](size_t i) { return expected[i]; }, 1e-5, 3e-6);
  }
}

TEST_CASE("attention: without any valid key the result is 0") {
  Random random(1);
  const Tensor q(DType::bfloat16, {1, 2, 5, 32}, random);
  std::vector<Slice> slices;
  Tensor out(DType::bfloat16, {1, 2, 5, 32});
  Serial serial;
  attend(q, slices, 1, out, serial);
  check_close(
      out, [](size_t) { return 0.0; }, 0, 0);
  slices.push_back({q, q, 0});
  attend(q, slices, 1, out, serial);
  check_close(
      out, [](size_t) { return 0.0; }, 0, 0);
}

TEST_CASE("attention: large scores do not overflow, in any order of slices") {
  Random random(2);
  const Tensor q(DType::float32, {1, 1, 9, 64}, random, 30);
  for (bool up : {true, false}) {
    std::vector<Slice> slices;
    for (int i = 0; i < 3; ++i) {
      const double size = up ? i + 1 : 3 - i;
      slices.push_back(
          {Tensor(DType::float32, {1, 1, 40, 64}, random, 10 * size), Tensor(DType::float32, {1, 1, 40, 64}, random), 40});
    }
    Tensor out = q.like();
    run_all_ways(out, [&](View o, Parallel& par) { attend(q, slices, 1, o, par); });
    const std::vector<double> expected = reference(q, slices, 1);
    check_close(
        out, [&](size_t i) { return expected[i]; }, 1e-2, 1e-2);  // scores are in the 10000s: float32 holds them to 1e-3
  }
}

TEST_CASE("attention: NaN shows, infinite scores are masks") {
  Random random(3);
  const Tensor q(DType::float32, {1, 1, 2, 4}, random);
  Tensor ones = q.like(), k = Tensor(DType::float32, {1, 1, 3, 4}, random), v = k.like();
  ones.fill([](size_t) { return 1.0; });
  v.fill([](size_t i) { return static_cast<double>(i / 4); });
  k.fill([](size_t i) { return i / 4 == 1 ? 0.0 : -INFINITY; });  // only the key in the middle can win
  Tensor out = ones.like();
  Serial serial;
  std::vector<Slice> slices;
  slices.push_back({std::move(k), std::move(v), 3});
  attend(ones, slices, 1, out, serial);
  check_close(
      out, [](size_t) { return 1.0; }, 0, 0);
  slices[0].k.set(0, NAN);
  attend(ones, slices, 1, out, serial);
  check_close(
      out, [](size_t) { return NAN; }, 0, 0);
}
