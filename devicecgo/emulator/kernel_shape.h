// kernel_shape.h: moving elements without looking at them; any data type.
#pragma once

#include "parallel.h"
#include "view.h"

namespace meshrun::emu {

// out[i...] = in[begin + i...], with out's shape
void slice(ConstView in, const uint32_t* begin, View out, Parallel& par);

// out = in[0..n) one behind the other along `dim`
void concat(const ConstView* in, size_t n, uint32_t dim, View out, Parallel& par);

// output dim i is input dim order[i]
void permute(ConstView in, const uint32_t* order, View out, Parallel& par);

}  // namespace meshrun::emu
