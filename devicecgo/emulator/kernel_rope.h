// kernel_rope.h: rotary position embedding.
#pragma once

#include "parallel.h"
#include "view.h"

namespace meshrun::emu {

// out = x*cos + rotate(x)*sin over the last dim D, which must be even. The tables broadcast against x ([1,1,N,D],
// [1,H,N,D]). out may be x. MR_ROPE_INTERLEAVED: rotate(x)[2i] = -x[2i+1], rotate(x)[2i+1] = x[2i]. MR_ROPE_HALF: rotate(x)
// = concat(-x[D/2:], x[:D/2]).
void rope(uint32_t mode, ConstView x, ConstView cos, ConstView sin, View out, Parallel& par);

}  // namespace meshrun::emu
