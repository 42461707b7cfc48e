// bench_kernels.cpp: speeds of the kernels, on one thread and on two. Run it on a quiet machine:
//   g++ -std=c++20 -O2 -I../.. bench_kernels.cpp ../kernel_*.cpp -o /tmp/bench_kernels -lpthread && /tmp/bench_kernels
//   [filter]
// The best of several rounds is printed, since noise only makes things slower.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../bf16.h"
#include "../kernel_attention.h"
#include "../kernel_copy.h"
#include "../kernel_elementwise.h"
#include "../kernel_matmul.h"
#include "../kernel_norm.h"
#include "../kernel_reduce.h"
#include "../kernel_rope.h"
#include "../kernel_shape.h"

using namespace meshrun::emu;

namespace {

// Two is the caller and one helper that waits for work.
class Two final : public Parallel {
 public:
  Two() : helper_([this] { help(); }) {}
  ~Two() override {
    {
      std::lock_guard lock(mutex_);
      done_ = true;
    }
    wake_.notify_one();
    helper_.join();
  }
  void run(size_t n, size_t grain, const std::function<void(size_t, size_t)>& fn) override {
    if (n <= grain) return n == 0 ? void() : fn(0, n);
    next_ = 0;
    n_ = n, grain_ = std::max(grain, n / 16), fn_ = &fn;
    {
      std::lock_guard lock(mutex_);
      busy_ = true;
    }
    wake_.notify_one();
    work();
    while (busy_) std::this_thread::yield();
  }

 private:
  void work() {
    for (size_t i; (i = next_.fetch_add(grain_)) < n_;) (*fn_)(i, std::min(n_, i + grain_));
  }
  void help() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return busy_ || done_; });
      if (done_) return;
      lock.unlock();
      work();
      lock.lock();
      busy_ = false;
    }
  }
  std::atomic<size_t> next_{0};
  size_t n_ = 0, grain_ = 1;
  const std::function<void(size_t, size_t)>* fn_ = nullptr;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<bool> busy_{false};
  bool done_ = false;
  std::thread helper_;
};

struct Buffer {
  DType dtype;
  Shape shape;
  std::vector<uint32_t> words;
  Buffer(DType t, std::initializer_list<uint32_t> dims) : dtype(t) {
    for (uint32_t d : dims) shape.dims[shape.rank++] = d;
    words.resize(shape.elements() * element_bytes(t) / 4 + 16);
    uint32_t x = 12345;
    for (size_t i = 0; i < shape.elements(); ++i) {
      x = x * 1664525 + 1013904223;
      const float f = static_cast<float>(x >> 8) / 8388608.0f - 1.0f;
      if (t == DType::bfloat16)
        reinterpret_cast<uint16_t*>(words.data())[i] = to_bf16(f);
      else
        std::memcpy(&words[i], &f, 4);
    }
  }
  View view() { return {words.data(), dtype, shape}; }
  operator View() { return view(); }
  operator ConstView() { return view(); }
  double bytes() const { return static_cast<double>(shape.elements() * element_bytes(dtype)); }
};

const char* filter = "";

// Seconds of one call: the best of some rounds of about 40 ms.
template <class Fn>
double seconds(Fn fn) {
  using Clock = std::chrono::steady_clock;
  const auto time = [&](int n) {
    const auto t = Clock::now();
    for (int i = 0; i < n; ++i) fn();
    return std::chrono::duration<double>(Clock::now() - t).count() / n;
  };
  const double once = std::min(time(1), time(1));
  const int n = static_cast<int>(std::max(1.0, 0.04 / once));
  double best = once;
  for (int i = 0; i < 9; ++i) best = std::min(best, time(n));
  return best;
}

// Prints the speed of fn(par) with one and two threads: `work` per call in units of 1e9.
void report(const std::string& name, double work, const char* unit, const std::function<void(Parallel&)>& fn) {
  if (name.find(filter) == std::string::npos) return;
  Serial one;
  Two two;
  const double t1 = seconds([&] { fn(one); }), t2 = seconds([&] { fn(two); });
  std::printf("%-52s %8.2f %8.2f %s   (%.3f ms)\n", name.c_str(), work / t1 / 1e9, work / t2 / 1e9, unit, t1 * 1e3);
  std::fflush(stdout);
}

void bench_matmul(DType type, uint32_t m, uint32_t k, uint32_t n, bool transposed, uint32_t act = MR_ACT_NONE) {
  Buffer a(type, {m, k}), w(type, {transposed ? n : k, transposed ? k : n}), bias(type, {1, n}), out(type, {m, n});
  char name[96];
  std::snprintf(name, sizeof name, "matmul %s %ux%ux%u%s%s", type == DType::bfloat16 ? "bf16" : "f32", m, k, n,
                transposed ? " B^T" : "", act == MR_ACT_NONE ? "" : " gelu");
  const bool memory = m <= 4;  // bound by reading the weight
  report(name, memory ? w.bytes() : 2.0 * m * k * n, memory ? "GB/s " : "GFLOP/s",
         [&](Parallel& par) { matmul(a, w, bias, act, transposed, out, par); });
}

void bench_attention(DType type, uint32_t heads, uint32_t queries, uint32_t keys, uint32_t width) {
  Buffer q(type, {1, heads, queries, width}), k(type, {1, heads, keys, width}), v(type, {1, heads, keys, width}),
      out(type, {1, heads, queries, width});
  char name[96];
  std::snprintf(name, sizeof name, "attention %s %u heads %ux%u D %u", type == DType::bfloat16 ? "bf16" : "f32", heads,
                queries, keys, width);
  report(name, 4.0 * heads * queries * keys * width, "GFLOP/s", [&](Parallel& par) {
    Attention attention(q, 0.1f);
    attention.add(k, v, keys, par);
    attention.finish(out, par);
  });
}

void bench_reduce(const char* where, size_t n) {
  std::vector<float> acc(n, 0.5f), other(n, 1.0f);
  std::vector<uint16_t> x(n, 0x3f80), out(n);
  const double read = static_cast<double>(n) * 2;
  const auto name = [&](const char* what) { return std::string(what) + " " + where; };
  const auto cut = [n](Parallel& par, auto fn) { par.run(n, 8192, [&](size_t b, size_t e) { fn(b, e - b); }); };
  report(name("widen_bf16"), read, "GB/s bf16",
         [&](Parallel& par) { cut(par, [&](size_t i, size_t c) { widen_bf16(&acc[i], &x[i], c); }); });
  report(name("round_bf16"), read, "GB/s bf16",
         [&](Parallel& par) { cut(par, [&](size_t i, size_t c) { round_bf16(&out[i], &acc[i], c); }); });
  report(name("add_bf16"), read, "GB/s bf16",
         [&](Parallel& par) { cut(par, [&](size_t i, size_t c) { add_bf16(&acc[i], &x[i], c); }); });
  report(name("add_f32"), 2 * read, "GB/s f32",
         [&](Parallel& par) { cut(par, [&](size_t i, size_t c) { add_f32(&acc[i], &other[i], c); }); });
  report(name("add_round_bf16"), read, "GB/s bf16",
         [&](Parallel& par) { cut(par, [&](size_t i, size_t c) { add_round_bf16(&acc[i], &x[i], &out[i], c); }); });
  round_bf16(out.data(), acc.data(), n);
  report(name("rounds_to"), read, "GB/s bf16", [&](Parallel& par) {
    cut(par, [&](size_t i, size_t c) {
      if (!rounds_to(&acc[i], &out[i], c)) std::abort();
    });
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) filter = argv[1];
  const DType bf = DType::bfloat16, f = DType::float32;
  std::printf("%-52s %8s %8s\n", "", "1 thread", "2");
  bench_matmul(f, 1024, 1536, 1536, false);
  bench_matmul(bf, 1024, 1536, 1536, false);
  bench_matmul(bf, 1024, 1536, 1536, true);
  bench_matmul(bf, 1024, 1536, 8960, false, MR_ACT_GELU);
  bench_matmul(bf, 1024, 8960, 1536, false);
  bench_matmul(bf, 128, 1536, 1536, false);
  bench_matmul(bf, 120, 96, 96, false);
  bench_matmul(bf, 64, 64, 64, false);
  bench_matmul(bf, 16, 1536, 1536, false);
  bench_matmul(bf, 8, 1536, 1536, false);
  bench_matmul(bf, 5, 1536, 1536, false);
  bench_matmul(bf, 4, 1536, 1536, false);
  bench_matmul(bf, 1, 1536, 1536, false);
  bench_matmul(bf, 1, 1536, 1536, true);
  bench_matmul(bf, 1024, 1535, 63, false);
  bench_attention(bf, 12, 1024, 1024, 128);
  bench_attention(bf, 12, 1024, 512, 128);
  bench_attention(bf, 4, 1024, 1024, 64);
  bench_attention(bf, 2, 120, 120, 32);
  {
    Buffer x(bf, {1, 1, 1024, 1536}), w(bf, {1, 1, 1, 1536}), out(bf, {1, 1, 1024, 1536});
    const double bytes = x.bytes() * 2;
    report("layer norm bf16 1024x1536", bytes, "GB/s",
           [&](Parallel& par) { norm(MR_NORM_LAYER, x, w, w, 1e-6f, out, par); });
    report("rms norm bf16 1024x1536", bytes, "GB/s", [&](Parallel& par) { norm(MR_NORM_RMS, x, w, {}, 1e-6f, out, par); });
    Buffer cos(f, {1, 1, 1024, 128}), heads(bf, {1, 12, 1024, 128});
    std::vector<float> stats(1024, 1536.0f);
    report("norm_apply with heads and rotation", bytes, "GB/s",
           [&](Parallel& par) { norm_apply(MR_NORM_RMS, x, stats.data(), 1, w, {}, 1e-6f, 12, cos, cos, heads, par); });
    report("rope bf16 12x1024x128", bytes, "GB/s",
           [&](Parallel& par) { rope(MR_ROPE_INTERLEAVED, heads, cos, cos, heads, par); });
    Buffer y(bf, {1, 1, 1024, 1536}), gate(bf, {1, 1, 1, 1536});
    report("add bf16 1024x1536", bytes * 1.5, "GB/s", [&](Parallel& par) { binary(MR_BINARY_ADD, x, y, out, par); });
    report("addcmul bf16 with a gate of one row", bytes * 1.5, "GB/s",
           [&](Parallel& par) { addcmul(x, y, gate, out, par); });
    report("gelu bf16", bytes, "GB/s", [&](Parallel& par) { activation(MR_ACT_GELU, x, out, par); });
    report("gelu tanh bf16", bytes, "GB/s", [&](Parallel& par) { activation(MR_ACT_GELU_TANH, x, out, par); });
    report("silu bf16", bytes, "GB/s", [&](Parallel& par) { activation(MR_ACT_SILU, x, out, par); });
    Buffer wide(f, {1024, 1536});
    report("convert bf16 to f32", bytes * 1.5, "GB/s", [&](Parallel& par) { convert(x, wide, par); });
    report("convert f32 to bf16", bytes * 1.5, "GB/s", [&](Parallel& par) { convert(wide, out, par); });
    Buffer integers(DType::int32, {1024, 1536});
    report("convert f32 to int32", bytes * 2, "GB/s", [&](Parallel& par) { convert(wide, integers, par); });
    const uint32_t begin[] = {0, 0, 0, 256};
    Buffer part(bf, {1, 1, 1024, 512});
    report("slice of the last dim, runs of 1 KiB", part.bytes() * 2, "GB/s",
           [&](Parallel& par) { slice(x, begin, part, par); });
    Buffer narrow(bf, {1, 1, 1024, 8});
    report("slice of the last dim, runs of 16 B", narrow.bytes() * 2, "GB/s",
           [&](Parallel& par) { slice(x, begin, narrow, par); });
    Buffer matrix(bf, {1, 12, 1024, 128}), keys(bf, {1, 12, 128, 1024}), tokens(bf, {1, 1024, 12, 128});
    const uint32_t swap[] = {0, 1, 3, 2}, split[] = {0, 2, 1, 3};
    report("permute 12x1024x128, runs of 256 B", bytes, "GB/s", [&](Parallel& par) { permute(matrix, split, tokens, par); });
    report("permute bf16, transposing", bytes, "GB/s", [&](Parallel& par) { permute(matrix, swap, keys, par); });
    Buffer matrix32(f, {1, 12, 1024, 128}), keys32(f, {1, 12, 128, 1024});
    report("permute f32, transposing", bytes * 2, "GB/s", [&](Parallel& par) { permute(matrix32, swap, keys32, par); });
    Buffer large(bf, {64, 1024, 512}), large2(bf, {64, 1024, 512});
    report("copy 64 MiB (counted once)", large.bytes(), "GB/s",
           [&](Parallel& par) { copy(large2.words.data(), large.words.data(), static_cast<size_t>(large.bytes()), par); });
    report("memcpy 64 MiB (counted once)", large.bytes(), "GB/s",
           [&](Parallel&) { std::memcpy(large2.words.data(), large.words.data(), static_cast<size_t>(large.bytes())); });
  }
  bench_reduce("2048 elements", 2048);
  bench_reduce("262144 elements", 262144);
  bench_reduce("16 Mi elements", size_t{16} << 20);
}
