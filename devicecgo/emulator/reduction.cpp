#include "reduction.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "copy_region.h"
#include "kernel_reduce.h"

namespace meshrun::emu {
namespace {

constexpr size_t kBlock = 2048;         // elements handled at a time, so that they stay in the nearest cache
constexpr size_t kWorthInPlace = 256;   // shorter runs are put together in a buffer
constexpr size_t kRowBytes = 16 << 10;  // longer runs are streams that the machine follows by itself

// Window hands out a region block by block: in place where the block is contiguous, else by way of a buffer.
template <class T>
class Window {
 public:
  Window(std::byte* data, const Region& r) : data_(data), region_(r), row_(r.from / r.run), in_(r.from % r.run) {}
  explicit Window(const Part& part) : Window(const_cast<std::byte*>(part.data), part.region) {}
  bool absent() const { return data_ == nullptr; }
  // Elements up to the end of the run, as far as a block goes; a whole block where runs are too short to be handled one by one.
  size_t handy() const {
    if (absent() || region_.run < kWorthInPlace * sizeof(T)) return kBlock;
    return std::min(kBlock, (region_.run - in_) / sizeof(T));
  }

  const T* read(size_t n) {
    if (absent()) return nullptr;
    T* const block = reserve(n);
    if (block == buffer_.data()) copy<false>(n);
    skip(n);
    return block;
  }
  // Where the next n elements may be written; written() puts them in their place.
  T* reserve(size_t n) {
    const uint64_t bytes = n * sizeof(T);
    return in_ + bytes <= region_.run ? reinterpret_cast<T*>(here()) : buffer_.data();
  }
  void written(const T* block, size_t n) {
    if (block == buffer_.data()) copy<true>(n);
    skip(n);
  }

 private:
  std::byte* here() const { return data_ + region_.offset + row_ * region_.stride + in_; }
  void skip(size_t n) {
    in_ += n * sizeof(T);
    row_ += in_ / region_.run;
    in_ %= region_.run;
  }
  template <bool out>
  void copy(size_t n) {
    std::byte *buffer = reinterpret_cast<std::byte*>(buffer_.data()), *at = here();
    const uint64_t run = region_.run, stride = region_.stride;
    const auto rows = [&](uint64_t bytes, uint64_t count) {
      if constexpr (out) {
        copy_rows(at, stride, buffer, bytes, bytes, count);
      } else {
        copy_rows(buffer, bytes, at, stride, bytes, count);
      }
      buffer += bytes * count;
    };
    uint64_t left = n * sizeof(T);
    if (in_ != 0) {
      const uint64_t head = std::min(left, run - in_);
      rows(head, 1);
      at += stride - in_;
      left -= head;
    }
    const uint64_t whole = left / run;
    if (whole != 0) rows(run, whole);
    at += whole * stride;
    if (left % run != 0) rows(left % run, 1);
  }

  std::byte* data_;
  const Region& region_;
  uint64_t row_, in_;
  std::array<T, kBlock> buffer_;
};

// Calls fn(elements done so far, elements, behind, own, other, to), block by block.
template <class T, class F>
void blocks(const ReduceStep& s, F fn) {
  Window<T> behind(s.behind), own(s.own), other(s.other), to(s.to, s.target);
  const size_t elements = s.target.bytes() / sizeof(T);
  for (size_t done = 0; done < elements;) {
    const size_t n = std::min({elements - done, behind.handy(), own.handy(), other.handy(), to.handy()});
    T* const out = to.reserve(n);
    fn(done, n, behind.read(n), own.read(n), other.read(n), out);
    to.written(out, n);
    done += n;
  }
}

// Adds to acc a partial sum's exact values: its shadow where it still tells the truth, else what the memory holds.
void add_exact(float* acc, const Block& shadow, size_t at, const uint16_t* held, size_t n) {
  const float* values = reinterpret_cast<const float*>(shadow.data()) + at;
  if (shadow && rounds_to(values, held, n)) {
    add_f32(acc, values, n);
  } else {
    add_bf16(acc, held, n);
  }
}

Block take_shadow(const Part& part) { return part.shadow != nullptr ? std::move(part.shadow->block) : Block{}; }

void reduce_bf16(const ReduceStep& s) {
  // The sum grows where the shadow that came lies, and travels on there.
  Block sum = take_shadow(s.behind);
  const bool exact = bool(sum);
  if (!sum && s.keep != nullptr) sum = s.pool->take(s.target.bytes() / sizeof(uint16_t) * sizeof(float));
  const Block other_sum = take_shadow(s.other);
  float* const values = reinterpret_cast<float*>(sum.data());
  std::array<float, kBlock> space;
  const Region& rows = s.own.region;
  const size_t ahead = rows.stride != rows.run && rows.run <= kRowBytes ? rows.stride / sizeof(uint16_t) : 0;

  blocks<uint16_t>(s, [&](size_t at, size_t n, const uint16_t* behind, const uint16_t* own, const uint16_t* other, uint16_t* to) {
    float* const acc = sum ? values + at : space.data();
    if (behind == nullptr) {
      widen_bf16(acc, own, n);
      add_exact(acc, other_sum, at, other, n);
      round_bf16(to, acc, n);
      return;
    }
    if (exact && other == nullptr) {
      add_round_held_bf16(acc, behind, own, to, n, ahead);
      return;
    }
    if (!exact || !rounds_to(acc, behind, n)) widen_bf16(acc, behind, n);
    if (other == nullptr) {
      add_round_bf16(acc, own, to, n);
    } else {
      add_bf16(acc, own, n);
      add_exact(acc, other_sum, at, other, n);
      round_bf16(to, acc, n);
    }
  });
  if (s.keep != nullptr) s.keep->block = std::move(sum);
}

template <class T>
void reduce_exact(const ReduceStep& s) {
  blocks<T>(s, [](size_t, size_t n, const T* behind, const T* own, const T* other, T* to) {
    std::memcpy(to, behind != nullptr ? behind : own, n * sizeof(T));
    for (const T* more : {behind != nullptr ? own : nullptr, other}) {
      if (more == nullptr) continue;
      if constexpr (std::is_same_v<T, float>) {
        add_f32(to, more, n);
      } else {
        for (size_t i = 0; i < n; ++i) to[i] += more[i];  // unsigned: wraps, for signed values too
      }
    }
  });
}

}  // namespace

void ReduceStep::operator()(Parallel&) const {
  switch (dtype) {
    case DType::bfloat16:
      return reduce_bf16(*this);
    case DType::float32:
      return reduce_exact<float>(*this);
    default:
      return reduce_exact<uint32_t>(*this);
  }
}

}  // namespace meshrun::emu
