#include "../kernel_norm.h"

#include "kernel_test.h"

using namespace meshrun::emu;
using namespace meshrun::emu::test;

namespace {

struct Moments {
  double mean, factor;
};

Moments moments(uint32_t kind, const Tensor& x, size_t first, size_t width, double eps) {
  double mean = 0, squares = 0;
  if (kind == MR_NORM_LAYER) {
    for (size_t i = 0; i < width; ++i) mean += x.at(first + i);
    mean /= static_cast<double>(width);
  }
  for (size_t i = 0; i < width; ++i) squares += (x.at(first + i) - mean) * (x.at(first + i) - mean);
  return {mean, 1 / std::sqrt(squares / static_cast<double>(width) + eps)};
}

// A shape that broadcasts against dims: cut dims in front, or made 1.
std::vector<uint32_t> broadcast_dims(Random& random, std::vector<uint32_t> dims) {
  for (size_t i = 0; i + 1 < dims.size(); ++i)
    if (!random.chance(3)) dims[i] = 1;
  if (random.chance(3)) dims.erase(dims.begin(), dims.begin() + random.below(static_cast<uint32_t>(dims.size())));
  return dims;
}

}  // namespace

TEST_CASE("norm: random shapes, types, weight and bias") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const uint32_t kind = random.chance(2) ? MR_NORM_LAYER : MR_NORM_RMS;
    std::vector<uint32_t> dims;
    for (uint32_t i = random.below(5); i > 0; --i) dims.push_back(random.between(1, 6));
    dims.push_back(random.chance(3) ? random.between(1, 40) : random.between(40, 700));
    dims = limited(dims, 8000);
    Tensor x(random.float_type(), dims);
    x.fill([&](size_t) { return 2 + 3 * random.normal(); });
    const Tensor weight(random.float_type(), broadcast_dims(random, dims), random);
    const Tensor bias(random.float_type(), broadcast_dims(random, dims), random);
    const bool has_weight = !random.chance(3), has_bias = !random.chance(3);
    const float eps = random.chance(2) ? 1e-6f : 1e-5f;
    Tensor out(random.float_type(), dims);
    INFO("x " << text(x.shape()) << " weight " << text(weight.shape()) << " bias " << text(bias.shape()) << " kind "
              << kind);
    run_all_ways(out, [&](View o, Parallel& par) {
      norm(kind, x, has_weight ? weight.view() : View{}, has_bias ? bias.view() : View{}, eps, o, par);
    });
    const size_t width = dims.back();
    std::vector<double> expected(out.size());
    for_each_index(out.shape(), [&](const std::vector<uint32_t>& index, size_t i) {
      const Moments m = moments(kind, x, i / width * width, width, eps);
      expected[i] = (x.at(i) - m.mean) * m.factor * (has_weight ? weight.at(index) : 1) + (has_bias ? bias.at(index) : 0);
    });
    check_close(
        out, [&](size_t i) { return expected[i]; }, 1e-5, 1e-5);
  }
}

TEST_CASE("norm in parts: as the norm of the whole, with heads and rotation") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const uint32_t kind = random.chance(2) ? MR_NORM_LAYER : MR_NORM_RMS;
    const size_t values = norm_stats_values(kind);
    const uint32_t batch = random.between(1, 2), length = random.between(1, 9), parts = random.between(1, 5);
    const uint32_t heads = random.between(1, 4), head_width = 2 * random.between(1, 40);
    const uint32_t width = heads * head_width;
    const bool rotates = random.chance(2), split = heads > 1 || random.chance(2);
    const DType type = random.float_type();
    const size_t rows = batch * length;
    // The whole, and its parts as they lie on the devices.
    Tensor whole(type, {batch, 1, length, parts * width});
    whole.fill([&](size_t i) { return random.normal() + static_cast<double>(i % 7) + 5; });
    std::vector<Tensor> x;
    std::vector<float> stats(rows * parts * values);
    ManyPieces pieces;
    for (uint32_t p = 0; p < parts; ++p) {
      x.emplace_back(type, std::vector<uint32_t>{batch, 1, length, width});
      x[p].fill([&](size_t i) { return whole.at(i / width * parts * width + p * width + i % width); });
      std::vector<float> own(rows * values), again(rows * values);
      Serial serial;
      norm_partial(kind, x[p], own.data(), serial);
      norm_partial(kind, x[p], again.data(), pieces);
      CHECK(own == again);
      for (size_t r = 0; r < rows; ++r)
        for (size_t v = 0; v < values; ++v) stats[(r * parts + p) * values + v] = own[r * values + v];
    }
    const Tensor weight(random.float_type(), {1, 1, 1, width}, random), bias(random.float_type(), {width}, random);
    const uint32_t table_heads = random.chance(2) ? 1 : heads;
    const Tensor cos(random.float_type(), {1, table_heads, length, head_width}, random), sin = [&] {
      Tensor t = cos.like();
      t.fill([&](size_t) { return random.normal(); });
      return t;
    }();
    const View none;
    const uint32_t p = random.below(parts);
    Tensor out(random.float_type(), split ? std::vector<uint32_t>{batch, heads, length, head_width}
                                          : std::vector<uint32_t>{batch, 1, length, width});
    run_all_ways(out, [&](View o, Parallel& par) {
      norm_apply(kind, x[p], stats.data(), parts, weight, bias, 1e-6f, heads, rotates ? cos.view() : none,
                 rotates ? sin.view() : none, o, par);
    });
    const auto plain = [&](uint32_t b, uint32_t h, uint32_t n, uint32_t d) {
      const size_t row = b * length + n;
      const Moments m = moments(kind, whole, row * parts * width, parts * width, 1e-6);
      const size_t c = h * head_width + d;
      return (x[p].at(row * width + c) - m.mean) * m.factor * weight.at(c) + bias.at(c);
    };
    std::vector<double> expected(out.size());
    for_each_index(shape_of({batch, heads, length, head_width}), [&](const std::vector<uint32_t>& i, size_t element) {
      const size_t place = split ? element : (i[0] * length + i[2]) * width + i[1] * head_width + i[3];
      double value = plain(i[0], i[1], i[2], i[3]);
      if (rotates) {
        const double other = i[3] % 2 == 0 ? -plain(i[0], i[1], i[2], i[3] + 1) : plain(i[0], i[1], i[2], i[3] - 1);
        value = value * cos.at(i) + other * sin.at(i);
      }
      expected[place] = value;
    });
    check_close(
        out, [&](size_t i) { return expected[i]; }, 1e-5, 3e-5);
  }
}

TEST_CASE("norm: one part is the plain norm, bit for bit") {
  Random random(5);
  for (uint32_t kind : {MR_NORM_LAYER, MR_NORM_RMS}) {
    const Tensor x(DType::bfloat16, {2, 1, 5, 96}, random), weight(DType::float32, {96}, random);
    std::vector<float> stats(10 * norm_stats_values(kind));
    Serial serial;
    Tensor a = x.like(), b = x.like();
    norm(kind, x, weight, {}, 1e-5f, a, serial);
    norm_partial(kind, x, stats.data(), serial);
    norm_apply(kind, x, stats.data(), 1, weight, {}, 1e-5f, 1, {}, {}, b, serial);
    CHECK(a.same_bytes(b));
  }
}

TEST_CASE("norm: a large mean does not drown the variance") {
  Random random(6);
  Tensor x(DType::float32, {3, 1000});
  x.fill([&](size_t) { return 10000 + random.normal(); });
  Tensor out = x.like();
  Serial serial;
  norm(MR_NORM_LAYER, x, {}, {}, 1e-6f, out, serial);
  check_close(
      out,
      [&](size_t i) {
        const Moments m = moments(MR_NORM_LAYER, x, i / 1000 * 1000, 1000, 1e-6);
        return (x.at(i) - m.mean) * m.factor;
      },
      1e-3, 2e-3);  // float32 holds 10000 to 1e-3
}
