// kernel_runs_core.h: the loops of kernel_runs.h, compiled once per instruction set (see kernel_targets.h).

#include "kernel_simd.h"

#include "kernel_math_core.h"

// ---- one result for each element ----

template <class Function>
MESHRUN_INLINE void map(const float* x, float* out, size_t n, Function function) {
  sweep(n, [=](size_t i, auto part) { part.store(out + i, function(part.load(x + i))); });
}

template <class Function>
MESHRUN_INLINE void map(const float* x, const float* y, float* out, size_t n, Function function) {
  sweep(n, [=](size_t i, auto part) { part.store(out + i, function(part.load(x + i), part.load(y + i))); });
}

void binary_run(uint32_t kind, const float* a, const float* b, float* out, size_t n) {
  switch (kind) {
    case MR_BINARY_ADD:
      return map(a, b, out, n, [=](Floats x, Floats y) { return x + y; });
    case MR_BINARY_SUB:
      return map(a, b, out, n, [=](Floats x, Floats y) { return x - y; });
    default:
      return map(a, b, out, n, [=](Floats x, Floats y) { return x * y; });
  }
}

void multiply_add_run(const float* x, const float* y, const float* addend, float* out, size_t n) {
  sweep(n, [=](size_t i, auto part) {
    part.store(out + i, multiply_add(part.load(x + i), part.load(y + i), part.load(addend + i)));
  });
}

void scale_run(const float* x, float factor, float* out, size_t n) {
  map(x, out, n, [=](Floats v) { return v * factor; });
}

void activation_run(uint32_t kind, const float* x, float* out, size_t n) {
  switch (kind) {
    case MR_ACT_GELU:
      return map(x, out, n, [=](Floats v) { return gelu(v); });
    case MR_ACT_GELU_TANH:
      return map(x, out, n, [=](Floats v) { return gelu_tanh(v); });
    case MR_ACT_SILU:
      return map(x, out, n, [=](Floats v) { return silu(v); });
    case MR_ACT_RELU:
      return map(x, out, n, [=](Floats v) { return relu(v); });
    case MR_ACT_SIGMOID:
      return map(x, out, n, [=](Floats v) { return sigmoid(v); });
    case MR_ACT_TANH:
      return map(x, out, n, [=](Floats v) { return hyperbolic_tangent(v); });
    default:
      return map(x, out, n, [=](Floats v) { return v; });
  }
}

void standardise_run(const float* x, float mean, float factor, float* out, size_t n) {
  map(x, out, n, [=](Floats v) { return (v - mean) * factor; });
}

MESHRUN_INLINE Floats swap_pairs(Floats x) {
#ifdef MESHRUN_SIMD_AVX2
  return reinterpret_cast<Floats>(_mm256_permute_ps(reinterpret_cast<__m256>(x), 0b10110001));
#else
  return Floats{x[1], x[0], x[3], x[2]};
#endif
}

void rotate_run(uint32_t mode, const float* x, const float* cos, const float* sin, float* out, size_t n) {
  if (mode == MR_ROPE_INTERLEAVED) {
    Words minus_even{};
    for (size_t lane = 0; lane < kLanes; lane += 2) minus_even[lane] = 0x80000000u;
    sweep(n, [=](size_t i, auto part) {
      const Floats v = part.load(x + i);
      const Floats rotated = floats(bits(swap_pairs(v)) ^ minus_even);
      part.store(out + i, multiply_add(rotated, part.load(sin + i), v * part.load(cos + i)));
    });
  } else {
    const size_t half = n / 2;
    sweep(half, [=](size_t i, auto part) {
      const Floats a = part.load(x + i), b = part.load(x + half + i);
      part.store(out + i, multiply_add(-b, part.load(sin + i), a * part.load(cos + i)));
      part.store(out + half + i, multiply_add(a, part.load(sin + half + i), b * part.load(cos + half + i)));
    });
  }
}

// ---- one result for a run ----

// Adds up term(i, part) over the run: four vectors of sums take turns, which also hides the latency of an addition.
template <class Term>
MESHRUN_INLINE float add_up(size_t n, Term term) {
  Floats sums[4] = {};
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) sums[j] += term(i + j * kLanes, Whole{});
  }
  for (; i + kLanes <= n; i += kLanes) sums[0] += term(i, Whole{});
  if (i < n) sums[1] += term(i, Part{n - i});
  const Floats lanes = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  float total = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) total += lanes[lane];
  return total;
}

float sum_run(const float* x, size_t n) {
  return add_up(n, [=](size_t i, auto part) { return part.load(x + i); });
}

float sum_of_squares_run(const float* x, float centre, size_t n) {
  const size_t whole = n - n % kLanes;
  float total = add_up(whole, [=](size_t i, auto part) {
    const Floats d = part.load(x + i) - centre;
    return d * d;
  });
  for (size_t i = whole; i < n; ++i) total += (x[i] - centre) * (x[i] - centre);  // the fill of a partial load is not data
  return total;
}

float largest_run(const float* x, size_t n) {
  Floats most = all(-std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) most = larger(Whole{}.load(x + i), most);
  float result = -std::numeric_limits<float>::infinity();
  for (size_t lane = 0; lane < kLanes; ++lane) result = most[lane] > result ? most[lane] : result;
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

float exponentials_run(float* x, float shift, size_t n) {
  Floats sums{};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Floats e = exponential(Whole{}.load(x + i) - shift);
    Whole{}.store(x + i, e);
    sums += e;
  }
  float total = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) total += sums[lane];
  if (i < n) {
    const Part rest{n - i};
    rest.store(x + i, exponential(rest.load(x + i) - shift));
    for (; i < n; ++i) total += x[i];
  }
  return total;
}
