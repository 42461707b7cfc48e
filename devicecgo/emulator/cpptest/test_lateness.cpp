// Who was late, and what makes no progress.
#include <algorithm>
#include <array>
#include <cstdio>

#include "../lateness.h"
#include "collectives.h"
#include "halos.h"

using namespace meshrun::test;

namespace {

constexpr uint64_t kUs = 1'000, kMs = 1'000'000;  // ns

bool near(uint64_t a, uint64_t b, uint64_t slack) { return a > b ? a - b <= slack : b - a <= slack; }

std::vector<mr_device_profile> devices_of(TestMesh& mesh, uint64_t launch) {
  std::vector<mr_device_profile> all(mesh.devices());
  uint32_t count = 0;
  mr_error e = fresh_error();
  REQUIRE(extension().launch_devices(mesh.handle(), launch, all.data(), mesh.devices(), &count, &e) == MR_OK);
  REQUIRE(count == mesh.devices());
  return all;
}

uint64_t span_of(TestMesh& mesh, uint64_t launch) {
  mr_launch_profile p{};
  p.size = sizeof p;
  mr_error e = fresh_error();
  REQUIRE(extension().launch_profile(mesh.handle(), launch, &p, &e) == MR_OK);
  return p.end_ns - p.start_ns;
}

struct Late {
  uint32_t row, col;
  uint64_t launches, ns;
};

// Whom the report names, of the one operation that there is.
std::vector<Late> late_devices(TestMesh& mesh) {
  const std::string report = mesh.report();
  const std::string key = "\"late\":[";
  const size_t begin = report.find(key);
  REQUIRE(begin != std::string::npos);
  REQUIRE(report.find(key, begin + 1) == std::string::npos);
  std::vector<Late> all;
  int length = 0;
  unsigned long long launches, ns;
  for (const char* at = report.c_str() + begin + key.size(); *at == '{' || *at == ',';) {
    Late l{};
    at += *at == ',';
    REQUIRE(std::sscanf(at, "{\"at\":[%u,%u],\"launches\":%llu,\"ns\":%llu}%n", &l.row, &l.col, &launches, &ns, &length) == 4);
    all.push_back({l.row, l.col, launches, ns});
    at += length;
  }
  return all;
}

// Gathers along axis 1, one behind the other.
void gathers(TestMesh& mesh, uint32_t count, bool ring, bool barrier, Shape s = shape({1, 1, 32, 64})) {
  const Bank banks[] = {Bank(mesh), Bank(mesh)};
  const mr_handle input = mesh.upload(s, DType::bfloat16, random_shards<uint16_t>(mesh.devices(), s, 1));
  Shape wide = s;
  wide.dims[3] *= mesh.cols();
  const mr_handle outputs[] = {mesh.alloc(wide), mesh.alloc(wide)};
  mesh.sync();
  for (uint32_t i = 0; i < count; ++i) {
    auto op = all_gather_op(input, 3, 1, ring, banks[i % 2], barrier);
    if (!barrier) op.output = outputs[i % 2];
    mesh.enqueue(op);
  }
}

const std::string kTimes = "device_times=on\nclock=lockstep";

}  // namespace

TEST_CASE("absences are counted once, and of two at a time the later one") {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    CAPTURE(round);
    meshrun::emu::Absences absences;
    std::array<int, 40> last{};  // by ns: which ends last of those that there are; two of them at most
    const int count = 1 + round % 6;
    meshrun::emu::Absence given[6];
    for (int i = 0; i < count; ++i) {
      const uint64_t from = random() % 39;
      given[i] = {from, from + 1 + random() % (39 - from), static_cast<uint32_t>(i)};
      absences.add(given[i]);
      for (uint64_t ns = given[i].from_ns; ns < given[i].to_ns; ++ns)
        if (last[ns] == 0 || given[last[ns] - 1].to_ns < given[i].to_ns) last[ns] = i + 1;
    }
    uint64_t covered = 0, end = 0;
    for (const meshrun::emu::Absence& a : absences.all()) {
      CHECK(a.from_ns >= end);
      CHECK(a.to_ns > a.from_ns);
      end = a.to_ns;
      for (uint64_t ns = a.from_ns; ns < a.to_ns; ++ns) {
        REQUIRE(last[ns] != 0);
        if (count <= 2) REQUIRE(last[ns] == static_cast<int>(a.late) + 1);
        ++covered;
      }
    }
    CHECK(covered == static_cast<uint64_t>(std::count_if(last.begin(), last.end(), [](int i) { return i != 0; })));
    CHECK(covered == absences.ns());
  }
}

TEST_CASE("who waits for a late device has that booked, and not as the operation's") {
  for (const bool ring : {false, true})
    for (const bool barrier : {false, true})
      for (const char* mode : {"", "\nmode=timing"}) {
        CAPTURE(ring);
        CAPTURE(barrier);
        CAPTURE(mode);
        constexpr uint32_t kLaunches = 5;
        TestMesh prompt(1, 4, kTimes + mode), mesh(1, 4, kTimes + mode);
        CHECK(mesh.fault("device 0,2 delay 3ms").code == MR_OK);
        for (TestMesh* m : {&prompt, &mesh}) {
          gathers(*m, kLaunches, ring, barrier);
          m->sync();
        }
        const uint64_t slack = barrier ? 5 * kUs : span_of(prompt, 1);  // without the barrier the first chunks travel before it comes
        for (uint64_t n = 1; n <= kLaunches; ++n) {
          CAPTURE(n);
          const auto usual = devices_of(prompt, n), late = devices_of(mesh, n);
          for (uint32_t d = 0; d < 4; ++d) {
            CAPTURE(d);
            CHECK_MESSAGE(near(usual[d].waiting_ns, 0, 5 * kUs), usual[d].waiting_ns);
            CHECK_MESSAGE(near(late[d].waiting_ns, d == 2 ? 0 : 3 * kMs, slack), late[d].waiting_ns);
            CHECK(near(late[d].end_ns - late[d].start_ns - late[d].waiting_ns, usual[d].end_ns - usual[d].start_ns, slack));
          }
          CHECK(near(span_of(mesh, n) - late[0].waiting_ns, span_of(prompt, n), slack));
        }
        const std::vector<Late> late = late_devices(mesh);
        REQUIRE(late.size() >= 1);
        CHECK(late[0].col == 2);
        CHECK(late[0].launches == kLaunches);
        CHECK(near(late[0].ns, kLaunches * 3 * kMs, kLaunches * slack));
        for (size_t i = 1; i < late.size(); ++i) CHECK(late[i].ns < kLaunches * slack);
      }
}

TEST_CASE("the blame goes on to the device for which the one that owes waits itself") {
  // On a line the first device gets the last one's slice by way of the two between, which are there.
  TestMesh mesh(1, 4, kTimes);
  CHECK(mesh.fault("device 0,3 delay 3ms").code == MR_OK);
  gathers(mesh, 1, false, false);
  mesh.sync();
  const auto times = devices_of(mesh, 1);
  for (uint32_t d = 0; d < 3; ++d) CHECK_MESSAGE(near(times[d].waiting_ns, 3 * kMs, 30 * kUs), times[d].waiting_ns);
  CHECK(times[3].waiting_ns == 0);
  const std::vector<Late> late = late_devices(mesh);
  REQUIRE(late.size() == 1);
  CHECK(late[0].col == 3);
}

TEST_CASE("the blame goes on through the launches before") {
  // 1,2 holds up its row; the row then holds up the columns, but that is not its own doing.
  TestMesh mesh(2, 4, kTimes);
  CHECK(mesh.fault("device 1,2 delay 3ms at launch 1").code == MR_OK);
  const Bank rows(mesh), columns(mesh);
  const Shape s = shape({1, 1, 32, 64});
  const mr_handle input = mesh.upload(s, DType::bfloat16, random_shards<uint16_t>(8, s, 1));
  auto along = all_gather_op(input, 3, 1, true, rows), down = all_gather_op(input, 2, 0, false, columns);
  mesh.enqueue(along);
  mesh.enqueue(down);
  mesh.sync();
  const auto first = devices_of(mesh, 1), second = devices_of(mesh, 2);
  for (uint32_t d = 0; d < 8; ++d) {
    CAPTURE(d);
    CHECK(near(first[d].waiting_ns, d > 3 && d != 6 ? 3 * kMs : 0, 5 * kUs));
    CHECK(near(second[d].waiting_ns, d < 4 ? 3 * kMs : 0, 100 * kUs));
  }
  const std::vector<Late> late = late_devices(mesh);
  REQUIRE(late.size() >= 1);
  CHECK(late[0].row * 4 + late[0].col == 6);
  CHECK(late[0].launches == 2);
  for (size_t i = 1; i < late.size(); ++i) CHECK(late[i].ns < 50 * kUs);  // what was left to do when it had come
}

TEST_CASE("workers that wait side by side are counted once") {
  // The two neighbours of 0,1 are late by 3 and 5 ms: it waits 5 ms for the later one. The opposite one waits no longer.
  TestMesh mesh(1, 4, kTimes);
  CHECK(mesh.fault("device 0,0 delay 3ms").code == MR_OK);
  CHECK(mesh.fault("device 0,2 delay 5ms").code == MR_OK);
  gathers(mesh, 1, true, false);
  mesh.sync();
  const auto times = devices_of(mesh, 1);
  for (const auto& [device, ns] : {std::pair{0u, 2 * kMs}, {1u, 5 * kMs}, {2u, uint64_t{0}}, {3u, 5 * kMs}}) {
    CAPTURE(device);
    CHECK_MESSAGE(near(times[device].waiting_ns, ns, 50 * kUs), times[device].waiting_ns);
  }
  CHECK(late_devices(mesh).at(0).col == 2);
}

TEST_CASE("a halo exchange books what it waits for a late device") {
  for (const uint32_t culprit : {0u, 4u, 5u, 8u}) {
    CAPTURE(culprit);
    TestMesh mesh(3, 3, kTimes);
    CHECK(mesh.fault(("device " + std::to_string(culprit / 3) + "," + std::to_string(culprit % 3) + " delay 3ms").c_str()).code == MR_OK);
    const HaloCase c{.local = shape({2, 4, 4, 3}), .count = 2, .dims = {1, 2}, .axes = {0, 1}, .left = {1, 1}, .right = {1, 1}};
    const HaloBank bank(mesh);
    const mr_handle input = mesh.alloc(row_major(c.local, DType::bfloat16));
    mesh.sync();
    auto op = neighbor_pad_op(input, c, bank);
    mesh.enqueue(op);
    mesh.sync();
    const auto times = devices_of(mesh, mesh.last_launch());
    // Its column waits at the barrier, those to the left and right of the column for their neighbours there.
    for (uint32_t d = 0; d < 9; ++d) {
      CAPTURE(d);
      const bool waits = d != culprit && d % 3 + 1 >= culprit % 3 && d % 3 <= culprit % 3 + 1;
      CHECK_MESSAGE(near(times[d].waiting_ns, waits ? 3 * kMs : 0, 30 * kUs), times[d].waiting_ns);
    }
    const std::vector<Late> late = late_devices(mesh);
    REQUIRE(late.size() == 1);
    CHECK(late[0].row * 3 + late[0].col == culprit);
  }
}

// ---- no-progress limits ----------------------------------------------------------------------------------------------------

TEST_CASE("what makes no progress for longer than its limit is a hang, of its class") {
  for (const char* clock : {"", "clock=lockstep\n"}) {
    CAPTURE(clock);
    TestMesh mesh(2, 4, std::string(clock) + "no_progress_us=5000000");
    CHECK(mesh.fault("device 1,2 delay 8s at launch 1").code == MR_OK);
    gathers(mesh, 3, true, true);
    const Answer a = mesh.fence();
    CHECK(a.code == MR_TIMEOUT);
    CHECK_MESSAGE(a.says("device 1,2 never entered launch 1 (all_gather); launch 1 (all_gather) has made no progress for 5000000 us"), a.text);
    const std::string report = mesh.report();
    CHECK_MESSAGE(report.find("\"class\":\"never_entered\",\"device\":[1,2]") != std::string::npos, report);
    CHECK(report.find("\"no_progress_us\":5000000") != std::string::npos);
    const uint64_t ns = std::stoull(a.text.substr(a.text.find("hang at ") + 8));
    CHECK(ns >= 5000 * kMs);
    CHECK(ns < 5010 * kMs);
    CHECK(mesh.close().code == MR_OK);
  }
}

TEST_CASE("a longer limit, none, or one of other operations is kept") {
  for (const char* limit : {"no_progress_us=9000000", "", "no_progress_us[reduce_scatter]=1000", "no_progress_us=1000\nno_progress_us[all_gather]=9000000",
                            "no_progress_us=1000\nno_progress_us[all_gather]=0"}) {
    CAPTURE(limit);
    TestMesh with(2, 4, "clock=lockstep\n" + std::string(limit)), without(2, 4, "clock=lockstep");
    for (TestMesh* mesh : {&with, &without}) {
      CHECK(mesh->fault("device 1,2 delay 8s at launch 1").code == MR_OK);
      gathers(*mesh, 3, true, true);
      mesh->sync();
    }
    CHECK(with.report() == without.report());
  }
}

TEST_CASE("slow and healthy: the semaphores of a long operation move") {
  // Skew holds up entries, links and looks by up to 3 s each; together it is more than the limit of 5 s.
  uint64_t longest = 0;
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    TestMesh mesh(1, 8, "clock=lockstep\nskew_us=3000000\nno_progress_us=5000000\nseed=" + std::to_string(seed));
    gathers(mesh, 2, false, true);
    mesh.sync();
    longest = std::max(longest, span_of(mesh, 1));
  }
  CHECK(longest > 8000 * kMs);
}

TEST_CASE("slow and healthy: increments that are not the last one that is waited for") {
  // One wait for all chunks of a slice.
  for (const char* mode : {"functional", "timing"}) {
    CAPTURE(mode);
    TestMesh mesh(1, 2, kTimes + "\nno_progress_us=100\nmode=" + mode);
    gathers(mesh, 2, false, true, shape({1, 1, 2048, 2048}));
    mesh.sync();
    CHECK_MESSAGE(span_of(mesh, 1) > 300 * kUs, span_of(mesh, 1));
  }
}

TEST_CASE("slow and healthy: a device that comes late to each of several launches, but comes") {
  for (const char* delay : {"4s", "6s"}) {
    CAPTURE(delay);
    TestMesh mesh(1, 2, "clock=lockstep\nno_progress_us=5000000");
    CHECK(mesh.fault(("device 0,1 delay " + std::string(delay)).c_str()).code == MR_OK);
    const Bank bank(mesh);
    const Shape s = shape({1, 1, 32, 32});
    const mr_handle x = mesh.upload(s, DType::bfloat16, random_shards<uint16_t>(2, s, 1));
    mesh.sync();
    for (int i = 0; i < 3; ++i) {
      auto op = make_op<mr_activation>(MR_OP_ACTIVATION);
      op.input = x;
      op.kind = MR_ACT_RELU;
      mesh.enqueue(op);
    }
    auto op = all_gather_op(x, 3, 1, false, bank);
    mesh.enqueue(op);
    const Answer a = mesh.fence();
    if (delay[0] == '4') {
      CHECK_MESSAGE(a.code == MR_OK, a.text);
    } else {
      CHECK_MESSAGE(a.says("device 0,1 never entered launch 4 (all_gather)"), a.text);
    }
  }
}

TEST_CASE("slow and healthy: a device that computes in an earlier launch") {
  // Matmuls of nine seconds, each begun late by up to 4.9 s: devices come to the gather many seconds apart.
  uint64_t longest = 0;
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    TestMesh mesh(1, 2, kTimes + "\nmode=timing\ndram_bytes=1099511627776\nskew_us=4900000\nno_progress_us=5000000\nseed=" + std::to_string(seed));
    const mr_handle x = mesh.alloc(shape({1, 1, 1 << 17, 1 << 17})), w = mesh.alloc(shape({1, 1, 1 << 17, 1 << 15}));
    const Bank bank(mesh);
    for (int i = 0; i < 12; ++i) {
      auto op = make_op<mr_matmul>(MR_OP_MATMUL);
      op.input = x;
      op.weight = w;
      op.dtype = MR_BFLOAT16;
      mesh.enqueue(op);
    }
    auto op = all_gather_op(w, 3, 1, false, bank);
    mesh.enqueue(op);
    mesh.sync();
    CHECK(span_of(mesh, 1) > 8000 * kMs);
    for (const mr_device_profile& d : devices_of(mesh, 13)) longest = std::max(longest, d.waiting_ns);
  }
  CHECK_MESSAGE(longest > 10000 * kMs, longest);
}

TEST_CASE("slow and healthy: devices compute in the launch in which they wait") {
  // 0,1 comes 200 ms late, without a barrier: the others wait for its first product while they make their own, eight of 36 ms.
  TestMesh mesh(1, 4, kTimes + "\nmode=timing\nno_progress_us=20000");
  CHECK(mesh.fault("device 0,1 delay 200ms").code == MR_OK);
  auto op = make_op<mr_matmul_strided_reduce_scatter>(MR_OP_MATMUL_STRIDED_REDUCE_SCATTER);
  op.input = mesh.alloc(shape({1, 1, 1 << 16, 1 << 14}));
  op.weight = mesh.alloc(shape({1 << 14, 1 << 14}));
  op.output = mesh.alloc(shape({1, 1, 1 << 16, 1 << 12}));
  mr_tensor_spec counters = spec(shape({64, 64}), DType::uint32, MR_ROW_MAJOR);
  counters.memory = MR_L1;
  counters.shard_rows = 1;
  counters.shard_cols = 64;
  op.progress = mesh.alloc(counters);
  const std::vector<mr_handle> semaphores = mesh.semaphores(3);
  std::copy(semaphores.begin(), semaphores.end(), op.semaphores);
  op.axis = 1;
  op.num_links = 1;
  op.topology = MR_RING;
  mesh.sync();
  mesh.enqueue(op);
  mesh.sync();
  CHECK_MESSAGE(span_of(mesh, 1) > 450 * kMs, span_of(mesh, 1));
}

TEST_CASE("an unknown operation in a limit, and one that is no number, are refused") {
  for (const char* config : {"no_progress_us[all_gathers]=5", "no_progress_us[]=5", "no_progress_us=soon", "no_progress_us[all_gather]=-1"}) {
    CAPTURE(config);
    mr_open_options o{};
    o.size = sizeof o;
    o.rows = o.cols = o.queues = 1;
    o.config = config;
    mr_handle mesh = 0;
    mr_error e = fresh_error();
    CHECK(driver().open(&o, &mesh, &e) == MR_INVALID_ARGUMENT);
    CHECK_MESSAGE(std::string(e.message).find("no_progress_us") != std::string::npos, e.message);
  }
}

TEST_CASE("of two limits for one operation the last one counts") {
  for (const auto& [limits, hangs] : {std::pair{"no_progress_us[all_gather]=9000000\nno_progress_us[all_gather]=5000000", true},
                                      std::pair{"no_progress_us[all_gather]=5000000\nno_progress_us[all_gather]=9000000", false}}) {
    CAPTURE(limits);
    TestMesh mesh(1, 4, "clock=lockstep\n" + std::string(limits));
    CHECK(mesh.fault("device 0,2 delay 8s at launch 1").code == MR_OK);
    gathers(mesh, 1, true, true);
    CHECK(mesh.fence().code == (hangs ? MR_TIMEOUT : MR_OK));
  }
}

TEST_CASE("a bank that is reset is no progress, neither of who raised it nor of what was launched since") {
  TestMesh mesh(1, 2, "clock=lockstep\nno_progress_us=5000000");
  CHECK(mesh.fault("device 0,1 delay 8s at launch 2").code == MR_OK);
  const Bank first(mesh), second(mesh);
  const Shape s = shape({1, 1, 32, 32});
  const mr_handle x = mesh.upload(s, DType::bfloat16, random_shards<uint16_t>(2, s, 1));
  mesh.sync();
  auto op = all_gather_op(x, 3, 1, false, first);
  mesh.enqueue(op);
  mesh.sync();
  op = all_gather_op(x, 3, 1, false, second);
  mesh.enqueue(op);
  int32_t state = 0;
  mr_error e = fresh_error();
  REQUIRE(extension().clock_advance(mesh.handle(), 4000 * kMs, 10'000'000, &state, &e) == MR_OK);
  REQUIRE(driver().semaphores_reset(mesh.handle(), first.s.data(), 4, 0, &e) == MR_OK);
  const Answer a = mesh.fence();
  REQUIRE_MESSAGE(a.code == MR_TIMEOUT, a.text);
  CHECK_MESSAGE(std::stoull(a.text.substr(a.text.find("hang at ") + 8)) < 5010 * kMs, a.text);
}
