// strided_all_gather_minimal_matmul and matmul_strided_reduce_scatter, against plain products in double.
#include "fused.h"

using namespace meshrun::test;

namespace {

// x [rows, k] times w [k, n], plus bias [n].
std::vector<double> product(const std::vector<float>& x, const std::vector<float>& w, size_t k, size_t n) {
  const size_t rows = x.size() / k;
  std::vector<double> out(rows * n);
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < k; ++j)
      for (size_t c = 0; c < n; ++c) out[i * n + c] += double{x[i * k + j]} * w[j * n + c];
  return out;
}

// ---- gather and matmul

struct GatherCase {
  uint32_t rows, cols, axis;
  bool ring;
  uint32_t links, workers;
  uint32_t batch, m, k, n;  // k: of one slice
  DType dtype;
  bool bias;
  uint32_t activation;
};

double activated(uint32_t activation, double v) {
  switch (activation) {
    case MR_ACT_RELU:
      return std::max(v, 0.0);
    case MR_ACT_SILU:
      return v / (1 + std::exp(-v));
    case MR_ACT_GELU:
      return v * 0.5 * std::erfc(-v / std::sqrt(2.0));
    default:
      return v;
  }
}

// One launch after another on two banks, as the runtime does it.
struct Gathering {
  TestMesh& mesh;
  const GatherCase& c;
  uint32_t length;
  Shape in, weight, bias, gathered;
  Shards<float> x, w, b;
  std::vector<mr_handle> bank[2];
  mr_strided_all_gather_matmul op[2];

  Gathering(TestMesh& m, const GatherCase& k, uint32_t seed) : mesh(m), c(k), length(c.axis == 0 ? c.rows : c.cols) {
    in = shape({1, c.batch, c.m, c.k});
    weight = shape({c.k * length, c.n});
    bias = shape({1, c.n});
    gathered = shape({1, c.batch, c.m, c.k * length});
    const bool round = c.dtype == DType::bfloat16;
    x = random_floats(mesh.devices(), in, seed, round);
    w = random_floats(mesh.devices(), weight, seed + 1, round);
    b = random_floats(mesh.devices(), bias, seed + 2, round);
    const mr_handle hx = upload_floats(mesh, in, c.dtype, x), hw = upload_floats(mesh, weight, c.dtype, w), hb = upload_floats(mesh, bias, c.dtype, b);
    for (int i = 0; i < 2; ++i) {
      bank[i] = mesh.semaphores(2 + 2 * c.links * c.workers);
      op[i] = make_op<mr_strided_all_gather_matmul>(MR_OP_STRIDED_ALL_GATHER_MATMUL);
      op[i].input = hx;
      op[i].weight = hw;
      op[i].bias = c.bias ? hb : 0;
      op[i].gathered = mesh.alloc(gathered, c.dtype);
      std::copy(bank[i].begin(), bank[i].end(), op[i].semaphores);
      op[i].semaphore_count = static_cast<uint32_t>(bank[i].size());
      op[i].axis = c.axis;
      op[i].num_links = c.links;
      op[i].topology = c.ring ? MR_RING : MR_LINEAR;
      op[i].num_workers_per_link = c.workers;
      op[i].activation = c.activation;
    }
    mesh.sync();
  }

  std::vector<double> expected(uint32_t device) const {
    const auto all = meshrun::test::gathered(x, line_of(c.rows, c.cols, device, c.axis), in, 3);
    std::vector<double> out = product(all, w[device], c.k * length, c.n);
    for (size_t i = 0; i < out.size(); ++i) out[i] = activated(c.activation, out[i] + (c.bias ? b[device][i % c.n] : 0));
    return out;
  }
  double error(mr_handle output) {
    double e = 0;
    for (uint32_t d = 0; d < mesh.devices(); ++d) e = std::max(e, worst(read_floats(mesh, output, c.dtype, d), expected(d), tolerance_of(c.dtype)));
    return e;
  }
};

void check_gather(const GatherCase& c, uint32_t seed) {
  CAPTURE(seed);
  CAPTURE(c.rows);
  CAPTURE(c.cols);
  CAPTURE(c.axis);
  CAPTURE(c.ring);
  CAPTURE(c.links);
  CAPTURE(c.workers);
  CAPTURE(c.m);
  CAPTURE(c.k);
  CAPTURE(c.n);
  CAPTURE(static_cast<uint32_t>(c.dtype));
  TestMesh mesh(c.rows, c.cols, "num_links=4\nchunk_bytes=64");
  Gathering g(mesh, c, seed);
  std::vector<mr_handle> results;
  for (int launch = 0; launch < 5; ++launch) {
    g.op[launch % 2].output = 0;
    mesh.enqueue(g.op[launch % 2]);
    results.push_back(g.op[launch % 2].output);
  }
  mesh.sync();
  CHECK(g.error(results[0]) <= 1);
  for (uint32_t d = 0; d < mesh.devices(); ++d) {
    const auto first = read_floats(mesh, results[0], c.dtype, d);
    for (const mr_handle r : results) CHECK(read_floats(mesh, r, c.dtype, d) == first);  // bit for bit, whatever the timing
    CHECK(read_floats(mesh, g.op[0].gathered, c.dtype, d) == gathered(g.x, line_of(c.rows, c.cols, d, c.axis), g.in, 3));
  }
  CHECK(all_zero(mesh, g.bank[0]));
  CHECK(all_zero(mesh, g.bank[1]));
}

// ---- matmul and scatter

struct ScatterCase {
  uint32_t rows, cols, axis;
  uint32_t links;
  uint32_t batch, m, k, n;  // n: of one slice
  DType dtype;
  bool bias, addcmul, credits, persistent;
};

struct Scattering {
  TestMesh& mesh;
  ScatterCase c;
  uint32_t length;
  Shape in, weight, bias, out, gate;
  Shards<float> x, w, b, r, g;
  std::vector<mr_handle> bank[2];
  mr_matmul_strided_reduce_scatter op[2];
  mr_handle progress = 0, credit = 0;

  static mr_tensor_spec counters(uint32_t cores) {
    mr_tensor_spec s = spec(shape({cores, cores}), DType::uint32, MR_ROW_MAJOR);
    s.memory = MR_L1;
    s.shard_rows = 1;
    s.shard_cols = cores;
    return s;
  }
  Scattering(TestMesh& m, const ScatterCase& k, uint32_t seed) : mesh(m), c(k), length(c.axis == 0 ? c.rows : c.cols) {
    in = shape({1, c.batch, c.m, c.k});
    weight = shape({c.k, c.n * length});
    bias = shape({1, 1, 1, c.n});
    out = shape({1, c.batch, c.m, c.n});
    gate = shape({1, 1, 1, c.n});
    const bool round = c.dtype == DType::bfloat16;
    x = random_floats(mesh.devices(), in, seed, round);
    w = random_floats(mesh.devices(), weight, seed + 1, round);
    b = random_floats(mesh.devices(), bias, seed + 2, round);
    r = random_floats(mesh.devices(), out, seed + 3, round);
    g = random_floats(mesh.devices(), gate, seed + 4, round);
    const mr_handle hx = upload_floats(mesh, in, c.dtype, x), hw = upload_floats(mesh, weight, c.dtype, w), hb = upload_floats(mesh, bias, c.dtype, b);
    const mr_handle hr = upload_floats(mesh, out, c.dtype, r), hg = upload_floats(mesh, gate, c.dtype, g);
    mr_mesh_info info{};
    info.size = sizeof info;
    mr_error e = fresh_error();
    REQUIRE(driver().info(mesh.handle(), &info, &e) == MR_OK);
    progress = mesh.alloc(counters(info.grid_x * info.grid_y));
    credit = mesh.alloc(counters(info.grid_x * info.grid_y));
    for (int i = 0; i < 2; ++i) {
      bank[i] = mesh.semaphores(4);
      op[i] = make_op<mr_matmul_strided_reduce_scatter>(MR_OP_MATMUL_STRIDED_REDUCE_SCATTER);
      op[i].input = hx;
      op[i].weight = hw;
      op[i].bias = c.bias ? hb : 0;
      if (c.addcmul) {
        op[i].residual = hr;
        op[i].gate = hg;
        op[i].h.present = MR_HAS_SCALAR;
        op[i].scalar = 0.75f;
      }
      op[i].progress = progress;
      op[i].credit = c.credits ? credit : 0;
      for (int s = 0; s < 3; ++s) op[i].semaphores[s] = bank[i][s];
      op[i].barrier = c.persistent ? 0 : bank[i][3];
      op[i].axis = c.axis;
      op[i].num_links = c.links;
      op[i].topology = MR_RING;
      if (c.persistent) op[i].output = mesh.alloc(out, c.dtype);
    }
    mesh.sync();
  }

  std::vector<double> expected(uint32_t device) const {
    const auto line = line_of(c.rows, c.cols, device, c.axis);
    const uint32_t owner = static_cast<uint32_t>(std::find(line.begin(), line.end(), device) - line.begin());
    std::vector<double> sum(out.elements());
    for (const uint32_t peer : line) {
      const auto p = product(x[peer], w[peer], c.k, c.n * length);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += p[i / c.n * c.n * length + owner * c.n + i % c.n];
    }
    for (size_t i = 0; i < sum.size(); ++i) {
      if (c.bias) sum[i] += b[device][i % c.n];
      if (c.addcmul) sum[i] = r[device][i] + 0.75 * sum[i] * g[device][i % c.n];
    }
    return sum;
  }
  double error(mr_handle output) {
    double e = 0;
    for (uint32_t d = 0; d < mesh.devices(); ++d) e = std::max(e, worst(read_floats(mesh, output, c.dtype, d), expected(d), tolerance_of(c.dtype)));
    return e;
  }
  bool counters_at_rest() {
    for (uint32_t d = 0; d < mesh.devices(); ++d)
      for (const mr_handle h : {progress, c.credits ? credit : progress})
        for (const uint32_t v : mesh.read<uint32_t>(h, d))
          if (v != 0) return false;
    return true;
  }
};

void check_scatter(const ScatterCase& c, uint32_t seed, const char* config = "num_links=4\nchunk_bytes=64") {
  CAPTURE(seed);
  CAPTURE(c.rows);
  CAPTURE(c.cols);
  CAPTURE(c.axis);
  CAPTURE(c.links);
  CAPTURE(c.batch);
  CAPTURE(c.m);
  CAPTURE(c.k);
  CAPTURE(c.n);
  CAPTURE(static_cast<uint32_t>(c.dtype));
  CAPTURE(c.bias);
  CAPTURE(c.addcmul);
  CAPTURE(c.credits);
  CAPTURE(c.persistent);
  TestMesh mesh(c.rows, c.cols, config);
  Scattering s(mesh, c, seed);
  std::vector<mr_handle> results;
  for (int launch = 0; launch < 5; ++launch) {
    auto& op = s.op[launch % 2];
    if (!c.persistent) op.output = 0;
    mesh.enqueue(op);
    results.push_back(op.output);
  }
  mesh.sync();
  CHECK(s.error(results[0]) <= 1);
  for (uint32_t d = 0; d < mesh.devices(); ++d)
    for (const mr_handle r : results) CHECK(read_floats(mesh, r, c.dtype, d) == read_floats(mesh, results[0], c.dtype, d));
  CHECK(all_zero(mesh, s.bank[0]));
  CHECK(all_zero(mesh, s.bank[1]));
  CHECK(s.counters_at_rest());
}

constexpr MeshCase kMeshes[] = {{1, 2}, {2, 1}, {1, 3}, {1, 4}, {2, 4}, {4, 2}, {1, 8}, {3, 3}};

}  // namespace

TEST_CASE("strided_all_gather_matmul: against the plain product of the whole") {
  Dice dice(20);
  for (const MeshCase m : kMeshes)
    for (const uint32_t axis : {0u, 1u})
      for (const bool ring : {false, true}) {
        const uint32_t length = axis == 0 ? m.rows : m.cols;
        if (length == 1 || (ring && length <= 2)) continue;
        for (int i = 0; i < 3; ++i)
          check_gather({m.rows, m.cols, axis, ring, dice.of({1, 2, 4}), dice.of({1, 2, 3, 8}), dice.in(1, 2), dice.in(1, 40), dice.in(1, 40), dice.in(1, 40),
                        dice.coin() ? DType::bfloat16 : DType::float32, dice.coin(), dice.of({MR_ACT_NONE, MR_ACT_RELU, MR_ACT_SILU, MR_ACT_GELU})},
                       100 + dice.in(0, 1000));
      }
}

TEST_CASE("strided_all_gather_matmul: the matmul waits for what comes") {
  // With the ways' semaphores raised beforehand the matmul does not wait for the slices, and must go wrong.
  const GatherCase c{1, 4, 1, true, 1, 2, 1, 64, 64, 32, DType::float32, true, MR_ACT_NONE};
  for (const bool raised : {false, true}) {
    TestMesh mesh(1, 4, "clock=lockstep\non_hazard=continue");
    Gathering g(mesh, c, 7);
    mesh.sync();
    if (raised) set_semaphores(mesh, {g.bank[0][0], g.bank[0][1]}, 100);
    mesh.enqueue(g.op[0]);
    mesh.sync();
    CHECK((g.error(g.op[0].output) <= 1) == !raised);
    CHECK(all_zero(mesh, g.bank[0]));
  }
}

TEST_CASE("strided_all_gather_matmul: ends before a gather and a matmul one after the other") {
  for (const char* mode : {"", "\nmode=timing"}) {
    CAPTURE(mode);
    const GatherCase c{1, 4, 1, true, 1, 2, 1, 512, 256, 1024, DType::bfloat16, false, MR_ACT_NONE};
    TestMesh mesh(1, 4, std::string("clock=lockstep") + mode);
    Gathering g(mesh, c, 3);
    const Bank bank(mesh);
    mesh.enqueue(g.op[0]);
    const uint64_t fused = mesh.last_launch();
    mesh.sync();
    auto gather = all_gather_op(g.op[0].input, 3, 1, true, bank);
    gather.output = mesh.alloc(g.gathered);
    mesh.sync();
    gather.barrier = 0;
    mesh.enqueue(gather);
    auto mm = make_op<mr_matmul>(MR_OP_MATMUL);
    mm.input = gather.output;
    mm.weight = g.op[0].weight;
    mm.dtype = MR_BFLOAT16;
    mesh.enqueue(mm);
    mesh.sync();
    const uint64_t one = virtual_ns(mesh, fused, fused), two = virtual_ns(mesh, fused + 1, fused + 2);
    const uint64_t longer = std::max(virtual_ns(mesh, fused + 1, fused + 1), virtual_ns(mesh, fused + 2, fused + 2));
    CAPTURE(one);
    CAPTURE(two);
    CHECK(one < two);
    CHECK(one >= longer * 9 / 10);  // but not before its longer half
  }
}

TEST_CASE("strided_all_gather_matmul: refusals") {
  TestMesh mesh(1, 4, "num_links=2");
  const GatherCase c{1, 4, 1, true, 2, 2, 1, 8, 8, 8, DType::float32, true, MR_ACT_NONE};
  Gathering g(mesh, c, 1);
  const auto refused = [&](auto change, const char* says) {
    auto op = g.op[0];
    change(op);
    const Answer a = mesh.try_enqueue(op);
    CAPTURE(a.text);
    CHECK(a.code != MR_OK);
    CHECK(a.says(says));
  };
  refused([](auto& op) { op.axis = 0, op.topology = MR_LINEAR; }, "axis is 0: has length 1");
  refused([](auto& op) { op.semaphore_count = 9; }, "semaphore_count is 9");
  refused([](auto& op) { op.semaphores[3] = op.semaphores[2]; }, "semaphores must be different");
  refused([](auto& op) { op.num_workers_per_link = 0; }, "num_workers_per_link is 0");
  refused([](auto& op) { op.num_workers_per_link = 17; }, "num_workers_per_link is 17");
  refused([](auto& op) { op.gathered = 0; }, "gathered is 0");
  refused([&](auto& op) { op.gathered = g.op[0].input; }, "gathered is [1,1,8,8]");
  refused([&](auto& op) { op.weight = g.op[0].input; }, "weight is [1,1,8,8]");
  refused([&](auto& op) { op.bias = g.op[0].weight; }, "bias is [32,8]");
  refused([](auto& op) { op.activation = 99; }, "activation is 99");
  refused([&](auto& op) { op.output = op.gathered; }, "output");
  mesh.enqueue(g.op[0]);
  mesh.sync();
  CHECK(g.error(g.op[0].output) <= 1);
}

TEST_CASE("matmul_strided_reduce_scatter: against the plain sum of products") {
  Dice dice(21);
  for (const MeshCase m : {MeshCase{1, 3}, {1, 4}, {2, 4}, {4, 2}, {1, 8}, {3, 3}})
    for (const uint32_t axis : {0u, 1u}) {
      if ((axis == 0 ? m.rows : m.cols) <= 2) continue;
      for (int i = 0; i < 6; ++i)
        check_scatter({m.rows, m.cols, axis, dice.of({1, 2, 4}), dice.in(1, 2), dice.in(1, 40), dice.in(1, 40), dice.in(1, 40),
                       dice.coin() ? DType::bfloat16 : DType::float32, dice.coin(), dice.coin(), dice.coin(), dice.coin()},
                      100 + dice.in(0, 1000));
    }
}

TEST_CASE("matmul_strided_reduce_scatter: sums are rounded once, or at every hop") {
  // Device 0 brings 256, the others 1: next to 256 a bfloat16 has no odd numbers, so 256 + 1 + 1 + 1 = 259 rounds to 260, but not hop by hop.
  for (const bool per_hop : {false, true}) {
    TestMesh mesh(1, 4, per_hop ? "rounding=per_hop" : "");
    Scattering s(mesh, {1, 4, 1, 1, 1, 32, 1, 8, DType::bfloat16, false, false, false, false}, 1);
    Shards<float> x(4, std::vector<float>(32, 1)), w(4, std::vector<float>(32, 1));
    x[0].assign(32, 256);
    mesh.write(s.op[0].input, s.in, bf16(x));
    mesh.write(s.op[0].weight, s.weight, bf16(w));
    mesh.enqueue(s.op[0]);
    mesh.sync();
    bool exact = true;
    for (uint32_t d = 0; d < 4; ++d)
      for (const float v : widened(mesh.read<uint16_t>(s.op[0].output, d))) exact = exact && v == 260;
    CHECK(exact == !per_hop);
  }
}

TEST_CASE("matmul_strided_reduce_scatter: waits for what comes, and counts the bias once") {
  const ScatterCase c{1, 4, 1, 1, 1, 64, 48, 32, DType::float32, true, true, true, true};
  for (const bool raised : {false, true}) {
    TestMesh mesh(1, 4, "clock=lockstep\non_hazard=continue");
    Scattering s(mesh, c, 7);
    mesh.sync();
    // One device comes late. With the semaphores raised beforehand the others do not wait for it, and must go wrong.
    CHECK(mesh.fault("device 0,1 delay 1ms at launch 1").code == MR_OK);
    if (raised) set_semaphores(mesh, {s.bank[0][0], s.bank[0][1]}, 100);
    mesh.enqueue(s.op[0]);
    mesh.sync();
    CHECK((s.error(s.op[0].output) <= 1) == !raised);
    if (raised) continue;
    CHECK(all_zero(mesh, s.bank[0]));
    auto twice = s;
    for (auto& v : twice.b)
      for (float& f : v) f *= 2;
    CHECK(twice.error(s.op[0].output) > 1);
  }
}

TEST_CASE("matmul_strided_reduce_scatter: a counter that somebody else has written fails the launch") {
  // While the first waits for a device that comes late, another queue multiplies on the same progress counters.
  TestMesh mesh(1, 4, "clock=lockstep\non_hazard=continue", 2);
  const ScatterCase c{1, 4, 1, 1, 1, 64, 8, 64, DType::bfloat16, false, false, true, true};
  Scattering a(mesh, c, 1), b(mesh, {1, 4, 1, 1, 1, 64, 8, 64, DType::bfloat16, false, false, true, true}, 2);
  mesh.sync(0);
  for (const bool shared : {false, true}) {
    CAPTURE(shared);
    b.op[1].h.queue = 1;
    CHECK(mesh.fault(shared ? "device 0,1 delay 1ms at launch 3" : "device 0,1 delay 1ms at launch 1").code == MR_OK);
    if (shared) b.op[1].progress = a.progress;
    mesh.enqueue(a.op[0]);
    mesh.enqueue(b.op[1]);
    mesh.fence(0);
    mesh.fence(1);
    uint64_t launch = 0;
    mr_error failure = fresh_error(), e = fresh_error();
    REQUIRE(driver().failure_next(mesh.handle(), &launch, &failure, &e) == MR_OK);
    CHECK((launch != 0) == shared);
    if (shared) CHECK(std::string(failure.message).find("progress[") != std::string::npos);
  }
}

TEST_CASE("matmul_strided_reduce_scatter: ends before a matmul and a scatter one after the other") {
  for (const bool credits : {false, true})
    for (const char* mode : {"", "\nmode=timing"}) {
      CAPTURE(mode);
      TestMesh mesh(1, 4, std::string("clock=lockstep") + mode);
      Scattering s(mesh, {1, 4, 1, 1, 1, 512, 1024, 256, DType::bfloat16, false, false, credits, true}, 3);
      const Bank bank(mesh);
      mesh.enqueue(s.op[0]);
      const uint64_t fused = mesh.last_launch();
      mesh.sync();
      auto mm = make_op<mr_matmul>(MR_OP_MATMUL);
      mm.input = s.op[0].input;
      mm.weight = s.op[0].weight;
      mm.dtype = MR_BFLOAT16;
      mesh.enqueue(mm);
      auto scatter = reduce_scatter_op(mm.output, 3, 1, true, bank);
      mesh.enqueue(scatter);
      mesh.sync();
      const uint64_t one = virtual_ns(mesh, fused, fused), two = virtual_ns(mesh, fused + 1, fused + 2);
      const uint64_t longer = std::max(virtual_ns(mesh, fused + 1, fused + 1), virtual_ns(mesh, fused + 2, fused + 2));
      CAPTURE(one);
      CAPTURE(two);
      CHECK(one < two);
      CHECK(one >= longer * 9 / 10);
    }
}

TEST_CASE("matmul_strided_reduce_scatter: refusals") {
  TestMesh mesh(2, 4, "num_links=2");
  Scattering s(mesh, {2, 4, 1, 2, 1, 8, 8, 8, DType::float32, true, true, true, false}, 1);
  const auto refused = [&](auto change, const char* says) {
    auto op = s.op[0];
    change(op);
    const Answer a = mesh.try_enqueue(op);
    CAPTURE(a.text);
    CHECK(a.code != MR_OK);
    CHECK(a.says(says));
  };
  refused([](auto& op) { op.topology = MR_LINEAR; }, "rings only; use matmul, then reduce_scatter");
  refused([](auto& op) { op.axis = 0; }, "an axis of one or two is a line");
  refused([](auto& op) { op.barrier = 0; }, "needs a persistent output or a barrier");
  refused([](auto& op) { op.semaphores[1] = op.semaphores[0]; }, "semaphores and barrier must be different");
  refused([](auto& op) { op.progress = 0; }, "progress is 0");
  refused([](auto& op) { op.credit = op.progress; }, "shares its memory");
  refused([&](auto& op) { op.progress = mesh.alloc(shape({64, 64}), DType::uint32); }, "progress is");
  refused([](auto& op) { op.gate = 0; }, "residual and gate: give both or neither");
  refused([](auto& op) { op.gate = op.residual = 0; }, "scalar is 0.75");
  refused([&](auto& op) { op.bias = s.op[0].residual; }, "bias is [1,1,8,8]");
  refused([&](auto& op) { op.weight = mesh.alloc(shape({8, 30}), DType::float32); }, "not divisible by the 4 devices");
  refused([&](auto& op) { op.weight = mesh.alloc(shape({9, 32}), DType::float32); }, "must be one matrix [8, N]");
  refused([&](auto& op) { op.gate = s.op[0].input, op.residual = s.op[0].weight; }, "residual is [8,32]");
  mesh.enqueue(s.op[0]);
  mesh.sync();
  CHECK(s.error(s.op[0].output) <= 1);
}
