// kernel_test.h: tensors with random contents, a plain reader of them, and the comparison with a reference in double
// precision.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../bf16.h"
#include "../parallel.h"
#include "../view.h"

namespace meshrun::emu::test {

inline Shape shape_of(const std::vector<uint32_t>& dims) {
  Shape s;
  s.rank = static_cast<uint32_t>(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) s.dims[i] = dims[i];
  return s;
}

inline std::string text(const Shape& s) {
  std::string t;
  for (uint32_t i = 0; i < s.rank; ++i) t.append(i == 0 ? "[" : ",").append(std::to_string(s.dims[i]));
  return t.append("]");
}

// Random gives reproducible numbers; show the seed with INFO(random.seed).
struct Random {
  uint64_t seed;
  std::mt19937_64 engine;
  explicit Random(uint64_t s) : seed(s), engine(s) {}
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(engine() % n); }
  uint32_t between(uint32_t low, uint32_t high) { return low + below(high - low + 1); }
  bool chance(uint32_t one_in) { return below(one_in) == 0; }
  double uniform(double low, double high) { return low + (high - low) * (static_cast<double>(engine() >> 11) * 0x1p-53); }
  double normal() { return std::sqrt(-2 * std::log(uniform(1e-12, 1))) * std::cos(6.283185307179586 * uniform(0, 1)); }
  DType float_type() { return chance(2) ? DType::bfloat16 : DType::float32; }
};

// Makes dims smaller until there are at most so many elements, since references are slow.
inline std::vector<uint32_t> limited(std::vector<uint32_t> dims, size_t most) {
  while (shape_of(dims).elements() > most) {
    auto largest = std::max_element(dims.begin(), dims.end());
    *largest = (*largest + 1) / 2;
  }
  return dims;
}

// A tensor that owns exactly its bytes, so that the address sanitizer sees every access outside.
class Tensor {
 public:
  Tensor(DType dtype, const std::vector<uint32_t>& dims)
      : dtype_(dtype), shape_(shape_of(dims)), data_(new unsigned char[bytes()]) {
    std::memset(data_.get(), 0xa5, bytes());
  }
  // Normally distributed.
  Tensor(DType dtype, const std::vector<uint32_t>& dims, Random& random, double scale = 1) : Tensor(dtype, dims) {
    fill([&](size_t) { return scale * random.normal(); });
  }
  // Another of the same type and shape, not filled.
  Tensor like() const { return Tensor(dtype_, {shape_.dims.begin(), shape_.dims.begin() + shape_.rank}); }

  void fill(const std::function<double(size_t)>& value) {
    for (size_t i = 0; i < size(); ++i) set(i, value(i));
  }

  size_t size() const { return shape_.elements(); }
  size_t bytes() const { return shape_.elements() * element_bytes(dtype_); }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  View view() const { return {data_.get(), dtype_, shape_}; }
  operator View() const { return view(); }
  operator ConstView() const { return view(); }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }

  double at(size_t i) const {
    switch (dtype_) {
      case DType::bfloat16:
        return to_float(as<uint16_t>()[i]);
      case DType::uint32:
        return as<uint32_t>()[i];
      case DType::int32:
        return as<int32_t>()[i];
      case DType::uint16:
        return as<uint16_t>()[i];
      case DType::uint8:
        return as<uint8_t>()[i];
      default:
        return as<float>()[i];
    }
  }
  void set(size_t i, double value) {
    switch (dtype_) {
      case DType::bfloat16:
        as<uint16_t>()[i] = to_bf16(static_cast<float>(value));
        break;
      case DType::uint32:
        as<uint32_t>()[i] = static_cast<uint32_t>(value);
        break;
      case DType::int32:
        as<int32_t>()[i] = static_cast<int32_t>(value);
        break;
      case DType::uint16:
        as<uint16_t>()[i] = static_cast<uint16_t>(value);
        break;
      case DType::uint8:
        as<uint8_t>()[i] = static_cast<uint8_t>(value);
        break;
      default:
        as<float>()[i] = static_cast<float>(value);
    }
  }
  // The element at an index per dim of a larger shape, against which this tensor broadcasts.
  size_t place(const std::vector<uint32_t>& index) const {
    size_t p = 0;
    for (uint32_t i = 0; i < shape_.rank; ++i) {
      const uint32_t at = index[index.size() - shape_.rank + i];
      p = p * shape_.dims[i] + (shape_.dims[i] == 1 ? 0 : at);
    }
    return p;
  }
  double at(const std::vector<uint32_t>& index) const { return at(place(index)); }
  bool same_bytes(const Tensor& o) const {
    return bytes() == o.bytes() && std::memcmp(data_.get(), o.data_.get(), bytes()) == 0;
  }

 private:
  DType dtype_;
  Shape shape_;
  std::shared_ptr<unsigned char[]> data_;  // a copy of a tensor names the same memory
};

// Calls each(index per dim, element number) in row-major order.
inline void for_each_index(const Shape& shape, const std::function<void(const std::vector<uint32_t>&, size_t)>& each) {
  std::vector<uint32_t> index(shape.rank, 0);
  const size_t n = shape.elements();
  for (size_t i = 0; i < n; ++i) {
    each(index, i);
    for (uint32_t d = shape.rank; d-- > 0;) {
      if (++index[d] < shape.dims[d]) break;
      index[d] = 0;
    }
  }
}

// Checks out against expected(element) with |error| <= relative*|expected| + absolute, and half a unit of bfloat16 more
// where out is bfloat16. NaN must meet NaN, infinities must be equal.
inline void check_close(const Tensor& out, const std::function<double(size_t)>& expected, double relative, double absolute) {
  size_t wrong = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const double want = expected(i), got = out.at(i);
    bool good;
    if (std::isnan(want) || std::isinf(want) || std::isinf(got)) {
      const double rounded =
          out.dtype() == DType::bfloat16 ? to_float(to_bf16(static_cast<float>(want))) : static_cast<float>(want);
      good = std::isnan(want) ? std::isnan(got) : got == rounded;
    } else {
      double allowed = relative * std::fabs(want) + absolute;
      if (out.dtype() == DType::bfloat16) allowed += std::fabs(want) / 256 * 1.01 + 1e-40;
      good = std::fabs(got - want) <= allowed;
    }
    if (!good && ++wrong <= 3) {
      INFO("element " << i << " of " << text(out.shape()));
      CHECK(got == doctest::Approx(want).epsilon(relative));
      MESSAGE("got " << got << ", want " << want << ", allowed relative " << relative << " absolute " << absolute);
    }
  }
  CHECK(wrong == 0);
}

// Cuts work into pieces as small as the kernel allows, and runs them out of order on several threads.
class ManyPieces final : public Parallel {
 public:
  explicit ManyPieces(size_t threads = 3, uint64_t seed = 1) : threads_(threads), seed_(seed) {}
  void run(size_t n, size_t grain, const std::function<void(size_t, size_t)>& fn) override {
    CHECK(grain >= 1);
    std::vector<std::pair<size_t, size_t>> pieces;
    for (size_t i = 0; i < n; i += grain) pieces.push_back({i, std::min(n, i + grain)});
    std::shuffle(pieces.begin(), pieces.end(), std::mt19937_64(seed_++));
    std::vector<std::thread> helpers;
    const auto work = [&](size_t first) {
      for (size_t p = first; p < pieces.size(); p += threads_) fn(pieces[p].first, pieces[p].second);
    };
    for (size_t t = 1; t < threads_; ++t) helpers.emplace_back(work, t);
    work(0);
    for (auto& h : helpers) h.join();
  }

 private:
  size_t threads_;
  uint64_t seed_;
};

// Throws at the nth piece, as a Parallel does that has been told to stop.
struct Stopped {};
class StopAt final : public Parallel {
 public:
  explicit StopAt(size_t pieces) : left_(pieces) {}
  void run(size_t n, size_t grain, const std::function<void(size_t, size_t)>& fn) override {
    for (size_t i = 0; i < n; i += grain) {
      if (left_-- == 0) throw Stopped{};
      fn(i, std::min(n, i + grain));
    }
  }

 private:
  size_t left_;
};

// Runs a kernel once serially, whose result it returns in `out`, once in many pieces, which must give the same bits, and
// once stopped half way, after which everything must still work.
inline void run_all_ways(Tensor& out, const std::function<void(View, Parallel&)>& kernel) {
  Serial serial;
  kernel(out, serial);
  ManyPieces pieces;
  Tensor again = out.like();
  kernel(again, pieces);
  CHECK(again.same_bytes(out));
  StopAt stop(1);
  Tensor half = out.like();
  try {
    kernel(half, stop);
  } catch (const Stopped&) {
  }
}

}  // namespace meshrun::emu::test
