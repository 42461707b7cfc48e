#include "kernel_norm.h"

#include <cmath>

#include "kernel_floats.h"
#include "kernel_runs.h"

namespace meshrun::emu {
namespace {

size_t rows_of(const Shape& shape) { return shape.product(0, shape.rank == 0 ? 0 : shape.rank - 1); }
size_t row_grain(size_t width) { return std::max<size_t>(1, 32768 / std::max<size_t>(1, width)); }

void row_stats(uint32_t kind, const float* x, size_t width, float* stats) {
  if (kind == MR_NORM_RMS) {
    stats[0] = run::sum_of_squares(x, 0.0f, width);
  } else {
    stats[0] = run::sum(x, width) / static_cast<float>(width);
    stats[1] = run::sum_of_squares(x, stats[0], width);
  }
}

// What a row is standardised with: (x - mean) * factor.
struct Standard {
  float mean, factor;
};

// Combines the parts of a row, of `width` elements each, from first to last.
Standard combine(uint32_t kind, const float* stats, size_t parts, size_t width, float eps) {
  double mean = 0, squares = 0;
  if (kind == MR_NORM_RMS) {
    for (size_t p = 0; p < parts; ++p) squares += stats[p];
  } else {
    // Chan's formula: joining n elements (mean, squares) with `width` more adds the distance of the means.
    for (size_t p = 0; p < parts; ++p) {
      const double n = static_cast<double>(p * width), more = static_cast<double>(width);
      const double distance = stats[2 * p] - mean;
      mean += distance * more / (n + more);
      squares += stats[2 * p + 1] + distance * distance * n * more / (n + more);
    }
  }
  const double variance = squares / static_cast<double>(parts * width);
  return {static_cast<float>(mean), static_cast<float>(1.0 / std::sqrt(variance + eps))};
}

// Heads says where head h of a row goes and how it is rotated. Without heads there is one, the row itself.
struct Heads {
  bool split;       // out is [B,H,N,D], not [B,1,N,H*D]
  uint32_t count;   // H
  uint32_t width;   // D
  uint32_t length;  // N
  Shape shape;      // [B,H,N,D]
  ConstView cos, sin;

  Heads(const Shape& x, const Shape& out, uint32_t num_heads, ConstView cos_table, ConstView sin_table)
      : split(out.back(0) != x.back(0)),
        count(split ? x.back(0) / out.back(0) : std::max(1u, num_heads)),
        width(x.back(0) / count),
        length(x.back(1)),
        shape{4, {static_cast<uint32_t>(rows_of(x) / std::max(1u, length)), count, length, width}},
        cos(cos_table),
        sin(sin_table) {}

  size_t row_of_head(size_t row, size_t head) const { return (row / length * count + head) * length + row % length; }
  size_t place(size_t row, size_t head) const { return (split ? row_of_head(row, head) : row * count + head) * width; }
};

// Takes the statistics of a row from stats_of(row, the row, room for them), and does all the rest.
template <class StatsOf>
void apply(uint32_t kind, ConstView x, uint32_t parts, ConstView weight, ConstView bias, float eps, const Heads& heads,
           View out, Parallel& par, StatsOf stats_of) {
  const size_t width = x.shape.back(0);
  const FloatWriter writer(out);
  const FloatReader reader(x);
  par.run(rows_of(x.shape), row_grain(width), [&](size_t begin, size_t end) {
    const Scratch input(width), output(width);
    BroadcastRow weights(weight, x.shape, width), biases(bias, x.shape, width);
    BroadcastRow cos(heads.cos, heads.shape, heads.width), sin(heads.sin, heads.shape, heads.width);
    for (size_t row = begin; row < end; ++row) {
      const float* run = reader.read(row * width, width, input);
      float local[2];
      const Standard standard = combine(kind, stats_of(row, run, local), parts, width, eps);
      run::standardise(run, standard.mean, standard.factor, output, width);
      if (weights) run::binary(MR_BINARY_MUL, output, weights.row(row, 0, width), output, width);
      if (biases) add_f32(output, biases.row(row, 0, width), width);
      for (size_t head = 0; head < heads.count; ++head) {
        float* part = output + head * heads.width;
        if (cos) {
          const size_t table_row = heads.row_of_head(row, head);
          run::rotate(MR_ROPE_INTERLEAVED, part, cos.row(table_row, 0, heads.width), sin.row(table_row, 0, heads.width),
                      part, heads.width);
        }
        writer.write(heads.place(row, head), heads.width, part);
      }
    }
  });
}

}  // namespace

size_t norm_stats_values(uint32_t kind) { return kind == MR_NORM_RMS ? 1 : 2; }

void norm_partial(uint32_t kind, ConstView x, float* stats, Parallel& par) {
  const size_t values = norm_stats_values(kind), width = x.shape.back(0);
  const FloatReader reader(x);
  par.run(rows_of(x.shape), row_grain(width), [&](size_t begin, size_t end) {
    const Scratch buffer(width);
    for (size_t row = begin; row < end; ++row)
      row_stats(kind, reader.read(row * width, width, buffer), width, stats + row * values);
  });
}

void norm_apply(uint32_t kind, ConstView x, const float* stats, uint32_t parts, ConstView weight, ConstView bias, float eps,
                uint32_t num_heads, ConstView cos, ConstView sin, View out, Parallel& par) {
  const size_t row_values = parts * norm_stats_values(kind);
  apply(kind, x, parts, weight, bias, eps, Heads(x.shape, out.shape, num_heads, cos, sin), out, par,
        [=](size_t row, const float*, float*) { return stats + row * row_values; });
}

void norm(uint32_t kind, ConstView x, ConstView weight, ConstView bias, float eps, View out, Parallel& par) {
  const size_t width = x.shape.back(0);
  apply(kind, x, 1, weight, bias, eps, Heads(x.shape, x.shape, 1, {}, {}), out, par,
        [=](size_t, const float* run, float* local) {
          row_stats(kind, run, width, local);
          return local;
        });
}

}  // namespace meshrun::emu
