// kernel_floats.h: bfloat16 and float32 tensors read and written as runs of float32. This is the one place where arithmetic
// kernels meet the data type.
#pragma once

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "kernel_reduce.h"
#include "kernel_scratch.h"
#include "kernel_walk.h"
#include "view.h"

namespace meshrun::emu {

// Elements that kernels take at a time where they can choose: a few such buffers fit the first-level cache.
constexpr size_t kChunk = 1024;

inline bool is_bfloat16(DType t) {
  switch (t) {
    case DType::bfloat16:
      return true;
    case DType::float32:
    case DType::bfloat8_b:  // kept as float32
      return false;
    default:
      throw std::invalid_argument("kernel: arithmetic is on bfloat16 and float32 only");
  }
}

class FloatReader {
 public:
  explicit FloatReader(ConstView view) : data_(view.data), bfloat16_(is_bfloat16(view.dtype)) {}

  // The n elements from `offset` on, in place or widened into the buffer.
  const float* read(size_t offset, size_t n, float* buffer) const {
    if (!bfloat16_) return static_cast<const float*>(data_) + offset;
    widen_bf16(buffer, static_cast<const uint16_t*>(data_) + offset, n);
    return buffer;
  }
  // The same, always into the buffer.
  void copy(size_t offset, size_t n, float* buffer) const {
    const float* run = read(offset, n, buffer);
    if (run != buffer) std::memcpy(buffer, run, n * sizeof(float));
  }
  float one(size_t offset) const {
    float buffer;
    return *read(offset, 1, &buffer);
  }

 private:
  const void* data_;
  bool bfloat16_;
};

class FloatWriter {
 public:
  explicit FloatWriter(View view) : data_(view.data), bfloat16_(is_bfloat16(view.dtype)) {}

  // Where to put the elements from `offset` on: the output itself or the buffer. finish() must follow.
  float* begin(size_t offset, float* buffer) const { return bfloat16_ ? buffer : static_cast<float*>(data_) + offset; }
  void finish(size_t offset, size_t n, const float* run) const {
    if (bfloat16_) round_bf16(static_cast<uint16_t*>(data_) + offset, run, n);
  }
  void write(size_t offset, size_t n, const float* run) const {
    if (bfloat16_)
      finish(offset, n, run);
    else
      std::memcpy(static_cast<float*>(data_) + offset, run, n * sizeof(float));
  }

 private:
  void* data_;
  bool bfloat16_;
};

// BroadcastRow gives, for each row of an output, the row of an operand that broadcasts against it (a bias, a norm's weight,
// a rotary table). It remembers the row that it widened last. One per thread of work.
class BroadcastRow {
 public:
  // Rows of `out` as wide as `width`, which stands for out's last dim.
  BroadcastRow(ConstView operand, const Shape& out, size_t width)
      : present_(operand), reader_(operand), walk_(broadcast<1>(out, {operand.shape}, 1)), buffer_(present_ ? width : 0) {
    const size_t own = operand.shape.back(0);
    if (present_ && own != width && own != 1) throw std::invalid_argument("kernel: a row operand has the wrong width");
    wide_ = own == width;
    step_ = own;
  }

  explicit operator bool() const { return present_; }

  // Elements [begin, begin + n) of the operand's row for row `index` of the output.
  const float* row(size_t index, size_t begin, size_t n) {
    const size_t offset = walk_.element(index)[0] * step_ + (wide_ ? begin : 0);
    if (offset == offset_ && n == n_) return last_;
    if (wide_) {
      last_ = reader_.read(offset, n, buffer_);
    } else {
      std::fill_n(buffer_.data(), n, reader_.one(offset));
      last_ = buffer_;
    }
    offset_ = offset;
    n_ = n;
    return last_;
  }

 private:
  bool present_;
  FloatReader reader_;
  Walk<1> walk_;
  Scratch buffer_;
  bool wide_ = true;
  size_t step_ = 1;
  size_t offset_ = ~size_t{0}, n_ = 0;
  const float* last_ = nullptr;
};

}  // namespace meshrun::emu
