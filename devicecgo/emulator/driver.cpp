// driver.cpp: the C ABI. Each function finds the mesh, checks the thread, and lets no exception out.
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>

#include "errors.h"
#include "handles.h"
#include "mesh.h"
#include "ops.h"

namespace meshrun::emu {
namespace {

// ---- meshes of the process -------------------------------------------------------------------------------------------------

// Each thread has a number; unlike the system's ids it is never used again.
uint64_t this_thread() {
  static std::atomic<uint64_t> threads{0};
  thread_local const uint64_t number = ++threads;
  return number;
}

// A slot says who may use its mesh, so that a call from another thread is refused without looking at the mesh itself.
struct MeshSlot {
  std::atomic<uint32_t> generation{0};  // 0 = empty
  std::atomic<uint64_t> owner{0};
  std::unique_ptr<Mesh> mesh;  // touched by the owner only, and under the lock of MeshTable
};

class MeshTable {
 public:
  static MeshTable& get() {
    static MeshTable table;
    return table;
  }

  mr_handle add(const mr_open_options& options) {
    std::lock_guard lock(mutex_);
    for (uint32_t i = 0; i < kSlots; ++i) {
      MeshSlot& s = slots_[i];
      if (s.generation.load(std::memory_order_acquire) != 0) continue;
      s.mesh = std::make_unique<Mesh>(options, ++salt_);
      s.owner.store(this_thread(), std::memory_order_relaxed);
      const uint32_t generation = static_cast<uint32_t>(Kind::mesh) << 29 | (++opened_ & 0x1fffffffu);
      s.generation.store(generation, std::memory_order_release);
      return make_handle(i, generation);
    }
    throw error(MR_OUT_OF_MEMORY, "open: %u meshes are open in this process: no more", kSlots);
  }

  MeshSlot& slot(mr_handle h, const char* function) {
    const uint32_t i = handle_slot(h);
    if (i >= kSlots || h == 0 || slots_[i].generation.load(std::memory_order_acquire) != handle_generation(h))
      throw error(MR_STALE_HANDLE, "%s: handle 0x%llx is not an open mesh", function, static_cast<unsigned long long>(h));
    if (slots_[i].owner.load(std::memory_order_relaxed) != this_thread())
      throw error(MR_WRONG_THREAD, "%s: called from another thread than the one that opened the mesh", function);
    return slots_[i];
  }

  void close(mr_handle h) {
    MeshSlot& s = slot(h, "close");
    s.mesh.reset();
    s.owner.store(0, std::memory_order_relaxed);
    s.generation.store(0, std::memory_order_release);
  }

 private:
  static constexpr uint32_t kSlots = 256;
  std::mutex mutex_;
  uint32_t salt_ = 0;
  uint32_t opened_ = 0;
  MeshSlot slots_[kSlots];
};

// ---- errors ----------------------------------------------------------------------------------------------------------------

int32_t put(mr_error* out, int32_t code, const char* message) noexcept {
  if (out == nullptr || out->size < offsetof(mr_error, message) + 1) return code;
  out->code = code;
  out->flags = 0;
  std::snprintf(out->message, std::min<size_t>(out->size - offsetof(mr_error, message), MR_MESSAGE_BYTES), "%s", message);
  return code;
}

template <class F>
int32_t guarded(mr_error* out, F f) noexcept {
  try {
    f();
    return put(out, MR_OK, "");
  } catch (const Error& e) {
    return put(out, e.code(), e.what());
  } catch (const std::bad_alloc&) {
    return put(out, MR_OUT_OF_MEMORY, "out of memory: the host has no more");
  } catch (const std::exception& e) {
    return put(out, MR_INTERNAL, e.what());
  } catch (...) {
    return put(out, MR_INTERNAL, "unknown exception");
  }
}

// A call on a mesh that must be alive.
template <class F>
int32_t on_mesh(mr_handle mesh, const char* function, mr_error* out, F f) noexcept {
  return guarded(out, [&] {
    Mesh& m = *MeshTable::get().slot(mesh, function).mesh;
    m.check_alive();
    f(m);
  });
}

// A call that also works on a mesh that is lost.
template <class F>
int32_t on_any_mesh(mr_handle mesh, const char* function, mr_error* out, F f) noexcept {
  return guarded(out, [&] { f(*MeshTable::get().slot(mesh, function).mesh); });
}

template <class T>
T& given(T* pointer, const char* what) {
  if (pointer == nullptr) throw error(MR_INVALID_ARGUMENT, "%s is NULL", what);
  return *pointer;
}

void give_text(const std::string& text, char* to, uint64_t capacity, uint64_t* needed) {
  given(needed, "needed") = text.size() + 1;
  if (to == nullptr || capacity == 0) return;
  const size_t n = std::min<size_t>(text.size(), capacity - 1);
  std::memcpy(to, text.data(), n);
  to[n] = 0;
}

// ---- the extension ---------------------------------------------------------------------------------------------------------

constexpr mr_emulator_ext kExtension = {
    .size = sizeof(mr_emulator_ext),
    .reserved = 0,
    .clock_now = [](mr_handle mesh, uint64_t* now, mr_error* e) {
      return on_any_mesh(mesh, "clock_now", e, [&](Mesh& m) { given(now, "clock_now: now_ns") = m.clock_now(); });
    },
    .clock_advance = [](mr_handle mesh, uint64_t until, uint32_t max_wait_us, int32_t* state, mr_error* e) {
      return on_any_mesh(mesh, "clock_advance", e, [&](Mesh& m) { given(state, "clock_advance: state") = m.clock_advance(until, max_wait_us); });
    },
    .launch_profile = [](mr_handle mesh, uint64_t launch, mr_launch_profile* profile, mr_error* e) {
      return on_any_mesh(mesh, "launch_profile", e, [&](Mesh& m) { m.launch_profile(launch, given(profile, "launch_profile: profile")); });
    },
    .fault = [](mr_handle mesh, const char* text, mr_error* e) {
      return on_any_mesh(mesh, "fault", e, [&](Mesh& m) { m.fault(text); });
    },
    .report = [](mr_handle mesh, char* json, uint64_t capacity, uint64_t* needed, mr_error* e) {
      return on_any_mesh(mesh, "report", e, [&](Mesh& m) { give_text(m.report(), json, capacity, needed); });
    },
    .presets = [](char* json, uint64_t capacity, uint64_t* needed, mr_error* e) {
      return guarded(e, [&] { give_text(presets_json(), json, capacity, needed); });
    },
    .semaphore_value = [](mr_handle mesh, mr_handle semaphore, uint32_t row, uint32_t col, uint32_t* value, mr_error* e) {
      return on_any_mesh(mesh, "semaphore_value", e,
                         [&](Mesh& m) { given(value, "semaphore_value: value") = m.semaphore_value(semaphore, row, col); });
    },
    .name = [](mr_handle mesh, mr_handle object, const char* name, mr_error* e) {
      return on_any_mesh(mesh, "name", e, [&](Mesh& m) { m.name(object, name); });
    },
    .name_stream = [](mr_handle mesh, uint32_t stream, const char* name, mr_error* e) {
      return on_any_mesh(mesh, "name_stream", e, [&](Mesh& m) { m.name_stream(stream, name); });
    },
    .launch_devices = [](mr_handle mesh, uint64_t launch, mr_device_profile* devices, uint32_t capacity, uint32_t* count, mr_error* e) {
      return on_any_mesh(mesh, "launch_devices", e,
                         [&](Mesh& m) { given(count, "launch_devices: count") = m.launch_devices(launch, devices, capacity); });
    },
};

// ---- the table -------------------------------------------------------------------------------------------------------------

constexpr mr_driver kDriver = {
    .size = sizeof(mr_driver),
    .abi_version = MR_ABI_VERSION,
    .name = "emulator",
    .flags = 0,
    .reserved = 0,
    .open = [](const mr_open_options* options, mr_handle* mesh, mr_error* e) {
      return guarded(e, [&] {
        mr_handle& out = given(mesh, "open: mesh");
        out = 0;
        out = MeshTable::get().add(given(options, "open: options"));
      });
    },
    .close = [](mr_handle mesh, mr_error* e) { return guarded(e, [&] { MeshTable::get().close(mesh); }); },
    .info = [](mr_handle mesh, mr_mesh_info* info, mr_error* e) {
      return on_mesh(mesh, "info", e, [&](Mesh& m) { m.info(given(info, "info: info")); });
    },
    .tensor_alloc = [](mr_handle mesh, const mr_tensor_spec* spec, mr_handle* tensor, mr_error* e) {
      return on_mesh(mesh, "tensor_alloc", e,
                     [&](Mesh& m) { given(tensor, "tensor_alloc: tensor") = m.tensor_alloc(given(spec, "tensor_alloc: spec")); });
    },
    .tensor_view = [](mr_handle mesh, mr_handle tensor, uint32_t rank, const uint32_t* dims, mr_handle* view, mr_error* e) {
      return on_mesh(mesh, "tensor_view", e, [&](Mesh& m) { given(view, "tensor_view: view") = m.tensor_view(tensor, rank, dims); });
    },
    .tensor_write = [](mr_handle mesh, mr_handle tensor, const mr_distribution* distribution, const void* data, uint64_t bytes, uint32_t queue,
                       mr_error* e) {
      return on_mesh(mesh, "tensor_write", e, [&](Mesh& m) {
        m.tensor_write(tensor, given(distribution, "tensor_write: distribution"), data, bytes, queue);
      });
    },
    .tensor_read = [](mr_handle mesh, mr_handle tensor, uint32_t row, uint32_t col, void* data, uint64_t bytes, mr_error* e) {
      return on_mesh(mesh, "tensor_read", e, [&](Mesh& m) { m.tensor_read(tensor, row, col, data, bytes); });
    },
    .tensor_info = [](mr_handle mesh, mr_handle tensor, mr_tensor_spec* spec, mr_error* e) {
      return on_mesh(mesh, "tensor_info", e, [&](Mesh& m) { m.tensor_info(tensor, given(spec, "tensor_info: spec")); });
    },
    .tensor_free = [](mr_handle mesh, const mr_handle* tensors, uint32_t count, mr_error* e) {
      return on_mesh(mesh, "tensor_free", e, [&](Mesh& m) { m.tensor_free(tensors, count); });
    },
    .semaphores_create = [](mr_handle mesh, uint32_t count, uint32_t initial, mr_handle* semaphores, mr_error* e) {
      return on_mesh(mesh, "semaphores_create", e, [&](Mesh& m) { m.semaphores_create(count, initial, semaphores); });
    },
    .semaphores_reset = [](mr_handle mesh, const mr_handle* semaphores, uint32_t count, uint32_t value, mr_error* e) {
      return on_mesh(mesh, "semaphores_reset", e, [&](Mesh& m) { m.semaphores_reset(semaphores, count, value); });
    },
    .semaphores_free = [](mr_handle mesh, const mr_handle* semaphores, uint32_t count, mr_error* e) {
      return on_mesh(mesh, "semaphores_free", e, [&](Mesh& m) { m.semaphores_free(semaphores, count); });
    },
    .event_record = [](mr_handle mesh, uint32_t queue, mr_handle* event, mr_error* e) {
      return on_mesh(mesh, "event_record", e, [&](Mesh& m) { given(event, "event_record: event") = m.event_record(queue); });
    },
    .event_query = [](mr_handle mesh, mr_handle event, mr_event_status* status, mr_error* e) {
      return on_mesh(mesh, "event_query", e, [&](Mesh& m) {
        given(status, "event_query: status").done = 0;
        status->done = m.event_query(event) ? 1 : 0;
      });
    },
    .event_wait_on = [](mr_handle mesh, uint32_t queue, mr_handle event, mr_error* e) {
      return on_mesh(mesh, "event_wait_on", e, [&](Mesh& m) { m.event_wait_on(queue, event); });
    },
    .event_free = [](mr_handle mesh, const mr_handle* events, uint32_t count, mr_error* e) {
      return on_mesh(mesh, "event_free", e, [&](Mesh& m) { m.event_free(events, count); });
    },
    .trace_begin = [](mr_handle mesh, uint32_t queue, mr_handle* trace, mr_error* e) {
      return on_mesh(mesh, "trace_begin", e, [&](Mesh& m) { mr_handle& out = given(trace, "trace_begin: trace"); out = m.trace_begin(queue); });
    },
    .trace_end = [](mr_handle mesh, mr_handle trace, mr_error* e) {
      return on_mesh(mesh, "trace_end", e, [&](Mesh& m) { m.trace_end(trace); });
    },
    .trace_execute = [](mr_handle mesh, mr_handle trace, uint32_t queue, uint64_t first_launch, mr_error* e) {
      return on_mesh(mesh, "trace_execute", e, [&](Mesh& m) { m.trace_execute(trace, queue, first_launch); });
    },
    .trace_free = [](mr_handle mesh, mr_handle trace, mr_error* e) {
      return on_mesh(mesh, "trace_free", e, [&](Mesh& m) { m.trace_free(trace); });
    },
    .enqueue = [](mr_handle mesh, void* op, mr_error* e) { return on_mesh(mesh, "enqueue", e, [&](Mesh& m) { m.enqueue(op); }); },
    .op_supported = [](uint32_t op, int32_t* supported, mr_error* e) {
      return guarded(e, [&] { given(supported, "op_supported: supported") = find_op(op) != nullptr ? 1 : 0; });
    },
    .failure_next = [](mr_handle mesh, uint64_t* launch, mr_error* failure, mr_error* e) {
      return on_mesh(mesh, "failure_next", e,
                     [&](Mesh& m) { m.failure_next(given(launch, "failure_next: launch"), given(failure, "failure_next: failure")); });
    },
    .extension = [](const char* name) -> const void* {
      return name != nullptr && std::strcmp(name, "meshrun.emulator.1") == 0 ? &kExtension : nullptr;
    },
};

}  // namespace
}  // namespace meshrun::emu

extern "C" const mr_driver* meshrun_emulator_driver(uint32_t abi_version) {
  return abi_version == MR_ABI_VERSION ? &meshrun::emu::kDriver : nullptr;
}
