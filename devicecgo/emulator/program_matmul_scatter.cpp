// program_matmul_scatter.cpp: multiplies [..., M, K], of which each device holds its part of K, with [K, N], and scatters the sum over a ring along N
// while the products come.
//
// The scatter is that of program_reduce_scatter.cpp on a ring: the first half of the rows of each slice goes round by way 0, the second by way
// 1, and collects a summand a hop. The matmul makes its products in the order in which the scatter takes them: block 2h is what way 0 needs at
// hop h, block 2h + 1 what way 1 does. It counts them in the progress counters, where each worker of the scatter (one per way and link, on a
// core of its own) has a row. With credit counters the workers tell the matmul in turn what they have sent, and it keeps kWindow blocks ahead
// of each way at most.
//
// Products and partial sums are float32. What travels is rounded, with the exact sum beside it as in reduction.h; the owner adds the bias,
// residual and gate and rounds once. Mode per_hop rounds products and sums wherever they are stored.
#include <algorithm>
#include <vector>

#include "bf16.h"
#include "core_counters.h"
#include "kernel_bfloat8.h"
#include "kernel_floats.h"
#include "kernel_matmul.h"
#include "ops.h"
#include "program_gather.h"
#include "reduction.h"

namespace meshrun::emu {
namespace {

constexpr uint32_t kWindow = 2;

class MatmulScatter final : public Plan {
 public:
  const char* name() const override { return "matmul_strided_reduce_scatter"; }
  Program run(Context& ctx) const override;

  Collective over;
  Operand input, weight, bias, residual, gate, products, intermediate, output;
  CoreCounters progress, credit;
  std::array<SemaphoreRef, 2> semaphores;  // one per way
  SemaphoreRef start;
  float scalar = 1;
  uint64_t chunk = 1;  // bytes of whole rows of a slice
  double wire = 1;
  bool round_per_hop = false;
  bool with_shadows = false;
  HostPool* pool = nullptr;

 private:
  // What the programs of a device tell each other.
  struct Counts {
    Word made;                               // blocks that the matmul has made
    std::array<Word, 2 * MR_MAX_LINKS> sent;  // hops whose block a worker has sent
  };
  Program multiply(Context& ctx, Counts& counts) const;
  Program scatter(Context& ctx, uint32_t way, uint32_t link, Counts& counts) const;

  uint32_t columns() const { return output.spec.shape.back(0); }  // of a slice
  uint64_t rows() const { return output.spec.shape.product(0, output.spec.shape.rank - 1); }
  uint32_t worker(uint32_t way, uint32_t link) const { return way * over.links + link; }
  uint32_t blocks() const { return 2 * over.length; }
  // The slice that a way sends at a hop, seen from a position; at the last hop its own.
  static uint32_t slice_at(const Line& line, uint32_t way, uint32_t hop) { return line.wrap(-step_of(way) * (int64_t{hop} + 1)); }
  struct Rows {
    uint64_t first = 0, end = 0;
    uint64_t count() const { return end - first; }
  };
  Rows share(uint32_t from, uint32_t to) const { return {rows() * from / (2 * over.links), rows() * to / (2 * over.links)}; }
  Rows of_way(uint32_t way) const { return share(way * over.links, (way + 1) * over.links); }
  Rows of_worker(uint32_t w) const { return share(w, w + 1); }
  Region part(const Operand& whole, uint32_t slice, Rows some) const {
    const Slices s = Slices::along(whole.spec, whole.spec.shape.rank - 1, over.length);
    return s.part(slice, {some.first * s.run, some.end * s.run});
  }

  // One step of the scatter on some rows of a slice, with what has come from behind, to the intermediate of the device ahead or, at the
  // owner, to the output.
  struct Step {
    uint32_t device, slice, worker, index;
    Rows some;
    bool first;  // nothing has come
    uint32_t ahead;
  };
  void pass_on(Context& ctx, const Hop& ahead, const Step& step, uint64_t here) const;
  void finish(Context& ctx, const Step& step) const;
  void add_up(const Step& step, bool last) const;
  Shadow* shadow(uint32_t device, const Step& step) const {
    return shadows_.at(((size_t{device} * over.length + step.slice) * 2 * over.links + step.worker) * chunks_per_worker_ + step.index);
  }
  void make_shadows(uint32_t devices) const;
  uint32_t chunks_of(Rows some) const { return static_cast<uint32_t>((some.count() + rows_per_chunk() - 1) / rows_per_chunk()); }
  uint64_t rows_per_chunk() const { return chunk / (columns() * element_bytes(output.spec.dtype)); }

  mutable Shadows shadows_;
  mutable size_t chunks_per_worker_ = 0;
};

Program MatmulScatter::run(Context& ctx) const {
  if (start) co_await barrier(ctx, over, *start);
  make_shadows(ctx.devices());
  const auto counts = std::make_unique<Counts>();
  Join parts;
  parts.start(multiply(ctx, *counts));
  for (uint32_t link = 0; link < over.links; ++link)
    for (const uint32_t way : {0u, 1u}) parts.start(scatter(ctx, way, link, *counts));
  co_await parts;
  progress.clear(ctx);
  if (credit) credit.clear(ctx);
}

Program MatmulScatter::multiply(Context& ctx, Counts& counts) const {
  const Line line = ctx.line(over.axis);
  const uint32_t device = ctx.device();
  const double bytes = static_cast<double>(input.spec.device_bytes() + weight.spec.device_bytes()) + over.length * static_cast<double>(output.spec.device_bytes());
  const uint32_t depth = input.spec.shape.back(0), width = weight.spec.shape.back(0);
  const Cost block_cost{2.0 * static_cast<double>(rows()) * depth * width / blocks(), bytes / blocks()};
  for (uint32_t block = 0; block < blocks(); ++block) {
    const uint32_t way = block % 2, hop = block / 2;
    if (credit && hop >= kWindow)
      for (uint32_t link = 0; link < over.links; ++link) {
        const uint32_t w = worker(way, link);
        co_await ctx.wait(counts.sent[w], hop + 1 - kWindow);
        credit.check(ctx, 0, w, hop + 1 - kWindow, over.length);
      }
    const uint32_t slice = slice_at(line, way, hop);
    const Rows some = of_way(way);
    const Region made = part(products, slice, some);
    ctx.work({input.read(device), weight.read(device), {&products.at(device), made, true}}, made.bytes() * depth / 8,
             [this, device, slice, some, depth, width](Parallel& parallel) {
               const Block space = pool->take(some.count() * columns() * sizeof(float) + 1);
               const auto sums = reinterpret_cast<float*>(space.data());
               matmul_part({.a = input.view(device),
                            .a_offset = some.first * depth,
                            .a_stride = depth,
                            .w = weight.view(device),
                            .w_offset = size_t{slice} * columns(),
                            .w_stride = width,
                            .rows = some.count(),
                            .depth = depth,
                            .columns = columns()},
                           sums, false, parallel);
               float* const to = products.view(device).as<float>() + some.first * width + size_t{slice} * columns();
               for (uint64_t row = 0; row < some.count(); ++row) std::memcpy(to + row * width, sums + row * columns(), columns() * sizeof(float));
             });
    co_await ctx.compute(block_cost);
    for (uint32_t w = 0; w < 2 * over.links; ++w) progress.set(ctx, progress.row(w), block + 1);
    ctx.raise(counts.made, 1);
  }
}

Program MatmulScatter::scatter(Context& ctx, uint32_t way, uint32_t link, Counts& counts) const {
  const Line line = ctx.line(over.axis);
  const Hop ahead = ctx.hop(line, way, link);
  const Owed behind = Owed::by(line.device(-step_of(way)));
  const uint32_t w = worker(way, link);
  const Rows mine = of_worker(w);
  Semaphore& semaphore = *semaphores[way];
  uint32_t due = 0;

  for (uint32_t hop = 0; hop < line.length; ++hop) {
    const uint32_t block = 2 * hop + way;
    co_await ctx.wait(counts.made, block + 1);
    progress.check(ctx, w, 0, block + 1, blocks());
    const uint32_t slice = slice_at(line, way, hop);
    for (uint32_t c = 0; c < chunks_of(mine); ++c) {
      uint64_t here = ctx.now();
      if (hop != 0) here = co_await ctx.wait(semaphore, link, ++due, behind);
      const uint64_t first = mine.first + c * rows_per_chunk();
      const Step step{ctx.device(), slice, w, c, {first, std::min(first + rows_per_chunk(), mine.end)}, hop == 0, ahead.peer};
      if (slice == line.position) {
        finish(ctx, step);
      } else {
        pass_on(ctx, ahead, step, here);
      }
    }
    if (credit) credit.set(ctx, credit.column(w), hop + 1);
    ctx.raise(counts.sent[w], 1);
  }
  if (mine.count() != 0) {
    const double share = static_cast<double>(mine.count()) / static_cast<double>(rows());
    double bytes = static_cast<double>(output.spec.device_bytes());
    for (const Operand* in : {&residual, &gate})
      if (*in) bytes += static_cast<double>(in->spec.device_bytes());
    co_await ctx.until(std::max(ctx.now(), ctx.settled_ns()) + ctx.cost().compute_ns({.bytes = share * bytes}));
  }
  ctx.clear(semaphore, link);
}

void MatmulScatter::pass_on(Context& ctx, const Hop& ahead, const Step& step, uint64_t here) const {
  const Region own = part(products, step.slice, step.some), staged = part(intermediate, step.slice, step.some);
  std::array<Access, 3> accesses{Access{&products.at(step.device), own, false}, Access{&intermediate.at(ahead.peer), staged, true},
                                 Access{&intermediate.at(step.device), staged, false}};
  ctx.send(ahead, static_cast<uint64_t>(static_cast<double>(staged.bytes()) * wire), here, Signal{*semaphores[ahead.way], ahead.link},
           std::span<const Access>(accesses.data(), step.first ? 2 : 3), [this, step](Parallel&) { add_up(step, false); });
}

void MatmulScatter::finish(Context& ctx, const Step& step) const {
  const Region own = part(products, step.slice, step.some), staged = part(intermediate, step.slice, step.some);
  const uint64_t run = columns() * element_bytes(output.spec.dtype);
  std::array<Access, 6> accesses{Access{&products.at(step.device), own, false}, Access{&intermediate.at(step.device), staged, false},
                                 Access{&output.at(step.device), Region::contiguous(0, output.spec.bytes()).part(step.some.first * run, step.some.end * run), true}};
  size_t n = 3;
  for (const Operand* in : {&bias, &residual, &gate})
    if (*in) accesses[n++] = in->read(step.device);
  ctx.work(std::span<const Access>(accesses.data(), n), 4 * staged.bytes(), [this, step](Parallel&) { add_up(step, true); });
}

// The sum of what has come and the own product, row by row.
void MatmulScatter::add_up(const Step& step, bool last) const {
  const size_t n = columns(), width = weight.spec.shape.back(0);
  const bool bf16 = output.spec.dtype == DType::bfloat16;
  const size_t unit = element_bytes(output.spec.dtype);
  Shadow *const came = step.first ? nullptr : shadow(step.device, step), *const keep = last ? nullptr : shadow(step.ahead, step);
  Block sum = came != nullptr ? std::move(came->block) : Block{};
  const bool exact = bool(sum);
  if (!sum && keep != nullptr) sum = pool->take(step.some.count() * n * sizeof(float));

  const Shape& out = output.spec.shape;
  BroadcastRow biases(bias.view(step.device), out, n), residuals(residual.view(step.device), out, n), gates(gate.view(step.device), out, n);
  const FloatWriter writer(output.view(step.device));
  const Scratch space(n), held_wide(n);
  const auto own = static_cast<const float*>(products.view(step.device).data) + size_t{step.slice} * n;
  const size_t at = (step.some.first * width + size_t{step.slice} * n) * unit;
  const std::byte* const here = intermediate.at(step.device).data + at;
  std::byte* const there = intermediate.at(step.ahead).data + at;

  for (uint64_t i = 0; i < step.some.count(); ++i) {
    const uint64_t row = step.some.first + i;
    float* const acc = sum ? reinterpret_cast<float*>(sum.data()) + i * n : space.data();
    const std::byte* const held = here + i * width * unit;
    const float* product = own + row * width;
    if (round_per_hop && bf16) {
      for (size_t c = 0; c < n; ++c) held_wide[c] = to_float(to_bf16(product[c]));
      product = held_wide;
    }
    if (step.first) {
      std::memcpy(acc, product, n * sizeof(float));
    } else {
      if (!bf16) {
        std::memcpy(acc, held, n * sizeof(float));
      } else if (const auto rounded = reinterpret_cast<const uint16_t*>(held); !exact || !rounds_to(acc, rounded, n)) {
        widen_bf16(acc, rounded, n);
      }
      add_f32(acc, product, n);
    }
    if (!last) {
      std::byte* const to = there + i * width * unit;
      if (bf16) {
        round_bf16(reinterpret_cast<uint16_t*>(to), acc, n);
      } else {
        std::memcpy(to, acc, n * sizeof(float));
      }
      continue;
    }
    if (round_per_hop && bf16)
      for (size_t c = 0; c < n; ++c) acc[c] = to_float(to_bf16(acc[c]));
    if (biases) add_f32(acc, biases.row(row, 0, n), n);
    if (residuals) {
      const float *base = residuals.row(row, 0, n), *factor = gates.row(row, 0, n);
      for (size_t c = 0; c < n; ++c) acc[c] = base[c] + scalar * acc[c] * factor[c];
    }
    if (output.spec.dtype == DType::bfloat8_b)
      for (size_t c = 0; c < n; c += kBlockValues) round_block(acc + c, std::min(kBlockValues, n - c));
    writer.write(row * n, n, acc);
  }
  if (keep != nullptr) keep->block = std::move(sum);
}

void MatmulScatter::make_shadows(uint32_t devices) const {
  if (chunks_per_worker_ != 0) return;
  for (uint32_t w = 0; w < 2 * over.links; ++w) chunks_per_worker_ = std::max<size_t>({chunks_per_worker_, chunks_of(of_worker(w)), 1});
  if (with_shadows) shadows_.resize(size_t{devices} * over.length * 2 * over.links * chunks_per_worker_);
}

CoreCounters counters(Request& r, const char* field, mr_handle handle) {
  const CoreCounters c{r.input(field, handle), field};
  const uint32_t cores = r.config().machine.cores();
  Spec wanted = c.tensor.spec;
  wanted.dtype = DType::uint32;
  wanted.layout = MR_ROW_MAJOR;
  wanted.shape = {};
  wanted.shape.rank = 2;
  wanted.shape.dims = {cores, cores};
  r.check_spec(field, c.tensor, wanted);
  if (c.tensor.spec.memory != MR_L1 || c.tensor.spec.shard_rows != 1 || c.tensor.spec.shard_cols != cores)
    throw r.reject("%s is %s with shards of %ux%u: must be in L1, one row of %u slots for each core", field, text(c.tensor.spec).c_str(), c.tensor.spec.shard_rows,
                   c.tensor.spec.shard_cols, cores);
  return c;
}

}  // namespace

std::unique_ptr<Plan> plan_matmul_strided_reduce_scatter(Request& r, mr_matmul_strided_reduce_scatter& op) {
  auto plan = std::make_unique<MatmulScatter>();
  MatmulScatter& p = *plan;
  r.allow_present(MR_HAS_SCALAR);
  p.input = r.input("input", op.input);
  p.weight = r.input("weight", op.weight);
  p.bias = r.optional("bias", op.bias);
  p.residual = r.optional("residual", op.residual);
  p.gate = r.optional("gate", op.gate);
  r.rank4("input", p.input);
  for (const auto& [field, operand] :
       {std::pair{"input", &p.input}, {"weight", &p.weight}, {"bias", &p.bias}, {"residual", &p.residual}, {"gate", &p.gate}}) {
    r.floats(field, *operand);
    r.reads(p, *operand);
  }
  if (op.topology == MR_LINEAR) throw r.reject("topology is linear: the fused scatter runs on rings only; use matmul, then reduce_scatter");
  p.over = r.collective(op.axis, op.num_links, op.topology);
  const Collective& over = p.over;
  const uint32_t cores = r.config().machine.cores();
  if (over.links > MR_MAX_LINKS || 2 * over.links > cores)
    throw r.reject("num_links is %u: the scatter needs a core for each way and link, and at most %d links; there are %u cores", over.links, MR_MAX_LINKS, cores);

  const Shape &x = p.input.spec.shape, &w = p.weight.spec.shape;
  if (w.rank < 2 || w.back(1) != x.dims[3] || w.elements() != size_t{w.back(0)} * w.back(1))
    throw r.reject("weight is %s: must be one matrix [%u, N], as the input is %s", text(w).c_str(), x.dims[3], text(x).c_str());
  if (w.back(0) % over.length != 0)
    throw r.reject("weight is %s: its last dim is not divisible by the %u devices of axis %u", text(w).c_str(), over.length, over.axis);
  Spec product = in_dram(p.input.spec);
  product.shape.dims[3] = w.back(0);
  Spec scattered = product;
  scattered.shape.dims[3] /= over.length;
  const uint32_t n = scattered.shape.dims[3];
  if (p.bias && (p.bias.spec.shape.back(0) != n || p.bias.spec.shape.elements() != n))
    throw r.reject("bias is %s: must be [..., 1, %u], the owner's part", text(p.bias.spec.shape).c_str(), n);
  if (bool(p.residual) != bool(p.gate)) throw r.reject("residual and gate: give both or neither");
  if (p.residual) {
    r.broadcasts("residual", p.residual.spec.shape, scattered.shape);
    r.broadcasts("gate", p.gate.spec.shape, scattered.shape);
  }
  if (r.has(MR_HAS_SCALAR)) {
    if (!p.residual) throw r.reject("scalar is %g: belongs to residual and gate", static_cast<double>(op.scalar));
    p.scalar = op.scalar;
  }

  if (op.output == 0 && op.barrier == 0) throw r.reject("output and barrier are both 0: needs a persistent output or a barrier");
  r.different("semaphores and barrier", {op.semaphores[0], op.semaphores[1], op.semaphores[2], op.barrier});
  for (const uint32_t way : {0u, 1u}) p.semaphores[way] = r.semaphore("semaphores", op.semaphores[way]);
  r.semaphore("semaphores", op.semaphores[2]);  // of the bank; a ring has nothing to join
  if (op.barrier != 0) p.start = r.barrier(op.barrier);

  p.progress = counters(r, "progress", op.progress);
  r.writes(p, p.progress.tensor);
  if (op.credit != 0) {
    p.credit = counters(r, "credit", op.credit);
    r.writes(p, p.credit.tensor);
  }
  if (op.intermediate != 0) {
    p.intermediate = r.input("intermediate", op.intermediate);
    r.check_spec("intermediate", p.intermediate, product);
  } else {
    p.intermediate = r.scratch("intermediate", product);
  }
  r.writes(p, p.intermediate);
  Spec exact = product;
  exact.dtype = DType::float32;
  p.products = r.scratch("products", exact);
  p.output = r.output("output", op.output, scattered);
  r.writes(p, p.output);

  p.round_per_hop = r.config().round_per_hop;
  if (p.round_per_hop && scattered.dtype == DType::bfloat8_b) throw r.reject("input is bfloat8_b: its sums are rounded once, not per_hop");
  p.with_shadows = scattered.dtype == DType::bfloat16 && !p.round_per_hop && !r.config().timing;
  p.wire = static_cast<double>(product.device_bytes()) / static_cast<double>(product.bytes());
  const uint64_t run = n * element_bytes(scattered.dtype);
  p.chunk = std::max<uint64_t>(1, over.chunk_bytes(r.config(), scattered.bytes() / over.links / 2) / run) * run;
  p.pool = &r.pool();
  return plan;
}

}  // namespace meshrun::emu
