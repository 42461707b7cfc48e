#include "../kernel_group_norm.h"

#include "kernel_activations.h"
#include "kernel_test.h"

using namespace meshrun::emu;
using namespace meshrun::emu::test;

namespace {

struct Plain {
  double count = 0, mean = 0, m2 = 0;
};

// Of one sample and group, two passes in long double; rows and columns from `window` on do not count.
Plain plain_moments(const Tensor& x, uint32_t groups, uint32_t sample, uint32_t group, const Window& window) {
  const uint32_t rank = x.shape().rank, width = x.shape().back(0) / groups;
  long double sum = 0, m2 = 0;
  size_t n = 0;
  const auto each = [&](auto fn) {
    for_each_index(x.shape(), [&](const std::vector<uint32_t>& i, size_t at) {
      if (i[0] != sample || i.back() / width != group) return;
      if (rank > 2 && i[rank - 2] >= window.w) return;
      if (rank > 3 && i[rank - 3] >= window.h) return;
      fn(x.at(at));
    });
  };
  each([&](double v) { sum += v, ++n; });
  if (n == 0) return {};
  const long double mean = sum / n;
  each([&](double v) { m2 += (v - mean) * (v - mean); });
  return {static_cast<double>(n), static_cast<double>(mean), static_cast<double>(m2)};
}

}  // namespace

TEST_CASE("group norm: random shapes, windows and activations against plain loops") {
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const uint32_t groups = random.between(1, 6), width = random.between(1, 20), rank = random.between(2, 5);
    std::vector<uint32_t> dims{random.between(1, 3)};
    while (dims.size() + 1 < rank) dims.push_back(random.between(1, 12));
    dims.push_back(groups * width);
    const double offset = random.chance(2) ? 0 : random.uniform(-300, 300);
    Tensor x(random.float_type(), dims);
    x.fill([&](size_t) { return offset + random.normal(); });
    const Tensor weight(random.float_type(), {groups * width}, random), bias(random.float_type(), {1, groups * width}, random);
    const bool with_weight = random.chance(2), with_bias = random.chance(2);
    const uint32_t activation = random.below(7);
    INFO("x " << text(x.shape()) << " groups " << groups << " offset " << offset);

    Window window = Window::whole(x.shape());
    if (rank > 3 && random.chance(2)) window.h = random.below(dims[rank - 3] + 1);
    if (rank > 2 && random.chance(2)) window.w = random.below(dims[rank - 2] + 1);
    std::vector<Moments> moments(dims[0] * groups), again(dims[0] * groups);
    Serial serial;
    ManyPieces pieces;
    group_moments(x, groups, window, moments.data(), serial);
    group_moments(x, groups, window, again.data(), pieces);
    for (uint32_t n = 0; n < dims[0]; ++n)
      for (uint32_t g = 0; g < groups; ++g) {
        const Moments &got = moments[n * groups + g], &same = again[n * groups + g];
        const Plain want = plain_moments(x, groups, n, g, window);
        CHECK((got.count == same.count && got.mean == same.mean && got.m2 == same.m2));
        CHECK(got.count == want.count);
        CHECK(std::fabs(got.mean - want.mean) <= 1e-9 * std::fabs(want.mean) + 1e-7);
        CHECK(std::fabs(got.m2 - want.m2) <= 1e-5 * want.m2 + 1e-9);
      }

    std::vector<Moments> full(dims[0] * groups);
    group_moments(x, groups, Window::whole(x.shape()), full.data(), serial);
    Tensor out = x.like();
    const float eps = 1e-3f;
    run_all_ways(out, [&](View o, Parallel& par) {
      group_norm(x, full.data(), groups, with_weight ? weight.view() : View{}, with_bias ? bias.view() : View{}, eps, activation, o, par);
    });
    std::vector<Plain> plain;
    for (uint32_t n = 0; n < dims[0]; ++n)
      for (uint32_t g = 0; g < groups; ++g) plain.push_back(plain_moments(x, groups, n, g, Window::whole(x.shape())));
    const size_t sample = x.size() / dims[0];
    check_close(
        out,
        [&](size_t i) {
          const size_t c = i % (groups * width);
          const Plain& m = plain[i / sample * groups + c / width];
          const double v = (x.at(i) - m.mean) / std::sqrt(m.m2 / m.count + static_cast<double>(eps));
          return activate(activation, v * (with_weight ? weight.at(c) : 1) + (with_bias ? bias.at(c) : 0));
        },
        1e-4, 5e-4);
  }
}

TEST_CASE("group norm: a mean far from zero does not swallow the variance, over many pieces") {
  Random random(5);
  Tensor x(DType::float32, {1, 3, 100, 110, 8});
  x.fill([&](size_t) { return 4000 + random.normal(); });
  Moments got[2];
  Serial serial;
  group_moments(x, 2, Window::whole(x.shape()), got, serial);
  for (uint32_t g = 0; g < 2; ++g) {
    const Plain want = plain_moments(x, 2, 0, g, Window::whole(x.shape()));
    CHECK(got[g].count == want.count);
    CHECK(got[g].mean == doctest::Approx(want.mean).epsilon(1e-9));
    CHECK(got[g].m2 == doctest::Approx(want.m2).epsilon(1e-6));
  }
}

TEST_CASE("moments: parts combine to the whole, empty parts to nothing") {
  Random random(9);
  std::vector<double> values(1000);
  for (double& v : values) v = 7 + random.normal();
  Moments whole, joined;
  for (const double v : values) whole.add({1, v, 0});
  for (size_t begin = 0; begin < values.size();) {
    Moments part;
    const size_t end = std::min<size_t>(values.size(), begin + random.below(300));
    for (; begin < end; ++begin) part.add({1, values[begin], 0});
    joined.add(part);
  }
  joined.add({});
  CHECK(joined.count == 1000);
  CHECK(joined.mean == doctest::Approx(whole.mean).epsilon(1e-12));
  CHECK(joined.m2 == doctest::Approx(whole.m2).epsilon(1e-10));
}
