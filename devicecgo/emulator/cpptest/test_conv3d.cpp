// Convolutions as operations: operands, shapes, refusals. What the kernel computes is tested beside it.
#include <cmath>

#include "halos.h"

using namespace meshrun::test;

namespace {

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

}  // namespace

TEST_CASE("conv3d: every device its own data, weight and bias") {
  TestMesh mesh(2, 2);
  const Shape in = shape({1, 2, 4, 5, 3}), w = shape({27, 4}), b = shape({1, 4});
  const auto x = random_floats(4, in, 1, false), y = random_floats(4, w, 2, false), z = random_floats(4, b, 3, false);
  auto op = conv3d_op(upload_rows(mesh, in, DType::float32, x), mesh.upload(w, DType::float32, y), 3, 1);
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

// ---- the halo exchange and the convolution in one ----

namespace {

constexpr uint32_t kRows[] = {1, 2, 3, 4, 8}, kCols[] = {1, 2, 3};

// A sharded convolution: the whole tensor, its shards, and the same convolution on shards that were padded by hand.
struct Sharded {
  HaloCase halo;  // H, W and their pads
  mr_conv3d conv{};
  DType dtype = DType::bfloat16;
  Shape weight, bias;
  uint32_t links = 1;

  Shape compact() const {
    const Shape& x = halo.local;
    const uint32_t h = halo.left[0], w = halo.left[1];
    return shape({x.dims[0] * x.dims[1] * (2 * h * x.dims[3] + 2 * w * (x.dims[2] + 2 * h)), x.dims[4]});
  }
};

// Values rounded to bfloat16 in a Whole of either type.
template <class T>
Whole<T> whole_of(uint32_t rows, uint32_t cols, const HaloCase& c, uint32_t seed) {
  Whole<T> whole(rows, cols, c, seed);
  std::mt19937 random(seed);
  std::normal_distribution<float> values;
  for (T& x : whole.of(0)) {
    const uint16_t v = meshrun::emu::to_bf16(values(random));
    if constexpr (sizeof(T) == 2)
      x = v;
    else
      x = meshrun::emu::to_float(v);
  }
  return whole;
}

Sharded random_sharded(Dice& dice, uint32_t links) {
  Sharded s;
  HaloCase& c = s.halo;
  s.conv = conv3d_op(0, 0, 1, 0);
  c.count = 2;
  c.dims[0] = 2;
  c.dims[1] = 3;
  c.axes[0] = dice.of(0, 1);
  c.axes[1] = 1 - c.axes[0];
  c.mode = dice.coin() ? MR_PAD_ZEROS : MR_PAD_REPLICATE;
  s.conv.groups = dice.of(0, 2) == 0 ? 2 : 1;
  const uint32_t taken = dice.of(1, 9), given = s.conv.groups * dice.of(1, 5);
  c.local = shape({dice.of(1, 2), dice.of(1, 3), dice.of(1, 7), dice.of(1, 7), taken * s.conv.groups});
  uint32_t taps = 1;
  for (uint32_t i = 0; i < 3; ++i) {
    uint32_t& size = c.local.dims[i + 1];
    s.conv.kernel[i] = dice.of(1, 5);
    s.conv.stride[i] = dice.of(1, 2);
    s.conv.dilation[i] = dice.of(1, 2);
    const uint32_t reach = s.conv.dilation[i] * (s.conv.kernel[i] - 1) + 1;
    s.conv.padding[i] = dice.of(i == 1 ? 1 : 0, 3);
    if (i != 0) size = std::max(size, s.conv.padding[i]);
    if (size + 2 * s.conv.padding[i] < reach) size = reach - 2 * s.conv.padding[i];
    taps *= s.conv.kernel[i];
  }
  for (uint32_t i = 0; i < 2; ++i) c.left[i] = c.right[i] = s.conv.padding[i + 1];
  s.conv.mode = c.mode;
  s.links = dice.of(1, std::min(links, c.local.dims[0] * c.local.dims[1]));
  s.weight = shape({taps * taken, given});
  s.bias = shape({1, given});
  return s;
}

struct RegionBank {
  std::vector<mr_handle> s;
  RegionBank(TestMesh& mesh, uint32_t links) : s(mesh.semaphores(4 * links)) {}
};

mr_np_conv3d np_conv3d_op(mr_handle input, mr_handle weight, mr_handle bias, mr_handle halo, const Sharded& s, const HaloBank& bank, const RegionBank& regions) {
  auto op = make_op<mr_np_conv3d>(MR_OP_NP_CONV3D);
  op.h.present = MR_HAS_W;
  op.input = input;
  op.weight = weight;
  op.bias = bias;
  op.halo = halo;
  if (s.halo.left[0] != 0) op.semaphore_h = bank.neighbor(s.halo.axes[0]);
  if (s.halo.left[1] != 0) op.semaphore_w = bank.neighbor(s.halo.axes[1]);
  op.barrier = bank.barrier(first_axis(s.halo));
  std::copy(regions.s.begin(), regions.s.end(), op.region);
  op.axis_h = s.halo.axes[0];
  op.axis_w = s.halo.axes[1];
  op.links = s.links;
  op.mode = s.halo.mode;
  for (int i = 0; i < 3; ++i) {
    op.kernel[i] = s.conv.kernel[i];
    op.stride[i] = s.conv.stride[i];
    op.padding[i] = s.conv.padding[i];
    op.dilation[i] = s.conv.dilation[i];
  }
  op.groups = s.conv.groups;
  return op;
}

bool at_rest(TestMesh& mesh, const RegionBank& bank) {
  for (const mr_handle s : bank.s)
    for (uint32_t d = 0; d < mesh.devices(); ++d)
      if (mesh.value(s, d) != 0) return false;
  return true;
}

std::string describe(const TestMesh& mesh, const Sharded& s) {
  std::string text = std::to_string(mesh.rows()) + "x" + std::to_string(mesh.cols()) + " " + meshrun::emu::text(s.halo.local);
  for (int i = 0; i < 3; ++i)
    text += " kernel " + std::to_string(s.conv.kernel[i]) + " stride " + std::to_string(s.conv.stride[i]) + " padding " + std::to_string(s.conv.padding[i]) + " dilation " +
            std::to_string(s.conv.dilation[i]) + ",";
  return text + " groups " + std::to_string(s.conv.groups) + " axis_h " + std::to_string(s.halo.axes[0]) + " links " + std::to_string(s.links) +
         (s.halo.mode == MR_PAD_ZEROS ? " zeros" : " replicate");
}

// Launches on two banks and halos; how many results differ from the convolution of shards padded by hand.
template <class T>
size_t launch_many(TestMesh& mesh, const Sharded& s, DType dtype, uint32_t count, uint32_t seed) {
  const uint32_t devices = mesh.devices();
  const HaloBank banks[2] = {HaloBank(mesh), HaloBank(mesh)};
  const RegionBank regions(mesh, s.links);
  const mr_handle halos[2] = {mesh.alloc(row_major(s.compact(), dtype)), mesh.alloc(row_major(s.compact(), dtype))};
  const auto weights = random_floats(1, s.weight, seed, false), biases = random_floats(1, s.bias, seed + 1, false);
  const mr_handle weight = mesh.upload(s.weight, DType::float32, Shards<float>(devices, weights[0])), bias = mesh.upload(s.bias, DType::float32, Shards<float>(devices, biases[0]));
  std::vector<mr_handle> got, want;
  for (uint32_t i = 0; i < count; ++i) {
    const Whole<T> whole = whole_of<T>(mesh.rows(), mesh.cols(), s.halo, seed + 10 * i);
    Shards<T> padded;
    for (uint32_t d = 0; d < devices; ++d) padded.push_back(whole.padded(d));
    mr_conv3d plain = s.conv;
    plain.input = upload_rows(mesh, s.halo.padded(), dtype, padded);
    plain.weight = weight;
    plain.bias = bias;
    plain.padding[1] = plain.padding[2] = 0;
    mesh.enqueue(plain);
    want.push_back(plain.output);
  }
  std::vector<mr_handle> inputs;
  for (uint32_t i = 0; i < count; ++i) inputs.push_back(upload_rows(mesh, s.halo.local, dtype, whole_of<T>(mesh.rows(), mesh.cols(), s.halo, seed + 10 * i).shards()));
  for (uint32_t i = 0; i < count; ++i) {
    auto op = np_conv3d_op(inputs[i], weight, bias, halos[i % 2], s, banks[i % 2], regions);
    mesh.enqueue(op);
    got.push_back(op.output);
  }
  // The same in two operations.
  auto exchange = neighbor_pad_halo_op(inputs[0], mesh.alloc(row_major(s.compact(), dtype)), s.halo, banks[0]);
  mesh.enqueue(exchange);
  mr_conv3d with_halo = s.conv;
  with_halo.input = inputs[0];
  with_halo.weight = weight;
  with_halo.bias = bias;
  with_halo.halo = exchange.halo;
  mesh.enqueue(with_halo);
  got.push_back(with_halo.output);
  want.push_back(want[0]);
  if (mesh.fence().code != MR_OK) return SIZE_MAX;
  size_t wrong = 0;
  for (size_t i = 0; i < got.size(); ++i)
    for (uint32_t d = 0; d < devices; ++d) {
      const auto a = mesh.read<T>(got[i], d), b = mesh.read<T>(want[i], d);
      REQUIRE(a.size() == b.size());
      wrong += std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) != 0;
    }
  for (const HaloBank& b : banks) CHECK(at_rest(mesh, b));
  CHECK(at_rest(mesh, regions));
  return wrong;
}

// 3x3 over frames of so many channels.
Sharded plain_case(uint32_t h, uint32_t w, uint32_t channels) {
  Sharded s;
  s.halo = {.local = shape({1, 2, h, w, channels}), .count = 2, .dims = {2, 3}, .axes = {0, 1}, .left = {1, 1}, .right = {1, 1}};
  s.conv = conv3d_op(0, 0, 3, 1);
  s.weight = shape({9 * channels, channels});
  s.bias = shape({1, channels});
  return s;
}

}  // namespace

TEST_CASE("np_conv3d: every mesh, random shapes: the bits of a convolution of padded shards, launch after launch on two banks") {
  uint32_t seed = 100;
  for (const uint32_t rows : kRows)
    for (const uint32_t cols : kCols)
      for (int i = 0; i < 3; ++i) {
        Dice dice(++seed);
        const uint32_t links = dice.of(1, 4);
        TestMesh mesh(rows, cols, "num_links=" + std::to_string(links) + "\nskew_us=" + std::to_string(dice.of(0, 200)) + "\nseed=" + std::to_string(seed) +
                                      "\nchunk_bytes=" + std::to_string(4 * dice.of(1, 20)) + "\nthreads=" + std::to_string(dice.of(1, 3)));
        const Sharded s = random_sharded(dice, links);
        INFO("seed " << seed << " " << describe(mesh, s));
        CHECK((dice.coin() ? launch_many<uint16_t>(mesh, s, DType::bfloat16, 4, seed) : launch_many<float>(mesh, s, DType::float32, 4, seed)) == 0);
      }
}

TEST_CASE("np_conv3d: waiting for the regions matters") {
  const Sharded s = plain_case(3, 4, 4);
  for (const bool broken : {false, true}) {
    TestMesh mesh(2, 2, std::string("clock=lockstep\nskew_us=200\nseed=3") + (broken ? "\nbreak=no_region_wait" : ""));
    CHECK((launch_many<uint16_t>(mesh, s, DType::bfloat16, 8, 5) != 0) == broken);
  }
}

TEST_CASE("np_conv3d: ends before an exchange and a convolution one after the other, by what hides behind the inner outputs") {
  for (const std::string mode : {"", "\nmode=timing"}) {
    TestMesh mesh(2, 2, "clock=lockstep" + mode);
    Sharded s = plain_case(24, 24, 64);
    const HaloBank bank(mesh);
    const RegionBank regions(mesh, 1);
    const mr_handle x = mesh.alloc(row_major(s.halo.local, DType::bfloat16)), halo = mesh.alloc(row_major(s.compact(), DType::bfloat16));
    const mr_handle weight = mesh.alloc(s.weight), bias = mesh.alloc(s.bias);
    const auto took = [&](auto op) {
      mesh.enqueue(op);
      mesh.sync();
      mr_launch_profile p{};
      p.size = sizeof p;
      mr_error e = fresh_error();
      REQUIRE(extension().launch_profile(mesh.handle(), mesh.last_launch(), &p, &e) == MR_OK);
      return p.end_ns - p.start_ns;
    };
    const uint64_t exchange = took(neighbor_pad_halo_op(x, halo, s.halo, bank));
    mr_conv3d plain = s.conv;
    plain.input = x;
    plain.weight = weight;
    plain.bias = bias;
    plain.halo = halo;
    const uint64_t conv = took(plain);
    const uint64_t fused = took(np_conv3d_op(x, weight, bias, halo, s, bank, regions));
    INFO("exchange " << exchange << " conv3d " << conv << " np_conv3d " << fused << mode);
    CHECK(fused < exchange + conv);
    CHECK(exchange + conv - fused > std::min(exchange, conv) / 2);
    CHECK(fused >= std::max(exchange, conv));
    CHECK(at_rest(mesh, bank));
    CHECK(at_rest(mesh, regions));
  }
}

TEST_CASE("np_conv3d: what does not fit is refused, and says why") {
  TestMesh mesh(2, 2, "num_links=2");
  const Sharded s = plain_case(4, 5, 6);
  const HaloBank bank(mesh);
  const RegionBank regions(mesh, 1);
  const mr_handle x = mesh.alloc(row_major(s.halo.local, DType::bfloat16)), halo = mesh.alloc(row_major(s.compact(), DType::bfloat16));
  const mr_handle weight = mesh.alloc(s.weight), bias = mesh.alloc(s.bias);
  const auto refused = [&](auto change, const char* why) {
    auto op = np_conv3d_op(x, weight, bias, halo, s, bank, regions);
    change(op);
    const mr_handle output = op.output;
    const Answer answer = mesh.try_enqueue(op);
    CHECK(answer.code == MR_REJECTED);
    CHECK(answer.says("np_conv3d: "));
    CHECK_MESSAGE(answer.says(why), answer.text);
    CHECK(op.output == output);
  };
  refused([&](auto& op) { op.h.present = 0; }, "padding[2] is 1");
  refused([&](auto& op) { op.h.present = 3; }, "present is 0x3");
  refused([&](auto& op) { op.links = 0; }, "links is 0");
  refused([&](auto& op) { op.links = 9; }, "links is 9");
  refused([&](auto& op) { op.axis_h = 1; }, "axes are 1 and 1");
  refused([&](auto& op) { op.padding[1] = 5; }, "pad_left is 5");
  refused([&](auto& op) { op.kernel[0] = 3; }, "kernel[0] is 3");
  refused([&](auto& op) { op.weight = bias; }, "weight is [1,6]");
  refused([&](auto& op) { op.region[2] = 0; }, "region is 0");
  refused([&](auto& op) { op.region[2] = op.region[1]; }, "region[2] is given twice");
  refused([&](auto& op) { op.region[1] = op.barrier; }, "region[1] is also");
  refused([&](auto& op) { op.semaphore_w = 0; }, "semaphore_w is 0");
  refused([&](auto& op) { op.barrier = op.semaphore_h; }, "must be different semaphores");
  refused([&](auto& op) { op.halo = 0; }, "halo is 0");
  refused([&](auto& op) { op.halo = x; }, "halo is [1,2,4,5,6]");
  refused([&](auto& op) { op.output = x; }, "shares its memory");
}
