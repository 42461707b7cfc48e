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
  if (spec.memory == MR_L1) {
    check_l1(spec.l1_bytes_per_core(cores_), (std::string(what) + ' ' + text(spec)).c_str());
    return;
  }
  const uint64_t bytes = spec.device_bytes();
  if (bytes > dram_bytes_ - dram_live_)
    throw error(MR_OUT_OF_MEMORY, "out of memory: %s %s needs %llu bytes of DRAM on every device; %llu of %llu are live, %llu free", what,
                text(spec).c_str(), static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(dram_live_),
                static_cast<unsigned long long>(dram_bytes_), static_cast<unsigned long long>(dram_bytes_ - dram_live_));
}

void DeviceMemory::reserve(const Spec& spec, const char* what) {
  check(spec, what);
  if (spec.memory == MR_L1) {
    take_l1(spec.l1_bytes_per_core(cores_));
    return;
  }
  dram_live_ += spec.device_bytes();
  dram_peak_ = std::max(dram_peak_, dram_live_);
}

void DeviceMemory::release(const Spec& spec) {
  if (spec.memory == MR_L1) {
    l1_live_ -= spec.l1_bytes_per_core(cores_);
  } else {
    dram_live_ -= spec.device_bytes();
  }
}

void DeviceMemory::reserve_semaphores(uint32_t count) {
  const uint64_t bytes = uint64_t{count} * 4;
  check_l1(bytes, format("%u semaphore%s", count, count == 1 ? "" : "s").c_str());
  take_l1(bytes);
}

void DeviceMemory::release_semaphores(uint32_t count) { l1_live_ -= uint64_t{count} * 4; }

void DeviceMemory::check_l1(uint64_t bytes, const char* what) const {
  if (bytes > l1_bytes_ - l1_live_)
    throw error(MR_OUT_OF_MEMORY, "out of memory: %s needs %llu bytes of L1 on every core; %llu of %llu are live, %llu free", what,
                static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(l1_live_),
                static_cast<unsigned long long>(l1_bytes_), static_cast<unsigned long long>(l1_bytes_ - l1_live_));
}

void DeviceMemory::take_l1(uint64_t bytes) {
  l1_live_ += bytes;
  l1_peak_ = std::max(l1_peak_, l1_live_);
}

}  // namespace meshrun::emu
