// The operations of one device: shapes, refusals, and that the right kernel sees the right operands. What the kernels compute is
// tested beside them.
#include <cmath>

#include "collectives.h"

using namespace meshrun::test;

namespace {

double gelu(double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }

void check_close(const std::vector<float>& got, const std::vector<double>& expected, double tolerance) {
  REQUIRE(got.size() == expected.size());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) worst = std::max(worst, std::abs(got[i] - expected[i]) / (1 + std::abs(expected[i])));
  CHECK(worst <= tolerance);
}

}  // namespace

TEST_CASE("matmul: bias, activation, transposed weight, on every device its own data") {
  TestMesh mesh(2, 2);
  const Shape a = shape({1, 2, 5, 7}), w = shape({7, 3}), wt = shape({3, 7}), bias = shape({1, 1, 1, 3});
  const auto x = random_floats(4, a, 1, false), y = random_floats(4, w, 2, false), b = random_floats(4, bias, 3, false);
  Shards<float> yt(4, std::vector<float>(21));
  for (uint32_t d = 0; d < 4; ++d)
    for (int i = 0; i < 7; ++i)
      for (int j = 0; j < 3; ++j) yt[d][j * 7 + i] = y[d][i * 3 + j];
  for (const bool transposed : {false, true}) {
    auto op = make_op<mr_matmul>(MR_OP_MATMUL);
    op.input = mesh.upload(a, DType::float32, x);
    op.weight = transposed ? mesh.upload(wt, DType::float32, yt) : mesh.upload(w, DType::float32, y);
    op.bias = mesh.upload(bias, DType::float32, b);
    op.activation = MR_ACT_GELU;
    op.transpose_b = transposed;
    op.dtype = MR_FLOAT32;
    mesh.enqueue(op);
    mesh.sync();
    mr_tensor_spec s{};
    s.size = sizeof s;
    mr_error e = fresh_error();
    driver().tensor_info(mesh.handle(), op.output, &s, &e);
    CHECK(meshrun::emu::checked_spec(s, "").shape == shape({1, 2, 5, 3}));
    for (uint32_t d = 0; d < 4; ++d) {
      std::vector<double> expected;
      for (int r = 0; r < 10; ++r)
        for (int j = 0; j < 3; ++j) {
          double sum = b[d][j];
          for (int i = 0; i < 7; ++i) sum += double(x[d][r * 7 + i]) * y[d][i * 3 + j];
          expected.push_back(gelu(sum));
        }
      check_close(mesh.read<float>(op.output, d), expected, 1e-5);
    }
  }
}

TEST_CASE("matmul: what does not fit is refused") {
  TestMesh mesh(1, 1);
  const auto refused = [&](const Shape& a, const Shape& w, const Shape& bias, const char* why) {
    auto op = make_op<mr_matmul>(MR_OP_MATMUL);
    op.input = mesh.alloc(a);
    op.weight = mesh.alloc(w);
    op.bias = bias.rank != 0 ? mesh.alloc(bias) : 0;
    op.dtype = MR_BFLOAT16;
    const Answer answer = mesh.try_enqueue(op);
    CHECK(answer.code == MR_REJECTED);
    CHECK_MESSAGE(answer.says(why), answer.text);
    CHECK(op.output == 0);
  };
  refused(shape({1, 1, 4, 8}), shape({7, 3}), {}, "inner dims are 8 and 7");
  refused(shape({8}), shape({8, 3}), {}, "rank 2");
  refused(shape({1, 1, 4, 8}), shape({2, 8, 3}), {}, "does not broadcast");
  refused(shape({1, 1, 4, 8}), shape({8, 3}), shape({4}), "bias is [4]: must be [...,1,3]");
  refused(shape({1, 1, 4, 8}), shape({8, 3}), shape({4, 3}), "bias is [4,3]");
}

TEST_CASE("norm, rope, binary, addcmul, activation") {
  TestMesh mesh(1, 2);
  const Shape s = shape({1, 2, 3, 8});
  const auto x = random_floats(2, s, 4, false);
  const mr_handle input = mesh.upload(s, DType::float32, x);
  const Shape row = shape({1, 1, 1, 8});
  const auto w = random_floats(2, row, 5, false);
  const mr_handle weight = mesh.upload(row, DType::float32, w);

  auto n = make_op<mr_norm>(MR_OP_NORM);
  n.input = input;
  n.weight = weight;
  n.kind = MR_NORM_RMS;
  n.epsilon = 1e-6f;
  mesh.enqueue(n);

  auto table_shape = shape({1, 1, 3, 8});
  const auto cos = random_floats(2, table_shape, 6, false), sin = random_floats(2, table_shape, 7, false);
  auto ro = make_op<mr_rope>(MR_OP_ROPE);
  ro.input = input;
  ro.cos = mesh.upload(table_shape, DType::float32, cos);
  ro.sin = mesh.upload(table_shape, DType::float32, sin);
  ro.mode = MR_ROPE_INTERLEAVED;
  mesh.enqueue(ro);

  auto bi = make_op<mr_binary>(MR_OP_BINARY);
  bi.a = weight;
  bi.b = input;
  bi.kind = MR_BINARY_SUB;
  mesh.enqueue(bi);

  auto sc = make_op<mr_binary>(MR_OP_BINARY);
  sc.a = input;
  sc.kind = MR_BINARY_MUL;
  sc.h.present = MR_HAS_SCALAR;
  sc.scalar = 2.5f;
  mesh.enqueue(sc);

  auto ad = make_op<mr_addcmul>(MR_OP_ADDCMUL);
  ad.input = input;
  ad.x = bi.output;
  ad.y = weight;
  mesh.enqueue(ad);

  auto ac = make_op<mr_activation>(MR_OP_ACTIVATION);
  ac.input = input;
  ac.kind = MR_ACT_GELU;
  mesh.enqueue(ac);
  mesh.sync();

  for (uint32_t d = 0; d < 2; ++d) {
    std::vector<double> normed, rotated, difference, scaled, mixed, activated;
    for (size_t i = 0; i < x[d].size(); ++i) {
      double squares = 0;
      for (int j = 0; j < 8; ++j) squares += double(x[d][i / 8 * 8 + j]) * x[d][i / 8 * 8 + j];
      normed.push_back(x[d][i] / std::sqrt(squares / 8 + 1e-6) * w[d][i % 8]);
      const size_t t = i % 24;
      rotated.push_back(double(x[d][i]) * cos[d][t] + (i % 2 == 0 ? -double(x[d][i + 1]) : double(x[d][i - 1])) * sin[d][t]);
      difference.push_back(double(w[d][i % 8]) - x[d][i]);
      scaled.push_back(2.5 * x[d][i]);
      mixed.push_back(x[d][i] + difference.back() * w[d][i % 8]);
      activated.push_back(gelu(x[d][i]));
    }
    check_close(mesh.read<float>(n.output, d), normed, 1e-5);
    check_close(mesh.read<float>(ro.output, d), rotated, 1e-5);
    check_close(mesh.read<float>(bi.output, d), difference, 1e-6);
    check_close(mesh.read<float>(sc.output, d), scaled, 1e-6);
    check_close(mesh.read<float>(ad.output, d), mixed, 1e-6);
    check_close(mesh.read<float>(ac.output, d), activated, 1e-5);
  }
}

TEST_CASE("sdpa: scale and mask") {
  TestMesh mesh(1, 1);
  const Shape qs = shape({1, 2, 5, 4}), ks = shape({1, 2, 9, 4});
  const auto q = random_floats(1, qs, 1, false), k = random_floats(1, ks, 2, false), v = random_floats(1, ks, 3, false);
  auto op = make_op<mr_sdpa>(MR_OP_SDPA);
  op.q = mesh.upload(qs, DType::float32, q);
  op.k = mesh.upload(ks, DType::float32, k);
  op.v = mesh.upload(ks, DType::float32, v);
  op.h.present = MR_HAS_SCALE | MR_HAS_LOGICAL_N;
  op.scale = 0.7f;
  op.logical_n = 6;
  mesh.enqueue(op);
  mesh.sync();
  std::vector<double> expected;
  for (int h = 0; h < 2; ++h)
    for (int i = 0; i < 5; ++i) {
      double p[6], sum = 0;
      for (int j = 0; j < 6; ++j) {
        double dot = 0;
        for (int c = 0; c < 4; ++c) dot += double(q[0][(h * 5 + i) * 4 + c]) * k[0][(h * 9 + j) * 4 + c];
        sum += p[j] = std::exp(dot * 0.7f);
      }
      for (int c = 0; c < 4; ++c) {
        double o = 0;
        for (int j = 0; j < 6; ++j) o += p[j] / sum * v[0][(h * 9 + j) * 4 + c];
        expected.push_back(o);
      }
    }
  check_close(mesh.read<float>(op.output, 0), expected, 1e-5);
  op.logical_n = 10;
  const Answer a = mesh.try_enqueue(op);
  CHECK(a.code == MR_REJECTED);
  CHECK(a.says("logical_n is 10: must be 1..9"));
}

TEST_CASE("slice, concat, reshape, permute, convert") {
  TestMesh mesh(1, 2);
  const Shape s = shape({2, 3, 4});
  const auto x = random_floats(2, s, 1, true);
  const mr_handle input = mesh.upload(s, DType::bfloat16, bf16(x));

  auto sl = make_op<mr_slice>(MR_OP_SLICE);
  sl.input = input;
  sl.rank = 3;
  const uint32_t begin[] = {1, 0, 1}, end[] = {2, 3, 4};
  std::copy(begin, begin + 3, sl.begin);
  std::copy(end, end + 3, sl.end);
  mesh.enqueue(sl);
  auto co = make_op<mr_concat>(MR_OP_CONCAT);
  co.inputs[0] = co.inputs[1] = input;
  co.count = 2;
  co.dim = 1;
  mesh.enqueue(co);
  auto re = make_op<mr_reshape>(MR_OP_RESHAPE);
  re.input = input;
  re.rank = 2;
  re.dims[0] = 8;
  re.dims[1] = 3;
  mesh.enqueue(re);
  auto pe = make_op<mr_permute>(MR_OP_PERMUTE);
  pe.input = input;
  pe.rank = 3;
  const uint32_t order[] = {2, 0, 1};
  std::copy(order, order + 3, pe.order);
  mesh.enqueue(pe);
  auto cv = make_op<mr_convert>(MR_OP_CONVERT);
  cv.input = input;
  cv.dtype = MR_FLOAT32;
  cv.layout = MR_ROW_MAJOR;
  mesh.enqueue(cv);
  mesh.sync();
  for (uint32_t d = 0; d < 2; ++d) {
    const auto at = [&](int i, int j, int k) { return x[d][(i * 3 + j) * 4 + k]; };
    std::vector<float> sliced, joined, permuted;
    for (int j = 0; j < 3; ++j)
      for (int k = 1; k < 4; ++k) sliced.push_back(at(1, j, k));
    for (int i = 0; i < 2; ++i)
      for (int j = 0; j < 6; ++j)
        for (int k = 0; k < 4; ++k) joined.push_back(at(i, j % 3, k));
    for (int k = 0; k < 4; ++k)
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 3; ++j) permuted.push_back(at(i, j, k));
    CHECK(widened(mesh.read<uint16_t>(sl.output, d)) == sliced);
    CHECK(widened(mesh.read<uint16_t>(co.output, d)) == joined);
    CHECK(widened(mesh.read<uint16_t>(re.output, d)) == x[d]);
    CHECK(widened(mesh.read<uint16_t>(pe.output, d)) == permuted);
    CHECK(mesh.read<float>(cv.output, d) == x[d]);
  }

  sl.output = 0;
  sl.end[2] = 5;
  CHECK(mesh.try_enqueue(sl).says("end[2] 5: must be 0 <= begin < end <= 4"));
  co.output = 0;
  co.dim = 3;
  CHECK(mesh.try_enqueue(co).says("dim is 3: must be 0..2"));
  re.output = 0;
  re.dims[0] = 7;
  CHECK(mesh.try_enqueue(re).says("not as many elements"));
  pe.output = 0;
  pe.order[0] = 1;
  CHECK(mesh.try_enqueue(pe).says("each dim of 0..2 once"));
  cv.output = sl.output = input;
  CHECK(mesh.try_enqueue(cv).says("must be [2,3,4] float32"));
}

TEST_CASE("an output must not lie in the memory of an input, but for elementwise operations") {
  TestMesh mesh(1, 1);
  const Shape s = shape({1, 1, 4, 4});
  const mr_handle x = mesh.upload(s, DType::float32, random_floats(1, s, 1, false));
  const auto before = mesh.read<float>(x, 0);
  auto op = make_op<mr_matmul>(MR_OP_MATMUL);
  op.input = op.weight = op.output = x;
  op.dtype = MR_FLOAT32;
  CHECK(mesh.try_enqueue(op).says("shares its memory"));
  auto add = make_op<mr_binary>(MR_OP_BINARY);
  add.a = add.b = add.output = x;
  add.kind = MR_BINARY_ADD;
  mesh.enqueue(add);
  mesh.sync();
  const auto after = mesh.read<float>(x, 0);
  for (size_t i = 0; i < after.size(); ++i) CHECK(after[i] == 2 * before[i]);
}
