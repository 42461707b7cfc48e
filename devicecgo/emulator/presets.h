// presets.h: real machines, and the constants by which virtual time is computed.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace meshrun::emu {

// Chip holds what all machines built from one chip share. Rates are in bytes or FLOP per ns, which is GB/s and GFLOP/s.
struct Chip {
  const char* arch;
  double link_rate;           // per link and direction, nominal
  double packet_ns;           // what a packet takes of the link beside its payload
  uint64_t increment_ns;      // what the increment after a chunk takes of the link
  uint64_t link_latency_ns;   // one hop, head of a packet
  uint64_t connect_ns;        // from a program's start to the first data on a link
  uint32_t packet_bytes;      // payload, unless the preset says otherwise
  double dram_rate;
  double flops_per_core;      // FLOP per ns
  uint64_t dram_bytes;
  uint64_t l1_bytes;          // per core
  uint64_t launch_host_ns;    // the host's work for one eager launch
  uint64_t launch_traced_ns;  // per program inside a trace: the gap between two programs on the device
  uint64_t dispatch_ns;       // from the host's enqueue to the device's start, on an idle device
  double host_rate;           // host to device
};

struct Preset {
  const char* name;
  const Chip* chip;
  uint32_t rows, cols;
  uint32_t grid_x, grid_y;
  uint32_t links[2];
  bool wrap[2];
  bool exclusive_cores;
  uint32_t packet_bytes;  // payload of the fabric as it is set up on this machine; 0 = the chip's
};

std::span<const Preset> presets();
const Preset* find_preset(const std::string& name);
const Chip& default_chip();  // of a mesh without a preset
std::string presets_json();

}  // namespace meshrun::emu
