#include "kernel_group_norm.h"

#include <cmath>
#include <vector>

#include "kernel_floats.h"
#include "kernel_runs.h"

namespace meshrun::emu {
namespace {

constexpr size_t kBlock = 64;        // pixels whose sums are kept in float32
constexpr size_t kMostPieces = 256;  // of a sample
constexpr size_t kPiece = 1 << 16;   // elements of a piece of work, if it can be cut so small

size_t divide_up(size_t n, size_t by) { return (n + by - 1) / by; }

// The pixels of a sample that count: frames x h x w, of rows and columns that may be longer.
struct Pixels {
  size_t frames, rows, columns;  // of the tensor
  Window window;

  size_t count() const { return frames * window.h * window.w; }
  size_t all() const { return frames * rows * columns; }
  size_t at(size_t i) const { return (i / window.w / window.h * rows + i / window.w % window.h) * columns + i % window.w; }
};

// Sums over a block of pixels, channel by channel: first the means, then the distances from them, whose sum makes up for what the rounding of
// the means left.
class Block {
 public:
  Block(size_t channels, size_t groups)
      : channels_(channels), width_(channels / groups), groups_(groups), rows_(kBlock * channels), pivots_(channels), sums_(channels), squares_(channels), distances_(channels) {}

  // Adds pixels [begin, end) of the sample to moments[groups].
  void add(const FloatReader& x, const Pixels& pixels, size_t sample, size_t begin, size_t end, Moments* moments) {
    const size_t n = end - begin;
    std::fill_n(sums_.data(), channels_, 0.0f);
    for (size_t i = 0; i < n; ++i) {
      float* row = rows_ + i * channels_;
      x.copy((sample * pixels.all() + pixels.at(begin + i)) * channels_, channels_, row);
      add_f32(sums_, row, channels_);
    }
    const double count = static_cast<double>(n * width_);
    for (size_t g = 0; g < groups_; ++g) std::fill_n(pivots_ + g * width_, width_, static_cast<float>(total(sums_, g) / count));
    std::fill_n(sums_.data(), channels_, 0.0f);
    std::fill_n(squares_.data(), channels_, 0.0f);
    for (size_t i = 0; i < n; ++i) {
      run::binary(MR_BINARY_SUB, rows_ + i * channels_, pivots_, distances_, channels_);
      add_f32(sums_, distances_, channels_);
      run::multiply_add(distances_, distances_, squares_, squares_, channels_);
    }
    for (size_t g = 0; g < groups_; ++g) {
      const double rest = total(sums_, g);
      moments[g].add({count, pivots_[g * width_] + rest / count, total(squares_, g) - rest * rest / count});
    }
  }

 private:
  double total(const float* of, size_t group) const {
    double t = 0;
    for (size_t c = group * width_; c < (group + 1) * width_; ++c) t += of[c];
    return t;
  }

  size_t channels_, width_, groups_;
  Scratch rows_, pivots_, sums_, squares_, distances_;
};

}  // namespace

void group_moments(ConstView x, uint32_t groups, const Window& window, Moments* moments, Parallel& par) {
  const size_t samples = x.shape.dims[0], channels = x.shape.back(0);
  const Window whole = Window::whole(x.shape);
  const Pixels pixels{x.shape.product(1, x.shape.rank - 1) / (whole.h * whole.w), whole.h, whole.w, window};
  std::fill_n(moments, samples * groups, Moments{});
  if (pixels.count() == 0) return;
  const size_t piece = divide_up(divide_up(pixels.count(), kMostPieces), kBlock) * kBlock, pieces = divide_up(pixels.count(), piece);
  std::vector<Moments> parts(samples * pieces * groups);
  const FloatReader reader(x);
  par.run(samples * pieces, std::max<size_t>(1, kPiece / (piece * channels)), [&](size_t begin, size_t end) {
    Block block(channels, groups);
    for (size_t i = begin; i < end; ++i) {
      const size_t first = i % pieces * piece, last = std::min(first + piece, pixels.count());
      for (size_t p = first; p < last; p += kBlock) block.add(reader, pixels, i / pieces, p, std::min(p + kBlock, last), &parts[i * groups]);
    }
  });
  for (size_t i = 0; i < samples * pieces; ++i)
    for (size_t g = 0; g < groups; ++g) moments[i / pieces * groups + g].add(parts[i * groups + g]);
}

void group_norm(ConstView x, const Moments* moments, uint32_t groups, ConstView weight, ConstView bias, float eps, uint32_t activation, View out, Parallel& par) {
  const size_t channels = x.shape.back(0), width = channels / groups, sample = x.shape.product(1, x.shape.rank - 1);
  const FloatReader reader(x), weights(weight), biases(bias);
  const FloatWriter writer(out);
  par.run(x.shape.dims[0] * sample, std::max<size_t>(1, kPiece / channels), [&](size_t begin, size_t end) {
    const Scratch means(channels), factors(channels), shifts(channels), gains(channels), buffer(channels);
    std::fill_n(gains.data(), channels, 1.0f);
    std::fill_n(shifts.data(), channels, 0.0f);
    if (weight) weights.copy(0, channels, gains);
    if (bias) biases.copy(0, channels, shifts);
    size_t now = ~size_t{0};
    for (size_t pixel = begin; pixel < end; ++pixel) {
      if (pixel / sample != now) {
        now = pixel / sample;
        for (size_t g = 0; g < groups; ++g) {
          const Moments& m = moments[now * groups + g];
          const double variance = m.count > 0 ? m.m2 / m.count : 0;
          std::fill_n(means + g * width, width, static_cast<float>(m.mean));
          std::fill_n(factors + g * width, width, static_cast<float>(1 / std::sqrt(variance + eps)));
        }
        run::binary(MR_BINARY_MUL, factors, gains, factors, channels);
      }
      const float* row = reader.read(pixel * channels, channels, buffer);
      run::binary(MR_BINARY_SUB, row, means, buffer, channels);
      run::multiply_add(buffer, factors, shifts, buffer, channels);
      if (activation != MR_ACT_NONE) run::activation(activation, buffer, buffer, channels);
      writer.write(pixel * channels, channels, buffer);
    }
  });
}

}  // namespace meshrun::emu
