// exp_ring_joint_sdpa: the same, bit for bit, as ring_joint_sdpa, which is held against plain attention in test_fused_ops.cpp; and against
// plain attention in double itself.
#include "fused.h"

using namespace meshrun::test;

namespace {

struct Case {
  uint32_t rows, cols, axis;
  bool ring;
  uint32_t links, batch, heads, tokens, width, joint;  // joint: rows, 0 = none
  uint32_t logical_n;                                   // 0 = all
  DType dtype;
};

// softmax(q k^T / sqrt(d)) v for one head
std::vector<double> attend(const float* q, const std::vector<const float*>& k, const std::vector<const float*>& v, uint32_t rows, uint32_t d) {
  std::vector<double> out;
  for (uint32_t i = 0; i < rows; ++i) {
    std::vector<double> weight;
    double sum = 0;
    for (const float* key : k) {
      double dot = 0;
      for (uint32_t c = 0; c < d; ++c) dot += double{q[i * d + c]} * key[c];
      weight.push_back(std::exp(dot / std::sqrt(double(d))));
      sum += weight.back();
    }
    for (uint32_t c = 0; c < d; ++c) {
      double o = 0;
      for (size_t j = 0; j < v.size(); ++j) o += weight[j] / sum * v[j][c];
      out.push_back(o);
    }
  }
  return out;
}

struct Setup {
  TestMesh& mesh;
  Case c;
  uint32_t length;
  Shape s, joint;
  Shards<float> q, k, v, jq, jk, jv;
  std::vector<mr_handle> bank[2];
  mr_exp_ring_joint_sdpa op[2];

  Setup(TestMesh& m, const Case& cs, uint32_t seed) : mesh(m), c(cs), length(c.axis == 0 ? c.rows : c.cols) {
    s = shape({c.batch, c.heads, c.tokens, c.width});
    joint = shape({c.batch, c.heads, std::max(c.joint, 1u), c.width});
    const bool round = c.dtype == DType::bfloat16;
    q = random_floats(mesh.devices(), s, seed, round), k = random_floats(mesh.devices(), s, seed + 1, round), v = random_floats(mesh.devices(), s, seed + 2, round);
    const auto same = [&](uint32_t n) { return Shards<float>(mesh.devices(), random_floats(1, joint, seed + n, round)[0]); };
    jq = same(3), jk = same(4), jv = same(5);
    op[0] = make_op<mr_exp_ring_joint_sdpa>(MR_OP_EXP_RING_JOINT_SDPA);
    op[0].q = upload_floats(mesh, s, c.dtype, q);
    op[0].k = upload_floats(mesh, s, c.dtype, k);
    op[0].v = upload_floats(mesh, s, c.dtype, v);
    if (c.joint != 0) {
      op[0].joint_q = upload_floats(mesh, joint, c.dtype, jq);
      op[0].joint_k = upload_floats(mesh, joint, c.dtype, jk);
      op[0].joint_v = upload_floats(mesh, joint, c.dtype, jv);
    }
    op[0].axis = c.axis;
    op[0].num_links = c.links;
    op[0].topology = c.ring ? MR_RING : MR_LINEAR;
    if (c.logical_n != 0) op[0].h.present = MR_HAS_LOGICAL_N;
    op[0].logical_n = c.logical_n;
    op[1] = op[0];
    for (int i = 0; i < 2; ++i) {
      bank[i] = mesh.semaphores(c.links);
      std::copy(bank[i].begin(), bank[i].end(), op[i].semaphores);
      op[i].buffer_k = mesh.alloc(shape({c.batch, c.heads, c.tokens * length, c.width}), c.dtype);
      op[i].buffer_v = mesh.alloc(shape({c.batch, c.heads, c.tokens * length, c.width}), c.dtype);
    }
    mesh.sync();
  }

  std::vector<double> expected(uint32_t device, const std::vector<float>& queries, uint32_t rows) const {
    const auto line = line_of(c.rows, c.cols, device, c.axis);
    const uint32_t valid = c.logical_n != 0 ? c.logical_n : c.tokens * length;
    std::vector<double> out;
    for (uint32_t h = 0; h < c.batch * c.heads; ++h) {
      std::vector<const float*> ks, vs;
      for (uint32_t j = 0; j < valid; ++j) {
        const size_t at = (h * c.tokens + j % c.tokens) * c.width;
        ks.push_back(&k[line[j / c.tokens]][at]);
        vs.push_back(&v[line[j / c.tokens]][at]);
      }
      for (uint32_t j = 0; j < c.joint; ++j) {
        ks.push_back(&jk[0][(h * c.joint + j) * c.width]);
        vs.push_back(&jv[0][(h * c.joint + j) * c.width]);
      }
      const auto head = attend(&queries[size_t{h} * rows * c.width], ks, vs, rows, c.width);
      out.insert(out.end(), head.begin(), head.end());
    }
    return out;
  }
  double error(const mr_exp_ring_joint_sdpa& done) {
    double e = 0;
    for (uint32_t d = 0; d < mesh.devices(); ++d) {
      e = std::max(e, worst(read_floats(mesh, done.output, c.dtype, d), expected(d, q[d], c.tokens), tolerance_of(c.dtype)));
      if (c.joint != 0) e = std::max(e, worst(read_floats(mesh, done.joint_output, c.dtype, d), expected(d, jq[d], c.joint), tolerance_of(c.dtype)));
    }
    return e;
  }
};

void check(const Case& c, uint32_t seed) {
  CAPTURE(seed);
  CAPTURE(c.rows);
  CAPTURE(c.cols);
  CAPTURE(c.axis);
  CAPTURE(c.ring);
  CAPTURE(c.links);
  CAPTURE(c.joint);
  CAPTURE(c.logical_n);
  TestMesh mesh(c.rows, c.cols, "num_links=4\nchunk_bytes=64");
  Setup s(mesh, c, seed);
  std::vector<mr_exp_ring_joint_sdpa> done;
  for (int i = 0; i < 5; ++i) {
    auto op = s.op[i % 2];
    mesh.enqueue(op);
    done.push_back(op);
  }
  mesh.sync();
  CHECK(s.error(done[0]) <= 1);
  // The other kind of ring attention.
  const Bank bank(mesh);
  auto other = make_op<mr_ring_joint_sdpa>(MR_OP_RING_JOINT_SDPA);
  other.h.present = s.op[0].h.present;
  other.q = s.op[0].q, other.k = s.op[0].k, other.v = s.op[0].v;
  other.joint_q = s.op[0].joint_q, other.joint_k = s.op[0].joint_k, other.joint_v = s.op[0].joint_v;
  other.buffer_k = s.op[0].buffer_k, other.buffer_v = s.op[0].buffer_v;
  other.semaphores[0] = bank.s[0], other.semaphores[1] = bank.s[1];
  other.axis = c.axis, other.num_links = c.links, other.topology = s.op[0].topology, other.logical_n = c.logical_n;
  mesh.enqueue(other);
  mesh.sync();
  for (uint32_t d = 0; d < mesh.devices(); ++d)
    for (const auto& op : done) {
      CHECK(read_floats(mesh, op.output, c.dtype, d) == read_floats(mesh, other.output, c.dtype, d));
      if (c.joint != 0) CHECK(read_floats(mesh, op.joint_output, c.dtype, d) == read_floats(mesh, other.joint_output, c.dtype, d));
    }
  CHECK(all_zero(mesh, s.bank[0]));
  CHECK(all_zero(mesh, s.bank[1]));
}

}  // namespace

TEST_CASE("exp_ring_joint_sdpa: plain attention over the whole sequence, and the other kind's result") {
  Dice dice(22);
  for (const MeshCase m : {MeshCase{1, 1}, {1, 2}, {1, 3}, {1, 4}, {4, 2}, {2, 4}, {1, 8}})
    for (const uint32_t axis : {0u, 1u})
      for (const bool ring : {false, true}) {
        const uint32_t length = axis == 0 ? m.rows : m.cols;
        if (ring && length <= 2) continue;
        for (int i = 0; i < 2; ++i) {
          const uint32_t tokens = dice.in(1, 9);
          check({m.rows, m.cols, axis, ring, dice.of({1, 2, 4}), dice.in(1, 2), dice.in(1, 3), tokens, 2 * dice.in(1, 10), dice.coin() ? dice.in(1, 6) : 0,
                 dice.coin() ? dice.in(1, tokens * length) : 0, dice.coin() ? DType::bfloat16 : DType::float32},
                100 + dice.in(0, 1000));
        }
      }
}

TEST_CASE("exp_ring_joint_sdpa: waits for both ways of every link") {
  const Case c{1, 4, 1, true, 2, 1, 2, 64, 16, 0, 0, DType::float32};
  for (const int raised : {-1, 0, 1}) {
    TestMesh mesh(1, 4, "clock=lockstep\nnum_links=2\non_hazard=continue");
    Setup s(mesh, c, 9);
    mesh.sync();
    if (raised >= 0) set_semaphores(mesh, {s.bank[0][raised]}, 1000);
    mesh.enqueue(s.op[0]);
    mesh.sync();
    CHECK((s.error(s.op[0]) <= 1) == (raised < 0));
    if (raised < 0) CHECK(all_zero(mesh, s.bank[0]));
  }
}

TEST_CASE("exp_ring_joint_sdpa: refusals") {
  TestMesh mesh(1, 4, "num_links=2");
  Setup s(mesh, {1, 4, 1, true, 2, 1, 1, 4, 4, 2, 0, DType::float32}, 1);
  const auto refused = [&](auto change, const char* says) {
    auto op = s.op[0];
    change(op);
    const Answer a = mesh.try_enqueue(op);
    CAPTURE(a.text);
    CHECK(a.code != MR_OK);
    CHECK(a.says(says));
  };
  refused([](auto& op) { op.semaphores[1] = op.semaphores[0]; }, "semaphores[0] and [1] are the same");
  refused([](auto& op) { op.semaphores[1] = 0; }, "semaphores is 0");
  refused([](auto& op) { op.num_links = 3; }, "num_links is 3");
  refused([](auto& op) { op.joint_k = 0; }, "all three or none");
  refused([](auto& op) { op.buffer_v = 0; }, "buffer_v is 0");
  refused([](auto& op) { op.h.present = MR_HAS_LOGICAL_N, op.logical_n = 17; }, "logical_n is 17");
  mesh.enqueue(s.op[0]);
  mesh.sync();
  CHECK(s.error(s.op[0]) <= 1);
}
