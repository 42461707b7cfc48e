#include "kernel_runs.h"

#include "meshrun_driver.h"

#define MESHRUN_KERNEL_CORE "kernel_runs_core.h"
#include "kernel_targets.h"

namespace meshrun::emu::run {

void binary(uint32_t kind, const float* a, const float* b, float* out, size_t n) {
  MESHRUN_BEST(binary_run)(kind, a, b, out, n);
}

void multiply_add(const float* x, const float* y, const float* addend, float* out, size_t n) {
  MESHRUN_BEST(multiply_add_run)(x, y, addend, out, n);
}

void scale(const float* x, float factor, float* out, size_t n) { MESHRUN_BEST(scale_run)(x, factor, out, n); }

void activation(uint32_t kind, const float* x, float* out, size_t n) { MESHRUN_BEST(activation_run)(kind, x, out, n); }

void standardise(const float* x, float mean, float factor, float* out, size_t n) {
  MESHRUN_BEST(standardise_run)(x, mean, factor, out, n);
}

void rotate(uint32_t mode, const float* x, const float* cos, const float* sin, float* out, size_t n) {
  MESHRUN_BEST(rotate_run)(mode, x, cos, sin, out, n);
}

float sum(const float* x, size_t n) { return MESHRUN_BEST(sum_run)(x, n); }

float sum_of_squares(const float* x, float centre, size_t n) { return MESHRUN_BEST(sum_of_squares_run)(x, centre, n); }

float largest(const float* x, size_t n) { return MESHRUN_BEST(largest_run)(x, n); }

float exponentials(float* x, float shift, size_t n) { return MESHRUN_BEST(exponentials_run)(x, shift, n); }

}  // namespace meshrun::emu::run
