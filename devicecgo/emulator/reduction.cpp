#include "reduction.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <type_traits>

#include "kernel_reduce.h"

namespace meshrun::emu {
namespace {

constexpr size_t kBlock = 4096;  // elements handled at a time, so that they stay in the nearest cache

// Walker yields, block by block, where the next elements of a region lie, as far as they are contiguous.
class Walker {
 public:
  Walker(const void* data, const Region& r) : data_(static_cast<const std::byte*>(data)), region_(r), row_(r.from / r.run), in_(r.from % r.run) {}
  uint64_t contiguous() const { return region_.run - in_; }
  template <class T>
  const T* here() const {
    return reinterpret_cast<const T*>(data_ + region_.offset + row_ * region_.stride + in_);
  }
  void skip(uint64_t bytes) {
    if ((in_ += bytes) == region_.run) ++row_, in_ = 0;
  }

 private:
  const std::byte* data_;
  const Region& region_;
  uint64_t row_, in_;
};

// Calls fn(elements done so far, elements, behind, own, other, to) for pieces that are contiguous in all parts.
template <class T, class F>
void pieces(const ReduceStep& s, F fn) {
  Walker own(s.own.data, s.own.region), to(s.to, s.target);
  std::optional<Walker> behind, other;
  if (s.behind.data != nullptr) behind.emplace(s.behind.data, s.behind.region);
  if (s.other.data != nullptr) other.emplace(s.other.data, s.other.region);
  const uint64_t bytes = s.target.bytes();
  for (uint64_t done = 0; done < bytes;) {
    uint64_t n = std::min({bytes - done, uint64_t{kBlock * sizeof(T)}, own.contiguous(), to.contiguous()});
    if (behind) n = std::min(n, behind->contiguous());
    if (other) n = std::min(n, other->contiguous());
    fn(done / sizeof(T), n / sizeof(T), behind ? behind->here<T>() : nullptr, own.here<T>(), other ? other->here<T>() : nullptr,
       const_cast<T*>(to.here<T>()));
    own.skip(n);
    to.skip(n);
    if (behind) behind->skip(n);
    if (other) other->skip(n);
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

  pieces<uint16_t>(s, [&](size_t at, size_t n, const uint16_t* behind, const uint16_t* own, const uint16_t* other, uint16_t* to) {
    float* const acc = sum ? values + at : space.data();
    if (behind == nullptr) {
      widen_bf16(acc, own, n);
      add_exact(acc, other_sum, at, other, n);
      round_bf16(to, acc, n);
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
  pieces<T>(s, [](size_t, size_t n, const T* behind, const T* own, const T* other, T* to) {
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
