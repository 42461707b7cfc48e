#include "kernel_halo.h"

#include <cstring>

#include "copy_region.h"

namespace meshrun::emu {
namespace {

constexpr uint64_t kWorthSharing = 1 << 20;  // bytes: smaller copies stay on one thread

}  // namespace

Box Box::dense(uint64_t offset, const Box& extents, uint64_t unit) {
  Box b = extents;
  b.offset = offset;
  b.unit = unit;
  uint64_t stride = unit;
  for (uint32_t d = b.rank; d-- != 0; stride *= b.extent[d]) b.stride[d] = stride;
  return b;
}

Box Box::of(const Shape& shape, uint64_t unit) {
  Box extents;
  extents.rank = shape.rank;
  for (uint32_t d = 0; d < shape.rank; ++d) extents.extent[d] = shape.dims[d];
  return dense(0, extents, unit);
}

Box Box::fold(uint32_t n) const {
  Box b;
  b.offset = offset;
  b.unit = unit;
  b.rank = rank - n + 1;
  uint32_t folded = 1;
  for (uint32_t d = 0; d < n; ++d) folded *= extent[d];
  b.extent[0] = folded;
  b.stride[0] = n != 0 ? stride[n - 1] : (rank != 0 ? stride[0] * extent[0] : unit);
  for (uint32_t d = n; d < rank; ++d) {
    b.extent[d - n + 1] = extent[d];
    b.stride[d - n + 1] = stride[d];
  }
  return b;
}

uint64_t Box::elements() const {
  uint64_t n = 1;
  for (uint32_t d = 0; d < rank; ++d) n *= extent[d];
  return n;
}

Region Box::region() const {
  const CopyBox loops = CopyBox::make(nullptr, *this, nullptr, *this);
  uint64_t last = 0;
  for (uint32_t i = 0; i < loops.levels; ++i) last += (loops.count[i] - 1) * loops.to_stride[i];
  if (loops.levels == 1 && loops.to_stride[0] > loops.run) return {offset, loops.run, loops.to_stride[0], 0, loops.count[0] * loops.run};
  return Region::contiguous(offset, last + loops.run);
}

CopyBox CopyBox::make(const std::byte* from, const Box& source, std::byte* to, const Box& target) {
  CopyBox c;
  c.from = from == nullptr ? nullptr : from + source.offset;
  c.to = to == nullptr ? nullptr : to + target.offset;
  c.run = target.unit;
  // From the innermost dim outwards; dims that follow without a gap in both become one.
  for (uint32_t d = target.rank; d-- != 0;) {
    const uint64_t n = target.extent[d], a = source.stride[d], b = target.stride[d];
    if (n == 1) continue;
    if (c.levels == 0 && a == c.run && b == c.run) {
      c.run *= n;
      continue;
    }
    if (c.levels != 0) {
      const uint32_t l = c.levels - 1;
      if (a == c.count[l] * c.from_stride[l] && b == c.count[l] * c.to_stride[l] && c.count[l] * n <= UINT32_MAX) {
        c.count[l] *= static_cast<uint32_t>(n);
        continue;
      }
    }
    c.count[c.levels] = static_cast<uint32_t>(n);
    c.from_stride[c.levels] = a;
    c.to_stride[c.levels++] = b;
  }
  for (uint32_t i = 0, j = c.levels; i + 1 < j; ++i) {
    --j;
    std::swap(c.count[i], c.count[j]);
    std::swap(c.from_stride[i], c.from_stride[j]);
    std::swap(c.to_stride[i], c.to_stride[j]);
  }
  return c;
}

void CopyBox::operator()(Parallel& parallel) const {
  if (levels == 0) {
    copy(0, from, to, 0, 0);
    return;
  }
  uint64_t inner = run;
  for (uint32_t i = 1; i < levels; ++i) inner *= count[i];
  if (inner * count[0] < kWorthSharing) {
    copy(0, from, to, 0, count[0]);
    return;
  }
  parallel.run(count[0], kWorthSharing / 2 / inner + 1, [this](size_t begin, size_t end) { copy(0, from, to, begin, end); });
}

// Turns [begin, end) of the loop at `level`.
void CopyBox::copy(uint32_t level, const std::byte* a, std::byte* b, uint64_t begin, uint64_t end) const {
  if (level == levels) {
    if (a == nullptr) {
      std::memset(b, 0, run);
    } else {
      std::memcpy(b, a, run);
    }
    return;
  }
  const uint64_t step_a = a == nullptr ? 0 : from_stride[level], step_b = to_stride[level];
  if (a != nullptr) a += begin * step_a;
  b += begin * step_b;
  if (level + 1 == levels && a != nullptr) {
    copy_rows(b, step_b, a, step_a, run, end - begin);
    return;
  }
  for (uint64_t i = begin; i < end; ++i, b += step_b) {
    copy(level + 1, a, b, 0, level + 1 < levels ? count[level + 1] : 0);
    if (a != nullptr) a += step_a;
  }
}

}  // namespace meshrun::emu
