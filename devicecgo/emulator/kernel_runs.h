// kernel_runs.h: arithmetic on contiguous runs of float32, which the kernels are put together from. They widen what they
// read and round what they write with kernel_reduce.h, a piece that fits the first-level cache at a time. Outputs may be
// inputs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace meshrun::emu::run {

void binary(uint32_t kind, const float* a, const float* b, float* out, size_t n);              // MR_BINARY_...
void multiply_add(const float* x, const float* y, const float* addend, float* out, size_t n);  // out = x * y + addend
void scale(const float* x, float factor, float* out, size_t n);                                // out = x * factor
void activation(uint32_t kind, const float* x, float* out, size_t n);                          // MR_ACT_...
void standardise(const float* x, float mean, float factor, float* out, size_t n);              // out = (x - mean) * factor

// out = x*cos + rotate(x)*sin, see kernel_rope.h
void rotate(uint32_t mode, const float* x, const float* cos, const float* sin, float* out, size_t n);

// Sums have many accumulators, in an order that depends on n only.
float sum(const float* x, size_t n);
float sum_of_squares(const float* x, float centre, size_t n);  // of x - centre

float largest(const float* x, size_t n);              // NaN is passed over; -inf for n = 0
float exponentials(float* x, float shift, size_t n);  // x = exp(x - shift); returns their sum

}  // namespace meshrun::emu::run
