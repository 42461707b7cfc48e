// harness.h: the driver as a test uses it.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "../bf16.h"
#include "../spec.h"
#include "meshrun_driver.h"

extern "C" const mr_driver* meshrun_emulator_driver(uint32_t abi_version);

namespace meshrun::test {

using emu::DType;
using emu::Shape;

inline const mr_driver& driver() { return *meshrun_emulator_driver(MR_ABI_VERSION); }
inline const mr_emulator_ext& extension() { return *static_cast<const mr_emulator_ext*>(driver().extension("meshrun.emulator.1")); }

inline mr_error fresh_error() {
  mr_error e{};
  e.size = sizeof e;
  return e;
}

inline Shape shape(std::initializer_list<uint32_t> dims) {
  Shape s;
  for (const uint32_t d : dims) s.dims[s.rank++] = d;
  return s;
}

inline mr_tensor_spec spec(const Shape& shape, DType dtype = DType::bfloat16, uint32_t layout = MR_TILE) {
  emu::Spec s;
  s.dtype = dtype;
  s.layout = layout;
  s.shape = shape;
  return emu::to_abi(s);
}

template <class Op>
Op make_op(uint32_t kind, uint32_t queue = 0) {
  Op op{};
  op.h.size = sizeof op;
  op.h.op = kind;
  op.h.queue = queue;
  return op;
}

// What a call answered.
struct Answer {
  int32_t code = MR_OK;
  std::string text;
  bool says(const char* part) const { return text.find(part) != std::string::npos; }
};

class TestMesh {
 public:
  TestMesh(uint32_t rows, uint32_t cols, const std::string& config = "", uint32_t queues = 1) : rows_(rows), cols_(cols), queues_(queues) {
    mr_open_options o{};
    o.size = sizeof o;
    o.rows = rows;
    o.cols = cols;
    o.queues = queues;
    o.config = config.c_str();
    mr_error e = fresh_error();
    const int32_t code = driver().open(&o, &mesh_, &e);
    REQUIRE_MESSAGE(code == MR_OK, e.message);
    lockstep_ = config.find("clock=lockstep") != std::string::npos;
  }
  TestMesh(const TestMesh&) = delete;
  TestMesh& operator=(const TestMesh&) = delete;
  ~TestMesh() {
    if (mesh_ != 0) close();
  }
  Answer close() {
    mr_error e = fresh_error();
    driver().close(mesh_, &e);
    mesh_ = 0;
    return {e.code, e.message};
  }

  mr_handle handle() const { return mesh_; }
  uint32_t devices() const { return rows_ * cols_; }
  uint32_t rows() const { return rows_; }
  uint32_t cols() const { return cols_; }

  mr_handle alloc(const mr_tensor_spec& s) {
    mr_handle h = 0;
    mr_error e = fresh_error();
    const int32_t code = driver().tensor_alloc(mesh_, &s, &h, &e);
    REQUIRE_MESSAGE(code == MR_OK, e.message);
    return h;
  }
  mr_handle alloc(const Shape& s, DType dtype = DType::bfloat16) { return alloc(spec(s, dtype)); }

  // One array per device, row by row.
  template <class T>
  mr_handle upload(const Shape& s, DType dtype, const std::vector<std::vector<T>>& per_device, uint32_t queue = 0) {
    const mr_handle h = alloc(s, dtype);
    write(h, s, per_device, queue);
    return h;
  }
  template <class T>
  void write(mr_handle h, const Shape& s, const std::vector<std::vector<T>>& per_device, uint32_t queue = 0) {
    REQUIRE(per_device.size() == devices());
    // Cut along the first dim by both axes: the host's array is the shards one behind the other.
    std::vector<T> all;
    for (const auto& v : per_device) {
      REQUIRE(v.size() == s.elements());
      all.insert(all.end(), v.begin(), v.end());
    }
    mr_distribution d{};
    d.size = sizeof d;
    d.present = 3;
    mr_error e = fresh_error();
    const int32_t code = driver().tensor_write(mesh_, h, &d, all.data(), all.size() * sizeof(T), queue, &e);
    REQUIRE_MESSAGE(code == MR_OK, e.message);
  }

  template <class T>
  std::vector<T> read(mr_handle h, uint32_t device) {
    mr_tensor_spec s{};
    s.size = sizeof s;
    mr_error e = fresh_error();
    REQUIRE_MESSAGE(driver().tensor_info(mesh_, h, &s, &e) == MR_OK, e.message);
    const emu::Spec known = emu::checked_spec(s, "test");
    std::vector<T> data(known.shape.elements());
    const int32_t code = driver().tensor_read(mesh_, h, device / cols_, device % cols_, data.data(), data.size() * sizeof(T), &e);
    REQUIRE_MESSAGE(code == MR_OK, e.message);
    return data;
  }

  // Made and fenced.
  std::vector<mr_handle> semaphores(uint32_t count, uint32_t initial = 0) {
    const std::vector<mr_handle> h = unfenced_semaphores(count, initial);
    for (uint32_t q = 0; q < queues_; ++q) sync(q);
    return h;
  }
  std::vector<mr_handle> unfenced_semaphores(uint32_t count, uint32_t initial = 0) {
    std::vector<mr_handle> h(count);
    mr_error e = fresh_error();
    const int32_t code = driver().semaphores_create(mesh_, count, initial, h.data(), &e);
    REQUIRE_MESSAGE(code == MR_OK, e.message);
    return h;
  }
  uint32_t value(mr_handle semaphore, uint32_t device) {
    uint32_t v = 0;
    mr_error e = fresh_error();
    REQUIRE(extension().semaphore_value(mesh_, semaphore, device / cols_, device % cols_, &v, &e) == MR_OK);
    return v;
  }

  template <class Op>
  Answer try_enqueue(Op& op) {
    op.h.launch = ++launches_;
    mr_error e = fresh_error();
    driver().enqueue(mesh_, &op, &e);
    if (e.code != MR_OK) --launches_;
    return {e.code, e.message};
  }
  template <class Op>
  void enqueue(Op& op) {
    const Answer a = try_enqueue(op);
    REQUIRE_MESSAGE(a.code == MR_OK, a.text);
  }

  mr_handle record(uint32_t queue = 0) {
    mr_handle h = 0;
    mr_error e = fresh_error();
    REQUIRE_MESSAGE(driver().event_record(mesh_, queue, &h, &e) == MR_OK, e.message);
    return h;
  }
  Answer query(mr_handle event, bool& done) {
    mr_event_status s{};
    s.size = sizeof s;
    mr_error e = fresh_error();
    driver().event_query(mesh_, event, &s, &e);
    done = s.done != 0;
    return {e.code, e.message};
  }
  void free_event(mr_handle event) {
    mr_error e = fresh_error();
    driver().event_free(mesh_, &event, 1, &e);
  }
  // Waits for all that was enqueued.
  Answer fence(uint32_t queue = 0) {
    mr_handle event = 0;
    mr_error failed = fresh_error();
    if (driver().event_record(mesh_, queue, &event, &failed) != MR_OK) return {failed.code, failed.message};
    const auto begin = std::chrono::steady_clock::now();
    for (;;) {
      bool done = false;
      Answer a = query(event, done);
      if (a.code != MR_OK) return a;
      if (done) break;
      if (lockstep_) {
        int32_t state = 0;
        mr_error e = fresh_error();
        if (extension().clock_advance(mesh_, UINT64_MAX, 100'000, &state, &e) != MR_OK) return {e.code, e.message};
      } else {
        std::this_thread::yield();
      }
      if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(120)) return {-1, "test: fence takes too long"};
    }
    free_event(event);
    return {};
  }
  void sync(uint32_t queue = 0) {
    const Answer a = fence(queue);
    REQUIRE_MESSAGE(a.code == MR_OK, a.text);
  }

  Answer fault(const char* text) {
    mr_error e = fresh_error();
    extension().fault(mesh_, text, &e);
    return {e.code, e.message};
  }
  std::string report() {
    uint64_t needed = 0;
    mr_error e = fresh_error();
    extension().report(mesh_, nullptr, 0, &needed, &e);
    std::string s(needed, '\0');
    extension().report(mesh_, s.data(), needed, &needed, &e);
    s.resize(s.size() - 1);
    return s;
  }
  void free_tensor(mr_handle h) {
    mr_error e = fresh_error();
    REQUIRE_MESSAGE(driver().tensor_free(mesh_, &h, 1, &e) == MR_OK, e.message);
  }
  uint64_t last_launch() const { return launches_; }

 private:
  uint32_t rows_, cols_, queues_;
  mr_handle mesh_ = 0;
  uint64_t launches_ = 0;
  bool lockstep_ = false;
};

// The devices of the line that a device is on, in order of position.
inline std::vector<uint32_t> line_of(uint32_t rows, uint32_t cols, uint32_t device, uint32_t axis) {
  std::vector<uint32_t> line;
  if (axis == 0)
    for (uint32_t r = 0; r < rows; ++r) line.push_back(r * cols + device % cols);
  else
    for (uint32_t c = 0; c < cols; ++c) line.push_back(device / cols * cols + c);
  return line;
}

}  // namespace meshrun::test
