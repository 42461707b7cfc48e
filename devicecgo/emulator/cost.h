// cost.h: how long things take in virtual time.
//   a transfer   latency of the hop + bytes / rate of the link, packets following one another
//   computing    the larger of FLOP / rate of the cores and bytes / rate of DRAM
//   a launch     the host's work, and a gap on the device before each program
#pragma once

#include <algorithm>
#include <cstdint>

#include "config.h"

namespace meshrun::emu {

struct Cost {
  double flops = 0;
  double bytes = 0;  // to and from DRAM
};

class CostModel {
 public:
  explicit CostModel(const Config& config)
      : chip_(*config.machine.chip),
        link_rate_(chip_.link_rate * chip_.link_efficiency),
        flops_rate_(chip_.flops_per_core * config.machine.cores()),
        packet_bytes_(config.chunk_bytes != 0 ? config.chunk_bytes : chip_.packet_bytes) {}

  uint64_t link_ns(uint64_t bytes) const { return ns(static_cast<double>(bytes) / link_rate_); }
  uint64_t hop_ns() const { return chip_.link_latency_ns; }
  uint64_t compute_ns(const Cost& c) const { return ns(std::max(c.flops / flops_rate_, c.bytes / chip_.dram_rate)); }
  uint64_t host_write_ns(uint64_t bytes) const { return ns(static_cast<double>(bytes) / chip_.host_rate); }
  uint64_t launch_host_ns() const { return chip_.launch_host_ns; }
  uint64_t launch_gap_ns() const { return chip_.launch_traced_ns; }
  uint64_t dispatch_ns() const { return chip_.dispatch_ns; }
  uint64_t packet_bytes() const { return packet_bytes_; }

 private:
  static uint64_t ns(double t) { return static_cast<uint64_t>(t + 0.5); }
  const Chip& chip_;
  double link_rate_;
  double flops_rate_;
  uint64_t packet_bytes_;
};

}  // namespace meshrun::emu
