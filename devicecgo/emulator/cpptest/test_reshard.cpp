// slice_reshard and point_to_point: parcels on lines, against cutting the whole tensor by hand.
#include "halos.h"

using namespace meshrun::test;

namespace {

mr_slice_reshard reshard_op(mr_handle input, uint32_t offset, uint32_t size, uint32_t axis, bool ring, const HaloBank& bank, uint32_t links = 1) {
  auto op = make_op<mr_slice_reshard>(MR_OP_SLICE_RESHARD);
  op.input = input;
  op.semaphore = bank.neighbor(axis);
  op.barrier = bank.barrier(axis);
  op.offset = offset;
  op.size = size;
  op.axis = axis;
  op.num_links = links;
  op.topology = ring ? MR_RING : MR_LINEAR;
  return op;
}

using Pairs = std::vector<std::pair<uint32_t, uint32_t>>;

mr_point_to_point point_to_point_op(mr_handle input, const Pairs& pairs, uint32_t axis, bool ring, const HaloBank& bank, uint32_t links = 1) {
  auto op = make_op<mr_point_to_point>(MR_OP_POINT_TO_POINT);
  op.input = input;
  op.semaphore = bank.neighbor(axis);
  op.barrier = bank.barrier(axis);
  op.axis = axis;
  op.num_links = links;
  op.topology = ring ? MR_RING : MR_LINEAR;
  for (const auto& [from, to] : pairs) {
    op.from[op.count] = from;
    op.to[op.count++] = to;
  }
  return op;
}

// Rows [offset + j*share, ...) of the line's tensor; zeros behind its end.
template <class T>
std::vector<T> resharded(const Shards<T>& shards, const std::vector<uint32_t>& line, size_t row, uint32_t position, uint32_t offset, uint32_t share) {
  std::vector<T> whole, out;
  for (const uint32_t d : line) whole.insert(whole.end(), shards[d].begin(), shards[d].end());
  for (size_t i = (offset + size_t{position} * share) * row, end = i + share * row; i < end; ++i) out.push_back(i < whole.size() ? whole[i] : T{0});
  return out;
}

struct Done {
  mr_handle output;
  Shards<uint16_t> input;
  Shape s;
  bool reshard;
  uint32_t axis, offset, share;
  Pairs pairs;
};

void play(uint32_t seed) {
  Dice dice(seed);
  const uint32_t rows = dice.any({1u, 2u, 3u, 4u, 8u}), cols = dice.any({1u, 2u, 3u, 4u, 5u}), links = dice.of(1, 4);
  const std::string config = "num_links=" + std::to_string(links) + "\nskew_us=" + std::to_string(dice.of(0, 200)) + "\nseed=" + std::to_string(seed) +
                             "\nchunk_bytes=" + std::to_string(4 * dice.of(1, 20)) + "\nthreads=" + std::to_string(dice.of(1, 3));
  INFO("seed " << seed << " mesh " << rows << "x" << cols << " " << config);
  TestMesh mesh(rows, cols, config);
  const HaloBank banks[2][2] = {{HaloBank(mesh), HaloBank(mesh)}, {HaloBank(mesh), HaloBank(mesh)}};
  uint32_t turn[2] = {0, 0};
  std::vector<Done> all;
  for (uint32_t i = 0; i < 8; ++i) {
    Done d;
    d.axis = dice.of(0, 1);
    d.s.rank = dice.of(1, 5);
    for (uint32_t k = 0; k < d.s.rank; ++k) d.s.dims[k] = dice.of(1, 5);
    d.input = random_shards<uint16_t>(mesh.devices(), d.s, seed * 10 + i);
    const uint32_t n = d.axis == 0 ? rows : cols, use = dice.of(1, links);
    const bool ring = n > 2 && dice.coin();
    const mr_handle input = upload_rows(mesh, d.s, DType::bfloat16, d.input);
    d.reshard = n == 1 || dice.coin();
    const HaloBank& bank = banks[d.axis][turn[d.axis]++ % 2];
    if (d.reshard) {
      d.share = dice.of(1, 8);
      d.offset = dice.of(0, d.s.dims[0] * n + 2);
      auto op = reshard_op(input, d.offset, d.share * n, d.axis, ring, bank, use);
      mesh.enqueue(op);
      d.output = op.output;
    } else {
      // A random mapping along each line; some of it left out.
      for (uint32_t device = 0; device < mesh.devices(); ++device) {
        const std::vector<uint32_t> line = line_of(rows, cols, device, d.axis);
        const uint32_t to = line[dice.of(0, n - 1)];
        bool taken = to == device || dice.of(0, 3) == 0;
        for (const auto& p : d.pairs) taken = taken || p.second == to;
        if (!taken) d.pairs.emplace_back(device, to);
      }
      if (d.pairs.empty()) d.pairs.emplace_back(line_of(rows, cols, 0, d.axis)[n - 1], 0);
      auto op = point_to_point_op(input, d.pairs, d.axis, ring, bank, use);
      mesh.enqueue(op);
      d.output = op.output;
    }
    all.push_back(std::move(d));
  }
  mesh.sync();
  for (const Done& d : all)
    for (uint32_t device = 0; device < mesh.devices(); ++device) {
      std::vector<uint16_t> wanted = d.input[device];
      if (d.reshard) wanted = resharded(d.input, line_of(rows, cols, device, d.axis), d.s.product(1, d.s.rank), d.axis == 0 ? device / cols : device % cols, d.offset, d.share);
      for (const auto& [from, to] : d.pairs)
        if (to == device) wanted = d.input[from];
      REQUIRE(mesh.read<uint16_t>(d.output, device) == wanted);
    }
  for (const auto& of_axis : banks)
    for (const HaloBank& b : of_axis) REQUIRE(at_rest(mesh, b));
}

}  // namespace

TEST_CASE("slice_reshard and point_to_point: random, several in a queue, on skewed devices") {
  for (uint32_t seed = 1; seed <= 100; ++seed) play(seed);
}

TEST_CASE("slice_reshard: rows of the field case") {
  TestMesh mesh(1, 4);
  const HaloBank bank(mesh);
  const Shape s = shape({3, 2, 3, 4});
  Shards<float> rows(4);
  for (uint32_t d = 0; d < 4; ++d)
    for (uint32_t i = 0; i < 72; ++i) rows[d].push_back(static_cast<float>(3 * d + i / 24));
  const mr_handle input = upload_rows(mesh, s, DType::float32, rows);
  for (const uint32_t size : {8u, 12u}) {
    auto op = reshard_op(input, 2, size, 1, false, bank);
    mesh.enqueue(op);
    mesh.sync();
    for (uint32_t d = 0; d < 4; ++d) {
      const std::vector<float> got = mesh.read<float>(op.output, d);
      const uint32_t share = size / 4;
      for (uint32_t r = 0; r < share; ++r) {
        const uint32_t row = 2 + d * share + r;
        for (uint32_t i = 0; i < 24; ++i) REQUIRE(got[r * 24 + i] == (row < 12 ? static_cast<float>(row) : 0.f));
      }
    }
  }
}

TEST_CASE("slice_reshard: a result that is given, an axis of one, links beyond the elements") {
  TestMesh mesh(1, 3, "num_links=8");
  const HaloBank bank(mesh);
  const Shape s = shape({2, 1});
  const auto shards = random_shards<uint8_t>(3, s, 3);
  const mr_handle input = upload_rows(mesh, s, DType::uint8, shards);
  auto op = reshard_op(input, 1, 6, 1, false, bank, 8);
  op.output = mesh.alloc(row_major(s, DType::uint8));
  mesh.enqueue(op);
  auto alone = reshard_op(input, 1, 3, 0, false, bank, 8);
  alone.semaphore = alone.barrier = 0;
  mesh.enqueue(alone);
  mesh.sync();
  for (uint32_t d = 0; d < 3; ++d) {
    CHECK(mesh.read<uint8_t>(op.output, d) == resharded(shards, {0, 1, 2}, 1, d, 1, 2));
    CHECK(mesh.read<uint8_t>(alone.output, d) == std::vector<uint8_t>{shards[d][1], 0, 0});
  }
}

TEST_CASE("slice_reshard and point_to_point: the start barrier matters") {
  for (const bool broken : {false, true}) {
    TestMesh mesh(1, 2, broken ? "clock=lockstep\nbreak=no_start_barrier\nchecker=off" : "clock=lockstep");
    REQUIRE(mesh.fault("device 0,1 delay 1ms").code == MR_OK);
    const HaloBank banks[2] = {HaloBank(mesh), HaloBank(mesh)};
    const Shape s = shape({4, 3});
    const mr_handle outputs[2] = {mesh.alloc(row_major(s, DType::bfloat16)), mesh.alloc(row_major(s, DType::bfloat16))};
    std::vector<Shards<uint16_t>> inputs;
    std::vector<mr_handle> results;
    for (uint32_t i = 0; i < 12; ++i) {
      inputs.push_back(random_shards<uint16_t>(2, s, i));
      auto op = point_to_point_op(upload_rows(mesh, s, DType::bfloat16, inputs[i]), {{0, 1}}, 1, false, banks[i % 2]);
      op.output = outputs[i % 2];
      mesh.enqueue(op);
      results.push_back(snapshot(mesh, op.output, s));
    }
    bool wrong = mesh.fence().code != MR_OK;
    for (uint32_t i = 0; !wrong && i < 12; ++i) wrong = mesh.read<uint16_t>(results[i], 1) != inputs[i][0];
    CHECK(wrong == broken);
  }
}

TEST_CASE("point_to_point: tiles, and the shorter way round a ring") {
  TestMesh mesh(1, 8, "clock=lockstep");
  const HaloBank bank(mesh);
  const Shape s = shape({1, 1, 64, 64});
  const auto shards = random_shards<uint16_t>(8, s, 9);
  const mr_handle input = mesh.upload(s, DType::bfloat16, shards);
  uint64_t ns[2] = {};
  mr_error e = fresh_error();
  for (const bool ring : {false, true}) {
    auto op = point_to_point_op(input, {{0, 7}, {7, 0}}, 1, ring, bank);
    mesh.enqueue(op);
    mesh.sync();
    CHECK(mesh.read<uint16_t>(op.output, 7) == shards[0]);
    CHECK(mesh.read<uint16_t>(op.output, 0) == shards[7]);
    CHECK(mesh.read<uint16_t>(op.output, 3) == shards[3]);
    mr_launch_profile p{};
    p.size = sizeof p;
    REQUIRE(extension().launch_profile(mesh.handle(), op.h.launch, &p, &e) == MR_OK);
    ns[ring] = p.end_ns - p.start_ns;
  }
  CHECK(ns[1] + 6 * 800 <= ns[0]);  // six hops fewer, of 800 ns
}

TEST_CASE("slice_reshard and point_to_point: timing holds no data") {
  TestMesh mesh(4, 8, "preset=bh-galaxy-4x8\nmode=timing");
  const HaloBank bank(mesh);
  const mr_handle input = mesh.alloc(row_major(shape({12, 480, 832, 3}), DType::bfloat16));
  auto reshard = reshard_op(input, 2, 80, 1, true, bank, 2);
  mesh.enqueue(reshard);
  auto move = point_to_point_op(input, {{0, 3}, {8, 11}}, 1, false, bank, 2);
  mesh.enqueue(move);
  mesh.sync();
  CHECK(at_rest(mesh, bank));
}

TEST_CASE("slice_reshard: refusals") {
  TestMesh mesh(1, 4);
  const HaloBank bank(mesh);
  const mr_handle input = mesh.alloc(row_major(shape({3, 2, 3, 4}), DType::bfloat16));
  const auto refused = [&](const char* says, auto change) {
    auto op = reshard_op(input, 2, 8, 1, false, bank);
    change(op);
    const Answer a = mesh.try_enqueue(op);
    INFO(a.text);
    CHECK(a.code == MR_REJECTED);
    CHECK(a.says("slice_reshard: "));
    CHECK(a.says(says));
    CHECK(op.output == 0);
  };
  using Op = mr_slice_reshard&;
  refused("size is 10: must be positive and divide by the 4 devices", [](Op o) { o.size = 10; });
  refused("size is 0", [](Op o) { o.size = 0; });
  refused("must be row major", [&](Op o) { o.input = mesh.alloc(shape({3, 2, 3, 4})); });
  refused("axis is 2", [](Op o) { o.axis = 2; });
  refused("num_links is 2", [](Op o) { o.num_links = 2; });
  refused("topology is 0", [](Op o) { o.topology = 0; });
  refused("semaphore is 0", [](Op o) { o.semaphore = 0; });
  refused("barrier is 0", [](Op o) { o.barrier = 0; });
  refused("must be different", [](Op o) { o.semaphore = o.barrier; });
  refused("present is 0x1", [](Op o) { o.h.present = 1; });
}

TEST_CASE("point_to_point: refusals") {
  TestMesh mesh(2, 4);
  const HaloBank bank(mesh);
  const mr_handle input = mesh.alloc(shape({1, 1, 32, 32}));
  const auto refused = [&](const char* says, const Pairs& pairs, auto change) {
    auto op = point_to_point_op(input, pairs, 1, false, bank);
    change(op);
    const Answer a = mesh.try_enqueue(op);
    INFO(a.text);
    CHECK(a.code == MR_REJECTED);
    CHECK(a.says("point_to_point: "));
    CHECK(a.says(says));
  };
  const auto as_is = [](mr_point_to_point&) {};
  refused("count is 0: must be 1..128", {}, as_is);
  refused("pair 0 is 1 to 8: the mesh has 8 devices", {{1, 8}}, as_is);
  refused("pair 0 is 1 to 5: must be two devices of one line of axis 1", {{1, 5}}, as_is);
  refused("pair 0 is 1 to 1", {{1, 1}}, as_is);
  refused("device 0 sends already", {{0, 1}, {0, 2}}, as_is);
  refused("device 2 receives already", {{0, 2}, {1, 2}}, as_is);
  refused("semaphore is 0", {{0, 1}}, [](mr_point_to_point& o) { o.semaphore = 0; });
  refused("barrier is 0", {{0, 1}}, [](mr_point_to_point& o) { o.barrier = 0; });
}
