// kernel_matmul.h: matrix products with bias and activation.
#pragma once

#include "parallel.h"
#include "view.h"

namespace meshrun::emu {

// out[..., M, N] = act(a[..., M, K] x w[..., K, N] + bias[..., 1, N]); with transpose_b, w is [..., N, K]. The dims of w and
// bias in front of the matrix broadcast against those of out (as would those of a). An empty bias is none. `activation` is
// MR_ACT_... Sums are float32, in blocks of K whose order depends on the shapes only.
void matmul(ConstView a, ConstView w, ConstView bias, uint32_t activation, bool transpose_b, View out, Parallel& par);

// MatmulPart is a piece of a product, for programs that multiply piece by piece: rows of a that lie a_stride elements apart, and a
// [depth, columns] piece of w with rows w_stride apart.
struct MatmulPart {
  ConstView a;
  size_t a_offset, a_stride;
  ConstView w;
  size_t w_offset, w_stride;
  size_t rows, depth, columns;
};
// out [rows][columns], in float32, = or += a x w.
void matmul_part(const MatmulPart& part, float* out, bool add, Parallel& par);
// out = act(sums + bias), rounded once.
void matmul_finish(const float* sums, ConstView bias, uint32_t activation, View out, Parallel& par);

}  // namespace meshrun::emu
