// watch.cpp: looks whether something has made no progress for too long.
#include "context.h"
#include "engine.h"

namespace meshrun::emu {
namespace {

bool waits(const Context& context) {
  for (const Waiter* w = context.waiters(); w != nullptr; w = w->next_of_context)
    if (w->semaphore != nullptr) return true;
  return false;
}

}  // namespace

// When the launch last made progress, in progress_ns, and when its limit has passed. Launches before it in the queue have been looked at.
void Engine::set_deadline(Launch& launch) {
  launch.progress_ns = launch.active_ns;
  uint64_t held_ns = 0;  // until which what holds up a device is not overdue itself
  for (uint32_t d = 0; d < devices_.size(); ++d) {
    if (launch.contexts[d].entered) continue;
    const DeviceQueue* dq = &devices_[d].queues[launch.queue];
    const Queue& queue = queues_[launch.queue];
    if (dq->position < queue.end() && dq->current == nullptr)
      if (const Launch& next = *queue.commands[dq->position - queue.base]; !next.plan) dq = &devices_[d].queues[next.awaited_queue];
    launch.progress_ns = std::max(launch.progress_ns, dq->active_ns);
    if (dq->current == nullptr) continue;
    launch.progress_ns = std::max({launch.progress_ns, dq->current->active_ns, dq->current->progress_ns});
    held_ns = std::max(held_ns, dq->current->limit_ns == 0 ? UINT64_MAX : dq->current->deadline_ns);
  }
  launch.deadline_ns = launch.limit_ns == 0 ? UINT64_MAX : std::max(launch.progress_ns + launch.limit_ns, held_ns);
}

void Engine::look_for_stall() {
  const Launch* first = nullptr;
  for (uint32_t q = 0; q < config_.queues; ++q)
    for (const auto& launch : queues_[q].commands) {
      if (!launch->plan || launch->devices_left == 0) continue;
      set_deadline(*launch);
      if (launch->limit_ns == 0 || (first != nullptr && first->deadline_ns <= launch->deadline_ns)) continue;
      for (uint32_t d = 0; d < devices_.size(); ++d)
        if (waits(launch->contexts[d])) {
          first = launch.get();
          break;
        }
    }
  watch_.set_next(first != nullptr ? first->deadline_ns : UINT64_MAX);
  if (first == nullptr || first->deadline_ns >= heap_.next_ns()) return;
  stalled_ = first;
  now_ = first->deadline_ns;
}

}  // namespace meshrun::emu
