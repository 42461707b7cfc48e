// The cost of transfers, against the formula of docs/timing.md worked out by hand.
#include "collectives.h"

using namespace meshrun::test;

namespace {

// The time of one gather of [1,1,rows,32] bfloat16 on 1xn, from the first start to the last end.
double gather_ns(const std::string& config, uint32_t n, bool ring, uint32_t rows, uint32_t links, uint32_t chunks_per_sync = 0) {
  TestMesh mesh(1, n, "clock=lockstep\nnum_links=" + std::to_string(links) + "\n" + config);
  const Bank bank(mesh);
  const mr_handle x = mesh.alloc(shape({1, 1, rows, 32}));
  auto op = all_gather_op(x, 2, 1, ring, bank, true, links);
  if (chunks_per_sync != 0) op.h.present |= MR_HAS_CHUNKS_PER_SYNC, op.chunks_per_sync = chunks_per_sync;
  mesh.enqueue(op);
  mesh.sync();
  mr_launch_profile p{};
  p.size = sizeof p;
  mr_error e = fresh_error();
  extension().launch_profile(mesh.handle(), mesh.last_launch(), &p, &e);
  return static_cast<double>(p.end_ns - p.start_ns);
}

constexpr double kRate = 25, kPacket = 22, kIncrement = 90, kConnect = 24'000;  // Blackhole

double link_ns(double bytes, double packet, double packets_per_increment) {
  return bytes / kRate + bytes / packet * kPacket + bytes / packet / packets_per_increment * kIncrement;
}

}  // namespace

TEST_CASE("timing: a gather takes connections, bytes, packets and increments") {
  const double shard = 65536.0 * 64;  // bytes
  for (const bool timing : {false, true}) {
    const std::string mode = timing ? "mode=timing\n" : "";
    CAPTURE(timing);
    const double epsilon = timing ? 0.02 : 0.06;  // a chunk that holds data is forwarded when all of it is there
    // A line carries n - 1 slices over its busiest link, a ring (n - 1) / 2 each way.
    CHECK(gather_ns(mode, 4, false, 65536, 1) == doctest::Approx(kConnect + link_ns(3 * shard, 8192, 32)).epsilon(epsilon));
    CHECK(gather_ns(mode, 4, true, 65536, 1) == doctest::Approx(kConnect + link_ns(1.5 * shard, 8192, 32)).epsilon(epsilon));
    CHECK(gather_ns(mode, 4, true, 65536, 2) == doctest::Approx(kConnect + link_ns(0.75 * shard, 8192, 32)).epsilon(epsilon));
    // Smaller packets and more increments cost more.
    CHECK(gather_ns(mode + "chunk_bytes=2048\n", 4, false, 65536, 1) == doctest::Approx(kConnect + link_ns(3 * shard, 2048, 32)).epsilon(epsilon));
    CHECK(gather_ns(mode, 4, false, 65536, 1, 2) == doctest::Approx(kConnect + link_ns(3 * shard, 8192, 2)).epsilon(epsilon));
    CHECK(gather_ns(mode, 4, false, 65536, 1, 2) > 1.05 * gather_ns(mode, 4, false, 65536, 1));
  }
}

TEST_CASE("timing: what is small takes as long as its connections") {
  CHECK(gather_ns("", 4, true, 32, 1) == doctest::Approx(kConnect).epsilon(0.15));
}
