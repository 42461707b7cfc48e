// mesh.h: the host's view of an emulated mesh: handles, validation, memory accounts. All of it belongs to the thread that opened
// the mesh; the engine runs beside it.
#pragma once

#include <memory>
#include <string>

#include "config.h"
#include "engine.h"
#include "handles.h"
#include "device_memory.h"
#include "trace.h"

namespace meshrun::emu {

constexpr int kPoison = 0xff;  // NaN in every float format: what nobody wrote shows

struct Tensor {
  std::shared_ptr<Storage> storage;
  Spec spec;
  std::string name;
};

class Mesh {
 public:
  Mesh(const mr_open_options& options, uint32_t salt);

  void info(mr_mesh_info& out) const;

  mr_handle tensor_alloc(const mr_tensor_spec& spec);
  mr_handle tensor_view(mr_handle tensor, uint32_t rank, const uint32_t* dims);
  void tensor_write(mr_handle tensor, const mr_distribution& distribution, const void* data, uint64_t bytes, uint32_t queue);
  void tensor_read(mr_handle tensor, uint32_t row, uint32_t col, void* data, uint64_t bytes);
  void tensor_info(mr_handle tensor, mr_tensor_spec& spec);
  void tensor_free(const mr_handle* tensors, uint32_t count);

  void semaphores_create(uint32_t count, uint32_t initial, mr_handle* out);
  void semaphores_reset(const mr_handle* semaphores, uint32_t count, uint32_t value);
  void semaphores_free(const mr_handle* semaphores, uint32_t count);

  mr_handle event_record(uint32_t queue);
  bool event_query(mr_handle event);  // throws MR_TIMEOUT once when the mesh hangs and the event can never be done
  void event_wait_on(uint32_t queue, mr_handle event);
  void event_free(const mr_handle* events, uint32_t count);

  mr_handle trace_begin(uint32_t queue);
  void trace_end(mr_handle trace);
  void trace_execute(mr_handle trace, uint32_t queue, uint64_t first_launch);
  void trace_free(mr_handle trace);  // of one that is still captured: abandons it

  void enqueue(void* op);
  bool failure_next(uint64_t& launch, mr_error& failure);

  // Throws MR_DEVICE_LOST once the mesh is lost.
  void check_alive() const;

  // ---- extension
  uint64_t clock_now() const { return engine_->host_now(); }
  int32_t clock_advance(uint64_t until_ns, uint32_t max_wait_us);
  void launch_profile(uint64_t launch, mr_launch_profile& out);
  uint32_t launch_devices(uint64_t launch, mr_device_profile* out, uint32_t capacity);
  void fault(const char* text);
  std::string report();
  uint32_t semaphore_value(mr_handle semaphore, uint32_t row, uint32_t col);
  void name(mr_handle object, const char* name);
  void name_stream(uint32_t stream, const char* name);

  // ---- for the operations
  const Config& config() const { return config_; }
  Engine& engine() { return *engine_; }
  Tensor& tensor(mr_handle h, const char* what) { return tensors_.get(h, what); }
  const SemaphoreRef& semaphore(mr_handle h, const char* what) { return semaphores_.get(h, what); }
  std::shared_ptr<Storage> allocate(const Spec& spec, const char* what, bool zeroed);  // reserved in the accounts
  void release(const Storage& storage) { memory_.release(storage.room); }  // reserved, and no handle's yet
  mr_handle add_tensor(std::shared_ptr<Storage> storage, const Spec& spec);
  void check_room(const Spec& spec, const char* what) const { memory_.check(spec, what); }  // that so much is free now
  void pass_through(const std::vector<Spec>& specs, const char* what);                       // takes so much and gives it back
  bool capturing() const { return capture_ != nullptr; }
  // For the trace that is captured: what an operation names, and its scratch.
  void keep(const std::vector<std::shared_ptr<Storage>>& storages, const std::vector<SemaphoreRef>& semaphores);
  void keep_scratch(const std::vector<Spec>& specs, const char* what);
  // Memory of the programs' own on every device, the same for all launches. It lies below what tensors in L1 get and is not counted.
  const std::shared_ptr<Storage>& static_area(uint64_t bytes);
  uint32_t device_at(uint32_t row, uint32_t col, const char* what) const;

 private:
  // What nothing refuses any more, and the engine has been prepared for.
  void launch(std::shared_ptr<Plan> plan, const std::vector<SemaphoreRef>& semaphores, const mr_op_header& header);
  void check_shapes(const Plan& plan, uint64_t number) const;  // of faults, against those of the launch with this number
  void create_late(std::vector<SemaphoreRef> semaphores, uint32_t initial, const Operand& zeroed);
  [[noreturn]] void report_hang();
  void refuse_in_capture(const char* function, const char* what) const;
  void let_go(Storage& storage) {
    if (--storage.holders == 0) memory_.release(storage.room);
  }
  void let_go(Semaphore& semaphore) {
    if (--semaphore.holders == 0) memory_.release(semaphore.room);
  }
  [[noreturn]] void report_hazard() const;

  Config config_;
  DeviceMemory memory_;
  std::unique_ptr<Engine> engine_;
  HandleTable<Tensor> tensors_;
  HandleTable<SemaphoreRef> semaphores_;
  HandleTable<std::shared_ptr<HostEvent>> events_;
  HandleTable<std::unique_ptr<Trace>> traces_;
  Trace* capture_ = nullptr;  // the one that is captured
  std::shared_ptr<Storage> static_area_;
  std::vector<Fault> shapes_;  // faults of that kind
  bool apart_;  // devices make things in their own time
  bool lost_ = false;
  std::string lost_text_;
};

}  // namespace meshrun::emu
