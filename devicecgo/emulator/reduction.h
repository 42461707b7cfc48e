// reduction.h: one step of a reduction over a chunk: what came from the device behind, plus the device's own part.
//
// A bfloat16 partial sum is written to the peer's intermediate rounded, and its float32 value travels with it as a shadow that costs
// no bytes on the wire. If the intermediate no longer holds what the shadow rounds to, somebody has overwritten it, and
// what it holds is used: damage is not hidden by the shadow. Mode per_hop has no shadows. float32 and 32-bit integers need none.
#pragma once

#include <memory>
#include <vector>

#include "host_pool.h"
#include "parallel.h"
#include "region.h"
#include "view.h"

namespace meshrun::emu {

// Shadow is the float32 values of one chunk where it lies now. Work on the chunk orders the accesses to it.
struct Shadow {
  Block block;  // empty: the intermediate's own values are exact
  float* values() const { return reinterpret_cast<float*>(block.data()); }
};

// Shadows of one launch: a slot for every chunk that a device may have in its intermediate.
class Shadows {
 public:
  void resize(size_t slots) { slots_ = std::make_unique<Shadow[]>(slots); }
  Shadow* at(size_t slot) const { return slots_ ? &slots_[slot] : nullptr; }

 private:
  std::unique_ptr<Shadow[]> slots_;
};

// Part is one summand: a partial sum with its shadow, or a device's own input.
struct Part {
  const std::byte* data = nullptr;  // null: none
  Region region;
  Shadow* shadow = nullptr;  // of a partial sum; null: none is kept
};

struct ReduceStep {
  DType dtype = DType::bfloat16;
  HostPool* pool = nullptr;
  Part behind;            // the partial sum that came; none at the first summand
  Part own;
  Part other;             // on a line, at the owner: the partial sum from the other way
  std::byte* to = nullptr;
  Region target;
  Shadow* keep = nullptr;  // where the sum's shadow goes; null: it is not kept (the owner's rounding, or none needed)

  void operator()(Parallel& parallel) const;
  // Steps that follow one another on one chunk: the sum of each goes on in the next, in float32. What a step writes nobody has touched
  // when the next one takes it, or they would not be a chain.
  static void run_chain(const ReduceStep* const* steps, size_t n, Parallel& parallel);
};

}  // namespace meshrun::emu
