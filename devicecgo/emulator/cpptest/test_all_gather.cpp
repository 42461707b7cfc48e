#include "collectives.h"

using namespace meshrun::test;

namespace {

template <class T>
void check_gather(TestMesh& mesh, const Shape& s, DType dtype, uint32_t dim, uint32_t axis, bool ring, uint32_t links = 1, bool persistent = false) {
  CAPTURE(mesh.rows());
  CAPTURE(mesh.cols());
  CAPTURE(meshrun::emu::text(s));
  CAPTURE(dim);
  CAPTURE(axis);
  CAPTURE(ring);
  CAPTURE(links);
  const auto shards = random_shards<T>(mesh.devices(), s, dim + 10 * axis);
  const Bank bank(mesh);
  const mr_handle input = mesh.upload(s, dtype, shards);
  auto op = all_gather_op(input, dim, axis, ring, bank, !persistent, links);
  if (persistent) {
    Shape g = s;
    g.dims[dim] *= axis == 0 ? mesh.rows() : mesh.cols();
    op.output = mesh.alloc(g, dtype);
    mesh.sync();
  }
  mesh.enqueue(op);
  mesh.sync();
  for (uint32_t d = 0; d < mesh.devices(); ++d)
    CHECK(mesh.read<T>(op.output, d) == gathered(shards, line_of(mesh.rows(), mesh.cols(), d, axis), s, dim));
  CHECK(at_rest(mesh, bank));
  mesh.free_tensor(input);
  mesh.free_tensor(op.output);
}

}  // namespace

TEST_CASE("all_gather: all dims, both topologies, meshes of many shapes") {
  for (const MeshCase m : {MeshCase{1, 2}, {1, 3}, {1, 4}, {1, 5}, {1, 8}, {2, 1}, {2, 4}, {3, 5}, {4, 8}, {1, 1}}) {
    TestMesh mesh(m.rows, m.cols);
    for (uint32_t dim = 0; dim < 4; ++dim)
      for (const uint32_t axis : {0u, 1u}) {
        const bool may_ring = (axis == 0 ? m.rows : m.cols) > 2;
        for (const bool ring : {false, true})
          if (!ring || may_ring) check_gather<uint16_t>(mesh, shape({2, 3, 5, 7}), DType::bfloat16, dim, axis, ring);
      }
  }
}

TEST_CASE("all_gather: every dtype bit exact") {
  TestMesh mesh(2, 4);
  const Shape s = shape({1, 2, 33, 31});
  for (const bool ring : {false, true}) {
    check_gather<uint16_t>(mesh, s, DType::bfloat16, 3, 1, ring);
    check_gather<uint32_t>(mesh, s, DType::float32, 3, 1, ring);
    check_gather<uint32_t>(mesh, s, DType::uint32, 2, 1, ring);
    check_gather<uint32_t>(mesh, s, DType::int32, 1, 1, ring);
    check_gather<uint16_t>(mesh, s, DType::uint16, 0, 1, ring);
    check_gather<uint8_t>(mesh, s, DType::uint8, 3, 1, ring);
  }
}

TEST_CASE("all_gather: links, also more than a slice has elements") {
  TestMesh mesh(1, 4, "num_links=4");
  for (const uint32_t links : {1u, 2u, 3u, 4u})
    for (const bool ring : {false, true})
      for (const bool persistent : {false, true}) {
        check_gather<uint16_t>(mesh, shape({1, 1, 1, 1}), DType::bfloat16, 3, 1, ring, links, persistent);
        check_gather<uint16_t>(mesh, shape({1, 1, 1, 3}), DType::bfloat16, 3, 1, ring, links, persistent);
        check_gather<uint16_t>(mesh, shape({1, 1, 13, 24}), DType::bfloat16, 2, 1, ring, links, persistent);
      }
}

TEST_CASE("all_gather: small chunks, long axes") {
  TestMesh wide(1, 32, "chunk_bytes=64");
  for (const bool ring : {false, true}) check_gather<uint16_t>(wide, shape({1, 2, 8, 24}), DType::bfloat16, 2, 1, ring);
  TestMesh tall(32, 2, "chunk_bytes=4");
  for (const bool ring : {false, true}) check_gather<uint16_t>(tall, shape({1, 1, 2, 24}), DType::bfloat16, 3, 0, ring);
}

TEST_CASE("all_gather: a chunk is one increment, chunks_per_sync packets") {
  TestMesh mesh(1, 4, "chunk_bytes=16");
  const Shape s = shape({1, 1, 16, 16});
  const auto shards = random_shards<uint16_t>(4, s, 5);
  const Bank bank(mesh);
  const mr_handle input = mesh.upload(s, DType::bfloat16, shards);
  for (const uint32_t per_sync : {1u, 3u, 1000u}) {
    auto op = all_gather_op(input, 2, 1, true, bank);
    op.h.present = MR_HAS_CHUNKS_PER_SYNC | MR_HAS_WORKERS | MR_HAS_BUFFERS;
    op.chunks_per_sync = per_sync;
    op.num_workers_per_link = 2;
    op.num_buffers_per_channel = 2;
    mesh.enqueue(op);
    mesh.sync();
    for (uint32_t d = 0; d < 4; ++d) CHECK(mesh.read<uint16_t>(op.output, d) == gathered(shards, {0, 1, 2, 3}, s, 2));
  }
}

TEST_CASE("all_gather: odd sizes of the field") {
  TestMesh two(1, 2);
  const Bank bank(two);
  std::vector<std::vector<uint16_t>> v(2);
  v[0].assign(33, meshrun::emu::to_bf16(1));
  v[1].assign(33, meshrun::emu::to_bf16(2));
  auto op = all_gather_op(two.upload(shape({1, 1, 1, 33}), DType::bfloat16, v), 3, 1, false, bank);
  two.enqueue(op);
  two.sync();
  std::vector<uint16_t> expected(33, meshrun::emu::to_bf16(1));
  expected.insert(expected.end(), 33, meshrun::emu::to_bf16(2));
  for (uint32_t d : {0u, 1u}) CHECK(two.read<uint16_t>(op.output, d) == expected);
  TestMesh eight(1, 8);
  check_gather<uint16_t>(eight, shape({1, 1, 13, 24}), DType::bfloat16, 2, 1, false);
}
