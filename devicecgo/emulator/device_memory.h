// device_memory.h: the devices' memory. Storage is one tensor's shards on all devices; DeviceMemory counts what a device has. This is
// the seam where an allocator with real addresses goes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "check_state.h"
#include "host_pool.h"
#include "ledger.h"
#include "spec.h"

namespace meshrun::emu {

// Memory is one shard.
struct Memory {
  std::byte* data = nullptr;  // null in timing mode
  uint64_t bytes = 0;
  Ledger ledger;  // engine's thread only
  uint32_t device = 0;
  const class Storage* owner = nullptr;
  uint64_t created = 0;                // when it was allocated, in the host's count of creations and fences
  std::unique_ptr<MemoryState> state;  // the checker's
};

// Storage holds the shards of one tensor and of its views. Commands that are under way hold it too.
class Storage {
 public:
  Storage(HostPool* pool, uint32_t devices, uint64_t bytes_per_device);  // pool null: no data

  Memory& at(uint32_t device) { return shards_[device]; }
  uint32_t devices() const { return devices_; }
  uint64_t bytes() const { return bytes_; }
  void fill(int byte);  // all devices
  void zero();

  // Commands under way that use it, and that write to it: counted up by the host, down by the engine. At 0 the host may touch
  // the data.
  std::atomic<uint32_t> uses{0};
  std::atomic<uint32_t> writers{0};

  // The host's own: handles on this storage, and what DeviceMemory counts for it.
  uint32_t handles = 0;
  Spec counted;

  std::string name;  // for reports; under the monitor's lock

 private:
  std::unique_ptr<Memory[]> shards_;
  uint32_t devices_;
  uint64_t bytes_;
  uint64_t pitch_ = 0;
  Block block_;
};

// DeviceMemory counts bytes on one device; all devices of a mesh hold the same. Used by the host's thread only.
class DeviceMemory {
 public:
  DeviceMemory(uint64_t dram_bytes, uint64_t l1_bytes, uint32_t cores) : dram_bytes_(dram_bytes), l1_bytes_(l1_bytes), cores_(cores) {}

  void check(const Spec& spec, const char* what) const;  // throws MR_OUT_OF_MEMORY
  void reserve(const Spec& spec, const char* what);      // the same
  void release(const Spec& spec);
  // Semaphores take 4 bytes on every core, from the top of L1 down.
  void reserve_semaphores(uint32_t count);
  void release_semaphores(uint32_t count);

  uint64_t dram_live() const { return dram_live_; }
  uint64_t dram_peak() const { return dram_peak_; }
  uint64_t l1_live() const { return l1_live_; }
  uint64_t l1_peak() const { return l1_peak_; }

 private:
  void check_l1(uint64_t bytes, const char* what) const;
  void take_l1(uint64_t bytes);

  uint64_t dram_bytes_, l1_bytes_;
  uint32_t cores_;
  uint64_t dram_live_ = 0, dram_peak_ = 0;
  uint64_t l1_live_ = 0, l1_peak_ = 0;  // per core
};

}  // namespace meshrun::emu
