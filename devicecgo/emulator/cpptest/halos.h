// halos.h: halo exchanges as tests issue them, and their results computed element by element from the whole tensor.
#pragma once

#include <algorithm>

#include "collectives.h"

namespace meshrun::test {

class Dice {
 public:
  explicit Dice(uint32_t seed) : random_(seed) {}
  uint32_t of(uint32_t least, uint32_t most) { return std::uniform_int_distribution<uint32_t>(least, most)(random_); }
  bool coin() { return of(0, 1) == 1; }
  template <class T>
  T any(std::initializer_list<T> of_these) { return of_these.begin()[of(0, static_cast<uint32_t>(of_these.size()) - 1)]; }

 private:
  std::mt19937 random_;
};

inline mr_tensor_spec row_major(const Shape& s, DType dtype) { return spec(s, dtype, MR_ROW_MAJOR); }

// fn(index) for every index of a shape, in row-major order.
template <class F>
void each(const Shape& s, F fn) {
  std::array<uint32_t, MR_MAX_RANK> at{};
  for (size_t i = 0, n = s.elements(); i < n; ++i) {
    fn(at);
    for (uint32_t d = s.rank; d-- != 0 && ++at[d] == s.dims[d];) at[d] = 0;
  }
}
using Index = std::array<uint32_t, MR_MAX_RANK>;
inline size_t flat(const Shape& s, const Index& at) {
  size_t i = 0;
  for (uint32_t d = 0; d < s.rank; ++d) i = i * s.dims[d] + at[d];
  return i;
}

struct HaloCase {
  Shape local;
  uint32_t count = 1;
  uint32_t dims[2]{}, axes[2]{}, left[2]{}, right[2]{}, links[2]{1, 1};
  uint32_t mode = MR_PAD_ZEROS;
  uint32_t logical_h = 0;  // 0 = all rows
  uint32_t t_front = 0;

  Shape padded() const {
    Shape s = local;
    for (uint32_t i = 0; i < count; ++i) s.dims[dims[i]] += left[i] + right[i];
    if (t_front != 0) s.dims[dims[0] - 1] += t_front;
    return s;
  }
};

// A tensor over the whole mesh, cut along the dims of a case, and different on lines that the case does not cut.
template <class T>
struct Whole {
  Whole(uint32_t rows, uint32_t cols, const HaloCase& c, uint32_t seed) : rows_(rows), cols_(cols), c_(c), shape_(c.local) {
    for (uint32_t i = 0; i < c.count; ++i) shape_.dims[c.dims[i]] *= c.axes[i] == 0 ? rows : cols;
    // One for each position on an axis that is not cut.
    copies_ = c.count == 2 ? 1 : (c.axes[0] == 0 ? cols : rows);
    data_ = random_shards<T>(copies_, shape_, seed);
    for (auto& v : data_)
      for (T& x : v) x = x == 0 ? T{1} : x;  // so that zeros mean something
  }
  uint32_t position(uint32_t device, uint32_t axis) const { return axis == 0 ? device / cols_ : device % cols_; }
  const std::vector<T>& of(uint32_t device) const { return data_[c_.count == 2 ? 0 : position(device, 1 - c_.axes[0])]; }
  std::vector<T>& of(uint32_t device) { return data_[c_.count == 2 ? 0 : position(device, 1 - c_.axes[0])]; }

  Shards<T> shards() const {
    Shards<T> out(rows_ * cols_);
    for (uint32_t d = 0; d < out.size(); ++d)
      each(c_.local, [&](Index at) {
        for (uint32_t i = 0; i < c_.count; ++i) at[c_.dims[i]] += position(d, c_.axes[i]) * c_.local.dims[c_.dims[i]];
        out[d].push_back(of(d)[flat(shape_, at)]);
      });
    return out;
  }
  // What a device must hold after the padding.
  std::vector<T> padded(uint32_t device) const {
    std::vector<T> out;
    each(c_.padded(), [&](Index at) {
      bool zero = false;
      if (c_.t_front != 0) {
        uint32_t& t = at[c_.dims[0] - 1];
        if (t < c_.t_front) {
          out.push_back(0);
          return;
        }
        t -= c_.t_front;
      }
      for (uint32_t i = 0; i < c_.count; ++i) {
        const int64_t n = shape_.dims[c_.dims[i]];
        int64_t x = int64_t{at[c_.dims[i]]} - c_.left[i] + int64_t{position(device, c_.axes[i])} * c_.local.dims[c_.dims[i]];
        if (x < 0 || x >= n) zero = zero || c_.mode == MR_PAD_ZEROS;
        x = std::clamp<int64_t>(x, 0, n - 1);
        if (i == 0 && c_.logical_h != 0 && x >= c_.logical_h) zero = true;
        at[c_.dims[i]] = static_cast<uint32_t>(x);
      }
      out.push_back(zero ? T{0} : of(device)[flat(shape_, at)]);
    });
    return out;
  }

 private:
  uint32_t rows_, cols_;
  HaloCase c_;
  Shape shape_;
  uint32_t copies_ = 1;
  Shards<T> data_;
};

// The compact buffer, gathered from what the padded tensor [.., H, W, C] must hold.
template <class T>
std::vector<T> compact_of(const std::vector<T>& padded, const Shape& s, const uint32_t (&left)[2], const uint32_t (&right)[2]) {
  const uint32_t h = s.rank - 3, outer = static_cast<uint32_t>(s.product(0, h)), rows = s.dims[h], cols = s.dims[h + 1], channels = s.dims[h + 2];
  std::vector<T> out;
  const auto stick = [&](uint32_t o, uint32_t r, uint32_t c) {
    for (uint32_t k = 0; k < channels; ++k) out.push_back(padded[((size_t{o} * rows + r) * cols + c) * channels + k]);
  };
  const auto across = [&](uint32_t row, uint32_t row_end) {
    for (uint32_t o = 0; o < outer; ++o)
      for (uint32_t r = row; r < row_end; ++r)
        for (uint32_t c = left[1]; c < cols - right[1]; ++c) stick(o, r, c);
  };
  const auto down = [&](uint32_t col, uint32_t col_end) {
    for (uint32_t o = 0; o < outer; ++o)
      for (uint32_t c = col; c < col_end; ++c)
        for (uint32_t r = 0; r < rows; ++r) stick(o, r, c);
  };
  across(0, left[0]);
  across(rows - right[0], rows);
  down(0, left[1]);
  down(cols - right[1], cols);
  return out;
}

// Semaphores of one bank for the halo exchanges: one per axis, and a barrier per axis.
struct HaloBank {
  std::vector<mr_handle> s;
  explicit HaloBank(TestMesh& mesh) : s(mesh.semaphores(4)) {}
  mr_handle neighbor(uint32_t axis) const { return s[axis]; }
  mr_handle barrier(uint32_t axis) const { return s[2 + axis]; }
};

inline bool at_rest(TestMesh& mesh, const HaloBank& bank) {
  for (const mr_handle s : bank.s)
    for (uint32_t d = 0; d < mesh.devices(); ++d)
      if (mesh.value(s, d) != 0) return false;
  return true;
}

inline uint32_t first_axis(const HaloCase& c) { return c.left[0] + c.right[0] != 0 ? c.axes[0] : c.axes[1]; }

inline mr_neighbor_pad neighbor_pad_op(mr_handle input, const HaloCase& c, const HaloBank& bank) {
  auto op = make_op<mr_neighbor_pad>(MR_OP_NEIGHBOR_PAD);
  op.input = input;
  op.count = c.count;
  op.mode = c.mode;
  for (uint32_t i = 0; i < c.count; ++i) {
    op.dims[i] = c.dims[i];
    op.axes[i] = c.axes[i];
    op.pad_left[i] = c.left[i];
    op.pad_right[i] = c.right[i];
    op.num_links[i] = c.links[i];
    if (c.left[i] + c.right[i] != 0) op.semaphores[i] = bank.neighbor(c.axes[i]);
  }
  op.barrier = bank.barrier(first_axis(c));
  if (c.logical_h != 0) {
    op.h.present = MR_HAS_LOGICAL_H;
    op.logical_h = c.logical_h;
  }
  op.t_front_pad = c.t_front;
  return op;
}

// dims must be H, or H and W.
inline mr_neighbor_pad_halo neighbor_pad_halo_op(mr_handle input, mr_handle halo, const HaloCase& c, const HaloBank& bank) {
  auto op = make_op<mr_neighbor_pad_halo>(MR_OP_NEIGHBOR_PAD_HALO);
  op.input = input;
  op.halo = halo;
  op.mode = c.mode;
  op.axis_h = c.axes[0];
  op.pad_h_left = c.left[0];
  op.pad_h_right = c.right[0];
  op.links_h = c.links[0];
  if (c.left[0] + c.right[0] != 0) op.semaphore_h = bank.neighbor(c.axes[0]);
  if (c.count == 2) {
    op.h.present = MR_HAS_W;
    op.axis_w = c.axes[1];
    op.pad_w_left = c.left[1];
    op.pad_w_right = c.right[1];
    op.links_w = c.links[1];
    if (c.left[1] + c.right[1] != 0) op.semaphore_w = bank.neighbor(c.axes[1]);
  }
  op.barrier = bank.barrier(first_axis(c));
  return op;
}

// A copy of a tensor, on the device: what a later launch does to the original does not show in it.
inline mr_handle snapshot(TestMesh& mesh, mr_handle tensor, const Shape& s) {
  auto op = make_op<mr_slice>(MR_OP_SLICE);
  op.input = tensor;
  op.rank = s.rank;
  for (uint32_t d = 0; d < s.rank; ++d) op.end[d] = s.dims[d];
  mesh.enqueue(op);
  return op.output;
}

template <class T>
mr_handle upload_rows(TestMesh& mesh, const Shape& s, DType dtype, const Shards<T>& shards) {
  const mr_handle h = mesh.alloc(row_major(s, dtype));
  mesh.write(h, s, shards);
  return h;
}

}  // namespace meshrun::test
