#include "kernel_scratch.h"

#include <algorithm>
#include <new>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace meshrun::emu {
namespace {

constexpr size_t kHuge = size_t{2} << 20;               // bytes of a huge page
constexpr size_t kKeptFloats = (size_t{64} << 20) / 4;  // what a thread keeps at most
constexpr size_t kKeptBlocks = 16;

struct Block {
  float* data;
  size_t floats;
};

std::align_val_t alignment(size_t floats) { return std::align_val_t{floats * sizeof(float) >= kHuge ? kHuge : size_t{64}}; }

void release(Block b) { ::operator delete(b.data, alignment(b.floats)); }

// The blocks of this thread that nobody uses.
class FreeBlocks {
 public:
  FreeBlocks() { blocks_.reserve(kKeptBlocks); }
  ~FreeBlocks() {
    for (const Block b : blocks_) release(b);
  }

  Block take(size_t floats) {
    auto best = blocks_.end();
    for (auto it = blocks_.begin(); it != blocks_.end(); ++it)
      if (it->floats >= floats && (best == blocks_.end() || it->floats < best->floats)) best = it;
    // A block that is far too large is left for those that need it.
    if (best != blocks_.end() && best->floats <= 4 * floats + 16384) {
      const Block b = *best;
      kept_ -= b.floats;
      blocks_.erase(best);
      return b;
    }
    const size_t bytes = floats * sizeof(float);
    const size_t unit = bytes >= kHuge ? kHuge : 4096;
    const size_t rounded = std::max(unit, (bytes + unit - 1) / unit * unit);
    const Block b{static_cast<float*>(::operator new(rounded, alignment(rounded / sizeof(float)))), rounded / sizeof(float)};
#if defined(__linux__)
    if (rounded >= kHuge) madvise(b.data, rounded, MADV_HUGEPAGE);  // advice only: failing is no error
#endif
    return b;
  }

  void give(Block b) noexcept {
    // The oldest goes first, so sizes that are no longer in use do not stay.
    while (!blocks_.empty() && (blocks_.size() >= kKeptBlocks || kept_ + b.floats > kKeptFloats)) {
      kept_ -= blocks_.front().floats;
      release(blocks_.front());
      blocks_.erase(blocks_.begin());
    }
    if (b.floats > kKeptFloats) return release(b);
    blocks_.push_back(b);
    kept_ += b.floats;
  }

 private:
  std::vector<Block> blocks_;
  size_t kept_ = 0;  // floats in blocks_
};

thread_local FreeBlocks free_blocks;

}  // namespace

Scratch::Scratch(size_t floats) {
  const Block b = free_blocks.take(floats);
  data_ = b.data;
  floats_ = b.floats;
}

Scratch::~Scratch() { free_blocks.give({data_, floats_}); }

}  // namespace meshrun::emu
