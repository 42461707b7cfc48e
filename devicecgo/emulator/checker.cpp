#include "checker.h"

#include <algorithm>
#include <utility>

#include "context.h"
#include "errors.h"

namespace meshrun::emu {
namespace {

// Does a cover b to the last byte? Never wrong when it says yes.
bool covers(const Region& a, const Region& b) {
  if (a.from == 0 && a.run == a.to && a.run == a.stride) return a.offset <= b.first() && b.last() < a.offset + a.to;
  return a.offset == b.offset && a.run == b.run && a.stride == b.stride && a.from <= b.from && b.to <= a.to;
}

}  // namespace

std::string text_of(const LaunchTag& tag) {
  if (tag.number == 0) return format("a %s", tag.op);
  return format("launch %llu (%s, stream %s)", static_cast<unsigned long long>(tag.shown()), tag.op, tag.stream.text().c_str());
}

void Hazards::add(Hazard hazard) {
  if (settling()) return;
  ++count_;
  const bool disagreement = hazard.disagreement();
  hazard.text = format("hazard (%s) at %llu ns: %s", hazard.kind.c_str(), static_cast<unsigned long long>(hazard.ns), hazard.text.c_str());
  const auto alike = [&](const Hazard& h) {
    if (h.kind != hazard.kind || h.resource != hazard.resource || h.launches.size() != hazard.launches.size()) return false;
    for (size_t i = 0; i < h.launches.size(); ++i)
      if (!h.launches[i].same(hazard.launches[i])) return false;
    return true;
  };
  if (all_.size() < kMostKept && std::none_of(all_.begin(), all_.end(), alike)) all_.push_back(std::move(hazard));
  if (stop_ && !stopped()) state_.store(disagreement ? State::settling : State::stopped, std::memory_order_release);
}

void Hazards::settle(Waits waits) {
  Hazard& first = all_.front();
  if (!waits.text.empty()) first.text += "; " + waits.text;
  first.waits = std::move(waits);
  state_.store(State::stopped, std::memory_order_release);
}

Checker::Checker(const Machine& machine, uint32_t queues, Monitor& monitor, Hazards& hazards)
    : devices_(machine.devices()),
      cols_(machine.cols),
      queues_(queues),
      monitor_(monitor),
      hazards_(hazards),
      progress_(size_t{devices_} * queues, Clock(size_t{devices_} * queues)),
      past_(size_t{devices_} * queues) {}

// ---- devices and queues ---------------------------------------------------------------------------------------------------

void Checker::enter(Context& context, const LaunchTag& due) {
  const Launch& launch = context.launch();
  const LaunchTag& tag = launch.tag;
  const uint32_t d = context.device();
  if (!tag.same(due))
    report("order", format("queue %u", tag.queue), {tag, due}, {d},
           format("device %s enters %s where every other device has %s: the order of a queue must be the same on all", at(d).c_str(),
                  text_of(tag).c_str(), text_of(due).c_str()));
  Clock clock = progress_[timeline(d, tag.queue)];
  for (uint32_t q = 0; q < queues_; ++q)
    for (uint32_t peer = 0; peer < devices_; ++peer) {
      clock.raise(timeline(peer, q), over_step(launch.host_seen[q]));
      // And what the device knew then of the other queue.
      const std::deque<Exit>& past = past_[timeline(peer, q)];
      for (size_t i = past.size(); i-- > 0;)
        if (past[i].position <= launch.host_seen[q]) {
          clock.join(past[i].clock);
          break;
        }
    }
  clock.raise(timeline(d, tag.queue), tag.entered_step());
  context.strand.set(StampRef::make(tag, d, std::move(clock)));
}

void Checker::compare(Launch& launch) {
  if (std::exchange(launch.others_told, true)) return;
  std::vector<Hazard::Group> groups;
  std::vector<uint32_t> rest, odd;
  for (uint32_t d = 0; d < devices_; ++d) {
    const Shape* shape = launch.other_shape(d);
    if (shape == nullptr) {
      rest.push_back(d);
      continue;
    }
    odd.push_back(d);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Hazard::Group& g) { return g.arguments.input.shape == *shape; });
    if (group == groups.end()) {
      group = groups.insert(groups.end(), {{}, launch.plan->arguments});
      group->arguments.input.shape = *shape;
    }
    group->devices.push_back(d);
  }
  groups.push_back({std::move(rest), launch.plan->arguments});
  const LaunchTag& tag = launch.tag;
  std::string all;
  for (const Hazard::Group& g : groups) {
    std::string names;
    for (const uint32_t d : g.devices) names += (names.empty() ? "" : " and ") + at(d);
    const bool last = &g == &groups.back();
    all += last ? "every other device" : (g.devices.size() == 1 ? "device " : "devices ") + names;
    all += format(last || g.devices.size() == 1 ? " has %s, seq %llu, %s, stream %s" : " have %s, seq %llu, %s, stream %s", tag.op,
                  static_cast<unsigned long long>(tag.shown()), emu::text(g.arguments).c_str(), tag.stream.text().c_str());
    if (!last) all += "; ";
  }
  report("arguments", tag.op, {tag}, std::move(odd), "devices enter " + text_of(tag) + " with different arguments: " + all, std::move(groups));
}

void Checker::leave(Context& context) {
  const LaunchTag& tag = context.launch().tag;
  const uint32_t d = context.device();
  for (Word* word : context.launch().words[d]) {
    WordState& s = *word->state;
    if (!s.owned || !s.owner.same(tag)) continue;
    const uint32_t value = word->value.load(std::memory_order_relaxed);
    if (value != 0) {
      const std::string name = name_of(*s.semaphore, s.lane);
      report("not_at_rest", name, {tag}, {d},
             format("%s leaves %s of device %s at %u, not at 0: %s", text_of(tag).c_str(), name.c_str(), at(d).c_str(), value,
                    value > s.awaited ? "increments came that it does not wait for" : "it does not clear what it has waited for"));
    }
    s.left = true;
  }
  context.launch().words[d].clear();
  Clock clock = context.strand.stamp()->clock;
  clock.raise(timeline(d, tag.queue), tag.left_step());
  context.strand.set({});
  if (queues_ > 1 && context.launch().plan->in_queue) {
    std::deque<Exit>& past = past_[timeline(d, tag.queue)];
    if (past.size() == kPast) past.pop_front();
    past.push_back({tag.position + 1, clock});
  }
  progress_[timeline(d, tag.queue)].join(clock);
}

void Checker::passed(uint32_t device, const Launch& wait) {
  Clock& mine = progress_[timeline(device, wait.queue)];
  mine.raise(timeline(device, wait.queue), wait.tag.left_step());
  mine.raise(timeline(device, wait.awaited_queue), over_step(wait.awaited_position));
  for (const Exit& e : past_[timeline(device, wait.awaited_queue)])
    if (e.position >= wait.awaited_position) {
      if (e.position == wait.awaited_position) mine.join(e.clock);
      break;
    }
}

// ---- semaphores -----------------------------------------------------------------------------------------------------------

// Makes the word the launch's own, which it may be when the launch that had it last is known to have left the device.
WordState& Checker::take(Context& context, Semaphore& semaphore, uint32_t lane, uint32_t device, const char* verb) {
  Word& word = semaphore.word(device, lane);
  if (!word.state) {
    word.state = std::make_unique<WordState>();
    word.state->semaphore = &semaphore;
    word.state->device = device;
    word.state->lane = lane;
  }
  WordState& s = *word.state;
  const Stamp& stamp = *Strand::here()->stamp();
  const LaunchTag& tag = stamp.tag;
  const auto in_use_by = [&](const LaunchTag& other) {
    const std::string name = name_of(semaphore, lane);
    report("semaphore_in_use", name, {other, tag}, {device, stamp.device},
           format("%s on device %s %s %s of device %s, which %s uses: nothing tells that device %s has left %s", text_of(tag).c_str(),
                  at(stamp.device).c_str(), verb, name.c_str(), at(device).c_str(), text_of(other).c_str(), at(device).c_str(),
                  text_of(other).c_str()));
  };
  if (s.owned && s.owner.same(tag)) {
    // Who took it first may know more, as the device itself does, which happened to be early: that does not help this one.
    if (s.handed_on && !over(stamp.clock, device, s.before)) {
      in_use_by(s.before);
      s.handed_on = false;
    }
    return s;
  }
  if (s.owned && !over(stamp.clock, device, s.owner)) in_use_by(s.owner);
  s.handed_on = s.owned;
  s.before = s.owner;
  s.owned = true;
  s.left = context.launch().contexts[device].left;
  s.owner = tag;
  s.rest();
  context.launch().words[device].push_back(&word);
  return s;
}

void Checker::raise(Context& context, Semaphore& semaphore, uint32_t lane, uint32_t device, bool announces) {
  if (!Strand::here()->stamp()) return;
  take(context, semaphore, lane, device, "raises");
  const Stamp& stamp = *Strand::here()->stamp();
  if (device == stamp.device || announces || !context.launch().plan->joins_first || entered(stamp, device)) return;
  const std::string name = name_of(semaphore, lane);
  report("peer_not_entered", name, {stamp.tag}, {stamp.device, device},
         format("increment of %s on device %s by device %s in %s: nothing tells that device %s has entered it, though it begins with a barrier",
                name.c_str(), at(device).c_str(), at(stamp.device).c_str(), text_of(stamp.tag).c_str(), at(device).c_str()));
}

void Checker::arrived(Word& word, uint32_t amount, const StampRef& by) {
  if (!by || amount == 0) return;
  if (!word.state) word.state = std::make_unique<WordState>();
  WordState& s = *word.state;
  if (s.semaphore != nullptr && (!s.owned || !s.owner.same(by->tag) || s.left)) {
    const std::string name = name_of(*s.semaphore, s.lane);
    const bool late = s.owned && s.owner.same(by->tag);
    report("stray_increment", name, late ? std::vector{by->tag} : std::vector{by->tag, s.owner}, {by->device, s.device},
           late ? format("an increment of %s by device %s in %s reaches device %s after that has left the launch", name.c_str(), at(by->device).c_str(),
                         text_of(by->tag).c_str(), at(s.device).c_str())
                : format("an increment of %s by device %s in %s reaches device %s when %s has the semaphore", name.c_str(), at(by->device).c_str(),
                         text_of(by->tag).c_str(), at(s.device).c_str(), text_of(s.owner).c_str()));
  }
  if (s.arrived == 0) s.first_ns = *now_;
  s.arrived += amount;
  if (!s.increments.empty() && s.increments.back().by.get() == by.get()) {
    s.increments.back().upto = s.arrived;
  } else {
    s.increments.push_back({s.arrived, by});
  }
}

void Checker::wait(Context& context, Semaphore& semaphore, uint32_t lane) {
  if (Strand::here()->stamp()) take(context, semaphore, lane, context.device(), "waits for");
}

void Checker::waited(Word& word, uint32_t target, const Owed& owed) {
  Strand& strand = *Strand::here();
  if (!strand.stamp() || !word.state) return;
  WordState& s = *word.state;
  s.awaited = std::max(s.awaited, target);
  if (owed.device == Owed::kLine && s.arrived > target) {  // more are due than were waited for: nobody can tell which came
    strand.learn(common_past(s, target));
    return;
  }
  uint32_t before = 0;
  for (const WordState::Increment& i : s.increments) {
    if (before >= target) break;
    before = i.upto;
    if (s.semaphore != nullptr && owed.device != Owed::kLine && i.by->device != owed.device) {
      const std::string name = name_of(*s.semaphore, s.lane);
      report("stray_increment", name, {strand.stamp()->tag, i.by->tag}, {s.device, i.by->device},
             format("%s on device %s waits for device %s to raise %s, and device %s has raised it", text_of(strand.stamp()->tag).c_str(),
                    at(s.device).c_str(), at(owed.device).c_str(), name.c_str(), at(i.by->device).c_str()));
    }
    strand.learn(i.by);
  }
}

StampRef Checker::common_past(const WordState& state, uint32_t target) const {
  Clock clock(progress_.size());
  std::vector<std::pair<uint32_t, uint32_t>> known;  // what a sender knew, and how many increments it sent
  for (size_t t = 0; t < clock.size(); ++t) {
    known.clear();
    uint32_t before = 0;
    for (const WordState::Increment& i : state.increments) known.push_back({i.by->clock[t], i.upto - before}), before = i.upto;
    std::sort(known.begin(), known.end());
    uint32_t n = 0;
    for (const auto& [step, amount] : known)
      if ((n += amount) >= target) {
        clock.raise(t, step);
        break;
      }
  }
  const Stamp& mine = *Strand::here()->stamp();
  return StampRef::make(mine.tag, mine.device, std::move(clock));
}

void Checker::clear(Context& context, Semaphore& semaphore, uint32_t lane) {
  if (!Strand::here()->stamp()) return;
  WordState& s = take(context, semaphore, lane, context.device(), "clears");
  const uint32_t value = semaphore.word(context.device(), lane).value.load(std::memory_order_relaxed);
  // What the device has told itself it may leave unheard.
  uint32_t before = 0, foreign = 0;
  for (const WordState::Increment& i : s.increments) {
    if (i.by->device != context.device()) foreign += i.upto - before;
    before = i.upto;
  }
  if (value > s.awaited && foreign > s.awaited) {
    const std::string name = name_of(semaphore, lane);
    std::vector<uint32_t> devices{context.device()};
    if (!s.increments.empty()) devices.push_back(s.increments.back().by->device);
    report("stray_increment", name, {s.owner}, std::move(devices),
           format("%s on device %s clears %s at %u, having waited for %u: the rest belongs to nobody", text_of(s.owner).c_str(),
                  at(context.device()).c_str(), name.c_str(), value, s.awaited));
  }
  s.rest();
}

// ---- memory ---------------------------------------------------------------------------------------------------------------

void Checker::look(Context& context, const Access& access) {
  const Region& region = access.region;
  if (region.empty()) return;
  Memory& memory = *access.memory;
  const Stamp& stamp = *Strand::here()->stamp();
  const LaunchTag& tag = stamp.tag;
  if (access.write && memory.device != stamp.device) {
    const Launch& launch = context.launch();
    const bool joins = launch.plan->joins_first, unfenced = memory.created > launch.fenced;
    // What the host had seen done tells that the device has come to this launch, not that it has made what was made since.
    const bool seen = launch.host_seen[tag.queue] >= tag.position;
    if (joins ? !entered(stamp, memory.device) : unfenced && (seen || !reached(stamp, memory.device))) {
      const std::string name = name_of(memory);
      report(joins ? "peer_not_entered" : "not_fenced", name, {tag}, {stamp.device, memory.device},
             format("%s on device %s writes to %s of device %s: nothing tells that device %s has %s", text_of(tag).c_str(), at(stamp.device).c_str(),
                    name.c_str(), at(memory.device).c_str(), at(memory.device).c_str(),
                    joins ? "entered it, though it begins with a barrier" : "made that memory: there was no fence since it was allocated"));
    }
  }
  if (!memory.state) memory.state = std::make_unique<MemoryState>();
  MemoryState& state = *memory.state;
  // Chunk after chunk of one slice is one record.
  const size_t n = state.records.size();
  for (size_t i = n; i-- > 0 && n - i <= 12;) {
    MemoryState::Record& r = state.records[i];
    if (r.device != stamp.device || r.write != access.write || !r.by.same(tag)) continue;
    if (r.region.offset != region.offset || r.region.run != region.run || r.region.stride != region.stride) continue;
    if (region.from > r.region.to || region.from < r.region.from) continue;
    if (region.to <= r.region.to) return;
    if (r.clean != state.version) scan(state, access, stamp, false);
    r.region.to = region.to;
    return;
  }
  if (!state.last.same(tag)) {
    state.last = tag;
    ++state.version;
  }
  const bool clean = scan(state, access, stamp, true);
  state.records.push_back({region, tag, stamp.device, access.write, clean ? state.version : 0});
  if (state.records.size() > kMostRecords) compact(state, memory);
}

// Looks at what other launches did to the same bytes. True when all others' accesses to this memory, to whichever bytes, are known to be
// over: then nobody needs to look again before another launch comes.
bool Checker::scan(MemoryState& state, const Access& access, const Stamp& stamp, bool drop) {
  const Memory& memory = *access.memory;
  bool clean = true;
  for (size_t i = 0; i < state.records.size();) {
    const MemoryState::Record& r = state.records[i];
    if (r.by.same(stamp.tag)) {
      ++i;
      continue;
    }
    // What a peer wrote here is complete when this device has left the launch, which waits for all of it.
    const bool ordered = over(stamp.clock, r.device, r.by) || over(stamp.clock, memory.device, r.by);
    clean = clean && ordered;
    if (!ordered && (r.write || access.write) && may_overlap(r.region, access.region)) {
      const std::string name = name_of(memory);
      report("memory_in_use", name, {r.by, stamp.tag}, {memory.device, stamp.device},
             format("%s on device %s %s %s of device %s, which %s on device %s %s: nothing tells that it has done so", text_of(stamp.tag).c_str(),
                    at(stamp.device).c_str(), access.write ? "writes to" : "reads", name.c_str(), at(memory.device).c_str(), text_of(r.by).c_str(),
                    at(r.device).c_str(), r.write ? "writes" : "reads"));
    }
    // Whoever is ordered behind this access is ordered behind that one too.
    const bool replaces = access.write || (!r.write && r.device == stamp.device && r.by.queue == stamp.tag.queue);
    if (drop && ordered && replaces && covers(access.region, r.region)) {
      state.records[i] = state.records.back();
      state.records.pop_back();
      continue;
    }
    ++i;
  }
  return clean;
}

// Drops what is over for every device. If that is not enough, the oldest half goes.
void Checker::compact(MemoryState& state, const Memory& memory) {
  const auto settled = [&](const MemoryState::Record& r) {
    for (uint32_t q = 0; q < queues_; ++q)
      for (uint32_t d = 0; d < devices_; ++d)
        if (const Clock& c = progress_[timeline(d, q)]; !over(c, r.device, r.by) && !over(c, memory.device, r.by)) return false;
    return true;
  };
  std::erase_if(state.records, settled);
  if (state.records.size() > kMostRecords / 2)
    state.records.erase(state.records.begin(), state.records.begin() + static_cast<std::ptrdiff_t>(state.records.size() - kMostRecords / 2));
}

// ---- words ----------------------------------------------------------------------------------------------------------------

std::string Checker::at(uint32_t device) const { return format("%u,%u", device / cols_, device % cols_); }

std::string Checker::name_of(const Semaphore& semaphore, uint32_t lane) {
  std::lock_guard lock(monitor_.mutex);
  std::string name = semaphore.name.empty() ? "a semaphore" : semaphore.name;
  if (lane != 0) name += format(" (core %u)", lane);
  return name;
}

std::string Checker::name_of(const Memory& memory) {
  if (memory.owner == nullptr) return "memory";
  std::lock_guard lock(monitor_.mutex);
  if (!memory.owner->name.empty()) return memory.owner->name;
  return memory.owner->made.shape.rank != 0 ? text(memory.owner->made) : "memory of the programs";
}

void Checker::report(const char* kind, std::string resource, std::vector<LaunchTag> launches, std::vector<uint32_t> devices, std::string text,
                     std::vector<Hazard::Group> groups) {
  std::sort(devices.begin(), devices.end());
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  std::lock_guard lock(monitor_.mutex);
  hazards_.add({kind, std::move(resource), std::move(launches), std::move(devices), *now_, std::move(text), std::move(groups)});
}

}  // namespace meshrun::emu
