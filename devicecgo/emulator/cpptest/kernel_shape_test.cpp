#include "../kernel_shape.h"

#include <numeric>

#include "kernel_test.h"

using namespace meshrun::emu;
using namespace meshrun::emu::test;

namespace {

const DType kTypes[] = {DType::bfloat16, DType::float32, DType::uint8, DType::int32};

Tensor random_bytes(DType type, const std::vector<uint32_t>& dims, Random& random) {
  Tensor t(type, dims);
  for (size_t i = 0; i < t.bytes(); ++i) t.as<uint8_t>()[i] = static_cast<uint8_t>(random.engine());
  return t;
}

bool same_element(const Tensor& a, size_t i, const Tensor& b, size_t j) {
  const size_t n = element_bytes(a.dtype());
  return std::memcmp(a.as<uint8_t>() + i * n, b.as<uint8_t>() + j * n, n) == 0;
}

std::vector<uint32_t> random_dims(Random& random) {
  std::vector<uint32_t> dims;
  for (uint32_t i = random.between(1, 5); i > 0; --i)
    dims.push_back(random.chance(6) ? random.between(60, 140) : random.between(1, 7));
  return limited(dims, 20000);
}

}  // namespace

TEST_CASE("slice: any part of any tensor") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    auto dims = random_dims(random);
    const Tensor in = random_bytes(kTypes[random.below(4)], dims, random);
    std::vector<uint32_t> begin(dims.size());
    for (size_t d = 0; d < dims.size(); ++d)
      if (random.chance(2)) {
        begin[d] = random.below(dims[d]);
        dims[d] = random.between(1, dims[d] - begin[d]);
      }
    Tensor out(in.dtype(), dims);
    INFO("in " << text(in.shape()) << " out " << text(out.shape()));
    run_all_ways(out, [&](View o, Parallel& par) { slice(in, begin.data(), o, par); });
    size_t wrong = 0;
    for_each_index(out.shape(), [&](std::vector<uint32_t> index, size_t i) {
      for (size_t d = 0; d < dims.size(); ++d) index[d] += begin[d];
      size_t place = 0;
      for (size_t d = 0; d < dims.size(); ++d) place = place * in.shape().dims[d] + index[d];
      wrong += !same_element(in, place, out, i);
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("concat: along every dim") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    auto dims = random_dims(random);
    const uint32_t dim = random.below(static_cast<uint32_t>(dims.size())), n = random.between(1, 5);
    const DType type = kTypes[random.below(4)];
    std::vector<Tensor> parts;
    std::vector<ConstView> views;
    uint32_t total = 0;
    for (uint32_t k = 0; k < n; ++k) {
      dims[dim] = random.between(1, 40);
      total += dims[dim];
      parts.push_back(random_bytes(type, dims, random));
      views.push_back(parts.back());
    }
    dims[dim] = total;
    Tensor out(type, dims);
    run_all_ways(out, [&](View o, Parallel& par) { concat(views.data(), views.size(), dim, o, par); });
    size_t wrong = 0;
    for_each_index(out.shape(), [&](std::vector<uint32_t> index, size_t i) {
      size_t k = 0;
      while (index[dim] >= parts[k].shape().dims[dim]) index[dim] -= parts[k++].shape().dims[dim];
      size_t place = 0;
      for (size_t d = 0; d < dims.size(); ++d) place = place * parts[k].shape().dims[d] + index[d];
      wrong += !same_element(parts[k], place, out, i);
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("permute: every order") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const auto dims = random_dims(random);
    const Tensor in = random_bytes(kTypes[random.below(4)], dims, random);
    std::vector<uint32_t> order(dims.size()), out_dims;
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), random.engine);
    for (uint32_t o : order) out_dims.push_back(dims[o]);
    Tensor out(in.dtype(), out_dims);
    INFO("in " << text(in.shape()) << " out " << text(out.shape()));
    run_all_ways(out, [&](View o, Parallel& par) { permute(in, order.data(), o, par); });
    size_t wrong = 0;
    for_each_index(out.shape(), [&](const std::vector<uint32_t>& index, size_t i) {
      std::vector<uint32_t> from(dims.size());
      for (size_t d = 0; d < dims.size(); ++d) from[order[d]] = index[d];
      size_t place = 0;
      for (size_t d = 0; d < dims.size(); ++d) place = place * dims[d] + from[d];
      wrong += !same_element(in, place, out, i);
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("shape: copies too large for the caches") {
  Random random(9);
  const Tensor in = random_bytes(DType::bfloat16, {3, 1025, 2049}, random);
  Tensor out(DType::bfloat16, {3, 1025, 2047});
  const uint32_t begin[] = {0, 0, 1};
  run_all_ways(out, [&](View o, Parallel& par) { slice(in, begin, o, par); });
  size_t wrong = 0;
  for (size_t i = 0; i < out.size(); ++i) wrong += !same_element(in, i / 2047 * 2049 + i % 2047 + 1, out, i);
  CHECK(wrong == 0);
  const ConstView parts[] = {in, in};
  Tensor twice(DType::bfloat16, {6, 1025, 2049});
  run_all_ways(twice, [&](View o, Parallel& par) { concat(parts, 2, 0, o, par); });
  CHECK(std::memcmp(twice.as<char>(), in.as<char>(), in.bytes()) == 0);
  CHECK(std::memcmp(twice.as<char>() + in.bytes(), in.as<char>(), in.bytes()) == 0);
}
