// Convolutions as operations: operands, shapes, refusals. What the kernel computes is tested beside it.
#include <algorithm>
#include <cmath>
#include <random>

#include "collectives.h"

using namespace meshrun::test;

namespace {

mr_tensor_spec row_major(const Shape& s, DType dtype) { return spec(s, dtype, MR_ROW_MAJOR); }

mr_conv3d conv3d_op(mr_handle input, mr_handle weight, uint32_t k, uint32_t pad) {
  auto op = make_op<mr_conv3d>(MR_OP_CONV3D);
  op.input = input;
  op.weight = weight;
  for (int i = 0; i < 3; ++i) op.kernel[i] = op.stride[i] = op.dilation[i] = 1;
  op.kernel[1] = op.kernel[2] = k;
  op.padding[1] = op.padding[2] = pad;
  op.groups = 1;
  op.mode = MR_PAD_ZEROS;
  return op;
}

template <class T>
mr_handle upload(TestMesh& mesh, const Shape& s, DType dtype, const Shards<T>& shards) {
  const mr_handle h = mesh.alloc(row_major(s, dtype));
  mesh.write(h, s, shards);
  return h;
}

}  // namespace

TEST_CASE("conv3d: every device its own data, weight and bias") {
  TestMesh mesh(2, 2);
  const Shape in = shape({1, 2, 4, 5, 3}), w = shape({27, 4}), b = shape({1, 4});
  const auto x = random_floats(4, in, 1, false), y = random_floats(4, w, 2, false), z = random_floats(4, b, 3, false);
  auto op = conv3d_op(upload(mesh, in, DType::float32, x), mesh.upload(w, DType::float32, y), 3, 1);
  op.bias = mesh.upload(b, DType::float32, z);
  op.mode = MR_PAD_REPLICATE;
  mesh.enqueue(op);
  mesh.sync();
  mr_tensor_spec s{};
  s.size = sizeof s;
  mr_error e = fresh_error();
  driver().tensor_info(mesh.handle(), op.output, &s, &e);
  CHECK(meshrun::emu::checked_spec(s, "").shape == shape({1, 2, 4, 5, 4}));
  CHECK(s.layout == MR_ROW_MAJOR);
  for (uint32_t d = 0; d < 4; ++d) {
    const auto got = mesh.read<float>(op.output, d);
    double worst = 0;
    size_t n = 0;
    for (int t = 0; t < 2; ++t)
      for (int h = 0; h < 4; ++h)
        for (int c = 0; c < 5; ++c)
          for (int o = 0; o < 4; ++o) {
            double sum = z[d][o];
            for (int i = 0; i < 3; ++i)
              for (int j = 0; j < 3; ++j)
                for (int k = 0; k < 3; ++k) {
                  const int row = std::clamp(h + i - 1, 0, 3), column = std::clamp(c + j - 1, 0, 4);
                  sum += double(x[d][((t * 4 + row) * 5 + column) * 3 + k]) * y[d][((i * 3 + j) * 3 + k) * 4 + o];
                }
            worst = std::max(worst, std::abs(sum - got[n++]));
          }
    CHECK(worst < 1e-5);
  }
}

TEST_CASE("conv3d: what does not fit is refused, and says why") {
  TestMesh mesh(1, 1);
  const mr_handle x = mesh.alloc(row_major(shape({1, 2, 4, 5, 6}), DType::bfloat16)), w = mesh.alloc(shape({54, 8}));
  const auto refused = [&](auto change, const char* why) {
    mr_conv3d op = conv3d_op(x, w, 3, 1);
    change(op);
    const mr_handle output = op.output;
    const Answer answer = mesh.try_enqueue(op);
    CHECK(answer.code == MR_REJECTED);
    CHECK_MESSAGE(answer.says(why), answer.text);
    CHECK(op.output == output);
  };
  refused([&](mr_conv3d& op) { op.input = mesh.alloc(shape({1, 2, 4, 5, 6})); }, "must be row major");
  refused([&](mr_conv3d& op) { op.input = mesh.alloc(row_major(shape({2, 4, 5, 6}), DType::bfloat16)); }, "must be [N,T,H,W,C]");
  refused([&](mr_conv3d& op) { op.input = mesh.alloc(row_major(shape({1, 2, 4, 5, 6}), DType::uint32)); }, "input is uint32");
  refused([&](mr_conv3d& op) { op.groups = 4; }, "groups is 4: must divide the 6 channels");
  refused([&](mr_conv3d& op) { op.groups = 0; }, "groups is 0");
  refused([&](mr_conv3d& op) { op.stride[2] = 0; }, "stride[2] is 0");
  refused([&](mr_conv3d& op) { op.kernel[0] = 0; }, "kernel[0] is 0");
  refused([&](mr_conv3d& op) { op.dilation[1] = 0; }, "dilation[1] is 0");
  refused([&](mr_conv3d& op) { op.kernel[0] = 3; }, "kernel[0] is 3");
  refused([&](mr_conv3d& op) { op.kernel[0] = UINT32_MAX, op.dilation[0] = UINT32_MAX; }, "kernel[0] is 4294967295");
  refused([&](mr_conv3d& op) { op.mode = 0; }, "mode is 0: must be 1..2");
  refused([&](mr_conv3d& op) { op.weight = mesh.alloc(shape({53, 8})); }, "weight is [53,8]: must be [54,O]");
  refused([&](mr_conv3d& op) { op.groups = 3, op.weight = mesh.alloc(shape({18, 8})); }, "the 3 groups must divide O");
  refused([&](mr_conv3d& op) { op.bias = mesh.alloc(shape({8, 1})); }, "bias is [8,1]: must be [1,8]");
  refused([&](mr_conv3d& op) { op.halo = mesh.alloc(row_major(shape({43, 6}), DType::bfloat16)); }, "halo is [43,6]");
  refused([&](mr_conv3d& op) { op.halo = mesh.alloc(shape({44, 6})); }, "halo is [44,6] bfloat16 tile");
  refused([&](mr_conv3d& op) { op.halo = x, op.padding[1] = op.padding[2] = 0; }, "halo is given");
  refused([&](mr_conv3d& op) { op.output = mesh.alloc(row_major(shape({1, 2, 4, 5, 9}), DType::bfloat16)); }, "output is [1,2,4,5,9]");
  refused([&](mr_conv3d& op) { op.output = x, op.weight = mesh.alloc(shape({54, 6})); }, "shares its memory");
  refused([&](mr_conv3d& op) { op.h.present = 1; }, "present is 0x1");
  mr_conv3d op = conv3d_op(x, w, 3, 1);
  op.halo = mesh.alloc(row_major(shape({2 * (2 * 5 + 2 * 6), 6}), DType::bfloat16));
  mesh.enqueue(op);
  mesh.sync();
}

TEST_CASE("conv3d: time counts operations and bytes, also where no data moves") {
  TestMesh mesh(1, 1, "mode=timing\nclock=lockstep");
  uint64_t took[2];
  for (const uint32_t wide : {0u, 1u}) {
    const uint32_t channels = wide != 0 ? 512 : 256;
    auto op = conv3d_op(mesh.alloc(row_major(shape({1, 4, 96, 96, channels}), DType::bfloat16)), mesh.alloc(shape({9 * channels, channels})), 3, 1);
    mesh.enqueue(op);
    mesh.sync();
    mr_launch_profile p{};
    p.size = sizeof p;
    mr_error e = fresh_error();
    REQUIRE(extension().launch_profile(mesh.handle(), mesh.last_launch(), &p, &e) == MR_OK);
    took[wide] = p.end_ns - p.start_ns;
  }
  CHECK(took[1] > 3 * took[0]);
  CHECK(took[1] < 5 * took[0]);
}
