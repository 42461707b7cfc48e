// request.h: one operation on its way from the ABI's struct to a plan. Operands are looked up and checked here; what the driver
// allocates becomes the caller's only when all went well.
#pragma once

#include <vector>

#include "launch.h"
#include "mesh.h"

namespace meshrun::emu {

// Packets to an increment when the caller does not say: half of a link's share of a slice, and no more than that a chunk stays in a
// cache from hop to hop.
constexpr uint64_t kMostPacketsPerSync = 32;

// Collective is what all operations over an axis share.
struct Collective {
  uint32_t axis = 0;
  uint32_t length = 1;
  bool ring = false;
  uint32_t links = 1;
  uint64_t packets_per_sync = 0;  // 0 = not given

  // Bytes that one increment stands for, when each link carries `share` bytes of a slice.
  uint64_t chunk_bytes(const Config& config, uint64_t share) const;
};

class Request {
 public:
  Request(Mesh& mesh, const char* op, const mr_op_header& header) : mesh_(mesh), op_(op), header_(header) {}
  ~Request();
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  const Config& config() const { return mesh_.config(); }
  HostPool& pool() const { return mesh_.engine().pool(); }
  const char* op() const { return op_; }
  const mr_op_header& header() const { return header_; }
  bool has(uint32_t bit) const { return (header_.present & bit) != 0; }
  void allow_present(uint32_t bits) const;  // refuses others

  [[gnu::format(printf, 2, 3)]] Error reject(const char* text, ...) const;  // "op: text"
  void choice(const char* field, uint32_t value, uint32_t least, uint32_t most) const;

  Operand input(const char* field, mr_handle handle);
  Operand optional(const char* field, mr_handle handle) { return handle != 0 ? input(field, handle) : Operand{}; }
  // The tensor named, which must be as wanted, or a new one. Call it last: it allocates.
  Operand output(const char* field, mr_handle& handle, const Spec& wanted);
  // The driver's own, for this launch only.
  Operand scratch(const char* field, const Spec& spec);
  // The first bytes of each device's static area, which belongs to no launch.
  Operand static_area(uint64_t bytes) { return {mesh_.static_area(bytes), {}}; }
  SemaphoreRef semaphore(const char* field, mr_handle handle);
  SemaphoreRef barrier(mr_handle handle);  // of the start barrier, with which the operation then begins
  // That no two are the same; `what` names them in the plural.
  void different(const char* what, std::vector<mr_handle> handles) const;
  void check_spec(const char* field, const Operand& got, const Spec& wanted) const;
  void rank4(const char* field, const Operand& operand) const;
  void floats(const char* field, const Operand& operand) const;
  // That `from` broadcasts against `to`: each dim, counted from the last, is 1 or the same.
  void broadcasts(const char* field, const Shape& from, const Shape& to) const;

  // q [B,H,Sq,D], k and v [B,H,Sk,D], all floats.
  void attention(const char* q_field, const Operand& q, const char* k_field, const Operand& k, const char* v_field, const Operand& v) const;
  // [1,1,N,D] or [1,H,N,D] for x [B,H,N,D]
  void rope_table(const char* field, const Operand& table, const Shape& x) const;

  Collective collective(uint32_t axis, uint32_t num_links, uint32_t topology);
  void hyperparameters(Collective& c, uint32_t chunks_per_sync, uint32_t workers, uint32_t buffers, uint32_t packets_per_chunk = 1);

  // Notes which memory the plan uses; an output must not lie in the memory of an input.
  void reads(Plan& plan, const Operand& operand) const;
  void writes(Plan& plan, const Operand& operand, bool may_be_input = false) const;

  // Packets to an increment that the caller asked for, or the usual.
  uint64_t packets_per_sync() const { return packets_per_sync_; }

  // Goes into the report, and stops the mesh as any hazard does.
  void hazard(const char* kind, mr_handle tensor, const std::string& text) const;
  void commit();  // hands new tensors to the caller
  uint32_t axis() const { return axis_; }
  bool joins_first() const { return joins_first_; }
  const std::vector<SemaphoreRef>& semaphores() const { return semaphores_; }
  const Arguments& arguments() const { return arguments_; }
  // That `dim` is one of the input's, up to `most`; for the report.
  void along(uint32_t dim, uint32_t most) {
    choice("dim", dim, 0, most);
    arguments_.dims.add(dim);
  }
  void along(uint32_t dim) { arguments_.dims.add(dim); }

 private:
  struct Made {
    mr_handle* handle;
    std::shared_ptr<Storage> storage;
    Spec spec;
  };
  std::string where(const char* field) const { return std::string(op_) + ": " + field; }

  Mesh& mesh_;
  const char* op_;
  const mr_op_header& header_;
  uint64_t packets_per_sync_ = kMostPacketsPerSync;
  std::vector<Made> made_;
  std::vector<Spec> scratch_;
  std::vector<std::shared_ptr<Storage>> named_;  // noted only while a trace is captured
  std::vector<SemaphoreRef> semaphores_;
  uint32_t axis_ = UINT32_MAX;  // of the first collective
  bool joins_first_ = false;    // there is a start barrier
  Arguments arguments_;
};

}  // namespace meshrun::emu
