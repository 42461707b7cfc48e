#include "../kernel_elementwise.h"

#include <limits>

#include "kernel_activations.h"
#include "kernel_test.h"

using namespace meshrun::emu;
using namespace meshrun::emu::test;

namespace {

std::vector<uint32_t> random_dims(Random& random) {
  std::vector<uint32_t> dims;
  for (uint32_t i = random.below(5); i > 0; --i) dims.push_back(random.between(1, 5));
  dims.push_back(random.chance(4) ? random.between(900, 2500) : random.between(1, 40));
  return limited(dims, 8000);
}

// Dims made 1, and dims of size 1 in front cut off, so that the shape still broadcasts against dims.
std::vector<uint32_t> smaller(Random& random, std::vector<uint32_t> dims) {
  for (auto& d : dims)
    if (random.chance(3)) d = 1;
  while (dims.size() > 1 && dims[0] == 1 && random.chance(2)) dims.erase(dims.begin());
  return dims;
}

double apply(uint32_t kind, double a, double b) {
  return kind == MR_BINARY_ADD ? a + b : kind == MR_BINARY_SUB ? a - b : a * b;
}

}  // namespace

TEST_CASE("binary, addcmul: broadcasting in every operand") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const auto dims = random_dims(random);
    const uint32_t kind = random.between(1, 3);
    const Tensor a(random.float_type(), smaller(random, dims), random),
        b(random.float_type(), smaller(random, dims), random);
    const Tensor c(random.float_type(), smaller(random, dims), random);
    Tensor out(random.float_type(), dims);
    INFO("a " << text(a.shape()) << " b " << text(b.shape()) << " c " << text(c.shape()) << " out " << text(out.shape()));
    std::vector<std::vector<uint32_t>> indices;
    for_each_index(out.shape(), [&](const std::vector<uint32_t>& index, size_t) { indices.push_back(index); });
    run_all_ways(out, [&](View o, Parallel& par) { binary(kind, a, b, o, par); });
    check_close(
        out, [&](size_t i) { return apply(kind, a.at(indices[i]), b.at(indices[i])); }, 1e-6, 3e-7);
    run_all_ways(out, [&](View o, Parallel& par) { addcmul(a, b, c, o, par); });
    check_close(
        out, [&](size_t i) { return a.at(indices[i]) + b.at(indices[i]) * c.at(indices[i]); }, 1e-6, 1e-6);
    run_all_ways(out, [&](View o, Parallel& par) { binary_scalar(kind, a, 1.75f, o, par); });
    check_close(
        out, [&](size_t i) { return apply(kind, a.at(indices[i]), 1.75); }, 1e-6, 3e-7);
  }
}

TEST_CASE("binary: in place, and the sign of zero") {
  for (DType type : {DType::bfloat16, DType::float32}) {
    Random random(1);
    Tensor a(type, {3, 1500}, random);
    const Tensor b(type, {3, 1500}, random);
    Tensor out = a.like();
    Serial serial;
    binary(MR_BINARY_ADD, a, b, out, serial);
    binary(MR_BINARY_ADD, a, b, a, serial);
    CHECK(a.same_bytes(out));
    Tensor zero(type, {1});
    zero.set(0, -0.0);
    binary(MR_BINARY_ADD, zero, zero, zero, serial);
    CHECK(std::signbit(zero.at(0)));
    binary_scalar(MR_BINARY_MUL, zero, -0.0f, zero, serial);
    CHECK(!std::signbit(zero.at(0)));
  }
}

TEST_CASE("binary: shapes that do not broadcast are refused") {
  const Tensor a(DType::float32, {2, 3}), b(DType::float32, {2, 4});
  Tensor out(DType::float32, {2, 3});
  Serial serial;
  CHECK_THROWS_AS(binary(MR_BINARY_ADD, a, b, out, serial), std::invalid_argument);
}

TEST_CASE("activation: every kind and type") {
  for (uint32_t kind = MR_ACT_NONE; kind <= MR_ACT_TANH; ++kind)
    for (DType from : {DType::bfloat16, DType::float32})
      for (DType to : {DType::bfloat16, DType::float32}) {
        Random random(kind);
        INFO("kind " << kind);
        Tensor in(from, {3, 1111}, random, 2);
        in.set(5, NAN);
        Tensor out(to, {3333});  // the shape of out counts
        run_all_ways(out, [&](View o, Parallel& par) { activation(kind, in, o, par); });
        check_close(
            out, [&](size_t i) { return activate(kind, in.at(i)); }, 2e-6, 1e-9);
      }
}

namespace {

double truncated(DType to, double x) {
  const auto within = [x](double low, double high) {
    return std::isnan(x) ? 0 : std::trunc(std::min(std::max(x, low), high));
  };
  switch (to) {
    case DType::uint32:
      return within(0, 4294967295.0);
    case DType::int32:
      return within(-2147483648.0, 2147483647.0);
    case DType::uint16:
      return within(0, 65535);
    case DType::uint8:
      return within(0, 255);
    default:
      return x;
  }
}

// Nearest bfloat16 of a double, rounded once: of the two neighbours in size.
double nearest_bf16(double x) {
  if (x == 0 || std::isnan(x) || std::isinf(x)) return x;
  const int exponent = std::max(std::ilogb(x), -126) - 7;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -exponent)), exponent);
  return std::fabs(rounded) >= 0x1p128 ? std::copysign(INFINITY, x) : rounded;
}

}  // namespace

TEST_CASE("convert: between all types, with limits and special values") {
  const DType all[] = {DType::bfloat16, DType::float32, DType::uint32, DType::int32, DType::uint16, DType::uint8};
  const double values[] = {
      0,     1,        -1,        0.5,        -0.99,        1.99,          254.5,         255,          256,
      65535, 65536,    65534.75,  2147483647, 2147483648.0, -2147483648.0, -2147483649.0, 4294967295.0, 4294967296.0,
      1e30,  -1e30,    16777217,  16842752,   16842753,     16908288 - 1,  33685504,      33685505,     -16842753,
      NAN,   INFINITY, -INFINITY, 3.39e38,    1e-40,        -0.0,          123456789,     987654321,    -123456789};
  for (DType from : all)
    for (DType to : all) {
      Random random(static_cast<uint64_t>(from) * 10 + static_cast<uint64_t>(to));
      INFO("from " << static_cast<uint32_t>(from) << " to " << static_cast<uint32_t>(to));
      Tensor in(from, {3, 1, 701});
      in.fill([&](size_t i) {
        const double v = i < std::size(values) ? values[i] : random.normal() * std::pow(10, random.uniform(-2, 10));
        return truncated(from, v);
      });
      Tensor out(to, {3, 701});
      run_all_ways(out, [&](View o, Parallel& par) { convert(in, o, par); });
      size_t wrong = 0;
      for (size_t i = 0; i < in.size(); ++i) {
        const double x = in.at(i), got = out.at(i);
        const double want = to == DType::bfloat16  ? nearest_bf16(x)
                            : to == DType::float32 ? static_cast<float>(x)
                                                   : truncated(to, x);
        const bool good = std::isnan(want) ? std::isnan(got) : got == want;
        if (!good && ++wrong < 4) MESSAGE("element " << i << ": " << x << " became " << got << ", not " << want);
      }
      CHECK(wrong == 0);
    }
}
