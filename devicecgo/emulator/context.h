// context.h: what a device program may do. Every access to memory or semaphores goes through here, so that it can be ordered,
// timed and checked.
#pragma once

#include <initializer_list>
#include <span>

#include "engine.h"
#include "fabric.h"
#include "launch.h"

namespace meshrun::emu {

// Hop is one link to a neighbour.
struct Hop {
  uint32_t axis = 0;
  uint32_t way = 0;
  uint32_t link = 0;
  uint32_t peer = 0;  // the device at the other end
};

// Signal is an increment of a semaphore on some device.
struct Signal {
  Semaphore& semaphore;
  uint32_t lane = 0;
  uint32_t amount = 1;
  bool announces = false;  // that this device has entered: the peer need not have
};

class Context final : public ProgramSink {
 public:
  void enter(Engine& engine, Launch& launch, uint32_t device);  // then run() has the program start
  void run();
  void drop() { program_.destroy(); }

  // ---- where the program runs
  uint32_t device() const { return device_; }
  uint32_t devices() const { return engine_->config().machine.devices(); }
  uint64_t now() const { return engine_->now(); }
  const Config& config() const { return engine_->config(); }
  bool timing() const { return engine_->config().timing; }
  const CostModel& cost() const { return engine_->cost(); }
  Line line(uint32_t axis) const { return Line::of(engine_->config().machine, device_, axis); }
  Hop hop(const Line& line, uint32_t way, uint32_t link) const { return {line.axis, way, link, line.device(step_of(way))}; }

  // ---- semaphores of this device
  // co_await wait(...) goes on when the semaphore has reached `target`, and gives the time at which the data behind the increments
  // is there to the last byte. Where data is chunked finely that is now; in timing mode it may lie ahead, and what needs the
  // data takes it as `after`.
  class Wait final : public Waiter {
   public:
    bool await_ready() const;
    void await_suspend(std::coroutine_handle<> h);
    uint64_t await_resume() const;

   private:
    friend class Context;
    Wait(Context& context, Word& count, Semaphore* semaphore_, uint32_t lane_, uint32_t target_, Owed owed_)
        : context_(context), word_(count) {
      semaphore = semaphore_;
      lane = lane_;
      target = target_;
      owed = owed_;
    }
    Context& context_;
    Word& word_;
    uint64_t since_ns_ = UINT64_MAX;  // when it was suspended
    Strand* const strand_ = Strand::here();
  };
  Wait wait(Semaphore& semaphore, uint32_t lane, uint32_t target, Owed owed);
  Wait wait(Word& count, uint32_t target);  // a count inside the program
  void raise(const Signal& signal, uint64_t tail_ns = 0);
  void raise(Word& count, uint32_t amount, uint64_t tail_ns = 0);
  // Puts the word back to 0. A program does this when it leaves, never when it enters: a faster peer may already have raised it.
  void clear(Semaphore& semaphore, uint32_t lane);

  // Writes the first value of a semaphore of this device, whatever has come meanwhile.
  void initialise(Semaphore& semaphore, uint32_t value);
  uint64_t creation_delay_ns(uint64_t serial) const { return engine_->creation_delay_ns(device_, serial); }

  // ---- data and peers
  // Does fn(Parallel&) on the data. It must say what it reads and writes, and hold nothing of the coroutine's frame.
  template <class F>
  void work(std::span<const Access> accesses, uint64_t amount, F fn, Chain chain = {}) {
    if (timing()) return;
    if (Checker* checker = engine_->checker())
      for (const Access& a : accesses) checker->access(*this, a);
    engine_->flow().submit(*launch_, accesses, amount, fn, chain);
  }
  template <class F>
  void work(std::initializer_list<Access> accesses, uint64_t amount, F fn, Chain chain = {}) {
    work(std::span(accesses.begin(), accesses.size()), amount, fn, chain);
  }
  // Sends `bytes` to the neighbour, ready at `after`, and raises its semaphore when they have arrived. fn writes the data there.
  template <class F>
  void send(const Hop& hop, uint64_t bytes, uint64_t after, const Signal& signal, std::span<const Access> accesses, F fn, Chain chain = {}) {
    uint64_t amount = 0;
    for (const Access& a : accesses) amount += a.region.bytes();
    work(accesses, amount, fn, chain);
    transfer(hop, bytes, after, signal);
  }
  template <class F>
  void send(const Hop& hop, uint64_t bytes, uint64_t after, const Signal& signal, std::initializer_list<Access> accesses, F fn, Chain chain = {}) {
    send(hop, bytes, after, signal, std::span(accesses.begin(), accesses.size()), fn, chain);
  }
  // Raises a semaphore on all others of the line, hop by hop both ways.
  void multicast(const Line& line, bool ring, const Signal& signal);

  // ---- time
  struct Pause {
    Context& context;
    uint64_t until_ns;
    bool await_ready() const { return until_ns <= context.now(); }
    void await_suspend(std::coroutine_handle<> h) const;
    void await_resume() const { Strand::here() = strand; }
    Strand* strand = Strand::here();
  };
  Pause until(uint64_t ns) { return {.context = *this, .until_ns = ns}; }
  // Takes the device's cores for that long, from `after` on, behind others that want them.
  Pause compute(const Cost& cost, uint64_t after = 0);
  // The same for work on cores of its own, like the workers of a collective.
  Pause copy(const Cost& cost) { return until(now() + this->cost().compute_ns(cost)); }
  // What was sent must have left, and what was awaited must be there, before the program has left.
  uint64_t settled_ns() const { return settled_ns_; }

  void program_ended(std::exception_ptr error) override;

  // ---- the engine's
  Launch& launch() const { return *launch_; }
  const Waiter* waiters() const { return waiters_; }
  Strand strand;  // of the program that run() starts
  bool entered = false;
  bool left = false;
  uint64_t start_ns = 0;
  uint64_t end_ns = 0;
  Absences absences;  // met so far

 private:
  void transfer(const Hop& hop, uint64_t bytes, uint64_t after, const Signal& signal);
  Place place() const { return {launch_->tag.queue, launch_->tag.position}; }
  void settle(uint64_t ns) { settled_ns_ = std::max(settled_ns_, ns); }

  Engine* engine_ = nullptr;
  Launch* launch_ = nullptr;
  uint32_t device_ = 0;
  uint64_t settled_ns_ = 0;
  Waiter* waiters_ = nullptr;
  Program program_;
};

}  // namespace meshrun::emu
