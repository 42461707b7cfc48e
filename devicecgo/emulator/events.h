// events.h: what is to happen, in order of virtual time; at one time, in the order in which it was arranged.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "vector_clock.h"

namespace meshrun::emu {

class Context;
struct Word;

// Place is where a launch stands: the queue, and its number there. Increments carry it instead of the launch, which they may outlive.
struct Place {
  static constexpr uint32_t kNowhere = UINT32_MAX;
  uint32_t queue = kNowhere;
  uint32_t position = 0;
};

// Transit is a control packet that goes from device to device and raises a semaphore on each.
struct Transit {
  class Semaphore* semaphore = nullptr;
  uint32_t lane = 0;
  uint32_t amount = 0;
  uint32_t axis = 0;
  uint32_t way = 0;
  uint32_t device = 0;  // where it is
  uint32_t hops_left = 0;
  bool arriving = false;  // false: it sets out
  StampRef by;            // who raises
  uint64_t launch = 0;    // its number
  Place mover;            // the same, for the watch
};

struct Event {
  enum class Kind : uint8_t { resume, deliver, transit, enter, leave };

  uint64_t ns;
  uint64_t order;
  void* object;      // resume: coroutine address; deliver: Word; transit: Transit; enter, leave: Context
  uint64_t tail_ns;  // deliver
  uint32_t amount;   // deliver
  Kind kind;
  StampRef by;       // deliver: who raises
  Place mover;       // the same, for the watch

  bool after(const Event& o) const { return ns != o.ns ? ns > o.ns : order > o.order; }
};

class EventHeap {
 public:
  bool empty() const { return events_.empty(); }
  uint64_t next_ns() const { return events_.front().ns; }
  void clear() { events_.clear(); }

  void push(Event e) {
    e.order = order_++;
    events_.push_back(std::move(e));
    std::push_heap(events_.begin(), events_.end(), later);
  }
  Event pop() {
    std::pop_heap(events_.begin(), events_.end(), later);
    Event e = std::move(events_.back());
    events_.pop_back();
    return e;
  }
  template <class F>
  void for_each(F f) const {
    for (const Event& e : events_) f(e);
  }

 private:
  static bool later(const Event& a, const Event& b) { return a.after(b); }
  std::vector<Event> events_;
  uint64_t order_ = 0;
};

}  // namespace meshrun::emu
