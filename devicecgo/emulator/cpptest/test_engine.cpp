// The engine: queues of launches, devices that drift apart, stops and hangs, the clock, closing.
#include "../arguments.h"
#include "../errors.h"
#include "../one_line.h"
#include "collectives.h"

using namespace meshrun::test;
namespace emu = meshrun::emu;

namespace {

Shape gathered_shape(Shape s, uint32_t dim, uint32_t n) {
  s.dims[dim] *= n;
  return s;
}

}  // namespace

TEST_CASE("many launches in a queue, with two banks in turn, are exact under skew") {
  for (const char* config : {"skew_us=300\nseed=1", "skew_us=300\nseed=2", "skew_us=3000\nseed=3", "skew_us=50\nseed=4\nchunk_bytes=32"}) {
    CAPTURE(config);
    TestMesh mesh(2, 4, config);
    const Bank banks[] = {Bank(mesh), Bank(mesh)}, others[] = {Bank(mesh), Bank(mesh)};
    const Shape s = shape({1, 1, 6, 16});
    std::vector<Shards<uint16_t>> inputs;
    std::vector<mr_handle> outputs;
    // Gathers and scatters of one pool of semaphores and buffers, all persistent: no start barrier.
    mr_handle gather_buffers[] = {mesh.alloc(gathered_shape(s, 2, 4)), mesh.alloc(gathered_shape(s, 2, 4))};
    mr_handle stages[] = {mesh.alloc(gathered_shape(s, 2, 4)), mesh.alloc(gathered_shape(s, 2, 4))};
    mesh.sync();
    for (uint32_t i = 0; i < 40; ++i) {
      const auto x = random_floats(8, s, 100 + i, true);
      inputs.push_back(bf16(x));
      auto gather = all_gather_op(mesh.upload(s, DType::bfloat16, inputs.back()), 2, 1, true, banks[i % 2], false);
      gather.output = gather_buffers[i % 2];
      mesh.enqueue(gather);
      // Each scatter brings back four times the slice that was gathered.
      auto scatter = reduce_scatter_op(gather.output, 2, 1, true, others[i % 2]);
      scatter.barrier = 0;
      scatter.intermediate = stages[i % 2];
      scatter.output = mesh.alloc(s);
      mesh.enqueue(scatter);
      outputs.push_back(scatter.output);
    }
    mesh.sync();
    for (uint32_t i = 0; i < outputs.size(); ++i)
      for (uint32_t d = 0; d < 8; ++d) {
        std::vector<float> expected = widened(inputs[i][d]);
        for (float& v : expected) v *= 4;
        REQUIRE(widened(mesh.read<uint16_t>(outputs[i], d)) == expected);
      }
    for (const Bank& b : banks) CHECK(at_rest(mesh, b));
  }
}

TEST_CASE("one bank for two launches at a time goes wrong, or hangs") {
  // On two queues nothing keeps one launch from taking the other's increments for its own.
  TestMesh mesh(1, 4, "clock=lockstep\nskew_us=100\nseed=5\non_hazard=continue", 2);
  const Bank bank(mesh);
  const Shape s = shape({1, 1, 64, 256});
  const auto x = random_shards<uint16_t>(4, s, 1);
  const mr_handle input = mesh.upload(s, DType::bfloat16, x);
  std::vector<mr_handle> outputs;
  for (uint32_t i = 0; i < 8; ++i) {
    auto op = all_gather_op(input, 3, 1, true, bank, false);
    op.output = mesh.alloc(gathered_shape(s, 3, 4));
    op.h.queue = i % 2;
    mesh.enqueue(op);
    outputs.push_back(op.output);
  }
  bool wrong = false;
  for (const uint32_t queue : {0u, 1u}) wrong = wrong || mesh.fence(queue).code != MR_OK;
  for (const mr_handle output : outputs)
    for (uint32_t d = 0; !wrong && d < 4; ++d) wrong = mesh.read<uint16_t>(output, d) != gathered(x, {0, 1, 2, 3}, s, 3);
  CHECK(wrong);
}

TEST_CASE("a device that lags is waited for") {
  TestMesh mesh(1, 4, "clock=lockstep");
  CHECK(mesh.fault("device 0,2 delay 5ms").code == MR_OK);
  const Bank bank(mesh);
  const Shape s = shape({1, 1, 32, 64});
  const auto x = random_shards<uint16_t>(4, s, 1);
  auto op = all_gather_op(mesh.upload(s, DType::bfloat16, x), 3, 1, true, bank);
  mesh.enqueue(op);
  mesh.sync();
  for (uint32_t d = 0; d < 4; ++d) CHECK(mesh.read<uint16_t>(op.output, d) == gathered(x, {0, 1, 2, 3}, s, 3));
  mr_launch_profile p{};
  p.size = sizeof p;
  mr_error e = fresh_error();
  REQUIRE(extension().launch_profile(mesh.handle(), mesh.last_launch(), &p, &e) == MR_OK);
  CHECK(p.retired == 1);
  CHECK(p.end_ns - p.start_ns > 5'000'000);
  CHECK(p.end_ns - p.start_ns < 6'000'000);
}

TEST_CASE("a stopped device: its line hangs with a report, the other goes on") {
  for (const char* config : {"", "clock=lockstep"}) {
    CAPTURE(config);
    TestMesh mesh(2, 4, config);
    CHECK(mesh.fault(" device  1,2 stop at  launch 3").code == MR_OK);
    const Bank banks[] = {Bank(mesh), Bank(mesh)};
    mr_error e = fresh_error();
    extension().name(mesh.handle(), banks[0].s[0], "ag[1].bank0.0", &e);
    extension().name(mesh.handle(), banks[0].s[3], "barrier[1].bank0", &e);
    const Shape s = shape({1, 1, 32, 64});
    const auto x = random_shards<uint16_t>(8, s, 1);
    const mr_handle input = mesh.upload(s, DType::bfloat16, x);
    for (int i = 0; i < 4; ++i) {
      auto op = all_gather_op(input, 3, 1, true, banks[i % 2]);
      mesh.enqueue(op);
    }
    const Answer a = mesh.fence();
    CHECK(a.code == MR_TIMEOUT);
    CHECK_MESSAGE(a.says("device 1,2 never entered launch 3 (all_gather)"), a.text);
    CHECK(a.says("barrier[1].bank0"));
    const std::string report = mesh.report();
    CHECK_MESSAGE(report.find("\"class\":\"never_entered\",\"device\":[1,2]") != std::string::npos, report);
    CHECK(report.find("\"owed_by\":[[1,2]]") != std::string::npos);
    // Three devices of the line wait; the other line has done all four launches.
    CHECK_MESSAGE(report.find("\"retired_per_device\":[4,4,4,4,2,2,2,2]") != std::string::npos, report);
    CHECK(report.find("\"faults\":[\"device 1,2 stop at launch 3\"]") != std::string::npos);
    // From here on the mesh is lost, and says why.
    const mr_tensor_spec wanted = spec(s);
    mr_handle h = 0;
    CHECK(driver().tensor_alloc(mesh.handle(), &wanted, &h, &e) == MR_DEVICE_LOST);
    CHECK(std::string(e.message).find("never entered launch 3") != std::string::npos);
    CHECK(mesh.close().code == MR_OK);
  }
}

TEST_CASE("a stopped device without peers that wait is a hang too; what came before is done") {
  TestMesh mesh(1, 2);
  CHECK(mesh.fault("device 0,1 stop at launch 2").code == MR_OK);
  const mr_handle x = mesh.upload(shape({1, 1, 4, 4}), DType::float32, random_floats(2, shape({1, 1, 4, 4}), 1, false));
  auto op = make_op<mr_activation>(MR_OP_ACTIVATION);
  op.input = x;
  op.kind = MR_ACT_RELU;
  mesh.enqueue(op);
  const mr_handle first = mesh.record();
  auto next = op;
  next.output = 0;
  mesh.enqueue(next);
  const Answer a = mesh.fence();
  CHECK(a.code == MR_TIMEOUT);
  CHECK_MESSAGE(a.says("device 0,1 never entered launch 2 (activation)"), a.text);
  bool done = false;
  CHECK(mesh.query(first, done).code == MR_DEVICE_LOST);
}

TEST_CASE("an event that was done before the hang is done") {
  TestMesh mesh(1, 2);
  CHECK(mesh.fault("device 0,1 stop at launch 2").code == MR_OK);
  const mr_handle x = mesh.alloc(spec(shape({1, 1, 4, 4}), DType::float32));
  auto op = make_op<mr_activation>(MR_OP_ACTIVATION);
  op.input = x;
  op.kind = MR_ACT_RELU;
  mesh.enqueue(op);
  const mr_handle first = mesh.record();
  auto next = op;
  next.output = 0;
  mesh.enqueue(next);
  bool done = false;
  while (!done) REQUIRE(mesh.query(first, done).code == MR_OK);
  CHECK(mesh.fence().code == MR_TIMEOUT);
}

TEST_CASE("faults are read strictly") {
  TestMesh mesh(2, 4);
  const struct {
    const char* text;
    int32_t code;
    const char* says;
  } cases[] = {
      {"device 1,2 stop at launch 20", MR_OK, ""},
      {"device 0,0 delay 40us", MR_OK, ""},
      {"device 0,0 delay 5ms at launch 7", MR_OK, ""},
      {"device 2,0 stop at launch 1", MR_INVALID_ARGUMENT, "outside the mesh of 2x4"},
      {"device 1 stop at launch 1", MR_INVALID_ARGUMENT, "is no device"},
      {"device 1,2 stop", MR_INVALID_ARGUMENT, "ends where at should stand"},
      {"device 1,2 stop at launch 0", MR_INVALID_ARGUMENT, "whole number from 1"},
      {"device 1,2 stop at launch x", MR_INVALID_ARGUMENT, "whole number from 1"},
      {"device 1,2 stop at launch 1 now", MR_INVALID_ARGUMENT, "\"now\" stands behind the end"},
      {"device 1,2 delay 5", MR_INVALID_ARGUMENT, "no duration"},
      {"device 1,2 delay ms", MR_INVALID_ARGUMENT, "no duration"},
      {"device 1,2 sleep 5ms", MR_INVALID_ARGUMENT, "stands where delay or stop should"},
      {"", MR_INVALID_ARGUMENT, "ends where a fault should stand"},
      {"devise 1,2 stop at launch 1", MR_INVALID_ARGUMENT, "unknown kind"},
      {"device 1,2 shape [1] at launch 3", MR_OK, ""},
      {"device 1,3 shape [1, 2,3 ,4,5,6,7,4294967295] at launch 3", MR_INVALID_ARGUMENT, "too large"},
      {"device 1,3 shape [1, 2,3 ,4,5,6,7,8] at launch 3", MR_OK, ""},
      {"device 1,3 shape [1] at launch 3", MR_INVALID_ARGUMENT, "a device has one shape"},
      {"device 2,0 shape [1] at launch 3", MR_INVALID_ARGUMENT, "device 2,0 is outside the mesh of 2x4"},
      {"device 1,2 shape [1,1,1,1,1,1,1,1,1] at launch 3", MR_INVALID_ARGUMENT, "shape is [1,1,1,1,1,1,1,1,1]: the rank must be 1..8"},
      {"device 1,2 shape [1,0] at launch 3", MR_INVALID_ARGUMENT, "shape is [1,0]: every dim must be at least 1"},
      {"device 1,2 shape [] at launch 3", MR_INVALID_ARGUMENT, "shape is []: must be like [1,1,32,96]"},
      {"device 1,2 shape [1,x] at launch 3", MR_INVALID_ARGUMENT, "shape is [1,x]: must be like [1,1,32,96]"},
      {"device 1,2 shape [1,-2] at launch 3", MR_INVALID_ARGUMENT, "must be like"},
      {"device 1,2 shape [1,2]] at launch 3", MR_INVALID_ARGUMENT, "must be like"},
      {"device 1,2 shape [1,2,] at launch 3", MR_INVALID_ARGUMENT, "must be like"},
      {"device 1,2 shape [1,4294967296] at launch 3", MR_INVALID_ARGUMENT, "must be like"},
      {"device 1,2 shape 1,2 at launch 3", MR_INVALID_ARGUMENT, "must be like"},
      {"device 1,2 shape", MR_INVALID_ARGUMENT, "ends where a shape should stand"},
      {"device 1,2 shape [1,2]", MR_INVALID_ARGUMENT, "ends where at should stand"},
      {"device 1,2 shape [1,2] at launch 0", MR_INVALID_ARGUMENT, "whole number from 1"},
      {"device 1,2 shape [1,2] at launch 3 4", MR_INVALID_ARGUMENT, "\"4\" stands behind the end"},
      {"barrier drop at launch 2", MR_OK, ""},
      {"barrier drop", MR_INVALID_ARGUMENT, "ends where at should stand"},
      {"barrier break at launch 2", MR_INVALID_ARGUMENT, "\"break\" stands where \"drop\" should"},
      {"barrier drop at launch two", MR_INVALID_ARGUMENT, "whole number from 1"},
      {"barrier drop at launch 2 3", MR_INVALID_ARGUMENT, "stands behind the end"},
      {"link 0,0-0,1 down", MR_UNSUPPORTED, "not supported yet"},
      {"increment drop #3 on ag[1].bank0.0", MR_UNSUPPORTED, "not supported yet"},
      {"actor pool ag[1] panic on message 3", MR_UNSUPPORTED, "not supported yet"},
      {"message drop #3 to device", MR_UNSUPPORTED, "not supported yet"},
  };
  for (const auto& c : cases) {
    const Answer a = mesh.fault(c.text);
    CAPTURE(c.text);
    CHECK(a.code == c.code);
    CHECK_MESSAGE(a.says(c.says), a.text);
  }
}

TEST_CASE("two queues: events order them, device by device") {
  TestMesh mesh(1, 4, "", 2);
  const Bank a(mesh), b(mesh);
  const Shape s = shape({1, 1, 8, 8});
  auto x = random_shards<uint16_t>(4, s, 1);
  for (int round = 0; round < 20; ++round) {
    const mr_handle input = mesh.upload(s, DType::bfloat16, x);
    auto first = all_gather_op(input, 2, 1, true, a);
    first.h.queue = 0;
    mesh.enqueue(first);
    const mr_handle event = mesh.record(0);
    mr_error e = fresh_error();
    REQUIRE(driver().event_wait_on(mesh.handle(), 1, event, &e) == MR_OK);
    auto second = all_gather_op(first.output, 3, 1, true, b);
    second.h.queue = 1;
    mesh.enqueue(second);
    mesh.sync(1);
    const Shape g = gathered_shape(s, 2, 4);
    const Shards<uint16_t> once(4, gathered(x, {0, 1, 2, 3}, s, 2));
    for (uint32_t d = 0; d < 4; ++d) CHECK(mesh.read<uint16_t>(second.output, d) == gathered(once, {0, 1, 2, 3}, g, 3));
    mesh.free_event(event);
    x[round % 4][0] = static_cast<uint16_t>(x[round % 4][0] + 1);
  }
}

TEST_CASE("a launch that waits for a semaphore does not hold the cores") {
  TestMesh mesh(1, 2, "clock=lockstep", 2);
  CHECK(mesh.fault("device 0,1 delay 50ms at launch 1").code == MR_OK);
  const Bank bank(mesh);
  const Shape s = shape({1, 1, 32, 32});
  const mr_handle x = mesh.upload(s, DType::bfloat16, random_shards<uint16_t>(2, s, 1));
  auto gather = all_gather_op(x, 3, 1, false, bank);
  mesh.enqueue(gather);
  auto relu = make_op<mr_activation>(MR_OP_ACTIVATION, 1);
  relu.input = x;
  relu.kind = MR_ACT_RELU;
  mesh.enqueue(relu);
  mesh.sync(1);
  uint64_t now = 0;
  mr_error e = fresh_error();
  REQUIRE(extension().clock_now(mesh.handle(), &now, &e) == MR_OK);
  CHECK(now < 10'000'000);  // long before the late device begins its gather
  mesh.sync(0);
  REQUIRE(extension().clock_now(mesh.handle(), &now, &e) == MR_OK);
  CHECK(now > 50'000'000);
}

TEST_CASE("lockstep: times are a function of the calls, real time does not matter") {
  const auto run = [](int seed) {
    TestMesh mesh(2, 4, "clock=lockstep\nskew_us=70\nthreads=3\nseed=" + std::to_string(seed));
    const Bank banks[] = {Bank(mesh), Bank(mesh)};
    const Shape s = shape({1, 1, 33, 64});
    const mr_handle x = mesh.upload(s, DType::bfloat16, random_shards<uint16_t>(8, s, 1));
    std::vector<uint64_t> times;
    mr_error e = fresh_error();
    for (int i = 0; i < 10; ++i) {
      auto op = all_gather_op(x, 3, 1, true, banks[i % 2]);
      mesh.enqueue(op);
      auto relu = make_op<mr_activation>(MR_OP_ACTIVATION);
      relu.input = op.output;
      relu.kind = MR_ACT_RELU;
      mesh.enqueue(relu);
      if (i % 3 == 2) mesh.sync();
      uint64_t now = 0;
      extension().clock_now(mesh.handle(), &now, &e);
      times.push_back(now);
    }
    mesh.sync();
    for (uint64_t n = 1; n <= mesh.last_launch(); ++n) {
      mr_launch_profile p{};
      p.size = sizeof p;
      REQUIRE(extension().launch_profile(mesh.handle(), n, &p, &e) == MR_OK);
      CHECK(p.retired == 1);
      times.push_back(p.start_ns);
      times.push_back(p.end_ns);
    }
    return times;
  };
  const auto first = run(1);
  for (int i = 0; i < 5; ++i) CHECK(run(1) == first);
  CHECK(run(2) != first);
}

TEST_CASE("lockstep: the clock stands still outside of advance, and stops where it is told") {
  TestMesh mesh(1, 2, "clock=lockstep");
  mr_error e = fresh_error();
  const auto now = [&] {
    uint64_t t = 0;
    extension().clock_now(mesh.handle(), &t, &e);
    return t;
  };
  const auto advance = [&](uint64_t until) {
    int32_t state = -1;
    do REQUIRE(extension().clock_advance(mesh.handle(), until, 1000, &state, &e) == MR_OK);
    while (state == MR_CLOCK_BUSY);
    return state;
  };
  CHECK(now() == 0);
  CHECK(advance(UINT64_MAX) == MR_CLOCK_IDLE);
  CHECK(now() == 0);
  CHECK(advance(1000) == MR_CLOCK_PROGRESS);  // nothing to do, but time goes by for whoever sleeps
  CHECK(now() == 1000);
  const mr_handle x = mesh.upload(shape({1, 1, 32, 32}), DType::bfloat16, random_shards<uint16_t>(2, shape({1, 1, 32, 32}), 1));
  auto op = make_op<mr_activation>(MR_OP_ACTIVATION);
  op.input = x;
  op.kind = MR_ACT_RELU;
  mesh.enqueue(op);
  const uint64_t enqueued = now();
  CHECK(enqueued > 1000);  // the host has spent its time on the launch
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(now() == enqueued);
  const mr_handle event = mesh.record();
  bool done = true;
  CHECK(mesh.query(event, done).code == MR_OK);
  CHECK(!done);
  CHECK(advance(enqueued + 10) == MR_CLOCK_PROGRESS);
  CHECK(now() == enqueued + 10);
  CHECK(mesh.query(event, done).code == MR_OK);
  CHECK(!done);
  CHECK(advance(UINT64_MAX) == MR_CLOCK_PROGRESS);
  CHECK(advance(UINT64_MAX) == MR_CLOCK_PROGRESS);  // still not looked at
  const uint64_t at = now();
  CHECK(mesh.query(event, done).code == MR_OK);
  CHECK(done);
  CHECK(advance(UINT64_MAX) == MR_CLOCK_IDLE);
  CHECK(now() == at);
}

TEST_CASE("free clock: clock_advance is refused") {
  TestMesh mesh(1, 2);
  mr_error e = fresh_error();
  int32_t state = 0;
  CHECK(extension().clock_advance(mesh.handle(), 0, 0, &state, &e) == MR_UNSUPPORTED);
}

TEST_CASE("close with work in flight returns soon") {
  for (const char* config : {"", "clock=lockstep", "threads=1", "threads=4"}) {
    CAPTURE(config);
    TestMesh mesh(1, 4, config);
    const Bank banks[] = {Bank(mesh), Bank(mesh)};
    const Shape s = shape({1, 1, 1024, 1024});
    const mr_handle x = mesh.alloc(spec(s)), w = mesh.alloc(spec(shape({1024, 1024})));
    for (int i = 0; i < 20; ++i) {
      auto op = make_op<mr_matmul>(MR_OP_MATMUL);
      op.input = x;
      op.weight = w;
      op.dtype = MR_BFLOAT16;
      mesh.enqueue(op);
      auto gather = all_gather_op(op.output, 3, 1, true, banks[i % 2]);
      mesh.enqueue(gather);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const auto begin = std::chrono::steady_clock::now();
    CHECK(mesh.close().code == MR_OK);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
  }
}

TEST_CASE("open and close, again and again, also two at a time") {
  for (int i = 0; i < 30; ++i) {
    TestMesh a(1, 2), b(2, 1);
    a.alloc(shape({1, 1, 32, 32}));
  }
}

TEST_CASE("a freed tensor's memory lives until the launches that use it are done") {
  TestMesh mesh(1, 4);
  const Bank banks[] = {Bank(mesh), Bank(mesh)};
  const Shape s = shape({1, 1, 16, 16});
  std::vector<Shards<uint16_t>> inputs;
  std::vector<mr_handle> outputs;
  for (uint32_t i = 0; i < 50; ++i) {
    inputs.push_back(random_shards<uint16_t>(4, s, i));
    const mr_handle x = mesh.upload(s, DType::bfloat16, inputs.back());
    auto op = all_gather_op(x, 2, 1, true, banks[i % 2]);
    mesh.enqueue(op);
    mesh.free_tensor(x);  // the next upload may get its memory
    outputs.push_back(op.output);
  }
  mesh.sync();
  for (uint32_t i = 0; i < 50; ++i)
    for (uint32_t d = 0; d < 4; ++d) CHECK(mesh.read<uint16_t>(outputs[i], d) == gathered(inputs[i], {0, 1, 2, 3}, s, 2));
}

TEST_CASE("a write to a tensor in use waits its turn in the queue") {
  TestMesh mesh(1, 2);
  const Shape s = shape({1, 1, 64, 64});
  const auto first = random_floats(2, s, 1, false), second = random_floats(2, s, 2, false);
  const mr_handle x = mesh.upload(s, DType::float32, first);
  auto op = make_op<mr_binary>(MR_OP_BINARY);
  op.a = x;
  op.h.present = MR_HAS_SCALAR;
  op.scalar = 1;
  op.kind = MR_BINARY_MUL;
  std::vector<mr_handle> before, after;
  for (int i = 0; i < 20; ++i) {
    op.output = 0;
    mesh.enqueue(op);
    before.push_back(op.output);
  }
  mesh.write(x, s, second);
  for (int i = 0; i < 20; ++i) {
    op.output = 0;
    mesh.enqueue(op);
    after.push_back(op.output);
  }
  mesh.sync();
  for (uint32_t d = 0; d < 2; ++d)
    for (int i = 0; i < 20; ++i) {
      CHECK(mesh.read<float>(before[i], d) == first[d]);
      CHECK(mesh.read<float>(after[i], d) == second[d]);
    }
}

TEST_CASE("reading what is still to be written is refused, not torn") {
  TestMesh mesh(1, 2, "clock=lockstep");
  const Shape s = shape({1, 1, 4, 4});
  auto op = make_op<mr_activation>(MR_OP_ACTIVATION);
  op.input = mesh.alloc(spec(s, DType::float32));
  op.kind = MR_ACT_RELU;
  mesh.enqueue(op);
  float data[16];
  mr_error e = fresh_error();
  CHECK(driver().tensor_read(mesh.handle(), op.output, 0, 0, data, sizeof data, &e) == MR_REJECTED);
  CHECK(std::string(e.message).find("still to be written") != std::string::npos);
  mesh.sync();
  CHECK(driver().tensor_read(mesh.handle(), op.output, 0, 0, data, sizeof data, &e) == MR_OK);
}

TEST_CASE("timing mode: the same launches without data, in few events") {
  const auto run = [](const char* config, bool data) {
    TestMesh mesh(4, 8, std::string("clock=lockstep\npreset=bh-galaxy-4x8\n") + config);
    const Bank banks[] = {Bank(mesh), Bank(mesh)}, others[] = {Bank(mesh), Bank(mesh)};
    const Shape s = shape({1, 1, 256, 640});
    const mr_handle x = mesh.alloc(s);
    if (data) mesh.write(x, s, random_shards<uint16_t>(32, s, 1));
    for (int i = 0; i < 4; ++i) {
      auto op = all_gather_op(x, 3, 1, true, banks[i % 2], true, 2);
      mesh.enqueue(op);
      auto scatter = reduce_scatter_op(op.output, 3, 1, true, others[i % 2], 2);
      mesh.enqueue(scatter);
    }
    mesh.sync();
    mr_launch_profile p{};
    p.size = sizeof p;
    mr_error e = fresh_error();
    std::vector<double> spans;
    for (uint64_t n = 1; n <= mesh.last_launch(); ++n) {
      extension().launch_profile(mesh.handle(), n, &p, &e);
      spans.push_back(static_cast<double>(p.end_ns - p.start_ns));
    }
    const std::string report = mesh.report();
    const size_t at = report.find("\"events\":");
    return std::pair(spans, std::stoul(report.substr(at + 9)));
  };
  const auto functional = run("", true), timing = run("mode=timing", false);
  REQUIRE(functional.first.size() == timing.first.size());
  for (size_t i = 0; i < timing.first.size(); ++i) {
    CAPTURE(i);
    CHECK(timing.first[i] / functional.first[i] == doctest::Approx(1).epsilon(0.1));
  }
  CHECK(timing.second < 8 * 32 * 80);  // launches x devices x (barrier + steps x links x ways)
}

TEST_CASE("timing mode: reading is refused, models larger than the host are not") {
  TestMesh mesh(4, 8, "mode=timing\ndram_bytes=34359738368");
  const mr_handle x = mesh.alloc(shape({1, 1, 65536, 65536}));  // 8 GiB on each of 32 devices
  mr_error e = fresh_error();
  CHECK(driver().tensor_read(mesh.handle(), x, 0, 0, nullptr, uint64_t{65536} * 65536 * 2, &e) == MR_UNSUPPORTED);
}

TEST_CASE("a launch whose work throws is reported, and poisons nothing else") {
  TestMesh mesh(1, 2);
  const Shape s = shape({1, 1, 4, 4});
  auto op = make_op<mr_activation>(MR_OP_ACTIVATION);
  op.input = mesh.upload(s, DType::float32, random_floats(2, s, 1, false));
  op.kind = MR_ACT_RELU;
  mesh.enqueue(op);
  mesh.sync();
  uint64_t launch = 1;
  mr_error failure = fresh_error(), e = fresh_error();
  CHECK(driver().failure_next(mesh.handle(), &launch, &failure, &e) == MR_OK);
  CHECK(launch == 0);
}

TEST_CASE("an operation that finds no memory leaves nothing behind: no launch, and no use of its semaphores") {
  TestMesh mesh(1, 2, "no_progress_us=1000000\ndram_bytes=59392");
  const Bank bank(mesh), other(mesh);
  const Shape s = shape({1, 1, 32, 32});
  const mr_handle input = mesh.upload(s, DType::bfloat16, random_shards<uint16_t>(2, s, 1)), wide = mesh.alloc(shape({1, 1, 32, 256}));
  mesh.sync();
  auto op = all_gather_op(input, 3, 1, false, bank);
  mesh.enqueue(op);
  mesh.sync();
  for (int i = 0; i < 20; ++i) {
    auto scatter = reduce_scatter_op(wide, 3, 1, false, other);
    const Answer a = mesh.try_enqueue(scatter);
    CHECK_MESSAGE(a.code == MR_OUT_OF_MEMORY, a.text);
    CHECK(scatter.output == 0);
  }
  mr_error e = fresh_error();
  for (const Bank* b : {&bank, &other}) CHECK(driver().semaphores_reset(mesh.handle(), b->s.data(), 4, 0, &e) == MR_OK);
  const Answer a = mesh.fence();
  CHECK_MESSAGE(a.code == MR_OK, a.text);
  CHECK(mesh.report().find("\"hazards\":[]") != std::string::npos);
}

TEST_CASE("a fault at a launch that has been is refused, with how many there were") {
  TestMesh mesh(1, 2, "clock=lockstep");
  const mr_handle x = mesh.alloc(shape({1, 1, 32, 32}));
  mesh.sync();
  for (int i = 0; i < 3; ++i) {
    auto op = make_op<mr_activation>(MR_OP_ACTIVATION);
    op.input = x;
    op.kind = MR_ACT_RELU;
    mesh.enqueue(op);
  }
  const std::string before = mesh.report();
  const std::pair<std::string, std::string> lines[] = {{"device 0,1 stop at launch ", ""},        {"device 0,1 delay 5ms at launch ", ""},
                                                       {"device 0,1 shape [1,1,32,96] at launch ", ""}, {"barrier drop at launch ", ""},
                                                       {"device 0,1 swap launch ", " and 9"},       {"device 0,1 swap launch 9 and ", ""}};
  for (const auto& [head, tail] : lines)
    for (const char* at : {"1", "3"}) {
      const std::string line = head + at + tail;
      CAPTURE(line);
      const Answer a = mesh.fault(line.c_str());
      CHECK(a.code == MR_INVALID_ARGUMENT);
      CHECK_MESSAGE(a.says(("fault \"" + line + "\": launch is " + std::string(at) + ": the mesh has had 3 launches, so it must be at least 4").c_str()), a.text);
    }
  CHECK(mesh.report() == before);
  CHECK(mesh.fault("device 0,1 shape [1,1,32,96] at launch 4").code == MR_OK);
  CHECK(mesh.fault("op activation #1 delay 1ms").code == MR_OK);  // counts from now on
  mesh.sync();
}

TEST_CASE("names are one line, whatever is in them") {
  CHECK(emu::one_line("ag[1].0 Größe 大 \\n") == "ag[1].0 Größe 大 \\n");
  CHECK(emu::one_line("a\nb\r\tc\x1b[2J\x7f") == "a\\nb\\r\\tc\\x1b[2J\\x7f");
  CHECK(emu::one_line("\xc2\x85|\xe2\x80\xa8|\xe2\x80\xa9") == "\\u0085|\\u2028|\\u2029");
  CHECK(emu::one_line("\xff|\xc3|\xc0\x80|\xed\xa0\x80|\xf5\x80\x80\x80") == "\\xff|\\xc3|\\xc0\\x80|\\xed\\xa0\\x80|\\xf5\\x80\\x80\\x80");
  CHECK(emu::one_line("\xf0\x9f\x98\x80\xf0\x9f") == "\xf0\x9f\x98\x80\\xf0\\x9f");

  TestMesh mesh(1, 2);
  const mr_handle x = mesh.alloc(shape({1, 1, 32, 32}));
  mesh.sync();
  const std::vector<mr_handle> unfenced = mesh.unfenced_semaphores(4);
  mr_error e = fresh_error();
  CHECK(extension().name(mesh.handle(), unfenced[0], "bank\nmeshrun: 0", &e) == MR_OK);
  CHECK(extension().name_stream(mesh.handle(), 5, "main\nmeshrun: all is well\xff", &e) == MR_OK);
  const Bank bank(mesh);
  auto op = all_gather_op(x, 3, 1, false, bank);
  op.semaphores[0] = unfenced[0];
  op.h.stream = 5;
  mesh.sync();
  REQUIRE(driver().semaphores_reset(mesh.handle(), unfenced.data(), 1, 0, &e) == MR_OK);
  const Answer a = mesh.try_enqueue(op);
  CHECK(a.code == MR_HAZARD);
  CHECK_MESSAGE(a.says("stream main\\nmeshrun: all is well\\xff): names bank\\nmeshrun: 0, "), a.text);
  CHECK(a.text.find('\n') == std::string::npos);
}

TEST_CASE("a stream that came when there was no room for more names is told by its number") {
  TestMesh mesh(1, 2);
  const mr_handle x = mesh.alloc(shape({1, 1, 32, 32}));
  const Bank bank(mesh);
  mesh.sync();
  mr_error e = fresh_error();
  for (uint32_t i = 1; i <= 70'000; ++i) REQUIRE(extension().name_stream(mesh.handle(), i, ("s" + std::to_string(i)).c_str(), &e) == MR_OK);
  REQUIRE(driver().semaphores_reset(mesh.handle(), bank.s.data(), 4, 0, &e) == MR_OK);
  auto op = all_gather_op(x, 3, 1, false, bank);
  op.h.stream = 69'999;
  const Answer a = mesh.try_enqueue(op);
  CHECK(a.code == MR_HAZARD);
  CHECK_MESSAGE(a.says("(all_gather, stream 69999)"), a.text);
  CHECK(mesh.report().find("\"stream\":\"69999\"") != std::string::npos);
}

TEST_CASE("what an operation was asked for is told whole or not at all") {
  emu::Arguments::Few few;
  few.add(1);
  few.add(2);
  CHECK_THROWS_AS(few.add(3), emu::Error);
}
