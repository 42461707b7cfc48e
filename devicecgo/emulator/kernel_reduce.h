// kernel_reduce.h: what one step of a reduction does to a contiguous run of n elements. Runs do not overlap, except that an
// output may be the input itself where the types are the same. The result for an element does not depend on where the run is
// cut (except which of two NaNs a sum of both becomes).
#pragma once

#include <cstddef>
#include <cstdint>

namespace meshrun::emu {

void widen_bf16(float* out, const uint16_t* in, size_t n);
void round_bf16(uint16_t* out, const float* in, size_t n);

void add_bf16(float* acc, const uint16_t* x, size_t n);  // acc += x
void add_f32(float* acc, const float* x, size_t n);

// shadow += x; rounded_out = round(shadow). rounded_out may be x. Fetches what lies `ahead` elements on, if that is not 0: the next
// run, where runs lie too far apart for the machine to see it coming.
void add_round_bf16(float* shadow, const uint16_t* x, uint16_t* rounded_out, size_t n, size_t ahead = 0);

// The same, but where held != round(shadow), bit for bit, shadow first becomes held: a partial sum as memory holds it, with a
// shadow that is believed only as long as memory bears it out.
void add_round_held_bf16(float* shadow, const uint16_t* held, const uint16_t* x, uint16_t* rounded_out, size_t n, size_t ahead = 0);

// Is got == round(shadow), bit for bit, everywhere?
bool rounds_to(const float* shadow, const uint16_t* got, size_t n);

}  // namespace meshrun::emu
