// host_pool.h: host memory for shards. Copies into fresh memory run at a fraction of the speed of copies into memory already
// touched, so blocks are kept and handed out again; big ones ask for huge pages. Blocks begin at staggered offsets: streams that
// lie at power-of-two distances fall into the same cache sets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace meshrun::emu {

class HostPool;

// Block is memory on loan from a pool; it goes back when the Block goes.
class Block {
 public:
  Block() = default;
  Block(Block&& o) noexcept { *this = std::move(o); }
  Block& operator=(Block&& o) noexcept;
  ~Block() { release(); }

  std::byte* data() const { return data_; }
  bool fresh() const { return fresh_; }  // from the system, hence zero
  explicit operator bool() const { return data_ != nullptr; }
  void release();

 private:
  friend class HostPool;
  Block(HostPool* pool, std::byte* base, size_t size, size_t offset, bool fresh)
      : pool_(pool), base_(base), data_(base + offset), size_(size), fresh_(fresh) {}
  HostPool* pool_ = nullptr;
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  bool fresh_ = false;
};

// Safe for use from several threads.
class HostPool {
 public:
  static constexpr size_t kStagger = 4352;

  HostPool() = default;
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;
  ~HostPool();

  Block take(size_t bytes);  // 64-byte aligned; throws std::bad_alloc

 private:
  friend class Block;
  static constexpr size_t kColors = 8;
  static constexpr size_t kMostIdle = size_t{3} << 30;  // above this, what comes back goes to the system

  static size_t size_class(size_t bytes);
  void give_back(std::byte* base, size_t size);

  std::mutex mutex_;
  std::map<size_t, std::vector<std::byte*>> idle_;
  size_t idle_bytes_ = 0;
  size_t color_ = 0;
};

}  // namespace meshrun::emu
