// view.h: what a kernel sees of a tensor: contiguous row-major logical elements, without padding, whatever the tensor's
// layout is called. Padding exists only in byte counts and in time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "meshrun_driver.h"

namespace meshrun::emu {

enum class DType : uint32_t {
  bfloat16 = MR_BFLOAT16,
  float32 = MR_FLOAT32,
  uint32 = MR_UINT32,
  int32 = MR_INT32,
  uint16 = MR_UINT16,
  uint8 = MR_UINT8,
  bfloat8_b = MR_BFLOAT8_B,  // kept as float32 whose values are representable; its bytes are counted as 1088 per tile
};

// Bytes of one element as the emulator keeps it.
constexpr size_t element_bytes(DType t) {
  switch (t) {
    case DType::bfloat16:
    case DType::uint16:
      return 2;
    case DType::uint8:
      return 1;
    default:
      return 4;
  }
}

struct Shape {
  uint32_t rank = 0;
  std::array<uint32_t, MR_MAX_RANK> dims{};

  size_t elements() const { return product(0, rank); }
  // product of dims [from, to)
  size_t product(uint32_t from, uint32_t to) const {
    size_t n = 1;
    for (uint32_t i = from; i < to; ++i) n *= dims[i];
    return n;
  }
  // dim counted from the end: back(0) is the last
  uint32_t back(uint32_t i) const { return i < rank ? dims[rank - 1 - i] : 1; }
  bool operator==(const Shape& o) const {
    if (rank != o.rank) return false;
    for (uint32_t i = 0; i < rank; ++i)
      if (dims[i] != o.dims[i]) return false;
    return true;
  }
};

struct ConstView {
  const void* data = nullptr;
  DType dtype = DType::bfloat16;
  Shape shape;

  template <class T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
  explicit operator bool() const { return data != nullptr; }
};

struct View {
  void* data = nullptr;
  DType dtype = DType::bfloat16;
  Shape shape;

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  operator ConstView() const { return {data, dtype, shape}; }
  explicit operator bool() const { return data != nullptr; }
};

}  // namespace meshrun::emu
