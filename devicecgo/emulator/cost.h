// cost.h: how long things take in virtual time.
//   a transfer   latency of the hop + bytes / rate of the link, and a little for every packet and for every increment that follows one
//   a program    its first data leave when its workers have opened their connections to the fabric
//   computing    the larger of FLOP / rate of the cores and bytes / rate of DRAM, each times what the kind of work reaches of it
//   a launch     the host's work, and a gap on the device before each program
// docs/timing.md holds it against measurements.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "config.h"

namespace meshrun::emu {

struct Cost {
  double flops = 0;
  double bytes = 0;  // to and from DRAM
};

// Work is what a kind of operation reaches of the rates of cores and DRAM.
struct Work {
  const char* kind;
  double compute;
  double dram;
};
const Work& work_of(std::string_view operation);
extern const Work kOtherWork;  // of what no table names

class CostModel {
 public:
  explicit CostModel(const Config& config)
      : chip_(*config.machine.chip), flops_rate_(chip_.flops_per_core * config.machine.cores()), packet_bytes_(config.packet_bytes()) {}

  // `increments` of the receiver's semaphore travel with the bytes.
  uint64_t link_ns(uint64_t bytes, uint64_t increments) const {
    const uint64_t packets = (bytes + packet_bytes_ - 1) / packet_bytes_;
    return ns(static_cast<double>(bytes) / chip_.link_rate + static_cast<double>(packets) * chip_.packet_ns + static_cast<double>(increments * chip_.increment_ns));
  }
  uint64_t hop_ns() const { return chip_.link_latency_ns; }
  uint64_t connect_ns() const { return chip_.connect_ns; }
  uint64_t compute_ns(const Cost& c, const Work& work = kOtherWork) const {
    return ns(std::max(c.flops / (flops_rate_ * work.compute), c.bytes / (chip_.dram_rate * work.dram)));
  }
  uint64_t host_write_ns(uint64_t bytes) const { return ns(static_cast<double>(bytes) / chip_.host_rate); }
  uint64_t launch_host_ns() const { return chip_.launch_host_ns; }
  uint64_t launch_gap_ns() const { return chip_.launch_traced_ns; }
  uint64_t dispatch_ns() const { return chip_.dispatch_ns; }
  uint64_t packet_bytes() const { return packet_bytes_; }

 private:
  static uint64_t ns(double t) { return static_cast<uint64_t>(t + 0.5); }
  const Chip& chip_;
  double flops_rate_;
  uint64_t packet_bytes_;
};

}  // namespace meshrun::emu
