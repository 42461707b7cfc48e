// Traces: what was captured runs again on the same memory and semaphores; what a replay would not do again is refused.
#include <functional>

#include "fused.h"

using namespace meshrun::test;

namespace {

class Captured {
 public:
  explicit Captured(TestMesh& mesh, uint32_t queue = 0) : mesh_(mesh), queue_(queue) {
    mr_error e = fresh_error();
    REQUIRE_MESSAGE(driver().trace_begin(mesh.handle(), queue, &handle, &e) == MR_OK, e.message);
  }
  Answer end() {
    mr_error e = fresh_error();
    driver().trace_end(mesh_.handle(), handle, &e);
    return {e.code, e.message};
  }
  Answer execute(uint64_t first_launch) {
    mr_error e = fresh_error();
    driver().trace_execute(mesh_.handle(), handle, queue_, first_launch, &e);
    return {e.code, e.message};
  }
  Answer release() {
    mr_error e = fresh_error();
    driver().trace_free(mesh_.handle(), handle, &e);
    return {e.code, e.message};
  }
  mr_handle handle = 0;

 private:
  TestMesh& mesh_;
  uint32_t queue_;
};

uint64_t number(TestMesh& mesh, const char* field) {
  const std::string r = mesh.report(), key = std::string("\"") + field + "\":";
  const size_t at = r.find(key);
  REQUIRE(at != std::string::npos);
  return std::stoull(r.substr(at + key.size()));
}

}  // namespace

TEST_CASE("three gathers of one shape, replayed with new inputs under skew") {
  for (const bool ring : {false, true})
    for (uint32_t seed = 1; seed <= 5; ++seed) {
      TestMesh mesh(1, 4, "clock=lockstep\nskew_us=400\nseed=" + std::to_string(seed));
      const Shape s = shape({1, 1, 32, 64}), whole = shape({1, 1, 32, 256});
      const Bank a(mesh), b(mesh);
      const std::vector<mr_handle> to{mesh.alloc(whole), mesh.alloc(whole), mesh.alloc(whole)};
      std::vector<mr_handle> from;
      for (int i = 0; i < 3; ++i) from.push_back(mesh.alloc(s));
      mesh.sync();
      const uint64_t before = number(mesh, "launches");
      Captured trace(mesh);
      for (int i = 0; i < 3; ++i) {
        auto op = all_gather_op(from[i], 3, 1, ring, i % 2 == 0 ? a : b, false);
        op.output = to[i];
        mesh.enqueue(op);
      }
      REQUIRE(trace.end().code == MR_OK);
      CHECK(number(mesh, "launches") == before);
      for (uint32_t replay = 0; replay < 5; ++replay) {
        std::vector<Shards<uint16_t>> x;
        for (int i = 0; i < 3; ++i) {
          x.push_back(random_shards<uint16_t>(4, s, 100 * seed + 10 * replay + i));
          mesh.write(from[i], s, x.back());
        }
        const uint64_t first = 1000 + 3 * replay;
        REQUIRE(trace.execute(first).code == MR_OK);
        mesh.sync();  // the last and the first gather have one bank: somebody has to fence
        for (int i = 0; i < 3; ++i) {
          const auto expected = gathered(x[i], {0, 1, 2, 3}, s, 3);
          for (uint32_t d = 0; d < 4; ++d) CHECK(mesh.read<uint16_t>(to[i], d) == expected);
          mr_launch_profile p{};
          p.size = sizeof p;
          mr_error e = fresh_error();
          extension().launch_profile(mesh.handle(), first + i, &p, &e);
          CHECK(p.retired == 1);
        }
      }
      CHECK(at_rest(mesh, a));
      CHECK(at_rest(mesh, b));
      CHECK(number(mesh, "launches") == before + 15);
      CHECK(trace.release().code == MR_OK);
    }
}

TEST_CASE("plans that keep something for a launch are as good at every replay") {
  // Each operation, captured and replayed on new inputs, against the same operation launched once on another mesh.
  struct Kind {
    const char* name;
    std::function<mr_handle(TestMesh&, const Bank&, const std::vector<mr_handle>& in)> enqueue;  // the result
  };
  const Shape s = shape({1, 1, 32, 128}), heads = shape({1, 2, 32, 32});
  const auto scatter = [](bool ring) {
    return [ring](TestMesh& mesh, const Bank& bank, const std::vector<mr_handle>& in) {
      auto op = reduce_scatter_op(in[0], 3, 1, ring, bank);
      mesh.enqueue(op);
      return op.output;
    };
  };
  const auto reshard = [](TestMesh& mesh, const Bank& bank, const std::vector<mr_handle>& in) {
    auto op = make_op<mr_slice_reshard>(MR_OP_SLICE_RESHARD);
    op.input = in[3];
    op.semaphore = bank.s[0];
    op.barrier = bank.s[3];
    op.offset = 5;
    op.size = 8;
    op.axis = 1;
    op.num_links = 1;
    op.topology = MR_LINEAR;
    mesh.enqueue(op);
    return op.output;
  };
  const auto norm = [](TestMesh& mesh, const Bank& bank, const std::vector<mr_handle>& in) {
    auto op = make_op<mr_fused_distributed_norm>(MR_OP_FUSED_DISTRIBUTED_NORM);
    op.h.present = MR_HAS_AXIS;
    op.input = in[0];
    op.stats = in[4];
    op.semaphores[0] = bank.s[0];
    op.semaphores[1] = bank.s[1];
    op.kind = MR_NORM_LAYER;
    op.axis = 1;
    op.num_links = 1;
    op.topology = MR_RING;
    op.num_heads = 1;
    mesh.enqueue(op);
    return op.output;
  };
  const auto attention = [](TestMesh& mesh, const Bank& bank, const std::vector<mr_handle>& in) {
    auto op = make_op<mr_ring_joint_sdpa>(MR_OP_RING_JOINT_SDPA);
    op.q = in[1];
    op.k = in[2];
    op.v = in[1];
    op.buffer_k = in[5];
    op.buffer_v = in[6];
    op.semaphores[0] = bank.s[0];
    op.semaphores[1] = bank.s[1];
    op.axis = 1;
    op.num_links = 1;
    op.topology = MR_RING;
    mesh.enqueue(op);
    return op.output;
  };
  for (const Kind& kind : {Kind{"scatter on a ring", scatter(true)}, Kind{"scatter on a line", scatter(false)}, Kind{"slice_reshard", reshard},
                           Kind{"norm", norm}, Kind{"ring attention", attention}}) {
    CAPTURE(kind.name);
    const auto make = [&](TestMesh& mesh) {
      return std::vector<mr_handle>{mesh.alloc(s), mesh.alloc(heads), mesh.alloc(heads), mesh.alloc(spec(shape({4, 2, 8}), DType::bfloat16, MR_ROW_MAJOR)),
                                    mesh.alloc(spec(shape({1, 1, 32, 8}), DType::float32, MR_ROW_MAJOR)), mesh.alloc(shape({1, 2, 128, 32})),
                                    mesh.alloc(shape({1, 2, 128, 32}))};
    };
    const auto fill = [&](TestMesh& mesh, const std::vector<mr_handle>& in, uint32_t seed) {
      mesh.write(in[0], s, bf16(random_floats(4, s, seed, true)));
      mesh.write(in[1], heads, bf16(random_floats(4, heads, seed + 1, true)));
      mesh.write(in[2], heads, bf16(random_floats(4, heads, seed + 2, true)));
      mesh.write(in[3], shape({4, 2, 8}), bf16(random_floats(4, shape({4, 2, 8}), seed + 3, true)));
    };
    TestMesh mesh(1, 4, "clock=lockstep\nskew_us=100\nseed=7");
    const Bank bank(mesh);
    const auto in = make(mesh);
    mesh.sync();
    Captured trace(mesh);
    const mr_handle result = kind.enqueue(mesh, bank, in);
    REQUIRE(trace.end().code == MR_OK);
    for (uint32_t replay = 0; replay < 4; ++replay) {
      CAPTURE(replay);
      fill(mesh, in, 50 + 10 * replay);
      REQUIRE(trace.execute(0).code == MR_OK);
      mesh.sync();
      TestMesh plain(1, 4);
      const Bank other(plain);
      const auto same = make(plain);
      fill(plain, same, 50 + 10 * replay);
      plain.sync();
      const mr_handle expected = kind.enqueue(plain, other, same);
      plain.sync();
      for (uint32_t d = 0; d < 4; ++d) CHECK(mesh.read<uint16_t>(result, d) == plain.read<uint16_t>(expected, d));
      CHECK(at_rest(mesh, bank));
    }
  }
}

TEST_CASE("while a trace is captured, what a replay would not do again is refused, with what to do") {
  TestMesh mesh(1, 2, "", 2);
  const Bank bank(mesh);
  const Shape s = shape({1, 1, 32, 32});
  const mr_handle x = mesh.alloc(s), before = mesh.record();
  mesh.sync();
  Captured trace(mesh);
  const auto refused = [&](const char* call, const std::function<int32_t(mr_error*)>& f) {
    CAPTURE(call);
    mr_error e = fresh_error();
    CHECK(f(&e) == MR_REJECTED);
    const Answer a{e.code, e.message};
    CHECK_MESSAGE(a.says(call), a.text);
    CHECK_MESSAGE(a.says("while a trace is captured"), a.text);
    CHECK_MESSAGE(a.says("prewarm"), a.text);
  };
  const mr_handle m = mesh.handle();
  mr_handle h = 0;
  const mr_tensor_spec sp = spec(s);
  mr_distribution all{};
  all.size = sizeof all;
  std::vector<uint16_t> data(1024);
  refused("tensor_alloc: allocation", [&](mr_error* e) { return driver().tensor_alloc(m, &sp, &h, e); });
  refused("semaphores_create: allocation", [&](mr_error* e) { return driver().semaphores_create(m, 1, 0, &h, e); });
  refused("semaphores_reset", [&](mr_error* e) { return driver().semaphores_reset(m, bank.s.data(), 1, 0, e); });
  refused("tensor_write", [&](mr_error* e) { return driver().tensor_write(m, x, &all, data.data(), 2048, 0, e); });
  refused("tensor_read", [&](mr_error* e) { return driver().tensor_read(m, x, 0, 0, data.data(), 2048, e); });
  refused("event_record", [&](mr_error* e) { return driver().event_record(m, 0, &h, e); });
  refused("event_wait_on", [&](mr_error* e) { return driver().event_wait_on(m, 1, before, e); });
  refused("trace_execute", [&](mr_error* e) { return driver().trace_execute(m, trace.handle, 0, 1, e); });

  mr_error e = fresh_error();
  CHECK(driver().trace_begin(m, 1, &h, &e) == MR_REJECTED);
  CHECK(Answer{e.code, e.message}.says("captured on queue 0 already"));
  auto op = all_gather_op(x, 3, 1, false, bank);
  op.h.queue = 1;
  CHECK(mesh.try_enqueue(op).says("queue is 1: a trace is captured on queue 0"));
  op.h.queue = 0;
  op.dim = 9;
  CHECK(mesh.try_enqueue(op).code == MR_REJECTED);  // checked as ever
  bool done = false;
  CHECK(mesh.query(before, done).code == MR_OK);  // an old event may be asked
  CHECK(done);

  // Freed while it is captured: abandoned, and all is as before.
  CHECK(trace.release().code == MR_OK);
  CHECK(trace.end().code == MR_STALE_HANDLE);
  CHECK(mesh.alloc(s) != 0);
  mesh.sync();
}

TEST_CASE("what a trace names keeps its memory until the trace is freed") {
  TestMesh mesh(1, 4, "clock=lockstep");
  const Shape s = shape({1, 1, 32, 128});
  const Bank bank(mesh), other_bank(mesh);
  const mr_handle x = mesh.alloc(s);
  const auto values = random_floats(4, s, 3, true);
  mesh.write(x, s, bf16(values));
  mesh.sync();
  const uint64_t empty = number(mesh, "dram_live_bytes"), l1 = number(mesh, "l1_live_bytes");
  Captured trace(mesh);
  auto first = reduce_scatter_op(x, 3, 1, true, bank);
  mesh.enqueue(first);
  auto second = reduce_scatter_op(x, 3, 1, true, other_bank);
  mesh.enqueue(second);
  CHECK(trace.end().code == MR_OK);
  // Two results, and one scratch for both, which run one behind the other.
  CHECK(number(mesh, "dram_live_bytes") == empty + 2 * 2048 + 8192);
  mesh.free_tensor(x);
  mesh.free_tensor(first.output);
  mr_error e = fresh_error();
  for (const Bank* b : {&bank, &other_bank}) REQUIRE(driver().semaphores_free(mesh.handle(), b->s.data(), 4, &e) == MR_OK);
  CHECK(number(mesh, "dram_live_bytes") == empty + 2 * 2048 + 8192);
  CHECK(number(mesh, "l1_live_bytes") == l1);
  const mr_handle other = mesh.alloc(s);  // somebody else's
  mesh.write(other, s, bf16(random_floats(4, s, 4, true)));
  CHECK(trace.execute(1).code == MR_OK);
  mesh.sync();
  std::vector<float> sum(4096);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = values[0][i] + values[1][i] + values[2][i] + values[3][i];
  const auto got = widened(mesh.read<uint16_t>(second.output, 2));
  const auto expected = slice_of(sum, s, 3, 4, 2);
  for (size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - expected[i]) < 0.02f);
  mesh.free_tensor(second.output);
  mesh.free_tensor(other);
  CHECK(trace.release().code == MR_OK);
  CHECK(number(mesh, "dram_live_bytes") == empty - 8192);
  CHECK(number(mesh, "l1_live_bytes") < l1);
  CHECK(number(mesh, "traces_live") == 0);
}

TEST_CASE("handles of traces: stale, foreign, of another kind, ended twice") {
  TestMesh mesh(1, 2), other(1, 2);
  Captured trace(mesh);
  CHECK(trace.end().code == MR_OK);
  CHECK(trace.end().code == MR_REJECTED);
  CHECK(trace.execute(1).code == MR_OK);  // of nothing
  mr_error e = fresh_error();
  CHECK(driver().trace_execute(other.handle(), trace.handle, 0, 1, &e) == MR_STALE_HANDLE);
  CHECK(driver().trace_execute(mesh.handle(), mesh.alloc(shape({4})), 0, 1, &e) == MR_STALE_HANDLE);
  CHECK(driver().trace_execute(mesh.handle(), trace.handle, 3, 1, &e) == MR_INVALID_ARGUMENT);
  CHECK(driver().trace_begin(mesh.handle(), 3, &trace.handle, &e) == MR_INVALID_ARGUMENT);
  CHECK(trace.release().code == MR_OK);
  for (const Answer& a : {trace.release(), trace.execute(1), trace.end()}) {
    CHECK(a.code == MR_STALE_HANDLE);
    CHECK_MESSAGE(a.says("is not a live trace of this mesh"), a.text);
  }
  Captured open(mesh);  // closing a mesh that captures is clean
  mesh.close();
}

TEST_CASE("a trace costs the host one launch, the devices a short gap before each") {
  constexpr uint32_t kLaunches = 20;
  const auto run = [&](bool traced) {
    TestMesh mesh(1, 1, "clock=lockstep\nmode=timing");
    const mr_handle x = mesh.alloc(shape({1, 1, 32, 32}));
    mesh.sync();
    uint64_t begin = 0, end = 0;
    mr_error e = fresh_error();
    const auto enqueue = [&] {
      for (uint32_t i = 0; i < kLaunches; ++i) {
        auto op = make_op<mr_activation>(MR_OP_ACTIVATION);
        op.input = x;
        op.kind = MR_ACT_SILU;
        mesh.enqueue(op);
      }
    };
    if (!traced) {
      extension().clock_now(mesh.handle(), &begin, &e);
      enqueue();
      extension().clock_now(mesh.handle(), &end, &e);
      return std::pair{end - begin, (mesh.sync(), virtual_ns(mesh, 1, kLaunches))};
    }
    Captured trace(mesh);
    enqueue();
    trace.end();
    extension().clock_now(mesh.handle(), &begin, &e);
    trace.execute(1);
    extension().clock_now(mesh.handle(), &end, &e);
    return std::pair{end - begin, (mesh.sync(), virtual_ns(mesh, 1, kLaunches))};
  };
  const auto eager = run(false), traced = run(true);
  CHECK(traced.first * kLaunches == eager.first);
  CHECK(traced.second < eager.second);
}

TEST_CASE("a replay of which one step is refused launches none") {
  TestMesh mesh(1, 2, "clock=lockstep");
  const Shape s = shape({1, 1, 32, 64});
  const Bank a(mesh), b(mesh);
  const mr_handle x = mesh.alloc(s);
  mesh.sync();
  Captured trace(mesh);
  for (const Bank* bank : {&a, &b}) {
    auto op = all_gather_op(x, 3, 1, false, *bank);
    mesh.enqueue(op);
  }
  REQUIRE(trace.end().code == MR_OK);
  mesh.sync();
  mr_error e = fresh_error();
  REQUIRE(driver().semaphores_reset(mesh.handle(), b.s.data(), 4, 0, &e) == MR_OK);
  uint64_t before = 0, after = 0;
  extension().clock_now(mesh.handle(), &before, &e);
  const Answer refused = trace.execute(0);
  CHECK(refused.code == MR_HAZARD);
  CHECK_MESSAGE(refused.says("launch 2 (all_gather, stream 0): names "), refused.text);
  CHECK(mesh.report().find("\"stats\":{\"launches\":0,") != std::string::npos);
  extension().clock_now(mesh.handle(), &after, &e);
  CHECK(before == after);
}
