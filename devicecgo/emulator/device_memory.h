// device_memory.h: the devices' memory. Storage is one tensor's shards on all devices; DeviceMemory knows where they lie on a device.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "arena.h"
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

  // The host's own: handles on this storage and traces that name it, and where DeviceMemory has put it.
  uint32_t holders = 0;
  Room room;

  Spec made;         // as what it was allocated
  std::string name;  // for reports; under the monitor's lock

 private:
  std::unique_ptr<Memory[]> shards_;
  uint32_t devices_;
  uint64_t bytes_;
  uint64_t pitch_ = 0;
  Block block_;
};

// DeviceMemory hands out the memory of one device; all devices of a mesh hold the same at the same addresses. DRAM is handed out from the
// bottom up, L1 from the top down. Used by the host's thread only.
class DeviceMemory {
 public:
  DeviceMemory(uint64_t dram_bytes, uint64_t l1_bytes, uint32_t cores)
      : dram_(dram_bytes, kDramUnit, Arena::From::bottom), l1_(l1_bytes, kL1Unit, Arena::From::top), cores_(cores) {}

  // All throw MR_OUT_OF_MEMORY, with what is live by owner and the largest free block.
  void check(const Spec& spec, const char* what) const;
  Room reserve(const Spec& spec, const char* what);
  Room reserve_semaphore();  // 4 bytes on every core
  void release(const Room& room) { arena(room.l1).give_back(room.address); }
  void own(const Room& room, const std::string& name) { arena(room.l1).own(room.address, owner_of(name)); }

  const Arena& dram() const { return dram_; }
  const Arena& l1() const { return l1_; }  // of each core

 private:
  static constexpr uint64_t kDramUnit = 64, kL1Unit = 16;  // alignments of Blackhole's DRAM and L1

  Arena& arena(bool l1) { return l1 ? l1_ : dram_; }
  uint64_t bytes_of(const Spec& spec) const { return spec.memory == MR_L1 ? spec.l1_bytes_per_core(cores_) : spec.device_bytes(); }
  [[noreturn]] void refuse(bool l1, uint64_t bytes, const std::string& what) const;

  Arena dram_, l1_;
  uint32_t cores_;
};

}  // namespace meshrun::emu
