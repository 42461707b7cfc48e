// The checker: what it must see, what it must not, and that what it names really goes wrong for some seed when nobody stops it.
#include <functional>

#include "../context.h"
#include "../engine.h"
#include "halos.h"

using namespace meshrun::test;
namespace emu = meshrun::emu;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A program written in the test.
class Script final : public emu::Plan {
 public:
  using Body = std::function<emu::Program(emu::Context&)>;
  Script(const char* name, Body body) : name_(name), body_(std::move(body)) {}
  const char* name() const override { return name_; }
  emu::Program run(emu::Context& ctx) const override { return body_(ctx); }

 private:
  const char* name_;
  Body body_;
};

// An engine without a mesh in front of it. Its clock stands still while the host enqueues, so that what meets what in a test is in
// its programs and nowhere else.
class Bare {
 public:
  explicit Bare(uint32_t cols, uint32_t queues = 1) : engine_(open(cols, queues)), queues_(queues) {}
  emu::Engine& engine() { return engine_; }
  std::unique_ptr<Script> script(const char* name, Script::Body body) { return std::make_unique<Script>(name, std::move(body)); }
  void launch(std::unique_ptr<Script> plan, uint32_t queue = 0) {
    auto launch = engine_.fresh_launch();
    launch->plan = std::move(plan);
    launch->queue = queue;
    launch->number = engine_.number_launch();
    engine_.submit(std::move(launch));
  }
  void launch(const char* name, Script::Body body, uint32_t queue = 0) { launch(script(name, std::move(body)), queue); }
  void fence() {
    for (uint32_t q = 0; q < queues_; ++q) fence(q);
  }
  void fence(uint32_t q) {
    const auto event = engine_.record(q);
    while (!engine_.query(*event)) REQUIRE_MESSAGE(run() != emu::Advance::hang, engine_.hang()->text);
  }
  emu::Advance run() { return engine_.advance(UINT64_MAX, 100'000); }
  // What queue `to` has from here on begins when all that queue `from` has so far is done on the device.
  void follow(uint32_t to, uint32_t from) {
    const auto event = engine_.record(from);
    engine_.wait_on(to, *event);
    engine_.forget(event);
  }
  std::vector<std::string> kinds() {
    uint64_t count = 0;
    std::vector<std::string> k;
    for (const emu::Hazard& h : engine_.hazards(&count)) k.push_back(h.kind + " " + h.resource);
    return k;
  }
  emu::SemaphoreRef semaphore(const char* name) {
    auto s = std::make_shared<emu::Semaphore>(engine_.config().machine.devices(), 0);
    s->name = name;
    return s;
  }
  std::shared_ptr<emu::Storage> memory(const char* name) {
    auto m = std::make_shared<emu::Storage>(&engine_.pool(), engine_.config().machine.devices(), 64);
    m->name = name;
    return m;
  }

 private:
  static emu::Config open(uint32_t cols, uint32_t queues) {
    mr_open_options o{};
    o.size = sizeof o;
    o.rows = 1;
    o.cols = cols;
    o.queues = queues;
    o.config = "clock=lockstep\non_hazard=continue";
    return emu::parse_config(o);
  }
  emu::Engine engine_;
  uint32_t queues_;
};

struct Nothing {
  void operator()(emu::Parallel&) const {}
};

emu::Access all_of(const std::shared_ptr<emu::Storage>& m, uint32_t device, bool write) {
  return {&m->at(device), emu::Region::contiguous(0, 64), write};
}
void use(emu::Context& ctx, const std::shared_ptr<emu::Storage>& m, uint32_t device, bool write) {
  ctx.work({all_of(m, device, write)}, 0, Nothing{});
}
void poke(emu::Context& ctx, uint32_t way, emu::Semaphore& s, uint32_t amount = 1, bool announces = false) {
  const emu::Line line = ctx.line(1);
  ctx.send(ctx.hop(line, way, 0), 32, ctx.now(), emu::Signal{.semaphore = s, .amount = amount, .announces = announces}, std::span<const emu::Access>{}, Nothing{});
}

struct Outcome {
  Answer fence;
  bool wrong = false;
  std::string report;
};

// Persistent gathers one after another, `banks` of them in turn; a product of each result is kept.
struct Gathers {
  uint32_t banks = 2;    // of semaphores
  uint32_t buffers = 2;
  bool fenced = true;
  uint32_t late_reads = 0;  // reads of a result come so many gathers later
  int count = 12;
};

Outcome play(const Gathers& g, const std::string& config, const char* fault = nullptr) {
  TestMesh mesh(1, 4, config);
  if (fault != nullptr) REQUIRE(mesh.fault(fault).code == MR_OK);
  mr_error e = fresh_error();
  const Shape s = shape({1, 1, 4, 16}), whole = shape({1, 1, 4, 64});
  std::vector<std::vector<mr_handle>> banks;
  std::vector<mr_handle> buffers;
  for (uint32_t b = 0; b < g.buffers; ++b) {
    buffers.push_back(mesh.alloc(whole, DType::uint16));
    extension().name(mesh.handle(), buffers[b], ("ag(shape).bank" + std::to_string(b)).c_str(), &e);
  }
  std::vector<Shards<uint16_t>> inputs;
  std::vector<mr_handle> tensors, copies;
  for (int i = 0; i < g.count; ++i) {
    inputs.push_back(random_shards<uint16_t>(4, s, 100 + i));
    tensors.push_back(mesh.upload(s, DType::uint16, inputs.back()));
  }
  mesh.sync();
  for (uint32_t b = 0; b < g.banks; ++b) {
    banks.push_back(g.fenced ? mesh.semaphores(2) : mesh.unfenced_semaphores(2));
    for (uint32_t i = 0; i < 2; ++i)
      extension().name(mesh.handle(), banks[b][i], ("ag[1].bank" + std::to_string(b) + "." + std::to_string(i)).c_str(), &e);
  }
  Outcome o;
  REQUIRE(extension().name_stream(mesh.handle(), 3, "denoise", &e) == MR_OK);
  CHECK(extension().name_stream(mesh.handle(), 3, "", &e) == MR_INVALID_ARGUMENT);
  for (int i = 0; i < g.count; ++i) {
    auto op = make_op<mr_all_gather>(MR_OP_ALL_GATHER);
    op.input = tensors[i];
    op.output = buffers[i % g.buffers];
    op.semaphores[0] = banks[i % g.banks][0];
    op.semaphores[1] = banks[i % g.banks][1];
    op.dim = 3;
    op.axis = 1;
    op.num_links = 1;
    op.topology = MR_RING;
    op.h.stream = 3;
    const Answer a = mesh.try_enqueue(op);
    if (a.code == MR_HAZARD) break;
    REQUIRE_MESSAGE(a.code == MR_OK, a.text);
    if (i < static_cast<int>(g.late_reads)) continue;
    copies.push_back(snapshot(mesh, buffers[(i - g.late_reads) % g.buffers], whole));
  }
  o.fence = mesh.fence();
  o.report = mesh.report();
  for (size_t i = 0; o.fence.code == MR_OK && i < copies.size(); ++i)
    for (uint32_t d = 0; d < 4; ++d) o.wrong = o.wrong || mesh.read<uint16_t>(copies[i], d) != gathered(inputs[i], {0, 1, 2, 3}, s, 3);
  return o;
}

// The checker names it under every seed; without it some seed goes wrong, or hangs.
template <class Play>
void must_matter(Play play, const char* kind, const char* resource) {
  int bad = 0, named = 0;
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    const std::string config = "clock=lockstep\nskew_us=200\nseed=" + std::to_string(seed);
    const Outcome stopped = play(config);
    named += stopped.fence.code == MR_HAZARD && contains(stopped.fence.text, kind) && contains(stopped.fence.text, resource);
    CHECK_MESSAGE(contains(stopped.report, std::string("\"kind\":\"") + kind), stopped.report);
    const Outcome on = play(config + "\non_hazard=continue");
    CHECK(on.fence.code != MR_HAZARD);
    CHECK(contains(on.report, std::string("\"kind\":\"") + kind));
    const Outcome off = play(config + "\nchecker=off");
    bad += off.wrong || off.fence.code != MR_OK;
    CHECK((on.wrong || on.fence.code != MR_OK) == (off.wrong || off.fence.code != MR_OK));  // looking changes nothing
  }
  CHECK(named == 10);
  CHECK(bad > 0);
}

// An operation that begins with a barrier, made ready on a mesh; each call of what `ready` gives enqueues it once.
struct Opening {
  std::string op;
  uint32_t rows, cols;
  const char* late;     // comes 2 ms after the others
  const char* devices;  // the first that is early, and whom it does not wait for
  const char* broken;   // null: the start barrier is dropped; otherwise what is switched off
  std::function<std::function<Answer()>(TestMesh&)> ready;
};

template <class Op>
std::function<Answer()> each_anew(TestMesh& mesh, Op op) {
  return [&mesh, op]() mutable {
    op.output = 0;
    return mesh.try_enqueue(op);
  };
}

std::function<Answer()> ready_gather(TestMesh& mesh, bool ring) {
  const Shape s = shape({1, 1, 4, 16});
  return each_anew(mesh, all_gather_op(mesh.upload(s, DType::uint16, random_shards<uint16_t>(mesh.devices(), s, 1)), 3, 1, ring, Bank(mesh)));
}

std::function<Answer()> ready_scatter(TestMesh& mesh, bool ring) {
  const Shape s = shape({1, 1, 4, 16});
  return each_anew(mesh, reduce_scatter_op(mesh.upload(s, DType::bfloat16, bf16(random_floats(mesh.devices(), s, 1, true))), 3, 1, ring, Bank(mesh)));
}

template <class Op>
std::function<Answer()> ready_parcels(TestMesh& mesh, Op op) {
  const Shape s = shape({4, 3});
  const Bank bank(mesh);
  op.input = upload_rows(mesh, s, DType::bfloat16, random_shards<uint16_t>(mesh.devices(), s, 1));
  op.semaphore = bank.s[0];
  op.barrier = bank.s[3];
  op.axis = 1;
  op.num_links = 1;
  op.topology = MR_LINEAR;
  return each_anew(mesh, op);
}

std::function<Answer()> ready_product(TestMesh& mesh) {
  const Shape in = shape({1, 1, 4, 8}), weight = shape({8, 32});
  const Bank bank(mesh);
  mr_mesh_info info{};
  info.size = sizeof info;
  mr_error e = fresh_error();
  REQUIRE(driver().info(mesh.handle(), &info, &e) == MR_OK);
  const uint32_t cores = info.grid_x * info.grid_y;
  mr_tensor_spec counters = spec(shape({cores, cores}), DType::uint32, MR_ROW_MAJOR);
  counters.memory = MR_L1;
  counters.shard_rows = 1;
  counters.shard_cols = cores;
  auto op = make_op<mr_matmul_strided_reduce_scatter>(MR_OP_MATMUL_STRIDED_REDUCE_SCATTER);
  op.input = mesh.upload(in, DType::float32, random_floats(mesh.devices(), in, 1, false));
  op.weight = mesh.upload(weight, DType::float32, random_floats(mesh.devices(), weight, 2, false));
  op.progress = mesh.alloc(counters);
  std::copy(bank.s.begin(), bank.s.begin() + 3, op.semaphores);
  op.barrier = bank.s[3];
  op.axis = 1;
  op.num_links = 1;
  op.topology = MR_RING;
  return each_anew(mesh, op);
}

const HaloCase kPad1 = {.local = shape({2, 3, 4, 2}), .dims = {1}, .axes = {1}, .left = {1}, .right = {1}};
const HaloCase kPad2 = {.local = shape({2, 3, 4, 2}), .count = 2, .dims = {1, 2}, .axes = {0, 1}, .left = {1, 1}, .right = {1, 1}};

std::function<Answer()> ready_pad(TestMesh& mesh, const HaloCase& c) {
  return each_anew(mesh, neighbor_pad_op(upload_rows(mesh, c.local, DType::uint16, random_shards<uint16_t>(mesh.devices(), c.local, 1)), c, HaloBank(mesh)));
}

mr_handle compact_halo(TestMesh& mesh) { return mesh.alloc(row_major(shape({2 * (2 * 4 + 2 * 5), 2}), DType::bfloat16)); }  // of kPad2

std::function<Answer()> ready_compact(TestMesh& mesh) {
  const mr_handle input = upload_rows(mesh, kPad2.local, DType::bfloat16, random_shards<uint16_t>(mesh.devices(), kPad2.local, 1));
  return [&mesh, op = neighbor_pad_halo_op(input, compact_halo(mesh), kPad2, HaloBank(mesh))]() mutable { return mesh.try_enqueue(op); };
}

std::function<Answer()> ready_conv(TestMesh& mesh) {
  const Shape s = shape({1, 2, 3, 4, 2}), weight = shape({18, 2});
  const HaloBank bank(mesh);
  auto op = make_op<mr_np_conv3d>(MR_OP_NP_CONV3D);
  op.h.present = MR_HAS_W;
  op.input = upload_rows(mesh, s, DType::bfloat16, bf16(random_floats(mesh.devices(), s, 1, true)));
  op.weight = mesh.upload(weight, DType::float32, random_floats(mesh.devices(), weight, 2, false));
  op.halo = compact_halo(mesh);
  op.semaphore_h = bank.neighbor(0);
  op.semaphore_w = bank.neighbor(1);
  op.barrier = bank.barrier(0);
  const auto regions = mesh.semaphores(4);
  std::copy(regions.begin(), regions.end(), op.region);
  op.axis_w = 1;
  op.links = 1;
  for (int i = 0; i < 3; ++i) op.kernel[i] = op.stride[i] = op.dilation[i] = 1;
  op.kernel[1] = op.kernel[2] = 3;
  op.padding[1] = op.padding[2] = 1;
  op.groups = 1;
  op.mode = MR_PAD_ZEROS;
  return each_anew(mesh, op);
}

std::function<Answer()> ready_pair(TestMesh& mesh) {
  auto op = make_op<mr_point_to_point>(MR_OP_POINT_TO_POINT);
  op.count = 1;
  op.to[0] = 1;
  return ready_parcels(mesh, op);
}

std::function<Answer()> ready_reshard(TestMesh& mesh) {
  auto op = make_op<mr_slice_reshard>(MR_OP_SLICE_RESHARD);
  op.offset = 2;
  op.size = 4 * mesh.cols();
  return ready_parcels(mesh, op);
}

const Opening kOpenings[] = {
    {"all_gather", 1, 4, "0,1", "[[0,0],[0,1]]", nullptr, [](TestMesh& m) { return ready_gather(m, false); }},
    {"all_gather", 1, 4, "0,1", "[[0,0],[0,1]]", nullptr, [](TestMesh& m) { return ready_gather(m, true); }},
    {"all_gather", 2, 4, "0,1", "[[0,0],[0,1]]", nullptr, [](TestMesh& m) { return ready_gather(m, true); }},
    {"reduce_scatter", 1, 4, "0,1", "[[0,0],[0,1]]", nullptr, [](TestMesh& m) { return ready_scatter(m, false); }},
    {"reduce_scatter", 1, 4, "0,1", "[[0,0],[0,1]]", nullptr, [](TestMesh& m) { return ready_scatter(m, true); }},
    {"slice_reshard", 1, 4, "0,0", "[[0,0],[0,1]]", nullptr, ready_reshard},
    {"point_to_point", 1, 2, "0,1", "[[0,0],[0,1]]", nullptr, ready_pair},
    {"matmul_strided_reduce_scatter", 1, 4, "0,1", "[[0,0],[0,1]]", nullptr, ready_product},
    {"neighbor_pad", 1, 4, "0,1", "[[0,0],[0,1]]", nullptr, [](TestMesh& m) { return ready_pad(m, kPad1); }},
    {"neighbor_pad", 2, 2, "1,0", "[[0,0],[1,0]]", nullptr, [](TestMesh& m) { return ready_pad(m, kPad2); }},
    {"neighbor_pad", 2, 2, "0,1", "[[0,0],[0,1]]", "no_handshake", [](TestMesh& m) { return ready_pad(m, kPad2); }},
    {"neighbor_pad_halo", 2, 2, "1,0", "[[0,0],[1,0]]", nullptr, ready_compact},
    {"neighbor_pad_halo", 2, 2, "0,1", "[[0,0],[0,1]]", "no_handshake", ready_compact},
    {"np_conv3d", 2, 2, "1,0", "[[0,0],[1,0]]", nullptr, ready_conv},
    {"np_conv3d", 2, 2, "0,1", "[[0,0],[0,1]]", "no_handshake", ready_conv},
};

// What stands in front of the launch in question.
enum class Front { rest, fence, capture };

}  // namespace

TEST_CASE("checker: a wait comes after those increments without which it could not have ended") {
  // Devices 1 and 2 use their memory and then raise a semaphore of device 0, which waits and writes to both.
  const auto play = [](uint32_t target, emu::Owed owed) {
    Bare bare(3);
    const auto s = bare.semaphore("s");
    const auto m = bare.memory("m");
    bare.launch("before", [=](emu::Context& ctx) -> emu::Program {
      use(ctx, m, ctx.device(), false);
      co_return;
    });
    bare.launch("tell", [=](emu::Context& ctx) -> emu::Program {
      if (ctx.device() == 1) poke(ctx, 1, *s);
      if (ctx.device() == 2) poke(ctx, 0, *s);
      if (ctx.device() != 0) co_return;
      co_await ctx.until(ctx.now() + 1'000'000);  // both are there
      co_await ctx.wait(*s, 0, target, owed);
      use(ctx, m, 1, true);
      use(ctx, m, 2, true);
      if (target == 1) co_await ctx.wait(*s, 0, 2, emu::Owed::by_line(1));
      ctx.clear(*s, 0);
    });
    bare.fence();
    return bare.kinds();
  };
  CHECK(play(2, emu::Owed::by_line(1)).empty());
  CHECK(play(1, emu::Owed::by_line(1)) == std::vector<std::string>{"memory_in_use m"});  // either may have come first
}

TEST_CASE("checker: of one sender the first n count, and they say nothing of others") {
  const auto play = [](uint32_t sender) {
    Bare bare(3);
    const auto s = bare.semaphore("s");
    const auto m = bare.memory("m");
    bare.launch("before", [=](emu::Context& ctx) -> emu::Program {
      use(ctx, m, ctx.device(), true);
      co_return;
    });
    bare.launch("tell", [=](emu::Context& ctx) -> emu::Program {
      if (ctx.device() == sender) poke(ctx, sender == 1 ? 1 : 0, *s);
      if (ctx.device() != 0) co_return;
      co_await ctx.wait(*s, 0, 1, emu::Owed::by(sender));
      use(ctx, m, 1, true);
      ctx.clear(*s, 0);
    });
    bare.fence();
    return bare.kinds();
  };
  CHECK(play(1).empty());
  CHECK(play(2) == std::vector<std::string>{"memory_in_use m"});
}

TEST_CASE("checker: programs side by side on a device know only what they have waited for themselves") {
  const auto play = [](bool joined) {
    Bare bare(2);
    const auto s = bare.semaphore("s");
    const auto m = bare.memory("m");
    bare.launch("before", [=](emu::Context& ctx) -> emu::Program {
      use(ctx, m, ctx.device(), false);
      co_return;
    });
    bare.launch("tell", [=](emu::Context& ctx) -> emu::Program {
      if (ctx.device() == 1) {
        poke(ctx, 1, *s);
        co_return;
      }
      const auto waiter = [](emu::Context& c, emu::Semaphore& semaphore) -> emu::Program {
        co_await c.wait(semaphore, 0, 1, emu::Owed::by(1));
        c.clear(semaphore, 0);
      };
      const auto writer = [](emu::Context& c, std::shared_ptr<emu::Storage> memory) -> emu::Program {
        co_await c.until(c.now() + 1'000'000);  // long after the other has heard
        use(c, memory, 1, true);
      };
      emu::Join parts;
      parts.start(waiter(ctx, *s));
      if (!joined) parts.start(writer(ctx, m));
      co_await parts;
      if (joined) co_await writer(ctx, m);
    });
    bare.fence();
    return bare.kinds();
  };
  CHECK(play(true).empty());
  CHECK(play(false) == std::vector<std::string>{"memory_in_use m"});
}

TEST_CASE("checker: an event wait between queues orders one device and says nothing of its peers") {
  const auto play = [](bool wait, bool remote) {
    Bare bare(2, 2);
    const auto m = bare.memory("m");
    bare.launch("write", [=](emu::Context& ctx) -> emu::Program {
      use(ctx, m, ctx.device(), true);
      co_return;
    });
    if (wait) bare.follow(1, 0);
    bare.launch(
        "read",
        [=](emu::Context& ctx) -> emu::Program {
          co_await ctx.until(ctx.now() + 1'000'000);
          use(ctx, m, remote ? 1 - ctx.device() : ctx.device(), remote);
        },
        1);
    bare.fence();
    return bare.kinds();
  };
  CHECK(play(true, false).empty());
  CHECK(play(false, false) == std::vector<std::string>{"memory_in_use m"});
  CHECK(play(true, true) == std::vector<std::string>{"memory_in_use m"});
}

TEST_CASE("checker: what the host has seen done is over everywhere") {
  const auto play = [](bool fence) {
    Bare bare(2);
    const auto m = bare.memory("m");
    bare.launch("read", [=](emu::Context& ctx) -> emu::Program {
      use(ctx, m, ctx.device(), false);
      co_return;
    });
    if (fence) bare.fence();
    bare.launch("write", [=](emu::Context& ctx) -> emu::Program {
      use(ctx, m, 1 - ctx.device(), true);
      co_return;
    });
    bare.fence();
    return bare.kinds();
  };
  CHECK(play(true).empty());
  CHECK(play(false) == std::vector<std::string>{"memory_in_use m"});
}

TEST_CASE("checker: semaphores that are not at rest, and increments that belong to nobody") {
  const auto play = [](uint32_t amount, bool clear, bool late) {
    Bare bare(2);
    const auto s = bare.semaphore("s");
    bare.launch("leave", [=](emu::Context& ctx) -> emu::Program {
      if (ctx.device() == 1) {
        if (late) co_await ctx.until(ctx.now() + 1'000'000);
        poke(ctx, 1, *s, amount);
        co_return;
      }
      if (late) co_return;  // without having waited
      co_await ctx.wait(*s, 0, 1, emu::Owed::by(1));
      if (clear) ctx.clear(*s, 0);
    });
    bare.fence();
    bare.launch("after", [](emu::Context&) -> emu::Program { co_return; });  // what the first has sent is there by its end
    bare.fence();
    std::string all;
    for (const std::string& k : bare.kinds()) all += k + ";";
    return all;
  };
  CHECK(play(1, true, false).empty());
  CHECK(play(1, false, false) == "not_at_rest s;");
  CHECK(play(2, true, false) == "stray_increment s;");
  CHECK(play(1, false, true) == "stray_increment s;");
}

TEST_CASE("checker: that the device itself has come to a launch first hides nothing of a peer that raises its semaphore") {
  const auto play = [](bool device_first, bool told) {
    Bare bare(2);
    const auto s = bare.semaphore("s"), ready = bare.semaphore("ready");
    for (const char* name : {"one", "two"})
      bare.launch(name, [=](emu::Context& ctx) -> emu::Program {
        if (ctx.device() == 1) {
          co_await ctx.until(ctx.now() + 1'000'000);  // in "two" the other is still in "one", but done with the semaphore, or long in "two"
          if (told) {
            co_await ctx.wait(*ready, 0, 1, emu::Owed::by(0));
            ctx.clear(*ready, 0);
          }
          poke(ctx, 1, *s);
          co_return;
        }
        if (told) poke(ctx, 0, *ready);
        co_await ctx.wait(*s, 0, 1, emu::Owed::by(1));
        ctx.clear(*s, 0);
        if (!device_first) co_await ctx.until(ctx.now() + 10'000'000);
      });
    bare.fence();
    return bare.kinds();
  };
  CHECK(play(false, false) == std::vector<std::string>{"semaphore_in_use s"});
  CHECK(play(true, false) == std::vector<std::string>{"semaphore_in_use s"});
  CHECK(play(false, true) == std::vector<std::string>{"semaphore_in_use ready"});  // and who tells needs to be told as well
  CHECK(play(true, true) == std::vector<std::string>{"semaphore_in_use ready"});
}

TEST_CASE("checker: disjoint bytes of one shard are nobody's business") {
  const auto play = [](uint64_t offset) {
    Bare bare(2);
    const auto m = bare.memory("m");
    bare.launch("read", [=](emu::Context& ctx) -> emu::Program {
      ctx.work({emu::Access{&m->at(ctx.device()), emu::Region::contiguous(0, 32), false}}, 0, Nothing{});
      co_return;
    });
    bare.launch("write", [=](emu::Context& ctx) -> emu::Program {
      ctx.work({emu::Access{&m->at(1 - ctx.device()), emu::Region::contiguous(offset, 32), true}}, 0, Nothing{});
      co_return;
    });
    bare.fence();
    return bare.kinds();
  };
  CHECK(play(32).empty());
  CHECK(play(31) == std::vector<std::string>{"memory_in_use m"});
}

TEST_CASE("checker: gathers with two banks are safe under every seed") {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    const Outcome o = play({}, "clock=lockstep\nskew_us=500\nseed=" + std::to_string(seed));
    REQUIRE_MESSAGE(o.fence.code == MR_OK, o.fence.text);
    CHECK(!o.wrong);
    CHECK(contains(o.report, "\"hazards\":[]"));
  }
}

TEST_CASE("checker: one bank instead of two matters") {
  must_matter([](const std::string& config) { return play({.banks = 1, .count = 60}, config); }, "semaphore_in_use", "ag[1].bank0");
}

TEST_CASE("checker: a result read after the next gather of its key but one matters") {
  must_matter([](const std::string& config) { return play({.late_reads = 1}, config); }, "memory_in_use", "ag(shape).bank");
}

TEST_CASE("checker: the fence behind a creation matters") {
  must_matter([](const std::string& config) { return play({.fenced = false, .count = 6}, config, "device 0,2 late allocation 1ms"); }, "not_fenced", "ag[1].bank0.0");
}

TEST_CASE("checker: memory that peers write without a barrier is fenced, also on a mesh at rest") {
  for (const bool fenced : {false, true}) {
    TestMesh mesh(1, 4, "clock=lockstep");
    const Bank bank(mesh);
    const Shape s = shape({1, 1, 4, 16});
    auto op = all_gather_op(mesh.upload(s, DType::uint16, random_shards<uint16_t>(4, s, 1)), 3, 1, true, bank);
    op.barrier = 0;
    mesh.sync();  // the host has seen everything done
    op.output = mesh.alloc(shape({1, 1, 4, 64}), DType::uint16);
    if (fenced) mesh.sync();
    mesh.enqueue(op);
    const Answer a = mesh.fence();
    CHECK(a.code == (fenced ? MR_OK : MR_HAZARD));
    CHECK_MESSAGE(contains(a.text, "made that memory: there was no fence since it was allocated") == !fenced, a.text);
  }
}

TEST_CASE("checker: the report names both launches, the devices, the resource and the time") {
  const Outcome o = play({.banks = 1, .count = 3}, "clock=lockstep\nskew_us=200\nseed=3");
  CHECK(o.fence.code == MR_HAZARD);
  CHECK_MESSAGE(contains(o.report, "\"launches\":[{\"seq\":"), o.report);
  CHECK(contains(o.report, "\"op\":\"all_gather\",\"stream\":\"denoise\""));
  CHECK_MESSAGE(contains(o.report, "(all_gather, stream denoise)"), o.report);
  CHECK(contains(o.report, "\"virtual_ns\":"));
  CHECK(contains(o.report, "\"devices\":[[0,"));
  CHECK(contains(o.report, "\"hang\":null"));
}

TEST_CASE("checker: after the first hazard every call says so, and closing works") {
  TestMesh mesh(1, 4, "skew_us=100\nseed=1");
  const auto s = mesh.unfenced_semaphores(2);
  auto op = make_op<mr_all_gather>(MR_OP_ALL_GATHER);
  op.input = mesh.alloc(shape({1, 1, 4, 16}));
  op.output = mesh.alloc(shape({1, 1, 4, 64}));
  op.semaphores[0] = s[0];
  op.semaphores[1] = s[1];
  op.dim = 3;
  op.axis = 1;
  op.num_links = 1;
  op.topology = MR_RING;
  mesh.try_enqueue(op);
  mr_error e = fresh_error();
  const mr_tensor_spec wanted = spec(shape({4, 4}));
  mr_handle h = 0;
  CHECK(driver().tensor_alloc(mesh.handle(), &wanted, &h, &e) == MR_HAZARD);
  CHECK(contains(e.message, "no fence since that was made"));
  CHECK(mesh.close().code == MR_OK);
}

TEST_CASE("checker: a semaphore is reset and freed only when nothing that names it is under way") {
  for (const bool freed : {false, true}) {
    TestMesh mesh(1, 4, "clock=lockstep\non_hazard=continue");
    const Bank bank(mesh);
    auto op = all_gather_op(mesh.alloc(shape({1, 1, 4, 16})), 3, 1, true, bank);
    mesh.enqueue(op);
    mr_error e = fresh_error();
    if (freed) {
      driver().semaphores_free(mesh.handle(), &bank.s[0], 1, &e);
    } else {
      driver().semaphores_reset(mesh.handle(), &bank.s[0], 1, 0, &e);
    }
    CHECK_MESSAGE(contains(mesh.report(), "\"kind\":\"not_quiet\""), mesh.report());
  }
  TestMesh mesh(1, 4, "clock=lockstep");
  const Bank bank(mesh);
  auto op = all_gather_op(mesh.alloc(shape({1, 1, 4, 16})), 3, 1, true, bank);
  mesh.enqueue(op);
  mesh.sync();
  mr_error e = fresh_error();
  CHECK(driver().semaphores_reset(mesh.handle(), bank.s.data(), 4, 0, &e) == MR_OK);
  mesh.sync();
  op.output = 0;
  mesh.enqueue(op);
  mesh.sync();
}

TEST_CASE("checker: the start barrier of a halo exchange matters") {
  // One-sided pads: without the barrier nothing tells a writer that its neighbour has entered.
  const HaloCase c{.local = shape({2, 3, 4, 2}), .count = 2, .dims = {1, 2}, .axes = {0, 1}, .left = {1, 1}, .right = {1, 0}};
  const auto run = [&](const std::string& config, const char* broken) {
    TestMesh mesh(2, 2, config + broken);
    REQUIRE(mesh.fault("device 1,1 delay 1ms").code == MR_OK);
    const HaloBank banks[] = {HaloBank(mesh), HaloBank(mesh)};
    std::vector<Whole<uint16_t>> inputs;
    std::vector<mr_handle> copies;
    std::vector<mr_handle> outputs = {mesh.alloc(row_major(c.padded(), DType::uint16)), mesh.alloc(row_major(c.padded(), DType::uint16))};
    std::vector<mr_handle> tensors;
    for (uint32_t i = 0; i < 12; ++i) {
      inputs.emplace_back(2, 2, c, 10 + i);
      tensors.push_back(upload_rows(mesh, c.local, DType::uint16, inputs.back().shards()));
    }
    mesh.sync();
    Outcome o;
    for (uint32_t i = 0; i < 12; ++i) {
      auto op = neighbor_pad_op(tensors[i], c, banks[i % 2]);
      op.output = outputs[i % 2];
      if (mesh.try_enqueue(op).code == MR_HAZARD) break;
      copies.push_back(snapshot(mesh, outputs[i % 2], c.padded()));
    }
    o.fence = mesh.fence();
    o.report = mesh.report();
    for (uint32_t i = 0; o.fence.code == MR_OK && i < copies.size(); ++i)
      for (uint32_t d = 0; d < 4; ++d) o.wrong = o.wrong || mesh.read<uint16_t>(copies[i], d) != inputs[i].padded(d);
    return o;
  };
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    const Outcome o = run("clock=lockstep\nskew_us=300\nseed=" + std::to_string(seed), "");
    REQUIRE_MESSAGE(o.fence.code == MR_OK, o.fence.text);
    CHECK(!o.wrong);
  }
  must_matter([&](const std::string& config) { return run(config, "\nbreak=no_start_barrier"); }, "peer_not_entered", "nothing tells that device");
  must_matter([&](const std::string& config) { return run(config, "\nbreak=no_handshake"); }, "peer_not_entered", "nothing tells that device");
}

TEST_CASE("checker: a start barrier or handshake that is missing is seen on a mesh at rest, behind a fence, and in a replay") {
  for (const Opening& o : kOpenings)
    for (const Front front : {Front::rest, Front::fence, Front::capture}) {
      const uint32_t number = front == Front::fence ? 2 : 1;
      CAPTURE(o.op);
      CAPTURE(o.rows);
      CAPTURE(static_cast<int>(front));
      // One that is missing in all launches is met at the first.
      if (o.broken != nullptr && number != 1) continue;
      TestMesh mesh(o.rows, o.cols, std::string("clock=lockstep") + (o.broken != nullptr ? std::string("\nbreak=") + o.broken : ""));
      if (o.broken == nullptr) REQUIRE(mesh.fault(("barrier drop at launch " + std::to_string(number)).c_str()).code == MR_OK);
      REQUIRE(mesh.fault((std::string("device ") + o.late + " delay 2ms at launch " + std::to_string(number)).c_str()).code == MR_OK);
      const auto enqueue = o.ready(mesh);
      mesh.sync();
      mr_error e = fresh_error();
      Answer a;
      if (front == Front::fence) {
        a = enqueue();
        mesh.sync();
      }
      mr_handle trace = 0;
      if (front == Front::capture) REQUIRE(driver().trace_begin(mesh.handle(), 0, &trace, &e) == MR_OK);
      if (a.code == MR_OK) a = enqueue();
      REQUIRE_MESSAGE((a.code == MR_OK || a.code == MR_HAZARD), a.text);
      if (front == Front::capture) {
        REQUIRE_MESSAGE(driver().trace_end(mesh.handle(), trace, &e) == MR_OK, e.message);
        driver().trace_execute(mesh.handle(), trace, 0, 1, &e);
      }
      a = mesh.fence();
      CHECK(a.code == MR_HAZARD);
      CHECK_MESSAGE(a.says("hazard (peer_not_entered)"), a.text);
      CHECK_MESSAGE(a.says(("launch " + std::to_string(number) + " (" + o.op + ", stream 0)").c_str()), a.text);
      CHECK_MESSAGE(contains(mesh.report(), std::string("\"devices\":") + o.devices), mesh.report());
    }
}

TEST_CASE("checker: operations that begin with a barrier are safe under every seed, on a mesh at rest and behind a fence") {
  for (const Opening& o : kOpenings) {
    if (o.broken != nullptr) continue;  // there already
    for (uint32_t seed = 1; seed <= 30; ++seed) {
      CAPTURE(o.op);
      CAPTURE(o.rows);
      CAPTURE(seed);
      TestMesh mesh(o.rows, o.cols, "clock=lockstep\nskew_us=300\nseed=" + std::to_string(seed));
      const auto enqueue = o.ready(mesh);
      mesh.sync();
      for (int i = 0; i < 2; ++i) {
        const Answer enqueued = enqueue(), done = mesh.fence();
        REQUIRE_MESSAGE(enqueued.code == MR_OK, enqueued.text);
        REQUIRE_MESSAGE(done.code == MR_OK, done.text);
      }
      CHECK(contains(mesh.report(), "\"hazards\":[]"));
    }
  }
}

TEST_CASE("checker: that all in front of a launch is over does not tell that a device has entered it") {
  enum class Told { nothing, by_the_host, by_the_other_queue, by_the_device };
  const auto play = [](Told told) {
    Bare bare(2, 2);
    const auto m = bare.memory("m");
    const auto s = bare.semaphore("s"), t = bare.semaphore("t");
    bare.launch("first", [](emu::Context&) -> emu::Program { co_return; });
    if (told == Told::by_the_host) bare.fence();
    if (told == Told::by_the_other_queue) {
      // Device 1 tells how far it has come in queue 0, and the host has seen that device 0 has heard it.
      bare.follow(1, 0);
      bare.launch(
          "tell",
          [=](emu::Context& ctx) -> emu::Program {
            if (ctx.device() == 1) poke(ctx, 1, *t);
            if (ctx.device() == 1) co_return;
            co_await ctx.wait(*t, 0, 1, emu::Owed::by(1));
            ctx.clear(*t, 0);
          },
          1);
      bare.fence(1);
    }
    auto plan = bare.script("joined", [=](emu::Context& ctx) -> emu::Program {
      if (ctx.device() == 1) {
        if (told == Told::by_the_device) poke(ctx, 1, *s, 1, true);
        co_return;
      }
      if (told == Told::by_the_device) {
        co_await ctx.wait(*s, 0, 1, emu::Owed::by(1));
        ctx.clear(*s, 0);
      }
      use(ctx, m, 1, true);
    });
    plan->joins_first = true;
    bare.launch(std::move(plan));
    bare.fence();
    return bare.kinds();
  };
  for (const Told told : {Told::nothing, Told::by_the_host, Told::by_the_other_queue}) {
    CAPTURE(static_cast<int>(told));
    CHECK(play(told) == std::vector<std::string>{"peer_not_entered m"});
  }
  CHECK(play(Told::by_the_device).empty());
}

TEST_CASE("checker: a halo exchange round a ring is named") {
  const HaloCase c{.local = shape({2, 3, 4}), .dims = {1}, .axes = {1}, .left = {1}, .right = {1}};
  const auto run = [&](const std::string& config) {
    TestMesh mesh(1, 4, config + "\nbreak=ring_halo");
    const HaloBank bank(mesh);
    const Whole<uint16_t> input(1, 4, c, 1);
    auto op = neighbor_pad_op(upload_rows(mesh, c.local, DType::uint16, input.shards()), c, bank);
    op.output = mesh.alloc(row_major(c.padded(), DType::uint16));
    mesh.sync();
    Outcome o;
    mesh.try_enqueue(op);
    o.fence = mesh.fence();
    o.report = mesh.report();
    for (uint32_t d = 0; o.fence.code == MR_OK && d < 4; ++d) o.wrong = o.wrong || mesh.read<uint16_t>(op.output, d) != input.padded(d);
    return o;
  };
  must_matter(run, "ring_halo", "neighbor_pad");
}

TEST_CASE("checker: the same seed gives the same run, bit for bit") {
  const auto run = [](uint32_t seed) { return play({}, "clock=lockstep\nskew_us=500\nseed=" + std::to_string(seed)).report; };
  CHECK(run(7) == run(7));
  CHECK(run(7) != run(8));
}

// ---- hangs ----------------------------------------------------------------------------------------------------------------

namespace {

// Gathers in pairs: by axis 1, launches 2i+1, and a product on each device, launches 2i+2.
Answer hang(TestMesh& mesh, int count = 4) {
  const Bank banks[] = {Bank(mesh), Bank(mesh)}, others[] = {Bank(mesh), Bank(mesh)};
  const Shape s = shape({1, 1, 4, 16});
  const mr_handle input = mesh.upload(s, DType::uint16, random_shards<uint16_t>(mesh.devices(), s, 1));
  for (int i = 0; i < count; ++i) {
    auto gather = all_gather_op(input, 3, 1, true, banks[i % 2]);
    mesh.enqueue(gather);
    auto scatter = reduce_scatter_op(mesh.alloc(shape({1, 1, 4, 64}), DType::uint32), 3, 1, true, others[i % 2]);
    mesh.enqueue(scatter);
  }
  return mesh.fence();
}

}  // namespace

TEST_CASE("hang: never entered") {
  TestMesh mesh(1, 4, "clock=lockstep");
  REQUIRE(mesh.fault("device 0,2 stop at launch 2").code == MR_OK);
  const Answer a = hang(mesh);
  CHECK(a.code == MR_TIMEOUT);
  CHECK_MESSAGE(contains(mesh.report(), "\"class\":\"never_entered\",\"device\":[0,2]"), mesh.report());
  CHECK(contains(mesh.report(), "\"recent\":[{\"device\":[0,0],\"dropped\":0,\"launches\":[{\"seq\":1,\"op\":\"all_gather\""));
}

TEST_CASE("hang: entered something else; the checker names the order") {
  // B2: device 3 swaps two of its launches.
  for (const char* clock : {"clock=lockstep", "clock=free"}) {
    TestMesh mesh(1, 4, clock);
    REQUIRE(mesh.fault("device 0,3 swap launch 3 and 4").code == MR_OK);
    const Answer a = hang(mesh);
    CHECK(a.code == MR_HAZARD);
    CHECK_MESSAGE(contains(a.text, "device 0,3 enters launch 4 (reduce_scatter, stream 0) where every other device has launch 3 (all_gather, stream 0)"),
                  a.text);
    CHECK_MESSAGE(contains(a.text, "the order of a queue must be the same on all; device 0,0 waits for "), a.text);
    CHECK_MESSAGE(contains(a.text, ", and 3 more wait"), a.text);
    CHECK(contains(mesh.report(), "\"hazards\":1,"));
    CHECK(contains(mesh.report(), "\"waiting\":[{\"device\":[0,0],\"op\":\"all_gather\",\"seq\":3,"));
    CHECK(contains(mesh.report(), "\"hang\":null"));
  }
  TestMesh mesh(1, 4, "clock=lockstep\non_hazard=continue");
  REQUIRE(mesh.fault("device 0,3 swap launch 3 and 4").code == MR_OK);
  CHECK(hang(mesh).code == MR_TIMEOUT);
  CHECK_MESSAGE(contains(mesh.report(), "\"class\":\"entered_other\",\"device\":[0,3]"), mesh.report());
  CHECK(contains(mesh.report(), "is in launch 4 (reduce_scatter), not in launch 3 (all_gather)"));
}

TEST_CASE("hang: entered and never left") {
  TestMesh mesh(1, 4, "clock=lockstep");
  REQUIRE(mesh.fault("op reduce_scatter axis 1 #2 hang").code == MR_OK);
  CHECK(hang(mesh).code == MR_TIMEOUT);
  CHECK_MESSAGE(contains(mesh.report(), "\"class\":\"never_left\",\"device\":[0,0]"), mesh.report());
  CHECK(contains(mesh.report(), "entered launch 4 (reduce_scatter) and never left"));
  CHECK(contains(mesh.report(), "\"left_ns\":null"));
}

TEST_CASE("hang: entered late, when increments had come and were lost") {
  TestMesh mesh(1, 4, "clock=lockstep\non_hazard=continue");
  REQUIRE(mesh.fault("device 0,3 late allocation 500us").code == MR_OK);
  REQUIRE(mesh.fault("device 0,3 delay 1ms").code == MR_OK);
  const Shape s = shape({1, 1, 4, 16});
  const mr_handle input = mesh.upload(s, DType::uint16, random_shards<uint16_t>(4, s, 1));
  const mr_handle output = mesh.alloc(shape({1, 1, 4, 64}), DType::uint16);
  mesh.sync();
  const auto semaphores = mesh.unfenced_semaphores(2);
  auto op = make_op<mr_all_gather>(MR_OP_ALL_GATHER);
  op.input = input;
  op.output = output;
  op.semaphores[0] = semaphores[0];
  op.semaphores[1] = semaphores[1];
  op.dim = 3;
  op.axis = 1;
  op.num_links = 1;
  op.topology = MR_RING;
  mesh.enqueue(op);
  CHECK(mesh.fence().code == MR_TIMEOUT);
  CHECK_MESSAGE(contains(mesh.report(), "\"class\":\"entered_late\",\"device\":[0,3]"), mesh.report());
  CHECK(contains(mesh.report(), "are lost"));
}

TEST_CASE("hang: all stuck") {
  Bare bare(2);
  const auto s = bare.semaphore("s");
  bare.launch("wait", [=](emu::Context& ctx) -> emu::Program { co_await ctx.wait(*s, 0, 1, emu::Owed::by(1 - ctx.device())); });
  emu::Advance state;
  do state = bare.run();
  while (state == emu::Advance::busy);
  CHECK(state == emu::Advance::hang);
  CHECK_MESSAGE(contains(bare.engine().hang()->json, "\"class\":\"all_stuck\""), bare.engine().hang()->json);
}

TEST_CASE("hang: records that were dropped are said to be unknown") {
  TestMesh mesh(1, 4, "clock=lockstep");
  REQUIRE(mesh.fault("device 0,2 stop at launch 40").code == MR_OK);
  CHECK(hang(mesh, 24).code == MR_TIMEOUT);
  CHECK_MESSAGE(contains(mesh.report(), "is unknown (23 records dropped)"), mesh.report());
}

TEST_CASE("faults: each prints back to the same text") {
  TestMesh mesh(2, 4);
  const char* lines[] = {"device 1,2 late allocation 5ms", "device 0,3 swap launch 7 and 8", "op all_gather hang", "op reduce_scatter axis 1 #3 fail", "op matmul #2 delay 40us",
                         "device 1,1 shape [1,1,32,96] at launch 4", "barrier drop at launch 9"};
  std::string all;
  for (const char* line : lines) {
    CHECK(mesh.fault(line).code == MR_OK);
    all += (all.empty() ? "\"" : ",\"") + std::string(line) + "\"";
  }
  CHECK_MESSAGE(contains(mesh.report(), "\"faults\":[" + all + "]"), mesh.report());
  for (const char* line : {"device 0,3 swap launch 7 and 7", "device 0,3 swap launch 7", "op all_gather axis 2 hang", "op all_gather #0 hang", "op all_gather explode",
                           "device 0,0 late arrival 5ms", "device 0,0 late allocation 5ms now"})
    CHECK(mesh.fault(line).code == MR_INVALID_ARGUMENT);
}

namespace {

struct Mismatch {
  Answer answer;
  std::string report;
};

// Gathers of [1,1,4,16], `count` of them, with a fault.
Mismatch gathers_with(std::initializer_list<const char*> faults, const std::string& config, uint32_t rows, uint32_t cols, int count = 1, bool replayed = false) {
  TestMesh mesh(rows, cols, "clock=lockstep" + config);
  for (const char* fault : faults) REQUIRE(mesh.fault(fault).code == MR_OK);
  const Bank banks[] = {Bank(mesh), Bank(mesh)};
  const Shape s = shape({1, 1, 4, 16});
  const mr_handle input = mesh.upload(s, DType::uint16, random_shards<uint16_t>(mesh.devices(), s, 1));
  mr_error e = fresh_error();
  mr_handle trace = 0;
  if (replayed) {
    mesh.sync();
    REQUIRE(driver().trace_begin(mesh.handle(), 0, &trace, &e) == MR_OK);
  }
  Mismatch m;
  for (int i = 0; i < count && m.answer.code == MR_OK; ++i) {
    auto gather = all_gather_op(input, 3, 1, cols > 2, banks[i % 2]);
    m.answer = mesh.try_enqueue(gather);
  }
  if (replayed) {
    REQUIRE(driver().trace_end(mesh.handle(), trace, &e) == MR_OK);
    driver().trace_execute(mesh.handle(), trace, 0, 1, &e);
    m.answer = {e.code, e.message};
  }
  if (m.answer.code == MR_OK) m.answer = mesh.fence();
  m.report = mesh.report();
  return m;
}

}  // namespace

TEST_CASE("faults: a device with another shape is named with what every device has") {
  const char* const fault = "device 0,3 shape [1,1,4,24] at launch 2";
  const char* const text =
      "devices enter launch 2 (all_gather, stream 0) with different arguments: device 0,3 has all_gather, seq 2, shape [1,1,4,24], dtype uint16, dim 3, "
      "axis 1, stream 0; every other device has all_gather, seq 2, shape [1,1,4,16], dtype uint16, dim 3, axis 1, stream 0";
  for (const bool replayed : {false, true}) {
    const Mismatch m = gathers_with({fault}, "", 1, 4, 3, replayed);
    CHECK(m.answer.code == MR_HAZARD);
    CHECK_MESSAGE(contains(m.answer.text, text), m.answer.text);
    CHECK_MESSAGE(contains(m.report, "\"kind\":\"arguments\",\"resource\":\"all_gather\",\"launches\":[{\"seq\":2,\"op\":\"all_gather\",\"stream\":\"0\"}],"
                                     "\"devices\":[[0,3]]"),
                  m.report);
    CHECK_MESSAGE(contains(m.report, "\"arguments\":[{\"devices\":[[0,3]],\"op\":\"all_gather\",\"seq\":2,\"stream\":\"0\",\"shape\":[1,1,4,24],"
                                     "\"dtype\":\"uint16\",\"dims\":[3],\"axes\":[1]},{\"devices\":[[0,0],[0,1],[0,2]],\"op\":\"all_gather\",\"seq\":2,"
                                     "\"stream\":\"0\",\"shape\":[1,1,4,16],\"dtype\":\"uint16\",\"dims\":[3],\"axes\":[1]}]"),
                  m.report);
    CHECK(!contains(m.report, "idle_faults"));
  }
  // Devices with the same shape are told together.
  const Mismatch two = gathers_with({fault, "device 0,1 shape [1,1,4,24] at launch 2", "device 0,2 shape [64] at launch 2"}, "", 1, 4, 3);
  CHECK_MESSAGE(contains(two.answer.text, "devices 0,1 and 0,3 have all_gather, seq 2, shape [1,1,4,24], dtype uint16"), two.answer.text);
  CHECK_MESSAGE(contains(two.answer.text, "; device 0,2 has all_gather, seq 2, shape [64], dtype uint16"), two.answer.text);

  // Going on, its peers wait for it in vain. The launch in front is done, the other line of the mesh is not concerned.
  for (const char* checker : {"", "\nchecker=off"}) {
    const Mismatch on = gathers_with({"device 1,3 shape [1,1,4,24] at launch 2"}, std::string("\non_hazard=continue") + checker, 2, 4, 3);
    CHECK(on.answer.code == MR_TIMEOUT);
    CHECK_MESSAGE(contains(on.answer.text, "device 1,3 is in launch 2 (all_gather) with shape [1,1,4,24], where its peers have [1,1,4,16]"), on.answer.text);
    CHECK_MESSAGE(contains(on.report, "\"class\":\"entered_other\",\"device\":[1,3]"), on.report);
    CHECK_MESSAGE(contains(on.report, "\"retired_per_device\":[3,3,3,3,1,1,1,1]"), on.report);
    CHECK(contains(on.report, "\"hazards\":1,") == (checker[0] == 0));
  }
}

TEST_CASE("faults: a shape that is none, and one that comes to nothing") {
  const Mismatch same = gathers_with({"device 0,1 shape [1,1,4,16] at launch 2"}, "", 1, 4, 3);
  CHECK(same.answer.code == MR_INVALID_ARGUMENT);
  CHECK_MESSAGE(contains(same.answer.text, "fault \"device 0,1 shape [1,1,4,16] at launch 2\": shape is [1,1,4,16]: must be another than that of launch 2 (all_gather)"),
                same.answer.text);
  CHECK(contains(same.report, "\"launches\":1,"));
  CHECK(gathers_with({"device 0,1 shape [1,1,4,16] at launch 2"}, "", 1, 4, 3, true).answer.code == MR_INVALID_ARGUMENT);
  const Mismatch all = gathers_with({"device 0,0 shape [1] at launch 1", "device 0,1 shape [1] at launch 1"}, "", 1, 2);
  CHECK(all.answer.code == MR_INVALID_ARGUMENT);
  CHECK_MESSAGE(contains(all.answer.text, "has another shape on all 2 devices"), all.answer.text);
  const Mismatch idle = gathers_with({"device 0,1 shape [1,1,4,24] at launch 7", "op matmul hang", "op all_gather #5 fail"}, "", 1, 4, 3);
  CHECK(idle.answer.code == MR_OK);
  CHECK_MESSAGE(contains(idle.report, "\"idle_faults\":[{\"fault\":\"device 0,1 shape [1,1,4,24] at launch 7\",\"why\":\"there were 3 launches\"},"
                                      "{\"fault\":\"op matmul hang\",\"why\":\"there were 0 launches of that kind\"},"
                                      "{\"fault\":\"op all_gather #5 fail\",\"why\":\"there were 3 launches of that kind\"}]"),
                idle.report);
}

TEST_CASE("faults: an operation of each device alone with another shape is reported, and nobody waits for it") {
  const auto run = [](const std::string& config) {
    TestMesh mesh(1, 2, "clock=lockstep" + config);
    REQUIRE(mesh.fault("device 0,1 shape [8,4] at launch 1").code == MR_OK);
    auto op = make_op<mr_activation>(MR_OP_ACTIVATION);
    op.input = mesh.upload(shape({4, 4}), DType::float32, random_floats(2, shape({4, 4}), 1, false));
    op.kind = MR_ACT_RELU;
    mesh.enqueue(op);
    return Mismatch{mesh.fence(), mesh.report()};
  };
  const Mismatch stopped = run("");
  CHECK(stopped.answer.code == MR_HAZARD);
  CHECK_MESSAGE(contains(stopped.answer.text, "device 0,1 has activation, seq 1, shape [8,4], dtype float32, stream 0; every other device has activation, seq 1, "
                                              "shape [4,4], dtype float32, stream 0"),
                stopped.answer.text);
  const Mismatch on = run("\non_hazard=continue");
  CHECK(on.answer.code == MR_OK);
  CHECK(contains(on.report, "\"kind\":\"arguments\""));
}

TEST_CASE("faults: one start barrier that is dropped") {
  const HaloCase c{.local = shape({2, 3, 4, 2}), .count = 2, .dims = {1, 2}, .axes = {0, 1}, .left = {1, 1}, .right = {1, 1}};
  const auto run = [&](const std::string& config, const char* fault) {
    TestMesh mesh(2, 2, config);
    if (fault != nullptr) REQUIRE(mesh.fault(fault).code == MR_OK);
    const HaloBank banks[] = {HaloBank(mesh), HaloBank(mesh)};
    const Whole<uint16_t> input(2, 2, c, 10);
    const mr_handle tensor = upload_rows(mesh, c.local, DType::uint16, input.shards());
    mesh.sync();
    Mismatch m;
    for (uint32_t i = 0; i < 6 && m.answer.code == MR_OK; ++i) {
      auto op = neighbor_pad_op(tensor, c, banks[i % 2]);
      m.answer = mesh.try_enqueue(op);
    }
    if (m.answer.code == MR_OK) m.answer = mesh.fence();
    m.report = mesh.report();
    return m;
  };
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    const std::string config = "clock=lockstep\nskew_us=300\nseed=" + std::to_string(seed);
    const Mismatch stopped = run(config, "barrier drop at launch 4");
    CHECK(stopped.answer.code == MR_HAZARD);
    CHECK_MESSAGE(contains(stopped.answer.text, "hazard (peer_not_entered)"), stopped.answer.text);
    CHECK_MESSAGE(contains(stopped.answer.text, "launch 4 (neighbor_pad, stream 0)"), stopped.answer.text);
    const Mismatch on = run(config + "\non_hazard=continue", "barrier drop at launch 4");
    CHECK(on.answer.code != MR_HAZARD);
    CHECK_MESSAGE(contains(on.report, "\"kind\":\"peer_not_entered\""), on.report);
    CHECK(run(config, nullptr).answer.code == MR_OK);
  }
  // What has no barrier is not concerned, and the report says so.
  TestMesh mesh(1, 2, "clock=lockstep");
  REQUIRE(mesh.fault("barrier drop at launch 1").code == MR_OK);
  auto op = make_op<mr_activation>(MR_OP_ACTIVATION);
  op.input = mesh.upload(shape({4, 4}), DType::float32, random_floats(2, shape({4, 4}), 1, false));
  op.kind = MR_ACT_RELU;
  mesh.enqueue(op);
  CHECK(mesh.fence().code == MR_OK);
  CHECK_MESSAGE(contains(mesh.report(), "\"idle_faults\":[{\"fault\":\"barrier drop at launch 1\",\"why\":\"launch 1 (activation, stream 0) does not begin with a barrier\"}]"),
                mesh.report());
}

TEST_CASE("faults: an operation that fails says so, and one that is delayed takes longer") {
  TestMesh mesh(1, 2, "clock=lockstep");
  REQUIRE(mesh.fault("op activation #2 fail").code == MR_OK);
  REQUIRE(mesh.fault("op activation #3 delay 7ms").code == MR_OK);
  auto op = make_op<mr_activation>(MR_OP_ACTIVATION);
  op.input = mesh.upload(shape({1, 1, 4, 4}), DType::float32, random_floats(2, shape({1, 1, 4, 4}), 1, false));
  op.kind = MR_ACT_RELU;
  for (int i = 0; i < 3; ++i) {
    op.output = 0;
    mesh.enqueue(op);
  }
  mesh.sync();
  uint64_t launch = 0;
  mr_error failure = fresh_error(), e = fresh_error();
  REQUIRE(driver().failure_next(mesh.handle(), &launch, &failure, &e) == MR_OK);
  CHECK(launch == 2);
  CHECK(contains(failure.message, "a fault asks for it"));
  REQUIRE(driver().failure_next(mesh.handle(), &launch, &failure, &e) == MR_OK);
  CHECK(launch == 0);
  mr_launch_profile p{};
  p.size = sizeof p;
  REQUIRE(extension().launch_profile(mesh.handle(), 3, &p, &e) == MR_OK);
  CHECK(p.start_ns > 7'000'000);
}
