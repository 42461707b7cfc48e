#include "presets.h"

#include "cost.h"
#include "json.h"

namespace meshrun::emu {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

// Sources. [M] measurements published in tt-metal's model notes (collective and op calibration: ring gathers of four devices,
// matmuls and ring attention on a Blackhole galaxy, per-program gaps, host dispatch). [S] Tenstorrent's public data sheets. [L] a
// profiler log of eight Blackhole cards. [C] calibrated: the one value with which all measured gathers and scatters of that chip come out
// within a few percent; docs/timing.md shows each. [A] assumed by us.
constexpr Chip kWormhole{
    .arch = "wormhole_b0",
    .link_rate = 12.5,          // [M] nominal fabric, 12.5 GB/s per link and direction
    .packet_ns = 226,           // [C] of three ring gathers over 4 links with packets of 4 KiB [M]: 58 % of nominal
    .increment_ns = 90,         // [A] Blackhole's
    .link_latency_ns = 800,     // [A]
    .connect_ns = 24'000,       // [A] Blackhole's; the three gathers alone would give 18 us
    .packet_bytes = 4096,       // [M]
    .dram_rate = 288,           // [S] GDDR6, 12 GT/s, 192 bit
    .flops_per_core = 2048,     // [M] HiFi2: 2048 FLOP per cycle, [S] 1.0 GHz
    .dram_bytes = 12 * kGiB,    // [S] n150: 12 GB; n300: 24 GB for two chips
    .l1_bytes = 1464 * 1024,    // [S] 1.5 MB, 1464 KiB of it usable
    .launch_host_ns = 120'000,  // [M] about 6 ms for a block of 30 to 50 operations
    .launch_traced_ns = 13'000,  // [M] 13 us between programs in the profiler, 21 us in an A/B run
    .dispatch_ns = 5'000,       // [A]
    .host_rate = 8,             // [A] PCIe 4.0 x16 at a quarter of its rate
};

constexpr Chip kBlackhole{
    .arch = "blackhole",
    .link_rate = 25,             // [M] nominal fabric, 25 GB/s per link and direction
    .packet_ns = 22,             // [C] of the gathers and scatters of [L] and the ring gathers of [M]: 4 and 8 KiB packets alike
    .increment_ns = 90,          // [C] between what ring gathers with one every 16 and 32 packets say [M] and what scatters of [L] leave room for
    .link_latency_ns = 800,      // [A]
    .connect_ns = 24'000,        // [C] what is left of the gathers and scatters of [L], of 7 to 34 MB over a line's busiest link pair
    .packet_bytes = 8192,        // [M]
    .dram_rate = 512,            // [M] [S]
    .flops_per_core = 2764.8,    // [M] 1.35 GHz x 2048 FLOP per cycle, HiFi2
    .dram_bytes = 32 * kGiB,     // [S] 32 GB per chip
    .l1_bytes = 1464 * 1024,     // [S] 1.5 MB per core; the usable part is assumed to be Wormhole's [A]
    .launch_host_ns = 120'000,   // [M] as above
    .launch_traced_ns = 13'000,  // [M] as above
    .dispatch_ns = 5'000,        // [A]
    .host_rate = 16,             // [A] PCIe 5.0 x16 at a quarter of its rate
};

// The fabric's payload where nobody sets it: 4 KiB and a header [M]. Model configurations raise it to 8 KiB on Blackhole galaxies [M]. [L]
// does not name its own; with 4 KiB its gathers come out with the same constants as those of the galaxy.
constexpr uint32_t kUsual = 4096, kRaised = 8192;

// Links per edge and wrap-around are those that tt-metal's model configurations use on each machine [M].
constexpr Preset kPresets[] = {
    // name, chip, rows, cols, grid, links per axis, wrap per axis, exclusive cores, packet
    {"wh-n150-1x1", &kWormhole, 1, 1, 8, 8, {1, 1}, {false, false}, false, kUsual},      // [S] 72 cores, one row for dispatch
    {"wh-n300-1x2", &kWormhole, 1, 2, 8, 8, {1, 1}, {false, false}, false, kUsual},      // [S] 64 cores per chip; [A] dispatch on Ethernet cores
    {"wh-t3000-2x4", &kWormhole, 2, 4, 8, 8, {1, 1}, {false, false}, false, kUsual},     // [M] 1 link, Linear
    {"wh-t3000-1x8", &kWormhole, 1, 8, 8, 8, {1, 1}, {false, true}, false, kUsual},      // [M] the 2x4 board's rim is a ring of eight
    {"wh-galaxy-4x8", &kWormhole, 4, 8, 8, 9, {4, 4}, {true, true}, false, kUsual},      // [M] 4 links, Ring; 7x9 compute + 9 CCL cores
    {"bh-p150-1x1", &kBlackhole, 1, 1, 13, 10, {2, 2}, {false, false}, false, kUsual},   // [S] 140 cores, one column for dispatch
    {"bh-p300-1x2", &kBlackhole, 1, 2, 11, 10, {2, 2}, {false, false}, false, kUsual},   // [S] 120 cores per chip; [A] one column for dispatch
    {"bh-quietbox-2x2", &kBlackhole, 2, 2, 13, 10, {2, 2}, {false, false}, false, kUsual},  // [M] 2 links
    {"bh-8xp150-2x4", &kBlackhole, 2, 4, 11, 10, {2, 2}, {false, false}, false, kUsual},    // [L] 11x10 worker cores, 2 links, Linear
    {"bh-galaxy-4x8", &kBlackhole, 4, 8, 12, 10, {2, 2}, {true, true}, false, kRaised},     // [M] 12x10, 2 links, Ring
    {"bh-quad-galaxy-4x32", &kBlackhole, 4, 32, 12, 10, {2, 2}, {true, true}, false, kRaised},  // [M] 2 links, Ring
};

// What kinds of work reach of the nominal rates; an operation that is not listed is `other`. Everything that only moves and combines
// elements reaches 0.65 of DRAM: slices, concats, norms and joins of heads of [L] lie between 0.57 and 0.73.
struct Entry {
  const char* operation;
  Work work;
};
constexpr Work kMatmul{"matmul", 0.70, 0.65};      // [C] six matmuls of [L] and [M] of 66 to 1053 GFLOP reach 0.62 to 0.77 of all cores
constexpr Work kAttention{"attention", 0.62, 0.65};  // [M] ring attention: 51.8 ms for 10.7 TFLOP on a grid of 12x10
constexpr Work kRope{"rope", 1, 0.37};             // [C] [L]
constexpr Entry kWork[] = {
    {"matmul", kMatmul},
    {"all_gather_minimal_matmul", kMatmul},
    {"strided_all_gather_minimal_matmul", kMatmul},
    {"matmul_strided_reduce_scatter", kMatmul},
    {"conv3d", kMatmul},
    {"np_conv3d", kMatmul},
    {"sdpa", kAttention},
    {"ring_joint_sdpa", kAttention},
    {"exp_ring_joint_sdpa", kAttention},
    {"rope", kRope},
};

}  // namespace

std::span<const Preset> presets() { return kPresets; }

const Preset* find_preset(const std::string& name) {
  for (const Preset& p : kPresets)
    if (name == p.name) return &p;
  return nullptr;
}

const Chip& default_chip() { return kBlackhole; }

constexpr Work kOtherWork{"other", 1, 0.65};  // [C] [L]

const Work& work_of(std::string_view operation) {
  for (const Entry& e : kWork)
    if (operation == e.operation) return e.work;
  return kOtherWork;
}

std::string presets_json() {
  Json json;
  json.begin_array();
  for (const Preset& p : kPresets) {
    json.begin_object();
    json.field("name", p.name);
    json.field("arch", p.chip->arch);
    json.key("mesh").begin_array().value(p.rows).value(p.cols).end_array();
    json.key("grid").begin_array().value(p.grid_x).value(p.grid_y).end_array();
    json.key("links").begin_array().value(p.links[0]).value(p.links[1]).end_array();
    json.key("wrap").begin_array().value(p.wrap[0]).value(p.wrap[1]).end_array();
    json.field("dram_bytes", p.chip->dram_bytes);
    json.field("l1_bytes", p.chip->l1_bytes);
    json.end_object();
  }
  json.end_array();
  return json.take();
}

}  // namespace meshrun::emu
