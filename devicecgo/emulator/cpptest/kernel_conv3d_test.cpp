#include "../kernel_conv3d.h"

#include "kernel_test.h"

using namespace meshrun::emu;
using namespace meshrun::emu::test;

namespace {

uint32_t outputs(uint32_t size, uint32_t side, const Conv3d& c) {
  return (size + 2 * c.padding[side] - c.dilation[side] * (c.kernel[side] - 1) - 1) / c.stride[side] + 1;
}

// The pixel of x that a place outside stands for; false = zero.
bool source(const Conv3d& c, const Shape& x, std::array<int64_t, 4>& at) {
  for (int side = 0; side < 3; ++side) {
    const int64_t size = x.dims[side + 1];
    int64_t& i = at[side + 1];
    if (i >= 0 && i < size) continue;
    if (!c.replicate) return false;
    i = i < 0 ? 0 : size - 1;
  }
  return true;
}

struct Expected {
  std::vector<double> values;
  double size = 0;  // of the terms of a sum
};

Expected naive(const Conv3d& c, const Tensor& x, const Tensor& weight, const Tensor* bias, const Shape& out) {
  Expected e;
  const uint32_t channels = x.shape().dims[4], taken = channels / c.groups, given = out.dims[4] / c.groups;
  for_each_index(out, [&](const std::vector<uint32_t>& o, size_t) {
    double sum = bias ? bias->at(o[4]) : 0, terms = std::fabs(sum);
    for (uint32_t kt = 0; kt < c.kernel[0]; ++kt)
      for (uint32_t kh = 0; kh < c.kernel[1]; ++kh)
        for (uint32_t kw = 0; kw < c.kernel[2]; ++kw)
          for (uint32_t i = 0; i < taken; ++i) {
            const uint32_t k[3] = {kt, kh, kw};
            std::array<int64_t, 4> at{o[0]};
            for (int s = 0; s < 3; ++s) at[s + 1] = int64_t{o[s + 1]} * c.stride[s] + int64_t{k[s]} * c.dilation[s] - c.padding[s];
            if (!source(c, x.shape(), at)) continue;
            const uint32_t channel = o[4] / given * taken + i;
            const size_t from = (((at[0] * x.shape().dims[1] + at[1]) * x.shape().dims[2] + at[2]) * x.shape().dims[3] + at[3]) * channels + channel;
            const size_t row = ((size_t{kt} * c.kernel[1] + kh) * c.kernel[2] + kw) * taken + i;
            const double term = x.at(from) * weight.at(row * out.dims[4] + o[4]);
            sum += term;
            terms += std::fabs(term);
          }
    e.values.push_back(sum);
    e.size = std::max(e.size, terms);
  });
  return e;
}

struct Case {
  Conv3d conv;
  std::vector<uint32_t> x, weight, out;
};

Case random_case(Random& random) {
  Case k;
  Conv3d& c = k.conv;
  c.replicate = random.chance(2);
  c.groups = random.chance(4) ? random.between(2, 4) : 1;
  const uint32_t channels = c.groups * random.between(1, random.chance(4) ? 70 : 9), given = c.groups * random.between(1, random.chance(4) ? 40 : 7);
  k.x = {random.between(1, 2)};
  k.out = k.x;
  uint32_t taps = 1;
  for (uint32_t s = 0; s < 3; ++s) {
    c.kernel[s] = random.between(1, 5);
    c.stride[s] = random.between(1, 3);
    c.dilation[s] = random.between(1, 2);
    c.padding[s] = random.between(0, 3);
    taps *= c.kernel[s];
    const uint32_t reach = c.dilation[s] * (c.kernel[s] - 1) + 1, least = reach > 2 * c.padding[s] ? reach - 2 * c.padding[s] : 1;
    k.x.push_back(std::max(least, random.between(1, s == 0 ? 4 : 9)));
    k.out.push_back(outputs(k.x.back(), s, c));
  }
  k.x.push_back(channels);
  k.out.push_back(given);
  k.weight = {taps * channels / c.groups, given};
  return k;
}

// x with H and W padded by hand, as the neighbours' pixels would be.
Tensor padded(const Conv3d& c, const Tensor& x) {
  const auto& d = x.shape().dims;
  Tensor p(x.dtype(), {d[0], d[1], d[2] + 2 * c.padding[1], d[3] + 2 * c.padding[2], d[4]});
  for_each_index(p.shape(), [&](const std::vector<uint32_t>& i, size_t n) {
    std::array<int64_t, 4> at{i[0], i[1], int64_t{i[2]} - c.padding[1], int64_t{i[3]} - c.padding[2]};
    p.set(n, source(c, x.shape(), at) ? x.at((((at[0] * d[1] + at[1]) * d[2] + at[2]) * d[3] + at[3]) * d[4] + i[4]) : 0);
  });
  return p;
}

// The sticks round x, part by part.
Tensor compact(const Conv3d& c, const Tensor& x, const Tensor& padded) {
  const auto& d = x.shape().dims;
  const uint32_t ph = c.padding[1], pw = c.padding[2], h = d[2], w = d[3], outer = d[0] * d[1];
  std::vector<std::array<uint32_t, 3>> sticks;  // outer, row and column of the padded tensor
  for (const uint32_t first : {0u, ph + h})
    for (uint32_t o = 0; o < outer; ++o)
      for (uint32_t i = 0; i < ph; ++i)
        for (uint32_t j = 0; j < w; ++j) sticks.push_back({o, first + i, pw + j});
  for (const uint32_t first : {0u, pw + w})
    for (uint32_t o = 0; o < outer; ++o)
      for (uint32_t j = 0; j < pw; ++j)
        for (uint32_t i = 0; i < h + 2 * ph; ++i) sticks.push_back({o, i, first + j});
  Tensor t(x.dtype(), {static_cast<uint32_t>(sticks.size()), d[4]});
  for (size_t s = 0; s < sticks.size(); ++s)
    for (uint32_t i = 0; i < d[4]; ++i)
      t.set(s * d[4] + i, padded.at(((size_t{sticks[s][0]} * (h + 2 * ph) + sticks[s][1]) * (w + 2 * pw) + sticks[s][2]) * d[4] + i));
  return t;
}

}  // namespace

TEST_CASE("conv3d: random shapes against plain loops in double; a padded input, a halo and parts of the output give the same bits") {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const Case k = random_case(random);
    const Conv3d& c = k.conv;
    const Tensor x(random.float_type(), k.x, random), weight(random.float_type(), k.weight, random, 1 / std::sqrt(k.weight[0])), bias(random.float_type(), {1, k.out[4]}, random);
    const bool with_bias = !random.chance(3);
    const ConstView b = with_bias ? ConstView(bias) : ConstView{};
    INFO("x " << text(x.shape()) << " weight " << text(weight.shape()) << " groups " << c.groups << " replicate " << c.replicate);
    Tensor out(x.dtype(), k.out);
    const OutputBox all = OutputBox::whole(out.shape());
    run_all_ways(out, [&](View o, Parallel& par) { conv3d(c, x, weight, b, {}, all, o, par); });
    const Expected e = naive(c, x, weight, with_bias ? &bias : nullptr, out.shape());
    check_close(out, [&](size_t i) { return e.values[i]; }, 1e-6, e.size * 1e-6);

    Serial serial;
    const Tensor wide = padded(c, x);
    Conv3d bare = c;
    bare.padding[1] = bare.padding[2] = 0;
    Tensor again = out.like();
    conv3d(bare, wide, weight, b, {}, all, again, serial);
    CHECK(again.same_bytes(out));

    if (c.padding[1] + c.padding[2] != 0) {
      const Tensor halo = compact(c, x, wide);
      Tensor third = out.like();
      conv3d(c, x, weight, b, halo, all, third, serial);
      CHECK(third.same_bytes(out));
    }

    const uint32_t h = random.below(k.out[2] + 1), w = random.below(k.out[3] + 1);
    Tensor parts = out.like();
    const OutputBox boxes[] = {{{0, 0}, {h, k.out[3]}}, {{h, 0}, {k.out[2], w}}, {{h, w}, {k.out[2], k.out[3]}}};
    for (const OutputBox& box : boxes) conv3d(c, x, weight, b, {}, box, parts, serial);
    CHECK(parts.same_bytes(out));
  }
}

TEST_CASE("conv3d: several blocks in every direction") {
  Random random(3);
  const Conv3d c{.kernel = {2, 3, 3}, .stride = {1, 1, 1}, .padding = {0, 1, 1}, .dilation = {1, 1, 1}};
  const Tensor x(DType::bfloat16, {1, 3, 33, 19, 40}, random), weight(DType::bfloat16, {720, 1600}, random, 0.04);
  Tensor out(DType::float32, {1, 2, 33, 19, 1600});
  run_all_ways(out, [&](View o, Parallel& par) { conv3d(c, x, weight, {}, {}, OutputBox::whole(out.shape()), o, par); });
  for (int i = 0; i < 300; ++i) {
    const uint32_t t = random.below(2), h = random.below(33), w = random.below(19), o = random.below(1600);
    double sum = 0;
    for (uint32_t k = 0; k < 720; ++k) {
      const uint32_t tap = k / 40;
      const int64_t row = int64_t{h} + tap / 3 % 3 - 1, column = int64_t{w} + tap % 3 - 1;
      if (row < 0 || row >= 33 || column < 0 || column >= 19) continue;
      sum += x.at((((t + tap / 9) * 33 + row) * 19 + column) * 40 + k % 40) * weight.at(k * 1600 + o);
    }
    CHECK(out.at(((t * 33 + h) * 19 + w) * 1600 + o) == doctest::Approx(sum).epsilon(1e-4));
  }
}
