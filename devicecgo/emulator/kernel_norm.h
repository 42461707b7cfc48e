// kernel_norm.h: layer norm and RMS norm over the last dim, whole or in parts.
#pragma once

#include "parallel.h"
#include "view.h"

namespace meshrun::emu {

// out = (x - mean) / sqrt(variance + eps) * weight + bias for MR_NORM_LAYER, x / sqrt(mean square + eps) * weight + bias for
// MR_NORM_RMS. weight and bias broadcast against x; empty = absent. out may be x.
void norm(uint32_t kind, ConstView x, ConstView weight, ConstView bias, float eps, View out, Parallel& par);

// The same over a width that lies in `parts` equal parts, one a device. Each device reduces its part of a row to
// norm_stats_values(kind) floats: RMS {sum of squares}, layer {mean, sum of squared distances from it}.
size_t norm_stats_values(uint32_t kind);

// stats: [rows][norm_stats_values]
void norm_partial(uint32_t kind, ConstView x, float* stats, Parallel& par);

// stats: [rows][parts][norm_stats_values], combined in this order. When out's last dim is narrower than x's, or num_heads >
// 1, the row of width H*D is cut into heads: x [B,1,N,H*D], out [B,H,N,D]. Where cos and sin are given ([1,1,N,D] or
// [1,H,N,D]) each head is rotated, in interleaved pairs, before the one rounding.
void norm_apply(uint32_t kind, ConstView x, const float* stats, uint32_t parts, ConstView weight, ConstView bias, float eps,
                uint32_t num_heads, ConstView cos, ConstView sin, View out, Parallel& par);

}  // namespace meshrun::emu
