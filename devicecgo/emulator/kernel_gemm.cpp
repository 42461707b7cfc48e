#include "kernel_gemm.h"

#include <algorithm>

#include "kernel_floats.h"

#define MESHRUN_KERNEL_CORE "kernel_gemm_core.h"
#include "kernel_targets.h"

namespace meshrun::emu::gemm {
namespace {

// Calls fn with a pointer to element `index` of the source, of its own type.
template <class Fn>
void with_type(const Source& source, size_t index, Fn fn) {
  if (is_bfloat16(source.view.dtype))
    fn(source.view.as<uint16_t>() + source.offset + index);
  else
    fn(source.view.as<float>() + source.offset + index);
}

}  // namespace

void multiply(size_t rows, size_t depth, size_t count, Matrix a, const float* b, float* c, size_t c_stride,
              bool accumulate) {
  MESHRUN_BEST(multiply_run)(rows, depth, count, a, b, c, c_stride, accumulate);
}

void pack(const Source& source, size_t row, size_t depth, size_t column, size_t columns, float* to) {
  for (size_t done = 0; done < columns; done += kPanel, to += depth * kPanel) {
    const size_t width = std::min(kPanel, columns - done);
    const size_t first = column + done;
    const size_t index = source.transposed ? first * source.stride + row : row * source.stride + first;
    with_type(source, index, [&](auto* from) {
      using T = std::remove_cvref_t<decltype(*from)>;
      const auto kernel = source.transposed ? MESHRUN_BEST(pack_transposed<T>) : MESHRUN_BEST(pack_straight<T>);
      kernel(from, source.stride, depth, width, to);
    });
  }
}

void multiply_few(size_t rows, size_t depth, size_t columns, Matrix a, const Source& source, size_t row, size_t column,
                  float* c, size_t c_stride, bool accumulate) {
  if (!accumulate)
    for (size_t r = 0; r < rows; ++r) std::fill_n(c + r * c_stride, columns, 0.0f);
  const size_t index = source.transposed ? column * source.stride + row : row * source.stride + column;
  with_type(source, index, [&](auto* from) {
    using T = std::remove_cvref_t<decltype(*from)>;
    MESHRUN_BEST(few_run<T>)(rows, source.transposed, depth, columns, a, from, source.stride, c, c_stride);
  });
}

}  // namespace meshrun::emu::gemm
