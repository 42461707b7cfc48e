#include "calls.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <exception>

namespace {

thread_local char this_thread;

void say(mr_error* e, const char* text) {
  e->code = MR_INTERNAL;
  std::snprintf(e->message, sizeof e->message, "%s", text);
}

mr_error* clean(mr_ref* r) {
  r->error.size = sizeof(mr_error);
  r->error.code = MR_OK;
  r->error.flags = 0;
  r->error.message[0] = 0;
  return &r->error;
}

// A driver must let no exception out; one that does becomes an error like any other.
template <class Call>
int32_t guarded(mr_error* e, Call&& call) noexcept {
  try {
    return call();
  } catch (const std::exception& x) {
    say(e, x.what());
  } catch (...) {
    say(e, "the driver threw something that is no std::exception");
  }
  return MR_INTERNAL;
}

// A foreign thread must not even touch the error text. Once closed, a mesh has no handle.
template <class Function, class... Args>
int32_t call(mr_ref* r, Function function, Args... args) noexcept {
  if (mr_foreign(r)) return MR_WRONG_THREAD;
  mr_error* e = clean(r);
  if (r->mesh == 0) return MR_STALE_HANDLE;
  if (function == nullptr) return MR_UNSUPPORTED;
  return guarded(e, [&] { return function(r->mesh, args..., e); });
}

// A function that the driver's table has; it ends sooner in an older driver.
#define EXTENSION(r, name) ((r)->emulator != nullptr && (r)->emulator->size > offsetof(mr_emulator_ext, name) ? (r)->emulator->name : nullptr)

}  // namespace

extern "C" {

int mr_foreign(const mr_ref* r) { return r->owner != nullptr && r->owner != &this_thread; }
const char* mr_message(const mr_ref* r) { return r->error.message; }
const char* mr_text(const mr_error* e) { return e->message; }

const char* mr_dlerror(void) {
  const char* e = dlerror();
  return e != nullptr ? e : "unknown";
}

const mr_driver* mr_enter(void* entry) {
  mr_error ignored;
  const mr_driver* table = nullptr;
  guarded(&ignored, [&] {
    table = reinterpret_cast<mr_driver_entry>(entry)(MR_ABI_VERSION);
    return MR_OK;
  });
  return table;
}

int32_t mr_open_ref(mr_ref* r, const mr_open_options* o) {
  mr_error* e = clean(r);
  int32_t code = guarded(e, [&] { return r->driver->open(o, &r->mesh, e); });
  if (code != MR_OK) {
    r->mesh = 0;
    return code;
  }
  if (r->mesh == 0) {
    say(e, "open succeeded without a handle");
    return MR_INTERNAL;
  }
  if (!(r->driver->flags & MR_DRIVER_ANY_THREAD)) r->owner = &this_thread;
  if (r->driver->extension != nullptr)
    guarded(e, [&] {
      r->emulator = static_cast<const mr_emulator_ext*>(r->driver->extension("meshrun.emulator.1"));
      return MR_OK;
    });
  return MR_OK;
}

int32_t mr_close_ref(mr_ref* r) {
  if (mr_foreign(r)) return MR_WRONG_THREAD;
  mr_error* e = clean(r);
  mr_handle mesh = r->mesh;
  r->mesh = 0;
  return mesh == 0 ? MR_OK : guarded(e, [&] { return r->driver->close(mesh, e); });
}

int32_t mr_info(mr_ref* r, mr_mesh_info* i) { return call(r, r->driver->info, i); }
int32_t mr_tensor_alloc(mr_ref* r, const mr_tensor_spec* s, mr_handle* t) { return call(r, r->driver->tensor_alloc, s, t); }
int32_t mr_tensor_view(mr_ref* r, mr_handle t, uint32_t rank, const uint32_t* dims, mr_handle* v) {
  return call(r, r->driver->tensor_view, t, rank, dims, v);
}
int32_t mr_tensor_write(mr_ref* r, mr_handle t, const mr_distribution* d, const void* p, uint64_t n, uint32_t q) {
  return call(r, r->driver->tensor_write, t, d, p, n, q);
}
int32_t mr_tensor_read(mr_ref* r, mr_handle t, uint32_t row, uint32_t col, void* p, uint64_t n) {
  return call(r, r->driver->tensor_read, t, row, col, p, n);
}
int32_t mr_tensor_info(mr_ref* r, mr_handle t, mr_tensor_spec* s) { return call(r, r->driver->tensor_info, t, s); }
int32_t mr_tensor_free(mr_ref* r, const mr_handle* t, uint32_t n) { return call(r, r->driver->tensor_free, t, n); }
int32_t mr_semaphores_create(mr_ref* r, uint32_t n, uint32_t v, mr_handle* s) { return call(r, r->driver->semaphores_create, n, v, s); }
int32_t mr_semaphores_reset(mr_ref* r, const mr_handle* s, uint32_t n, uint32_t v) { return call(r, r->driver->semaphores_reset, s, n, v); }
int32_t mr_semaphores_free(mr_ref* r, const mr_handle* s, uint32_t n) { return call(r, r->driver->semaphores_free, s, n); }
int32_t mr_event_record(mr_ref* r, uint32_t q, mr_handle* e) { return call(r, r->driver->event_record, q, e); }
int32_t mr_event_query(mr_ref* r, mr_handle e, mr_event_status* s) { return call(r, r->driver->event_query, e, s); }
int32_t mr_event_wait_on(mr_ref* r, uint32_t q, mr_handle e) { return call(r, r->driver->event_wait_on, q, e); }
int32_t mr_event_free(mr_ref* r, mr_handle e) { return call(r, r->driver->event_free, &e, 1u); }
int32_t mr_trace_begin(mr_ref* r, uint32_t q, mr_handle* t) { return call(r, r->driver->trace_begin, q, t); }
int32_t mr_trace_end(mr_ref* r, mr_handle t) { return call(r, r->driver->trace_end, t); }
int32_t mr_trace_execute(mr_ref* r, mr_handle t, uint32_t q, uint64_t first) { return call(r, r->driver->trace_execute, t, q, first); }
int32_t mr_trace_free(mr_ref* r, mr_handle t) { return call(r, r->driver->trace_free, t); }
int32_t mr_enqueue(mr_ref* r, void* op) { return call(r, r->driver->enqueue, op); }
int32_t mr_failure_next(mr_ref* r, uint64_t* launch) {
  r->failure.size = sizeof(mr_error);
  return call(r, r->driver->failure_next, launch, &r->failure);
}

int32_t mr_clock_now(mr_ref* r, uint64_t* ns) { return call(r, EXTENSION(r, clock_now), ns); }
int32_t mr_clock_advance(mr_ref* r, uint64_t until, uint32_t wait_us, int32_t* state) {
  return call(r, EXTENSION(r, clock_advance), until, wait_us, state);
}
int32_t mr_profile(mr_ref* r, uint64_t launch, mr_launch_profile* p) { return call(r, EXTENSION(r, launch_profile), launch, p); }
int32_t mr_profile_devices(mr_ref* r, uint64_t launch, mr_device_profile* d, uint32_t n, uint32_t* count) {
  return call(r, EXTENSION(r, launch_devices), launch, d, n, count);
}
int32_t mr_fault(mr_ref* r, const char* text) { return call(r, EXTENSION(r, fault), text); }
int32_t mr_report(mr_ref* r, char* json, uint64_t n, uint64_t* needed) { return call(r, EXTENSION(r, report), json, n, needed); }
int32_t mr_semaphore_value(mr_ref* r, mr_handle s, uint32_t row, uint32_t col, uint32_t* v) {
  return call(r, EXTENSION(r, semaphore_value), s, row, col, v);
}
int32_t mr_name(mr_ref* r, mr_handle o, const char* name) { return call(r, EXTENSION(r, name), o, name); }
int32_t mr_name_stream(mr_ref* r, uint32_t s, const char* name) { return call(r, EXTENSION(r, name_stream), s, name); }

}  // extern "C"
