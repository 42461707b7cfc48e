// checker.h: finds what goes wrong on hardware, whether or not it went wrong this time.
//
// Order is happens-before over launches and devices. A device's commands of one queue are in order. Beyond that somebody knows of
// another device's progress only
//   - by a wait: it comes after those increments without which the value could not have been reached. These are the first n of a
//     single sender; all, where exactly n are due; otherwise the common past of all sets that suffice, which is, timeline by timeline,
//     the n-th smallest of what the increments' senders knew;
//   - by the host: what it had seen done when it enqueued a launch is over on every device;
//   - by an event wait between queues, which orders one device and says nothing of its peers.
// That a device has entered a launch is more than that all in front of it is over there: only what the device sends in it tells.
// Programs that run side by side on a device (one per way and link) know only what they have waited for themselves.
//
// An access of launch j to a word or to bytes on device D is a hazard when a launch that used them before is not known to have left D.
// Of two accesses inside one launch nothing is said: that is the program's own business, and its results are tested.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <string>
#include <vector>

#include "arguments.h"
#include "check_state.h"
#include "dataflow.h"
#include "semaphores.h"

namespace meshrun::emu {

class Context;
class Launch;
struct Machine;

// Waits is who waits for what.
struct Waits {
  std::string json = {};  // a list; empty: nobody has looked
  std::string text = {};  // empty: nobody waits
};

struct Hazard {
  std::string kind;
  std::string resource;
  std::vector<LaunchTag> launches;
  std::vector<uint32_t> devices;
  uint64_t ns = 0;
  std::string text;
  // Where devices have different arguments of one launch: what each group of them has.
  struct Group {
    std::vector<uint32_t> devices;
    Arguments arguments;
  };
  std::vector<Group> groups = {};
  Waits waits = {};
  // Devices do different things: it is told together with what each of them comes to wait for.
  bool disagreement() const { return kind == "order" || kind == "arguments"; }
};

// Hazards collects them for the report; under the monitor's lock.
class Hazards {
 public:
  static constexpr size_t kMostKept = 64;
  explicit Hazards(bool stop) : stop_(stop) {}
  void add(Hazard hazard);  // puts kind and time in front of the text
  // After a disagreement that stops the mesh, programs go on until none can: settle() then stops it. What they do meanwhile is no news.
  bool settling() const { return state_.load(std::memory_order_acquire) == State::settling; }
  void settle(Waits waits);
  const std::vector<Hazard>& all() const { return all_; }
  uint64_t count() const { return count_; }
  // The mesh has stopped because of the first; any thread.
  bool stopped() const { return state_.load(std::memory_order_acquire) == State::stopped; }

 private:
  enum class State { going, settling, stopped };
  const bool stop_;
  std::vector<Hazard> all_;  // each kind, resource and pair of operations once
  uint64_t count_ = 0;
  std::atomic<State> state_{State::going};
};

class Checker {
 public:
  Checker(const Machine& machine, uint32_t queues, Monitor& monitor, Hazards& hazards);

  // ---- devices and queues
  void enter(Context& context, const LaunchTag& due);  // `due` stands at this place of the queue
  void leave(Context& context);
  void compare(Launch& launch);  // the arguments that its devices have, which are not the same
  void passed(uint32_t device, const Launch& wait);  // a wait for an event of the other queue

  // ---- programs
  void raise(Context& context, Semaphore& semaphore, uint32_t lane, uint32_t device, bool announces);  // sets out
  void arrived(Word& word, uint32_t amount, const StampRef& by);
  void wait(Context& context, Semaphore& semaphore, uint32_t lane);
  void waited(Word& word, uint32_t target, const Owed& owed);
  void clear(Context& context, Semaphore& semaphore, uint32_t lane);
  void access(Context& context, const Access& access) {
    if (Strand::here()->stamp()) look(context, access);
  }

  void set_now(const uint64_t& now) { now_ = &now; }

 private:
  static constexpr size_t kMostRecords = 512;  // of one shard, before old ones are put together
  static constexpr size_t kPast = 64;          // exits of a device that event waits may ask for

  size_t timeline(uint32_t device, uint32_t queue) const { return size_t{queue} * devices_ + device; }
  bool over(const Clock& clock, uint32_t device, const LaunchTag& launch) const {
    return clock[timeline(device, launch.queue)] >= launch.left_step();
  }
  // Does the program know that the device has entered the launch? That all in front of it is over there?
  bool entered(const Stamp& stamp, uint32_t device) const { return clock_of(stamp, device) >= stamp.tag.entered_step(); }
  bool reached(const Stamp& stamp, uint32_t device) const { return clock_of(stamp, device) >= stamp.tag.reached_step(); }
  uint32_t clock_of(const Stamp& stamp, uint32_t device) const { return stamp.clock[timeline(device, stamp.tag.queue)]; }

  void look(Context& context, const Access& access);
  bool scan(MemoryState& state, const Access& access, const Stamp& stamp, bool drop);
  void compact(MemoryState& state, const Memory& memory);
  WordState& take(Context& context, Semaphore& semaphore, uint32_t lane, uint32_t device, const char* verb);
  StampRef common_past(const WordState& state, uint32_t target) const;

  std::string at(uint32_t device) const;
  std::string name_of(const Semaphore& semaphore, uint32_t lane);
  std::string name_of(const Memory& memory);
  void report(const char* kind, std::string resource, std::vector<LaunchTag> launches, std::vector<uint32_t> devices, std::string text,
              std::vector<Hazard::Group> groups = {});

  const uint32_t devices_, cols_, queues_;
  Monitor& monitor_;
  Hazards& hazards_;
  const uint64_t* now_ = nullptr;
  std::vector<Clock> progress_;  // by timeline: what the device knows between its commands there
  struct Exit {
    uint32_t position;
    Clock clock;
  };
  std::vector<std::deque<Exit>> past_;  // with two queues only
};

std::string text_of(const LaunchTag& tag);  // launch 7 (all_gather, stream 1)

}  // namespace meshrun::emu
