// check_state.h: what the checker notes beside each semaphore word and each shard of memory.
#pragma once

#include <cstdint>
#include <vector>

#include "region.h"
#include "vector_clock.h"

namespace meshrun::emu {

class Semaphore;

// WordState belongs to one launch at a time: the first that raises the word or waits for it, until another may take it over.
struct WordState {
  struct Increment {
    uint32_t upto;  // the word's value behind it
    StampRef by;
  };
  const Semaphore* semaphore = nullptr;  // null: a count inside a program, which is not checked
  uint32_t device = 0;
  uint32_t lane = 0;
  bool owned = false;
  bool left = false;  // the owner has left the device that holds the word
  LaunchTag owner;
  bool handed_on = false;  // `before` had it before the owner
  LaunchTag before;
  uint32_t arrived = 0;
  uint32_t awaited = 0;  // the highest target so far
  uint64_t first_ns = 0;  // when the first increment of the owner came
  std::vector<Increment> increments;

  void rest() {
    arrived = awaited = 0;
    increments.clear();
  }
};

// MemoryState holds the last accesses to a shard, by whom and to which bytes. What a later access has made irrelevant is dropped.
struct MemoryState {
  struct Record {
    Region region;
    LaunchTag by;
    uint32_t device;  // whose program it was
    bool write;
    uint32_t clean;   // the state's version at which nothing unordered was left here; 0 = look every time
  };
  std::vector<Record> records;
  uint32_t version = 1;  // counts the turns from one launch to another
  LaunchTag last;
};

}  // namespace meshrun::emu
