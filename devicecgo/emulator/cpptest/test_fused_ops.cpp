// The distributed norm and ring attention, against the same on one device, computed plainly.
#include <cmath>

#include "collectives.h"

using namespace meshrun::test;

namespace {

void check_close(const std::vector<float>& got, const std::vector<double>& expected, double tolerance) {
  REQUIRE(got.size() == expected.size());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) worst = std::max(worst, std::abs(got[i] - expected[i]) / (1 + std::abs(expected[i])));
  CHECK(worst <= tolerance);
}

struct NormCase {
  uint32_t rows, cols, axis;
  bool ring;
  uint32_t kind;
  uint32_t heads;
  bool rope;
};

void check_norm(const NormCase& c) {
  CAPTURE(c.rows);
  CAPTURE(c.cols);
  CAPTURE(c.axis);
  CAPTURE(c.ring);
  CAPTURE(c.kind);
  CAPTURE(c.heads);
  CAPTURE(c.rope);
  TestMesh mesh(c.rows, c.cols);
  const uint32_t n = c.axis == 0 ? c.rows : c.cols, tokens = 37, width = 24, head = width / c.heads;
  const Shape s = shape({2, 1, tokens, width}), row = shape({1, 1, 1, width}), table = shape({1, 1, tokens, head});
  auto x = random_floats(mesh.devices(), s, 1, false);
  for (auto& shard : x)
    for (float& v : shard) v += 3;  // a mean that makes careless variances lose digits
  const auto w = random_floats(mesh.devices(), row, 2, false), b = random_floats(mesh.devices(), row, 3, false);
  const auto cos = random_floats(mesh.devices(), table, 4, false), sin = random_floats(mesh.devices(), table, 5, false);
  const Bank bank(mesh);
  auto op = make_op<mr_fused_distributed_norm>(MR_OP_FUSED_DISTRIBUTED_NORM);
  op.input = mesh.upload(s, DType::float32, x);
  op.weight = mesh.upload(row, DType::float32, w);
  op.bias = mesh.upload(row, DType::float32, b);
  if (c.rope) {
    op.rope_cos = mesh.upload(table, DType::float32, cos);
    op.rope_sin = mesh.upload(table, DType::float32, sin);
  }
  op.kind = c.kind;
  op.epsilon = 1e-5f;
  if (n > 1) op.h.present = MR_HAS_AXIS;  // without it the width is whole, whatever the mesh
  op.axis = c.axis;
  op.num_links = 1;
  op.topology = c.ring ? MR_RING : MR_LINEAR;
  op.num_heads = c.heads;
  op.semaphores[0] = bank.s[0];
  op.semaphores[1] = bank.s[1];
  const uint32_t values = c.kind == MR_NORM_RMS ? 1 : 2;
  if (n > 1) {
    op.stats = mesh.alloc(shape({1, 1, 2 * tokens, values * n + 1}), DType::float32);
    CHECK(mesh.try_enqueue(op).says("stats is"));
    op.stats = mesh.alloc(shape({1, 1, 2 * tokens, values * n}), DType::float32);
    mesh.sync();
  }
  mesh.enqueue(op);
  mesh.sync();
  for (uint32_t d = 0; d < mesh.devices(); ++d) {
    const auto line = line_of(c.rows, c.cols, d, c.axis);
    std::vector<double> expected(s.elements());
    for (uint32_t r = 0; r < 2 * tokens; ++r) {
      double sum = 0, squares = 0;
      for (const uint32_t peer : line)
        for (uint32_t i = 0; i < width; ++i) sum += x[peer][r * width + i];
      const double mean = c.kind == MR_NORM_LAYER ? sum / (n * width) : 0;
      for (const uint32_t peer : line)
        for (uint32_t i = 0; i < width; ++i) squares += std::pow(x[peer][r * width + i] - mean, 2);
      const double factor = 1 / std::sqrt(squares / (n * width) + 1e-5);
      std::vector<double> y(width);
      for (uint32_t i = 0; i < width; ++i) y[i] = (x[d][r * width + i] - mean) * factor * w[d][i] + b[d][i];
      for (uint32_t i = 0; i < width; ++i) {
        const uint32_t h = i / head, j = i % head, token = r % tokens, batch = r / tokens;
        double v = y[i];
        if (c.rope) v = y[i] * cos[d][token * head + j] + (j % 2 == 0 ? -y[i + 1] : y[i - 1]) * sin[d][token * head + j];
        expected[((batch * c.heads + h) * tokens + token) * head + j] = v;
      }
    }
    check_close(mesh.read<float>(op.output, d), expected, 2e-5);
  }
  CHECK(at_rest(mesh, bank));
}

struct AttentionCase {
  uint32_t rows, cols, axis;
  bool ring;
  uint32_t links;
  bool joint;
  uint32_t logical_n;  // 0 = all
};

std::vector<double> attend(const std::vector<float>& q, const std::vector<double>& k, const std::vector<double>& v, uint32_t heads, uint32_t rows, uint32_t keys,
                           uint32_t d) {
  std::vector<double> out;
  for (uint32_t h = 0; h < heads; ++h)
    for (uint32_t i = 0; i < rows; ++i) {
      std::vector<double> p(keys);
      double sum = 0;
      for (uint32_t j = 0; j < keys; ++j) {
        double dot = 0;
        for (uint32_t c = 0; c < d; ++c) dot += q[(h * rows + i) * d + c] * k[(h * keys + j) * d + c];
        sum += p[j] = std::exp(dot / std::sqrt(double(d)));
      }
      for (uint32_t c = 0; c < d; ++c) {
        double o = 0;
        for (uint32_t j = 0; j < keys; ++j) o += p[j] / sum * v[(h * keys + j) * d + c];
        out.push_back(o);
      }
    }
  return out;
}

void check_attention(const AttentionCase& c) {
  CAPTURE(c.rows);
  CAPTURE(c.cols);
  CAPTURE(c.axis);
  CAPTURE(c.ring);
  CAPTURE(c.links);
  CAPTURE(c.joint);
  CAPTURE(c.logical_n);
  TestMesh mesh(c.rows, c.cols, "num_links=2");
  const uint32_t n = c.axis == 0 ? c.rows : c.cols, heads = 3, rows = 5, d = 6, joint_rows = 4;
  const Shape s = shape({1, heads, rows, d}), js = shape({1, heads, joint_rows, d});
  const auto q = random_floats(mesh.devices(), s, 1, false), k = random_floats(mesh.devices(), s, 2, false), v = random_floats(mesh.devices(), s, 3, false);
  // replicated
  auto replicated = [&](uint32_t seed) { return Shards<float>(mesh.devices(), random_floats(1, js, seed, false)[0]); };
  const auto jq = replicated(4), jk = replicated(5), jv = replicated(6);
  const Bank bank(mesh);
  auto op = make_op<mr_ring_joint_sdpa>(MR_OP_RING_JOINT_SDPA);
  op.q = mesh.upload(s, DType::float32, q);
  op.k = mesh.upload(s, DType::float32, k);
  op.v = mesh.upload(s, DType::float32, v);
  if (c.joint) {
    op.joint_q = mesh.upload(js, DType::float32, jq);
    op.joint_k = mesh.upload(js, DType::float32, jk);
    op.joint_v = mesh.upload(js, DType::float32, jv);
  }
  op.buffer_k = mesh.alloc(shape({1, heads, rows * n, d}), DType::float32);
  op.buffer_v = mesh.alloc(shape({1, heads, rows * n, d}), DType::float32);
  mesh.sync();
  op.semaphores[0] = bank.s[0];
  op.semaphores[1] = bank.s[1];
  op.axis = c.axis;
  op.num_links = c.links;
  op.topology = c.ring ? MR_RING : MR_LINEAR;
  if (c.logical_n != 0) {
    op.h.present = MR_HAS_LOGICAL_N;
    op.logical_n = c.logical_n;
  }
  mesh.enqueue(op);
  mesh.sync();
  const uint32_t valid = c.logical_n != 0 ? c.logical_n : rows * n;
  for (uint32_t dev = 0; dev < mesh.devices(); ++dev) {
    const auto line = line_of(c.rows, c.cols, dev, c.axis);
    const uint32_t keys = valid + (c.joint ? joint_rows : 0);
    std::vector<double> ks, vs;
    for (uint32_t h = 0; h < heads; ++h) {
      for (uint32_t j = 0; j < valid; ++j)
        for (uint32_t i = 0; i < d; ++i) {
          ks.push_back(k[line[j / rows]][(h * rows + j % rows) * d + i]);
          vs.push_back(v[line[j / rows]][(h * rows + j % rows) * d + i]);
        }
      for (uint32_t j = 0; c.joint && j < joint_rows; ++j)
        for (uint32_t i = 0; i < d; ++i) {
          ks.push_back(jk[0][(h * joint_rows + j) * d + i]);
          vs.push_back(jv[0][(h * joint_rows + j) * d + i]);
        }
    }
    check_close(mesh.read<float>(op.output, dev), attend(q[dev], ks, vs, heads, rows, keys, d), 1e-5);
    if (c.joint) check_close(mesh.read<float>(op.joint_output, dev), attend(jq[0], ks, vs, heads, joint_rows, keys, d), 1e-5);
    // What went round is in the buffers.
    CHECK(mesh.read<float>(op.buffer_k, dev) == gathered(k, line, s, 2));
    CHECK(mesh.read<float>(op.buffer_v, dev) == gathered(v, line, s, 2));
  }
  CHECK(at_rest(mesh, bank));
}

}  // namespace

TEST_CASE("fused_distributed_norm: against the plain norm of the whole width") {
  for (const uint32_t kind : {uint32_t{MR_NORM_LAYER}, uint32_t{MR_NORM_RMS}})
    for (const bool rope : {false, true})
      for (const uint32_t heads : {1u, 3u}) {
        check_norm({1, 4, 1, true, kind, heads, rope});
        check_norm({1, 3, 1, true, kind, heads, rope});
        check_norm({2, 4, 0, false, kind, heads, rope});
        check_norm({2, 4, 1, false, kind, heads, rope});
        check_norm({1, 2, 0, false, kind, heads, rope});
      }
}

TEST_CASE("ring_joint_sdpa: against plain attention over the whole sequence") {
  for (const bool joint : {false, true})
    for (const uint32_t logical_n : {0u, 17u, 3u}) {
      check_attention({1, 4, 1, true, 1, joint, logical_n});
      check_attention({1, 4, 1, false, 2, joint, logical_n});
      check_attention({1, 5, 1, true, 2, joint, logical_n});
      check_attention({4, 2, 0, true, 1, joint, logical_n});
      check_attention({4, 2, 0, false, 1, joint, logical_n});
      if (logical_n <= 10) check_attention({4, 2, 1, false, 2, joint, logical_n == 0 ? 0u : 9u});
    }
}

TEST_CASE("ring_joint_sdpa: on an axis of one it is attention") {
  TestMesh mesh(1, 2);
  const Shape s = shape({1, 1, 4, 4});
  const auto q = random_floats(2, s, 1, false), k = random_floats(2, s, 2, false), v = random_floats(2, s, 3, false);
  auto op = make_op<mr_ring_joint_sdpa>(MR_OP_RING_JOINT_SDPA);
  op.q = mesh.upload(s, DType::float32, q);
  op.k = mesh.upload(s, DType::float32, k);
  op.v = mesh.upload(s, DType::float32, v);
  op.axis = 0;
  op.num_links = 1;
  op.topology = MR_LINEAR;
  mesh.enqueue(op);
  mesh.sync();
  for (uint32_t d = 0; d < 2; ++d) {
    const std::vector<double> kd(k[d].begin(), k[d].end()), vd(v[d].begin(), v[d].end());
    check_close(mesh.read<float>(op.output, d), attend(q[d], kd, vd, 1, 4, 4, 4), 1e-5);
  }
}
