// engine_run.cpp: the engine's own thread.
#include <algorithm>
#include <string_view>
#include <utility>

#include "context.h"
#include "engine.h"
#include "errors.h"
#include "json.h"

namespace meshrun::emu {
namespace {

constexpr int kStepsBetweenLooks = 256;  // events between two looks at what the host has enqueued
// Has all that stands before the awaited event retired? Not all retire in their order.
template <class Queue>
bool is_reached(const Queue& queue) {
  if (queue.retired < queue.wake_position) return false;
  for (uint64_t p = queue.base; p < queue.wake_position && p < queue.end(); ++p)
    if (!queue.commands[p - queue.base]->retired) return false;
  return true;
}

constexpr uint64_t kControlBytes = 32;   // of a packet that only raises semaphores

}  // namespace

// An exception here (the host has no memory, say) ends the emulation, not the process: the mesh is lost, and says why.
void Engine::live() {
  try {
    main();
  } catch (const std::exception& e) {
    std::unique_lock lock(monitor_.mutex);
    hang_ = Hang{format("the emulator failed: %s", e.what()), {}};
    hang_->json = Json().begin_object().field("class", "all_stuck").field("text", hang_->text).end_object().take();
    stuck_ = true;
    for (uint32_t q = 0; q < config_.queues; ++q) stuck_after_[q] = tails_[q].completed;
    while (!monitor_.stop.load(std::memory_order_relaxed)) {
      resetting_ = false;
      if (advancing_ && !answer_) answer_ = Advance::hang;
      monitor_.host.notify_all();
      monitor_.engine_asleep = true;
      monitor_.engine.wait(lock);
      monitor_.engine_asleep = false;
    }
  }
  std::unique_lock lock(monitor_.mutex);
  flow_.abandon(lock);
  lock.unlock();
  clear();
}

// Programs end on the thread that they ran on.
void Engine::clear() {
  heap_.clear();
  ready_.clear();
  for (Queue& queue : queues_)
    for (const auto& launch : queue.commands)
      for (uint32_t d = 0; d < devices_.size(); ++d) launch->contexts[d].drop();
}

// Whatever gives up the lock goes back to the beginning: the engine sleeps only when one look, under the lock throughout, found
// nothing to do.
void Engine::main() {
  std::unique_lock lock(monitor_.mutex);
  while (!monitor_.stop.load(std::memory_order_relaxed)) {
    if (accept(lock)) continue;
    flow_.reclaim(lock);
    if (recycle(lock)) continue;
    if (may_step() && !flow_.full()) {
      monitor_.attention = false;
      lock.unlock();
      for (int i = 0; i < kStepsBetweenLooks && may_step() && !flow_.full() && !monitor_.attention.load(std::memory_order_relaxed); ++i)
        step();
      shown_now_.store(now_, std::memory_order_relaxed);
      lock.lock();
      continue;
    }
    if (flow_.help(lock)) continue;
    if (hazards_.settling() && over()) hazards_.settle(who_waits());
    if (!config_.lockstep && over() && unfinished() && !hazards_.stopped()) note_hang();
    if (open_)
      if (const std::optional<Advance> answer = answer_advance()) {
        answer_ = answer;
        answered_ns_ = now_;
        open_ = false;
        shown_now_.store(now_, std::memory_order_relaxed);
        monitor_.host.notify_all();
      }
    flow_.want_room(flow_.full());
    monitor_.engine_asleep = true;
    monitor_.engine.wait(lock);
    monitor_.engine_asleep = false;
    flow_.want_room(false);
  }
}

// ---- what the host has handed in ------------------------------------------------------------------------------------------

// True when the lock was given up meanwhile.
bool Engine::accept(std::unique_lock<std::mutex>& lock) {
  if (active_faults_.size() != faults_.size()) {
    active_faults_ = faults_;
    struck_.resize(faults_.size());
  }
  if (!incoming_.empty()) {
    stuck_ = false;
    for (auto& launch : incoming_) {
      if (!config_.lockstep) launch->enqueued_ns = now_;
      for (uint32_t d = 0; d < devices_.size(); ++d) launch->contexts[d].enter(*this, *launch, d);
      launch->tag = {.op = launch->plan ? launch->plan->name() : "wait for an event",
                     .number = launch->number,
                     .seq = launch->seq,
                     .stream = launch->stream,
                     .queue = launch->queue,
                     .position = static_cast<uint32_t>(queues_[launch->queue].end())};
      launch->limit_ns = watch_.limit_ns(launch->tag.op);
      launch->active_ns = launch->progress_ns = launch->deadline_ns = 0;
      strike(*launch);
      tails_[launch->queue].open.push_back(launch.get());
      queues_[launch->queue].commands.push_back(std::move(launch));
    }
    incoming_.clear();
    lock.unlock();
    for (uint32_t q = 0; q < config_.queues; ++q)
      for (uint32_t d = 0; d < devices_.size(); ++d) pump(d, q);
    lock.lock();
    return true;
  }
  if (resetting_) {
    for (const SemaphoreRef& s : reset_) {
      s->set(reset_value_);
      for (uint32_t d = 0; d < devices_.size(); ++d)
        for (uint32_t lane = 0; lane < Semaphore::kLanes; ++lane) deliver(s->word(d, lane), 0, 0, {}, {});
    }
    reset_.clear();
    resetting_ = false;
    monitor_.host.notify_all();
  }
  // A freed semaphore goes when no increment can be on its way to it.
  std::move(buried_.begin(), buried_.end(), std::back_inserter(dead_semaphores_));
  buried_.clear();
  if (heap_.empty() && !dead_semaphores_.empty()) dead_semaphores_.clear();
  if (advancing_ && !answer_ && !open_) {
    open_ = true;
    reached_ = false;
    for (uint32_t q = 0; q < config_.queues; ++q) {
      queues_[q].wake_position = UINT64_MAX;
      for (const auto& event : tails_[q].unseen) queues_[q].wake_position = std::min(queues_[q].wake_position, event->position);
      if (is_reached(queues_[q])) reached_ = true;
    }
  }
  return false;
}

// Gives back launches that are done. When there were any, the lock was given up meanwhile, and all must be looked at anew.
bool Engine::recycle(std::unique_lock<std::mutex>& lock) {
  std::vector<std::unique_ptr<Launch>> done;
  for (uint32_t q = 0; q < config_.queues; ++q)
    while (queues_[q].base < tails_[q].completed) {
      done.push_back(std::move(queues_[q].commands.front()));
      queues_[q].commands.pop_front();
      ++queues_[q].base;
    }
  if (done.empty()) return false;
  lock.unlock();
  for (auto& launch : done) {
    if (!launch->plan) continue;
    for (const Plan::Use& use : launch->plan->uses) use.storage->uses.fetch_sub(1, std::memory_order_release);
    launch->plan.reset();  // may be the last to hold a tensor's memory
  }
  lock.lock();
  std::move(done.begin(), done.end(), std::back_inserter(recycled_));
  return true;
}

// ---- virtual time ---------------------------------------------------------------------------------------------------------

// May time run to `ns`? In lockstep it stops when something that the host waits for is done, but not before the host's own time.
bool Engine::open_for(uint64_t ns) const {
  if (!config_.lockstep) return true;
  return open_ && ns <= until_ns_ && (ns <= host_floor_ns_ || !reached_);
}

bool Engine::may_step() const {
  if (hazards_.stopped() || stalled_ != nullptr) return false;
  return !ready_.empty() || (!heap_.empty() && (open_for(due_ns()) || hazards_.settling()));
}

void Engine::step() {
  if (!ready_.empty()) {
    for (size_t i = 0; i < ready_.size(); ++i) {
      const std::coroutine_handle<> h = ready_[i];
      h.resume();
    }
    ready_.clear();
    settle_programs();
    return;
  }
  if (heap_.next_ns() > watch_.next_ns()) {
    look_for_stall();
    return;
  }
  Event e = heap_.pop();
  ++events_;
  now_ = e.ns;
  switch (e.kind) {
    case Event::Kind::resume:
      std::coroutine_handle<>::from_address(e.object).resume();
      break;
    case Event::Kind::deliver:
      deliver(*static_cast<Word*>(e.object), e.amount, e.tail_ns, e.by, e.mover);
      break;
    case Event::Kind::transit:
      pass_on(static_cast<Transit*>(e.object));
      break;
    case Event::Kind::enter:
      static_cast<Context*>(e.object)->run();
      break;
    case Event::Kind::leave:
      leave(*static_cast<Context*>(e.object));
      break;
  }
  settle_programs();
}

// Now and then the core that waits looks up late, and meanwhile more may come.
uint64_t Engine::late_look_ns(const Waiter& w) const {
  if (config_.skew_ns == 0 || w.semaphore == nullptr) return 0;
  const uint64_t dice = seeded(config_.seed, w.lane, now_ ^ uint64_t{w.target} << 40, Skew::look);
  return dice % 8 == 0 ? dice / 8 % config_.skew_ns : 0;
}

Launch* Engine::at_place(Place place) {
  if (place.queue == Place::kNowhere) return nullptr;
  const Queue& queue = queues_[place.queue];
  const uint32_t index = place.position - static_cast<uint32_t>(queue.base);
  return index < queue.commands.size() ? queue.commands[index].get() : nullptr;
}

void Engine::deliver(Word& word, uint32_t amount, uint64_t tail_ns, const StampRef& by, Place mover) {
  if (checker_) checker_->arrived(word, amount, by);
  const uint32_t value = word.value.load(std::memory_order_relaxed) + amount;
  word.value.store(value, std::memory_order_relaxed);
  word.tail_ns = std::max(word.tail_ns, tail_ns);
  if (watch_.on())
    if (Launch* launch = at_place(mover)) launch->active_until(std::max(now_, tail_ns));
  for (Waiter* w = word.waiters; w != nullptr;) {
    Waiter* next = w->next;
    if (value >= w->target) {
      w->unlink();
      if (const uint64_t late = late_look_ns(*w)) {
        at(now_ + late, Event::Kind::resume, w->handle.address());
      } else {
        ready_.push_back(w->handle);
      }
    }
    w = next;
  }
}

void Engine::send_transit(Transit transit) {
  if (transit.hops_left == 0) return;
  if (free_transits_.empty()) {
    transits_.push_back(std::make_unique<Transit>());
    free_transits_.push_back(transits_.back().get());
  }
  Transit* t = free_transits_.back();
  free_transits_.pop_back();
  *t = std::move(transit);
  pass_on(t);
}

// A control packet has arrived (or sets out, at first); it leaves for the next device.
void Engine::pass_on(Transit* t) {
  if (t->arriving) deliver(t->semaphore->word(t->device, t->lane), t->amount, now_, t->by, t->mover);
  if (t->hops_left == 0) {
    t->by = {};
    free_transits_.push_back(t);
    return;
  }
  const Crossing c = fabric_.cross(t->device, t->axis, t->way, 0, kControlBytes, 0, now_, now_, t->launch);
  t->device = Line::of(config_.machine, t->device, t->axis).device(step_of(t->way));
  t->arriving = true;
  --t->hops_left;
  at(c.tail, Event::Kind::transit, t);
}

uint64_t Engine::reserve_cores(uint32_t device, uint64_t ns, uint64_t after) {
  Device& d = devices_[device];
  d.cores_free_ns = std::max({now_, after, d.cores_free_ns}) + ns;
  return d.cores_free_ns;
}

// ---- devices and their queues ---------------------------------------------------------------------------------------------

// What the device begins next: what stands next in the queue, unless a fault has it swap two launches. Null: the other is not there yet.
Launch* Engine::next_of(uint32_t device, uint32_t q) {
  Queue& queue = queues_[q];
  Launch* next = queue.commands[devices_[device].queues[q].position - queue.base].get();
  for (const Fault& f : active_faults_) {
    if (f.kind != Fault::Kind::swap || f.device != device || next->number == 0 || (next->number != f.launch && next->number != f.other)) continue;
    const uint64_t wanted = next->number == f.launch ? f.other : f.launch;
    const auto other = std::find_if(queue.commands.begin(), queue.commands.end(), [&](const auto& l) { return l->number == wanted; });
    return other == queue.commands.end() ? nullptr : other->get();
  }
  return next;
}

// Under the lock.
void Engine::strike(Launch& launch) {
  for (size_t i = 0; i < active_faults_.size(); ++i) {
    const Fault& f = active_faults_[i];
    if (launch.number == 0) continue;
    if (f.op.empty()) {
      if (f.launch != launch.number) continue;
      if (f.kind == Fault::Kind::shape) launch.others.push_back({f.device, f.shape});
      if (f.kind != Fault::Kind::barrier_drop) continue;
      launch.drops_barrier = launch.plan->joins_first;
      if (!launch.drops_barrier) struck_[i].missed = text_of(launch.tag) + " does not begin with a barrier";
      continue;
    }
    if (f.op != launch.tag.op || (f.axis != Fault::kAnyAxis && f.axis != launch.plan->axis)) continue;
    if (++struck_[i].launches != f.launch && f.launch != 0) continue;
    if (f.kind == Fault::Kind::op_hang) launch.hangs = true;
    if (f.kind == Fault::Kind::op_fail) launch.fails = true;
    if (f.kind == Fault::Kind::op_delay) launch.late_ns += f.delay_ns;
  }
}

uint64_t Engine::creation_delay_ns(uint32_t device, uint64_t serial) const {
  uint64_t ns = config_.skew_ns != 0 ? seeded(config_.seed, device, serial, Skew::creation) % config_.skew_ns : 0;
  for (const Fault& f : active_faults_)
    if (f.kind == Fault::Kind::late_allocation && f.device == device) ns += f.delay_ns;
  return ns;
}

bool Engine::note_entry(Context& context) {
  Launch& launch = context.launch();
  if (launch.number != 0) {
    History& h = history_[context.device()];
    h.ring[h.count++ % History::kKept] = {launch.tag, now_, UINT64_MAX};
  }
  if (launch.plan->in_queue) devices_[context.device()].queues[launch.queue].current = &launch;
  launch.active_until(now_);
  if (launch.fails) {
    flow_.fail(launch, std::make_exception_ptr(error(MR_INTERNAL, "%s failed: a fault asks for it", launch.tag.op)));
    launch.fails = false;
  }
  if (launch.other_shape(context.device()) != nullptr) {
    if (checker_) checker_->compare(launch);
    // What it would send and await does not match what its peers await and send: it gets nowhere.
    if (launch.plan->has_peers) return true;
  }
  return launch.hangs;
}

// Lets the device begin what stands next in the queue, if it can.
void Engine::pump(uint32_t device, uint32_t q) {
  Device& d = devices_[device];
  DeviceQueue& dq = d.queues[q];
  Queue& queue = queues_[q];
  while (!dq.busy && !d.stopped && dq.position < queue.end()) {
    Launch* const next = next_of(device, q);
    if (next == nullptr) return;
    Launch& launch = *next;
    if (!launch.plan) {  // a wait for an event: this device has to have come that far in the other queue
      if (d.queues[launch.awaited_queue].position < launch.awaited_position) return;
      if (checker_) checker_->passed(device, launch);
      ++dq.position;
      if (--launch.devices_left == 0) command_done(launch);
      continue;
    }
    for (const Fault& f : active_faults_)
      if (f.kind == Fault::Kind::stop && f.device == device && launch.number >= f.launch) d.stopped = true;
    if (d.stopped) return;
    dq.busy = launch.plan->in_queue;
    if (!dq.busy) ++dq.position;
    at(start_time(device, launch), Event::Kind::enter, &launch.contexts[device]);
  }
}

uint64_t Engine::start_time(uint32_t device, const Launch& launch) const {
  if (launch.number == 0) return std::max(now_, launch.enqueued_ns);
  uint64_t ns = std::max(now_ + cost_.launch_gap_ns(), launch.enqueued_ns + cost_.dispatch_ns()) + launch.late_ns;
  for (const Fault& f : active_faults_)
    if (f.kind == Fault::Kind::delay && f.device == device && (f.launch == 0 || f.launch == launch.number)) ns += f.delay_ns;
  if (config_.skew_ns != 0) ns += seeded(config_.seed, device, launch.number, Skew::dispatch) % config_.skew_ns;
  return ns;
}

// Programs that have come to their end leave when all that they sent has left.
void Engine::settle_programs() {
  for (size_t i = 0; i < ended_.size(); ++i) {
    Context* c = ended_[i];
    if (c->settled_ns() > now_) {
      c->launch().active_until(c->settled_ns());
      at(c->settled_ns(), Event::Kind::leave, c);
    } else {
      leave(*c);
    }
  }
  ended_.clear();
}

void Engine::leave(Context& context) {
  Launch& launch = context.launch();
  Device& d = devices_[context.device()];
  if (checker_) checker_->leave(context);
  lateness_.left(context);
  context.drop();
  context.left = true;
  context.end_ns = now_;
  History& h = history_[context.device()];
  for (uint64_t i = h.count; i > 0 && i + History::kKept > h.count; --i)
    if (Recent& r = h.ring[(i - 1) % History::kKept]; r.tag.same(launch.tag)) {
      r.left_ns = now_;
      break;
    }
  launch.start_ns = std::min(launch.start_ns, context.start_ns);
  launch.end_ns = std::max(launch.end_ns, now_);
  if (launch.plan->in_queue) {
    DeviceQueue& dq = d.queues[launch.queue];
    dq.busy = false;
    dq.current = nullptr;
    dq.active_ns = now_;
    ++dq.position;
    launch.active_until(now_);
    watch_.arm(now_);
  }
  if (launch.number != 0) device_retired_[context.device()].fetch_add(1, std::memory_order_relaxed);
  if (--launch.devices_left == 0) command_done(launch);
  for (uint32_t q = 0; q < config_.queues; ++q) pump(context.device(), q);
}

void Engine::command_done(Launch& launch) {
  Queue& queue = queues_[launch.queue];
  ++queue.retired;
  std::lock_guard lock(monitor_.mutex);
  launch.retired = true;
  if (is_reached(queue)) reached_ = true;
  stats_.bytes_over_links = fabric_.bytes();
  stats_.events = events_;
  if (launch.number != 0) {
    ++stats_.retired;
    OperationStats& o = stats_of(launch.plan->name());
    ++o.launches;
    o.span_ns += launch.end_ns - launch.start_ns;
    lateness_.sum_up(launch, o, stats_.waiting_per_device);
    remember_profile(launch);
  }
  if (launch.open_work == 0) advance_queue(launch.queue);
}

OperationStats& Engine::stats_of(const char* operation) {
  for (OperationStats& o : stats_.operations)
    if (std::string_view(o.name) == operation) return o;
  return stats_.operations.emplace_back(OperationStats{.name = operation, .late = {}});
}

bool Engine::unfinished() const {
  for (uint32_t q = 0; q < config_.queues; ++q)
    if (queues_[q].retired < queues_[q].end()) return true;
  return false;
}

// What can be told the host that waits in advance(). It is told nothing before the data work of all that has happened is done, so
// that what it sees does not depend on real time.
std::optional<Advance> Engine::answer_advance() {
  if (!flow_.idle()) return std::nullopt;
  if (unseen_done()) return Advance::progress;
  if (hazards_.stopped()) return Advance::hazard;
  if (over() && unfinished()) {
    note_hang();
    return Advance::hang;
  }
  if (heap_.empty() && until_ns_ == UINT64_MAX) return Advance::idle;
  if (until_ns_ != UINT64_MAX) now_ = std::max(now_, until_ns_);
  return Advance::progress;
}

// Devices that nothing holds up go on with what is enqueued later; the report is that of the first time.
void Engine::note_hang() {
  if (!hang_) hang_ = describe_hang();
  stuck_ = true;
  for (uint32_t q = 0; q < config_.queues; ++q) stuck_after_[q] = queues_[q].retired;
}

}  // namespace meshrun::emu
