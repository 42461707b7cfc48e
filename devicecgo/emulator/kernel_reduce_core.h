// kernel_reduce_core.h: the loops of kernel_reduce.h, compiled once per instruction set (see kernel_targets.h).

#include "kernel_simd.h"

void widen_run(float* out, const uint16_t* in, size_t n) {
  sweep_twice(n, [=](size_t i, auto part) { part.store(out + i, part.load(in + i)); });
}

void round_run(uint16_t* out, const float* in, size_t n) {
  sweep_twice(n, [=](size_t i, auto part) { part.store_rounded(out + i, part.load(in + i)); });
}

template <class T>
void add_run(float* acc, const T* x, size_t n) {
  sweep_twice(n, [=](size_t i, auto part) { part.store(acc + i, part.load(acc + i) + part.load(x + i)); });
}

void add_round_run(float* shadow, const uint16_t* x, uint16_t* rounded_out, size_t n, size_t ahead) {
  sweep_twice(n, [=](size_t i, auto part) {
    if (ahead != 0) {
      __builtin_prefetch(x + i + ahead);
      __builtin_prefetch(rounded_out + i + ahead, 1);
    }
    const auto sum = part.load(shadow + i) + part.load(x + i);
    part.store(shadow + i, sum);
    part.store_rounded(rounded_out + i, sum);
  });
}

MESHRUN_INLINE Words difference(Floats exact, Floats got) { return round(exact) ^ bits(got); }
MESHRUN_INLINE Words difference(Pair exact, Pair got) { return difference(exact.a, got.a) | difference(exact.b, got.b); }

// exact where it rounds to what is held, else what is held
MESHRUN_INLINE Floats believed(Floats exact, Floats held) {
  const Words same = (difference(exact, held) >> 16) == 0u;  // what round leaves in the lower half does not count
  return floats((bits(exact) & same) | (bits(held) & ~same));
}
MESHRUN_INLINE Pair believed(Pair exact, Pair held) { return {believed(exact.a, held.a), believed(exact.b, held.b)}; }

void add_round_held_run(float* shadow, const uint16_t* held, const uint16_t* x, uint16_t* rounded_out, size_t n, size_t ahead) {
  sweep_twice(n, [=](size_t i, auto part) {
    if (ahead != 0) {
      __builtin_prefetch(held + i + ahead);
      __builtin_prefetch(x + i + ahead);
      __builtin_prefetch(rounded_out + i + ahead, 1);
    }
    const auto sum = believed(part.load(shadow + i), part.load(held + i)) + part.load(x + i);
    part.store(shadow + i, sum);
    part.store_rounded(rounded_out + i, sum);
  });
}

bool rounds_to_run(const float* shadow, const uint16_t* got, size_t n) {
  constexpr size_t kBlock = 1024;  // how much is compared before looking at the outcome
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const float* s = shadow + begin;
    const uint16_t* g = got + begin;
    Words different{};
    sweep_twice(n - begin < kBlock ? n - begin : kBlock,
                [=, &different](size_t i, auto part) { different |= difference(part.load(s + i), part.load(g + i)); });
    uint32_t any = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) any |= different[lane];
    if (any >> 16 != 0) return false;  // what round leaves in the lower half does not count
  }
  return true;
}
