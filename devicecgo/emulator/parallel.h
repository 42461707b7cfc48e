// parallel.h: how a kernel spreads its work. A kernel cuts only over independent outputs, so that its result does not
// depend on how many threads there are.
#pragma once

#include <cstddef>
#include <functional>

namespace meshrun::emu {

class Parallel {
 public:
  virtual ~Parallel() = default;
  // Calls fn(begin, end) over pieces of [0, n), each of at least `grain` items (the last may be smaller), and returns when all
  // are done. The calling thread takes part.
  virtual void run(size_t n, size_t grain, const std::function<void(size_t, size_t)>& fn) = 0;
};

// Serial runs everything on the caller.
class Serial final : public Parallel {
 public:
  void run(size_t n, size_t, const std::function<void(size_t, size_t)>& fn) override {
    if (n != 0) fn(0, n);
  }
};

}  // namespace meshrun::emu
