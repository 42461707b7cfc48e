// The ABI's line: handles, threads, versions, refusals.
#include "collectives.h"

using namespace meshrun::test;

namespace {

Answer open_answer(uint32_t rows, uint32_t cols, const char* config, uint32_t queues = 1) {
  mr_open_options o{};
  o.size = sizeof o;
  o.rows = rows;
  o.cols = cols;
  o.queues = queues;
  o.config = config;
  mr_handle mesh = 0;
  mr_error e = fresh_error();
  if (driver().open(&o, &mesh, &e) == MR_OK) {
    mr_error ignored = fresh_error();
    driver().close(mesh, &ignored);
  }
  return {e.code, e.message};
}

}  // namespace

TEST_CASE("open: bad options are refused, naming key, value and rule") {
  const struct {
    uint32_t rows, cols;
    const char* config;
    const char* says;
  } cases[] = {
      {1, 4, "colour=red", "config colour=red: unknown key"},
      {1, 4, "num_links=0", "config num_links=0: must be 1..16"},
      {1, 4, "num_links=-1", "config num_links=-1: must be a whole number"},
      {1, 4, "num_links=two", "must be a whole number"},
      {1, 4, "num_links=", "must be a whole number"},
      {1, 4, "mode=fast", "config mode=fast: must be functional or timing"},
      {1, 4, "clock=wall", "must be free or lockstep"},
      {1, 4, "rounding=never", "must be once or per_hop"},
      {1, 4, "chunk_bytes=6", "multiple of 4"},
      {1, 4, "threads=0", "must be 1..64"},
      {1, 4, "threads", "a line must be key=value"},
      {0, 4, "", "rows is 0"},
      {1, 65, "", "cols is 65"},
      {1, 4, "preset=wh-galaxy-9x9", "no such preset"},
      {1, 4, "preset=wh-galaxy-4x8", "mesh is 1x4, but preset wh-galaxy-4x8 is 4x8"},
      {0, 0, "preset=bh-galaxy-4x8\nnum_links=3", "axis 0 of preset bh-galaxy-4x8 has 2"},
      {0, 0, "preset=bh-galaxy-4x8\ngrid_x=3", "fixes the grid at 12x10"},
  };
  for (const auto& c : cases) {
    const Answer a = open_answer(c.rows, c.cols, c.config);
    CAPTURE(c.config);
    CHECK(a.code == MR_INVALID_ARGUMENT);
    CHECK_MESSAGE(a.says(c.says), a.text);
  }
  CHECK(open_answer(1, 4, "", 0).says("queues is 0"));
  CHECK(open_answer(1, 4, "", 3).says("queues is 3"));
  CHECK(open_answer(4, 8, "preset=bh-galaxy-4x8").code == MR_OK);
  CHECK(open_answer(1, 4, "\n\nseed=3\n").code == MR_OK);
}

TEST_CASE("info, presets") {
  mr_open_options o{};
  o.size = sizeof o;
  o.queues = 2;
  o.config = "preset=wh-galaxy-4x8";
  mr_handle mesh = 0;
  mr_error e = fresh_error();
  REQUIRE(driver().open(&o, &mesh, &e) == MR_OK);
  mr_mesh_info i{};
  i.size = sizeof i;
  REQUIRE(driver().info(mesh, &i, &e) == MR_OK);
  CHECK(i.rows == 4);
  CHECK(i.cols == 8);
  CHECK(i.queues == 2);
  CHECK(i.links[0] == 4);
  CHECK(i.wrap[1] == 1);
  CHECK(std::string(i.name) == "wh-galaxy-4x8");
  CHECK(std::string(i.arch) == "wormhole_b0");
  CHECK(i.dram_bytes == uint64_t{12} << 30);
  driver().close(mesh, &e);

  uint64_t needed = 0;
  REQUIRE(extension().presets(nullptr, 0, &needed, &e) == MR_OK);
  std::string json(needed, 'x');
  REQUIRE(extension().presets(json.data(), needed, &needed, &e) == MR_OK);
  CHECK(json.find("{\"name\":\"bh-quad-galaxy-4x32\",\"arch\":\"blackhole\",\"mesh\":[4,32]") != std::string::npos);
  CHECK(json.back() == '\0');
  char small[8];
  REQUIRE(extension().presets(small, sizeof small, &needed, &e) == MR_OK);
  CHECK(std::strlen(small) == 7);
  CHECK(driver().extension("meshrun.emulator.2") == nullptr);
}

TEST_CASE("axes: a wrap-around link exists only on axes longer than two") {
  TestMesh mesh(2, 4);
  mr_mesh_info i{};
  i.size = sizeof i;
  mr_error e = fresh_error();
  driver().info(mesh.handle(), &i, &e);
  CHECK(i.wrap[0] == 0);
  CHECK(i.wrap[1] == 1);
  const Bank bank(mesh);
  const mr_handle x = mesh.alloc(shape({1, 1, 32, 32}));
  auto op = all_gather_op(x, 0, 0, true, bank);
  CHECK(mesh.try_enqueue(op).says("axis 0 has length 2"));
  TestMesh line(0, 0, "preset=wh-t3000-2x4");
  const Bank b(line);
  auto ring = all_gather_op(line.alloc(shape({1, 1, 32, 32})), 0, 1, true, b);
  CHECK(line.try_enqueue(ring).says("axis 1 has no wrap-around link"));
}

TEST_CASE("collectives: every refusal names what is wrong, and changes nothing") {
  TestMesh mesh(1, 4, "num_links=2");
  const Bank bank(mesh);
  const Shape s = shape({1, 1, 32, 64});
  const mr_handle x = mesh.alloc(s), flat = mesh.alloc(shape({32, 64}));
  const std::string before = mesh.report();
  const auto gather = [&](auto change, const char* says, int32_t code = MR_REJECTED) {
    auto op = all_gather_op(x, 3, 1, true, bank);
    change(op);
    const mr_handle given = op.output;
    const Answer a = mesh.try_enqueue(op);
    CHECK(a.code == code);
    CHECK_MESSAGE(a.says(says), a.text);
    CHECK(a.says("all_gather"));
    CHECK(op.output == given);
  };
  gather([](mr_all_gather& o) { o.dim = 4; }, "dim is 4: must be 0..3");
  gather([](mr_all_gather& o) { o.axis = 2; }, "axis is 2: must be 0..1");
  gather([](mr_all_gather& o) { o.num_links = 0; }, "num_links is 0");
  gather([](mr_all_gather& o) { o.num_links = 3; }, "num_links is 3: axis 1 has 2");
  gather([](mr_all_gather& o) { o.topology = 0; }, "topology is 0");
  gather([](mr_all_gather& o) { o.barrier = 0; }, "needs a persistent output or a barrier");
  gather([](mr_all_gather& o) { o.semaphores[1] = 0; }, "semaphores is 0");
  gather([](mr_all_gather& o) { o.semaphores[1] = o.semaphores[0]; }, "must be different");
  gather([](mr_all_gather& o) { o.barrier = o.semaphores[0]; }, "must be different");
  gather([](mr_all_gather& o) { o.input = 0; }, "input is 0");
  gather([](mr_all_gather& o) { o.input = o.semaphores[0]; }, "not a live tensor", MR_STALE_HANDLE);
  gather([&](mr_all_gather& o) { o.barrier = x; }, "not a live semaphore", MR_STALE_HANDLE);
  gather([&](mr_all_gather& o) { o.output = x; }, "must be [1,1,32,256]");
  gather([](mr_all_gather& o) { o.h.present = 8; }, "mean nothing here");
  gather(
      [](mr_all_gather& o) {
        o.h.present = MR_HAS_CHUNKS_PER_SYNC;
        o.chunks_per_sync = 0;
      },
      "chunks_per_sync is 0");
  gather([](mr_all_gather& o) { o.h.queue = 1; }, "queue is 1", MR_INVALID_ARGUMENT);
  gather([](mr_all_gather& o) { o.h.size = 64; }, "size is 64", MR_INVALID_ARGUMENT);
  gather([&](mr_all_gather& o) { o.input = flat; }, "rank 4");

  const auto scatter = [&](auto change, const char* says, int32_t code = MR_REJECTED) {
    auto op = reduce_scatter_op(x, 3, 1, true, bank);
    change(op);
    const Answer a = mesh.try_enqueue(op);
    CHECK(a.code == code);
    CHECK_MESSAGE(a.says(says), a.text);
    CHECK(a.says("reduce_scatter"));
  };
  scatter([](mr_reduce_scatter& o) { o.dim = 1; }, "dim 1 of input [1,1,32,64] is not divisible by the 4");
  scatter([](mr_reduce_scatter& o) { o.barrier = 0; }, "needs a persistent output or a barrier");
  scatter([](mr_reduce_scatter& o) { o.memory = 0; }, "memory is 0");
  scatter([](mr_reduce_scatter& o) { o.semaphores[2] = o.barrier; }, "must be different");
  scatter([&](mr_reduce_scatter& o) { o.intermediate = x; }, "shares its memory");
  scatter([&](mr_reduce_scatter& o) { o.output = x; }, "must be [1,1,32,16]");
  mr_op_header nothing{};
  nothing.size = sizeof nothing;
  nothing.op = MR_OP_END;
  mr_error e = fresh_error();
  CHECK(driver().enqueue(mesh.handle(), &nothing, &e) == MR_UNSUPPORTED);
  CHECK(mesh.report() == before);
  mesh.free_tensor(flat);
  gather([&](mr_all_gather& o) { o.input = flat; }, "not a live tensor", MR_STALE_HANDLE);
  int32_t supported = 0;
  for (uint32_t op = 1; op <= MR_OP_CONVERT; ++op) {
    CHECK(driver().op_supported(op, &supported, &e) == MR_OK);
    CHECK(supported == 1);
  }
  driver().op_supported(MR_OP_END, &supported, &e);
  CHECK(supported == 0);
}

TEST_CASE("handles: stale, of the wrong kind, of another mesh, twice in a batch") {
  TestMesh a(1, 2), b(1, 2);
  const mr_handle x = a.alloc(shape({1, 1, 4, 4}));
  mr_error e = fresh_error();
  mr_tensor_spec s{};
  s.size = sizeof s;
  CHECK(driver().tensor_info(b.handle(), x, &s, &e) == MR_STALE_HANDLE);
  CHECK(driver().tensor_info(a.handle(), x, &s, &e) == MR_OK);
  const mr_handle twice[] = {x, x};
  CHECK(driver().tensor_free(a.handle(), twice, 2, &e) == MR_INVALID_ARGUMENT);
  CHECK(driver().tensor_info(a.handle(), x, &s, &e) == MR_OK);
  a.free_tensor(x);
  CHECK(driver().tensor_free(a.handle(), &x, 1, &e) == MR_STALE_HANDLE);
  const mr_handle again = a.alloc(shape({1, 1, 4, 4}));
  CHECK(again != x);
  CHECK(driver().tensor_info(a.handle(), x, &s, &e) == MR_STALE_HANDLE);
  for (const mr_handle junk : {mr_handle{0}, ~mr_handle{0}, mr_handle{1} << 32, again + 1, again ^ (mr_handle{1} << 40)}) {
    CHECK(driver().tensor_info(a.handle(), junk, &s, &e) == MR_STALE_HANDLE);
    CHECK(driver().info(junk, nullptr, &e) == MR_STALE_HANDLE);
  }
  const auto sems = a.semaphores(2);
  CHECK(driver().semaphores_free(a.handle(), sems.data(), 2, &e) == MR_OK);
  CHECK(driver().semaphores_reset(a.handle(), sems.data(), 1, 0, &e) == MR_STALE_HANDLE);
  const mr_handle event = a.record();
  a.free_event(event);
  bool done = false;
  CHECK(a.query(event, done).code == MR_STALE_HANDLE);
  const mr_handle mesh = a.handle();
  a.close();
  CHECK(driver().close(mesh, &e) == MR_STALE_HANDLE);
  CHECK(driver().tensor_info(mesh, again, &s, &e) == MR_STALE_HANDLE);
}

TEST_CASE("threads: only the one that opened the mesh may use it") {
  TestMesh mesh(1, 2);
  std::thread([&] {
    mr_error e = fresh_error();
    mr_mesh_info i{};
    i.size = sizeof i;
    CHECK(driver().info(mesh.handle(), &i, &e) == MR_WRONG_THREAD);
    CHECK(std::string(e.message).find("another thread") != std::string::npos);
    CHECK(driver().close(mesh.handle(), &e) == MR_WRONG_THREAD);
    uint64_t now = 0;
    CHECK(extension().clock_now(mesh.handle(), &now, &e) == MR_WRONG_THREAD);
  }).join();
  // Many at once, while the owner goes on and closes.
  std::vector<std::thread> others;
  std::atomic<bool> stop{false};
  const mr_handle handle = mesh.handle();
  for (int i = 0; i < 3; ++i)
    others.emplace_back([&] {
      while (!stop) {
        mr_error e = fresh_error();
        const int32_t code = driver().tensor_free(handle, nullptr, 0, &e);
        if (code != MR_WRONG_THREAD && code != MR_STALE_HANDLE) std::abort();
      }
    });
  for (int i = 0; i < 50; ++i) mesh.alloc(shape({1, 1, 4, 4}));
  mesh.close();
  stop = true;
  for (auto& t : others) t.join();
}

TEST_CASE("null and short arguments are errors") {
  TestMesh mesh(1, 2);
  mr_error e = fresh_error();
  CHECK(driver().open(nullptr, nullptr, &e) == MR_INVALID_ARGUMENT);
  CHECK(driver().tensor_alloc(mesh.handle(), nullptr, nullptr, &e) == MR_INVALID_ARGUMENT);
  CHECK(driver().enqueue(mesh.handle(), nullptr, &e) == MR_INVALID_ARGUMENT);
  CHECK(driver().info(mesh.handle(), nullptr, &e) == MR_INVALID_ARGUMENT);
  CHECK(driver().info(mesh.handle(), nullptr, nullptr) == MR_INVALID_ARGUMENT);  // nowhere to put the message
  mr_mesh_info old{};
  old.size = 8;
  CHECK(driver().info(mesh.handle(), &old, &e) == MR_INVALID_ARGUMENT);
  mr_error tiny{};
  tiny.size = offsetof(mr_error, message) + 4;
  CHECK(driver().info(mesh.handle(), &old, &tiny) == MR_INVALID_ARGUMENT);
  CHECK(std::strlen(tiny.message) == 3);
  CHECK(driver().trace_begin(mesh.handle(), 0, nullptr, &e) == MR_INVALID_ARGUMENT);
}

TEST_CASE("tensor specs: what cannot be is refused") {
  TestMesh mesh(1, 1);
  const auto refused = [&](auto change, const char* says) {
    mr_tensor_spec s = spec(shape({1, 1, 32, 32}));
    change(s);
    mr_handle h = 0;
    mr_error e = fresh_error();
    CHECK(driver().tensor_alloc(mesh.handle(), &s, &h, &e) == MR_INVALID_ARGUMENT);
    CHECK_MESSAGE(std::string(e.message).find(says) != std::string::npos, e.message);
  };
  refused([](mr_tensor_spec& s) { s.rank = 0; }, "rank is 0: must be 1..8");
  refused([](mr_tensor_spec& s) { s.rank = 9; }, "rank is 9");
  refused([](mr_tensor_spec& s) { s.dims[2] = 0; }, "dims[2] is 0");
  refused([](mr_tensor_spec& s) { s.dtype = 8; }, "dtype is 8");
  refused([](mr_tensor_spec& s) { s.layout = 0; }, "layout is 0");
  refused([](mr_tensor_spec& s) { s.memory = 3; }, "memory is 3");
  refused([](mr_tensor_spec& s) { s.flags = 2; }, "flags is 2");
  refused([](mr_tensor_spec& s) { s.dims[0] = s.dims[1] = s.dims[2] = s.dims[3] = UINT32_MAX; }, "too large");
  refused([](mr_tensor_spec& s) { s.shard_rows = 1; }, "only a tensor in L1");
  refused(
      [](mr_tensor_spec& s) {
        s.dtype = MR_BFLOAT8_B;
        s.layout = MR_ROW_MAJOR;
      },
      "must be in tile layout");
}

TEST_CASE("distribution: replicated, cut by one axis or both") {
  TestMesh mesh(2, 3);
  const Shape s = shape({2, 3, 4});
  const auto write = [&](mr_handle h, mr_distribution d, const std::vector<float>& data) {
    d.size = sizeof d;
    mr_error e = fresh_error();
    REQUIRE_MESSAGE(driver().tensor_write(mesh.handle(), h, &d, data.data(), data.size() * 4, 0, &e) == MR_OK, e.message);
    mesh.sync();
  };
  const auto iota = [](size_t n) {
    std::vector<float> v(n);
    for (size_t i = 0; i < n; ++i) v[i] = static_cast<float>(i);
    return v;
  };
  const mr_handle h = mesh.alloc(s, DType::float32);
  write(h, {0, 0, {0, 0}}, iota(24));
  for (uint32_t d = 0; d < 6; ++d) CHECK(mesh.read<float>(h, d) == iota(24));
  // axis 0 cuts dim 1, axis 1 cuts dim 2: the whole is [2,6,12]
  write(h, {0, 3, {1, 2}}, iota(2 * 6 * 12));
  for (uint32_t d = 0; d < 6; ++d) {
    std::vector<float> expected;
    for (uint32_t i = 0; i < 2; ++i)
      for (uint32_t j = 0; j < 3; ++j)
        for (uint32_t k = 0; k < 4; ++k) expected.push_back(static_cast<float>((i * 6 + d / 3 * 3 + j) * 12 + d % 3 * 4 + k));
    CHECK(mesh.read<float>(h, d) == expected);
  }
  // both cut dim 0: axis 0 coarsely, axis 1 finely
  write(h, {0, 3, {0, 0}}, iota(6 * 24));
  for (uint32_t d = 0; d < 6; ++d) CHECK(mesh.read<float>(h, d)[0] == static_cast<float>(d * 24));
  mr_error e = fresh_error();
  mr_distribution d{sizeof(mr_distribution), 1, {3, 0}};
  float data[48];
  CHECK(driver().tensor_write(mesh.handle(), h, &d, data, sizeof data, 0, &e) == MR_INVALID_ARGUMENT);
  d.dim[0] = 0;
  CHECK(driver().tensor_write(mesh.handle(), h, &d, data, 100, 0, &e) == MR_INVALID_ARGUMENT);
  CHECK(std::string(e.message).find("takes 192") != std::string::npos);
}

TEST_CASE("views share memory, and the memory goes with the last of them") {
  TestMesh mesh(1, 2, "dram_bytes=8192");
  const Shape s = shape({1, 1, 32, 32});
  const auto x = random_shards<uint16_t>(2, s, 1);
  const mr_handle t = mesh.upload(s, DType::bfloat16, x);
  mr_handle view = 0;
  mr_error e = fresh_error();
  const uint32_t dims[] = {32, 32};
  REQUIRE(driver().tensor_view(mesh.handle(), t, 2, dims, &view, &e) == MR_OK);
  CHECK(mesh.read<uint16_t>(view, 1) == x[1]);
  mr_handle front = 0;
  const uint32_t fewer[] = {3, 2, 16};
  REQUIRE(driver().tensor_view(mesh.handle(), t, 3, fewer, &front, &e) == MR_OK);
  CHECK(mesh.read<uint16_t>(front, 1) == std::vector<uint16_t>(x[1].begin(), x[1].begin() + 96));
  mesh.free_tensor(front);
  const uint32_t more[] = {33, 32};
  CHECK(driver().tensor_view(mesh.handle(), t, 2, more, &view, &e) == MR_INVALID_ARGUMENT);
  mesh.free_tensor(t);
  CHECK(mesh.report().find("\"dram_live_bytes\":2048") != std::string::npos);
  CHECK(mesh.read<uint16_t>(view, 0) == x[0]);
  mesh.free_tensor(view);
  CHECK(mesh.report().find("\"dram_live_bytes\":0,\"dram_peak_bytes\":2048") != std::string::npos);
}

TEST_CASE("memory: capacity counts padded tiles; L1 counts per core") {
  TestMesh mesh(1, 2, "dram_bytes=10000\nl1_bytes=1024\ngrid_x=2\ngrid_y=2");
  const mr_handle one = mesh.alloc(shape({1, 1, 1, 1}));  // a whole tile
  CHECK(mesh.report().find("\"dram_live_bytes\":2048") != std::string::npos);
  mr_tensor_spec s = spec(shape({1, 1, 33, 64}));
  mr_handle h = 0;
  mr_error e = fresh_error();
  CHECK(driver().tensor_alloc(mesh.handle(), &s, &h, &e) == MR_OUT_OF_MEMORY);
  CHECK_MESSAGE(std::string(e.message).find("needs 8192 bytes of DRAM on every device; 2048 of 10000 are live") != std::string::npos, e.message);
  mesh.free_tensor(one);
  CHECK(driver().tensor_alloc(mesh.handle(), &s, &h, &e) == MR_OK);
  // What an operation would allocate is refused before anything is enqueued.
  auto op = make_op<mr_activation>(MR_OP_ACTIVATION);
  op.input = h;
  op.kind = MR_ACT_RELU;
  CHECK(mesh.try_enqueue(op).code == MR_OUT_OF_MEMORY);
  CHECK(op.output == 0);
  CHECK(mesh.report().find("\"tensors_live\":1") != std::string::npos);
  // L1: 64 semaphores fill it, 16 bytes each.
  mesh.semaphores(50);
  mr_handle many[15];
  CHECK(driver().semaphores_create(mesh.handle(), 15, 0, many, &e) == MR_OUT_OF_MEMORY);
  CHECK_MESSAGE(std::string(e.message).find("a semaphore needs 4 bytes of L1 on every core; 1024 of 1024") != std::string::npos, e.message);
  CHECK(driver().semaphores_create(mesh.handle(), 14, 0, many, &e) == MR_OK);
}

TEST_CASE("semaphores: created with a value, reset to one, on every device") {
  for (const char* config : {"", "clock=lockstep"}) {
    TestMesh mesh(2, 2, config);
    const auto s = mesh.semaphores(2, 7);
    for (uint32_t d = 0; d < 4; ++d) CHECK(mesh.value(s[0], d) == 7);
    mr_error e = fresh_error();
    CHECK(driver().semaphores_reset(mesh.handle(), &s[1], 1, 3, &e) == MR_OK);
    for (uint32_t d = 0; d < 4; ++d) {
      CHECK(mesh.value(s[0], d) == 7);
      CHECK(mesh.value(s[1], d) == 3);
    }
  }
}

TEST_CASE("zeroed tensors are zero, also in memory that was used before") {
  TestMesh mesh(1, 2);
  const Shape s = shape({1, 1, 32, 32});
  for (int i = 0; i < 3; ++i) {
    const mr_handle used = mesh.upload(s, DType::bfloat16, random_shards<uint16_t>(2, s, 1));
    mesh.free_tensor(used);
    mr_tensor_spec z = spec(s);
    z.flags = MR_ZEROED;
    const mr_handle h = mesh.alloc(z);
    CHECK(mesh.read<uint16_t>(h, 1) == std::vector<uint16_t>(s.elements(), 0));
    mesh.free_tensor(h);
  }
}

TEST_CASE("the ABI: another version is not spoken") {
  CHECK(meshrun_emulator_driver(MR_ABI_VERSION) != nullptr);
  CHECK(meshrun_emulator_driver(1) == nullptr);  // trace_execute took the mesh, the trace and the queue only
  CHECK(meshrun_emulator_driver(MR_ABI_VERSION + 1) == nullptr);
}
