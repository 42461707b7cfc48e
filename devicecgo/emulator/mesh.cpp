#include "mesh.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "errors.h"
#include "json.h"
#include "kernel_bfloat8.h"
#include "one_line.h"
#include "ops.h"

namespace meshrun::emu {
namespace {

constexpr uint64_t kStaticArea = 64 << 10;  // bytes at first; larger launches get a new one

unsigned long long wide(uint64_t n) { return n; }

}  // namespace

Mesh::Mesh(const mr_open_options& options, uint32_t salt)
    : config_(parse_config(options)),
      memory_(config_.machine.dram_bytes, config_.machine.l1_bytes, config_.machine.cores()),
      engine_(std::make_unique<Engine>(config_)),
      tensors_(Kind::tensor, salt),
      semaphores_(Kind::semaphore, salt),
      events_(Kind::event, salt),
      traces_(Kind::trace, salt),
      apart_(config_.skew_ns != 0) {
  for (const std::string& text : config_.faults) fault(text.c_str());
}

void Mesh::info(mr_mesh_info& out) const {
  if (out.size < sizeof(mr_mesh_info)) throw error(MR_INVALID_ARGUMENT, "info: size is %u: smaller than mr_mesh_info of this version", out.size);
  const Machine& m = config_.machine;
  out = {};
  out.size = sizeof out;
  out.rows = m.rows;
  out.cols = m.cols;
  out.grid_x = m.grid_x;
  out.grid_y = m.grid_y;
  out.queues = config_.queues;
  out.flags = m.exclusive_cores ? uint32_t{MR_MESH_EXCLUSIVE_CORES} : 0;
  for (const uint32_t a : {0u, 1u}) {
    out.links[a] = m.links[a];
    out.wrap[a] = m.ring(a) ? 1 : 0;
  }
  out.dram_bytes = m.dram_bytes;
  out.l1_bytes = m.l1_bytes;
  std::snprintf(out.name, sizeof out.name, "%s", m.name.c_str());
  std::snprintf(out.arch, sizeof out.arch, "%s", m.chip->arch);
}

void Mesh::check_alive() const {
  if (engine_->hazard_stopped()) report_hazard();
  if (lost_) throw error(MR_DEVICE_LOST, "device lost: %s", lost_text_.c_str());
}

uint32_t Mesh::device_at(uint32_t row, uint32_t col, const char* what) const {
  if (row >= config_.machine.rows || col >= config_.machine.cols)
    throw error(MR_INVALID_ARGUMENT, "%s: device %u,%u is outside the mesh of %ux%u", what, row, col, config_.machine.rows, config_.machine.cols);
  return row * config_.machine.cols + col;
}

// ---- tensors --------------------------------------------------------------------------------------------------------------

std::shared_ptr<Storage> Mesh::allocate(const Spec& spec, const char* what, bool zeroed) {
  const Room room = memory_.reserve(spec, what);
  std::shared_ptr<Storage> storage;
  try {
    storage = std::make_shared<Storage>(config_.timing ? nullptr : &engine_->pool(), config_.machine.devices(), spec.bytes());
  } catch (const std::bad_alloc&) {
    memory_.release(room);
    throw error(MR_OUT_OF_MEMORY, "%s %s: the host has no %llu bytes for %u devices", what, text(spec).c_str(),
                wide(spec.bytes() * config_.machine.devices()), config_.machine.devices());
  }
  storage->made = spec;
  const uint64_t created = engine_->creation();
  for (uint32_t d = 0; d < config_.machine.devices(); ++d) storage->at(d).created = created;
  storage->room = room;
  if (zeroed) {
    storage->zero();
  } else if (config_.lockstep) {
    storage->fill(kPoison);  // what a reused block holds would not be a function of the case
  }
  return storage;
}

const std::shared_ptr<Storage>& Mesh::static_area(uint64_t bytes) {
  if (!static_area_ || static_area_->bytes() < bytes) {
    static_area_ = std::make_shared<Storage>(config_.timing ? nullptr : &engine_->pool(), config_.machine.devices(), std::max(kStaticArea, 2 * bytes));
    static_area_->fill(kPoison);
  }
  return static_area_;
}

void Mesh::pass_through(const std::vector<Spec>& specs, const char* what) {
  std::vector<Room> rooms;
  const auto give_back = [&] {
    for (const Room& r : rooms) memory_.release(r);
  };
  try {
    for (const Spec& s : specs) rooms.push_back(memory_.reserve(s, what));
  } catch (...) {
    give_back();
    throw;
  }
  give_back();
}

mr_handle Mesh::add_tensor(std::shared_ptr<Storage> storage, const Spec& spec) {
  ++storage->holders;
  return tensors_.add({std::move(storage), spec, {}});
}

mr_handle Mesh::tensor_alloc(const mr_tensor_spec& abi) {
  refuse_in_capture("tensor_alloc", "allocation");
  const Spec spec = checked_spec(abi, "tensor_alloc");
  const bool zeroed = (abi.flags & MR_ZEROED) != 0;
  std::shared_ptr<Storage> storage = allocate(spec, "tensor_alloc", zeroed);
  if (zeroed && apart_) create_late({}, 0, {storage, spec});
  return add_tensor(std::move(storage), spec);
}

mr_handle Mesh::tensor_view(mr_handle handle, uint32_t rank, const uint32_t* dims) {
  const Tensor& t = tensors_.get(handle, "tensor_view: tensor");
  if (rank < 1 || rank > MR_MAX_RANK || dims == nullptr) throw error(MR_INVALID_ARGUMENT, "tensor_view: rank is %u: must be 1..%d, with dims", rank, MR_MAX_RANK);
  Spec spec = t.spec;
  spec.shape = {};
  spec.shape.rank = rank;
  unsigned __int128 elements = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    spec.shape.dims[i] = dims[i];
    elements = std::min<unsigned __int128>(elements * dims[i], UINT64_MAX);
  }
  if (elements == 0 || elements > t.spec.shape.elements())
    throw error(MR_INVALID_ARGUMENT, "tensor_view: dims are %s: must have at least one element and at most as many as %s", text(spec.shape).c_str(),
                text(t.spec.shape).c_str());
  if (spec.dtype == DType::bfloat8_b && spec.shape.back(0) != t.spec.shape.back(0) && (spec.shape.back(0) | t.spec.shape.back(0)) % kBlockValues != 0)
    throw error(MR_INVALID_ARGUMENT, "tensor_view: dims are %s: rows of %s hold other blocks of bfloat8_b", text(spec.shape).c_str(), text(t.spec.shape).c_str());
  return add_tensor(t.storage, spec);
}

void Mesh::tensor_write(mr_handle handle, const mr_distribution& distribution, const void* data, uint64_t bytes, uint32_t queue) {
  refuse_in_capture("tensor_write", "a write from the host");
  const Tensor& t = tensors_.get(handle, "tensor_write: tensor");
  if (distribution.size < sizeof(mr_distribution))
    throw error(MR_INVALID_ARGUMENT, "tensor_write: distribution.size is %u: smaller than mr_distribution of this version", distribution.size);
  if ((distribution.present & ~3u) != 0) throw error(MR_INVALID_ARGUMENT, "tensor_write: distribution.present is %u: unknown bits", distribution.present);
  if (queue >= config_.queues) throw error(MR_INVALID_ARGUMENT, "tensor_write: queue is %u: the mesh has %u", queue, config_.queues);
  uint64_t wanted = t.spec.bytes();
  for (const uint32_t a : {0u, 1u}) {
    if ((distribution.present >> a & 1u) == 0) continue;
    if (distribution.dim[a] >= t.spec.shape.rank)
      throw error(MR_INVALID_ARGUMENT, "tensor_write: distribution.dim[%u] is %u: the rank is %u", a, distribution.dim[a], t.spec.shape.rank);
    wanted *= config_.machine.axis_length(a);
  }
  if (bytes != wanted)
    throw error(MR_INVALID_ARGUMENT, "tensor_write: bytes is %llu: %s cut like this takes %llu", wide(bytes), text(t.spec).c_str(), wide(wanted));
  if (data == nullptr && !config_.timing) throw error(MR_INVALID_ARGUMENT, "tensor_write: data is NULL");

  Block staged;
  if (!config_.timing) {
    if (t.storage->uses.load(std::memory_order_acquire) == 0) {
      // Nobody else looks at this memory: the data go where they belong at once.
      for (uint32_t d = 0; d < config_.machine.devices(); ++d)
        scatter_shard(config_, t.spec, distribution, d, static_cast<const std::byte*>(data), t.storage->at(d).data);
      if (!config_.lockstep) return;
    } else {
      staged = engine_->pool().take(bytes);
      std::memcpy(staged.data(), data, bytes);
    }
  }
  std::unique_ptr<Plan> plan = plan_write(config_, {t.storage, t.spec}, distribution, std::move(staged));
  std::unique_ptr<Launch> launch = engine_->fresh_launch();
  launch->plan = std::move(plan);
  launch->queue = queue;
  engine_->submit(std::move(launch));
}

void Mesh::tensor_read(mr_handle handle, uint32_t row, uint32_t col, void* data, uint64_t bytes) {
  refuse_in_capture("tensor_read", "a read");
  const Tensor& t = tensors_.get(handle, "tensor_read: tensor");
  const uint32_t device = device_at(row, col, "tensor_read");
  if (bytes != t.spec.bytes())
    throw error(MR_INVALID_ARGUMENT, "tensor_read: bytes is %llu: %s has %llu", wide(bytes), text(t.spec).c_str(), wide(t.spec.bytes()));
  if (config_.timing) throw error(MR_UNSUPPORTED, "tensor_read: mode=timing holds no data");
  if (data == nullptr) throw error(MR_INVALID_ARGUMENT, "tensor_read: data is NULL");
  if (t.storage->writers.load(std::memory_order_acquire) != 0)
    throw error(MR_REJECTED, "tensor_read: %s is still to be written by what was enqueued: wait for an event first", text(t.spec).c_str());
  std::memcpy(data, t.storage->at(device).data, bytes);
}

void Mesh::tensor_info(mr_handle handle, mr_tensor_spec& spec) {
  if (spec.size < sizeof(mr_tensor_spec)) throw error(MR_INVALID_ARGUMENT, "tensor_info: size is %u: smaller than mr_tensor_spec of this version", spec.size);
  spec = to_abi(tensors_.get(handle, "tensor_info: tensor").spec);
}

void Mesh::tensor_free(const mr_handle* handles, uint32_t count) {
  tensors_.check_batch(handles, count, "tensor_free");
  for (uint32_t i = 0; i < count; ++i) {
    let_go(*tensors_.take(handles[i]).storage);
  }
}

// ---- semaphores -----------------------------------------------------------------------------------------------------------

void Mesh::semaphores_create(uint32_t count, uint32_t initial, mr_handle* out) {
  refuse_in_capture("semaphores_create", "allocation");
  if (count != 0 && out == nullptr) throw error(MR_INVALID_ARGUMENT, "semaphores_create: semaphores is NULL, count is %u", count);
  std::vector<Room> rooms;
  try {
    for (uint32_t i = 0; i < count; ++i) rooms.push_back(memory_.reserve_semaphore());
  } catch (...) {
    for (const Room& r : rooms) memory_.release(r);
    throw;
  }
  for (uint32_t i = 0; i < count; ++i) {
    auto semaphore = std::make_shared<Semaphore>(config_.machine.devices(), initial);
    Semaphore& s = *semaphore;
    s.room = rooms[i];
    out[i] = semaphores_.add(std::move(semaphore));
    s.name = format("semaphore %u", handle_slot(out[i]));
    s.created = engine_->creation();
  }
  if (!apart_) return;
  std::vector<SemaphoreRef> made;
  for (uint32_t i = 0; i < count; ++i) made.push_back(*semaphores_.find(out[i]));
  create_late(std::move(made), initial, {});
}

void Mesh::create_late(std::vector<SemaphoreRef> semaphores, uint32_t initial, const Operand& zeroed) {
  std::unique_ptr<Plan> plan = plan_creation(std::move(semaphores), initial, zeroed, engine_->creation());
  std::unique_ptr<Launch> launch = engine_->fresh_launch();
  launch->plan = std::move(plan);
  engine_->submit(std::move(launch));
}

void Mesh::fault(const char* text) {
  Fault fault = parse_fault(text, config_.machine);
  if (const uint64_t first = fault.first_launch(), launches = engine_->launches(); first != 0 && first <= launches)
    throw error(MR_INVALID_ARGUMENT, "fault \"%s\": launch is %llu: the mesh has had %llu launches, so it must be at least %llu", fault.text.c_str(), wide(first),
                wide(launches), wide(launches + 1));
  apart_ = apart_ || fault.kind == Fault::Kind::late_allocation;
  if (fault.kind == Fault::Kind::shape) {
    for (const Fault& f : shapes_)
      if (f.launch == fault.launch && f.device == fault.device)
        throw error(MR_INVALID_ARGUMENT, "fault \"%s\": \"%s\" says that already: a device has one shape", fault.text.c_str(), f.text.c_str());
    shapes_.push_back(fault);
  }
  engine_->add_fault(std::move(fault));
}

// Only now is it known what the launch has.
void Mesh::check_shapes(const Plan& plan, uint64_t number) const {
  uint32_t devices = 0;
  for (const Fault& f : shapes_) {
    if (f.launch != number) continue;
    const Shape& real = plan.arguments.input.shape;
    if (f.shape == real)
      throw error(MR_INVALID_ARGUMENT, "fault \"%s\": shape is %s: must be another than that of launch %llu (%s), which every device has", f.text.c_str(),
                  text(real).c_str(), wide(number), plan.name());
    if (++devices == config_.machine.devices())
      throw error(MR_INVALID_ARGUMENT, "fault \"%s\": launch %llu (%s) has another shape on all %u devices: one must have its own", f.text.c_str(), wide(number),
                  plan.name(), devices);
  }
}

void Mesh::semaphores_reset(const mr_handle* handles, uint32_t count, uint32_t value) {
  refuse_in_capture("semaphores_reset", "a reset");
  semaphores_.check_batch(handles, count, "semaphores_reset");
  std::vector<SemaphoreRef> semaphores;
  for (uint32_t i = 0; i < count; ++i) {
    semaphores.push_back(*semaphores_.find(handles[i]));
    engine_->check_quiet(*semaphores.back(), "reset");
    semaphores.back()->created = engine_->creation();
  }
  engine_->reset_semaphores(std::move(semaphores), value);
}

void Mesh::semaphores_free(const mr_handle* handles, uint32_t count) {
  semaphores_.check_batch(handles, count, "semaphores_free");
  std::vector<SemaphoreRef> semaphores;
  for (uint32_t i = 0; i < count; ++i) {
    semaphores.push_back(semaphores_.take(handles[i]));
    engine_->check_quiet(*semaphores.back(), "freed");
    let_go(*semaphores.back());
  }
  engine_->bury(std::move(semaphores));
}

// ---- events ---------------------------------------------------------------------------------------------------------------

mr_handle Mesh::event_record(uint32_t queue) {
  if (queue >= config_.queues) throw error(MR_INVALID_ARGUMENT, "event_record: queue is %u: the mesh has %u", queue, config_.queues);
  refuse_in_capture("event_record", "a wait of the host's");
  return events_.add(engine_->record(queue));
}

bool Mesh::event_query(mr_handle handle) {
  const std::shared_ptr<HostEvent>& event = events_.get(handle, "event_query: event");
  if (engine_->query(*event)) return true;
  if (engine_->hazard_stopped()) report_hazard();
  if (engine_->never(*event)) report_hang();
  return false;
}

void Mesh::report_hazard() const {
  uint64_t count = 0;
  throw error(MR_HAZARD, "%s", engine_->hazards(&count).front().text.c_str());
}

void Mesh::report_hang() {
  lost_ = true;
  lost_text_ = engine_->hang()->text;
  throw error(MR_TIMEOUT, "timeout: %s", lost_text_.c_str());
}

void Mesh::event_wait_on(uint32_t queue, mr_handle handle) {
  const std::shared_ptr<HostEvent>& event = events_.get(handle, "event_wait_on: event");
  if (queue >= config_.queues) throw error(MR_INVALID_ARGUMENT, "event_wait_on: queue is %u: the mesh has %u", queue, config_.queues);
  refuse_in_capture("event_wait_on", "a wait for another queue");
  engine_->wait_on(queue, *event);
}

void Mesh::event_free(const mr_handle* handles, uint32_t count) {
  events_.check_batch(handles, count, "event_free");
  for (uint32_t i = 0; i < count; ++i) engine_->forget(events_.take(handles[i]));
}

// ---- operations -----------------------------------------------------------------------------------------------------------

void Mesh::enqueue(void* op) {
  if (op == nullptr) throw error(MR_INVALID_ARGUMENT, "enqueue: op is NULL");
  const mr_op_header& header = *static_cast<const mr_op_header*>(op);
  const OpEntry* entry = header.size >= sizeof(mr_op_header) ? find_op(header.op) : nullptr;
  if (entry == nullptr) throw error(MR_UNSUPPORTED, "enqueue: op is %u (size %u): there is no such operation", header.op, header.size);
  if (header.size < entry->size)
    throw error(MR_INVALID_ARGUMENT, "%s: size is %u: smaller than the %u bytes of this version", entry->name, header.size, entry->size);
  if (header.queue >= config_.queues) throw error(MR_INVALID_ARGUMENT, "%s: queue is %u: the mesh has %u", entry->name, header.queue, config_.queues);
  if (capturing() && header.queue != capture_->queue)
    throw error(MR_REJECTED, "%s: queue is %u: a trace is captured on queue %u, end it first", entry->name, header.queue, capture_->queue);
  Request request(*this, entry->name, header);
  std::unique_ptr<Plan> plan = entry->plan(request, op);
  plan->work = &work_of(plan->name());
  plan->increment_bytes = request.packets_per_sync() * config_.packet_bytes();
  plan->joins_first = request.joins_first();
  plan->axis = request.axis();
  plan->arguments = request.arguments();
  plan->has_peers = !request.semaphores().empty();
  if (capturing()) {
    request.commit();
    capture_->steps.push_back({std::move(plan), request.semaphores(), header.stream});
    return;
  }
  check_shapes(*plan, engine_->launches() + 1);
  engine_->check_fenced(request.semaphores(), header, entry->name);
  if (engine_->hazard_stopped()) report_hazard();
  engine_->prepare(1);
  request.commit();
  engine_->spend_host_time(engine_->cost().launch_host_ns());
  launch(std::move(plan), request.semaphores(), header);
}

void Mesh::launch(std::shared_ptr<Plan> plan, const std::vector<SemaphoreRef>& semaphores, const mr_op_header& header) {
  std::unique_ptr<Launch> launch = engine_->fresh_launch();
  engine_->use(semaphores, header.queue);
  launch->plan = std::move(plan);
  launch->queue = header.queue;
  launch->number = engine_->number_launch();
  launch->seq = header.launch;
  launch->stream = engine_->stream(header.stream);
  engine_->submit(std::move(launch));
}

bool Mesh::failure_next(uint64_t& launch, mr_error& failure) {
  launch = 0;
  const std::optional<Failure> next = engine_->next_failure();
  if (!next) return false;
  launch = next->seq;
  failure.code = next->code;
  std::snprintf(failure.message, sizeof failure.message, "%s", next->text.c_str());
  return true;
}

// ---- extension ------------------------------------------------------------------------------------------------------------

int32_t Mesh::clock_advance(uint64_t until_ns, uint32_t max_wait_us) {
  if (!config_.lockstep) throw error(MR_UNSUPPORTED, "clock_advance: the clock is free: open with clock=lockstep");
  if (lost_) return MR_CLOCK_IDLE;
  switch (engine_->advance(until_ns, max_wait_us)) {
    case Advance::progress:
      return MR_CLOCK_PROGRESS;
    case Advance::idle:
      return MR_CLOCK_IDLE;
    case Advance::busy:
      return MR_CLOCK_BUSY;
    case Advance::hazard:
      report_hazard();
    case Advance::hang:
      break;
  }
  report_hang();
}

void Mesh::launch_profile(uint64_t launch, mr_launch_profile& out) {
  if (out.size < sizeof(mr_launch_profile))
    throw error(MR_INVALID_ARGUMENT, "launch_profile: size is %u: smaller than mr_launch_profile of this version", out.size);
  const std::optional<LaunchProfile> p = engine_->profile(launch);
  out = {};
  out.size = sizeof out;
  if (!p) return;
  out.retired = 1;
  out.start_ns = p->start_ns;
  out.end_ns = p->end_ns;
}

uint32_t Mesh::launch_devices(uint64_t launch, mr_device_profile* out, uint32_t capacity) {
  const std::optional<LaunchProfile> p = engine_->profile(launch);
  if (!p) return 0;
  for (uint32_t d = 0; out != nullptr && d < capacity && d < p->devices.size(); ++d)
    out[d] = {.start_ns = p->devices[d].start_ns, .end_ns = p->devices[d].end_ns, .waiting_ns = p->devices[d].waiting_ns};
  return static_cast<uint32_t>(p->devices.size());
}

std::string Mesh::report() {
  const EngineStats stats = engine_->stats();
  Json json;
  json.begin_object();
  uint64_t hazards = 0;
  const auto place = [&](uint32_t d) { json.begin_array().value(d / config_.machine.cols).value(d % config_.machine.cols).end_array(); };
  const auto numbers = [&](const char* key, std::span<const uint32_t> values) {
    json.key(key).begin_array();
    for (const uint32_t v : values) json.value(v);
    json.end_array();
  };
  json.key("hazards").begin_array();
  for (const Hazard& h : engine_->hazards(&hazards)) {
    json.begin_object().field("kind", h.kind).field("resource", h.resource).key("launches").begin_array();
    for (const LaunchTag& l : h.launches)
      json.begin_object().field("seq", l.shown()).field("op", l.op).field("stream", l.stream.text()).end_object();
    json.end_array().key("devices").begin_array();
    for (const uint32_t d : h.devices) place(d);
    json.end_array().field("virtual_ns", h.ns).field("text", h.text);
    if (!h.waits.json.empty()) json.key("waiting").raw(h.waits.json);
    if (!h.groups.empty()) {
      const LaunchTag& tag = h.launches.front();
      json.key("arguments").begin_array();
      for (const Hazard::Group& g : h.groups) {
        const Arguments& a = g.arguments;
        json.begin_object().key("devices").begin_array();
        for (const uint32_t d : g.devices) place(d);
        json.end_array().field("op", tag.op).field("seq", tag.shown()).field("stream", tag.stream.text());
        numbers("shape", std::span(a.input.shape.dims).first(a.input.shape.rank));
        json.field("dtype", name_of(a.input.dtype));
        numbers("dims", std::span(a.dims.values).first(a.dims.count));
        numbers("axes", std::span(a.axes.values).first(a.axes.count));
        json.end_object();
      }
      json.end_array();
    }
    json.end_object();
  }
  json.end_array();
  json.key("hang");
  if (const std::optional<Hang> hang = engine_->hang()) {
    json.raw(hang->json);
  } else {
    json.null();
  }
  json.key("faults").begin_array();
  for (const std::string& f : engine_->faults()) json.value(f);
  json.end_array();
  if (const auto idle = engine_->idle_faults(); !idle.empty()) {
    json.key("idle_faults").begin_array();
    for (const auto& f : idle) json.begin_object().field("fault", f.text).field("why", f.why).end_object();
    json.end_array();
  }
  json.key("stats").begin_object();
  json.field("launches", stats.launches).field("retired", stats.retired).field("events", stats.events);
  json.field("bytes_over_links", stats.bytes_over_links);
  json.field("hazards", hazards);
  json.key("retired_per_device").begin_array();
  for (const uint64_t n : stats.retired_per_device) json.value(n);
  json.end_array();
  json.key("waiting_for_peers_ns_per_device").begin_array();
  for (const uint64_t ns : stats.waiting_per_device) json.value(ns);
  json.end_array();
  json.field("semaphores_live", semaphores_.live()).field("tensors_live", tensors_.live()).field("events_live", events_.live()).field("traces_live", traces_.live());
  json.field("dram_live_bytes", memory_.dram().live()).field("dram_peak_bytes", memory_.dram().peak());
  json.field("l1_live_bytes", memory_.l1().live()).field("l1_peak_bytes", memory_.l1().peak());
  json.key("operations").begin_array();
  for (OperationStats o : stats.operations) {
    json.begin_object().field("name", o.name).field("launches", o.launches).field("span_ns", o.span_ns);
    json.field("waiting_for_peers_ns", o.waiting_ns).key("late").begin_array();
    std::ranges::stable_sort(o.late, [](const LateDevice& a, const LateDevice& b) { return a.ns != b.ns ? a.ns > b.ns : a.device < b.device; });
    for (const LateDevice& l : o.late) {
      json.begin_object().key("at");
      place(l.device);
      json.field("launches", l.launches).field("ns", l.ns).end_object();
    }
    json.end_array().end_object();
  }
  json.end_array();
  json.end_object();
  json.field("virtual_ns", engine_->host_now());
  json.end_object();
  return json.take();
}

uint32_t Mesh::semaphore_value(mr_handle handle, uint32_t row, uint32_t col) {
  const SemaphoreRef& s = semaphores_.get(handle, "semaphore_value: semaphore");
  return s->word(device_at(row, col, "semaphore_value"), 0).value.load(std::memory_order_relaxed);
}

void Mesh::name(mr_handle object, const char* name) {
  if (name == nullptr) throw error(MR_INVALID_ARGUMENT, "name: name is NULL");
  const std::string shown = one_line(name);
  if (Tensor* t = tensors_.find(object)) {
    t->name = shown;
    engine_->set_name(t->storage->name, shown);
    memory_.own(t->storage->room, shown);
  } else {
    const SemaphoreRef& s = semaphores_.get(object, "name: object");
    engine_->set_name(s->name, shown);
    memory_.own(s->room, shown);
  }
}

void Mesh::name_stream(uint32_t stream, const char* name) {
  if (name == nullptr || *name == 0) throw error(MR_INVALID_ARGUMENT, "name_stream: name is empty");
  engine_->name_stream(stream, one_line(name));
}

}  // namespace meshrun::emu
