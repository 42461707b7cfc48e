// Neighbour padding and the compact halo, against padding the whole tensor element by element.
#include "halos.h"

using namespace meshrun::test;
using meshrun::emu::text;

namespace {

constexpr uint32_t kLengths[] = {1, 2, 3, 4, 8};

std::string describe(const TestMesh& mesh, const HaloCase& c) {
  std::string s = std::to_string(mesh.rows()) + "x" + std::to_string(mesh.cols()) + " " + text(c.local);
  for (uint32_t i = 0; i < c.count; ++i)
    s += " dim " + std::to_string(c.dims[i]) + " axis " + std::to_string(c.axes[i]) + " pads " + std::to_string(c.left[i]) + "," + std::to_string(c.right[i]) +
         " links " + std::to_string(c.links[i]);
  return s + (c.mode == MR_PAD_ZEROS ? " zeros" : " replicate") + " logical_h " + std::to_string(c.logical_h) + " t_front " + std::to_string(c.t_front);
}

void random_pads(Dice& dice, HaloCase& c) {
  do {
    for (uint32_t i = 0; i < c.count; ++i) {
      const uint32_t most = std::min(3u, c.local.dims[c.dims[i]]);
      c.left[i] = dice.of(0, most);
      c.right[i] = dice.of(0, most);
      if (dice.of(0, 5) == 0) c.left[i] = c.right[i] = 0;
    }
  } while (c.left[0] + c.right[0] + c.left[1] + c.right[1] == 0);
}

void random_links(Dice& dice, HaloCase& c, uint32_t links) {
  const uint32_t first = c.left[0] + c.right[0] != 0 ? c.dims[0] : c.dims[1];
  for (uint32_t i = 0; i < c.count; ++i) c.links[i] = dice.of(1, std::min<uint32_t>(links, static_cast<uint32_t>(c.local.product(0, first))));
}

HaloCase random_pad(Dice& dice, uint32_t rows, uint32_t cols, uint32_t links) {
  HaloCase c;
  c.local.rank = dice.of(3, 6);
  for (uint32_t d = 0; d < c.local.rank; ++d) c.local.dims[d] = dice.of(1, c.local.rank > 4 ? 3 : 5);
  c.count = dice.of(1, 2);
  c.dims[0] = dice.of(0, c.local.rank - 1);
  do c.dims[1] = dice.of(0, c.local.rank - 1);
  while (c.dims[1] == c.dims[0]);
  c.axes[0] = dice.of(0, 1);
  c.axes[1] = 1 - c.axes[0];
  c.mode = dice.coin() ? MR_PAD_ZEROS : MR_PAD_REPLICATE;
  random_pads(dice, c);
  random_links(dice, c, links);
  if (dice.of(0, 2) == 0) c.logical_h = dice.of(1, c.local.dims[c.dims[0]] * (c.axes[0] == 0 ? rows : cols));
  if (dice.of(0, 2) == 0 && c.dims[0] != 0 && (c.count == 1 || c.dims[1] != c.dims[0] - 1)) c.t_front = dice.of(1, 2);
  return c;
}

// Several paddings one after another on two banks, into persistent buffers or new ones, on skewed devices.
template <class T>
void play_pad(uint32_t seed, DType dtype) {
  Dice dice(seed);
  const uint32_t rows = kLengths[dice.of(0, 4)], cols = kLengths[dice.of(0, rows > 2 ? 3 : 4)], links = dice.of(1, 4);
  TestMesh mesh(rows, cols, "num_links=" + std::to_string(links) + "\nskew_us=" + std::to_string(dice.of(0, 200)) + "\nseed=" + std::to_string(seed) +
                                "\nchunk_bytes=" + std::to_string(4 * dice.of(1, 20)) + "\nthreads=" + std::to_string(dice.of(1, 3)));
  const HaloCase c = random_pad(dice, rows, cols, links);
  INFO("seed " << seed << " " << describe(mesh, c));
  const HaloBank banks[2] = {HaloBank(mesh), HaloBank(mesh)};
  const bool persistent = dice.coin();
  mr_handle outputs[2] = {};
  if (persistent)
    for (mr_handle& h : outputs) h = mesh.alloc(row_major(c.padded(), dtype));
  std::vector<Whole<T>> wholes;
  std::vector<mr_handle> results;
  for (uint32_t i = 0; i < 6; ++i) {
    wholes.emplace_back(rows, cols, c, seed * 10 + i);
    auto op = neighbor_pad_op(upload_rows(mesh, c.local, dtype, wholes.back().shards()), c, banks[i % 2]);
    op.output = outputs[i % 2];
    mesh.enqueue(op);
    results.push_back(persistent ? snapshot(mesh, op.output, c.padded()) : op.output);
  }
  mesh.sync();
  for (size_t i = 0; i < wholes.size(); ++i)
    for (uint32_t d = 0; d < mesh.devices(); ++d) REQUIRE(mesh.read<T>(results[i], d) == wholes[i].padded(d));
  for (const HaloBank& b : banks) REQUIRE(at_rest(mesh, b));
}

template <class T>
void play_compact(uint32_t seed, DType dtype) {
  Dice dice(seed);
  const uint32_t rows = kLengths[dice.of(0, 4)], cols = kLengths[dice.of(0, rows > 2 ? 3 : 4)], links = dice.of(1, 4);
  TestMesh mesh(rows, cols, "num_links=" + std::to_string(links) + "\nskew_us=" + std::to_string(dice.of(0, 200)) + "\nseed=" + std::to_string(seed) +
                                "\nchunk_bytes=" + std::to_string(4 * dice.of(1, 20)) + "\nthreads=" + std::to_string(dice.of(1, 3)));
  HaloCase c;
  c.local.rank = dice.of(3, 5);
  for (uint32_t d = 0; d < c.local.rank; ++d) c.local.dims[d] = dice.of(1, 4);
  c.count = dice.of(1, 2);
  c.dims[0] = c.local.rank - 3;
  c.dims[1] = c.local.rank - 2;
  c.axes[0] = dice.of(0, 1);
  c.axes[1] = 1 - c.axes[0];
  c.mode = dice.coin() ? MR_PAD_ZEROS : MR_PAD_REPLICATE;
  random_pads(dice, c);
  random_links(dice, c, links);
  INFO("seed " << seed << " " << describe(mesh, c));
  const uint32_t h = c.dims[0], w = c.dims[1];

  // The input may be a padded tensor itself, of which the interior counts.
  const uint32_t skip_h = dice.of(0, 2), skip_w = c.count == 2 ? dice.of(0, 2) : 0;
  Shape around = c.local;
  around.dims[h] += 2 * skip_h;
  around.dims[w] += 2 * skip_w;
  const bool into_padded = dice.coin(), in_place = dice.coin();
  const Shape full = c.padded();
  const HaloBank banks[2] = {HaloBank(mesh), HaloBank(mesh)};
  const size_t sticks = compact_of(std::vector<T>(full.elements()), full, c.left, c.right).size() / c.local.dims[w + 1];
  const Shape compact = shape({static_cast<uint32_t>(sticks), c.local.dims[w + 1]});
  const mr_handle halos[2] = {mesh.alloc(row_major(compact, dtype)), mesh.alloc(row_major(compact, dtype))};
  const mr_handle padded[2] = {mesh.alloc(row_major(full, dtype)), mesh.alloc(row_major(full, dtype))};

  std::vector<Whole<T>> wholes;
  std::vector<mr_handle> compacts, scattered;
  for (uint32_t i = 0; i < 5; ++i) {
    wholes.emplace_back(rows, cols, c, seed * 10 + i);
    const Shards<T> bare = wholes.back().shards();
    Shards<T> input = random_shards<T>(mesh.devices(), around, seed + i);
    for (uint32_t d = 0; d < mesh.devices(); ++d)
      each(c.local, [&](Index at) {
        const T x = bare[d][flat(c.local, at)];
        at[h] += skip_h;
        at[w] += skip_w;
        input[d][flat(around, at)] = x;
      });
    auto op = neighbor_pad_halo_op(upload_rows(mesh, around, dtype, input), halos[i % 2], c, banks[i % 2]);
    op.input_pad_h = skip_h;
    op.input_pad_w = skip_w;
    if (into_padded) op.padded_output = padded[i % 2];
    mesh.enqueue(op);
    compacts.push_back(snapshot(mesh, op.halo, compact));

    auto scatter = make_op<mr_halo_scatter>(MR_OP_HALO_SCATTER);
    scatter.compact = op.halo;
    scatter.pad_h_left = c.left[0];
    scatter.pad_h_right = c.right[0];
    scatter.pad_w_left = c.left[1];
    scatter.pad_w_right = c.right[1];
    scatter.border_only = into_padded;
    scatter.padded = into_padded ? op.padded_output : upload_rows(mesh, c.local, dtype, bare);
    if (into_padded && in_place) scatter.output = scatter.padded;
    mesh.enqueue(scatter);
    if (into_padded) REQUIRE(scatter.output == scatter.padded);
    scattered.push_back(snapshot(mesh, scatter.output, full));
  }
  mesh.sync();
  for (size_t i = 0; i < wholes.size(); ++i)
    for (uint32_t d = 0; d < mesh.devices(); ++d) {
      const std::vector<T> wanted = wholes[i].padded(d);
      REQUIRE(mesh.read<T>(compacts[i], d) == compact_of(wanted, full, c.left, c.right));
      REQUIRE(mesh.read<T>(scattered[i], d) == wanted);
    }
  for (const HaloBank& b : banks) REQUIRE(at_rest(mesh, b));
}

}  // namespace

TEST_CASE("neighbor_pad: random tensors, dims, pads, meshes and skews") {
  for (uint32_t seed = 1; seed <= 160; seed += 4) {
    play_pad<uint16_t>(seed, DType::bfloat16);
    play_pad<uint32_t>(seed + 1, DType::float32);
    play_pad<uint32_t>(seed + 2, DType::uint32);
    play_pad<uint8_t>(seed + 3, DType::uint8);
  }
}

TEST_CASE("neighbor_pad_halo and halo_scatter: random tensors, pads, meshes and skews") {
  for (uint32_t seed = 1; seed <= 120; seed += 4) {
    play_compact<uint16_t>(seed, DType::bfloat16);
    play_compact<uint32_t>(seed + 1, DType::float32);
    play_compact<uint32_t>(seed + 2, DType::uint32);
    play_compact<uint8_t>(seed + 3, DType::uint8);
  }
}

TEST_CASE("neighbor_pad: rows past the logical height count as zeros") {
  TestMesh mesh(2, 1);
  const HaloBank bank(mesh);
  for (const uint32_t mode : {MR_PAD_ZEROS, MR_PAD_REPLICATE}) {
    HaloCase c{.local = shape({1, 3, 1}), .dims = {1}, .left = {1}, .right = {1}, .mode = mode, .logical_h = 5};
    auto op = neighbor_pad_op(upload_rows<float>(mesh, c.local, DType::float32, {{1, 2, 3}, {4, 5, 6}}), c, bank);
    mesh.enqueue(op);
    mesh.sync();
    CHECK(mesh.read<float>(op.output, 0) == std::vector<float>{mode == MR_PAD_ZEROS ? 0.f : 1.f, 1, 2, 3, 4});
    CHECK(mesh.read<float>(op.output, 1) == std::vector<float>{3, 4, 5, 0, 0});
  }
}

TEST_CASE("neighbor_pad: frames in front are zeros, in the halo rows too") {
  TestMesh mesh(2, 1);
  const HaloBank bank(mesh);
  for (const uint32_t mode : {MR_PAD_ZEROS, MR_PAD_REPLICATE}) {
    const HaloCase c{.local = shape({3, 2, 1}), .dims = {1}, .left = {1}, .right = {1}, .mode = mode, .t_front = 2};
    auto op = neighbor_pad_op(upload_rows<float>(mesh, c.local, DType::float32, {{1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12}}), c, bank);
    op.output = mesh.alloc(row_major(c.padded(), DType::float32));
    mesh.write<float>(op.output, c.padded(), {std::vector<float>(20, 99), std::vector<float>(20, 99)});
    mesh.enqueue(op);
    mesh.sync();
    const float edge = mode == MR_PAD_ZEROS ? 0 : 1;
    CHECK(mesh.read<float>(op.output, 0) == std::vector<float>{0, 0, 0, 0, 0, 0, 0, 0, edge, 1, 2, 7, edge * 3, 3, 4, 9, edge * 5, 5, 6, 11});
  }
}

// Repeated exchanges of rotating buffers and semaphores, without a look from the host: what a test of one call never sees.
namespace {

struct Played {
  uint32_t wrong = 0;
  Answer fence;
};

// One-sided pads along axis 1 run from device to device without an answer: only the barrier or the handshake holds the first back.
Played repeat(const std::string& config, const HaloCase& c, uint32_t rows, uint32_t cols, const char* fault, uint32_t launches) {
  TestMesh mesh(rows, cols, "clock=lockstep\n" + config + (config.find("break=") != std::string::npos ? "\non_hazard=continue" : ""));
  REQUIRE(mesh.fault(fault).code == MR_OK);
  const HaloBank banks[2] = {HaloBank(mesh), HaloBank(mesh)};
  const mr_handle outputs[2] = {mesh.alloc(row_major(c.padded(), DType::uint32)), mesh.alloc(row_major(c.padded(), DType::uint32))};
  std::vector<Whole<uint32_t>> wholes;
  std::vector<mr_handle> results;
  for (uint32_t i = 0; i < launches; ++i) {
    wholes.emplace_back(rows, cols, c, i);
    auto op = neighbor_pad_op(upload_rows(mesh, c.local, DType::uint32, wholes.back().shards()), c, banks[i % 2]);
    op.output = outputs[i % 2];
    mesh.enqueue(op);
    results.push_back(snapshot(mesh, op.output, c.padded()));
  }
  Played played;
  played.fence = mesh.fence();
  if (played.fence.code != MR_OK) return played;
  for (size_t i = 0; i < results.size(); ++i)
    for (uint32_t d = 0; d < mesh.devices(); ++d) played.wrong += mesh.read<uint32_t>(results[i], d) != wholes[i].padded(d);
  return played;
}

}  // namespace

TEST_CASE("halo exchanges: the start barrier matters") {
  const HaloCase one_sided{.local = shape({2, 3, 4}), .dims = {1}, .axes = {1}, .left = {1}, .right = {0}};
  for (const bool broken : {false, true}) {
    const Played p = repeat(broken ? "break=no_start_barrier" : "", one_sided, 1, 2, "device 0,1 delay 1ms", 12);
    CHECK((p.fence.code != MR_OK || p.wrong != 0) == broken);
  }
  // H goes both ways, so that a neighbour is one launch ahead at most and two banks suffice. But the area of corner sticks is not banked:
  // device 0,0 writes those of the next launch while 1,0 still waits for 1,1 to pass these on.
  const HaloCase corners{.local = shape({2, 3, 4, 2}), .count = 2, .dims = {1, 2}, .axes = {0, 1}, .left = {1, 1}, .right = {1, 0}};
  for (const bool broken : {false, true}) {
    const Played p = repeat(broken ? "break=no_start_barrier" : "", corners, 2, 2, "device 1,1 delay 1ms", 12);
    CHECK(p.fence.code == MR_OK);
    CHECK((p.wrong != 0) == broken);
  }
}

TEST_CASE("halo exchanges: the handshake on the second axis matters") {
  const HaloCase c{.local = shape({2, 3, 4, 2}), .count = 2, .dims = {1, 2}, .axes = {0, 1}, .left = {1, 1}, .right = {1, 0}};
  for (const bool broken : {false, true}) {
    const Played p = repeat(broken ? "break=no_handshake" : "", c, 1, 2, "device 0,1 delay 1ms", 12);
    CHECK((p.fence.code != MR_OK || p.wrong != 0) == broken);
  }
}

TEST_CASE("halo exchanges: always along lines") {
  const HaloCase c{.local = shape({2, 3, 4}), .dims = {1}, .axes = {1}, .left = {1}, .right = {1}};
  for (const bool broken : {false, true}) {
    const Played p = repeat(std::string("preset=wh-galaxy-4x8") + (broken ? "\nbreak=ring_halo" : ""), c, 4, 8, "device 0,1 delay 1us", 3);
    CHECK(p.fence.code == MR_OK);
    CHECK((p.wrong != 0) == broken);
  }
}

TEST_CASE("halo exchanges: 200 in a queue on skewed devices") {
  const HaloCase c{.local = shape({1, 2, 3, 2}), .count = 2, .dims = {1, 2}, .axes = {0, 1}, .left = {1, 1}, .right = {1, 1}, .mode = MR_PAD_REPLICATE};
  const Played p = repeat("skew_us=3000\nseed=7", c, 2, 2, "device 1,1 delay 1us", 200);
  CHECK(p.fence.code == MR_OK);
  CHECK(p.wrong == 0);
}

TEST_CASE("neighbor_pad: refusals name field, value and rule, and enqueue nothing") {
  TestMesh mesh(2, 2, "num_links=2");
  const HaloBank bank(mesh);
  const HaloCase c{.local = shape({1, 3, 4, 2}), .count = 2, .dims = {1, 2}, .axes = {0, 1}, .left = {1, 1}, .right = {1, 1}};
  const mr_handle input = mesh.alloc(row_major(c.local, DType::bfloat16));
  const auto refused = [&](const char* says, auto change, int32_t code = MR_REJECTED) {
    auto op = neighbor_pad_op(input, c, bank);
    change(op);
    const mr_handle output = op.output;
    const Answer a = mesh.try_enqueue(op);
    INFO(a.text);
    CHECK(a.code == code);
    CHECK(a.says("neighbor_pad: "));
    CHECK(a.says(says));
    CHECK(op.output == output);
  };
  using Op = mr_neighbor_pad&;
  refused("input is 0", [](Op o) { o.input = 0; });
  refused("input", [](Op o) { o.input += uint64_t{1} << 32; }, MR_STALE_HANDLE);
  refused("must be row major", [&](Op o) { o.input = mesh.alloc(c.local); });
  refused("count is 3: must be 1..2", [](Op o) { o.count = 3; });
  refused("mode is 0: must be 1..2", [](Op o) { o.mode = 0; });
  refused("dims is 4: must be 0..3", [](Op o) { o.dims[1] = 4; });
  refused("dims are 1 and 1", [](Op o) { o.dims[1] = 1; });
  refused("axes are 0 and 0", [](Op o) { o.axes[1] = 0; });
  refused("axes is 2", [](Op o) { o.axes[1] = 2; });
  refused("pad_left is 4: must be at most 3, the local extent of dim 1", [](Op o) { o.pad_left[0] = 4; });
  refused("pad_right is 5: must be at most 4, the local extent of dim 2", [](Op o) { o.pad_right[1] = 5; });
  refused("pad_left and pad_right are 0", [](Op o) { o.pad_left[0] = o.pad_left[1] = o.pad_right[0] = o.pad_right[1] = 0; });
  refused("num_links is 0", [](Op o) { o.num_links[0] = 0; });
  refused("num_links is 3: axis 1 has 2", [](Op o) { o.num_links[1] = 3; });
  refused("num_links is 2: must be at most 1, the product", [](Op o) { o.num_links[0] = 2; });
  refused("semaphores[1] is 0", [](Op o) { o.semaphores[1] = 0; });
  refused("semaphores[0] is given: dim 1 has no pads", [](Op o) { o.pad_left[0] = o.pad_right[0] = 0; });
  refused("semaphores[0]", [](Op o) { o.semaphores[0] += uint64_t{1} << 32; }, MR_STALE_HANDLE);
  refused("barrier is 0", [](Op o) { o.barrier = 0; });
  refused("must be different semaphores", [](Op o) { o.barrier = o.semaphores[0]; });
  refused("logical_h is 7: must be at most 6", [](Op o) { o.h.present = MR_HAS_LOGICAL_H, o.logical_h = 7; });
  refused("present is 0x2", [](Op o) { o.h.present = 2; });
  refused("t_front_pad is 1: there is no dim", [](Op o) { o.dims[0] = 0, o.pad_left[0] = 1, o.pad_right[0] = 0, o.t_front_pad = 1; });
  refused("t_front_pad is 1: dim 1", [](Op o) { o.dims[0] = 2, o.dims[1] = 1, o.t_front_pad = 1; });
  refused("output is [1,3,4,2]", [&](Op o) { o.output = mesh.alloc(row_major(c.local, DType::bfloat16)); });
}

TEST_CASE("neighbor_pad_halo and halo_scatter: refusals") {
  TestMesh mesh(2, 2);
  const HaloBank bank(mesh);
  const HaloCase c{.local = shape({1, 3, 4, 2}), .count = 2, .dims = {1, 2}, .axes = {0, 1}, .left = {1, 1}, .right = {1, 1}};
  const mr_handle input = mesh.alloc(row_major(c.local, DType::bfloat16)), halo = mesh.alloc(row_major(shape({18, 2}), DType::bfloat16));
  const auto refused = [&](const char* says, auto change) {
    auto op = neighbor_pad_halo_op(input, halo, c, bank);
    change(op);
    const Answer a = mesh.try_enqueue(op);
    INFO(a.text);
    CHECK(a.code == MR_REJECTED);
    CHECK(a.says(says));
  };
  using Op = mr_neighbor_pad_halo&;
  refused("halo is [17,2]", [&](Op o) { o.halo = mesh.alloc(row_major(shape({17, 2}), DType::bfloat16)); });
  refused("halo is 0", [](Op o) { o.halo = 0; });
  refused("semaphore_w is 0", [](Op o) { o.semaphore_w = 0; });
  refused("there is no W part", [](Op o) { o.h.present = 0; });
  refused("input_pad_h is 2: leaves nothing", [](Op o) { o.input_pad_h = 2; });
  refused("pad_left is 2: must be at most 1", [](Op o) { o.input_pad_h = 1, o.pad_h_left = 2; });
  refused("padded_output is [1,3,4,2]", [&](Op o) { o.padded_output = mesh.alloc(row_major(c.local, DType::bfloat16)); });
  refused("shares its memory", [&](Op o) {
    // A view of the input would be written while it is read.
    const mr_handle big = mesh.alloc(row_major(shape({1, 5, 6, 2}), DType::bfloat16));
    const uint32_t dims[] = {1, 3, 4, 2};
    mr_error e = fresh_error();
    REQUIRE(driver().tensor_view(mesh.handle(), big, 4, dims, &o.input, &e) == MR_OK);
    o.padded_output = big;
  });

  const auto refused_scatter = [&](const char* says, auto change) {
    auto op = make_op<mr_halo_scatter>(MR_OP_HALO_SCATTER);
    op.compact = halo;
    op.padded = input;
    op.pad_h_left = op.pad_h_right = op.pad_w_left = op.pad_w_right = 1;
    change(op);
    const Answer a = mesh.try_enqueue(op);
    INFO(a.text);
    CHECK(a.code == MR_REJECTED);
    CHECK(a.says(says));
  };
  using Scatter = mr_halo_scatter&;
  refused_scatter("compact is [18,2]", [](Scatter o) { o.pad_h_left = 2; });
  refused_scatter("must have an interior within", [](Scatter o) { o.border_only = 1, o.pad_h_left = 2; });
  refused_scatter("border_only is 2", [](Scatter o) { o.border_only = 2; });
  refused_scatter("there is no halo", [](Scatter o) { o.pad_h_left = o.pad_h_right = o.pad_w_left = o.pad_w_right = 0; });
  refused_scatter("another tensor than padded", [&](Scatter o) {
    o.border_only = 1;
    o.padded = mesh.alloc(row_major(shape({1, 5, 6, 2}), DType::bfloat16));
    o.output = mesh.alloc(row_major(shape({1, 5, 6, 2}), DType::bfloat16));
  });
  refused_scatter("must be row major", [&](Scatter o) { o.padded = mesh.alloc(c.local); });
}

TEST_CASE("halo exchanges: timing holds no data and goes by the links") {
  const HaloCase c{.local = shape({8, 64, 64, 128}), .count = 2, .dims = {1, 2}, .axes = {0, 1}, .left = {1, 1}, .right = {1, 1}};
  uint64_t ns[2] = {}, bytes[2] = {};
  for (const uint32_t links : {1u, 2u}) {
    TestMesh mesh(4, 8, "preset=bh-galaxy-4x8\nmode=timing");
    const HaloBank bank(mesh);
    HaloCase with = c;
    with.links[0] = with.links[1] = links;
    auto op = neighbor_pad_op(mesh.alloc(row_major(c.local, DType::bfloat16)), with, bank);
    const Shape compact = shape({8 * (2 * 64 + 2 * 66), 128});
    auto halo = neighbor_pad_halo_op(op.input, mesh.alloc(row_major(compact, DType::bfloat16)), with, bank);
    halo.h.launch = 0;
    mesh.enqueue(op);
    halo.semaphore_h = mesh.semaphores(1)[0];
    mesh.enqueue(halo);
    mesh.sync();
    CHECK(at_rest(mesh, bank));
    mr_launch_profile p{};
    p.size = sizeof p;
    mr_error e = fresh_error();
    REQUIRE(extension().launch_profile(mesh.handle(), 2, &p, &e) == MR_OK);
    ns[links - 1] = p.end_ns - p.start_ns;
    const std::string report = mesh.report();
    const size_t at = report.find("bytes_over_links\":");
    bytes[links - 1] = std::stoull(report.substr(at + 18));
  }
  // H: 3 edges of 8 columns both ways, 8*64 sticks each. W: 7 edges of 4 rows, 8*66 sticks. Twice, and some control packets.
  const uint64_t sticks = 2 * (3 * 8 * 8 * 64 + 7 * 4 * 8 * 66);
  CHECK(bytes[0] > 2 * sticks * 256);
  CHECK(bytes[0] < 2 * sticks * 256 + 100'000);
  CHECK(bytes[1] == bytes[0]);
  CHECK(ns[1] < ns[0]);
  CHECK(ns[1] > ns[0] / 3);
}
