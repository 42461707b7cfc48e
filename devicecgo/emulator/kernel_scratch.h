// kernel_scratch.h: working memory for kernels. Fresh memory costs several times what using it costs (page faults), so each
// thread keeps what it had for the next call.
#pragma once

#include <cstddef>

namespace meshrun::emu {

// Scratch is room for so many floats, on a cache line boundary and not initialised. Give it back on the thread that took it.
class Scratch {
 public:
  explicit Scratch(size_t floats);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  float* data() const { return data_; }
  operator float*() const { return data_; }

 private:
  float* data_;
  size_t floats_;
};

}  // namespace meshrun::emu
