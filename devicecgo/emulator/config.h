// config.h: what a mesh is opened with: the machine (of a preset, or described key by key) and how to emulate it.
#pragma once

#include <cstdint>
#include <string>

#include "meshrun_driver.h"
#include "presets.h"
#include "watch.h"

namespace meshrun::emu {

struct Machine {
  std::string name;
  const Chip* chip = nullptr;
  uint32_t rows = 1, cols = 1;
  uint32_t grid_x = 8, grid_y = 8;
  uint32_t links[2] = {1, 1};
  bool wrap[2] = {false, false};
  bool exclusive_cores = false;
  uint64_t dram_bytes = 0;
  uint64_t l1_bytes = 0;
  uint32_t packet_bytes = 0;

  uint32_t devices() const { return rows * cols; }
  uint32_t axis_length(uint32_t axis) const { return axis == 0 ? rows : cols; }
  uint32_t cores() const { return grid_x * grid_y; }
  bool ring(uint32_t axis) const { return wrap[axis] && axis_length(axis) > 2; }
};

// Rules switched off (config break=NAME, any number of times), to prove that they matter.
struct Breaks {
  bool no_start_barrier = false;  // barriers return at once
  bool no_handshake = false;      // nobody waits for a neighbour to enter a halo exchange
  bool no_region_wait = false;    // a convolution does not wait for the regions of its halo
  bool ring_halo = false;         // halos go round where the axis has a wrap link
  bool linear_intermediate = false;  // a wrong intermediate of a reduce-scatter is a hazard, not only refused
};

struct Config {
  uint64_t packet_bytes() const { return chunk_bytes != 0 ? chunk_bytes : machine.packet_bytes; }

  Machine machine;
  uint32_t queues = 1;
  bool timing = false;    // mode=timing: no data
  bool lockstep = false;  // clock=lockstep
  bool round_per_hop = false;
  uint64_t seed = 1;
  uint64_t skew_ns = 0;
  bool checker = true;         // checker=off: only to measure what it costs
  bool stop_on_hazard = true;  // on_hazard=stop
  uint32_t threads = 2;
  NoProgress no_progress;
  std::vector<std::string> faults;  // lines of docs/faults.md, there before anything is made
  bool device_times = false;  // keep the times of each device in each launch
  Breaks breaks;
  uint32_t chunk_bytes = 0;  // the payload of a packet; 0 = the chip's
};

// Throws MR_INVALID_ARGUMENT, naming the key and the value.
Config parse_config(const mr_open_options& options);

}  // namespace meshrun::emu
