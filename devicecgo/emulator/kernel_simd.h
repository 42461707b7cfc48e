// kernel_simd.h: the vectors that kernel cores are written with. It is compiled once per instruction set (see
// kernel_targets.h), so it has no include guard, and gives 8 lanes with AVX2 and 4 lanes (SSE2, NEON) elsewhere.

#ifdef MESHRUN_SIMD_AVX2
constexpr size_t kLanes = 8;
#else
constexpr size_t kLanes = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));

#define MESHRUN_INLINE [[gnu::always_inline]] inline

MESHRUN_INLINE Words bits(Floats x) { return reinterpret_cast<Words>(x); }
MESHRUN_INLINE Floats floats(Words x) { return reinterpret_cast<Floats>(x); }
MESHRUN_INLINE Floats all(float x) { return x - Floats{}; }  // not x + 0, which loses the sign of -0
MESHRUN_INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }
MESHRUN_INLINE Floats absolute(Floats x) { return floats(bits(x) & 0x7fffffffu); }

MESHRUN_INLINE Floats multiply_add(Floats a, Floats b, Floats c) {
#ifdef MESHRUN_SIMD_AVX2
  return reinterpret_cast<Floats>(
      _mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#else
  return a * b + c;
#endif
}

MESHRUN_INLINE Floats widen(Halves x) {
#ifdef MESHRUN_SIMD_AVX2
  return reinterpret_cast<Floats>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(x)), 16));
#else
  return floats(__builtin_convertvector(x, Words) << 16);
#endif
}

// The upper halves of the words are x as bfloat16, see to_bf16 in bf16.h; the lower halves mean nothing.
MESHRUN_INLINE Words round(Floats x) {
  const Words b = bits(x);
  return x == x ? b + (0x7fffu + (b >> 16 & 1u)) : b | 0x400000u;
}

MESHRUN_INLINE Halves upper_halves(Words x) {
#ifdef MESHRUN_SIMD_AVX2
  const __m256i r = reinterpret_cast<__m256i>(x >> 16);
  return reinterpret_cast<Halves>(_mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1)));
#else
  return __builtin_convertvector(x >> 16, Halves);
#endif
}

// Loads and stores of a whole vector, and of the first n lanes of one. A partial load fills up with zeros.
struct Whole {
  MESHRUN_INLINE Floats load(const float* p) const {
    Floats v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  MESHRUN_INLINE Floats load(const uint16_t* p) const {
    Halves v;
    __builtin_memcpy(&v, p, sizeof v);
    return widen(v);
  }
  MESHRUN_INLINE void store(float* p, Floats v) const { __builtin_memcpy(p, &v, sizeof v); }
  MESHRUN_INLINE void store_rounded(uint16_t* p, Floats v) const {
    const Halves h = upper_halves(round(v));
    __builtin_memcpy(p, &h, sizeof h);
  }
};

struct Part {
  size_t n;
  MESHRUN_INLINE Floats load(const float* p) const {
    Floats v{};
    for (size_t i = 0; i < n; ++i) v[i] = p[i];
    return v;
  }
  MESHRUN_INLINE Floats load(const uint16_t* p) const {
    Halves v{};
    for (size_t i = 0; i < n; ++i) v[i] = p[i];
    return widen(v);
  }
  MESHRUN_INLINE void store(float* p, Floats v) const {
    for (size_t i = 0; i < n; ++i) p[i] = v[i];
  }
  MESHRUN_INLINE void store_rounded(uint16_t* p, Floats v) const {
    const Halves h = upper_halves(round(v));
    for (size_t i = 0; i < n; ++i) p[i] = h[i];
  }
};

// Calls step(i, part) for i = 0, kLanes, 2*kLanes ... < n. The rest goes through the same vector arithmetic, so an element's
// result does not depend on where a run begins or ends.
template <class Step>
MESHRUN_INLINE void sweep(size_t n, Step step) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) step(i, Whole{});
  if (i < n) step(i, Part{n - i});
}

// Two vectors at a time, for loops that round: with AVX2 packing two vectors takes fewer shuffles than one by one.
struct Pair {
  Floats a, b;
};
MESHRUN_INLINE Pair operator+(Pair x, Pair y) { return {x.a + y.a, x.b + y.b}; }

struct Twice {
  MESHRUN_INLINE Pair load(const float* p) const { return {Whole{}.load(p), Whole{}.load(p + kLanes)}; }
  MESHRUN_INLINE Pair load(const uint16_t* p) const { return {Whole{}.load(p), Whole{}.load(p + kLanes)}; }
  MESHRUN_INLINE void store(float* p, Pair v) const {
    Whole{}.store(p, v.a);
    Whole{}.store(p + kLanes, v.b);
  }
  MESHRUN_INLINE void store_rounded(uint16_t* p, Pair v) const {
#ifdef MESHRUN_SIMD_AVX2
    const __m256i a = reinterpret_cast<__m256i>(round(v.a) >> 16), b = reinterpret_cast<__m256i>(round(v.b) >> 16);
    const __m256i h = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0b11011000);
    __builtin_memcpy(p, &h, sizeof h);
#else
    Whole{}.store_rounded(p, v.a);
    Whole{}.store_rounded(p + kLanes, v.b);
#endif
  }
};

template <class Step>
MESHRUN_INLINE void sweep_twice(size_t n, Step step) {
  size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) step(i, Twice{});
  sweep(n - i, [=](size_t j, auto part) { step(i + j, part); });
}
