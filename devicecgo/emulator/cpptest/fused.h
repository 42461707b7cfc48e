// fused.h: what the tests of the fused programs share.
#pragma once

#include <algorithm>
#include <cmath>

#include "collectives.h"

namespace meshrun::test {

// A number of [low, high], or one of a list.
struct Dice {
  std::mt19937 random;
  explicit Dice(uint32_t seed) : random(seed) {}
  uint32_t in(uint32_t low, uint32_t high) { return std::uniform_int_distribution<uint32_t>(low, high)(random); }
  uint32_t of(std::initializer_list<uint32_t> list) { return list.begin()[in(0, static_cast<uint32_t>(list.size()) - 1)]; }
  bool coin() { return in(0, 1) == 1; }
};

inline mr_handle upload_floats(TestMesh& mesh, const Shape& s, DType dtype, const Shards<float>& x) {
  return dtype == DType::bfloat16 ? mesh.upload(s, dtype, bf16(x)) : mesh.upload(s, dtype, x);
}
inline std::vector<float> read_floats(TestMesh& mesh, mr_handle h, DType dtype, uint32_t device) {
  return dtype == DType::bfloat16 ? widened(mesh.read<uint16_t>(h, device)) : mesh.read<float>(h, device);
}

// The largest difference, in units of tolerance * (1 + |expected|).
inline double worst(const std::vector<float>& got, const std::vector<double>& expected, double tolerance) {
  REQUIRE(got.size() == expected.size());
  double w = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double d = std::abs(got[i] - expected[i]) / (1 + std::abs(expected[i])) / tolerance;
    w = std::isnan(d) ? INFINITY : std::max(w, d);
  }
  return w;
}
inline double tolerance_of(DType dtype) { return dtype == DType::bfloat16 ? 1.0 / 256 : 2e-5; }

inline uint64_t virtual_ns(TestMesh& mesh, uint64_t first_launch, uint64_t last_launch) {
  mr_launch_profile a{}, b{};
  a.size = b.size = sizeof a;
  mr_error e = fresh_error();
  REQUIRE(extension().launch_profile(mesh.handle(), first_launch, &a, &e) == MR_OK);
  REQUIRE(extension().launch_profile(mesh.handle(), last_launch, &b, &e) == MR_OK);
  REQUIRE(b.retired == 1);
  return b.end_ns - a.start_ns;
}

inline bool all_zero(TestMesh& mesh, const std::vector<mr_handle>& semaphores) {
  for (const mr_handle s : semaphores)
    for (uint32_t d = 0; d < mesh.devices(); ++d)
      if (mesh.value(s, d) != 0) return false;
  return true;
}

inline void set_semaphores(TestMesh& mesh, const std::vector<mr_handle>& s, uint32_t value) {
  mr_error e = fresh_error();
  REQUIRE(driver().semaphores_reset(mesh.handle(), s.data(), static_cast<uint32_t>(s.size()), value, &e) == MR_OK);
}

}  // namespace meshrun::test
