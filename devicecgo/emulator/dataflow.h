// dataflow.h: the data work of device programs, done beside the simulation by a few threads. The engine hands pieces of work
// over in the order of virtual time, and says which bytes each reads and writes; a piece waits for earlier ones that it conflicts
// with. So the result is that of doing them one after another in the engine's order, also where a program races.
//
// Work that was freed by the end of other work is taken before work that was free at once: a chunk on its way round a ring is
// then handled hop after hop while it is in the cache.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "device_memory.h"
#include "parallel.h"

namespace meshrun::emu {

// Monitor is the one lock between the host's thread, the engine's and the workers', and what they sleep on.
struct Monitor {
  std::mutex mutex;
  std::condition_variable engine, workers, team, host;
  bool engine_asleep = false;
  unsigned workers_asleep = 0;
  std::atomic<bool> stop{false};       // closing: give up what is under way
  std::atomic<bool> attention{false};  // the host wants something of the engine

  void wake_engine() {
    if (engine_asleep) engine.notify_one();
  }
};

struct Access {
  Memory* memory = nullptr;
  Region region;
  bool write = false;
};

// Chain says that a piece of work does to a chunk what comes next after the piece with the same chain before it: the next hop of a
// chunk on its way. Pieces that follow one another without anything in between may then be done as one, block by block; the result
// is the same, but the chunk stays in the nearest cache.
struct Chain {
  uint64_t id = 0;     // unique in its owner; 0 = none
  uint64_t bytes = 0;  // of the chunk: all hops do the same ones
  bool operator==(const Chain&) const = default;
};

// Work of which several pieces in a chain can be done as one.
template <class F>
concept Chainable = requires(const F* const* steps, size_t n, Parallel& parallel) { F::run_chain(steps, n, parallel); };

// DataOwner is on whose behalf data work is done: a launch. The members are under the monitor's lock.
class DataOwner {
 public:
  virtual ~DataOwner() = default;
  virtual void data_done() = 0;  // called with the lock held each time that no work is open any more

  uint32_t open_work = 0;
  std::string failure;  // the first exception of its work; empty = none
  int32_t failure_code = 0;
};

class Task {
 public:
  static constexpr size_t kClosureBytes = 256;
  static constexpr size_t kAccesses = 12;

 private:
  friend class DataFlow;
  std::atomic<bool> done_{true};
  uint32_t blockers_ = 0;       // earlier tasks to wait for
  Task* next_ = nullptr;        // in the ready list, the finished list or the free list
  DataOwner* owner_ = nullptr;
  void (*call_)(void*, Parallel&) = nullptr;
  void (*call_chain_)(Task* const* tasks, size_t n, Parallel&) = nullptr;
  Chain chain_;
  uint32_t entry_count_ = 0;
  std::vector<Task*> successors_;
  alignas(16) std::byte closure_[kClosureBytes];
  std::array<LedgerEntry, kAccesses> entries_;
};

class DataFlow {
 public:
  // `threads` counts the engine's own, which works when it has nothing to simulate.
  DataFlow(Monitor& monitor, unsigned threads);
  ~DataFlow();  // after stop: waits for the workers

  // Engine's thread, from here to help(). Does fn(Parallel&) at some time after all conflicting work handed over earlier, before
  // all later. fn is copied as bytes and must hold no reference to a coroutine's frame. `work` is roughly the bytes it touches:
  // small work is done on the spot.
  template <class F>
  void submit(DataOwner& owner, std::span<const Access> accesses, uint64_t work, F fn, Chain chain = {}) {
    static_assert(sizeof(F) <= Task::kClosureBytes && std::is_trivially_copyable_v<F>);
    if (!blocked(accesses) && work <= kWorkInline) {
      guarded(owner, [&] { fn(*team_); });
      return;
    }
    Task* task = fresh_task(owner, accesses);
    std::memcpy(task->closure_, static_cast<const void*>(&fn), sizeof(F));
    task->call_ = [](void* closure, Parallel& parallel) { (*std::launder(reinterpret_cast<F*>(closure)))(parallel); };
    task->chain_ = {};
    if constexpr (Chainable<F>) {
      task->chain_ = chain;
      task->call_chain_ = [](Task* const* tasks, size_t n, Parallel& parallel) {
        std::array<const F*, kMostChained> steps;
        for (size_t i = 0; i < n; ++i) steps[i] = std::launder(reinterpret_cast<const F*>(tasks[i]->closure_));
        F::run_chain(steps.data(), n, parallel);
      };
    }
    hand_over(task);
  }
  bool full() const { return outstanding_ >= kWindow; }
  bool idle() const { return outstanding_ == 0; }
  // With the lock held: shall the engine be woken whenever a piece is done?
  void want_room(bool want) { want_room_ = want; }
  // With the lock held: forgets work that is done.
  void reclaim(std::unique_lock<std::mutex>& lock);
  // With the lock held: does one piece of open work, if there is any. Gives the lock up meanwhile.
  bool help(std::unique_lock<std::mutex>& lock);
  // With the lock held: drops all work that is not begun, and waits for the rest. After stop.
  void abandon(std::unique_lock<std::mutex>& lock);

  void fail(DataOwner& owner, std::exception_ptr error);  // from any thread

 private:
  class Team;
  struct Job;
  static constexpr uint64_t kWorkInline = 32 << 10;
  static constexpr size_t kMostChained = 32;
  static constexpr size_t kWindow = 4096;  // tasks under way before the engine stops simulating and helps

  bool blocked(std::span<const Access> accesses);  // fills blockers_
  Task* fresh_task(DataOwner& owner, std::span<const Access> accesses);
  void hand_over(Task* task);
  template <class F>
  void guarded(DataOwner& owner, F f);
  void run(Task* task, std::unique_lock<std::mutex>& lock);
  static Task* take_next_of_chain(Task& task);
  size_t finish(Task* task);  // how many others that has freed
  bool join_job(std::unique_lock<std::mutex>& lock);
  void work();
  void wake_for_work(size_t pieces);

  void push_front(Task* task);
  void push_back(Task* task);
  Task* pop();

  Monitor& monitor_;
  unsigned threads_;
  std::unique_ptr<Parallel> team_;

  // engine's thread
  std::vector<std::unique_ptr<Task>> tasks_;
  Task* free_ = nullptr;
  std::vector<Task*> blockers_;
  size_t outstanding_ = 0;

  // under the lock
  Task* ready_head_ = nullptr;
  Task* ready_tail_ = nullptr;
  size_t ready_count_ = 0;
  size_t running_ = 0;
  bool want_room_ = false;
  Task* finished_ = nullptr;
  std::vector<Job*> jobs_;

  std::vector<std::thread> workers_;
};

template <class F>
void DataFlow::guarded(DataOwner& owner, F f) {
  try {
    f();
  } catch (...) {
    fail(owner, std::current_exception());
  }
}

}  // namespace meshrun::emu
