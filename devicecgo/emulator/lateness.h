// lateness.h: who was late. What a device waits for another that has not begun the launch is no cost of the operation: it is booked as
// waiting for that device. One that has begun it, but waits itself, passes the blame on.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "config.h"
#include "semaphores.h"

namespace meshrun::emu {

class Launch;

// Absence is a time in which a device waited for one that had not come.
struct Absence {
  uint64_t from_ns = 0, to_ns = 0;
  uint32_t late = 0;
  uint64_t ns() const { return to_ns - from_ns; }
};

// Absences are those that one device met in one launch: apart, in order of time. The workers of a device wait side by side; where they
// wait for different devices, the one that came last counts.
class Absences {
 public:
  void clear() { all_.clear(); }
  void add(Absence a);
  bool empty() const { return all_.empty(); }
  uint64_t ns() const;  // in all
  uint64_t end_ns() const { return all_.empty() ? 0 : all_.back().to_ns; }
  std::span<const Absence> all() const { return all_; }

 private:
  std::vector<Absence> all_;
};

// LateDevice is what others waited for one device, in the launches of one operation.
struct LateDevice {
  uint32_t device = 0;
  uint64_t launches = 0;
  uint64_t ns = 0;  // the most that one device waited for it, summed over launches
};

// What became of all launches of one operation.
struct OperationStats {
  const char* name;
  uint64_t launches = 0;
  uint64_t span_ns = 0;     // from the first device's start to the last device's end, summed
  uint64_t waiting_ns = 0;  // the most that one device waited for others to begin, summed
  std::vector<LateDevice> late;
};

class Lateness {
 public:
  explicit Lateness(const Machine& machine) : machine_(machine), devices_(machine.devices()) {}

  // A program of the context has waited so long for what is owed.
  void waited(Context& context, const Owed& owed, uint64_t from_ns, uint64_t to_ns);
  void left(const Context& context);
  // All devices have left the launch.
  void sum_up(const Launch& launch, OperationStats& stats, std::vector<uint64_t>& per_device);

 private:
  // The latest absences that a device has met in launches of one queue that it has left: somebody may still wait for it since then.
  class Recent {
   public:
    void push(const Absence& a) { ring_[count_++ % kKept] = a; }
    template <class F>
    void for_each(F f) const {
      for (uint64_t i = count_ > kKept ? count_ - kKept : 0; i < count_; ++i) f(ring_[i % kKept]);
    }

   private:
    static constexpr uint64_t kKept = 32;
    std::array<Absence, kKept> ring_;
    uint64_t count_ = 0;
  };
  struct Device {
    std::array<Recent, 2> queues;
    uint64_t mine_ns = 0, most_ns = 0;  // of sum_up
  };

  const Machine& machine_;
  std::vector<Device> devices_;
};

}  // namespace meshrun::emu
