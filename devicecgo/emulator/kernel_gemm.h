// kernel_gemm.h: the inner part of matrix products, shared by matmul and attention.
//
// multiply() computes C (+)= A x B. A and C are row-major with strides of their own. B is packed into panels of kPanel
// columns, a panel being [depth][kPanel], so that the inner loop reads it in order. Columns are filled up with zeros; C must
// have room for whole panels. For each element the terms are added in the order of k, whatever rows and columns a call has.
#pragma once

#include <cstddef>

#include "view.h"

namespace meshrun::emu::gemm {

constexpr size_t kPanel = 16;    // columns of a panel
constexpr size_t kRowGroup = 6;  // rows that the inner loop works on at a time; rows of a call are best a multiple

constexpr size_t panels(size_t columns) { return (columns + kPanel - 1) / kPanel; }

struct Matrix {
  const float* data;
  size_t stride;
};

// a: [rows][depth]; b: panels [count][depth][kPanel]; c: [rows][count * kPanel] with stride c_stride
void multiply(size_t rows, size_t depth, size_t count, Matrix a, const float* b, float* c, size_t c_stride, bool accumulate);

// Packs rows [row, row + depth) and columns [column, column + columns) of a row-major matrix of bfloat16 or float32 that
// begins at element `offset` and is `stride` wide. Transposed, the matrix is [column][row] in memory.
struct Source {
  ConstView view;
  size_t offset;
  size_t stride;
  bool transposed;
};
void pack(const Source& source, size_t row, size_t depth, size_t column, size_t columns, float* to);

// The product for few rows, 1 to kFewRows, for which packing B would cost more than it saves: c[rows][columns] (+)=
// a[rows][depth] x B[row.., column..].
constexpr size_t kFewRows = 4;
void multiply_few(size_t rows, size_t depth, size_t columns, Matrix a, const Source& source, size_t row, size_t column,
                  float* c, size_t c_stride, bool accumulate);

}  // namespace meshrun::emu::gemm
