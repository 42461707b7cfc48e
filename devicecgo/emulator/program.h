// program.h: device programs are coroutines. A Program may be awaited as a part of another, or several be started in a Join and
// run side by side. All live on the engine's thread; their frames are pooled.
#pragma once

#include <array>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <utility>

#include "vector_clock.h"

namespace meshrun::emu {

// FramePool keeps freed coroutine frames by size, one pool per thread.
class FramePool {
 public:
  static FramePool& here();
  void* take(size_t bytes);
  void give(void* frame, size_t bytes);
  ~FramePool();

 private:
  static constexpr size_t kStep = 64, kClasses = 64;
  struct Free {
    Free* next;
  };
  std::array<Free*, kClasses> free_{};
};

class Join;

// ProgramSink hears when a top-level program has ended.
class ProgramSink {
 public:
  virtual void program_ended(std::exception_ptr error) = 0;

 protected:
  ~ProgramSink() = default;
};

class [[nodiscard]] Program {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  struct Final {
    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(Handle h) noexcept;
    void await_resume() const noexcept {}
  };

  struct promise_type {
    std::coroutine_handle<> continuation;  // of a program that awaits this one
    Join* join = nullptr;
    ProgramSink* sink = nullptr;
    std::exception_ptr error;
    Handle sibling;  // the next in the join
    Strand strand;   // of a program in a join: what it has learnt

    Program get_return_object() { return Program(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    Final final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { error = std::current_exception(); }
    static void* operator new(size_t bytes) { return FramePool::here().take(bytes); }
    static void operator delete(void* frame, size_t bytes) { FramePool::here().give(frame, bytes); }
  };

  Program() = default;
  Program(Program&& o) noexcept : handle_(std::exchange(o.handle_, {})) {}
  Program& operator=(Program&& o) noexcept {
    if (this != &o) {
      destroy();
      handle_ = std::exchange(o.handle_, {});
    }
    return *this;
  }
  ~Program() { destroy(); }
  void destroy() {
    if (handle_) std::exchange(handle_, {}).destroy();
  }

  void start(ProgramSink& sink) {
    handle_.promise().sink = &sink;
    handle_.resume();
  }

  // Awaiting a program runs it to its end.
  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> caller) noexcept {
    handle_.promise().continuation = caller;
    return handle_;
  }
  void await_resume() const {
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
  }

 private:
  friend class Join;
  explicit Program(Handle h) : handle_(h) {}
  Handle handle_;
};

// Join runs programs side by side; awaiting it waits for all.
class Join {
 public:
  Join() = default;
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;
  ~Join();

  void start(Program program);  // runs it up to its first wait

  bool await_ready() const noexcept { return running_ == 0; }
  void await_suspend(std::coroutine_handle<> caller) noexcept {
    waiting_ = caller;
    strand_ = Strand::here();
  }
  void await_resume() const {
    if (strand_ != nullptr) Strand::here() = strand_;
    learn();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  friend struct Program::Final;
  void learn() const;  // what its programs have

  Program::Handle first_;
  unsigned running_ = 0;
  std::coroutine_handle<> waiting_;
  Strand* strand_ = nullptr;
  std::exception_ptr error_;
};

}  // namespace meshrun::emu
