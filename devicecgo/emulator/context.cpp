#include "context.h"

#include "errors.h"

namespace meshrun::emu {

void Context::enter(Engine& engine, Launch& launch, uint32_t device) {
  engine_ = &engine;
  launch_ = &launch;
  device_ = device;
  settled_ns_ = 0;
  entered = left = false;
  start_ns = end_ns = 0;
  absences.clear();
}

void Context::run() {
  entered = true;
  start_ns = now();
  if (engine_->note_entry(*this)) return;  // it hangs
  if (Checker* checker = engine_->checker()) checker->enter(*this, engine_->due(*this));
  Strand::here() = &strand;
  program_ = launch_->plan->run(*this);
  program_.start(*this);
}

void Context::program_ended(std::exception_ptr error) {
  if (error) engine_->flow().fail(*launch_, error);
  engine_->ended(*this);
}

Context::Wait Context::wait(Semaphore& semaphore, uint32_t lane, uint32_t target, Owed owed) {
  return Wait(*this, semaphore.word(device_, lane), &semaphore, lane, target, owed);
}

Context::Wait Context::wait(Word& count, uint32_t target) { return Wait(*this, count, nullptr, 0, target, Owed::by(device_)); }

bool Context::Wait::await_ready() const {
  if (Checker* checker = context_.engine_->checker(); checker != nullptr && semaphore != nullptr)
    checker->wait(context_, *semaphore, lane);
  return word_.value.load(std::memory_order_relaxed) >= target;
}

void Context::Wait::await_suspend(std::coroutine_handle<> h) {
  since_ns_ = context_.now();
  context_.engine_->watch().arm(since_ns_);
  handle = h;
  word = &word_;
  next = word_.waiters;
  link = &word_.waiters;
  if (next != nullptr) next->link = &next;
  word_.waiters = this;
  next_of_context = context_.waiters_;
  link_of_context = &context_.waiters_;
  if (next_of_context != nullptr) next_of_context->link_of_context = &next_of_context;
  context_.waiters_ = this;
}

uint64_t Context::Wait::await_resume() const {
  Strand::here() = strand_;
  if (Checker* checker = context_.engine_->checker()) checker->waited(word_, target, owed);
  if (since_ns_ < context_.now()) {
    context_.launch_->active_until(context_.now());
    if (semaphore != nullptr) context_.engine_->lateness().waited(context_, owed, since_ns_, context_.now());
  }
  const uint64_t tail = std::max(context_.now(), word_.tail_ns);
  context_.settle(tail);
  return tail;
}

void Context::raise(const Signal& signal, uint64_t tail_ns) {
  if (Checker* checker = engine_->checker()) checker->raise(*this, signal.semaphore, signal.lane, device_, signal.announces);
  engine_->deliver(signal.semaphore.word(device_, signal.lane), signal.amount, tail_ns, Strand::here()->stamp(), place());
}

void Context::raise(Word& count, uint32_t amount, uint64_t tail_ns) {
  engine_->deliver(count, amount, tail_ns, Strand::here()->stamp(), place());
}

void Context::clear(Semaphore& semaphore, uint32_t lane) {
  if (Checker* checker = engine_->checker()) checker->clear(*this, semaphore, lane);
  semaphore.word(device_, lane).value.store(0, std::memory_order_relaxed);
}

void Context::initialise(Semaphore& semaphore, uint32_t value) {
  for (uint32_t lane = 0; lane < Semaphore::kLanes; ++lane) {
    semaphore.word(device_, lane).value.store(value, std::memory_order_relaxed);
    engine_->deliver(semaphore.word(device_, lane), 0, 0, {}, {});
  }
}

void Context::transfer(const Hop& hop, uint64_t bytes, uint64_t after, const Signal& signal) {
  // Data leave when the workers have their connections; a start barrier is on its way meanwhile.
  const uint64_t open = std::max(now(), start_ns + cost().connect_ns());
  const uint64_t ready = std::max(after, open);
  if (Checker* checker = engine_->checker()) checker->raise(*this, signal.semaphore, signal.lane, hop.peer, signal.announces);
  const uint64_t unit = launch_->plan->increment_bytes;
  // In timing mode one transfer stands for all its packets: it may set out when the first of them is here, but not end before
  // the last of them is.
  const Crossing c = engine_->fabric().cross(device_, hop.axis, hop.way, hop.link, bytes, (bytes + unit - 1) / unit, timing() ? open : ready, ready,
                                             launch_->number);
  settle(c.departed);
  engine_->at(timing() ? c.head : c.tail, Event::Kind::deliver, &signal.semaphore.word(hop.peer, signal.lane), signal.amount, c.tail, Strand::here()->stamp(),
              place());
}

void Context::multicast(const Line& line, bool ring, const Signal& signal) {
  for (const uint32_t way : {0u, 1u}) {
    uint32_t reach = way == 0 ? line.length - 1 - line.position : line.position;
    if (ring) reach = way == 0 ? line.length / 2 : (line.length - 1) / 2;
    if (Checker* checker = engine_->checker())
      for (uint32_t i = 1; i <= reach; ++i)
        checker->raise(*this, signal.semaphore, signal.lane, line.device(step_of(way) * int64_t{i}), signal.announces);
    engine_->send_transit({.semaphore = &signal.semaphore,
                           .lane = signal.lane,
                           .amount = signal.amount,
                           .axis = line.axis,
                           .way = way,
                           .device = device_,
                           .hops_left = reach,
                           .arriving = false,
                           .by = Strand::here()->stamp(),
                           .launch = launch_->number,
                           .mover = place()});
  }
}

void Context::Pause::await_suspend(std::coroutine_handle<> h) const {
  context.launch_->active_until(until_ns);
  context.engine_->at(until_ns, Event::Kind::resume, h.address());
}

Context::Pause Context::compute(const Cost& cost, uint64_t after) {
  return until(engine_->reserve_cores(device_, this->cost().compute_ns(cost, *launch_->plan->work), after));
}

}  // namespace meshrun::emu
