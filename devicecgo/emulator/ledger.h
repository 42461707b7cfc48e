// ledger.h: the accesses to one memory whose data work is not done yet. The engine looks here which earlier work a new piece
// must wait for. Only the engine's thread touches it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "region.h"

namespace meshrun::emu {

class Task;

struct LedgerEntry {
  Task* task = nullptr;
  Region region;
  bool write = false;

 private:
  friend class Ledger;
  LedgerEntry* next_ = nullptr;
  LedgerEntry** link_ = nullptr;  // what points to this entry
};

class Ledger {
 public:
  // Calls found(task) for every entry that may share a byte with `region` where one of the two writes.
  template <class F>
  void conflicts(const Region& region, bool write, uint64_t memory_bytes, F found) const {
    scan(wide_, region, write, found);
    if (!buckets_) return;
    const uint64_t size = bucket_bytes(memory_bytes), first = region.first(), last = region.last();
    if (last - first >= size) {
      for (const LedgerEntry* head : *buckets_) scan(head, region, write, found);
      return;
    }
    // An entry lies in the bucket of its first byte and reaches at most into the next.
    const uint64_t from = first / size;
    for (uint64_t b = from == 0 ? 0 : from - 1; b <= last / size; ++b) scan((*buckets_)[b], region, write, found);
  }

  void add(LedgerEntry& entry, uint64_t memory_bytes) {
    const uint64_t size = bucket_bytes(memory_bytes), first = entry.region.first();
    LedgerEntry** head = &wide_;
    if (entry.region.last() - first < size) {
      if (!buckets_) buckets_ = std::make_unique<Buckets>();
      head = &(*buckets_)[first / size];
    }
    entry.next_ = *head;
    entry.link_ = head;
    if (*head != nullptr) (*head)->link_ = &entry.next_;
    *head = &entry;
  }

  static void remove(LedgerEntry& entry) {
    *entry.link_ = entry.next_;
    if (entry.next_ != nullptr) entry.next_->link_ = entry.link_;
  }

 private:
  static constexpr uint64_t kBuckets = 32;
  using Buckets = std::array<LedgerEntry*, kBuckets>;

  static uint64_t bucket_bytes(uint64_t memory_bytes) { return memory_bytes / kBuckets + 1; }

  template <class F>
  static void scan(const LedgerEntry* entry, const Region& region, bool write, F& found) {
    for (; entry != nullptr; entry = entry->next_)
      if ((write || entry->write) && may_overlap(region, entry->region)) found(entry->task);
  }

  LedgerEntry* wide_ = nullptr;  // accesses to more than a bucket's worth
  std::unique_ptr<Buckets> buckets_;
};

}  // namespace meshrun::emu
