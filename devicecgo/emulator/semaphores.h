// semaphores.h: global semaphores. A semaphore is one 32-bit word on every core of every device; a program's worker for link l
// runs on core l and uses the word there ("lane"). Words change on the engine's thread only.
#pragma once

#include <array>
#include <atomic>
#include <coroutine>
#include <cstdint>
#include <memory>
#include <string>

#include "arena.h"
#include "check_state.h"

namespace meshrun::emu {

class Context;
class Semaphore;

// Owed says who is to raise the semaphore that a program waits for: one device, or the others of a line.
struct Owed {
  static constexpr uint32_t kLine = UINT32_MAX;
  uint32_t device = kLine;
  uint32_t axis = 0;  // of the line

  static Owed by(uint32_t device) { return {device, 0}; }
  static Owed by_line(uint32_t axis) { return {kLine, axis}; }
};

// Waiter is a suspended program's entry in the list of the word it waits for, and in that of its context.
struct Waiter {
  std::coroutine_handle<> handle;
  Semaphore* semaphore = nullptr;  // null: a count inside the program
  uint32_t lane = 0;
  uint32_t target = 0;
  Owed owed;
  const struct Word* word = nullptr;

  Waiter() = default;
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;
  ~Waiter() { unlink(); }
  void unlink();

  Waiter* next = nullptr;
  Waiter** link = nullptr;  // what points to this waiter
  Waiter* next_of_context = nullptr;
  Waiter** link_of_context = nullptr;
};

struct Word {
  std::atomic<uint32_t> value{0};  // written by the engine only; the host may look
  uint64_t tail_ns = 0;            // when the last byte behind the increments so far is there
  Waiter* waiters = nullptr;
  std::unique_ptr<WordState> state;  // the checker's
};

class Semaphore {
 public:
  static constexpr uint32_t kLanes = 16;

  Semaphore(uint32_t devices, uint32_t initial) : devices_(devices), words_(std::make_unique<Word[]>(size_t{devices} * kLanes)) {
    set(initial);
  }
  Word& word(uint32_t device, uint32_t lane) { return words_[size_t{device} * kLanes + lane]; }
  void set(uint32_t value) {
    for (size_t i = 0; i < size_t{devices_} * kLanes; ++i) words_[i].value.store(value, std::memory_order_relaxed);
  }

  std::string name;  // for reports; under the monitor's lock
  // The host's own: the handle and traces that name it, and where it lies.
  uint32_t holders = 1;
  Room room;

  // The host's own: when it was made or reset last, and the last commands per queue that name it.
  uint64_t created = 0;
  std::array<uint64_t, 2> used{};

 private:
  uint32_t devices_;
  std::unique_ptr<Word[]> words_;
};

inline void Waiter::unlink() {
  if (link != nullptr) {
    *link = next;
    if (next != nullptr) next->link = link;
    link = nullptr;
  }
  if (link_of_context != nullptr) {
    *link_of_context = next_of_context;
    if (next_of_context != nullptr) next_of_context->link_of_context = link_of_context;
    link_of_context = nullptr;
  }
}

}  // namespace meshrun::emu
