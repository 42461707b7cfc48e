// kernel_copy.h: copying many bytes.
#pragma once

#include <cstddef>

#include "parallel.h"

namespace meshrun::emu {

// Copies that move more bytes than this in all should stream.
constexpr size_t kStreamBytes = size_t{8} << 20;

// Like memcpy, but past the caches: reading the target's lines before they are overwritten would take a third of the
// memory's speed. For runs of copies that are larger than the caches; others are faster with memcpy.
void copy_streaming(void* to, const void* from, size_t bytes);

// The whole of a contiguous copy, in pieces and in the better way for its size.
void copy(void* to, const void* from, size_t bytes, Parallel& par);

}  // namespace meshrun::emu
