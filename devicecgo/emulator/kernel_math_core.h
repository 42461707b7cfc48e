// kernel_math_core.h: exponential and activations on vectors, for kernel cores (see kernel_targets.h). The polynomials are
// own minimax fits. All functions keep NaN.

template <size_t N>
MESHRUN_INLINE Floats polynomial(Floats x, const float (&coefficients)[N]) {  // highest power first
  Floats y = all(coefficients[0]);
#pragma GCC unroll 16
  for (size_t i = 1; i < N; ++i) y = multiply_add(y, x, all(coefficients[i]));
  return y;
}

// e^x with a relative error below 1.2e-7. Results below the smallest normal number are 0.
MESHRUN_INLINE Floats exponential(Floats x) {
  // x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits; ln 2 is split
  // so that n times its upper part is exact.
  const Floats shifted = multiply_add(x, all(1.44269504f), all(12582912.0f));
  const Floats n = shifted - 12582912.0f;
  Floats r = multiply_add(n, all(-0.693359375f), x);
  r = multiply_add(n, all(2.12194440e-4f), r);
  static constexpr float kP[] = {0.00139504753f, 0.00836888908f, 0.0416662060f, 0.166665188f, 0.5f};
  const Floats p = 1.0f + multiply_add(r * r, polynomial(r, kP), r);
  Floats y = floats(bits(p) + (bits(shifted) << 23));  // p * 2^n
  y = x < -87.3365402f ? all(0.0f) : y;
  y = x > 88.7228394f ? all(std::numeric_limits<float>::infinity()) : y;
  return x == x ? y : x;
}

MESHRUN_INLINE Floats relu(Floats x) { return x < 0.0f ? all(0.0f) : x; }

MESHRUN_INLINE Floats sigmoid(Floats x) { return 1.0f / (1.0f + exponential(-x)); }

MESHRUN_INLINE Floats silu(Floats x) { return x / (1.0f + exponential(-x)); }

MESHRUN_INLINE Floats hyperbolic_tangent(Floats x) {
  const Floats size = absolute(x);
  const Floats square = x * x;
  static constexpr float kP[] = {-0.00560391101f, 0.0205517163f, -0.0537141062f, 0.133311528f, -0.333332721f};
  const Floats near_zero = multiply_add(x * square, polynomial(square, kP), x);
  const Floats far = 1.0f - 2.0f / (1.0f + exponential(size + size));
  const Floats sign = floats(bits(x) & 0x80000000u);
  return size < 0.64f ? near_zero : floats(bits(far) | bits(sign));
}

// x * Phi(x) = x/2 * erfc(-x / sqrt 2). With z = |x| / sqrt 2 and t = 1 / (1 + 0.35 z): erfc(z) = t P(t) e^(-z*z), which
// keeps its relative accuracy in the tail, where 1 + erf would cancel.
MESHRUN_INLINE Floats gelu(Floats x) {
  Floats size = absolute(x);
  size = size > 20.0f ? all(20.0f) : size;  // where erfc is 0, and the square finite
  const Floats t = 1.0f / multiply_add(size, all(0.35f * 0.707106781f), all(1.0f));
  static constexpr float kP[] = {0.0386861404f, -0.160523134f, 0.185335842f, -0.0330618873f, 0.0916536361f,
                                 0.143443352f,  0.152128768f,  0.187689510f, 0.197165488f,   0.197482293f};
  const Floats square = size * size;
  const Floats lost = multiply_add(size, size, -square);  // what rounding took from the square; 0 without fused instructions
  const Floats gauss = exponential(-0.5f * square) * multiply_add(lost, all(-0.5f), all(1.0f));
  const Floats half_erfc = 0.5f * t * polynomial(t, kP) * gauss;
  return x * (x < 0.0f ? half_erfc : 1.0f - half_erfc);
}

// x/2 * (1 + tanh u) = x * sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3)
MESHRUN_INLINE Floats gelu_tanh(Floats x) {
  const Floats u = 0.797884561f * x * multiply_add(x * x, all(0.044715f), all(1.0f));
  return x * sigmoid(u + u);
}
