#include "program.h"

#include <new>

namespace meshrun::emu {

FramePool& FramePool::here() {
  thread_local FramePool pool;
  return pool;
}

void* FramePool::take(size_t bytes) {
  const size_t c = (bytes + kStep - 1) / kStep;
  if (c >= kClasses) return ::operator new(bytes);
  if (Free* frame = free_[c]) {
    free_[c] = frame->next;
    return frame;
  }
  return ::operator new(c * kStep);
}

void FramePool::give(void* frame, size_t bytes) {
  const size_t c = (bytes + kStep - 1) / kStep;
  if (c >= kClasses) {
    ::operator delete(frame);
    return;
  }
  free_[c] = new (frame) Free{free_[c]};
}

FramePool::~FramePool() {
  for (Free* frame : free_)
    while (frame != nullptr) {
      Free* next = frame->next;
      ::operator delete(frame);
      frame = next;
    }
}

std::coroutine_handle<> Program::Final::await_suspend(Handle h) noexcept {
  promise_type& promise = h.promise();
  if (Join* join = promise.join) {
    if (promise.error && !join->error_) join->error_ = promise.error;
    if (--join->running_ == 0 && join->waiting_) return std::exchange(join->waiting_, {});
    return std::noop_coroutine();
  }
  if (promise.sink != nullptr) {
    promise.sink->program_ended(promise.error);
    return std::noop_coroutine();
  }
  return promise.continuation;
}

void Join::start(Program program) {
  const Program::Handle h = std::exchange(program.handle_, {});
  h.promise().join = this;
  h.promise().sibling = first_;
  first_ = h;
  ++running_;
  Strand* const mine = Strand::here();
  h.promise().strand.fork(*mine);
  Strand::here() = &h.promise().strand;
  h.resume();
  Strand::here() = mine;
}

void Join::learn() const {
  for (Program::Handle h = first_; h; h = h.promise().sibling) Strand::here()->learn(h.promise().strand.stamp());
}

Join::~Join() {
  while (first_) {
    const Program::Handle next = first_.promise().sibling;
    first_.destroy();
    first_ = next;
  }
}

}  // namespace meshrun::emu
