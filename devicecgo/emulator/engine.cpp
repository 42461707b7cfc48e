// engine.cpp: the host's side of the engine.
#include "engine.h"

#include "context.h"
#include "errors.h"

namespace meshrun::emu {
namespace {

constexpr size_t kProfilesKept = size_t{1} << 17;

}  // namespace

Launch::Launch(Engine& engine, uint32_t devices)
    : contexts(std::make_unique<Context[]>(devices)), words(devices), engine_(engine), devices_(devices) {}
Launch::~Launch() = default;

void Launch::reset() {
  plan.reset();
  number = seq = 0;
  stream = {};
  awaited_queue = 0;
  awaited_position = 0;
  start_ns = UINT64_MAX;
  end_ns = 0;
  devices_left = devices_;
  hangs = fails = drops_barrier = others_told = false;
  others.clear();
  late_ns = 0;
  for (auto& w : words) w.clear();
  retired = false;
  open_work = 0;
  failure.clear();
  failure_code = 0;
}

void Launch::data_done() {
  if (retired) engine_.advance_queue(queue);
}

Engine::Engine(const Config& config)
    : config_(config),
      cost_(config_),
      hazards_(config_.stop_on_hazard),
      flow_(monitor_, config_.threads),
      fabric_(config_, cost_),
      lateness_(config_.machine),
      watch_(config_.no_progress),
      devices_(config_.machine.devices()),
      history_(devices_.size()),
      device_retired_(std::make_unique<std::atomic<uint64_t>[]>(devices_.size())) {
  if (config_.checker && !config_.timing) {
    checker_.emplace(config_.machine, config_.queues, monitor_, hazards_);
    checker_->set_now(now_);
  }
  stats_.waiting_per_device.resize(devices_.size());
  thread_ = std::thread([this] { live(); });
}

Engine::~Engine() {
  {
    std::lock_guard lock(monitor_.mutex);
    monitor_.stop = true;
    monitor_.attention = true;
    monitor_.engine.notify_all();
    monitor_.workers.notify_all();
  }
  thread_.join();
}

void Engine::prepare(size_t launches) {
  {
    std::lock_guard lock(monitor_.mutex);
    if (spare_.size() < launches) {
      spare_.insert(spare_.end(), std::make_move_iterator(recycled_.begin()), std::make_move_iterator(recycled_.end()));
      recycled_.clear();
    }
    const size_t needed = incoming_.size() + launches;
    if (incoming_.capacity() < needed) incoming_.reserve(std::max(needed, 2 * incoming_.capacity()));
  }
  while (spare_.size() < launches) spare_.push_back(std::make_unique<Launch>(*this, config_.machine.devices()));
}

std::unique_ptr<Launch> Engine::fresh_launch() {
  if (spare_.empty()) prepare(1);
  std::unique_ptr<Launch> launch = std::move(spare_.back());
  spare_.pop_back();
  launch->reset();
  return launch;
}

void Engine::submit(std::unique_ptr<Launch> launch) {
  launch->enqueued_ns = host_ns_;
  launch->host_seen = seen_done_;
  launch->fenced = fenced();
  if (launch->plan)
    for (const Plan::Use& use : launch->plan->uses) {
      use.storage->uses.fetch_add(1, std::memory_order_relaxed);
      if (use.writes) use.storage->writers.fetch_add(1, std::memory_order_relaxed);
    }
  ++enqueued_[launch->queue];
  std::lock_guard lock(monitor_.mutex);
  incoming_.push_back(std::move(launch));
  if (!config_.lockstep) monitor_.wake_engine();
}

uint64_t Engine::number_launch() { return ++numbered_; }

std::shared_ptr<HostEvent> Engine::record(uint32_t queue) {
  auto event = std::make_shared<HostEvent>();
  event->queue = queue;
  event->position = enqueued_[queue];
  event->serial = ++serial_;
  std::lock_guard lock(monitor_.mutex);
  Tail& tail = tails_[queue];
  if (event->position <= tail.completed) {
    event->done.store(true, std::memory_order_release);
  } else {
    tail.events.push_back(event);
  }
  if (config_.lockstep) tail.unseen.push_back(event);
  return event;
}

bool Engine::query(HostEvent& event) {
  if (!event.done.load(std::memory_order_acquire)) return false;
  if (event.seen) return true;
  event.seen = true;
  seen_done_[event.queue] = std::max(seen_done_[event.queue], event.position);
  seen_serial_[event.queue] = std::max(seen_serial_[event.queue], event.serial);
  if (config_.lockstep) {
    std::lock_guard lock(monitor_.mutex);
    std::erase_if(tails_[event.queue].unseen, [&](const auto& e) { return e.get() == &event; });
  }
  return true;
}

bool Engine::never(const HostEvent& event) {
  if (!stuck_.load(std::memory_order_relaxed)) return false;
  std::lock_guard lock(monitor_.mutex);
  return stuck_ && incoming_.empty() && event.position > stuck_after_[event.queue];
}

void Engine::forget(const std::shared_ptr<HostEvent>& event) {
  std::lock_guard lock(monitor_.mutex);
  Tail& tail = tails_[event->queue];
  std::erase(tail.unseen, event);
  if (!event->done.load(std::memory_order_relaxed)) std::erase(tail.events, event);
}

void Engine::wait_on(uint32_t queue, const HostEvent& event) {
  if (queue == event.queue) return;  // its own order is enough
  std::unique_ptr<Launch> launch = fresh_launch();
  launch->queue = queue;
  launch->awaited_queue = event.queue;
  launch->awaited_position = event.position;
  submit(std::move(launch));
}

uint64_t Engine::host_now() const { return config_.lockstep ? host_ns_ : shown_now_.load(std::memory_order_relaxed); }

bool Engine::unseen_done() const {
  for (const Tail& tail : tails_)
    for (const auto& event : tail.unseen)
      if (event->done.load(std::memory_order_relaxed)) return true;
  return false;
}

Advance Engine::advance(uint64_t until_ns, uint32_t max_wait_us) {
  std::unique_lock lock(monitor_.mutex);
  if (!advancing_) {
    if (unseen_done()) return Advance::progress;
    advancing_ = true;
    answer_.reset();
    until_ns_ = std::max(until_ns, host_ns_);
    host_floor_ns_ = host_ns_;
    monitor_.attention = true;
    monitor_.wake_engine();
  }
  if (!monitor_.host.wait_for(lock, std::chrono::microseconds(max_wait_us), [&] { return answer_.has_value(); })) return Advance::busy;
  advancing_ = false;
  host_ns_ = std::max(host_ns_, answered_ns_);
  return *answer_;
}

void Engine::reset_semaphores(std::vector<SemaphoreRef> semaphores, uint32_t value) {
  std::unique_lock lock(monitor_.mutex);
  reset_ = std::move(semaphores);
  reset_value_ = value;
  resetting_ = true;
  monitor_.attention = true;
  monitor_.wake_engine();
  monitor_.host.wait(lock, [&] { return !resetting_; });
}

void Engine::bury(std::vector<SemaphoreRef> semaphores) {
  std::lock_guard lock(monitor_.mutex);
  std::move(semaphores.begin(), semaphores.end(), std::back_inserter(buried_));
}

void Engine::add_fault(Fault fault) {
  std::lock_guard lock(monitor_.mutex);
  faults_.push_back(std::move(fault));
}

std::vector<std::string> Engine::faults() {
  std::lock_guard lock(monitor_.mutex);
  std::vector<std::string> texts;
  for (const Fault& f : faults_) texts.push_back(f.text);
  return texts;
}

std::vector<Engine::IdleFault> Engine::idle_faults() {
  std::lock_guard lock(monitor_.mutex);
  std::vector<IdleFault> idle;
  for (size_t i = 0; i < faults_.size(); ++i) {
    const Fault& f = faults_[i];
    const Struck struck = i < struck_.size() ? struck_[i] : Struck{};
    const uint64_t had = f.op.empty() ? numbered_ : struck.launches, needed = f.op.empty() ? f.first_launch() : std::max<uint64_t>(f.launch, 1);
    if (had < needed)
      idle.push_back({f.text, format("there were %llu launches%s", static_cast<unsigned long long>(had), f.op.empty() ? "" : " of that kind")});
    else if (!struck.missed.empty())
      idle.push_back({f.text, struck.missed});
  }
  return idle;
}

uint64_t Engine::fenced() const {
  uint64_t serial = UINT64_MAX;
  for (uint32_t q = 0; q < config_.queues; ++q) serial = std::min(serial, seen_serial_[q]);
  return serial;
}

void Engine::check_fenced(const std::vector<SemaphoreRef>& semaphores, const mr_op_header& header, const char* op, uint64_t ahead) {
  if (!checker_) return;
  for (const SemaphoreRef& s : semaphores)
    if (s->created > fenced())
      host_hazard("not_fenced", s->name, header, op, "names " + s->name + ", and there was no fence since that was made or reset: a device may still be at it",
                  ahead);
}

void Engine::use(const std::vector<SemaphoreRef>& semaphores, uint32_t queue) {
  for (const SemaphoreRef& s : semaphores) s->used[queue] = enqueued_[queue] + 1;
}

void Engine::host_hazard(const char* kind, const std::string& resource, const mr_op_header& header, const char* op, const std::string& text,
                         uint64_t ahead) {
  const LaunchTag tag{.op = op, .number = numbered_ + 1 + ahead, .seq = header.launch, .stream = stream(header.stream), .queue = header.queue, .position = 0};
  std::lock_guard lock(monitor_.mutex);
  hazards_.add({kind, resource, {tag}, {}, host_now(), text_of(tag) + ": " + text});
}

void Engine::check_quiet(Semaphore& semaphore, const char* verb) {
  if (!checker_) return;
  for (uint32_t q = 0; q < config_.queues; ++q) {
    if (semaphore.used[q] <= seen_done_[q]) continue;
    std::lock_guard lock(monitor_.mutex);
    hazards_.add({"not_quiet", semaphore.name, {}, {}, host_now(),
                  format("%s is %s, and a launch of queue %u that names it has not been seen done", semaphore.name.c_str(), verb, q)});
  }
}

std::vector<Hazard> Engine::hazards(uint64_t* count) {
  std::lock_guard lock(monitor_.mutex);
  *count = hazards_.count();
  return hazards_.all();
}

std::optional<Hang> Engine::hang() {
  std::lock_guard lock(monitor_.mutex);
  return hang_;
}

std::optional<Failure> Engine::next_failure() {
  std::lock_guard lock(monitor_.mutex);
  if (failures_.empty()) return std::nullopt;
  Failure f = std::move(failures_.front());
  failures_.pop_front();
  return f;
}

std::optional<LaunchProfile> Engine::profile(uint64_t seq) {
  std::lock_guard lock(monitor_.mutex);
  const auto it = profiles_.find(seq);
  if (it == profiles_.end()) return std::nullopt;
  return it->second;
}

EngineStats Engine::stats() {
  std::lock_guard lock(monitor_.mutex);
  EngineStats s = stats_;
  s.launches = numbered_;
  for (size_t d = 0; d < devices_.size(); ++d) s.retired_per_device.push_back(device_retired_[d].load(std::memory_order_relaxed));
  return s;
}

void Engine::name_stream(uint32_t number, std::string name) {
  if (stream_names_.size() < kMostNames) stream_names_.try_emplace(number, std::move(name));
}

StreamTag Engine::stream(uint32_t number) const {
  const auto known = stream_names_.find(number);
  return {number, known != stream_names_.end() ? known->second.c_str() : nullptr};
}

void Engine::set_name(std::string& name, const std::string& to) {
  std::lock_guard lock(monitor_.mutex);
  name = to;
}

void Engine::remember_profile(const Launch& launch) {
  if (launch.number == 0) return;
  if (profile_order_.size() == kProfilesKept) {
    profiles_.erase(profile_order_.front());
    profile_order_.pop_front();
  }
  const uint64_t seq = launch.tag.shown();
  LaunchProfile& profile = profiles_[seq];
  profile = {.retired = true, .start_ns = launch.start_ns, .end_ns = launch.end_ns, .devices = {}};
  for (uint32_t d = 0; config_.device_times && d < devices_.size(); ++d) {
    const Context& c = launch.contexts[d];
    profile.devices.push_back({c.start_ns, c.end_ns, c.absences.ns()});
  }
  profile_order_.push_back(seq);
}

const LaunchTag& Engine::due(const Context& context) const {
  if (!context.launch().plan->in_queue) return context.launch().tag;
  const Queue& queue = queues_[context.launch().queue];
  return queue.commands[devices_[context.device()].queues[context.launch().queue].position - queue.base]->tag;
}

void Engine::advance_queue(uint32_t q) {
  Tail& tail = tails_[q];
  while (!tail.open.empty() && tail.open.front()->retired && tail.open.front()->open_work == 0) {
    Launch& launch = *tail.open.front();
    tail.open.pop_front();
    ++tail.completed;
    if (launch.plan)
      for (const Plan::Use& use : launch.plan->uses)
        if (use.writes) use.storage->writers.fetch_sub(1, std::memory_order_release);
    if (!launch.failure.empty())
      failures_.push_back({launch.tag.shown(), launch.failure_code, std::move(launch.failure)});
  }
  while (!tail.events.empty() && tail.events.front()->position <= tail.completed) {
    tail.events.front()->done.store(true, std::memory_order_release);
    tail.events.pop_front();
  }
}

}  // namespace meshrun::emu
