#include "config.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "errors.h"
#include "ops.h"

namespace meshrun::emu {
namespace {

constexpr uint32_t kMostLinks = 16;
constexpr uint32_t kMostRows = 64;  // per axis
constexpr uint32_t kMostThreads = 64;
constexpr uint32_t kMostQueues = 2;
constexpr uint64_t kMostLimit = 1'000'000'000'000;  // us

Error bad(std::string_view key, std::string_view value, const char* rule) {
  return error(MR_INVALID_ARGUMENT, "open: config %.*s=%.*s: %s", static_cast<int>(key.size()), key.data(),
               static_cast<int>(value.size()), value.data(), rule);
}

uint64_t number(std::string_view key, std::string_view value, uint64_t least, uint64_t most) {
  uint64_t n = 0;
  const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), n);
  if (code != std::errc{} || end != value.data() + value.size() || value.empty()) throw bad(key, value, "must be a whole number");
  if (n < least || n > most)
    throw bad(key, value,
              format("must be %llu..%llu", static_cast<unsigned long long>(least), static_cast<unsigned long long>(most)).c_str());
  return n;
}

bool choice(std::string_view key, std::string_view value, const char* no, const char* yes) {
  if (value == no) return false;
  if (value == yes) return true;
  throw bad(key, value, format("must be %s or %s", no, yes).c_str());
}

// What config lines may say about the machine; the rest goes into Config directly.
struct Asked {
  const Preset* preset = nullptr;
  std::optional<uint32_t> num_links, grid_x, grid_y;
  std::optional<uint64_t> dram_bytes, l1_bytes;
};

void read_line(std::string_view line, Asked& asked, Config& config) {
  const size_t equals = line.find('=');
  if (equals == std::string_view::npos) throw bad(line, "", "a line must be key=value");
  const std::string_view key = line.substr(0, equals), value = line.substr(equals + 1);
  const auto number32 = [&](uint64_t least, uint64_t most) { return static_cast<uint32_t>(number(key, value, least, most)); };

  if (key == "preset") {
    asked.preset = find_preset(std::string(value));
    if (asked.preset == nullptr) throw bad(key, value, "no such preset");
  } else if (key == "num_links") {
    asked.num_links = number32(1, kMostLinks);
  } else if (key == "grid_x") {
    asked.grid_x = number32(1, 64);
  } else if (key == "grid_y") {
    asked.grid_y = number32(1, 64);
  } else if (key == "mode") {
    config.timing = choice(key, value, "functional", "timing");
  } else if (key == "clock") {
    config.lockstep = choice(key, value, "free", "lockstep");
  } else if (key == "seed") {
    config.seed = number(key, value, 0, UINT64_MAX);
  } else if (key == "skew_us") {
    config.skew_ns = number(key, value, 0, 1'000'000'000) * 1000;
  } else if (key == "no_progress_us") {
    config.no_progress.otherwise_ns = number(key, value, 0, kMostLimit) * 1000;
  } else if (key.starts_with("no_progress_us[") && key.ends_with(']')) {
    const std::string op(key.substr(key.find('[') + 1, key.size() - key.find('[') - 2));
    if (!is_op(op)) throw bad(key, value, "no such operation");
    config.no_progress.of_ns[op] = number(key, value, 0, kMostLimit) * 1000;
  } else if (key == "device_times") {
    config.device_times = choice(key, value, "off", "on");
  } else if (key == "checker") {
    config.checker = choice(key, value, "off", "on");
  } else if (key == "on_hazard") {
    config.stop_on_hazard = choice(key, value, "continue", "stop");
  } else if (key == "rounding") {
    config.round_per_hop = choice(key, value, "once", "per_hop");
  } else if (key == "dram_bytes") {
    asked.dram_bytes = number(key, value, 1, uint64_t{1} << 50);
  } else if (key == "l1_bytes") {
    asked.l1_bytes = number(key, value, 1, uint64_t{1} << 40);
  } else if (key == "threads") {
    config.threads = number32(1, kMostThreads);
  } else if (key == "chunk_bytes") {
    config.chunk_bytes = number32(4, 1 << 24);
    if (config.chunk_bytes % 4 != 0) throw bad(key, value, "must be a multiple of 4, so that no element is torn");
  } else if (key == "fault") {
    config.faults.emplace_back(value);
  } else if (key == "break") {
    (value == "no_start_barrier" ? config.breaks.no_start_barrier
     : value == "no_handshake"   ? config.breaks.no_handshake
     : value == "no_region_wait" ? config.breaks.no_region_wait
     : value == "ring_halo"      ? config.breaks.ring_halo
     : value == "linear_intermediate" ? config.breaks.linear_intermediate
                                 : throw bad(key, value, "must be no_start_barrier, no_handshake, no_region_wait, ring_halo or linear_intermediate")) = true;
  } else {
    throw bad(key, value, "unknown key");
  }
}

void set_shape(const mr_open_options& options, Asked& asked, Machine& machine) {
  if (asked.preset == nullptr) {
    if (options.rows < 1 || options.rows > kMostRows) throw error(MR_INVALID_ARGUMENT, "open: rows is %u: must be 1..%u", options.rows, kMostRows);
    if (options.cols < 1 || options.cols > kMostRows) throw error(MR_INVALID_ARGUMENT, "open: cols is %u: must be 1..%u", options.cols, kMostRows);
    machine.name = format("emulated-%ux%u", options.rows, options.cols);
    machine.chip = &default_chip();
    machine.packet_bytes = machine.chip->packet_bytes;
    machine.rows = options.rows;
    machine.cols = options.cols;
    machine.grid_x = asked.grid_x.value_or(8);
    machine.grid_y = asked.grid_y.value_or(8);
    for (const uint32_t axis : {0u, 1u}) {
      machine.links[axis] = asked.num_links.value_or(1);
      machine.wrap[axis] = machine.axis_length(axis) > 2;
    }
    return;
  }
  const Preset& p = *asked.preset;
  if ((options.rows != 0 || options.cols != 0) && (options.rows != p.rows || options.cols != p.cols))
    throw error(MR_INVALID_ARGUMENT, "open: mesh is %ux%u, but preset %s is %ux%u: give one or the other", options.rows, options.cols,
                p.name, p.rows, p.cols);
  if (asked.grid_x || asked.grid_y)
    throw error(MR_INVALID_ARGUMENT, "open: config grid_%s: preset %s fixes the grid at %ux%u", asked.grid_x ? "x" : "y", p.name, p.grid_x, p.grid_y);
  machine.name = p.name;
  machine.chip = p.chip;
  machine.packet_bytes = p.packet_bytes != 0 ? p.packet_bytes : p.chip->packet_bytes;
  machine.rows = p.rows;
  machine.cols = p.cols;
  machine.grid_x = p.grid_x;
  machine.grid_y = p.grid_y;
  machine.exclusive_cores = p.exclusive_cores;
  for (const uint32_t axis : {0u, 1u}) {
    machine.links[axis] = p.links[axis];
    machine.wrap[axis] = p.wrap[axis];
    if (!asked.num_links) continue;
    if (*asked.num_links > p.links[axis])
      throw error(MR_INVALID_ARGUMENT, "open: config num_links=%u: axis %u of preset %s has %u", *asked.num_links, axis, p.name, p.links[axis]);
    machine.links[axis] = *asked.num_links;
  }
}

}  // namespace

Config parse_config(const mr_open_options& options) {
  if (options.size < sizeof(mr_open_options))
    throw error(MR_INVALID_ARGUMENT, "open: options.size is %u: smaller than mr_open_options of this version", options.size);
  if (options.queues < 1 || options.queues > kMostQueues)
    throw error(MR_INVALID_ARGUMENT, "open: queues is %u: must be 1..%u", options.queues, kMostQueues);
  Config config;
  config.queues = options.queues;
  Asked asked;
  std::string_view rest = options.config != nullptr ? options.config : "";
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    if (end != 0) read_line(rest.substr(0, end), asked, config);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  set_shape(options, asked, config.machine);
  config.machine.dram_bytes = asked.dram_bytes.value_or(config.machine.chip->dram_bytes);
  config.machine.l1_bytes = asked.l1_bytes.value_or(config.machine.chip->l1_bytes);
  return config;
}

}  // namespace meshrun::emu
