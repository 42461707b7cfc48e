#include "kernel_attention.h"

#include <cmath>
#include <limits>

#include "kernel_floats.h"
#include "kernel_gemm.h"
#include "kernel_runs.h"

namespace meshrun::emu {
namespace {

// Sizes of blocks: the packed keys and values of a block (256 KiB with D = 128) fit the second-level cache, the scores of a
// few queries against them the first.
constexpr size_t kKeys = 256;
constexpr size_t kScoreStride = kKeys + 16;  // apart so far that rows fall into different cache sets
constexpr size_t kQueries = 4 * gemm::kRowGroup;
constexpr size_t kMostQueries = 240;  // of a piece of work, for which keys and values are packed once

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Queries in a piece of work: many, so that packing pays, but not so many that there are too few pieces to share.
size_t queries_per_piece(size_t heads, size_t rows) {
  const size_t wanted = heads * rows / 16 / kQueries * kQueries;
  return std::clamp(wanted, 2 * kQueries, kMostQueries);
}

}  // namespace

Attention::Attention(ConstView q, float scale)
    : q_(q),
      scale_(scale),
      heads_(q.shape.product(0, q.shape.rank - 2)),
      rows_(q.shape.back(1)),
      width_(q.shape.back(0)),
      stride_(gemm::panels(width_) * gemm::kPanel),
      largest_(heads_ * rows_, kLowest),
      sum_(heads_ * rows_),
      values_(heads_ * rows_ * stride_) {}

void Attention::add(ConstView k, ConstView v, size_t valid_keys, Parallel& par) {
  if (valid_keys == 0) return;
  any_key_ = true;
  const size_t slice = k.shape.back(1);
  const size_t block = std::min(kKeys, valid_keys);
  const size_t piece = queries_per_piece(heads_, rows_);
  const size_t pieces = (rows_ + piece - 1) / piece;
  const FloatReader q(q_);
  const size_t grain = std::max<size_t>(1, (size_t{1} << 19) / (piece * valid_keys * width_ + 1));
  par.run(heads_ * pieces, grain, [&](size_t begin, size_t end) {
    const Scratch queries(piece * width_), scores(kQueries * kScoreStride);
    const Scratch keys(gemm::panels(block) * gemm::kPanel * width_), values(block * stride_);
    for (size_t i = begin; i < end; ++i) {
      const size_t head = i / pieces, first = i % pieces * piece, count = std::min(piece, rows_ - first);
      q.copy((head * rows_ + first) * width_, count * width_, queries);
      run::scale(queries, scale_, queries, count * width_);
      const gemm::Source key_columns{k, head * slice * width_, width_, true},
          value_rows{v, head * slice * width_, width_, false};
      for (size_t key = 0; key < valid_keys; key += kKeys) {
        const size_t n = std::min(kKeys, valid_keys - key);
        gemm::pack(key_columns, 0, width_, key, n, keys);
        gemm::pack(value_rows, key, n, 0, width_, values);
        for (size_t row = 0; row < count; row += kQueries) {
          const size_t some = std::min(kQueries, count - row);
          const size_t state = head * rows_ + first + row;
          gemm::multiply(some, width_, gemm::panels(n), {queries + row * width_, width_}, keys, scores, kScoreStride, false);
          for (size_t r = 0; r < some; ++r) add_scores(state + r, scores + r * kScoreStride, n);
          gemm::multiply(some, n, gemm::panels(width_), {scores, kScoreStride}, values, &values_[state * stride_], stride_,
                         true);
        }
      }
    }
  });
}

// Takes a row's scores against n more keys into its state and turns them into weights, relative to the largest score so far.
void Attention::add_scores(size_t row, float* scores, size_t n) {
  const float before = largest_[row];
  const float now = std::max(before, run::largest(scores, n));
  const float shift = now == kLowest ? 0.0f : now;  // -inf - -inf would be no number
  if (now != before) {
    const float shrink = std::exp(before - shift);
    largest_[row] = now;
    sum_[row] *= shrink;
    float* values = &values_[row * stride_];
    run::scale(values, shrink, values, stride_);
  }
  sum_[row] += run::exponentials(scores, shift, n);
}

void Attention::finish(View out, Parallel& par) {
  const FloatWriter writer(out);
  par.run(heads_ * rows_, std::max<size_t>(1, 32768 / (width_ + 1)), [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      float* values = &values_[row * stride_];
      if (any_key_) run::scale(values, 1.0f / sum_[row], values, width_);
      writer.write(row * width_, width_, values);
    }
  });
}

}  // namespace meshrun::emu
