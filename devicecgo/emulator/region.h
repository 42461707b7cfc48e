// region.h: bytes [from, to) of a slice that lies in memory as runs of `run` bytes, `stride` bytes apart, the first at
// `offset`. A slice of a tensor along any dim has this form; contiguous memory is one run.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace meshrun::emu {

struct Region {
  uint64_t offset = 0;
  uint64_t run = 1;
  uint64_t stride = 1;
  uint64_t from = 0;
  uint64_t to = 0;

  static Region contiguous(uint64_t offset, uint64_t bytes) { return {offset, bytes, bytes, 0, bytes}; }
  Region part(uint64_t a, uint64_t b) const { return {offset, run, stride, a, b}; }

  uint64_t bytes() const { return to - from; }
  bool empty() const { return from >= to; }
  uint64_t first() const { return offset + from / run * stride + from % run; }
  uint64_t last() const { return offset + (to - 1) / run * stride + (to - 1) % run; }
};

// May two regions of one memory share a byte? Never wrong when it says no; it says yes too often only for slices of different
// patterns.
inline bool may_overlap(const Region& a, const Region& b) {
  if (a.empty() || b.empty() || a.last() < b.first() || b.last() < a.first()) return false;
  if (a.stride != b.stride || a.run >= a.stride || b.run >= b.stride) return true;
  // Same rows: two slices are apart when their columns are.
  const uint64_t ca = a.offset % a.stride, cb = b.offset % b.stride;
  if (ca + a.run > a.stride || cb + b.run > b.stride) return true;
  return ca < cb + b.run && cb < ca + a.run;
}

// Walks regions of equal size side by side: fn(bytes, offset in the first, offset in the second, ...) for every piece that is
// contiguous in all of them.
template <class F>
void walk(const Region& a, const Region& b, F fn) {
  uint64_t row_a = a.from / a.run, in_a = a.from % a.run, row_b = b.from / b.run, in_b = b.from % b.run;
  for (uint64_t left = a.bytes(); left != 0;) {
    const uint64_t n = std::min({left, a.run - in_a, b.run - in_b});
    fn(n, a.offset + row_a * a.stride + in_a, b.offset + row_b * b.stride + in_b);
    left -= n;
    if ((in_a += n) == a.run) ++row_a, in_a = 0;
    if ((in_b += n) == b.run) ++row_b, in_b = 0;
  }
}

template <class F>
void walk(const Region& a, const Region& b, const Region& c, F fn) {
  uint64_t row_c = c.from / c.run, in_c = c.from % c.run;
  walk(a, b, [&](uint64_t n, uint64_t at_a, uint64_t at_b) {
    while (n != 0) {
      const uint64_t m = std::min(n, c.run - in_c);
      fn(m, at_a, at_b, c.offset + row_c * c.stride + in_c);
      n -= m, at_a += m, at_b += m;
      if ((in_c += m) == c.run) ++row_c, in_c = 0;
    }
  });
}

}  // namespace meshrun::emu
