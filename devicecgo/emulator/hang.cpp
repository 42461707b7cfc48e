// hang.cpp: the report when nothing can happen any more and a program still waits; who waits for what, also once devices disagree.
#include <algorithm>

#include "context.h"
#include "engine.h"
#include "errors.h"
#include "json.h"

namespace meshrun::emu {
namespace {

constexpr size_t kMostListed = 64;  // programs in the report; a big mesh has the same story many times over

std::string name_of(const Waiter& w) {
  if (w.semaphore == nullptr) return "a count of its own";
  return w.semaphore->name.empty() ? "a semaphore" : w.semaphore->name;
}

// launch 7 (all_gather)
std::string called(const Launch& launch) {
  return format("launch %llu (%s)", static_cast<unsigned long long>(launch.tag.shown()), launch.tag.op);
}

}  // namespace

// Investigation is all programs that wait, by launch and device.
class Investigation {
 public:
  struct Stuck {
    const Launch* launch;
    const Context* context;
    const Waiter* waiter;
  };

  Investigation(const Machine& machine, std::vector<Stuck> stuck) : machine_(machine), stuck_(std::move(stuck)) {
    std::stable_sort(stuck_.begin(), stuck_.end(), [](const Stuck& a, const Stuck& b) {
      return std::pair(a.launch->number, a.context->device()) < std::pair(b.launch->number, b.context->device());
    });
  }

  const std::vector<Stuck>& stuck() const { return stuck_; }

  // The devices that owe a waiting program its increments, as far as can be told.
  std::vector<uint32_t> owed_by(const Stuck& s) const {
    if (s.waiter->owed.device != Owed::kLine) return {s.waiter->owed.device};
    const Line line = Line::of(machine_, s.context->device(), s.waiter->owed.axis);
    std::vector<uint32_t> absent, others;
    for (uint32_t i = 1; i < line.length; ++i) {
      const uint32_t d = line.device(i);
      others.push_back(d);
      if (!s.launch->contexts[d].entered || s.launch->other_shape(d) != nullptr) absent.push_back(d);
    }
    return absent.empty() ? others : absent;
  }

  // What the device waits for, if it waits for another's increments.
  const Stuck* waiting(uint32_t device) const {
    for (const Stuck& s : stuck_)
      if (s.context->device() == device && s.waiter->semaphore != nullptr) return &s;
    return nullptr;
  }

  // A list for the report, and in words the first and how many more there are; no words when nobody waits.
  Waits waits() const {
    Json json;
    json.begin_array();
    size_t listed = 0;
    std::string text;
    for (const Stuck& w : stuck_) {
      if (w.waiter->semaphore == nullptr && waiting(w.context->device()) != nullptr) continue;  // waits for its own parts
      const uint32_t value = w.waiter->word->value.load(std::memory_order_relaxed);
      const std::string semaphore = name_of(*w.waiter);
      if (listed == 0)
        text = format("device %s waits for %s (value %u, target %u)", at(w.context->device()).c_str(), semaphore.c_str(), value, w.waiter->target);
      if (++listed > kMostListed) continue;
      json.begin_object().key("device");
      place(json, w.context->device());
      json.field("op", w.launch->plan->name()).field("seq", w.launch->tag.shown()).field("stream", w.launch->stream.text());
      json.field("semaphore", semaphore).field("core", w.waiter->lane).field("value", value).field("target", w.waiter->target);
      json.key("owed_by").begin_array();
      for (const uint32_t d : owed_by(w)) place(json, d);
      json.end_array().end_object();
    }
    if (listed > 1) text += format(", and %zu more wait", listed - 1);
    return {json.end_array().take(), std::move(text)};
  }

  std::string at(uint32_t device) const { return format("%u,%u", device / machine_.cols, device % machine_.cols); }
  void place(Json& json, uint32_t device) const { json.begin_array().value(device / machine_.cols).value(device % machine_.cols).end_array(); }

 private:
  const Machine& machine_;
  std::vector<Stuck> stuck_;
};

Investigation Engine::investigate() const {
  std::vector<Investigation::Stuck> found;
  for (const Queue& queue : queues_)
    for (const auto& launch : queue.commands)
      for (uint32_t d = 0; d < devices_.size(); ++d)
        for (const Waiter* w = launch->contexts[d].waiters(); w != nullptr; w = w->next_of_context)
          found.push_back({launch.get(), &launch->contexts[d], w});
  return {config_.machine, std::move(found)};
}

Waits Engine::who_waits() const { return investigate().waits(); }

Hang Engine::describe_hang() {
  using Stuck = Investigation::Stuck;
  const Investigation all = investigate();
  const auto at = [&](uint32_t d) { return all.at(d); };
  const auto with_other = [&](const Launch& launch, uint32_t d) {
    return format("device %s is in %s with shape %s, where its peers have %s", at(d).c_str(), called(launch).c_str(), text(*launch.other_shape(d)).c_str(),
                  text(launch.plan->arguments.input.shape).c_str());
  };

  const auto swapped = [&](uint32_t d, const Launch& l) -> std::string {
    for (const Fault& f : active_faults_)
      if (f.kind == Fault::Kind::swap && f.device == d && (f.launch == l.number || f.other == l.number))
        return format(": a fault has it swap that with launch %llu", static_cast<unsigned long long>(f.launch == l.number ? f.other : f.launch));
    return "";
  };

  // Follow who owes whom, from the first that waits, to one that does not wait itself or that was met before.
  const char* kind = "all_stuck";
  uint32_t culprit = 0;
  std::string story;
  std::vector<bool> met(devices_.size());
  const Stuck* s = nullptr;
  for (const Stuck& first : all.stuck())
    if (first.waiter->semaphore != nullptr && (stalled_ == nullptr || first.launch == stalled_)) {
      s = &first;
      break;
    }
  if (s != nullptr) culprit = s->context->device();
  // Increments that came before a device had entered, and are lost: it entered too late for them.
  for (const Stuck& w : all.stuck()) {
    const WordState* state = w.waiter->word->state.get();
    if (w.waiter->semaphore == nullptr || state == nullptr || state->arrived < w.waiter->target || state->first_ns >= w.context->start_ns) continue;
    kind = "entered_late";
    culprit = w.context->device();
    story = format("device %s entered %s at %llu ns, when increments had come for it from %llu ns on: %u of %u are lost", at(culprit).c_str(),
                   called(*w.launch).c_str(), static_cast<unsigned long long>(w.context->start_ns), static_cast<unsigned long long>(state->first_ns),
                   state->arrived - w.waiter->word->value.load(std::memory_order_relaxed), state->arrived);
    s = nullptr;
    break;
  }
  while (s != nullptr) {
    met[s->context->device()] = true;
    const Launch& launch = *s->launch;
    const std::string what = called(launch);
    const uint32_t debtor = all.owed_by(*s).front();
    const Context& theirs = launch.contexts[debtor];
    if (theirs.left) {  // it has done its part, and yet this one waits
      kind = "never_left";
      culprit = s->context->device();
      story = format("device %s entered %s and never left, though device %s did", at(culprit).c_str(), what.c_str(), at(debtor).c_str());
      break;
    }
    culprit = debtor;
    if (theirs.entered && launch.other_shape(debtor) != nullptr) {
      kind = "entered_other";
      story = with_other(launch, debtor);
      break;
    }
    if (!theirs.entered && devices_[debtor].stopped) {
      kind = "never_entered";
      story = format("device %s never entered %s: it has stopped", at(debtor).c_str(), what.c_str());
      break;
    }
    const Stuck* next = all.waiting(debtor);
    if (!theirs.entered && (next == nullptr || next->launch->number > launch.number)) {
      kind = next == nullptr ? "never_entered" : "entered_other";
      story = next == nullptr ? format("device %s never entered %s%s", at(debtor).c_str(), what.c_str(), swapped(debtor, launch).c_str())
                              : format("device %s is in %s, not in %s", at(debtor).c_str(), called(*next->launch).c_str(), what.c_str());
      break;
    }
    if (next == nullptr) {
      kind = "never_left";
      story = format("device %s entered %s and never left, and waits for nobody", at(debtor).c_str(), what.c_str());
      break;
    }
    if (met[debtor]) {
      kind = "all_stuck";
      story = format("all devices of a line wait for one another in %s", what.c_str());
      break;
    }
    s = next;
  }
  for (uint32_t q = 0; q < config_.queues && story.empty() && all.stuck().empty(); ++q)
    for (const auto& launch : queues_[q].commands)
      for (uint32_t d = 0; d < devices_.size() && story.empty(); ++d) {
        if (!launch->contexts[d].entered || launch->contexts[d].left) continue;
        kind = "never_left";
        culprit = d;
        story = format("device %s entered %s and never left, and waits for nobody", at(d).c_str(), called(*launch).c_str());
        if (launch->other_shape(d) == nullptr) continue;
        kind = "entered_other";
        story = with_other(*launch, d);
      }
  if (story.empty())
    for (uint32_t d = 0; d < devices_.size() && story.empty(); ++d) {
      if (!devices_[d].stopped) continue;
      for (uint32_t q = 0; q < config_.queues; ++q) {
        const Queue& queue = queues_[q];
        const uint64_t position = devices_[d].queues[q].position;
        if (position >= queue.end()) continue;
        const Launch& launch = *queue.commands[position - queue.base];
        if (!launch.plan) continue;
        kind = "never_entered";
        culprit = d;
        story = format("device %s never entered %s: it has stopped", at(d).c_str(), called(launch).c_str());
        break;
      }
    }
  if (story.empty()) story = "queues wait for one another's events";

  const Waits waits = all.waits();
  Json json;
  json.begin_object().field("class", kind).key("device");
  all.place(json, culprit);
  json.key("waiting").raw(waits.json).key("recent").begin_array();
  for (uint32_t d = 0; d < std::min<size_t>(devices_.size(), kMostListed); ++d) {
    const History& h = history_[d];
    json.begin_object().key("device");
    all.place(json, d);
    json.field("dropped", h.dropped()).key("launches").begin_array();
    for (uint64_t i = h.dropped(); i < h.count; ++i) {
      const Recent& r = h.ring[i % History::kKept];
      json.begin_object().field("seq", r.tag.shown()).field("op", r.tag.op).field("stream", r.tag.stream.text());
      json.field("entered_ns", r.entered_ns).key("left_ns");
      if (r.left_ns == UINT64_MAX) json.null();
      else json.value(r.left_ns);
      json.end_object();
    }
    json.end_array().end_object();
  }
  json.end_array();
  Hang hang;
  hang.text = format("hang at %llu ns: %s", static_cast<unsigned long long>(now_), story.c_str());
  if (stalled_ != nullptr) {
    const auto us = static_cast<unsigned long long>(stalled_->limit_ns / 1000);
    hang.text += format("; %s has made no progress for %llu us, which is its limit", called(*stalled_).c_str(), us);
    json.field("no_progress_us", us);
  }
  if (!waits.text.empty()) hang.text += "; " + waits.text;
  if (const uint64_t dropped = history_[culprit].dropped())
    hang.text += format("; what device %s did before its last %llu launches is unknown (%llu records dropped)", at(culprit).c_str(),
                        static_cast<unsigned long long>(History::kKept), static_cast<unsigned long long>(dropped));
  json.field("text", hang.text).end_object();
  hang.json = json.take();
  return hang;
}

}  // namespace meshrun::emu
