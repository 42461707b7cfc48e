// kernel_gemm_core.h: the loops of kernel_gemm.h, compiled once per instruction set (see kernel_targets.h).

#include "kernel_simd.h"

constexpr size_t kVectors = gemm::kPanel / kLanes;  // vectors in a row of a panel

// Rows x kPanel elements of C stay in registers while k runs: with 6 rows and two vectors a row, 12 of AVX2's 16 registers,
// and enough independent sums to keep two multiply-add units busy.
template <size_t Rows>
void tile(size_t depth, gemm::Matrix a, const float* b, float* c, size_t c_stride, bool accumulate) {
  const Whole whole;
  Floats sums[Rows][kVectors] = {};
  for (size_t k = 0; k < depth; ++k) {
    Floats row[kVectors];
#pragma GCC unroll 8
    for (size_t v = 0; v < kVectors; ++v) row[v] = whole.load(b + k * gemm::kPanel + v * kLanes);
#pragma GCC unroll 8
    for (size_t r = 0; r < Rows; ++r) {
      const Floats factor = all(a.data[r * a.stride + k]);
#pragma GCC unroll 8
      for (size_t v = 0; v < kVectors; ++v) sums[r][v] = multiply_add(factor, row[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (size_t v = 0; v < kVectors; ++v) {
      float* to = c + r * c_stride + v * kLanes;
      whole.store(to, accumulate ? whole.load(to) + sums[r][v] : sums[r][v]);
    }
}

void multiply_run(size_t rows, size_t depth, size_t count, gemm::Matrix a, const float* b, float* c, size_t c_stride,
                  bool accumulate) {
  static constexpr decltype(&tile<1>) kTiles[] = {tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>};
  for (size_t p = 0; p < count; ++p) {
    // The panel stays in the first-level cache while the rows go by.
    for (size_t r = 0; r < rows; r += gemm::kRowGroup) {
      const size_t group = rows - r < gemm::kRowGroup ? rows - r : gemm::kRowGroup;
      kTiles[group - 1](depth, {a.data + r * a.stride, a.stride}, b + p * depth * gemm::kPanel,
                        c + r * c_stride + p * gemm::kPanel, c_stride, accumulate);
    }
  }
}

// One panel from rows of the source: `from` is its first element, `columns` of kPanel exist.
template <class T>
void pack_straight(const T* from, size_t stride, size_t depth, size_t columns, float* to) {
  for (size_t k = 0; k < depth; ++k, from += stride, to += gemm::kPanel) {
    if (columns == gemm::kPanel) {
#pragma GCC unroll 8
      for (size_t v = 0; v < kVectors; ++v) Whole{}.store(to + v * kLanes, Whole{}.load(from + v * kLanes));
    } else {
      for (size_t v = 0; v < kVectors; ++v) {
        const size_t done = v * kLanes;
        const size_t left = columns > done ? columns - done : 0;
        Whole{}.store(to + done, left >= kLanes ? Whole{}.load(from + done) : Part{left}.load(from + done));
      }
    }
  }
}

// Makes columns of rows: afterwards vector i holds what was in lane i of each.
MESHRUN_INLINE void transpose(Floats (&m)[kLanes]) {
#ifdef MESHRUN_SIMD_AVX2
  __m256 a[8], b[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) a[i] = reinterpret_cast<__m256>(m[i]);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    b[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    a[4 * i] = _mm256_shuffle_ps(b[4 * i], b[4 * i + 2], 0x44);
    a[4 * i + 1] = _mm256_shuffle_ps(b[4 * i], b[4 * i + 2], 0xee);
    a[4 * i + 2] = _mm256_shuffle_ps(b[4 * i + 1], b[4 * i + 3], 0x44);
    a[4 * i + 3] = _mm256_shuffle_ps(b[4 * i + 1], b[4 * i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    m[i] = reinterpret_cast<Floats>(_mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
    m[i + 4] = reinterpret_cast<Floats>(_mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
  }
#else
  for (size_t i = 0; i < kLanes; ++i)
    for (size_t j = i + 1; j < kLanes; ++j) {
      const float t = m[i][j];
      m[i][j] = m[j][i];
      m[j][i] = t;
    }
#endif
}

// One panel from columns of the source, which are its rows in memory.
template <class T>
void pack_transposed(const T* from, size_t stride, size_t depth, size_t columns, float* to) {
  for (size_t c = 0; c < gemm::kPanel; c += kLanes) {
    const size_t lines = columns <= c ? 0 : columns - c < kLanes ? columns - c : kLanes;
    sweep(depth, [=](size_t k, auto part) {
      Floats m[kLanes];
#pragma GCC unroll 8
      for (size_t i = 0; i < kLanes; ++i) m[i] = i < lines ? part.load(from + (c + i) * stride + k) : Floats{};
      transpose(m);
      const size_t rows = depth - k < kLanes ? depth - k : kLanes;
#pragma GCC unroll 8
      for (size_t i = 0; i < kLanes; ++i)
        if (i < rows) Whole{}.store(to + (k + i) * gemm::kPanel + c, m[i]);
    });
  }
}

// ---- few rows: the matrix is read once, where it lies ----

// c[Rows][columns] += factors[Rows][Terms] x from[Terms][columns]
template <size_t Rows, size_t Terms, class T>
MESHRUN_INLINE void add_rows(gemm::Matrix factors, const T* from, size_t stride, size_t columns, float* c, size_t c_stride) {
  sweep(columns, [=](size_t i, auto part) {
    Floats sums[Rows];
#pragma GCC unroll 8
    for (size_t r = 0; r < Rows; ++r) sums[r] = part.load(c + r * c_stride + i);
#pragma GCC unroll 8
    for (size_t t = 0; t < Terms; ++t) {
      const Floats x = part.load(from + t * stride + i);
#pragma GCC unroll 8
      for (size_t r = 0; r < Rows; ++r) sums[r] = multiply_add(all(factors.data[r * factors.stride + t]), x, sums[r]);
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < Rows; ++r) part.store(c + r * c_stride + i, sums[r]);
  });
}

template <size_t Rows, class T>
void few_straight(size_t depth, size_t columns, gemm::Matrix a, const T* from, size_t stride, float* c, size_t c_stride) {
  constexpr size_t kTerms = 8;
  size_t k = 0;
  for (; k + kTerms <= depth; k += kTerms)
    add_rows<Rows, kTerms>({a.data + k, a.stride}, from + k * stride, stride, columns, c, c_stride);
  for (; k < depth; ++k) add_rows<Rows, 1>({a.data + k, a.stride}, from + k * stride, stride, columns, c, c_stride);
}

// Each element is the product of a row of A and a row in memory, with two sums that take turns.
template <size_t Rows, class T>
void few_transposed(size_t depth, size_t columns, gemm::Matrix a, const T* from, size_t stride, float* c, size_t c_stride) {
  for (size_t i = 0; i < columns; ++i, from += stride) {
    Floats sums[2][Rows] = {};
    const auto add = [&](size_t turn, size_t k, auto part) {
      const Floats x = part.load(from + k);
#pragma GCC unroll 8
      for (size_t r = 0; r < Rows; ++r) sums[turn][r] = multiply_add(part.load(a.data + r * a.stride + k), x, sums[turn][r]);
    };
    size_t k = 0;
    for (; k + 2 * kLanes <= depth; k += 2 * kLanes) {
      add(0, k, Whole{});
      add(1, k + kLanes, Whole{});
    }
    sweep(depth - k, [&](size_t j, auto part) { add(0, k + j, part); });
    for (size_t r = 0; r < Rows; ++r) {
      const Floats lanes = sums[0][r] + sums[1][r];
      float total = 0;
      for (size_t lane = 0; lane < kLanes; ++lane) total += lanes[lane];
      c[r * c_stride + i] += total;
    }
  }
}

template <class T>
void few_run(size_t rows, bool transposed, size_t depth, size_t columns, gemm::Matrix a, const T* from, size_t stride,
             float* c, size_t c_stride) {
  static_assert(gemm::kFewRows == 4);
  using Kernel = void (*)(size_t, size_t, gemm::Matrix, const T*, size_t, float*, size_t);
  static constexpr Kernel kKernels[2][gemm::kFewRows] = {
      {few_straight<1, T>, few_straight<2, T>, few_straight<3, T>, few_straight<4, T>},
      {few_transposed<1, T>, few_transposed<2, T>, few_transposed<3, T>, few_transposed<4, T>}};
  kKernels[transposed][rows - 1](depth, columns, a, from, stride, c, c_stride);
}
