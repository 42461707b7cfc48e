// vector_clock.h: who knows what of whom. A device's place in a queue is a timeline; a clock holds, for every timeline of the mesh, up to
// which step it is known to have come. What a program does carries its Stamp: on whose behalf, and what it knew.
//
// Steps are entries and exits of whole launches, so a stamp changes only when a program learns something new, about once per launch and
// neighbour, and an increment carries a pointer to it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace meshrun::emu {

// StreamTag is a stream as reports call it: by its name, or else by its number.
struct StreamTag {
  uint32_t number = 0;
  const char* name = nullptr;
  std::string text() const { return name != nullptr ? name : std::to_string(number); }
};

// A timeline has two steps for each command: 2k = its first k commands are over, 2k + 1 = and the next has been entered. Only the device
// itself can tell the second.
constexpr uint32_t over_step(uint64_t commands) { return static_cast<uint32_t>(2 * commands); }

// LaunchTag names one command of a queue in reports. Position tells commands of one queue apart.
struct LaunchTag {
  const char* op = "";
  uint64_t number = 0;  // of the launch on the mesh; 0 = a write, or memory being made
  uint64_t seq = 0;     // the runtime's number
  StreamTag stream;
  uint32_t queue = 0;
  uint32_t position = 0;

  uint32_t reached_step() const { return over_step(position); }  // all in front of it is over
  uint32_t entered_step() const { return over_step(position) + 1; }
  uint32_t left_step() const { return over_step(uint64_t{position} + 1); }
  uint64_t shown() const { return seq != 0 ? seq : number; }  // what reports call it
  bool same(const LaunchTag& o) const { return queue == o.queue && position == o.position; }
};

class Clock {
 public:
  Clock() = default;
  explicit Clock(size_t timelines) : steps_(timelines) {}
  bool empty() const { return steps_.empty(); }
  size_t size() const { return steps_.size(); }
  uint32_t operator[](size_t timeline) const { return steps_[timeline]; }
  void raise(size_t timeline, uint32_t to) { steps_[timeline] = steps_[timeline] < to ? to : steps_[timeline]; }
  // Takes in what the other knows. True when that was anything new.
  bool join(const Clock& o) {
    bool news = false;
    for (size_t i = 0; i < steps_.size(); ++i)
      if (steps_[i] < o.steps_[i]) steps_[i] = o.steps_[i], news = true;
    return news;
  }
  bool knows(const Clock& o) const {
    for (size_t i = 0; i < steps_.size(); ++i)
      if (steps_[i] < o.steps_[i]) return false;
    return true;
  }

 private:
  std::vector<uint32_t> steps_;
};

struct Stamp {
  LaunchTag tag;
  uint32_t device = 0;
  Clock clock;

 private:
  friend class StampRef;
  mutable std::atomic<uint32_t> refs_{1};
};

// StampRef counts the references to a stamp, which never changes. They may go on any thread.
class StampRef {
 public:
  StampRef() = default;
  StampRef(const StampRef& o) : stamp_(o.stamp_) {
    if (stamp_ != nullptr) stamp_->refs_.fetch_add(1, std::memory_order_relaxed);
  }
  StampRef(StampRef&& o) noexcept : stamp_(std::exchange(o.stamp_, nullptr)) {}
  StampRef& operator=(StampRef o) noexcept {
    std::swap(stamp_, o.stamp_);
    return *this;
  }
  ~StampRef() {
    if (stamp_ != nullptr && stamp_->refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete stamp_;
  }
  static StampRef make(const LaunchTag& tag, uint32_t device, Clock clock) {
    StampRef r;
    Stamp* s = new Stamp;
    s->tag = tag;
    s->device = device;
    s->clock = std::move(clock);
    r.stamp_ = s;
    return r;
  }
  explicit operator bool() const { return stamp_ != nullptr; }
  const Stamp* get() const { return stamp_; }
  const Stamp* operator->() const { return stamp_; }
  const Stamp& operator*() const { return *stamp_; }

 private:
  const Stamp* stamp_ = nullptr;
};

// Strand is one program of those that run side by side on a device: what it has waited for is what it knows. `here` is the one that
// runs on this thread; whatever resumes a program's coroutine sets it.
class Strand {
 public:
  static Strand*& here() {
    thread_local Strand* strand = nullptr;
    return strand;
  }
  const StampRef& stamp() const { return stamp_; }
  void set(StampRef stamp) {
    stamp_ = std::move(stamp);
    last_ = {};
  }
  void fork(const Strand& from) { stamp_ = from.stamp_; }
  void learn(const StampRef& from) {
    if (!stamp_ || !from || from.get() == stamp_.get() || from.get() == last_.get()) return;
    last_ = from;
    if (stamp_->clock.knows(from->clock)) return;
    Clock clock = stamp_->clock;
    clock.join(from->clock);
    stamp_ = StampRef::make(stamp_->tag, stamp_->device, std::move(clock));
  }

 private:
  StampRef stamp_;  // null: nobody checks
  StampRef last_;   // learnt last
};

}  // namespace meshrun::emu
