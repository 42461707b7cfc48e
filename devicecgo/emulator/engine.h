// engine.h: the discrete-event simulation. One thread per mesh runs the device programs in virtual time, while the host goes on
// enqueuing. With a free clock time runs whenever there is something to do; in lockstep it runs only inside advance().
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "checker.h"
#include "config.h"
#include "cost.h"
#include "dataflow.h"
#include "events.h"
#include "fabric.h"
#include "faults.h"
#include "lateness.h"
#include "launch.h"
#include "watch.h"

namespace meshrun::emu {

// HostEvent is a place in a queue that the host may ask about: done when all before it has retired, data and all.
struct HostEvent {
  uint32_t queue = 0;
  uint64_t position = 0;  // commands before it
  uint64_t serial = 0;    // of its recording
  std::atomic<bool> done{false};
  bool seen = false;  // the host has been told; the host's own
};

struct DeviceProfile {
  uint64_t start_ns = 0;
  uint64_t end_ns = 0;
  uint64_t waiting_ns = 0;  // for others to begin
};

struct LaunchProfile {
  bool retired = false;
  uint64_t start_ns = 0;
  uint64_t end_ns = 0;
  std::vector<DeviceProfile> devices;  // where the config asks for them
};

struct Failure {
  uint64_t seq = 0;
  int32_t code = 0;
  std::string text;
};

// Hang is what is known when nothing can happen any more and yet not all is done.
struct Hang {
  std::string text;  // one line
  std::string json;
};

class Investigation;  // of a hang

struct EngineStats {
  uint64_t launches = 0;
  uint64_t retired = 0;
  uint64_t bytes_over_links = 0;
  uint64_t events = 0;
  std::vector<uint64_t> retired_per_device;
  std::vector<uint64_t> waiting_per_device;  // ns, for others to begin
  std::vector<OperationStats> operations;  // in the order of their first end
};

enum class Advance { progress, idle, busy, hang, hazard };

class Engine {
 public:
  explicit Engine(const Config& config);
  ~Engine();  // in bounded time, whatever is under way
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Config& config() const { return config_; }
  const CostModel& cost() const { return cost_; }
  HostPool& pool() { return pool_; }

  // ---- the host's thread
  void prepare(size_t launches);  // from here on that many can be taken and submitted, and nothing of it throws
  std::unique_ptr<Launch> fresh_launch();
  uint64_t number_launch();                     // the number of the next launch on the mesh
  void submit(std::unique_ptr<Launch> launch);  // stamps the host's time
  std::shared_ptr<HostEvent> record(uint32_t queue);
  bool query(HostEvent& event);  // marks it seen when done
  bool never(const HostEvent& event);  // the mesh hangs, and it cannot come to be done
  void forget(const std::shared_ptr<HostEvent>& event);
  void wait_on(uint32_t queue, const HostEvent& event);
  void spend_host_time(uint64_t ns) { host_ns_ += config_.lockstep ? ns : 0; }
  uint64_t host_now() const;
  Advance advance(uint64_t until_ns, uint32_t max_wait_us);
  void reset_semaphores(std::vector<SemaphoreRef> semaphores, uint32_t value);  // done on return
  void bury(std::vector<SemaphoreRef> semaphores);  // freed by the host; increments may still be on their way
  void add_fault(Fault fault);
  std::vector<std::string> faults();
  // Those that have come to nothing so far, and why.
  struct IdleFault {
    std::string text, why;
  };
  std::vector<IdleFault> idle_faults();
  std::optional<Hang> hang();
  std::optional<Failure> next_failure();
  std::optional<LaunchProfile> profile(uint64_t seq);
  EngineStats stats();
  void set_name(std::string& name, const std::string& to);  // of an object that reports name
  void name_stream(uint32_t number, std::string name);
  StreamTag stream(uint32_t number) const;
  uint64_t launches() const { return numbered_; }
  uint64_t creation() { return ++serial_; }  // the serial of something made now
  uint64_t fenced() const;                   // all that was made up to there is there on every device
  // Semaphores that a launch names, `ahead` behind the next: made and fenced. When the launch is certain, the queue's next command uses them.
  void check_fenced(const std::vector<SemaphoreRef>& semaphores, const mr_op_header& header, const char* op, uint64_t ahead = 0);
  void use(const std::vector<SemaphoreRef>& semaphores, uint32_t queue);
  void host_hazard(const char* kind, const std::string& resource, const mr_op_header& header, const char* op, const std::string& text, uint64_t ahead = 0);
  // Nothing that was enqueued and not seen done may name it.
  void check_quiet(Semaphore& semaphore, const char* verb);
  uint64_t creation_delay_ns(uint32_t device, uint64_t serial) const;
  bool note_entry(Context& context);  // true: a fault keeps it from doing anything
  bool hazard_stopped() const { return hazards_.stopped(); }
  std::vector<Hazard> hazards(uint64_t* count);

  // ---- the engine's thread: for contexts
  uint64_t now() const { return now_; }
  void at(uint64_t ns, Event::Kind kind, void* object, uint32_t amount = 0, uint64_t tail_ns = 0, StampRef by = {}, Place mover = {}) {
    heap_.push({.ns = std::max(ns, now_), .order = 0, .object = object, .tail_ns = tail_ns, .amount = amount, .kind = kind, .by = std::move(by), .mover = mover});
  }
  void ready(std::coroutine_handle<> h) { ready_.push_back(h); }
  void ended(Context& context) { ended_.push_back(&context); }
  Lateness& lateness() { return lateness_; }
  Watch& watch() { return watch_; }
  Fabric& fabric() { return fabric_; }
  DataFlow& flow() { return flow_; }
  uint64_t reserve_cores(uint32_t device, uint64_t ns, uint64_t after);  // when they are done
  void deliver(Word& word, uint32_t amount, uint64_t tail_ns, const StampRef& by, Place mover);  // an increment has arrived
  Checker* checker() { return checker_ ? &*checker_ : nullptr; }  // null: nobody checks
  const LaunchTag& due(const Context& context) const;             // what stands at the place of its queue that the device has come to
  void send_transit(Transit transit);

  void advance_queue(uint32_t queue);  // with the lock held: takes note of what is done

 private:
  // A device's place in one queue.
  struct DeviceQueue {
    uint64_t position = 0;  // commands that it has done
    bool busy = false;      // a program runs, or will at a time already set
    Launch* current = nullptr;  // that it has entered
    uint64_t active_ns = 0;     // when it has left one last
  };
  struct Device {
    std::array<DeviceQueue, 2> queues;
    uint64_t cores_free_ns = 0;
    bool stopped = false;
  };
  // A queue as devices see it.
  struct Queue {
    std::deque<std::unique_ptr<Launch>> commands;  // the first stands at position `base`
    uint64_t base = 0;
    uint64_t retired = 0;                    // commands done by all devices in virtual time
    uint64_t wake_position = UINT64_MAX;     // of the first event that the host waits for (lockstep)
    uint64_t end() const { return base + commands.size(); }
  };
  // A queue's tail, with what the host may know of it; under the lock.
  struct Tail {
    std::deque<Launch*> open;
    uint64_t completed = 0;
    std::deque<std::shared_ptr<HostEvent>> events;  // not done, by position
    std::vector<std::shared_ptr<HostEvent>> unseen;  // done or not, of which the host has not been told
  };

  // What a device has done last, for a hang report.
  struct Recent {
    LaunchTag tag;
    uint64_t entered_ns = 0, left_ns = UINT64_MAX;
  };
  struct History {
    static constexpr uint64_t kKept = 16;
    std::array<Recent, kKept> ring;
    uint64_t count = 0;
    uint64_t dropped() const { return count > kKept ? count - kKept : 0; }
  };

  void live();  // the thread: main(), and what is left of it after an exception
  void main();
  void clear();
  bool accept(std::unique_lock<std::mutex>& lock);
  bool open_for(uint64_t ns) const;
  bool may_step() const;
  void step();
  void settle_programs();
  uint64_t late_look_ns(const Waiter& waiter) const;
  Launch* at_place(Place place);  // null: it is over
  Launch* next_of(uint32_t device, uint32_t queue);
  void strike(Launch& launch);  // with the faults of its operation
  void pump(uint32_t device, uint32_t queue);
  uint64_t start_time(uint32_t device, const Launch& launch) const;
  void leave(Context& context);
  void command_done(Launch& launch);
  void remember_profile(const Launch& launch);
  OperationStats& stats_of(const char* operation);  // under the lock
  bool recycle(std::unique_lock<std::mutex>& lock);
  bool unfinished() const;
  bool over() const { return stalled_ != nullptr || heap_.empty(); }  // nothing more will happen
  uint64_t due_ns() const { return std::min(heap_.next_ns(), watch_.next_ns()); }
  void set_deadline(Launch& launch);
  void look_for_stall();
  Investigation investigate() const;
  Waits who_waits() const;
  Hang describe_hang();
  void note_hang();
  std::optional<Advance> answer_advance();
  bool unseen_done() const;
  void pass_on(Transit* transit);

  const Config config_;
  const CostModel cost_;
  HostPool pool_;
  Monitor monitor_;
  Hazards hazards_;
  std::optional<Checker> checker_;
  DataFlow flow_;

  // ---- the host's
  uint64_t host_ns_ = 0;
  uint64_t numbered_ = 0;
  std::array<uint64_t, 2> enqueued_{};
  std::array<uint64_t, 2> seen_done_{};  // commands per queue that the host has seen done
  uint64_t serial_ = 0;                  // counts what the host makes, and the events that it records
  std::array<uint64_t, 2> seen_serial_{};  // of the latest event per queue that it has seen done
  std::vector<std::unique_ptr<Launch>> spare_;
  static constexpr size_t kMostNames = 1 << 16;
  std::unordered_map<uint32_t, std::string> stream_names_;  // they stay, since reports point to them; later streams have none

  // ---- under the lock
  std::vector<std::unique_ptr<Launch>> incoming_;
  std::array<Tail, 2> tails_;
  std::vector<std::unique_ptr<Launch>> recycled_;
  std::deque<Failure> failures_;
  std::unordered_map<uint64_t, LaunchProfile> profiles_;
  std::deque<uint64_t> profile_order_;
  std::vector<Fault> faults_;
  std::vector<SemaphoreRef> reset_;
  uint32_t reset_value_ = 0;
  bool resetting_ = false;
  std::vector<SemaphoreRef> buried_;
  std::optional<Hang> hang_;
  std::atomic<bool> stuck_{false};         // it hangs, and nothing has been enqueued since; written under the lock
  std::array<uint64_t, 2> stuck_after_{};  // commands per queue that have retired all the same
  EngineStats stats_;
  bool advancing_ = false;
  std::optional<Advance> answer_;
  uint64_t until_ns_ = 0;
  uint64_t host_floor_ns_ = 0;  // the host's time when it began to wait
  uint64_t answered_ns_ = 0;

  // ---- the engine's
  uint64_t now_ = 0;
  EventHeap heap_;
  Fabric fabric_;
  Lateness lateness_;
  Watch watch_;
  const Launch* stalled_ = nullptr;  // its limit has passed
  std::vector<Device> devices_;
  std::array<Queue, 2> queues_;
  std::vector<std::coroutine_handle<>> ready_;
  std::vector<Context*> ended_;
  std::vector<std::unique_ptr<Transit>> transits_;
  std::vector<Transit*> free_transits_;
  std::vector<Fault> active_faults_;
  // By fault, under the lock: launches of its operation so far, and why the one that it names gives it nothing to do.
  struct Struck {
    uint64_t launches = 0;
    std::string missed;
  };
  std::vector<Struck> struck_;
  std::vector<History> history_;    // by device
  std::vector<SemaphoreRef> dead_semaphores_;
  bool open_ = false;     // lockstep: time may run
  bool reached_ = false;  // an event that the host waits for is done in virtual time
  uint64_t events_ = 0;

  std::unique_ptr<std::atomic<uint64_t>[]> device_retired_;
  std::atomic<uint64_t> shown_now_{0};
  std::thread thread_;
};

}  // namespace meshrun::emu
