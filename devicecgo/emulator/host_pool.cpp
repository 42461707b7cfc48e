#include "host_pool.h"

#include <sys/mman.h>

#include <bit>
#include <cstdlib>
#include <new>
#include <utility>

namespace meshrun::emu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

std::byte* from_system(size_t size) {
  if (size < kHugePage) {
    void* p = std::aligned_alloc(64, size);
    if (p == nullptr) throw std::bad_alloc();
    return static_cast<std::byte*>(p);
  }
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  madvise(p, size, MADV_HUGEPAGE);
#endif
  return static_cast<std::byte*>(p);
}

void to_system(std::byte* base, size_t size) {
  if (size < kHugePage) {
    std::free(base);
  } else {
    munmap(base, size);
  }
}

}  // namespace

Block& Block::operator=(Block&& o) noexcept {
  if (this != &o) {
    release();
    pool_ = std::exchange(o.pool_, nullptr);
    base_ = std::exchange(o.base_, nullptr);
    data_ = std::exchange(o.data_, nullptr);
    size_ = std::exchange(o.size_, 0);
    fresh_ = o.fresh_;
  }
  return *this;
}

void Block::release() {
  if (base_ != nullptr) pool_->give_back(std::exchange(base_, nullptr), size_);
  data_ = nullptr;
}

// Eight classes to each power of two, so at most an eighth is lost; above a huge page, whole huge pages.
size_t HostPool::size_class(size_t bytes) {
  if (bytes < 1024) return 1024;
  const size_t step = std::bit_floor(bytes) / 8;
  const size_t size = (bytes + step - 1) / step * step;
  return size < kHugePage ? size : (size + kHugePage - 1) / kHugePage * kHugePage;
}

Block HostPool::take(size_t bytes) {
  const size_t size = size_class(bytes + (kColors - 1) * kStagger);
  std::byte* base = nullptr;
  size_t offset;
  {
    std::lock_guard lock(mutex_);
    offset = color_++ % kColors * kStagger;
    if (const auto it = idle_.find(size); it != idle_.end() && !it->second.empty()) {
      base = it->second.back();
      it->second.pop_back();
      idle_bytes_ -= size;
    }
  }
  const bool fresh = base == nullptr && size >= kHugePage;
  if (base == nullptr) base = from_system(size);
  return Block(this, base, size, offset, fresh);
}

void HostPool::give_back(std::byte* base, size_t size) {
  {
    std::lock_guard lock(mutex_);
    if (idle_bytes_ + size <= kMostIdle) {
      idle_[size].push_back(base);
      idle_bytes_ += size;
      return;
    }
  }
  to_system(base, size);
}

HostPool::~HostPool() {
  for (auto& [size, blocks] : idle_)
    for (std::byte* base : blocks) to_system(base, size);
}

}  // namespace meshrun::emu
