// core_counters.h: counters in L1 by which the cores of one device tell each other how far they are: a uint32 tensor [cores, cores] with one row
// for each core that listens, and in it a slot for each core that speaks.
//
// What a program waits for is a count inside it; the tensor holds the same numbers, as the cores would see them. A number that is not what
// the count says has been written by somebody else, and fails the launch.
#pragma once

#include <cstring>

#include "context.h"
#include "errors.h"

namespace meshrun::emu {

struct CoreCounters {
  Operand tensor;
  const char* name = "";

  explicit operator bool() const { return bool(tensor); }
  uint32_t cores() const { return tensor.spec.shape.back(0); }
  Region row(uint32_t listener) const { return Region::contiguous(uint64_t{listener} * cores() * 4, uint64_t{cores()} * 4); }
  Region column(uint32_t speaker) const { return {uint64_t{speaker} * 4, 4, uint64_t{cores()} * 4, 0, uint64_t{cores()} * 4}; }

  // Puts `value` into all slots of the region.
  void set(Context& ctx, const Region& region, uint32_t value) const {
    Memory& memory = tensor.at(ctx.device());
    ctx.work({{&memory, region, true}}, region.bytes(), [to = memory.data, region, value](Parallel&) {
      walk(region, Region::contiguous(0, region.bytes()), [=](uint64_t bytes, uint64_t at, uint64_t) {
        for (uint64_t i = 0; i < bytes; i += 4) std::memcpy(to + at + i, &value, 4);
      });
    });
  }
  // One slot must hold at least so much, and no more than `most`.
  void check(Context& ctx, uint32_t listener, uint32_t speaker, uint32_t least, uint32_t most) const {
    Memory& memory = tensor.at(ctx.device());
    const Region slot = row(listener).part(uint64_t{speaker} * 4, uint64_t{speaker} * 4 + 4);
    ctx.work({{&memory, slot, false}}, 4, [from = memory.data, at = slot.first(), what = name, listener, speaker, least, most](Parallel&) {
      uint32_t value;
      std::memcpy(&value, from + at, 4);
      if (value < least || value > most)
        throw error(MR_INTERNAL, "%s[%u][%u] is %u: the cores have counted %u to %u: somebody else has written to it", what, listener, speaker, value, least, most);
    });
  }
  void clear(Context& ctx) const { set(ctx, tensor.whole(), 0); }
};

}  // namespace meshrun::emu
