// arena.h: who has which bytes of one memory. First fit from the end that the hardware's allocator begins at; neighbours that are given
// back grow together. What it cannot know is the data: that is the host's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace meshrun::emu {

// Room is where something lies on every device.
struct Room {
  bool l1 = false;
  uint64_t address = 0;
};

class Arena {
 public:
  enum class From { bottom, top };

  Arena(uint64_t capacity, uint64_t unit, From from);

  // The address of so many bytes, rounded up to the unit; nothing where no free block is large enough.
  std::optional<uint64_t> take(uint64_t bytes, std::string owner);
  void give_back(uint64_t address);
  void own(uint64_t address, std::string owner) { live_.at(address).owner = std::move(owner); }
  bool fits(uint64_t bytes) const { return round(bytes) <= largest_free(); }

  uint64_t capacity() const { return capacity_; }
  uint64_t live() const { return live_bytes_; }
  uint64_t peak() const { return peak_; }
  uint64_t free() const { return capacity_ - live_bytes_; }
  uint64_t largest_free() const;
  // "ag(shape=[1, 1, 32, 64],dim=3,axis=1) 8192, ...": live bytes by owner, the largest first.
  std::string owners(size_t most) const;

 private:
  struct Live {
    uint64_t bytes;
    std::string owner;
  };
  uint64_t round(uint64_t bytes) const { return bytes > capacity_ ? bytes : (bytes + unit_ - 1) / unit_ * unit_; }

  uint64_t capacity_, unit_;
  From from_;
  std::map<uint64_t, uint64_t> free_;  // bytes by address
  std::map<uint64_t, Live> live_;      // by address
  uint64_t live_bytes_ = 0, peak_ = 0;
};

// The pool that a bank's name belongs to: "ag[1].bank0.1" is of ag[1], "np_region[0].3" of np_region[0].
std::string owner_of(const std::string& name);

}  // namespace meshrun::emu
