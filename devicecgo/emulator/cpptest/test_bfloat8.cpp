// bfloat8_b: against rounding block by block, written down plainly in double.
#include "fused.h"

#include "../kernel_bfloat8.h"

using namespace meshrun::test;

namespace {

// Blocks of 16 along rows of `width`: the exponent of the largest, 7 bits below it.
std::vector<float> rounded(const std::vector<double>& x, size_t width) {
  std::vector<float> out(x.size());
  for (size_t row = 0; row < x.size(); row += width)
    for (size_t begin = 0; begin < width; begin += 16) {
      const size_t end = std::min(begin + 16, width);
      double largest = 0;
      for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(double(float(x[row + i]))));
      if (largest == 0) continue;
      const int e = std::ilogb(largest);
      for (size_t i = begin; i < end; ++i) {
        const double v = float(x[row + i]);
        const double cut = std::ldexp(std::floor(std::ldexp(std::abs(v), 23 - e)), e - 23);       // what 24 bits hold
        const double size = std::min(std::nearbyint(std::ldexp(cut, 6 - e)), 127.0);
        out[row + i] = static_cast<float>(std::copysign(std::ldexp(size, e - 6), size == 0 ? 0.0 : v));
      }
    }
  return out;
}
std::vector<float> rounded(const std::vector<float>& x, size_t width) { return rounded(std::vector<double>(x.begin(), x.end()), width); }
Shards<float> rounded(const Shards<float>& x, size_t width) {
  Shards<float> out;
  for (const auto& v : x) out.push_back(rounded(v, width));
  return out;
}

// Values of many sizes.
Shards<float> wild(uint32_t devices, const Shape& s, uint32_t seed) {
  Shards<float> x = random_floats(devices, s, seed, false);
  std::mt19937 random(seed + 1);
  for (auto& v : x)
    for (float& f : v) f = std::ldexp(f, static_cast<int>(random() % 24) - 12);
  return x;
}

constexpr DType kBlock = DType::bfloat8_b;

mr_convert cast(mr_handle input, DType to, uint32_t layout = MR_TILE) {
  auto op = make_op<mr_convert>(MR_OP_CONVERT);
  op.input = input;
  op.dtype = static_cast<uint32_t>(to);
  op.layout = layout;
  return op;
}

// got is what expected rounds to, but for results of arithmetic that lie so close to the middle that the last bit may go either way.
bool close_blocks(const std::vector<float>& got, const std::vector<double>& expected, size_t width) {
  if (rounded(got, width) != got) return false;
  const std::vector<float> want = rounded(expected, width);
  size_t off = 0;
  for (size_t row = 0; row < got.size(); row += width)
    for (size_t begin = 0; begin < width; begin += 16) {
      double largest = 0;
      for (size_t i = begin; i < std::min(begin + 16, width); ++i) largest = std::max(largest, std::abs(expected[row + i]));
      for (size_t i = begin; i < std::min(begin + 16, width); ++i) {
        if (got[row + i] == want[row + i]) continue;
        ++off;
        if (std::abs(got[row + i] - want[row + i]) > largest / 32) return false;  // two units
      }
    }
  return off * 100 <= got.size();
}

}  // namespace

TEST_CASE("bfloat8_b: rounding") {
  const auto one = [](std::vector<float> v) {
    meshrun::emu::round_block(v.data(), v.size());
    return v;
  };
  using V = std::vector<float>;
  CHECK(one({1, 0.5f, -0.25f, 0}) == V{1, 0.5f, -0.25f, 0});
  CHECK(one({1, 1.0f / 64, 1.0f / 128, 1.0f / 256}) == V{1, 1.0f / 64, 0, 0});            // half of the last bit: to even, which is 0
  CHECK(one({1, 1.5f / 64, 2.5f / 64, -3.5f / 64}) == V{1, 2.0f / 64, 2.0f / 64, -4.0f / 64});
  CHECK(one({1.999f}) == V{127.0f / 64});                                                 // saturates, and does not become 2
  CHECK(one({2, 1.999f}) == V{2, 2});
  CHECK(one({1024, 1}) == V{1024, 0});
  CHECK(!std::signbit(one({1, -1e-6f})[1]));
  CHECK(!std::signbit(one({-0.0f})[0]));
  CHECK(one({1e-40f}) == V{0});
  const float inf = INFINITY;
  CHECK(one({inf, -inf, 1}) == V{inf, -inf, 0});
  CHECK(std::isnan(one({NAN, 1})[0]));
  // What lies below 24 bits of the largest does not break a tie.
  CHECK(one({std::ldexp(1.0f, 20), std::ldexp(1.0f, 13) + std::ldexp(1.0f, -9)})[1] == 0);
  CHECK(one({std::ldexp(1.0f, 20), std::ldexp(1.0f, 13) + std::ldexp(1.0f, -3)})[1] == std::ldexp(1.0f, 14));
}

TEST_CASE("bfloat8_b: writes round, rows of any width, and again changes nothing") {
  TestMesh mesh(2, 2);
  for (const Shape& s : {shape({1, 1, 32, 32}), shape({2, 3, 5, 37}), shape({7}), shape({3, 100}), shape({1, 1, 1, 1})}) {
    CAPTURE(meshrun::emu::text(s));
    const auto x = wild(4, s, 5);
    const mr_handle h = mesh.upload(s, kBlock, x);
    const auto expected = rounded(x, s.back(0));
    CHECK(expected != x);
    for (uint32_t d = 0; d < 4; ++d) CHECK(mesh.read<float>(h, d) == expected[d]);
    mesh.write(h, s, expected);
    for (uint32_t d = 0; d < 4; ++d) CHECK(mesh.read<float>(h, d) == expected[d]);
  }
}

TEST_CASE("bfloat8_b: 1088 bytes a tile") {
  TestMesh mesh(1, 1);
  const auto live = [&] {
    const std::string report = mesh.report(), key = "\"dram_live_bytes\":";
    return std::stoull(report.substr(report.find(key) + key.size()));
  };
  const auto before = live();
  mesh.alloc(shape({2, 3, 33, 64}), kBlock);
  CHECK(live() - before == 2 * 3 * 2 * 2 * 1088);
}

TEST_CASE("bfloat8_b: casts") {
  TestMesh mesh(1, 2);
  const Shape s = shape({1, 2, 9, 50});
  const auto x = wild(2, s, 8);
  for (const DType from : {DType::float32, DType::bfloat16}) {
    const Shards<float> held = from == DType::bfloat16 ? Shards<float>{widened(bf16(x[0])), widened(bf16(x[1]))} : x;
    auto to = cast(upload_floats(mesh, s, from, x), kBlock);
    mesh.enqueue(to);
    auto back = cast(to.output, DType::float32), narrow = cast(to.output, DType::bfloat16, MR_ROW_MAJOR);
    mesh.enqueue(back);
    mesh.enqueue(narrow);
    mesh.sync();
    for (uint32_t d = 0; d < 2; ++d) {
      const auto expected = rounded(held[d], 50);
      CHECK(mesh.read<float>(to.output, d) == expected);
      CHECK(mesh.read<float>(back.output, d) == expected);
      CHECK(widened(mesh.read<uint16_t>(narrow.output, d)) == expected);  // 7 bits fit
    }
  }
  auto bad = cast(mesh.alloc(s, DType::float32), kBlock, MR_ROW_MAJOR);
  CHECK(mesh.try_enqueue(bad).says("bfloat8_b must be in tile layout"));
}

TEST_CASE("bfloat8_b: gathers are bit exact, also into persistent buffers") {
  for (const bool ring : {false, true})
    for (const uint32_t dim : {1u, 2u, 3u}) {
      TestMesh mesh(1, 4, "num_links=2\nchunk_bytes=64");
      const Shape s = shape({1, 2, 5, 48});
      Shape whole = s;
      whole.dims[dim] *= 4;
      const auto x = rounded(wild(4, s, dim), 48);
      const Bank banks[] = {Bank(mesh), Bank(mesh)};
      const mr_handle input = mesh.upload(s, kBlock, x);
      auto fresh = all_gather_op(input, dim, 1, ring, banks[0], true, 2), kept = all_gather_op(input, dim, 1, ring, banks[1], true, 2);
      kept.output = mesh.alloc(whole, kBlock);
      mesh.enqueue(fresh);
      mesh.enqueue(kept);
      mesh.sync();
      for (uint32_t d = 0; d < 4; ++d) {
        const auto expected = gathered(x, line_of(1, 4, d, 1), s, dim);
        CHECK(rounded(expected, whole.back(0)) == expected);
        CHECK(mesh.read<float>(fresh.output, d) == expected);
        CHECK(mesh.read<float>(kept.output, d) == expected);
      }
    }
  TestMesh mesh(1, 4);
  const Bank bank(mesh);
  auto torn = all_gather_op(mesh.alloc(shape({1, 1, 4, 40}), kBlock), 3, 1, true, bank);
  CHECK(mesh.try_enqueue(torn).says("only in whole blocks of 16"));
}

TEST_CASE("bfloat8_b: sums are rounded once, by the owner") {
  for (const bool ring : {false, true})
    for (const uint32_t dim : {2u, 3u})
      for (const uint32_t width : {96u, 40u}) {
        TestMesh mesh(1, 4, "num_links=2\nchunk_bytes=64");
        const Shape s = shape({1, 2, 8, width});
        const auto x = rounded(wild(4, s, dim), width);
        const Bank bank(mesh);
        auto op = reduce_scatter_op(mesh.upload(s, kBlock, x), dim, 1, ring, bank, 2);
        mesh.enqueue(op);
        mesh.sync();
        std::vector<double> sum(s.elements());
        for (const auto& v : x)
          for (size_t i = 0; i < v.size(); ++i) sum[i] += v[i];
        for (uint32_t d = 0; d < 4; ++d)
          CHECK(close_blocks(mesh.read<float>(op.output, d), slice_of(sum, s, dim, 4, d), dim == 3 ? width / 4 : width));
        CHECK(at_rest(mesh, bank));
      }
  TestMesh mesh(1, 4, "rounding=per_hop");
  const Bank bank(mesh);
  auto op = reduce_scatter_op(mesh.alloc(shape({1, 1, 4, 64}), kBlock), 3, 1, true, bank);
  CHECK(mesh.try_enqueue(op).says("rounded once, not per_hop"));
}

TEST_CASE("bfloat8_b: operations of one device") {
  TestMesh mesh(1, 1);
  const Shape s = shape({1, 2, 6, 40});
  const auto x = rounded(random_floats(1, s, 1, false), 40), y = rounded(random_floats(1, s, 2, false), 40);
  const mr_handle hx = mesh.upload(s, kBlock, x), hy = mesh.upload(s, kBlock, y);

  auto add = make_op<mr_binary>(MR_OP_BINARY);
  add.a = hx, add.b = hy, add.kind = MR_BINARY_ADD;
  mesh.enqueue(add);
  auto silu = make_op<mr_activation>(MR_OP_ACTIVATION);
  silu.input = hx, silu.kind = MR_ACT_SILU;
  mesh.enqueue(silu);
  auto norm = make_op<mr_norm>(MR_OP_NORM);
  norm.input = hx, norm.kind = MR_NORM_RMS, norm.epsilon = 1e-5f;
  mesh.enqueue(norm);
  auto mm = make_op<mr_matmul>(MR_OP_MATMUL);
  mm.input = hx, mm.weight = hy, mm.transpose_b = 1, mm.dtype = MR_BFLOAT8_B;
  mesh.enqueue(mm);
  auto attention = make_op<mr_sdpa>(MR_OP_SDPA);
  attention.q = attention.k = hx, attention.v = hy;
  mesh.enqueue(attention);
  auto part = make_op<mr_slice>(MR_OP_SLICE);
  part.input = hx, part.rank = 4;
  for (int i = 0; i < 4; ++i) part.end[i] = s.dims[i];
  part.begin[3] = 5;
  mesh.enqueue(part);
  auto turned = make_op<mr_permute>(MR_OP_PERMUTE);
  turned.input = hx, turned.rank = 4;
  for (uint32_t i = 0; i < 4; ++i) turned.order[i] = i < 2 ? i : 5 - i;
  mesh.enqueue(turned);
  mesh.sync();

  std::vector<double> sum, act, rms, products, mixed, sliced, transposed;
  for (size_t i = 0; i < x[0].size(); ++i) {
    sum.push_back(double{x[0][i]} + y[0][i]);
    act.push_back(x[0][i] / (1 + std::exp(-double{x[0][i]})));
    if (i % 40 >= 5) sliced.push_back(x[0][i]);
  }
  for (size_t row = 0; row < 12; ++row) {
    double squares = 0;
    for (size_t i = 0; i < 40; ++i) squares += std::pow(x[0][row * 40 + i], 2);
    for (size_t i = 0; i < 40; ++i) rms.push_back(x[0][row * 40 + i] / std::sqrt(squares / 40 + 1e-5));
    std::vector<double> weight;
    double total = 0;
    for (size_t key = 0; key < 6; ++key) {
      double dot = 0, score = 0;
      for (size_t i = 0; i < 40; ++i) {
        dot += double{x[0][row * 40 + i]} * y[0][(row / 6 * 6 + key) * 40 + i];
        score += double{x[0][row * 40 + i]} * x[0][(row / 6 * 6 + key) * 40 + i];
      }
      products.push_back(dot);
      weight.push_back(std::exp(score / std::sqrt(40.0)));
      total += weight.back();
    }
    for (size_t i = 0; i < 40; ++i) {
      double v = 0;
      for (size_t key = 0; key < 6; ++key) v += weight[key] / total * y[0][(row / 6 * 6 + key) * 40 + i];
      mixed.push_back(v);
    }
  }
  for (size_t head = 0; head < 2; ++head)
    for (size_t i = 0; i < 40; ++i)
      for (size_t row = 0; row < 6; ++row) transposed.push_back(x[0][(head * 6 + row) * 40 + i]);
  CHECK(close_blocks(mesh.read<float>(add.output, 0), sum, 40));
  CHECK(close_blocks(mesh.read<float>(silu.output, 0), act, 40));
  CHECK(close_blocks(mesh.read<float>(norm.output, 0), rms, 40));
  CHECK(close_blocks(mesh.read<float>(mm.output, 0), products, 6));
  CHECK(close_blocks(mesh.read<float>(attention.output, 0), mixed, 40));
  CHECK(mesh.read<float>(part.output, 0) == rounded(sliced, 35));
  CHECK(mesh.read<float>(turned.output, 0) == rounded(transposed, 6));

  mr_handle view = 0;
  mr_error e = fresh_error();
  const uint32_t dims[] = {12, 8, 5};
  CHECK(driver().tensor_view(mesh.handle(), hx, 3, dims, &view, &e) == MR_INVALID_ARGUMENT);
  const uint32_t rows[] = {12, 40};
  CHECK(driver().tensor_view(mesh.handle(), hx, 2, rows, &view, &e) == MR_OK);
}

TEST_CASE("bfloat8_b: keys and values of ring attention, and weights of the fused matmuls") {
  TestMesh mesh(1, 4, "num_links=2\nchunk_bytes=64");
  const Shape s = shape({1, 2, 8, 32});
  const auto q = random_floats(4, s, 1, false), k = rounded(random_floats(4, s, 2, false), 32), v = rounded(random_floats(4, s, 3, false), 32);
  auto op = make_op<mr_exp_ring_joint_sdpa>(MR_OP_EXP_RING_JOINT_SDPA);
  op.q = mesh.upload(s, DType::float32, q), op.k = mesh.upload(s, kBlock, k), op.v = mesh.upload(s, kBlock, v);
  op.buffer_k = mesh.alloc(shape({1, 2, 32, 32}), kBlock), op.buffer_v = mesh.alloc(shape({1, 2, 32, 32}), kBlock);
  const auto bank = mesh.semaphores(2);
  op.semaphores[0] = bank[0], op.semaphores[1] = bank[1];
  op.axis = 1, op.num_links = 2, op.topology = MR_RING;
  mesh.enqueue(op);
  // The same on keys and values that are float32 but hold the same numbers.
  auto wide = op;
  wide.output = 0;
  wide.k = mesh.upload(s, DType::float32, k), wide.v = mesh.upload(s, DType::float32, v);
  wide.buffer_k = mesh.alloc(shape({1, 2, 32, 32}), DType::float32), wide.buffer_v = mesh.alloc(shape({1, 2, 32, 32}), DType::float32);
  mesh.sync();
  mesh.enqueue(wide);
  mesh.sync();
  for (uint32_t d = 0; d < 4; ++d) {
    CHECK(mesh.read<float>(op.output, d) == mesh.read<float>(wide.output, d));
    CHECK(mesh.read<float>(op.buffer_k, d) == gathered(k, line_of(1, 4, d, 1), s, 2));
  }

  const Shape in = shape({1, 1, 8, 16}), weight = shape({64, 24});
  const auto x = rounded(random_floats(4, in, 4, false), 16), w = rounded(random_floats(4, weight, 5, false), 24);
  const auto sems = mesh.semaphores(6);
  auto mm = make_op<mr_strided_all_gather_matmul>(MR_OP_STRIDED_ALL_GATHER_MATMUL);
  mm.input = mesh.upload(in, kBlock, x), mm.weight = mesh.upload(weight, kBlock, w), mm.gathered = mesh.alloc(shape({1, 1, 8, 64}), kBlock);
  std::copy(sems.begin(), sems.end(), mm.semaphores);
  mm.semaphore_count = 6, mm.axis = 1, mm.num_links = 1, mm.num_workers_per_link = 2, mm.topology = MR_RING;
  mesh.sync();
  mesh.enqueue(mm);
  mesh.sync();
  for (uint32_t d = 0; d < 4; ++d) {
    const auto all = gathered(x, line_of(1, 4, d, 1), in, 3);
    std::vector<double> expected(8 * 24);
    for (size_t i = 0; i < 8; ++i)
      for (size_t j = 0; j < 64; ++j)
        for (size_t c = 0; c < 24; ++c) expected[i * 24 + c] += double{all[i * 64 + j]} * w[d][j * 24 + c];
    CHECK(close_blocks(mesh.read<float>(mm.output, d), expected, 24));
  }
}
