// kernel_bfloat8.h: bfloat8_b, block floating point. 16 values that lie one behind the other in a row share an exponent, the largest of theirs; of
// each a sign and 7 bits are kept. Here they are float32 whose values such a block can hold.
#pragma once

#include "parallel.h"
#include "view.h"

namespace meshrun::emu {

constexpr size_t kBlockValues = 16;

// Rounds n <= kBlockValues values, a block or the end of a row, to what a block holds: low bits beyond float32's 24 below the shared exponent
// are cut off, the rest is rounded to nearest even and saturates. Subnormals and -0 become 0; an infinity stays, and its block loses
// the small values; a NaN stays.
void round_block(float* values, size_t n);

// The same for all blocks of a tensor of bfloat8_b; nothing for other types. Whoever writes such a tensor ends with it.
void round_blocks(View tensor, Parallel& par);

}  // namespace meshrun::emu
