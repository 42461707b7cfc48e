/* calls.h: every call of a driver goes through these functions. They check the thread, find the function in the driver's table, and turn a
 * C++ exception that a driver lets out into a code. */
#ifndef MESHRUN_CALLS_H
#define MESHRUN_CALLS_H

#include "meshrun_driver.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One open mesh. `owner` is the address of a thread-local of the thread that opened it: a cheap name of that thread. */
typedef struct mr_ref {
  const mr_driver* driver;
  const mr_emulator_ext* emulator;
  mr_handle mesh;    /* 0 = not open */
  const char* owner; /* NULL: any thread */
  mr_error error;    /* of the last call; belongs to the owner */
  mr_error failure;  /* of the launch that failure_next returned last */
} mr_ref;

int mr_foreign(const mr_ref* r); /* is this another thread than the owner's? */
const char* mr_message(const mr_ref* r);
const char* mr_text(const mr_error* e);
const mr_driver* mr_enter(void* entry);
const char* mr_dlerror(void);

int32_t mr_open_ref(mr_ref* r, const mr_open_options* o);
int32_t mr_close_ref(mr_ref* r);
int32_t mr_info(mr_ref* r, mr_mesh_info* i);
int32_t mr_tensor_alloc(mr_ref* r, const mr_tensor_spec* s, mr_handle* t);
int32_t mr_tensor_view(mr_ref* r, mr_handle t, uint32_t rank, const uint32_t* dims, mr_handle* v);
int32_t mr_tensor_write(mr_ref* r, mr_handle t, const mr_distribution* d, const void* p, uint64_t n, uint32_t q);
int32_t mr_tensor_read(mr_ref* r, mr_handle t, uint32_t row, uint32_t col, void* p, uint64_t n);
int32_t mr_tensor_info(mr_ref* r, mr_handle t, mr_tensor_spec* s);
int32_t mr_tensor_free(mr_ref* r, const mr_handle* t, uint32_t n);
int32_t mr_semaphores_create(mr_ref* r, uint32_t n, uint32_t v, mr_handle* s);
int32_t mr_semaphores_reset(mr_ref* r, const mr_handle* s, uint32_t n, uint32_t v);
int32_t mr_semaphores_free(mr_ref* r, const mr_handle* s, uint32_t n);
int32_t mr_event_record(mr_ref* r, uint32_t q, mr_handle* e);
int32_t mr_event_query(mr_ref* r, mr_handle e, mr_event_status* s);
int32_t mr_event_wait_on(mr_ref* r, uint32_t q, mr_handle e);
int32_t mr_event_free(mr_ref* r, mr_handle e);
int32_t mr_trace_begin(mr_ref* r, uint32_t q, mr_handle* t);
int32_t mr_trace_end(mr_ref* r, mr_handle t);
int32_t mr_trace_execute(mr_ref* r, mr_handle t, uint32_t q, uint64_t first);
int32_t mr_trace_free(mr_ref* r, mr_handle t);
int32_t mr_enqueue(mr_ref* r, void* op);
int32_t mr_failure_next(mr_ref* r, uint64_t* launch);

int32_t mr_clock_now(mr_ref* r, uint64_t* ns);
int32_t mr_clock_advance(mr_ref* r, uint64_t until, uint32_t wait_us, int32_t* state);
int32_t mr_profile(mr_ref* r, uint64_t launch, mr_launch_profile* p);
int32_t mr_profile_devices(mr_ref* r, uint64_t launch, mr_device_profile* d, uint32_t n, uint32_t* count);
int32_t mr_fault(mr_ref* r, const char* text);
int32_t mr_report(mr_ref* r, char* json, uint64_t n, uint64_t* needed);
int32_t mr_semaphore_value(mr_ref* r, mr_handle s, uint32_t row, uint32_t col, uint32_t* v);
int32_t mr_name(mr_ref* r, mr_handle o, const char* name);
int32_t mr_name_stream(mr_ref* r, uint32_t s, const char* name);

#ifdef __cplusplus
}
#endif
#endif
