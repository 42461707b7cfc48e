// collectives.h: collectives as tests issue them, and their results computed element by element.
#pragma once

#include <random>

#include "harness.h"

namespace meshrun::test {

template <class T>
using Shards = std::vector<std::vector<T>>;

template <class T>
Shards<T> random_shards(uint32_t devices, const Shape& s, uint32_t seed) {
  std::mt19937_64 random(seed);
  Shards<T> shards(devices);
  for (auto& v : shards) {
    v.resize(s.elements());
    for (T& x : v) x = static_cast<T>(random());
  }
  return shards;
}

inline std::vector<uint16_t> bf16(const std::vector<float>& v) {
  std::vector<uint16_t> out;
  for (const float x : v) out.push_back(emu::to_bf16(x));
  return out;
}
inline std::vector<float> widened(const std::vector<uint16_t>& v) {
  std::vector<float> out;
  for (const uint16_t x : v) out.push_back(emu::to_float(x));
  return out;
}

// Floats in [-1, 1), rounded to bfloat16 where asked.
inline Shards<float> random_floats(uint32_t devices, const Shape& s, uint32_t seed, bool round) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> values(-1, 1);
  Shards<float> shards(devices);
  for (auto& v : shards) {
    v.resize(s.elements());
    for (float& x : v) {
      x = values(random);
      if (round) x = emu::to_float(emu::to_bf16(x));
    }
  }
  return shards;
}

inline Shards<uint16_t> bf16(const Shards<float>& shards) {
  Shards<uint16_t> out;
  for (const auto& v : shards) out.push_back(bf16(v));
  return out;
}

template <class T>
std::vector<T> gathered(const Shards<T>& shards, const std::vector<uint32_t>& line, const Shape& s, uint32_t dim) {
  const size_t outer = s.product(0, dim), inner = s.product(dim, s.rank);
  std::vector<T> out;
  for (size_t o = 0; o < outer; ++o)
    for (const uint32_t d : line) out.insert(out.end(), shards[d].begin() + o * inner, shards[d].begin() + (o + 1) * inner);
  return out;
}

// Slice `index` of n along `dim`.
template <class T>
std::vector<T> slice_of(const std::vector<T>& whole, const Shape& s, uint32_t dim, uint32_t n, uint32_t index) {
  const size_t outer = s.product(0, dim), inner = s.product(dim, s.rank), run = inner / n;
  std::vector<T> out;
  for (size_t o = 0; o < outer; ++o) out.insert(out.end(), whole.begin() + o * inner + index * run, whole.begin() + o * inner + (index + 1) * run);
  return out;
}

// One bank of semaphores for collectives over an axis.
struct Bank {
  std::vector<mr_handle> s;
  explicit Bank(TestMesh& mesh) : s(mesh.semaphores(4)) {}
};

inline mr_all_gather all_gather_op(mr_handle input, uint32_t dim, uint32_t axis, bool ring, const Bank& bank, bool barrier = true, uint32_t links = 1) {
  auto op = make_op<mr_all_gather>(MR_OP_ALL_GATHER);
  op.input = input;
  op.semaphores[0] = bank.s[0];
  op.semaphores[1] = bank.s[1];
  op.barrier = barrier ? bank.s[3] : 0;
  op.dim = dim;
  op.axis = axis;
  op.num_links = links;
  op.topology = ring ? MR_RING : MR_LINEAR;
  return op;
}

inline mr_reduce_scatter reduce_scatter_op(mr_handle input, uint32_t dim, uint32_t axis, bool ring, const Bank& bank, uint32_t links = 1) {
  auto op = make_op<mr_reduce_scatter>(MR_OP_REDUCE_SCATTER);
  op.input = input;
  for (int i = 0; i < 3; ++i) op.semaphores[i] = bank.s[i];
  op.barrier = bank.s[3];
  op.dim = dim;
  op.axis = axis;
  op.num_links = links;
  op.topology = ring ? MR_RING : MR_LINEAR;
  op.memory = MR_DRAM;
  return op;
}

inline bool at_rest(TestMesh& mesh, const Bank& bank) {
  for (const mr_handle s : bank.s)
    for (uint32_t d = 0; d < mesh.devices(); ++d)
      if (mesh.value(s, d) != 0) return false;
  return true;
}

struct MeshCase {
  uint32_t rows, cols;
};

}  // namespace meshrun::test
