// kernel_halo.h: boxes cut out of tensors of many dims, and copies between boxes that lie differently in memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "parallel.h"
#include "region.h"
#include "spec.h"

namespace meshrun::emu {

constexpr uint32_t kBoxRank = MR_MAX_RANK + 1;

// Box is an array of many dims as it lies in the memory of each device. Cutting and repeating make other boxes over the same memory.
struct Box {
  uint64_t offset = 0;  // bytes
  uint64_t unit = 1;    // bytes of an element
  uint32_t rank = 0;
  std::array<uint32_t, kBoxRank> extent{};
  std::array<uint64_t, kBoxRank> stride{};  // bytes; 0 = the same element again and again

  // Row-major, without gaps. `extents` gives the rank and the extents, nothing else.
  static Box dense(uint64_t offset, const Box& extents, uint64_t unit);
  static Box of(const Shape& shape, uint64_t unit);

  Box cut(uint32_t dim, uint32_t from, uint32_t n) const {
    Box b = *this;
    b.offset += from * stride[dim];
    b.extent[dim] = n;
    return b;
  }
  // Of extent 1 along `dim`, n times.
  Box repeat(uint32_t dim, uint32_t n) const {
    Box b = *this;
    b.extent[dim] = n;
    b.stride[dim] = 0;
    return b;
  }
  // The same extents but for one.
  Box with(uint32_t dim, uint32_t n) const {
    Box b = *this;
    b.extent[dim] = n;
    return b;
  }
  // Dims [0, n) as one. They must follow one another without gaps.
  Box fold(uint32_t n) const;

  uint64_t elements() const;
  uint64_t bytes() const { return elements() * unit; }
  bool empty() const { return elements() == 0; }
  // The bytes that it covers: exactly those of a box of equal rows, a span around any other.
  Region region() const;
};

// Data work that copies a box into another of the same extents, or fills it with zeros.
struct CopyBox {
  const std::byte* from = nullptr;  // null: zeros
  std::byte* to = nullptr;
  uint64_t run = 1;     // contiguous bytes
  uint32_t levels = 0;  // loops around a run, the outermost first
  std::array<uint32_t, kBoxRank> count{};
  std::array<uint64_t, kBoxRank> from_stride{}, to_stride{};

  static CopyBox make(const std::byte* from, const Box& source, std::byte* to, const Box& target);
  void operator()(Parallel& parallel) const;

 private:
  void copy(uint32_t level, const std::byte* a, std::byte* b, uint64_t begin, uint64_t end) const;
};

}  // namespace meshrun::emu
