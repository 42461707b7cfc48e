// kernel_matmul.h: matrix products with bias and activation.
#pragma once

#include "parallel.h"
#include "view.h"

namespace meshrun::emu {

// out[..., M, N] = act(a[..., M, K] x w[..., K, N] + bias[..., 1, N]); with transpose_b, w is [..., N, K]. The dims of w and
// bias in front of the matrix broadcast against those of out (as would those of a). An empty bias is none. `activation` is
// MR_ACT_... Sums are float32, in blocks of K whose order depends on the shapes only.
void matmul(ConstView a, ConstView w, ConstView bias, uint32_t activation, bool transpose_b, View out, Parallel& par);

}  // namespace meshrun::emu
