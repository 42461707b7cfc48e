// copy_region.h: copies between regions of memory.
#pragma once

#include <cstddef>

#include "parallel.h"
#include "region.h"

namespace meshrun::emu {

// `rows` runs of `run` bytes each, from_stride and to_stride apart. Made for short runs: what a slice along the last dim consists of.
void copy_rows(std::byte* to, uint64_t to_stride, const std::byte* from, uint64_t from_stride, uint64_t run, uint64_t rows);

// Data work that copies one region to another of the same size.
struct CopyRegion {
  const std::byte* from;
  std::byte* to;
  Region source, target;
  bool streaming = false;  // past the caches: for operations that move more than the caches hold

  void operator()(Parallel& parallel) const;
  // Each step copies what the one before has written: so all copy what the first reads.
  static void run_chain(const CopyRegion* const* steps, size_t n, Parallel& parallel);
};

}  // namespace meshrun::emu
