// handles.h: 64-bit handles (slot + generation) to the host's objects. A stale handle is found by its generation; the
// generation also holds the kind of object and a salt of the mesh, so that a semaphore is no tensor, nor another mesh's
// tensor one of ours.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "errors.h"

namespace meshrun::emu {

enum class Kind : uint32_t { mesh = 1, tensor = 2, semaphore = 3, event = 4, trace = 5 };

constexpr const char* kind_name(Kind k) {
  switch (k) {
    case Kind::mesh:
      return "mesh";
    case Kind::tensor:
      return "tensor";
    case Kind::semaphore:
      return "semaphore";
    case Kind::event:
      return "event";
    case Kind::trace:
      return "trace";
  }
  return "object";
}

constexpr uint32_t handle_slot(mr_handle h) { return static_cast<uint32_t>(h); }
constexpr uint32_t handle_generation(mr_handle h) { return static_cast<uint32_t>(h >> 32); }
constexpr mr_handle make_handle(uint32_t slot, uint32_t generation) { return uint64_t{generation} << 32 | slot; }

template <class T>
class HandleTable {
 public:
  HandleTable(Kind kind, uint32_t salt) : kind_(kind), base_(static_cast<uint32_t>(kind) << 29 | (salt & 0x7fu) << 22) {}

  mr_handle add(T value) {
    uint32_t slot;
    if (free_.empty()) {
      slot = static_cast<uint32_t>(slots_.size());
      slots_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    Slot& s = slots_[slot];
    s.value = std::move(value);
    s.live = true;
    s.uses = (s.uses + 1) & 0x3fffffu;
    ++live_;
    return make_handle(slot, base_ | s.uses);
  }

  T* find(mr_handle h) {
    const uint32_t slot = handle_slot(h);
    if (slot >= slots_.size()) return nullptr;
    Slot& s = slots_[slot];
    return s.live && handle_generation(h) == (base_ | s.uses) ? &s.value : nullptr;
  }

  // `what` says where the handle stood, e.g. "all_gather: input"
  T& get(mr_handle h, const char* what) {
    if (T* value = find(h)) return *value;
    throw error(MR_STALE_HANDLE, "%s: handle 0x%llx is not a live %s of this mesh", what, static_cast<unsigned long long>(h),
                kind_name(kind_));
  }

  T take(mr_handle h) {
    Slot& s = slots_[handle_slot(h)];
    T value = std::move(s.value);
    s.value = T{};
    s.live = false;
    --live_;
    free_.push_back(handle_slot(h));
    return value;
  }

  // Throws unless every handle is live and named once; so a batch is freed whole or not at all.
  void check_batch(const mr_handle* handles, uint32_t count, const char* what) {
    if (count != 0 && handles == nullptr) throw error(MR_INVALID_ARGUMENT, "%s: handles is NULL, count is %u", what, count);
    for (uint32_t i = 0; i < count; ++i) get(handles[i], what);
    if (count < 2) return;
    std::vector<mr_handle> sorted(handles, handles + count);
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end())
      throw error(MR_INVALID_ARGUMENT, "%s: handle 0x%llx is named twice", what, static_cast<unsigned long long>(*twice));
  }

  uint32_t live() const { return live_; }
  template <class F>
  void for_each(F f) {
    for (Slot& s : slots_)
      if (s.live) f(s.value);
  }

 private:
  struct Slot {
    T value{};
    uint32_t uses = 0;
    bool live = false;
  };
  Kind kind_;
  uint32_t base_;
  uint32_t live_ = 0;
  std::deque<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace meshrun::emu
