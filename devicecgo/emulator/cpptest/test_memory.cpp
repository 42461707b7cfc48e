// Memory has addresses: what is free in sum may be of no use, and who is in the way is told.
#include <algorithm>
#include <map>
#include <random>

#include "arena.h"
#include "harness.h"

using namespace meshrun::emu;
using namespace meshrun::test;

TEST_CASE("L1 is handed out from the top down, DRAM from the bottom up") {
  Arena dram(1024, 64, Arena::From::bottom), l1(1024, 16, Arena::From::top);
  CHECK(*dram.take(1, "a") == 0);
  CHECK(*dram.take(65, "b") == 64);
  CHECK(*dram.take(64, "c") == 192);
  CHECK(*l1.take(1, "a") == 1008);
  CHECK(*l1.take(17, "b") == 976);
  CHECK(dram.live() == 256);
  CHECK(l1.live() == 48);
}

TEST_CASE("a hole is filled again; free bytes in pieces do not make a block") {
  Arena arena(1000, 10, Arena::From::bottom);
  std::vector<uint64_t> at;
  for (int i = 0; i < 10; ++i) at.push_back(*arena.take(100, i % 2 == 0 ? "even" : "odd"));
  CHECK_FALSE(arena.take(1, "more"));
  for (int i = 0; i < 10; i += 2) arena.give_back(at[i]);
  CHECK(arena.free() == 500);
  CHECK(arena.largest_free() == 100);
  CHECK_FALSE(arena.fits(101));
  CHECK_FALSE(arena.take(110, "big"));
  CHECK(arena.owners(1) == "odd 500");
  arena.give_back(at[3]);  // joins the holes on both sides
  CHECK(arena.largest_free() == 300);
  CHECK(*arena.take(250, "big") == 200);
  CHECK(arena.owners(1) == "odd 400; and 1 more");
  CHECK(arena.peak() == 1000);
}

TEST_CASE("random use: blocks never overlap, and all comes back as one block") {
  for (const auto from : {Arena::From::bottom, Arena::From::top}) {
    std::mt19937 random(static_cast<unsigned>(from) + 7);
    Arena arena(1 << 16, 32, from);
    std::map<uint64_t, uint64_t> live;
    for (int i = 0; i < 4000; ++i) {
      if (live.empty() || random() % 5 < 3) {
        const uint64_t bytes = random() % 3000 + 1;
        if (const auto at = arena.take(bytes, "x")) {
          const auto next = live.lower_bound(*at);
          REQUIRE((next == live.end() || *at + bytes <= next->first));
          REQUIRE((next == live.begin() || std::prev(next)->first + std::prev(next)->second <= *at));
          REQUIRE(*at + bytes <= 1 << 16);
          live[*at] = bytes;
        } else {
          REQUIRE(bytes > arena.largest_free());
        }
      } else {
        auto gone = live.begin();
        std::advance(gone, random() % live.size());
        arena.give_back(gone->first);
        live.erase(gone);
      }
    }
    for (const auto& [at, bytes] : live) arena.give_back(at);
    CHECK(arena.largest_free() == 1 << 16);
    CHECK(arena.live() == 0);
    CHECK_THROWS(arena.give_back(0));
  }
}

TEST_CASE("out of memory names the owners and the largest free block") {
  TestMesh mesh(1, 2, "dram_bytes=65536\nl1_bytes=4096\ngrid_x=1\ngrid_y=1");
  mr_error e = fresh_error();
  const mr_handle a = mesh.alloc(shape({1, 1, 128, 64})), b = mesh.alloc(shape({1, 1, 32, 32})), c = mesh.alloc(shape({1, 1, 32, 64}));
  extension().name(mesh.handle(), a, "ag(shape=[1, 1, 32, 64],dim=2,axis=1).bank0", &e);
  extension().name(mesh.handle(), c, "np(shape=[3]).bank1", &e);
  mesh.free_tensor(b);
  const mr_tensor_spec s = spec(shape({1, 1, 1024, 32}));
  mr_handle h = 0;
  REQUIRE(driver().tensor_alloc(mesh.handle(), &s, &h, &e) == MR_OUT_OF_MEMORY);
  const std::string text = e.message;
  CHECK_MESSAGE(text.find("needs 65536 bytes of DRAM on every device; 20480 of 65536 are live, 45056 free, the largest free block has 43008") != std::string::npos, text);
  CHECK_MESSAGE(text.find("Live by owner: ag(shape=[1, 1, 32, 64],dim=2,axis=1) 16384; np(shape=[3]) 4096") != std::string::npos, text);
  // Semaphores are owners too.
  mr_handle semaphores[2];
  REQUIRE(driver().semaphores_create(mesh.handle(), 2, 0, semaphores, &e) == MR_OK);
  extension().name(mesh.handle(), semaphores[0], "ag[1].bank0.0", &e);
  extension().name(mesh.handle(), semaphores[1], "np_region[0].3", &e);
  std::vector<mr_handle> many(300);
  REQUIRE(driver().semaphores_create(mesh.handle(), 300, 0, many.data(), &e) == MR_OUT_OF_MEMORY);
  const std::string l1 = e.message;
  CHECK_MESSAGE(l1.find("a semaphore needs 4 bytes of L1 on every core; 4096 of 4096 are live, 0 free") != std::string::npos, l1);
  CHECK_MESSAGE(l1.find("semaphores 4064; ag[1] 16; np_region[0] 16") != std::string::npos, l1);
  // The refusal has left nothing behind.
  CHECK(mesh.report().find("\"l1_live_bytes\":32") != std::string::npos);
}
