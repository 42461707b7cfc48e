#include "device_memory.h"

#include <cstring>

#include "errors.h"

namespace meshrun::emu {

Storage::Storage(HostPool* pool, uint32_t devices, uint64_t bytes_per_device)
    : shards_(std::make_unique<Memory[]>(devices)), devices_(devices), bytes_(bytes_per_device) {
  // One block for all devices, a cache-set's stagger between them.
  pitch_ = (bytes_ + 63) / 64 * 64 + HostPool::kStagger;
  if (pool != nullptr) block_ = pool->take(pitch_ * devices);
  for (uint32_t d = 0; d < devices; ++d) {
    shards_[d].bytes = bytes_;
    shards_[d].device = d;
    shards_[d].owner = this;
    if (block_) shards_[d].data = block_.data() + d * pitch_;
  }
}

void Storage::fill(int byte) {
  if (!block_) return;
  for (uint32_t d = 0; d < devices_; ++d) std::memset(shards_[d].data, byte, bytes_);
}

void Storage::zero() {
  if (block_ && !block_.fresh()) fill(0);
}

void DeviceMemory::check(const Spec& spec, const char* what) const {
  const bool l1 = spec.memory == MR_L1;
  const uint64_t bytes = bytes_of(spec);
  if (!(l1 ? l1_ : dram_).fits(bytes)) refuse(l1, bytes, std::string(what) + ' ' + text(spec));
}

Room DeviceMemory::reserve(const Spec& spec, const char* what) {
  check(spec, what);
  const bool l1 = spec.memory == MR_L1;
  return {l1, *arena(l1).take(bytes_of(spec), "unnamed (results and callers' tensors)")};
}

Room DeviceMemory::reserve_semaphore() {
  const std::optional<uint64_t> address = l1_.take(4, "semaphores");
  if (!address) refuse(true, 4, "a semaphore");
  return {true, *address};
}

void DeviceMemory::refuse(bool l1, uint64_t bytes, const std::string& what) const {
  constexpr size_t kMostListed = 6;
  const Arena& a = l1 ? l1_ : dram_;
  const auto wide = [](uint64_t n) { return static_cast<unsigned long long>(n); };
  throw error(MR_OUT_OF_MEMORY, "%s needs %llu bytes of %s; %llu of %llu are live, %llu free, the largest free block has %llu. Live by owner: %s",
              what.c_str(), wide(bytes), l1 ? "L1 on every core" : "DRAM on every device", wide(a.live()), wide(a.capacity()), wide(a.free()),
              wide(a.largest_free()), a.owners(kMostListed).c_str());
}

}  // namespace meshrun::emu
