#include "kernel_matmul.h"

#include <algorithm>

#include "kernel_floats.h"
#include "kernel_gemm.h"
#include "kernel_runs.h"

namespace meshrun::emu {
namespace {

// Block sizes. An A block of kRows x kDepth (104 KiB) stays in the second-level cache while panels of B (16 KiB each) pass
// through the first; what is packed for one step (1 MiB of A, 1.5 MiB of B) and the sums (6 MiB) stay in the third.
constexpr size_t kDepth = 256;                // of K
constexpr size_t kDepthStride = kDepth + 16;  // rows of A, apart so far that they fall into different cache sets
constexpr size_t kRows = 96;                  // of A, for one piece of work
constexpr size_t kColumns = 512;              // of B, for one piece of work
constexpr size_t kMostRows = 960;             // of the sums held at a time
constexpr size_t kMostColumns = 1536;

constexpr size_t kPiece = size_t{1} << 20;  // multiplications in a piece of work, if it can be cut so small: some 25 us

// How many units of so much work make a piece.
size_t grain(size_t work) { return std::max<size_t>(1, kPiece / std::max<size_t>(1, work)); }

size_t divide_up(size_t n, size_t by) { return (n + by - 1) / by; }
size_t round_up(size_t n, size_t unit) { return divide_up(n, unit) * unit; }

// The size of the parts when n is cut into as few parts of at most `most` as can be, of about equal size.
size_t even_part(size_t n, size_t most, size_t unit) {
  return n == 0 ? unit : round_up(divide_up(n, divide_up(n, most)), unit);
}

// Product is one matrix product out = act(a x b + bias): rows of a and out that lie one behind the other, and one matrix b.
struct Product {
  FloatReader a;
  size_t a_offset;
  gemm::Source b;
  ConstView bias;
  uint32_t activation;
  FloatWriter out;
  Shape out_shape;   // of the whole output, against which the bias broadcasts
  size_t first_row;  // of the whole output
  size_t rows, depth, columns;
  size_t a_stride = depth;          // from a row of a to the next
  const float* before = nullptr;    // what the sums are added to: as out, in float32

  // Part of the sums, and the part of K that is added to it in one step.
  struct Block {
    size_t row, rows;
    size_t column, columns;
    size_t k, depth;
  };

  // Adds the bias to the finished sums of a block, activates, and stores.
  void store(const Block& block, float* sums, size_t stride) const {
    BroadcastRow bias_row(bias, out_shape, columns);
    for (size_t r = 0; r < block.rows; ++r) {
      const size_t index = first_row + block.row + r;
      float* run = sums + r * stride;
      if (before != nullptr) add_f32(run, before + index * columns + block.column, block.columns);
      if (bias_row) add_f32(run, bias_row.row(index, block.column, block.columns), block.columns);
      if (activation != MR_ACT_NONE) run::activation(activation, run, run, block.columns);
      out.write(index * columns + block.column, block.columns, run);
    }
  }

  void run_packed(Parallel& par) const {
    const size_t part_rows = even_part(rows, kMostRows, gemm::kRowGroup);
    const size_t part_columns = even_part(columns, kMostColumns, gemm::kPanel);
    const size_t part_depth = even_part(depth, kDepth, 8);
    const Scratch a_rows(part_rows * kDepthStride), b_panels(part_depth * part_columns), sums(part_rows * part_columns);
    for (size_t row = 0; row < rows; row += part_rows)
      for (size_t column = 0; column < columns; column += part_columns)
        for (size_t k = 0; k < depth; k += part_depth) {
          const Block block{row, std::min(part_rows, rows - row), column, std::min(part_columns, columns - column),
                            k,   std::min(part_depth, depth - k)};
          pack(block, a_rows, b_panels, par);
          multiply(block, a_rows, b_panels, sums, part_columns, par);
        }
  }

  void pack(const Block& block, float* a_rows, float* b_panels, Parallel& par) const {
    // One list of pieces: first groups of rows of A, then panels of B, so that both are spread in one go.
    constexpr size_t kGroup = 16;
    const size_t groups = divide_up(block.rows, kGroup), panels = gemm::panels(block.columns);
    par.run(groups + panels, 8, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < std::min(end, groups); ++i)
        for (size_t r = i * kGroup; r < std::min(block.rows, (i + 1) * kGroup); ++r)
          a.copy(a_offset + (block.row + r) * a_stride + block.k, block.depth, a_rows + r * kDepthStride);
      for (size_t i = std::max(begin, groups); i < end; ++i) {
        const size_t first = (i - groups) * gemm::kPanel, width = std::min(gemm::kPanel, block.columns - first);
        gemm::pack(b, block.k, block.depth, block.column + first, width, b_panels + first * block.depth);
      }
    });
  }

  void multiply(const Block& block, const float* a_rows, const float* b_panels, float* sums, size_t stride,
                Parallel& par) const {
    const size_t part = even_part(block.columns, kColumns, gemm::kPanel);
    const size_t down = divide_up(block.rows, kRows), across = divide_up(block.columns, part);
    par.run(down * across, grain(kRows * part * block.depth), [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        const size_t r = i / across * kRows, c = i % across * part;
        const Block piece{block.row + r,    std::min(kRows, block.rows - r),
                          block.column + c, std::min(part, block.columns - c),
                          block.k,          block.depth};
        float* to = sums + r * stride + c;
        gemm::multiply(piece.rows, piece.depth, gemm::panels(piece.columns), {a_rows + r * kDepthStride, kDepthStride},
                       b_panels + c * block.depth, to, stride, block.k != 0);
        if (block.k + block.depth == depth) store(piece, to, stride);
      }
    });
  }

  // For few rows: B is read where it lies.
  void run_few(Parallel& par) const {
    const Scratch a_rows(rows * depth);
    for (size_t r = 0; r < rows; ++r) a.copy(a_offset + r * a_stride, depth, a_rows + r * depth);
    const size_t part = even_part(columns, kColumns, gemm::kPanel);
    par.run(divide_up(columns, part), grain(rows * depth * part), [&](size_t begin, size_t end) {
      const Scratch sums(rows * part);
      for (size_t i = begin; i < end; ++i) {
        const Block block{0, rows, i * part, std::min(part, columns - i * part), 0, depth};
        for (size_t k = 0; k < depth; k += kDepth)
          gemm::multiply_few(rows, std::min(kDepth, depth - k), block.columns, {a_rows + k, depth}, b, k, block.column, sums,
                             part, k != 0);
        store(block, sums, part);
      }
    });
  }

  void run(Parallel& par) const {
    if (rows <= gemm::kFewRows)
      run_few(par);
    else
      run_packed(par);
  }
};

}  // namespace

void matmul(ConstView a, ConstView w, ConstView bias, uint32_t activation, bool transpose_b, View out, Parallel& par) {
  const size_t rows = out.shape.back(1), columns = out.shape.back(0), depth = a.shape.back(0);
  const Walk<2> batches = broadcast<2>(out.shape, {a.shape, w.shape}, 2);
  if (out.shape.elements() == 0) return;
  if (depth == 0) throw std::invalid_argument("matmul: K is 0");
  const auto product = [&](size_t first_row, size_t count, size_t a_matrix, size_t w_matrix) {
    return Product{.a = FloatReader(a),
                   .a_offset = a_matrix * rows * depth,
                   .b = {w, w_matrix * depth * columns, transpose_b ? depth : columns, transpose_b},
                   .bias = bias,
                   .activation = activation,
                   .out = FloatWriter(out),
                   .out_shape = out.shape,
                   .first_row = first_row,
                   .rows = count,
                   .depth = depth,
                   .columns = columns,
                   .a_stride = depth,
                   .before = nullptr};
  };
  // Matrices of A that lie one behind the other and meet the same B are one taller matrix.
  const size_t run = batches.run();
  const bool stacked = run > 1 && batches.step(0) == 1 && batches.step(1) == 0;
  const size_t height = stacked ? rows * run : rows;
  const size_t count = stacked ? batches.runs() : batches.elements();
  const auto nth = [&](size_t i) {
    const auto [a_matrix, w_matrix] = batches.element(stacked ? i * run : i);
    return product(i * height, height, a_matrix, w_matrix);
  };
  // Small products are spread whole, large ones each by itself.
  const size_t work = height * depth * columns;
  if (count > 1 && work < 4 * kPiece) {
    Serial serial;
    par.run(count, grain(work), [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) nth(i).run(serial);
    });
  } else {
    for (size_t i = 0; i < count; ++i) nth(i).run(par);
  }
}

void matmul_part(const MatmulPart& p, float* out, bool add, Parallel& par) {
  if (p.rows == 0 || p.columns == 0) return;
  Shape shape;
  shape.rank = 2;
  shape.dims = {static_cast<uint32_t>(p.rows), static_cast<uint32_t>(p.columns)};
  Product{.a = FloatReader(p.a),
          .a_offset = p.a_offset,
          .b = {p.w, p.w_offset, p.w_stride, false},
          .bias = {},
          .activation = MR_ACT_NONE,
          .out = FloatWriter(View{out, DType::float32, shape}),
          .out_shape = shape,
          .first_row = 0,
          .rows = p.rows,
          .depth = p.depth,
          .columns = p.columns,
          .a_stride = p.a_stride,
          .before = add ? out : nullptr}
      .run(par);
}

void matmul_finish(const float* sums, ConstView bias, uint32_t activation, View out, Parallel& par) {
  const size_t columns = out.shape.back(0);
  const FloatWriter writer(out);
  par.run(out.shape.elements() / columns, std::max<size_t>(1, 32768 / columns), [&](size_t begin, size_t end) {
    BroadcastRow bias_row(bias, out.shape, columns);
    const Scratch row(columns);
    for (size_t i = begin; i < end; ++i) {
      std::memcpy(row, sums + i * columns, columns * sizeof(float));
      if (bias_row) add_f32(row, bias_row.row(i, 0, columns), columns);
      if (activation != MR_ACT_NONE) run::activation(activation, row, row, columns);
      writer.write(i * columns, columns, row);
    }
  });
}

}  // namespace meshrun::emu
