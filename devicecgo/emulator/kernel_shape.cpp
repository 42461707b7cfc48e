#include "kernel_shape.h"

#include <algorithm>
#include <cstring>

#include "kernel_copy.h"
#include "kernel_walk.h"

namespace meshrun::emu {
namespace {

constexpr size_t kPieceBytes = size_t{256} << 10;  // about what a piece of work moves

void copy_run(void* to, const void* from, size_t bytes, bool streaming) {
  if (streaming && bytes >= 1024)
    copy_streaming(to, from, bytes);
  else
    std::memcpy(to, from, bytes);
}

// Copies `runs` runs of `bytes`; place(i) says {to, from} of the i-th in bytes.
template <class Place>
void copy_runs(void* to, const void* from, size_t runs, size_t bytes, Parallel& par, Place place) {
  if (bytes == 0) return;
  const bool streaming = runs * bytes >= kStreamBytes;
  // A few long runs are cut, so that there is something to share.
  const size_t cuts = std::max<size_t>(1, bytes / kPieceBytes);
  par.run(runs * cuts, std::max<size_t>(1, kPieceBytes / bytes), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const auto [target, source] = place(i / cuts);
      const size_t cut = i % cuts, first = bytes * cut / cuts, last = bytes * (cut + 1) / cuts;
      copy_run(static_cast<char*>(to) + target + first, static_cast<const char*>(from) + source + first, last - first,
               streaming);
    }
  });
}

struct Place {
  size_t to, from;
};

// out[r][c] = in[c * stride_in + r] for r, c below `rows`, `columns`: a block small enough for the first-level cache.
template <class T>
void transpose_block(T* out, size_t out_stride, const T* in, size_t in_stride, size_t rows, size_t columns) {
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c) out[r * out_stride + c] = in[c * in_stride + r];
}

// A permutation whose runs are not contiguous in the input: `across` is the dim that is.
template <class T>
void transpose(const T* in, T* out, const Walk<2>& walk, uint32_t across, Parallel& par) {
  constexpr size_t kBlock = 64;
  const auto& column = walk.dim(0);
  const auto& row = walk.dim(across);
  const size_t row_blocks = (row.size + kBlock - 1) / kBlock, column_blocks = (column.size + kBlock - 1) / kBlock;
  Walk<2> matrices;  // over all other dims
  for (uint32_t d = 1; d < walk.rank(); ++d)
    if (d != across) matrices.add_dim(walk.dim(d).size, walk.dim(d).strides);
  par.run(matrices.elements() * row_blocks * column_blocks, 16, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const size_t c = i % column_blocks * kBlock, r = i / column_blocks % row_blocks * kBlock;
      const auto [from, to] = matrices.element(i / column_blocks / row_blocks);
      transpose_block(out + to + r * row.strides[1] + c, row.strides[1], in + from + r + c * column.strides[0],
                      column.strides[0], std::min(kBlock, row.size - r), std::min(kBlock, column.size - c));
    }
  });
}

}  // namespace

void slice(ConstView in, const uint32_t* begin, View out, Parallel& par) {
  const size_t width = element_bytes(in.dtype);
  Walk<1> walk;
  size_t first = 0, stride = 1;
  for (uint32_t i = out.shape.rank; i-- > 0;) {
    walk.add_dim(out.shape.dims[i], {stride});
    first += begin[i] * stride;
    stride *= in.shape.dims[i];
  }
  const size_t run = walk.run();
  if (walk.elements() != 0 && walk.rank() != 0 && walk.step(0) != 1) {
    // The innermost dims were cut down to one column: single elements.
    return copy_runs(out.data, in.data, walk.elements(), width, par, [&](size_t i) {
      return Place{i * width, (first + walk.element(i)[0]) * width};
    });
  }
  copy_runs(out.data, in.data, walk.runs(), run * width, par, [&](size_t i) {
    return Place{i * run * width, (first + walk.at(i)[0]) * width};
  });
}

void concat(const ConstView* in, size_t n, uint32_t dim, View out, Parallel& par) {
  const size_t width = element_bytes(out.dtype);
  const size_t outer = out.shape.product(0, dim), row = out.shape.product(dim, out.shape.rank) * width;
  size_t begin = 0;
  for (size_t k = 0; k < n; ++k) {
    const size_t run = in[k].shape.product(dim, in[k].shape.rank) * width;
    copy_runs(out.data, in[k].data, outer, run, par, [=](size_t i) { return Place{i * row + begin, i * run}; });
    begin += run;
  }
}

void permute(ConstView in, const uint32_t* order, View out, Parallel& par) {
  std::array<size_t, MR_MAX_RANK> in_stride{};
  size_t stride = 1;
  for (uint32_t i = in.shape.rank; i-- > 0;) {
    in_stride[i] = stride;
    stride *= in.shape.dims[i];
  }
  Walk<2> walk;  // of the input and of the output
  stride = 1;
  for (uint32_t i = out.shape.rank; i-- > 0;) {
    walk.add_dim(out.shape.dims[i], {in_stride[order[i]], stride});
    stride *= out.shape.dims[i];
  }
  if (walk.elements() == 0) return;
  const size_t width = element_bytes(in.dtype), run = walk.run();
  uint32_t across = 0;
  while (across < walk.rank() && walk.dim(across).strides[0] != 1) ++across;
  if (across == 0 || across == walk.rank()) {
    return copy_runs(out.data, in.data, walk.runs(), run * width, par, [&](size_t i) {
      return Place{i * run * width, walk.at(i)[0] * width};
    });
  }
  switch (width) {
    case 1:
      return transpose(in.as<uint8_t>(), out.as<uint8_t>(), walk, across, par);
    case 2:
      return transpose(in.as<uint16_t>(), out.as<uint16_t>(), walk, across, par);
    default:
      return transpose(in.as<uint32_t>(), out.as<uint32_t>(), walk, across, par);
  }
}

}  // namespace meshrun::emu
