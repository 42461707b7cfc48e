// skew.h: seeded delays, by which devices and links drift apart. A delay is a function of the seed and of what it delays, so the same
// seed gives the same run.
#pragma once

#include <cstdint>

namespace meshrun::emu {

enum class Skew : uint64_t { dispatch, link, creation, look };

inline uint64_t splitmix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

inline uint64_t seeded(uint64_t seed, uint64_t where, uint64_t launch, Skew what) {
  return splitmix64(splitmix64(seed ^ where << 48 ^ static_cast<uint64_t>(what) << 40) ^ launch);
}

}  // namespace meshrun::emu
