// trace.h: operations that were planned once, to be launched again and again without the host's work.
#pragma once

#include <memory>
#include <vector>

#include "launch.h"

namespace meshrun::emu {

struct Trace {
  struct Step {
    std::shared_ptr<Plan> plan;  // its launches share it: what it keeps for one launch is at rest when that launch is over
    std::vector<SemaphoreRef> semaphores;
    uint32_t stream = 0;
  };
  uint32_t queue = 0;
  std::vector<Step> steps;

  // What the steps name keeps its place on the devices as long as the trace lives, although freed.
  std::vector<std::shared_ptr<Storage>> storages;
  std::vector<SemaphoreRef> semaphores;
  // So does the steps' scratch. They run one after the other, so they share it.
  struct Scratch {
    Spec spec;
    Room room;
  };
  std::vector<Scratch> scratch;
};

}  // namespace meshrun::emu
