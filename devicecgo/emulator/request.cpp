#include "request.h"

#include <algorithm>

#include "errors.h"

namespace meshrun::emu {

uint64_t Collective::chunk_bytes(const Config& config, uint64_t share) const {
  if (config.timing) return UINT64_MAX / 4;  // one transfer stands for all packets
  const uint64_t packet = config.packet_bytes();
  if (packets_per_sync != 0) return packets_per_sync * packet;
  return std::clamp<uint64_t>(share / packet / 2, 1, kMostPacketsPerSync) * packet;
}

Request::~Request() {
  for (const Made& m : made_) mesh_.release(*m.storage);
}

void Request::commit() {
  if (mesh_.capturing()) {
    mesh_.keep_scratch(scratch_, op_);
    for (const Made& m : made_) named_.push_back(m.storage);
    mesh_.keep(named_, semaphores_);
  } else {
    mesh_.pass_through(scratch_, op_);
  }
  for (Made& m : made_) *m.handle = mesh_.add_tensor(std::move(m.storage), m.spec);
  made_.clear();
}

Error Request::reject(const char* text, ...) const {
  va_list args;
  va_start(args, text);
  const std::string s = vformat(text, args);
  va_end(args);
  return error(MR_REJECTED, "%s: %s", op_, s.c_str());
}

void Request::allow_present(uint32_t bits) const {
  if ((header_.present & ~bits) != 0) throw reject("present is 0x%x: bits 0x%x mean nothing here", header_.present, header_.present & ~bits);
}

void Request::choice(const char* field, uint32_t value, uint32_t least, uint32_t most) const {
  if (value < least || value > most) throw reject("%s is %u: must be %u..%u", field, value, least, most);
}

Operand Request::input(const char* field, mr_handle handle) {
  if (handle == 0) throw reject("%s is 0: a tensor is needed", field);
  const Tensor& t = mesh_.tensor(handle, where(field).c_str());
  if (arguments_.input.shape.rank == 0) arguments_.input = t.spec;
  if (mesh_.capturing()) named_.push_back(t.storage);
  return {t.storage, t.spec};
}

void Request::check_spec(const char* field, const Operand& got, const Spec& wanted) const {
  if (got.spec.shape == wanted.shape && got.spec.dtype == wanted.dtype && got.spec.layout == wanted.layout) return;
  Spec w = wanted;
  w.memory = got.spec.memory;
  throw reject("%s is %s: must be %s", field, text(got.spec).c_str(), text(w).c_str());
}

Operand Request::output(const char* field, mr_handle& handle, const Spec& wanted) {
  if (handle != 0) {
    Operand given = input(field, handle);
    check_spec(field, given, wanted);
    return given;
  }
  std::shared_ptr<Storage> storage = mesh_.allocate(wanted, where(field).c_str(), false);
  made_.push_back({&handle, storage, wanted});
  return {std::move(storage), wanted};
}

Operand Request::scratch(const char* field, const Spec& spec) {
  // The host gives a launch's scratch back when it has enqueued it, since the queue is in order: it counts at that moment only.
  if (!mesh_.capturing()) mesh_.check_room(spec, where(field).c_str());
  scratch_.push_back(spec);
  auto storage = std::make_shared<Storage>(config().timing ? nullptr : &pool(), config().machine.devices(), spec.bytes());
  if (config().lockstep) storage->fill(kPoison);  // what an earlier launch has left there would not be a function of the case
  return {std::move(storage), spec};
}

void Request::hazard(const char* kind, mr_handle object, const std::string& text) const {
  const bool tensor = handle_generation(object) >> 29 == static_cast<uint32_t>(Kind::tensor);
  mesh_.engine().host_hazard(kind, tensor ? mesh_.tensor(object, op_).storage->name : mesh_.semaphore(object, op_)->name, header_, op_, text);
}

SemaphoreRef Request::semaphore(const char* field, mr_handle handle) {
  if (handle == 0) throw reject("%s is 0: a semaphore is needed", field);
  const SemaphoreRef& semaphore = mesh_.semaphore(handle, where(field).c_str());
  semaphores_.push_back(semaphore);
  return semaphore;
}

SemaphoreRef Request::barrier(mr_handle handle) {
  SemaphoreRef barrier = semaphore("barrier", handle);
  joins_first_ = true;
  return barrier;
}

void Request::different(const char* what, std::vector<mr_handle> handles) const {
  std::sort(handles.begin(), handles.end());
  if (std::adjacent_find(handles.begin(), handles.end()) != handles.end()) throw reject("%s must be different semaphores", what);
}

void Request::rank4(const char* field, const Operand& operand) const {
  if (operand.spec.shape.rank != 4) throw reject("%s is %s: must be of rank 4", field, text(operand.spec.shape).c_str());
}

void Request::floats(const char* field, const Operand& operand) const {
  if (operand && !is_float(operand.spec.dtype))
    throw reject("%s is %s: must be bfloat16, float32 or bfloat8_b", field, name_of(operand.spec.dtype));
}

void Request::broadcasts(const char* field, const Shape& from, const Shape& to) const {
  bool fits = true;
  for (uint32_t i = 0; i < from.rank; ++i) fits = fits && (from.back(i) == 1 || (i < to.rank && from.back(i) == to.back(i)));
  if (!fits) throw reject("%s is %s: does not broadcast against %s", field, text(from).c_str(), text(to).c_str());
}

void Request::attention(const char* q_field, const Operand& q, const char* k_field, const Operand& k, const char* v_field, const Operand& v) const {
  rank4(q_field, q);
  rank4(k_field, k);
  rank4(v_field, v);
  floats(q_field, q);
  floats(k_field, k);
  floats(v_field, v);
  const Shape &a = q.spec.shape, &b = k.spec.shape;
  if (a.dims[0] != b.dims[0] || a.dims[1] != b.dims[1] || a.dims[3] != b.dims[3])
    throw reject("%s is %s and %s %s: all but dim 2 must be the same", q_field, text(a).c_str(), k_field, text(b).c_str());
  if (!(b == v.spec.shape)) throw reject("%s is %s and %s %s: must be the same", k_field, text(b).c_str(), v_field, text(v.spec.shape).c_str());
}

void Request::rope_table(const char* field, const Operand& table, const Shape& x) const {
  const Shape& t = table.spec.shape;
  if (t.rank != 4 || t.dims[0] != 1 || (t.dims[1] != 1 && t.dims[1] != x.dims[1]) || t.dims[2] != x.dims[2] || t.dims[3] != x.dims[3])
    throw reject("%s is %s: must be [1,1,%u,%u] or [1,%u,%u,%u]", field, text(t).c_str(), x.dims[2], x.dims[3], x.dims[1], x.dims[2], x.dims[3]);
}

Collective Request::collective(uint32_t axis, uint32_t num_links, uint32_t topology) {
  if (axis_ == UINT32_MAX) axis_ = axis;
  arguments_.axes.add(axis);
  const Machine& m = config().machine;
  choice("axis", axis, 0, 1);
  if (num_links == 0) throw reject("num_links is 0: must be at least 1");
  if (num_links > m.links[axis]) throw reject("num_links is %u: axis %u has %u", num_links, axis, m.links[axis]);
  choice("topology", topology, MR_LINEAR, MR_RING);
  Collective c{.axis = axis, .length = m.axis_length(axis), .ring = topology == MR_RING, .links = num_links};
  if (c.ring && c.length <= 2) throw reject("topology is ring: axis %u has length %u, and an axis of one or two is a line", axis, c.length);
  if (c.ring && !m.wrap[axis]) throw reject("topology is ring: axis %u has no wrap-around link", axis);
  return c;
}

void Request::hyperparameters(Collective& c, uint32_t chunks_per_sync, uint32_t workers, uint32_t buffers, uint32_t packets_per_chunk) {
  allow_present(MR_HAS_CHUNKS_PER_SYNC | MR_HAS_WORKERS | MR_HAS_BUFFERS);
  if (has(MR_HAS_CHUNKS_PER_SYNC)) {
    choice("chunks_per_sync", chunks_per_sync, 1, 1 << 16);
    packets_per_sync_ = c.packets_per_sync = uint64_t{chunks_per_sync} * packets_per_chunk;
  }
  if (has(MR_HAS_WORKERS)) choice("num_workers_per_link", workers, 1, 64);
  if (has(MR_HAS_BUFFERS)) choice("num_buffers_per_channel", buffers, 1, 1 << 16);
}

void Request::reads(Plan& plan, const Operand& operand) const {
  if (operand) plan.uses.push_back({operand.storage, false});
}

void Request::writes(Plan& plan, const Operand& operand, bool may_be_input) const {
  for (const Plan::Use& use : plan.uses)
    if (use.storage == operand.storage && (use.writes || !may_be_input))
      throw reject("output shares its memory with another operand");
  plan.uses.push_back({operand.storage, true});
}

}  // namespace meshrun::emu
