// fabric.h: lines of devices, and the links between neighbours.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "config.h"
#include "cost.h"
#include "skew.h"

namespace meshrun::emu {

// Line is the row or column of devices on which a device takes part in a collective over one axis.
struct Line {
  uint32_t axis = 0;
  uint32_t length = 1;
  uint32_t position = 0;  // of the device whose program asks
  uint32_t base = 0;      // the device at position 0
  uint32_t stride = 1;    // from a device to the next

  static Line of(const Machine& machine, uint32_t device, uint32_t axis) {
    const uint32_t row = device / machine.cols, col = device % machine.cols;
    return axis == 0 ? Line{0, machine.rows, row, col, machine.cols} : Line{1, machine.cols, col, row * machine.cols, 1};
  }
  // Positions count round the ring: at(-1) is the neighbour before, also at the ends.
  uint32_t wrap(int64_t offset) const {
    const int64_t n = length;
    return static_cast<uint32_t>(((position + offset) % n + n) % n);
  }
  uint32_t device_at(uint32_t at) const { return base + at * stride; }
  uint32_t device(int64_t offset) const { return device_at(wrap(offset)); }
};

// The two ways along a line: 0 towards higher positions, 1 towards lower.
constexpr int64_t step_of(uint32_t way) { return way == 0 ? 1 : -1; }

struct Link {
  uint64_t free_ns = 0;  // when it has sent what it has been given
  uint64_t launch = 0;   // that used it last
};

// When one transfer over a link is where.
struct Crossing {
  uint64_t departed = 0;  // the last byte has left
  uint64_t head = 0;      // the first packet has arrived
  uint64_t tail = 0;      // the last byte has arrived
};

class Fabric {
 public:
  Fabric(const Config& config, const CostModel& cost) : Fabric(config.machine, cost) {
    seed_ = config.seed;
    skew_ns_ = config.skew_ns;
  }
  explicit Fabric(const Machine& machine, const CostModel& cost)
      : cost_(cost), per_way_(std::max(machine.links[0], machine.links[1])), links_(size_t{machine.devices()} * 4 * per_way_) {}

  // Sends `bytes`, of which the first packet is ready at head_ns and the last at tail_ns, over the link that leaves `device`, with so many
  // increments behind them.
  Crossing cross(uint32_t device, uint32_t axis, uint32_t way, uint32_t index, uint64_t bytes, uint64_t increments, uint64_t head_ns, uint64_t tail_ns,
                 uint64_t launch) {
    Link& link = links_[(size_t{device} * 4 + axis * 2 + way) * per_way_ + index];
    const uint64_t packet = cost_.link_ns(std::min<uint64_t>(bytes, cost_.packet_bytes()), 0);
    uint64_t start = std::max(head_ns, link.free_ns);
    if (skew_ns_ != 0 && link.launch != launch) {  // the link is busy with something else for a while, but keeps the order
      link.launch = launch;
      start += seeded(seed_, (uint64_t{device} * 4 + axis * 2 + way) * per_way_ + index, launch, Skew::link) % skew_ns_;
      tail_ns = std::max(tail_ns, start);
    }
    Crossing c;
    c.departed = std::max(start + cost_.link_ns(bytes, increments), tail_ns + packet);
    c.head = start + packet + cost_.hop_ns();
    c.tail = c.departed + cost_.hop_ns();
    link.free_ns = c.departed;
    bytes_ += bytes;
    return c;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  const CostModel& cost_;
  uint32_t per_way_;
  std::vector<Link> links_;
  uint64_t bytes_ = 0;
  uint64_t seed_ = 0, skew_ns_ = 0;
};

}  // namespace meshrun::emu
