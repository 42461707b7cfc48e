#include "reduction.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <vector>

#include "copy_region.h"
#include "kernel_reduce.h"

namespace meshrun::emu {
namespace {

constexpr size_t kBlock = 16384;        // elements handled at a time: a sum of so many stays in the cache from step to step
constexpr size_t kWorthInPlace = 256;   // shorter runs are put together in a buffer
constexpr size_t kRowBytes = 16 << 10;  // longer runs are streams that the machine follows by itself

template <class T>
using Buffer = std::array<T, kBlock>;

// Window hands out a region block by block: in place where the block is contiguous, else by way of a buffer.
template <class T>
class Window {
 public:
  Window() = default;
  Window(const std::byte* data, const Region& r, Buffer<T>& buffer)
      : data_(const_cast<std::byte*>(data)), region_(&r), buffer_(buffer.data()), row_(r.from / r.run), in_(r.from % r.run) {}
  bool absent() const { return data_ == nullptr; }
  // Elements up to the end of the run, as far as a block goes; a whole block where runs are too short to be handled one by one.
  size_t handy() const {
    if (absent() || region_->run < kWorthInPlace * sizeof(T)) return kBlock;
    return std::min(kBlock, (region_->run - in_) / sizeof(T));
  }

  const T* read(size_t n) {
    if (absent()) return nullptr;
    T* const block = reserve(n);
    if (block == buffer_) copy<false>(n);
    skip(n);
    return block;
  }
  // Where the next n elements may be written; written() puts them in their place.
  T* reserve(size_t n) {
    const uint64_t bytes = n * sizeof(T);
    return in_ + bytes <= region_->run ? reinterpret_cast<T*>(here()) : buffer_;
  }
  void written(const T* block, size_t n) {
    if (block == buffer_) copy<true>(n);
    skip(n);
  }

 private:
  std::byte* here() const { return data_ + region_->offset + row_ * region_->stride + in_; }
  void skip(size_t n) {
    in_ += n * sizeof(T);
    row_ += in_ / region_->run;
    in_ %= region_->run;
  }
  template <bool out>
  void copy(size_t n) {
    std::byte *buffer = reinterpret_cast<std::byte*>(buffer_), *at = here();
    const uint64_t run = region_->run, stride = region_->stride;
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

  std::byte* data_ = nullptr;
  const Region* region_ = nullptr;
  T* buffer_ = nullptr;
  uint64_t row_ = 0, in_ = 0;
};

// Goes through a chain of steps block by block: for each block all steps, one after another. Calls
//   step(i, elements done so far, elements, behind, own, other, to)
// where behind is what came to the first step (later ones continue its sum), and other what the last one adds.
template <class T, class F>
void blocks(const ReduceStep* const* steps, size_t count, F step) {
  const ReduceStep &first = *steps[0], &last = *steps[count - 1];
  Buffer<T> came, mine, joined, result;  // only where runs are short
  Window<T> behind(first.behind.data, first.behind.region, came), other(last.other.data, last.other.region, joined);
  std::vector<Window<T>> own, to;
  for (size_t i = 0; i < count; ++i) {
    own.emplace_back(steps[i]->own.data, steps[i]->own.region, mine);
    to.emplace_back(steps[i]->to, steps[i]->target, result);
  }
  const size_t elements = first.target.bytes() / sizeof(T);
  for (size_t done = 0; done < elements;) {
    size_t n = std::min({elements - done, behind.handy(), other.handy()});
    for (size_t i = 0; i < count; ++i) n = std::min({n, own[i].handy(), to[i].handy()});
    const T* const held = behind.read(n);
    for (size_t i = 0; i < count; ++i) {
      T* const out = to[i].reserve(n);
      step(i, done, n, i == 0 ? held : nullptr, own[i].read(n), i + 1 == count ? other.read(n) : nullptr, out);
      to[i].written(out, n);
    }
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

void reduce_bf16(const ReduceStep* const* steps, size_t count) {
  const ReduceStep &first = *steps[0], &last = *steps[count - 1];
  // The sum grows where the shadow that came lies, and travels on there.
  Block sum = take_shadow(first.behind);
  const bool exact = bool(sum);
  if (!sum && last.keep != nullptr) sum = first.pool->take(first.target.bytes() / sizeof(uint16_t) * sizeof(float));
  const Block other_sum = take_shadow(last.other);
  float* const values = reinterpret_cast<float*>(sum.data());
  std::array<float, kBlock> space;
  const Region& rows = first.own.region;
  const size_t ahead = rows.stride != rows.run && rows.run <= kRowBytes ? rows.stride / sizeof(uint16_t) : 0;

  blocks<uint16_t>(steps, count, [&](size_t i, size_t at, size_t n, const uint16_t* behind, const uint16_t* own, const uint16_t* other, uint16_t* to) {
    float* const acc = sum ? values + at : space.data();
    if (i == 0 && behind == nullptr) {  // the first summand goes out as it is
      if (count > 1 || other != nullptr) widen_bf16(acc, own, n);
      if (other == nullptr) std::memcpy(to, own, n * sizeof(uint16_t));
    } else if (i == 0 && exact && other == nullptr) {
      add_round_held_bf16(acc, behind, own, to, n, ahead);
    } else {
      if (i == 0 && !(exact && rounds_to(acc, behind, n))) widen_bf16(acc, behind, n);
      if (other == nullptr) {
        add_round_bf16(acc, own, to, n, ahead);
      } else {
        add_bf16(acc, own, n);
      }
    }
    if (other != nullptr) {
      add_exact(acc, other_sum, at, other, n);
      round_bf16(to, acc, n);
    }
  });
  if (last.keep != nullptr) last.keep->block = std::move(sum);
}

template <class T>
void add(T* acc, const T* x, size_t n) {
  if constexpr (std::is_same_v<T, float>) {
    add_f32(acc, x, n);
  } else {
    for (size_t i = 0; i < n; ++i) acc[i] += x[i];  // unsigned: wraps, for signed values too
  }
}

template <class T>
void reduce_exact(const ReduceStep* const* steps, size_t count) {
  Buffer<T> sum;
  blocks<T>(steps, count, [&](size_t i, size_t, size_t n, const T* behind, const T* own, const T* other, T* to) {
    if (i == 0) std::memcpy(sum.data(), behind != nullptr ? behind : own, n * sizeof(T));
    if (i != 0 || behind != nullptr) add(sum.data(), own, n);
    if (other != nullptr) add(sum.data(), other, n);
    std::memcpy(to, sum.data(), n * sizeof(T));
  });
}

}  // namespace

void ReduceStep::operator()(Parallel& parallel) const {
  const ReduceStep* self = this;
  run_chain(&self, 1, parallel);
}

void ReduceStep::run_chain(const ReduceStep* const* steps, size_t n, Parallel&) {
  switch (steps[0]->dtype) {
    case DType::bfloat16:
      return reduce_bf16(steps, n);
    case DType::float32:
    case DType::bfloat8_b:  // partial sums are kept exact; the owner rounds
      return reduce_exact<float>(steps, n);
    default:
      return reduce_exact<uint32_t>(steps, n);
  }
}

}  // namespace meshrun::emu
