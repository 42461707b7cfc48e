// Group norm as operations: statistics of shards, gathered, give what the whole tensor gives.
#include <cmath>

#include "collectives.h"

using namespace meshrun::test;

namespace {

mr_tensor_spec row_major(const Shape& s, DType dtype) { return spec(s, dtype, MR_ROW_MAJOR); }

mr_group_norm norm_op(mr_handle input, uint32_t groups) {
  auto op = make_op<mr_group_norm>(MR_OP_GROUP_NORM);
  op.input = input;
  op.num_groups = groups;
  op.epsilon = 1e-6f;
  return op;
}

mr_group_norm_stats stats_op(mr_handle input, uint32_t groups) {
  auto op = make_op<mr_group_norm_stats>(MR_OP_GROUP_NORM_STATS);
  op.input = input;
  op.num_groups = groups;
  return op;
}

}  // namespace

TEST_CASE("group norm: sharded over both axes through gathered statistics, with padding rows and columns that do not count") {
  const uint32_t N = 2, T = 2, H = 3, W = 2, C = 6, G = 3;  // of a device
  for (const MeshCase m : {MeshCase{1, 1}, MeshCase{2, 3}, MeshCase{4, 2}})
    for (const bool logical : {false, true}) {
      TestMesh mesh(m.rows, m.cols);
      const uint32_t rows = m.rows * H, cols = m.cols * W;
      // Without what is past them: with four rows of devices the last has nothing.
      const uint32_t valid_h = logical ? rows - (m.rows == 4 ? 4 : 1) : rows, valid_w = logical ? cols - 1 : cols;
      const Shape s = shape({N, T, H, W, C});
      const auto shards = random_floats(m.rows * m.cols, s, 11, false);
      const mr_handle x = mesh.alloc(row_major(s, DType::float32));
      mesh.write(x, s, shards);
      auto stats = stats_op(x, G);
      if (logical) {
        stats.h.present = uint32_t{MR_HAS_LOGICAL_H} | uint32_t{MR_HAS_LOGICAL_W};
        stats.logical_h = valid_h;
        stats.axis_h = 0;
        stats.logical_w = valid_w;
        stats.axis_w = 1;
      }
      mesh.enqueue(stats);
      mr_handle gathered = stats.output;
      std::vector<Bank> banks;
      for (const uint32_t axis : {0u, 1u}) {
        if ((axis == 0 ? m.rows : m.cols) == 1) continue;
        banks.emplace_back(mesh);
        auto gather = all_gather_op(gathered, 0, axis, false, banks.back());
        mesh.enqueue(gather);
        gathered = gather.output;
      }
      auto norm = norm_op(x, G);
      norm.stats = gathered;
      norm.activation = MR_ACT_SILU;
      mesh.enqueue(norm);
      mesh.sync();

      double worst = 0;
      for (uint32_t n = 0; n < N; ++n)
        for (uint32_t g = 0; g < G; ++g) {
          // fn(device, index in the shard, counts)
          const auto each = [&](auto fn) {
            for (uint32_t d = 0; d < m.rows * m.cols; ++d)
              for (uint32_t t = 0; t < T; ++t)
                for (uint32_t h = 0; h < H; ++h)
                  for (uint32_t w = 0; w < W; ++w)
                    for (uint32_t c = g * C / G; c < (g + 1) * C / G; ++c)
                      fn(d, (((n * T + t) * H + h) * W + w) * C + c, d / m.cols * H + h < valid_h && d % m.cols * W + w < valid_w);
          };
          double count = 0, sum = 0, m2 = 0;
          each([&](uint32_t d, uint32_t i, bool counts) { if (counts) ++count, sum += shards[d][i]; });
          each([&](uint32_t d, uint32_t i, bool counts) { if (counts) m2 += (shards[d][i] - sum / count) * (shards[d][i] - sum / count); });
          std::vector<std::vector<float>> got;
          for (uint32_t d = 0; d < m.rows * m.cols; ++d) got.push_back(mesh.read<float>(norm.output, d));
          each([&](uint32_t d, uint32_t i, bool) {
            const double v = (shards[d][i] - sum / count) / std::sqrt(m2 / count + 1e-6);
            worst = std::max(worst, std::abs(v / (1 + std::exp(-v)) - got[d][i]));
          });
        }
      CHECK(worst < 2e-5);
      const auto last = mesh.read<float>(stats.output, m.rows * m.cols - 1);
      if (logical && m.rows == 4)
        for (const float v : last) CHECK(v == 0);
      for (const Bank& b : banks) CHECK(at_rest(mesh, b));
    }
}

TEST_CASE("group norm: without statistics each device its own shard; weight and bias") {
  TestMesh mesh(1, 2);
  const Shape s = shape({1, 5, 4}), row = shape({1, 4});
  const auto shards = random_floats(2, s, 21, true), w = random_floats(2, row, 22, false), b = random_floats(2, row, 23, false);
  const mr_handle x = mesh.alloc(row_major(s, DType::bfloat16));
  mesh.write(x, s, bf16(shards));
  auto op = norm_op(x, 2);
  op.weight = mesh.upload(row, DType::float32, w);
  op.bias = mesh.upload(row, DType::float32, b);
  mesh.enqueue(op);
  mesh.sync();
  for (uint32_t d = 0; d < 2; ++d) {
    const auto got = widened(mesh.read<uint16_t>(op.output, d));
    for (uint32_t g = 0; g < 2; ++g) {
      double sum = 0, m2 = 0;
      for (uint32_t p = 0; p < 5; ++p)
        for (uint32_t c = 2 * g; c < 2 * g + 2; ++c) sum += shards[d][p * 4 + c];
      for (uint32_t p = 0; p < 5; ++p)
        for (uint32_t c = 2 * g; c < 2 * g + 2; ++c) m2 += std::pow(shards[d][p * 4 + c] - sum / 10, 2);
      for (uint32_t p = 0; p < 5; ++p)
        for (uint32_t c = 2 * g; c < 2 * g + 2; ++c) {
          const double want = (shards[d][p * 4 + c] - sum / 10) / std::sqrt(m2 / 10 + 1e-6) * w[d][c] + b[d][c];
          CHECK(std::abs(got[p * 4 + c] - want) <= std::abs(want) / 256 + 1e-5);
        }
    }
  }
}

TEST_CASE("group norm: what does not fit is refused, and says why") {
  TestMesh mesh(2, 2);
  const mr_handle x = mesh.alloc(row_major(shape({2, 3, 4, 6}), DType::bfloat16));
  const auto refused = [&](auto op, auto change, const char* why) {
    change(op);
    const Answer answer = mesh.try_enqueue(op);
    CHECK(answer.code == MR_REJECTED);
    CHECK_MESSAGE(answer.says(why), answer.text);
  };
  const auto norm = norm_op(x, 3);
  refused(norm, [&](auto& op) { op.input = mesh.alloc(shape({2, 3, 4, 6})); }, "must be row major");
  refused(norm, [&](auto& op) { op.input = mesh.alloc(row_major(shape({6}), DType::bfloat16)); }, "input is [6]");
  refused(norm, [&](auto& op) { op.num_groups = 4; }, "num_groups is 4: must divide the 6 channels");
  refused(norm, [&](auto& op) { op.num_groups = 0; }, "num_groups is 0");
  refused(norm, [&](auto& op) { op.activation = 9; }, "activation is 9");
  refused(norm, [&](auto& op) { op.epsilon = -1; }, "epsilon is -1");
  refused(norm, [&](auto& op) { op.weight = mesh.alloc(shape({1, 5})); }, "weight is [1,5]: must be [..,6]");
  refused(norm, [&](auto& op) { op.bias = mesh.alloc(shape({6, 1})); }, "bias is [6,1]");
  refused(norm, [&](auto& op) { op.stats = mesh.alloc(row_major(shape({4, 1, 2, 8}), DType::float32)); }, "must be [parts,1,2,9]");
  refused(norm, [&](auto& op) { op.stats = mesh.alloc(row_major(shape({4, 1, 2, 9}), DType::bfloat16)); }, "must be [parts,1,2,9] float32");
  refused(norm, [&](auto& op) { op.output = x; }, "shares its memory");
  refused(norm, [&](auto& op) { op.h.present = 1; }, "present is 0x1");
  const auto stats = stats_op(x, 3);
  const auto given = [](uint32_t bits, uint32_t h, uint32_t axis_h, uint32_t w, uint32_t axis_w) {
    return [=](auto& op) { op.h.present = bits, op.logical_h = h, op.axis_h = axis_h, op.logical_w = w, op.axis_w = axis_w; };
  };
  refused(stats, given(MR_HAS_LOGICAL_H, 7, 0, 0, 0), "logical_h is 7: must be 1..6");
  refused(stats, given(MR_HAS_LOGICAL_H, 0, 0, 0, 0), "logical_h is 0");
  refused(stats, given(MR_HAS_LOGICAL_W, 0, 0, 9, 1), "logical_w is 9: must be 1..8");
  refused(stats, given(MR_HAS_LOGICAL_W, 0, 0, 8, 2), "axis_w is 2");
  refused(stats, given(uint32_t{MR_HAS_LOGICAL_H} | uint32_t{MR_HAS_LOGICAL_W}, 6, 1, 8, 1), "must be two axes");
  refused(stats, given(4, 0, 0, 0, 0), "present is 0x4");
  refused(stats, [&](auto& op) { op.input = mesh.alloc(row_major(shape({2, 6, 6}), DType::float32)), op.h.present = MR_HAS_LOGICAL_H, op.logical_h = 1; }, "logical_h is given");
  refused(stats, [&](auto& op) { op.output = mesh.alloc(row_major(shape({1, 1, 2, 9}), DType::bfloat16)); }, "output is [1,1,2,9] bfloat16");
}
