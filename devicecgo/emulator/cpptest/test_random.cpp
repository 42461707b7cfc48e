// Random collectives, several in a queue, on random meshes, under random skew, against plain computations.
#include "collectives.h"

using namespace meshrun::test;

namespace {

class Dice {
 public:
  explicit Dice(uint32_t seed) : random_(seed) {}
  uint32_t of(uint32_t least, uint32_t most) { return std::uniform_int_distribution<uint32_t>(least, most)(random_); }
  bool coin() { return of(0, 1) == 1; }

 private:
  std::mt19937 random_;
};

struct Gather {
  mr_handle output;
  Shards<uint16_t> input;
  Shape s;
  uint32_t dim, axis;
};
struct Scatter {
  mr_handle output;
  Shards<uint32_t> input;
  Shape s;
  uint32_t dim, axis;
};

// Twelve launches on one mesh; sums are of integers, so that any order gives the same.
void play(uint32_t seed) {
  CAPTURE(seed);
  Dice dice(seed);
  const uint32_t rows = dice.of(1, 4), cols = dice.of(1, rows > 2 ? 5 : 9), links = dice.of(1, 3);
  const std::string config = "num_links=" + std::to_string(links) + "\nskew_us=" + std::to_string(dice.of(0, 100)) + "\nseed=" + std::to_string(seed) +
                             "\nchunk_bytes=" + std::to_string(4 * dice.of(1, 200)) + "\nthreads=" + std::to_string(dice.of(1, 3)) +
                             (dice.coin() ? "\nclock=lockstep" : "");
  CAPTURE(config);
  TestMesh mesh(rows, cols, config);
  const Bank banks[2][2] = {{Bank(mesh), Bank(mesh)}, {Bank(mesh), Bank(mesh)}};
  uint32_t turn[2] = {0, 0};
  std::vector<Gather> gathers;
  std::vector<Scatter> scatters;
  for (int i = 0; i < 12; ++i) {
    const uint32_t axis = dice.of(0, 1), n = axis == 0 ? rows : cols, dim = dice.of(0, 3);
    const bool ring = n > 2 && dice.coin();
    Shape s = shape({dice.of(1, 2), dice.of(1, 3), dice.of(1, 40), dice.of(1, 40)});
    const Bank& bank = banks[axis][turn[axis]++ % 2];
    const uint32_t use = dice.of(1, links), per_sync = dice.of(0, 3);
    const auto tune = [&](auto& op) {
      if (per_sync == 0) return;
      op.h.present = MR_HAS_CHUNKS_PER_SYNC;
      op.chunks_per_sync = per_sync;
    };
    if (dice.coin()) {
      Gather g{0, random_shards<uint16_t>(mesh.devices(), s, seed * 100 + i), s, dim, axis};
      auto op = all_gather_op(mesh.upload(s, DType::uint16, g.input), dim, axis, ring, bank, true, use);
      tune(op);
      mesh.enqueue(op);
      g.output = op.output;
      gathers.push_back(std::move(g));
    } else {
      s.dims[dim] *= n;
      Scatter c{0, random_shards<uint32_t>(mesh.devices(), s, seed * 100 + i), s, dim, axis};
      auto op = reduce_scatter_op(mesh.upload(s, DType::uint32, c.input), dim, axis, ring, bank, use);
      tune(op);
      mesh.enqueue(op);
      c.output = op.output;
      scatters.push_back(std::move(c));
    }
  }
  mesh.sync();
  for (const Gather& g : gathers)
    for (uint32_t d = 0; d < mesh.devices(); ++d)
      REQUIRE(mesh.read<uint16_t>(g.output, d) == gathered(g.input, line_of(rows, cols, d, g.axis), g.s, g.dim));
  for (const Scatter& c : scatters)
    for (uint32_t d = 0; d < mesh.devices(); ++d) {
      std::vector<uint32_t> sum(c.s.elements());
      for (const uint32_t peer : line_of(rows, cols, d, c.axis))
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += c.input[peer][i];
      const uint32_t position = c.axis == 0 ? d / cols : d % cols;
      REQUIRE(mesh.read<uint32_t>(c.output, d) == slice_of(sum, c.s, c.dim, c.axis == 0 ? rows : cols, position));
    }
  for (const auto& axis : banks)
    for (const Bank& b : axis) REQUIRE(at_rest(mesh, b));
}

}  // namespace

TEST_CASE("random collectives") {
  for (uint32_t seed = 1; seed <= 120; ++seed) play(seed);
}
