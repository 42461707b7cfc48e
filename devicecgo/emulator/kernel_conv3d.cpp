#include "kernel_conv3d.h"

#include <algorithm>

#include "kernel_floats.h"
#include "kernel_gemm.h"

namespace meshrun::emu {
namespace {

// Block sizes, as in kernel_matmul.cpp: the pixels that a row of the product is gathered from are its A.
constexpr size_t kDepth = 256;                // of taps x channels
constexpr size_t kDepthStride = kDepth + 16;  // rows apart so far that they fall into different cache sets
constexpr size_t kRows = 96;                  // outputs of one piece of work
constexpr size_t kColumns = 512;              // channels of one piece of work
constexpr size_t kMostRows = 960;             // of the sums held at a time
constexpr size_t kMostColumns = 1536;
constexpr size_t kGroup = 16;                 // outputs that are gathered in one go
constexpr size_t kPiece = size_t{1} << 20;    // multiplications in a piece of work, if it can be cut so small

size_t divide_up(size_t n, size_t by) { return (n + by - 1) / by; }

// The size of the parts when n is cut into as few parts of at most `most` as can be, of about equal size.
size_t even_part(size_t n, size_t most, size_t unit) { return divide_up(divide_up(n, divide_up(n, most)), unit) * unit; }

class Convolution {
 public:
  Convolution(const Conv3d& conv, ConstView x, ConstView weight, ConstView bias, ConstView halo, const OutputBox& box, View out)
      : conv_(conv), x_(x), halo_(halo), bias_(bias), weight_(weight), out_(out), has_halo_(halo), has_bias_(bias), box_(box) {
    const auto& in = x.shape.dims;
    for (size_t i = 0; i < 3; ++i) size_[i] = in[i + 1];
    channels_ = in[4];
    taken_ = channels_ / conv.groups;
    out_channels_ = out.shape.dims[4];
    given_ = out_channels_ / conv.groups;
    for (size_t i = 0; i < 3; ++i) out_size_[i] = out.shape.dims[i + 1];
    box_size_ = {box.end[0] - box.begin[0], box.end[1] - box.begin[1]};
    pixels_ = size_t{in[0]} * out_size_[0] * box.pixels();
    line_ = conv.kernel[2] * taken_;
    depth_ = size_t{conv.kernel[0]} * conv.kernel[1] * line_;
    // Then the taps of a line lie side by side in memory.
    joined_ = conv.groups == 1 && conv.dilation[2] == 1;
    sticks_ = {size_t{in[0]} * in[1], in[2], in[3], conv.padding[1], conv.padding[1], conv.padding[2], conv.padding[2]};
  }

  void run(Parallel& par) const {
    if (pixels_ == 0) return;
    const size_t part_rows = std::min(kMostRows, divide_up(pixels_, gemm::kRowGroup) * gemm::kRowGroup);
    const size_t part_columns = even_part(given_, kMostColumns, gemm::kPanel);
    const size_t part_depth = even_part(depth_, kDepth, 8);
    const Scratch rows(part_rows * kDepthStride), panels(part_depth * part_columns), sums(part_rows * part_columns);
    for (size_t row = 0; row < pixels_; row += part_rows)
      for (size_t group = 0; group < conv_.groups; ++group)
        for (size_t column = 0; column < given_; column += part_columns)
          for (size_t k = 0; k < depth_; k += part_depth) {
            const Block block{group,  row, std::min(part_rows, pixels_ - row), column, std::min(part_columns, given_ - column),
                              k,      std::min(part_depth, depth_ - k)};
            gather(block, rows, panels, par);
            multiply(block, rows, panels, sums, part_columns, par);
          }
  }

 private:
  // Part of the sums of a group, and the part of the taps that is added to it in one step.
  struct Block {
    size_t group;
    size_t row, rows;  // outputs, counted through the box
    size_t column, columns;
    size_t k, depth;
  };
  // Where the first tap of an output lies, which may be in the padding.
  struct Origin {
    size_t n;
    int64_t t, h, w;
  };

  struct Place {
    size_t n, t, h, w;
  };
  Place place(size_t row) const {
    const size_t w = row % box_size_[1], rest = row / box_size_[1];
    const size_t h = rest % box_size_[0], frame = rest / box_size_[0];
    return {frame / out_size_[0], frame % out_size_[0], box_.begin[0] + h, box_.begin[1] + w};
  }
  Origin origin(size_t row) const {
    const Place p = place(row);
    const auto first = [&](size_t at, size_t side) { return static_cast<int64_t>(at * conv_.stride[side]) - static_cast<int64_t>(conv_.padding[side]); };
    return {p.n, first(p.t, 0), first(p.h, 1), first(p.w, 2)};
  }
  bool inside(int64_t at, size_t side) const { return at >= 0 && at < static_cast<int64_t>(size_[side]); }
  int64_t nearest(int64_t at, size_t side) const { return std::clamp<int64_t>(at, 0, static_cast<int64_t>(size_[side]) - 1); }

  // Rows of A, then panels of B, in one list of pieces.
  void gather(const Block& block, float* rows, float* panels, Parallel& par) const {
    const size_t groups = divide_up(block.rows, kGroup), count = gemm::panels(block.columns);
    par.run(groups + count, 8, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < std::min(end, groups); ++i)
        for (size_t r = i * kGroup; r < std::min(block.rows, (i + 1) * kGroup); ++r) gather_row(block, origin(block.row + r), rows + r * kDepthStride);
      for (size_t i = std::max(begin, groups); i < end; ++i) {
        const size_t first = (i - groups) * gemm::kPanel, width = std::min(gemm::kPanel, block.columns - first);
        const gemm::Source source{weight_, 0, out_channels_, false};
        gemm::pack(source, block.k, block.depth, block.group * given_ + block.column + first, width, panels + first * block.depth);
      }
    });
  }

  void gather_row(const Block& block, const Origin& o, float* to) const {
    for (size_t k = block.k; k < block.k + block.depth;) {
      const size_t line = k / line_, within = k % line_, n = std::min(line_ - within, block.k + block.depth - k);
      const int64_t t = o.t + static_cast<int64_t>(line / conv_.kernel[1] * conv_.dilation[0]);
      const int64_t h = o.h + static_cast<int64_t>(line % conv_.kernel[1] * conv_.dilation[1]);
      gather_line(block.group, o, t, h, within, n, to);
      k += n;
      to += n;
    }
  }

  // Terms [within, within + n) of the taps of one line.
  void gather_line(size_t group, const Origin& o, int64_t t, int64_t h, size_t within, size_t n, float* to) const {
    if (!inside(t, 0)) {
      if (!conv_.replicate) return std::fill_n(to, n, 0.0f), void();
      t = nearest(t, 0);
    }
    const size_t frame = o.n * size_[0] + static_cast<size_t>(t);
    if (joined_ && inside(h, 1) && inside(o.w, 2) && inside(o.w + conv_.kernel[2] - 1, 2))
      return x_.copy(pixel(frame, h, o.w) * channels_ + within, n, to);
    for (size_t end = within + n; within < end;) {
      const size_t tap = within / taken_, channel = within % taken_, part = std::min(taken_ - channel, end - within);
      gather_tap(frame, h, o.w + static_cast<int64_t>(tap * conv_.dilation[2]), group * taken_ + channel, part, to);
      within += part;
      to += part;
    }
  }

  void gather_tap(size_t frame, int64_t h, int64_t w, size_t channel, size_t n, float* to) const {
    if (inside(h, 1) && inside(w, 2))
      x_.copy(pixel(frame, h, w) * channels_ + channel, n, to);
    else if (has_halo_)
      halo_.copy(sticks_.at(frame, h, w) * channels_ + channel, n, to);
    else if (conv_.replicate)
      x_.copy(pixel(frame, nearest(h, 1), nearest(w, 2)) * channels_ + channel, n, to);
    else
      std::fill_n(to, n, 0.0f);
  }
  size_t pixel(size_t frame, int64_t h, int64_t w) const { return (frame * size_[1] + static_cast<size_t>(h)) * size_[2] + static_cast<size_t>(w); }

  // Never multiply_few: it adds in another order, and how many rows there are must not matter.
  void multiply(const Block& block, const float* rows, const float* panels, float* sums, size_t stride, Parallel& par) const {
    const size_t part = even_part(block.columns, kColumns, gemm::kPanel);
    const size_t down = divide_up(block.rows, kRows), across = divide_up(block.columns, part);
    const size_t work = kRows * part * block.depth;
    par.run(down * across, std::max<size_t>(1, kPiece / work), [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        const size_t r = i / across * kRows, c = i % across * part;
        const size_t count = std::min(kRows, block.rows - r), columns = std::min(part, block.columns - c);
        float* to = sums + r * stride + c;
        gemm::multiply(count, block.depth, gemm::panels(columns), {rows + r * kDepthStride, kDepthStride}, panels + c * block.depth, to, stride,
                       block.k != 0);
        if (block.k + block.depth == depth_) store(block.row + r, count, block.group * given_ + block.column + c, columns, to, stride);
      }
    });
  }

  void store(size_t row, size_t rows, size_t channel, size_t columns, float* sums, size_t stride) const {
    const Scratch buffer(has_bias_ ? columns : 0);
    const float* bias = has_bias_ ? bias_.read(channel, columns, buffer) : nullptr;
    for (size_t r = 0; r < rows; ++r) {
      const Place p = place(row + r);
      float* run = sums + r * stride;
      if (has_bias_) add_f32(run, bias, columns);
      out_.write((((p.n * out_size_[0] + p.t) * out_size_[1] + p.h) * out_size_[2] + p.w) * out_channels_ + channel, columns, run);
    }
  }

  const Conv3d& conv_;
  FloatReader x_, halo_, bias_;
  ConstView weight_;
  FloatWriter out_;
  bool has_halo_, has_bias_;
  OutputBox box_;
  std::array<size_t, 3> size_, out_size_;
  std::array<size_t, 2> box_size_;
  size_t channels_, taken_;      // of the input, and of these what a group takes
  size_t out_channels_, given_;  // of the output, and of these what a group gives
  size_t pixels_;                // outputs of the box, all channels of a place counted as one
  size_t line_, depth_;          // terms of a line of taps along W, and of all
  bool joined_;
  HaloSticks sticks_;
};

}  // namespace

void conv3d(const Conv3d& conv, ConstView x, ConstView weight, ConstView bias, ConstView halo, const OutputBox& box, View out, Parallel& par) {
  Convolution(conv, x, weight, bias, halo, box, out).run(par);
}

}  // namespace meshrun::emu
