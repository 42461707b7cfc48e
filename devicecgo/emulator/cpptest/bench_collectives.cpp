// bench_collectives.cpp: collectives on 1x8 against one thread's memcpy of the bytes that the devices receive, in the same run; and
// what an enqueue costs the caller. Prints medians; the cpu ratio counts what both threads have used.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "meshrun_driver.h"

extern "C" const mr_driver* meshrun_emulator_driver(uint32_t abi_version);

namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) { return std::chrono::duration<double, std::milli>(Clock::now() - begin).count(); }

// What all threads of the process have used so far: on a busy machine a better measure than the clock.
double cpu_ms() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 + static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-3;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

class Bench {
 public:
  explicit Bench(const char* config, uint32_t cols = 8, uint32_t rows = 1) {
    mr_open_options o{};
    o.size = sizeof o;
    o.rows = rows;
    o.cols = cols;
    o.queues = 1;
    o.config = config;
    check(d_.open(&o, &mesh_, &e_));
    check(d_.semaphores_create(mesh_, 8, 0, semaphores_, &e_));
  }
  ~Bench() { d_.close(mesh_, &e_); }

  mr_handle alloc(uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t flags = MR_ZEROED) {
    mr_tensor_spec s{};
    s.size = sizeof s;
    s.dtype = MR_BFLOAT16;
    s.layout = MR_TILE;
    s.memory = MR_DRAM;
    s.flags = flags;
    s.rank = 4;
    const uint32_t dims[] = {a, b, c, d};
    std::memcpy(s.dims, dims, sizeof dims);
    mr_handle h = 0;
    check(d_.tensor_alloc(mesh_, &s, &h, &e_));
    return h;
  }
  // A tensor whose memory has been written: untouched memory is all one page of zeros.
  mr_handle filled(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    const mr_handle h = alloc(a, b, c, d, 0);
    std::vector<uint16_t> data(size_t{a} * b * c * d);
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint16_t>(0x3f80 + i % 61);
    mr_distribution everywhere{};
    everywhere.size = sizeof everywhere;
    check(d_.tensor_write(mesh_, h, &everywhere, data.data(), data.size() * 2, 0, &e_));
    return h;
  }
  void fence() {
    mr_handle event = 0;
    check(d_.event_record(mesh_, 0, &event, &e_));
    mr_event_status s{};
    s.size = sizeof s;
    for (;;) {
      check(d_.event_query(mesh_, event, &s, &e_));
      if (s.done) break;
      std::this_thread::sleep_for(std::chrono::microseconds(50));  // the two threads of the engine need both cores
    }
    check(d_.event_free(mesh_, &event, 1, &e_));
  }
  template <class Op>
  void enqueue(Op& op) {
    check(d_.enqueue(mesh_, &op, &e_));
  }
  void free(mr_handle h) { check(d_.tensor_free(mesh_, &h, 1, &e_)); }

  mr_handle semaphores_[8];

 private:
  void check(int32_t code) {
    if (code == MR_OK) return;
    std::fprintf(stderr, "%s\n", e_.message);
    std::exit(1);
  }
  const mr_driver& d_ = *meshrun_emulator_driver(MR_ABI_VERSION);
  mr_handle mesh_ = 0;
  mr_error e_ = [] {
    mr_error e{};
    e.size = sizeof e;
    return e;
  }();
};

constexpr size_t kMiB = size_t{1} << 20;

template <class Op>
Op make_op(uint32_t kind) {
  Op op{};
  op.h.size = sizeof op;
  op.h.op = kind;
  return op;
}

// 56 MiB into each of eight buffers, from others, all touched before.
class Memcpy {
 public:
  Memcpy() : from_(448 * kMiB, 1), to_(448 * kMiB, 2) {}
  void run() { std::memcpy(to_.data(), from_.data(), to_.size()); }

 private:
  std::vector<char> from_, to_;
};

struct Sample {
  std::vector<double> wall, cpu;
  template <class F>
  void take(F f) {
    const double cpu_before = cpu_ms();
    const auto begin = Clock::now();
    f();
    wall.push_back(ms_since(begin));
    cpu.push_back(cpu_ms() - cpu_before);
  }
};

int rounds = 9;

std::string only;  // what to measure: a part of its name

bool wanted(const std::string& what) { return what.find(only) != std::string::npos; }

void measure(const char* what, Memcpy& plain, const std::function<void()>& once) {
  once();
  once();
  Sample copy, op;
  for (int i = 0; i < rounds; ++i) {
    copy.take([&] { plain.run(); });
    op.take(once);
  }
  std::vector<double> ratios;
  for (int i = 0; i < rounds; ++i) ratios.push_back(op.wall[i] / copy.wall[i]);
  const auto least = [](const std::vector<double>& v) { return *std::min_element(v.begin(), v.end()); };
  std::printf("%-36s %6.1f ms  memcpy of 448 MiB %5.1f ms  ratio %.2f (%.2f..%.2f), best of each %.2f; cpu %.2f, best of each %.2f\n", what,
              median(op.wall), median(copy.wall), median(ratios), least(ratios), *std::max_element(ratios.begin(), ratios.end()),
              least(op.wall) / least(copy.wall), median(op.cpu) / median(copy.cpu), least(op.cpu) / least(copy.cpu));
  std::fflush(stdout);
}

// 64 MiB, cut along each dim; along the last with long rows and with rows of 128 bytes a slice.
struct Case {
  const char* name;
  uint32_t shape[4];
  uint32_t dim;
};
constexpr Case kCases[] = {
    {" dim 0", {8, 8, 1024, 512}, 0},        {" dim 1", {8, 8, 1024, 512}, 1}, {" dim 2", {8, 8, 1024, 512}, 2},
    {" dim 3, 2 KiB runs", {1, 1, 4096, 8192}, 3}, {" dim 3, 128 B runs", {8, 8, 1024, 512}, 3},
};

void bench_gather(const char* config, Memcpy& plain) {
  Bench b(config);
  for (const bool ring : {true, false})
    for (const Case& c : kCases) {
      const uint32_t dim = c.dim, *s = c.shape;
      const std::string what = std::string("all_gather ") + (ring ? "ring" : "linear") + c.name;
      if (!wanted(what)) continue;
      uint32_t in[4] = {s[0], s[1], s[2], s[3]};
      in[dim] /= 8;
      auto op = make_op<mr_all_gather>(MR_OP_ALL_GATHER);
      op.input = b.filled(in[0], in[1], in[2], in[3]);
      op.output = b.alloc(s[0], s[1], s[2], s[3]);
      op.semaphores[0] = b.semaphores_[0];
      op.semaphores[1] = b.semaphores_[1];
      op.dim = dim;
      op.axis = 1;
      op.num_links = 1;
      op.topology = ring ? MR_RING : MR_LINEAR;
      measure(what.c_str(), plain, [&] {
        b.enqueue(op);
        b.fence();
      });
      b.free(op.input);
      b.free(op.output);
    }
}

void bench_scatter(const char* config, Memcpy& plain) {
  Bench b(config);
  for (const bool ring : {true, false})
    for (const Case& c : kCases) {
      const uint32_t dim = c.dim, *s = c.shape;
      const std::string what = std::string("reduce_scatter ") + (ring ? "ring" : "linear") + c.name;
      if (!wanted(what)) continue;
      uint32_t out[4] = {s[0], s[1], s[2], s[3]};
      out[dim] /= 8;
      auto op = make_op<mr_reduce_scatter>(MR_OP_REDUCE_SCATTER);
      op.input = b.filled(s[0], s[1], s[2], s[3]);
      op.output = b.alloc(out[0], out[1], out[2], out[3]);
      op.intermediate = b.alloc(ring ? s[0] : 2 * s[0], s[1], s[2], s[3]);
      for (int i = 0; i < 3; ++i) op.semaphores[i] = b.semaphores_[i];
      op.dim = dim;
      op.axis = 1;
      op.num_links = 1;
      op.topology = ring ? MR_RING : MR_LINEAR;
      measure(what.c_str(), plain, [&] {
        b.enqueue(op);
        b.fence();
      });
      b.free(op.input);
      b.free(op.output);
      b.free(op.intermediate);
    }
}

// What one enqueue of a small all_gather costs the caller, and how many the engine does in a second.
void bench_enqueue(const char* config, uint32_t cols) {
  Bench b(config, cols);
  auto op = make_op<mr_all_gather>(MR_OP_ALL_GATHER);
  op.input = b.alloc(1, 1, 32, 32);
  op.output = b.alloc(1, 1, 32, 32 * cols);
  op.semaphores[0] = b.semaphores_[0];
  op.semaphores[1] = b.semaphores_[1];
  op.dim = 3;
  op.axis = 1;
  op.num_links = 1;
  op.topology = cols > 2 ? MR_RING : MR_LINEAR;
  const auto small = [&](int n) {
    for (int i = 0; i < n; ++i) {
      std::swap(op.semaphores[0], b.semaphores_[2 + 0]);
      std::swap(op.semaphores[1], b.semaphores_[2 + 1]);
      b.enqueue(op);
    }
  };
  small(64);
  b.fence();
  std::vector<double> caller, all;
  for (int i = 0; i < 15; ++i) {
    const auto begin = Clock::now();
    small(1000);
    caller.push_back(ms_since(begin));
    b.fence();
    all.push_back(ms_since(begin));
  }
  std::printf("small all_gather on 1x%u: enqueue %.3f us for the caller, %.2f us a launch in all\n", cols, median(caller), median(all));
}

// Products on all devices of 1x8, and one on a single device, which both threads share.
void bench_matmul() {
  for (const uint32_t cols : {8u, 1u}) {
    Bench b("", cols);
    const uint32_t m = 1024, k = 1536, n = 1536;
    auto op = make_op<mr_matmul>(MR_OP_MATMUL);
    op.input = b.filled(1, 1, m, k);
    op.weight = b.filled(1, 1, k, n);
    op.output = b.alloc(1, 1, m, n);
    op.dtype = MR_BFLOAT16;
    Sample s;
    for (int i = 0; i < rounds; ++i)
      s.take([&] {
        b.enqueue(op);
        b.fence();
      });
    std::printf("matmul %ux%ux%u on %u devices: %.1f ms, %.1f GFLOP/s\n", m, n, k, cols, median(s.wall), 2e-6 * m * n * k * cols / median(s.wall));
  }
}

// How many launches of a big model go through in timing mode: gathers on either axis and products in between, on 4x8.
void bench_timing() {
  Bench b("mode=timing\nnum_links=2", 8, 4);
  const mr_handle x = b.alloc(1, 1, 9472, 1280), w = b.alloc(1, 1, 5120, 3840), g = b.alloc(1, 1, 9472, 5120), y = b.alloc(1, 1, 9472, 3840);
  const mr_handle k = b.alloc(1, 10, 9472, 128), all_k = b.alloc(1, 10, 9472 * 8, 128), all_v = b.alloc(1, 10, 9472 * 8, 128), o = b.alloc(1, 10, 9472, 128);
  const int blocks = 40;
  int launches = 0;
  const auto begin = Clock::now();
  for (int i = 0; i < blocks; ++i) {
    for (int j = 0; j < 12; ++j) {
      auto gather = make_op<mr_all_gather>(MR_OP_ALL_GATHER);
      gather.input = x;
      gather.output = g;
      gather.semaphores[0] = b.semaphores_[j % 2 * 2];
      gather.semaphores[1] = b.semaphores_[j % 2 * 2 + 1];
      gather.dim = 3;
      gather.axis = 0;
      gather.num_links = 2;
      gather.topology = MR_RING;
      b.enqueue(gather);
      auto product = make_op<mr_matmul>(MR_OP_MATMUL);
      product.input = g;
      product.weight = w;
      product.output = y;
      product.dtype = MR_BFLOAT16;
      b.enqueue(product);
      launches += 2;
    }
    auto attention = make_op<mr_ring_joint_sdpa>(MR_OP_RING_JOINT_SDPA);
    attention.q = k;
    attention.k = k;
    attention.v = k;
    attention.buffer_k = all_k;
    attention.buffer_v = all_v;
    attention.output = o;
    attention.semaphores[0] = b.semaphores_[4];
    attention.semaphores[1] = b.semaphores_[5];
    attention.axis = 1;
    attention.num_links = 2;
    attention.topology = MR_RING;
    b.enqueue(attention);
    ++launches;
  }
  b.fence();
  const double ms = ms_since(begin);
  std::printf("timing mode, 4x8: %d launches in %.1f ms, %.2f us a launch and device\n", launches, ms, ms * 1000 / launches / 32);
}

}  // namespace

int main(int argc, char** argv) {
  const char* config = argc > 1 ? argv[1] : "";
  if (argc > 2) only = argv[2];
  if (argc > 3) rounds = std::atoi(argv[3]);
  std::printf("engine: 2 threads (its own and one worker); memcpy: 1 thread\n");
  for (const uint32_t cols : {2u, 4u, 8u})
    if (wanted("enqueue")) bench_enqueue(config, cols);
  if (wanted("timing")) bench_timing();
  if (wanted("matmul")) bench_matmul();
  Memcpy plain;
  bench_gather(config, plain);
  bench_scatter(config, plain);
  return 0;
}
