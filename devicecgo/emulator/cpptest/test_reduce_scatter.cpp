#include "collectives.h"

#include <cmath>

using namespace meshrun::test;

namespace {

// The sum of a line in the order in which the collective adds, for the element whose slice ends at `owner`; `first_half`: it goes
// round by way 0.
float ring_sum(const Shards<float>& x, const std::vector<uint32_t>& line, size_t element, uint32_t owner, bool first_half) {
  const uint32_t n = static_cast<uint32_t>(line.size());
  float sum = 0;
  for (uint32_t i = 1; i <= n; ++i) {
    const uint32_t at = first_half ? (owner + i) % n : (owner + n - i) % n;
    sum = i == 1 ? x[line[at]][element] : sum + x[line[at]][element];
  }
  return sum;
}

float line_sum(const Shards<float>& x, const std::vector<uint32_t>& line, size_t element, uint32_t owner) {
  const int n = static_cast<int>(line.size()), o = static_cast<int>(owner);
  float left = 0, right = 0;
  for (int i = 0; i < o; ++i) left = i == 0 ? x[line[i]][element] : left + x[line[i]][element];
  for (int i = n - 1; i > o; --i) right = i == n - 1 ? x[line[i]][element] : right + x[line[i]][element];
  float sum = x[line[o]][element];
  if (o > 0) sum = left + sum;
  if (o < n - 1) sum += right;
  return sum;
}

struct Case {
  Shape s;
  uint32_t dim, axis;
  bool ring;
  uint32_t links = 1;
  bool fp32 = false;
};

void check_scatter(TestMesh& mesh, const Case& c) {
  CAPTURE(mesh.rows());
  CAPTURE(mesh.cols());
  CAPTURE(meshrun::emu::text(c.s));
  CAPTURE(c.dim);
  CAPTURE(c.axis);
  CAPTURE(c.ring);
  CAPTURE(c.links);
  CAPTURE(c.fp32);
  const uint32_t n = c.axis == 0 ? mesh.rows() : mesh.cols();
  const auto x = random_floats(mesh.devices(), c.s, 7 + c.dim, !c.fp32);
  const Bank bank(mesh);
  const mr_handle input = c.fp32 ? mesh.upload(c.s, DType::float32, x) : mesh.upload(c.s, DType::bfloat16, bf16(x));
  auto op = reduce_scatter_op(input, c.dim, c.axis, c.ring, bank, c.links);
  mesh.enqueue(op);
  mesh.sync();
  std::vector<float> index(c.s.elements());
  for (size_t i = 0; i < index.size(); ++i) index[i] = static_cast<float>(i);
  REQUIRE(index.size() < (1u << 24));
  for (uint32_t d = 0; d < mesh.devices(); ++d) {
    const auto line = line_of(mesh.rows(), mesh.cols(), d, c.axis);
    const uint32_t owner = c.axis == 0 ? d / mesh.cols() : d % mesh.cols();
    const std::vector<float> elements = slice_of(index, c.s, c.dim, n, owner);
    std::vector<float> expected;
    for (size_t i = 0; i < elements.size(); ++i) {
      const size_t e = static_cast<size_t>(elements[i]);
      // Ring: the first half of the shares goes by way 0.
      bool first = true;
      if (c.ring) {
        uint64_t half = elements.size() * c.links / (2 * c.links);
        first = i < half;
      }
      const float sum = n == 1 ? x[d][e] : c.ring ? ring_sum(x, line, e, owner, first) : line_sum(x, line, e, owner);
      expected.push_back(c.fp32 ? sum : meshrun::emu::to_float(meshrun::emu::to_bf16(sum)));
    }
    const std::vector<float> got = c.fp32 ? mesh.read<float>(op.output, d) : widened(mesh.read<uint16_t>(op.output, d));
    CHECK(got == expected);
  }
  CHECK(at_rest(mesh, bank));
  mesh.free_tensor(input);
  mesh.free_tensor(op.output);
}

}  // namespace

TEST_CASE("reduce_scatter: all dims, both topologies, meshes of many shapes") {
  for (const MeshCase m : {MeshCase{1, 2}, {1, 3}, {1, 4}, {1, 5}, {1, 8}, {2, 1}, {2, 4}, {3, 5}, {4, 8}, {1, 1}}) {
    TestMesh mesh(m.rows, m.cols);
    for (uint32_t dim = 0; dim < 4; ++dim)
      for (const uint32_t axis : {0u, 1u}) {
        const uint32_t n = axis == 0 ? m.rows : m.cols;
        Shape s = shape({2, 3, 5, 7});
        s.dims[dim] *= n;
        for (const bool ring : {false, true})
          for (const bool fp32 : {false, true})
            if (!ring || n > 2) check_scatter(mesh, {.s = s, .dim = dim, .axis = axis, .ring = ring, .fp32 = fp32});
      }
  }
}

TEST_CASE("reduce_scatter: links and small slices") {
  TestMesh mesh(1, 4, "num_links=4\nchunk_bytes=32");
  for (const uint32_t links : {1u, 2u, 3u, 4u})
    for (const bool ring : {false, true})
      for (const bool fp32 : {false, true}) {
        check_scatter(mesh, {shape({1, 1, 1, 4}), 3, 1, ring, links, fp32});
        check_scatter(mesh, {shape({1, 1, 3, 12}), 3, 1, ring, links, fp32});
        check_scatter(mesh, {shape({1, 2, 36, 20}), 2, 1, ring, links, fp32});
      }
}

TEST_CASE("reduce_scatter: partial sums are rounded once") {
  for (const bool ring : {true, false}) {
    TestMesh mesh(1, 4);
    const Bank bank(mesh);
    const Shape s = shape({1, 1, 32, 128});
    Shards<uint16_t> x(4, std::vector<uint16_t>(s.elements(), meshrun::emu::to_bf16(1)));
    x[0].assign(s.elements(), meshrun::emu::to_bf16(256));
    auto op = reduce_scatter_op(mesh.upload(s, DType::bfloat16, x), 3, 1, ring, bank);
    mesh.enqueue(op);
    mesh.sync();
    for (uint32_t d = 0; d < 4; ++d) CHECK(widened(mesh.read<uint16_t>(op.output, d)) == std::vector<float>(s.elements() / 4, 260.f));
  }
}

TEST_CASE("reduce_scatter: rounding at every hop, as an option") {
  TestMesh mesh(1, 4, "rounding=per_hop");
  const Bank bank(mesh);
  const Shape s = shape({1, 1, 32, 128});
  Shards<uint16_t> x(4, std::vector<uint16_t>(s.elements(), meshrun::emu::to_bf16(1)));
  x[0].assign(s.elements(), meshrun::emu::to_bf16(256));
  auto op = reduce_scatter_op(mesh.upload(s, DType::bfloat16, x), 3, 1, true, bank);
  mesh.enqueue(op);
  mesh.sync();
  bool lost = false;
  for (uint32_t d = 0; d < 4; ++d)
    for (const float v : widened(mesh.read<uint16_t>(op.output, d))) {
      CHECK((v == 256 || v == 258 || v == 260));
      lost = lost || v == 256;
    }
  CHECK(lost);
}

TEST_CASE("reduce_scatter: float32 stays float32") {
  TestMesh mesh(1, 4);
  const Bank bank(mesh);
  const Shape s = shape({1, 1, 8, 16});
  Shards<float> x(4, std::vector<float>(s.elements(), 1 + std::ldexp(1.f, -12)));
  for (const bool ring : {true, false}) {
    auto op = reduce_scatter_op(mesh.upload(s, DType::float32, x), 3, 1, ring, bank);
    mesh.enqueue(op);
    mesh.sync();
    for (uint32_t d = 0; d < 4; ++d) CHECK(mesh.read<float>(op.output, d) == std::vector<float>(s.elements() / 4, 4.0009765625f));
  }
}

TEST_CASE("reduce_scatter: 32-bit integers wrap, others are refused") {
  TestMesh mesh(1, 4);
  const Bank bank(mesh);
  const Shape s = shape({1, 1, 4, 8});
  const auto x = random_shards<uint32_t>(4, s, 3);
  for (const DType t : {DType::uint32, DType::int32})
    for (const bool ring : {true, false}) {
      auto op = reduce_scatter_op(mesh.upload(s, t, x), 2, 1, ring, bank);
      mesh.enqueue(op);
      mesh.sync();
      std::vector<uint32_t> sum(s.elements());
      for (const auto& v : x)
        for (size_t i = 0; i < v.size(); ++i) sum[i] += v[i];
      for (uint32_t d = 0; d < 4; ++d) CHECK(mesh.read<uint32_t>(op.output, d) == slice_of(sum, s, 2, 4, d));
    }
  for (const DType t : {DType::uint16, DType::uint8}) {
    auto op = reduce_scatter_op(mesh.alloc(s, t), 2, 1, true, bank);
    const Answer a = mesh.try_enqueue(op);
    CHECK(a.code == MR_REJECTED);
    CHECK(a.says("sums are of"));
  }
}

TEST_CASE("reduce_scatter: the intermediate's shape depends on the topology") {
  TestMesh mesh(1, 4);
  const Bank bank(mesh);
  const Shape s = shape({1, 1, 64, 256});
  Shards<uint16_t> x;
  for (uint32_t d = 0; d < 4; ++d) x.push_back(std::vector<uint16_t>(s.elements(), meshrun::emu::to_bf16(static_cast<float>(d + 1))));
  const mr_handle input = mesh.upload(s, DType::bfloat16, x);
  const mr_handle single = mesh.alloc(s), doubled = mesh.alloc(shape({2, 1, 64, 256}));
  for (const bool ring : {true, false}) {
    auto op = reduce_scatter_op(input, 3, 1, ring, bank);
    op.barrier = 0;
    op.output = mesh.alloc(shape({1, 1, 64, 64}));
    op.intermediate = ring ? single : doubled;
    mesh.sync();
    mesh.enqueue(op);
    mesh.sync();
    for (uint32_t d = 0; d < 4; ++d) CHECK(widened(mesh.read<uint16_t>(op.output, d)) == std::vector<float>(64 * 64, 10.f));
    op.intermediate = ring ? doubled : single;
    const Answer a = mesh.try_enqueue(op);
    CHECK(a.code == MR_REJECTED);
    CHECK(a.says("[1,1,64,256]"));
    CHECK(a.says("[2,1,64,256]"));
  }
}

TEST_CASE("reduce_scatter: what does not divide is refused, what does may be odd") {
  TestMesh two(1, 2);
  const Bank bank(two);
  Shards<uint16_t> x(2);
  x[0].assign(64 * 130, meshrun::emu::to_bf16(1));
  x[1].assign(64 * 130, meshrun::emu::to_bf16(2));
  auto op = reduce_scatter_op(two.upload(shape({1, 1, 64, 130}), DType::bfloat16, x), 3, 1, false, bank);
  two.enqueue(op);
  two.sync();
  for (uint32_t d : {0u, 1u}) CHECK(widened(two.read<uint16_t>(op.output, d)) == std::vector<float>(64 * 65, 3.f));
  auto odd = reduce_scatter_op(two.alloc(shape({1, 1, 64, 131})), 3, 1, false, bank);
  const Answer a = two.try_enqueue(odd);
  CHECK(a.code == MR_REJECTED);
  CHECK(a.says("not divisible by the 2"));
}
