// mesh_trace.cpp: traces as the host sees them. While one is captured, operations are planned as ever, but their plans are kept instead
// of launched; nothing else may be done that a replay would not do again.
#include <algorithm>
#include <utility>

#include "errors.h"
#include "mesh.h"

namespace meshrun::emu {

mr_handle Mesh::trace_begin(uint32_t queue) {
  if (queue >= config_.queues) throw error(MR_INVALID_ARGUMENT, "trace_begin: queue is %u: the mesh has %u", queue, config_.queues);
  if (capture_ != nullptr) throw error(MR_REJECTED, "trace_begin: a trace is captured on queue %u already: end it first", capture_->queue);
  auto trace = std::make_unique<Trace>();
  trace->queue = queue;
  capture_ = trace.get();
  return traces_.add(std::move(trace));
}

void Mesh::trace_end(mr_handle handle) {
  Trace& trace = *traces_.get(handle, "trace_end: trace");
  if (&trace != capture_) throw error(MR_REJECTED, "trace_end: trace 0x%llx is captured already", static_cast<unsigned long long>(handle));
  capture_ = nullptr;
}

void Mesh::trace_execute(mr_handle handle, uint32_t queue, uint64_t first_launch) {
  const Trace& trace = *traces_.get(handle, "trace_execute: trace");
  refuse_in_capture("trace_execute", "a replay within a trace");
  if (queue >= config_.queues) throw error(MR_INVALID_ARGUMENT, "trace_execute: queue is %u: the mesh has %u", queue, config_.queues);
  const auto header_of = [&](size_t i) {
    mr_op_header header{};
    header.queue = queue;
    header.launch = first_launch != 0 ? first_launch + i : 0;
    header.stream = trace.steps[i].stream;
    return header;
  };
  // All is launched or nothing: whoever is refused has launched none.
  for (size_t i = 0; i < trace.steps.size(); ++i) {
    const Trace::Step& step = trace.steps[i];
    check_shapes(*step.plan, engine_->launches() + 1 + i);
    engine_->check_fenced(step.semaphores, header_of(i), step.plan->name(), i);
    if (engine_->hazard_stopped()) report_hazard();
  }
  engine_->prepare(trace.steps.size());
  engine_->spend_host_time(engine_->cost().launch_host_ns());  // once: the devices find the rest by themselves
  for (size_t i = 0; i < trace.steps.size(); ++i) launch(trace.steps[i].plan, trace.steps[i].semaphores, header_of(i));
}

void Mesh::trace_free(mr_handle handle) {
  traces_.get(handle, "trace_free: trace");
  const std::unique_ptr<Trace> trace = traces_.take(handle);
  if (trace.get() == capture_) capture_ = nullptr;
  for (const auto& storage : trace->storages) let_go(*storage);
  for (const SemaphoreRef& semaphore : trace->semaphores) let_go(*semaphore);
  for (const Trace::Scratch& s : trace->scratch) memory_.release(s.room);
}

void Mesh::refuse_in_capture(const char* function, const char* what) const {
  if (capture_ == nullptr) return;
  throw error(MR_REJECTED, "%s: %s while a trace is captured (on queue %u): a replay would not do it again. Do it before trace_begin: prewarm, or run the sequence once",
              function, what, capture_->queue);
}

void Mesh::keep(const std::vector<std::shared_ptr<Storage>>& storages, const std::vector<SemaphoreRef>& semaphores) {
  for (const auto& s : storages) {
    ++s->holders;
    capture_->storages.push_back(s);
  }
  for (const SemaphoreRef& s : semaphores) {
    ++s->holders;
    capture_->semaphores.push_back(s);
  }
}

void Mesh::keep_scratch(const std::vector<Spec>& specs, const char* what) {
  std::vector<bool> taken(capture_->scratch.size());
  for (const Spec& spec : specs) {
    size_t i = 0;
    const auto fits = [&](const Trace::Scratch& s) { return s.spec.memory == spec.memory && s.spec.device_bytes() >= spec.device_bytes(); };
    while (i < taken.size() && (taken[i] || !fits(capture_->scratch[i]))) ++i;
    if (i == taken.size()) {
      capture_->scratch.push_back({spec, memory_.reserve(spec, what)});
      taken.push_back(false);
    }
    taken[i] = true;
  }
}

}  // namespace meshrun::emu
