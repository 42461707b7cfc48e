// Regions, copies between them, and single steps of a reduction, where a race cannot be arranged by launches.
#include <random>
#include <set>

#include "../copy_region.h"
#include "../parallel.h"
#include "../reduction.h"
#include "../slices.h"
#include "collectives.h"

using namespace meshrun::test;
using namespace meshrun::emu;

namespace {

std::vector<uint64_t> bytes_of(const Region& r) {
  std::vector<uint64_t> all;
  for (uint64_t i = r.from; i < r.to; ++i) all.push_back(r.offset + i / r.run * r.stride + i % r.run);
  return all;
}

Region random_region(std::mt19937& random, uint64_t most) {
  const auto up_to = [&](uint64_t n) { return std::uniform_int_distribution<uint64_t>(0, n)(random); };
  Region r;
  r.run = 1 + up_to(20);
  r.stride = r.run + (up_to(2) == 0 ? 0 : up_to(40));
  r.offset = up_to(50);
  const uint64_t rows = 1 + up_to(6);
  r.from = up_to(r.run * rows - 1);
  r.to = std::min(r.from + 1 + up_to(most), r.run * rows);
  return r;
}

}  // namespace

TEST_CASE("regions: what does not overlap may be said to, what overlaps is never denied") {
  std::mt19937 random(1);
  int free = 0, denied = 0;
  for (int i = 0; i < 20000; ++i) {
    const Region a = random_region(random, 60);
    Region b = random_region(random, 60);
    if (i % 2 == 0) b.stride = a.stride, b.run = std::min(b.run, b.stride);
    if (b.from >= b.to) continue;
    const auto x = bytes_of(a), y = bytes_of(b);
    CHECK(a.first() == *std::min_element(x.begin(), x.end()));
    CHECK(a.last() == *std::max_element(x.begin(), x.end()));
    const std::set<uint64_t> in(x.begin(), x.end());
    const bool overlap = std::any_of(y.begin(), y.end(), [&](uint64_t v) { return in.count(v) != 0; });
    if (overlap) {
      if (!may_overlap(a, b)) ++denied;
    } else {
      free += !may_overlap(a, b);
    }
  }
  CHECK(denied == 0);
  CHECK(free > 1000);
}

TEST_CASE("copies between regions of any two patterns") {
  std::mt19937 random(2);
  for (int i = 0; i < 5000; ++i) {
    Region a = random_region(random, 100), b = random_region(random, 100);
    const uint64_t n = std::min(a.bytes(), b.bytes());
    a.to = a.from + n;
    b.to = b.from + n;
    if (i % 3 == 0) b = Region::contiguous(3, n);
    std::vector<std::byte> source(2000), target(2000), expected;
    for (auto& v : source) v = static_cast<std::byte>(random());
    for (auto& v : target) v = static_cast<std::byte>(random());
    expected = target;
    const auto x = bytes_of(a), y = bytes_of(b);
    for (uint64_t j = 0; j < n; ++j) expected[y[j]] = source[x[j]];
    Serial serial;
    CopyRegion{source.data(), target.data(), a, b, i % 2 == 0}(serial);
    REQUIRE(target == expected);
  }
}

TEST_CASE("copies of rows of every length, streamed and not") {
  for (const uint64_t run : {2u, 64u, 100u, 128u, 256u, 1024u, 2048u, 4096u, 20000u})
    for (const bool streaming : {false, true}) {
      const uint64_t rows = 9, stride = 3 * run, from = run / 2, to = run * rows - run / 3;
      std::vector<std::byte> source(stride * rows + 64), target(source.size(), std::byte{7}), expected;
      std::mt19937 random(3);
      for (auto& v : source) v = static_cast<std::byte>(random());
      expected = target;
      const Region a{0, run, stride, from, to}, b{run, run, stride, from, to};
      const auto x = bytes_of(a), y = bytes_of(b);
      for (size_t j = 0; j < x.size(); ++j) expected[y[j]] = source[x[j]];
      Serial serial;
      CopyRegion{source.data(), target.data(), a, b, streaming}(serial);
      CHECK(target == expected);
    }
}

TEST_CASE("shares: no element torn, none lost, as even as can be") {
  for (uint64_t elements : {1u, 3u, 8u, 1000u})
    for (uint64_t n : {1u, 2u, 3u, 8u}) {
      const Span whole{0, elements * 4};
      uint64_t at = 0;
      for (uint64_t i = 0; i < n; ++i) {
        const Span s = whole.share(i, n, 4);
        CHECK(s.from == at);
        CHECK(s.bytes() % 4 == 0);
        CHECK(s.bytes() / 4 <= elements / n + 1);
        at = s.to;
      }
      CHECK(at == whole.to);
    }
  const Chunks chunks{{10, 110}, 30};
  CHECK(chunks.count() == 4);
  CHECK(chunks[3].from == 100);
  CHECK(chunks[3].to == 110);
  CHECK(chunks.until(40) == 1);
  CHECK(chunks.until(41) == 2);
  CHECK(Chunks{{5, 5}, 30}.count() == 0);
}

TEST_CASE("reduction: a shadow counts only while memory holds what it rounds to") {
  HostPool pool;
  Serial serial;
  for (const uint64_t run : {6u, 1024u, 100000u}) {
    const size_t n = 5000;
    const uint64_t bytes = n * 2, stride = run < bytes ? 3 * run : bytes;
    const Region rows{0, std::min<uint64_t>(run, bytes), stride, 0, bytes};
    const size_t room = rows.last() / 2 + 1;
    std::vector<uint16_t> first(room), second(room), third(room), stage(room), next(room);
    std::mt19937 random(4);
    std::uniform_real_distribution<float> value(-1, 1);
    for (auto* v : {&first, &second, &third})
      for (auto& x : *v) x = to_bf16(value(random));
    const auto part = [&](std::vector<uint16_t>& v, Shadow* shadow = nullptr) { return Part{reinterpret_cast<std::byte*>(v.data()), rows, shadow}; };
    Shadow kept;
    // first + second, staged with its shadow
    ReduceStep step{.dtype = DType::bfloat16, .pool = &pool, .behind = part(first), .own = part(second), .other = {}, .to = reinterpret_cast<std::byte*>(stage.data()), .target = rows, .keep = &kept};
    step(serial);
    CHECK(kept.block);
    // Somebody writes to some of what is staged.
    std::vector<uint64_t> at = bytes_of(rows);
    std::vector<bool> damaged(room);
    for (size_t i = 0; i < n; i += 7) {
      stage[at[2 * i] / 2] = to_bf16(100);
      damaged[at[2 * i] / 2] = true;
    }
    ReduceStep last{.dtype = DType::bfloat16, .pool = &pool, .behind = part(stage, &kept), .own = part(third), .other = {}, .to = reinterpret_cast<std::byte*>(next.data()), .target = rows, .keep = nullptr};
    last(serial);
    CHECK(!kept.block);
    for (size_t i = 0; i < n; ++i) {
      const size_t e = at[2 * i] / 2;
      const float came = damaged[e] ? 100 : to_float(first[e]) + to_float(second[e]);
      REQUIRE(next[e] == to_bf16(came + to_float(third[e])));
    }
  }
}
