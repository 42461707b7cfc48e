// kernel_conv3d.h: convolution over T, H and W of a row-major [N, T, H, W, C] tensor.
#pragma once

#include <array>

#include "parallel.h"
#include "view.h"

namespace meshrun::emu {

struct Conv3d {
  using Sides = std::array<uint32_t, 3>;  // T, H, W
  Sides kernel{1, 1, 1}, stride{1, 1, 1}, padding{}, dilation{1, 1, 1};
  uint32_t groups = 1;
  bool replicate = false;
};

// HaloSticks says where a compact halo [sticks, C] keeps the pixels round an interior of outer x h x w: H-top, H-bottom, W-left, W-right.
// H parts are outer, pad row, column; W parts are outer, pad column, row (the H-padded ones).
struct HaloSticks {
  size_t outer = 1, h = 1, w = 1;
  size_t top = 0, bottom = 0, left = 0, right = 0;  // pads

  size_t rows() const { return top + h + bottom; }
  size_t count() const { return outer * ((top + bottom) * w + (left + right) * rows()); }
  // The stick of a pixel outside of the interior; (0, 0) is the interior's first pixel.
  size_t at(size_t o, int64_t row, int64_t column) const {
    size_t begin = 0;
    const auto is = [](int64_t i, size_t end) { return i >= 0 && i < static_cast<int64_t>(end); };
    if (is(column, w)) {
      if (row < 0) return (o * top + static_cast<size_t>(row + static_cast<int64_t>(top))) * w + static_cast<size_t>(column);
      begin = outer * top * w;
      return begin + (o * bottom + static_cast<size_t>(row) - h) * w + static_cast<size_t>(column);
    }
    begin = outer * (top + bottom) * w;
    const size_t padded_row = static_cast<size_t>(row + static_cast<int64_t>(top));
    if (column < 0) return begin + (o * left + static_cast<size_t>(column + static_cast<int64_t>(left))) * rows() + padded_row;
    return begin + (outer * left + o * right + static_cast<size_t>(column) - w) * rows() + padded_row;
  }
};

// Outputs [begin, end) in H and in W, of every frame.
struct OutputBox {
  std::array<size_t, 2> begin{}, end{};  // H, W
  static OutputBox whole(const Shape& out) { return {{0, 0}, {out.dims[2], out.dims[3]}}; }
  size_t pixels() const { return (end[0] - begin[0]) * (end[1] - begin[1]); }
};

// out[N, To, Ho, Wo, O] = x * weight[taps * C/groups, O] + bias, for the outputs of the box. Empty views of bias and halo are none; with a
// halo H and W are padded by it, whatever the mode. Sums are float32. An element's terms are added in the order of the weight's rows, those
// of the padding included, in blocks that depend on the number of these rows only: so the result does not depend on the box, on the other
// extents, or on where a padding comes from.
void conv3d(const Conv3d& conv, ConstView x, ConstView weight, ConstView bias, ConstView halo, const OutputBox& box, View out, Parallel& par);

}  // namespace meshrun::emu
