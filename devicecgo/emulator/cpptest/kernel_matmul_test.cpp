#include "../kernel_matmul.h"

#include "kernel_activations.h"
#include "kernel_test.h"

using namespace meshrun::emu;
using namespace meshrun::emu::test;

namespace {

void check_matmul(const Tensor& a, const Tensor& w, const Tensor* bias, uint32_t activation, bool transpose_b, Tensor& out) {
  const uint32_t depth = a.shape().back(0);
  run_all_ways(out,
               [&](View o, Parallel& par) { matmul(a, w, bias ? bias->view() : View{}, activation, transpose_b, o, par); });
  std::vector<double> expected(out.size());
  double size = 0;  // of the terms of a sum
  for_each_index(out.shape(), [&](const std::vector<uint32_t>& index, size_t i) {
    std::vector<uint32_t> ai = index, wi = index;
    double sum = 0, terms = 0;
    for (uint32_t k = 0; k < depth; ++k) {
      ai.back() = k;
      wi[transpose_b ? wi.size() - 1 : wi.size() - 2] = k;
      wi[transpose_b ? wi.size() - 2 : wi.size() - 1] = index.back();
      const double term = a.at(ai) * w.at(wi);
      sum += term;
      terms += std::fabs(term);
    }
    size = std::max(size, terms);
    expected[i] = activate(activation, sum + (bias ? bias->at(index) : 0));
  });
  check_close(
      out, [&](size_t i) { return expected[i]; }, 3e-6, size * 6e-7 + 1e-12);
}

}  // namespace

TEST_CASE("matmul: random shapes, types, bias and activation") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const uint32_t sizes[] = {1, 2, 3, 5, 6, 7, 15, 16, 17, 31, 32, 33, 64, 97, 130};
    const auto size = [&] { return sizes[random.below(15)]; };
    const uint32_t m = size(), k = random.chance(6) ? random.between(250, 600) : size(), n = size();
    const uint32_t leading = random.below(4);
    std::vector<uint32_t> dims_a, dims_w, dims_bias;
    const uint32_t way = random.below(3);  // the weight is shared, one per matrix, or mixed
    for (uint32_t i = 0; i < leading; ++i) {
      const uint32_t d = random.between(1, 3);
      dims_a.push_back(d);
      dims_w.push_back(way == 0 ? 1 : way == 1 ? d : random.chance(2) ? 1 : d);
      dims_bias.push_back(random.chance(2) ? 1 : d);
    }
    if (way == 0 && random.chance(2)) dims_w.clear();
    if (random.chance(3)) dims_bias.clear();
    std::vector<uint32_t> dims_out = dims_a;
    const bool transpose_b = random.chance(3);
    dims_a.insert(dims_a.end(), {m, k});
    dims_w.insert(dims_w.end(), {transpose_b ? n : k, transpose_b ? k : n});
    dims_bias.insert(dims_bias.end(), {1, n});
    if (dims_bias.size() == 2 && random.chance(2)) dims_bias = {n};
    dims_out.insert(dims_out.end(), {m, n});
    const Tensor a(random.float_type(), dims_a, random);
    const Tensor w(random.float_type(), dims_w, random, 1 / std::sqrt(k));
    const Tensor bias(random.float_type(), dims_bias, random);
    Tensor out(random.float_type(), dims_out);
    INFO("a " << text(a.shape()) << " w " << text(w.shape()) << " transposed " << transpose_b << " bias "
              << text(bias.shape()));
    check_matmul(a, w, random.chance(3) ? nullptr : &bias, random.below(7), transpose_b, out);
  }
}

TEST_CASE("matmul: several blocks in every direction") {
  Random random(7);
  for (bool transpose_b : {false, true}) {
    const uint32_t m = 1000, k = 300, n = 1600;
    const Tensor a(DType::bfloat16, {m, k}, random);
    const Tensor w(DType::bfloat16, {transpose_b ? n : k, transpose_b ? k : n}, random);
    Tensor out(DType::float32, {m, n});
    run_all_ways(out, [&](View o, Parallel& par) { matmul(a, w, {}, MR_ACT_NONE, transpose_b, o, par); });
    for (int i = 0; i < 3000; ++i) {
      const uint32_t r = random.below(m), c = random.below(n);
      double sum = 0;
      for (uint32_t j = 0; j < k; ++j)
        sum += a.at(size_t{r} * k + j) * w.at(transpose_b ? size_t{c} * k + j : size_t{j} * n + c);
      INFO("row " << r << " column " << c);
      REQUIRE(out.at(size_t{r} * n + c) == doctest::Approx(sum).epsilon(1e-4));
    }
  }
}

TEST_CASE("matmul: infinities and NaN stay in their rows and columns") {
  for (uint32_t m : {2u, 40u})
    for (bool transpose_b : {false, true}) {
      const uint32_t k = 19, n = 21;
      Random random(3);
      Tensor a(DType::float32, {m, k}, random);
      Tensor w(DType::float32, {transpose_b ? n : k, transpose_b ? k : n});
      w.fill([&](size_t) { return random.uniform(0.5, 1); });
      a.set(size_t{1} * k + 4, INFINITY);
      a.set(size_t{0} * k + 18, NAN);
      Tensor out(DType::bfloat16, {m, n});
      check_matmul(a, w, nullptr, MR_ACT_NONE, transpose_b, out);
    }
}

TEST_CASE("matmul: the sum of many terms keeps its precision") {
  const uint32_t k = 20000;
  Tensor a(DType::float32, {5, k});
  a.fill([](size_t) { return 0.1; });
  Tensor w(DType::float32, {k, 3});
  w.fill([](size_t) { return 0.1; });
  Tensor out(DType::float32, {5, 3});
  Serial serial;
  matmul(a, w, {}, MR_ACT_NONE, false, out, serial);
  const double term = static_cast<double>(0.1f) * 0.1f;
  check_close(
      out, [&](size_t) { return k * term; }, 1e-5, 0);
}

TEST_CASE("matmul: a weight that does not fit is refused") {
  Tensor a(DType::float32, {2, 4, 8}), w(DType::float32, {3, 8, 4}), out(DType::float32, {2, 4, 4});
  Serial serial;
  CHECK_THROWS_AS(matmul(a, w, {}, MR_ACT_NONE, false, out, serial), std::invalid_argument);
}
