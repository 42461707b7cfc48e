#include "kernel_reduce.h"

#define MESHRUN_KERNEL_CORE "kernel_reduce_core.h"
#include "kernel_targets.h"

namespace meshrun::emu {

void widen_bf16(float* out, const uint16_t* in, size_t n) { MESHRUN_BEST(widen_run)(out, in, n); }

void round_bf16(uint16_t* out, const float* in, size_t n) { MESHRUN_BEST(round_run)(out, in, n); }

void add_bf16(float* acc, const uint16_t* x, size_t n) { MESHRUN_BEST(add_run<uint16_t>)(acc, x, n); }

void add_f32(float* acc, const float* x, size_t n) { MESHRUN_BEST(add_run<float>)(acc, x, n); }

void add_round_bf16(float* shadow, const uint16_t* x, uint16_t* rounded_out, size_t n, size_t ahead) {
  MESHRUN_BEST(add_round_run)(shadow, x, rounded_out, n, ahead);
}

void add_round_held_bf16(float* shadow, const uint16_t* held, const uint16_t* x, uint16_t* rounded_out, size_t n, size_t ahead) {
  MESHRUN_BEST(add_round_held_run)(shadow, held, x, rounded_out, n, ahead);
}

bool rounds_to(const float* shadow, const uint16_t* got, size_t n) { return MESHRUN_BEST(rounds_to_run)(shadow, got, n); }

}  // namespace meshrun::emu
