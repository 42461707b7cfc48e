// kernel_walk.h: loops over the elements of an output together with operands that lie in memory in another way.
#pragma once

#include <array>
#include <stdexcept>

#include "view.h"

namespace meshrun::emu {

// Walk goes over an output in row-major order as a number of equal runs, with N operands of which each has its own stride in
// every dim. Dims that can be walked as one are merged, so runs are as long as can be.
template <size_t N>
class Walk {
 public:
  using Places = std::array<size_t, N>;

  // Dims come from the last to the first; strides are in elements.
  void add_dim(size_t size, const Places& strides) {
    elements_ *= size;
    if (size == 1) return;
    if (rank_ != 0 && continues(strides)) {
      dims_[rank_ - 1].size *= size;
      return;
    }
    dims_[rank_++] = {size, strides};
  }

  size_t elements() const { return elements_; }
  size_t run() const { return rank_ == 0 ? 1 : dims_[0].size; }  // elements of a run
  size_t runs() const { return elements_ == 0 ? 0 : elements_ / run(); }
  size_t step(size_t operand) const { return rank_ == 0 ? 0 : dims_[0].strides[operand]; }  // within a run

  // Where the operands' run number `index` begins.
  Places at(size_t index) const {
    Places places{};
    for (uint32_t d = 1; d < rank_; ++d) {
      const size_t i = index % dims_[d].size;
      index /= dims_[d].size;
      for (size_t k = 0; k < N; ++k) places[k] += i * dims_[d].strides[k];
    }
    return places;
  }

  // Where the operands' element number `index` of the output lies.
  Places element(size_t index) const {
    Places places = at(index / run());
    for (size_t k = 0; k < N; ++k) places[k] += index % run() * step(k);
    return places;
  }

  struct Dim {
    size_t size;
    Places strides;
  };
  uint32_t rank() const { return rank_; }
  const Dim& dim(uint32_t from_last) const { return dims_[from_last]; }

 private:
  bool continues(const Places& strides) const {
    const Dim& inner = dims_[rank_ - 1];
    for (size_t k = 0; k < N; ++k)
      if (strides[k] != inner.strides[k] * inner.size) return false;
    return true;
  }

  std::array<Dim, MR_MAX_RANK> dims_;
  uint32_t rank_ = 0;
  size_t elements_ = 1;
};

// The walk over `out` of operands whose dims of size 1, and missing leading dims, broadcast. All shapes count without their
// last `without` dims: then the walk is over rows, or matrices.
template <size_t N>
Walk<N> broadcast(const Shape& out, const std::array<Shape, N>& operands, uint32_t without = 0) {
  Walk<N> walk;
  std::array<size_t, N> natural;
  natural.fill(1);
  for (uint32_t i = without; i < out.rank; ++i) {
    const size_t size = out.back(i);
    std::array<size_t, N> strides{};
    for (size_t k = 0; k < N; ++k) {
      const size_t own = operands[k].back(i);
      if (own != size && own != 1) throw std::invalid_argument("kernel: shapes do not broadcast");
      strides[k] = own == 1 ? 0 : natural[k];
      natural[k] *= own;
    }
    walk.add_dim(size, strides);
  }
  return walk;
}

}  // namespace meshrun::emu
