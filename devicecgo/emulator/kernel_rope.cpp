#include "kernel_rope.h"

#include "kernel_floats.h"
#include "kernel_runs.h"

namespace meshrun::emu {

void rope(uint32_t mode, ConstView x, ConstView cos, ConstView sin, View out, Parallel& par) {
  const size_t width = x.shape.back(0);
  if (width == 0) return;
  if (width % 2 != 0) throw std::invalid_argument("rope: the last dim is odd");
  const FloatReader reader(x);
  const FloatWriter writer(out);
  par.run(x.shape.elements() / width, std::max<size_t>(1, 32768 / width), [&](size_t begin, size_t end) {
    const Scratch input(width), output(width);
    BroadcastRow cos_rows(cos, x.shape, width), sin_rows(sin, x.shape, width);
    for (size_t row = begin; row < end; ++row) {
      const float* run = reader.read(row * width, width, input);
      run::rotate(mode, run, cos_rows.row(row, 0, width), sin_rows.row(row, 0, width), output, width);
      writer.write(row * width, width, output);
    }
  });
}

}  // namespace meshrun::emu
