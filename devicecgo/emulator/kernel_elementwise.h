// kernel_elementwise.h: operations on one element at a time, and conversion of data types.
#pragma once

#include "parallel.h"
#include "view.h"

namespace meshrun::emu {

// out = a (kind) b, MR_BINARY_...; dims of size 1 and missing leading dims broadcast, in either operand. out may be a or b
// itself where the shapes are equal.
void binary(uint32_t kind, ConstView a, ConstView b, View out, Parallel& par);
void binary_scalar(uint32_t kind, ConstView a, float scalar, View out, Parallel& par);

// out = in + x * y; all three broadcast against out.
void addcmul(ConstView in, ConstView x, ConstView y, View out, Parallel& par);

// MR_ACT_...; in and out have the same number of elements.
void activation(uint32_t kind, ConstView in, View out, Parallel& par);

// Copies in to out, in row-major order, between any two of bfloat16, float32, uint32, int32, uint16, uint8.
//  - to float32 or bfloat16: nearest, ties to even, rounded once;
//  - float to integer: towards zero; what lies outside the range becomes the nearest limit, NaN becomes 0;
//  - integer to integer: what lies outside the range becomes the nearest limit.
void convert(ConstView in, View out, Parallel& par);

}  // namespace meshrun::emu
