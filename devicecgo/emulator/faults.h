// faults.h: faults that can be asked for by a line of text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "config.h"
#include "spec.h"

namespace meshrun::emu {

struct Fault {
  enum class Kind { stop, delay, late_allocation, swap, shape, barrier_drop, op_hang, op_fail, op_delay };
  Kind kind = Kind::stop;
  uint32_t device = 0;
  uint64_t launch = 0;    // counts launches on the mesh, from 1; 0 = every one
  uint64_t delay_ns = 0;
  uint64_t other = 0;     // swap: the launch that changes places with `launch`
  Shape shape;            // shape: of the first input, on that device
  std::string op;         // op: its name; `launch` counts launches of it
  uint32_t axis = kAnyAxis;
  static constexpr uint32_t kAnyAxis = UINT32_MAX;
  std::string text;       // as given, blanks evened out

  uint64_t first_launch() const { return !op.empty() ? 0 : other != 0 ? std::min(launch, other) : launch; }  // on the mesh, that it names; 0 = none
};

//   device R,C stop at launch N
//   device R,C delay DUR [at launch N]       DUR like 5ms, 40us, 800ns, 1s
//   device R,C late allocation DUR
//   device R,C swap launch N and M
//   device R,C shape [d0,d1,...] at launch N
//   barrier drop at launch N
//   op KIND [axis A] [#N] hang | fail | delay DUR
// Throws MR_INVALID_ARGUMENT, saying what is wrong, or MR_UNSUPPORTED for faults of docs/faults.md that are not built yet.
Fault parse_fault(const char* text, const Machine& machine);

}  // namespace meshrun::emu
