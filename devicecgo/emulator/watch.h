// watch.h: the no-progress limits. An operation over a mesh that waits, and of which nothing moves for so long, is a hang, whatever else may
// still happen. Progress of a launch: a device enters or leaves it, a semaphore of it moves, one of its transfers is on a link, a device
// computes in it; and so is, for a device that has not entered it, the progress of the launch that this device is in.
// A deadline is never before that of a launch that such a device is in, the holder; a holder without a limit has none, and shields those that wait for
// a device in it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace meshrun::emu {

// NoProgress says after how long an operation is taken to hang; 0 = never.
struct NoProgress {
  uint64_t otherwise_ns = 0;
  std::map<std::string, uint64_t, std::less<>> of_ns;  // by operation

  uint64_t of(std::string_view op) const {
    const auto own = of_ns.find(op);
    return own != of_ns.end() ? own->second : otherwise_ns;
  }
  uint64_t least() const {  // but for 0
    uint64_t least = otherwise_ns;
    for (const auto& [name, ns] : of_ns)
      if (ns != 0 && (least == 0 || ns < least)) least = ns;
    return least;
  }
};

// Watch says when somebody has to look. It has no events of its own: they would be time that passes.
class Watch {
 public:
  explicit Watch(const NoProgress& limits) : limits_(limits), least_ns_(limits.least()) {}
  bool on() const { return least_ns_ != 0; }
  uint64_t limit_ns(std::string_view op) const { return on() ? limits_.of(op) : 0; }
  // No limit can pass before.
  uint64_t next_ns() const { return next_ns_; }
  void set_next(uint64_t ns) { next_ns_ = ns; }
  void arm(uint64_t now_ns) {
    if (on()) next_ns_ = std::min(next_ns_, now_ns + least_ns_);
  }

 private:
  const NoProgress& limits_;
  uint64_t least_ns_;
  uint64_t next_ns_ = UINT64_MAX;
};

}  // namespace meshrun::emu
