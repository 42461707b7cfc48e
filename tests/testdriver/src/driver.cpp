// A tiny driver, built as a shared library by the tests. It does no work: it records what it is told, by the C names of the fields, and it
// misbehaves on request. Config lines: "log=PATH" appends a JSON line per call to a file; "fail=CALL:CODE" makes a call fail;
// "throw=CALL:std|int" makes it throw.
#include <cstdio>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>

#include "meshrun_driver.h"

#ifndef TEST_ABI_VERSION
#define TEST_ABI_VERSION MR_ABI_VERSION
#endif

namespace {

struct Mesh {
  mr_open_options options{};
  std::map<std::string, std::string> misbehaviour;
  FILE* log = nullptr;
  mr_handle next = 1;
};

Mesh* open_mesh = nullptr;  // this driver has one mesh at a time

int32_t fail(mr_error* e, int32_t code, const char* text) {
  e->code = code;
  std::snprintf(e->message, sizeof e->message, "%s", text);
  return code;
}

// What was asked for a call: a failure, an exception, or nothing.
int32_t behave(const char* call, mr_error* e) {
  auto it = open_mesh->misbehaviour.find(call);
  if (it == open_mesh->misbehaviour.end()) return MR_OK;
  if (it->second == "std") throw std::runtime_error("told to throw");
  if (it->second == "int") throw 42;
  return fail(e, std::stoi(it->second), "told to fail");
}

// One JSON object per line, fields by their C names.
class Line {
 public:
  explicit Line(const char* call) { out_ << "{\"call\":\"" << call << "\""; }
  Line& number(const char* name, unsigned long long v) {
    out_ << ",\"" << name << "\":" << v;
    return *this;
  }
  template <class T>
  Line& list(const char* name, const T* v, size_t n) {
    out_ << ",\"" << name << "\":[";
    for (size_t i = 0; i < n; ++i) out_ << (i ? "," : "") << v[i];
    out_ << "]";
    return *this;
  }
  ~Line() {
    if (open_mesh->log == nullptr) return;
    out_ << "}\n";
    std::fputs(out_.str().c_str(), open_mesh->log);
    std::fflush(open_mesh->log);
  }

 private:
  std::ostringstream out_;
};

#define NUMBER(field) number(#field, op->field)
#define LIST(field) list(#field, op->field, sizeof op->field / sizeof op->field[0])

mr_handle* record(void* p) {
  const auto* h = static_cast<mr_op_header*>(p);
  Line line("enqueue");
  line.number("op", h->op).number("size", h->size).number("present", h->present).number("launch", h->launch).number("stream", h->stream);
  switch (h->op) {
    case MR_OP_ALL_GATHER: {
      auto* op = static_cast<mr_all_gather*>(p);
      line.NUMBER(input).NUMBER(output).LIST(semaphores).NUMBER(barrier).NUMBER(dim).NUMBER(axis).NUMBER(num_links).NUMBER(topology)
          .NUMBER(chunks_per_sync).NUMBER(num_workers_per_link).NUMBER(num_buffers_per_channel);
      return &op->output;
    }
    case MR_OP_REDUCE_SCATTER: {
      auto* op = static_cast<mr_reduce_scatter*>(p);
      line.NUMBER(input).NUMBER(output).NUMBER(intermediate).LIST(semaphores).NUMBER(barrier).NUMBER(dim).NUMBER(axis).NUMBER(num_links)
          .NUMBER(topology).NUMBER(memory).NUMBER(chunks_per_sync).NUMBER(num_workers_per_link).NUMBER(num_buffers_per_channel);
      return &op->output;
    }
    case MR_OP_MATMUL: {
      auto* op = static_cast<mr_matmul*>(p);
      line.NUMBER(input).NUMBER(weight).NUMBER(bias).NUMBER(output).NUMBER(activation).NUMBER(transpose_b).NUMBER(dtype);
      return &op->output;
    }
    case MR_OP_NORM: {
      auto* op = static_cast<mr_norm*>(p);
      line.NUMBER(input).NUMBER(weight).NUMBER(bias).NUMBER(output).NUMBER(kind).number("epsilon_micro", static_cast<unsigned long long>(op->epsilon * 1e6F + 0.5F));
      return &op->output;
    }
    case MR_OP_FUSED_DISTRIBUTED_NORM: {
      auto* op = static_cast<mr_fused_distributed_norm*>(p);
      line.NUMBER(input).NUMBER(weight).NUMBER(bias).NUMBER(rope_cos).NUMBER(rope_sin).NUMBER(stats).LIST(semaphores).NUMBER(output)
          .NUMBER(kind).number("epsilon_micro", static_cast<unsigned long long>(op->epsilon * 1e6F + 0.5F)).NUMBER(axis).NUMBER(num_links).NUMBER(topology).NUMBER(num_heads);
      return &op->output;
    }
    case MR_OP_ROPE: {
      auto* op = static_cast<mr_rope*>(p);
      line.NUMBER(input).NUMBER(cos).NUMBER(sin).NUMBER(output).NUMBER(mode);
      return &op->output;
    }
    case MR_OP_SDPA: {
      auto* op = static_cast<mr_sdpa*>(p);
      line.NUMBER(q).NUMBER(k).NUMBER(v).NUMBER(output).number("scale_milli", static_cast<unsigned long long>(op->scale * 1e3F + 0.5F)).NUMBER(logical_n);
      return &op->output;
    }
    case MR_OP_RING_JOINT_SDPA: {
      auto* op = static_cast<mr_ring_joint_sdpa*>(p);
      line.NUMBER(q).NUMBER(k).NUMBER(v).NUMBER(joint_q).NUMBER(joint_k).NUMBER(joint_v).NUMBER(buffer_k).NUMBER(buffer_v).LIST(semaphores)
          .NUMBER(output).NUMBER(joint_output).NUMBER(axis).NUMBER(num_links).NUMBER(topology).NUMBER(logical_n)
          .number("scale_milli", static_cast<unsigned long long>(op->scale * 1e3F + 0.5F));
      if (op->joint_q != 0) op->joint_output = open_mesh->next++;
      return &op->output;
    }
    case MR_OP_BINARY: {
      auto* op = static_cast<mr_binary*>(p);
      line.NUMBER(a).NUMBER(b).NUMBER(output).NUMBER(kind).number("scalar_milli", static_cast<unsigned long long>(op->scalar * 1e3F + 0.5F));
      return &op->output;
    }
    case MR_OP_ADDCMUL: {
      auto* op = static_cast<mr_addcmul*>(p);
      line.NUMBER(input).NUMBER(x).NUMBER(y).NUMBER(output);
      return &op->output;
    }
    case MR_OP_ACTIVATION: {
      auto* op = static_cast<mr_activation*>(p);
      line.NUMBER(input).NUMBER(output).NUMBER(kind);
      return &op->output;
    }
    case MR_OP_SLICE: {
      auto* op = static_cast<mr_slice*>(p);
      line.NUMBER(input).NUMBER(output).NUMBER(rank).LIST(begin).LIST(end);
      return &op->output;
    }
    case MR_OP_CONCAT: {
      auto* op = static_cast<mr_concat*>(p);
      line.LIST(inputs).NUMBER(output).NUMBER(count).NUMBER(dim);
      return &op->output;
    }
    case MR_OP_RESHAPE: {
      auto* op = static_cast<mr_reshape*>(p);
      line.NUMBER(input).NUMBER(output).NUMBER(rank).LIST(dims);
      return &op->output;
    }
    case MR_OP_PERMUTE: {
      auto* op = static_cast<mr_permute*>(p);
      line.NUMBER(input).NUMBER(output).NUMBER(rank).LIST(order);
      return &op->output;
    }
    case MR_OP_CONVERT: {
      auto* op = static_cast<mr_convert*>(p);
      line.NUMBER(input).NUMBER(output).NUMBER(dtype).NUMBER(layout);
      return &op->output;
    }
    case MR_OP_NEIGHBOR_PAD: {
      auto* op = static_cast<mr_neighbor_pad*>(p);
      line.NUMBER(input).NUMBER(output).LIST(semaphores).NUMBER(barrier).NUMBER(count).NUMBER(mode).LIST(dims).LIST(axes).LIST(pad_left)
          .LIST(pad_right).LIST(num_links).NUMBER(logical_h).NUMBER(t_front_pad);
      return &op->output;
    }
    case MR_OP_NEIGHBOR_PAD_HALO: {
      auto* op = static_cast<mr_neighbor_pad_halo*>(p);
      line.NUMBER(input).NUMBER(halo).NUMBER(padded_output).NUMBER(semaphore_h).NUMBER(semaphore_w).NUMBER(barrier).NUMBER(axis_h).NUMBER(axis_w)
          .NUMBER(pad_h_left).NUMBER(pad_h_right).NUMBER(pad_w_left).NUMBER(pad_w_right).NUMBER(links_h).NUMBER(links_w).NUMBER(mode)
          .NUMBER(input_pad_h).NUMBER(input_pad_w);
      return &op->halo;
    }
    case MR_OP_HALO_SCATTER: {
      auto* op = static_cast<mr_halo_scatter*>(p);
      line.NUMBER(compact).NUMBER(padded).NUMBER(output).NUMBER(pad_h_left).NUMBER(pad_h_right).NUMBER(pad_w_left).NUMBER(pad_w_right).NUMBER(border_only);
      return &op->output;
    }
    case MR_OP_SLICE_RESHARD: {
      auto* op = static_cast<mr_slice_reshard*>(p);
      line.NUMBER(input).NUMBER(output).NUMBER(semaphore).NUMBER(barrier).NUMBER(offset).NUMBER(size).NUMBER(axis).NUMBER(num_links).NUMBER(topology);
      return &op->output;
    }
    case MR_OP_POINT_TO_POINT: {
      auto* op = static_cast<mr_point_to_point*>(p);
      line.NUMBER(input).NUMBER(output).NUMBER(semaphore).NUMBER(barrier).NUMBER(axis).NUMBER(num_links).NUMBER(topology).NUMBER(count).LIST(from).LIST(to);
      return &op->output;
    }
    case MR_OP_EXP_RING_JOINT_SDPA: {
      auto* op = static_cast<mr_exp_ring_joint_sdpa*>(p);
      line.NUMBER(q).NUMBER(k).NUMBER(v).NUMBER(joint_q).NUMBER(joint_k).NUMBER(joint_v).NUMBER(buffer_k).NUMBER(buffer_v).LIST(semaphores)
          .NUMBER(output).NUMBER(joint_output).NUMBER(axis).NUMBER(num_links).NUMBER(topology).NUMBER(logical_n)
          .number("scale_milli", static_cast<unsigned long long>(op->scale * 1e3F + 0.5F));
      return &op->output;
    }
    case MR_OP_STRIDED_ALL_GATHER_MATMUL: {
      auto* op = static_cast<mr_strided_all_gather_matmul*>(p);
      line.NUMBER(input).NUMBER(weight).NUMBER(bias).NUMBER(gathered).NUMBER(output).LIST(semaphores).NUMBER(semaphore_count).NUMBER(axis)
          .NUMBER(num_links).NUMBER(topology).NUMBER(num_workers_per_link).NUMBER(num_buffers_per_channel).NUMBER(activation);
      return &op->output;
    }
    case MR_OP_MATMUL_STRIDED_REDUCE_SCATTER: {
      auto* op = static_cast<mr_matmul_strided_reduce_scatter*>(p);
      line.NUMBER(input).NUMBER(weight).NUMBER(bias).NUMBER(residual).NUMBER(gate).NUMBER(progress).NUMBER(credit).NUMBER(intermediate)
          .NUMBER(output).LIST(semaphores).NUMBER(barrier).NUMBER(axis).NUMBER(num_links).NUMBER(topology)
          .number("scalar_milli", static_cast<unsigned long long>(op->scalar * 1e3F + 0.5F));
      return &op->output;
    }
    case MR_OP_CONV3D: {
      auto* op = static_cast<mr_conv3d*>(p);
      line.NUMBER(input).NUMBER(weight).NUMBER(bias).NUMBER(halo).NUMBER(output).LIST(kernel).LIST(stride).LIST(padding).LIST(dilation)
          .NUMBER(groups).NUMBER(mode);
      return &op->output;
    }
    case MR_OP_NP_CONV3D: {
      auto* op = static_cast<mr_np_conv3d*>(p);
      line.NUMBER(input).NUMBER(weight).NUMBER(bias).NUMBER(halo).NUMBER(output).NUMBER(semaphore_h).NUMBER(semaphore_w).NUMBER(barrier)
          .LIST(region).NUMBER(axis_h).NUMBER(axis_w).NUMBER(links).NUMBER(mode).LIST(kernel).LIST(stride).LIST(padding).LIST(dilation)
          .NUMBER(groups);
      return &op->output;
    }
    case MR_OP_GROUP_NORM: {
      auto* op = static_cast<mr_group_norm*>(p);
      line.NUMBER(input).NUMBER(weight).NUMBER(bias).NUMBER(stats).NUMBER(output).NUMBER(num_groups).NUMBER(activation)
          .number("epsilon_micro", static_cast<unsigned long long>(op->epsilon * 1e6F + 0.5F));
      return &op->output;
    }
    case MR_OP_GROUP_NORM_STATS: {
      auto* op = static_cast<mr_group_norm_stats*>(p);
      line.NUMBER(input).NUMBER(output).NUMBER(num_groups).NUMBER(logical_h).NUMBER(axis_h).NUMBER(logical_w).NUMBER(axis_w);
      return &op->output;
    }
    default:
      return nullptr;
  }
}

int32_t open(const mr_open_options* o, mr_handle* mesh, mr_error* e) {
  delete open_mesh;
  open_mesh = new Mesh;
  open_mesh->options = *o;
  std::istringstream config(o->config != nullptr ? o->config : "");
  for (std::string line; std::getline(config, line);) {
    auto eq = line.find('=');
    std::string key = line.substr(0, eq), value = line.substr(eq + 1);
    auto colon = value.find(':');
    if (key == "log") open_mesh->log = std::fopen(value.c_str(), "a");
    if (key == "fail" || key == "throw") open_mesh->misbehaviour[value.substr(0, colon)] = value.substr(colon + 1);
  }
  *mesh = 7;
  return behave("open", e);
}

int32_t close(mr_handle, mr_error* e) {
  if (open_mesh->log != nullptr) std::fclose(open_mesh->log);
  open_mesh->log = nullptr;
  return behave("close", e);
}

int32_t info(mr_handle, mr_mesh_info* i, mr_error* e) {
  i->rows = open_mesh->options.rows;
  i->cols = open_mesh->options.cols;
  i->queues = 1;
  i->grid_x = i->grid_y = 8;
  i->links[0] = i->links[1] = 4;
  i->wrap[0] = i->rows > 2;
  i->wrap[1] = i->cols > 2;
  std::snprintf(i->name, sizeof i->name, "test");
  return behave("info", e);
}

int32_t alloc(mr_handle, const mr_tensor_spec* op, mr_handle* t, mr_error* e) {
  int32_t code = behave("tensor_alloc", e);
  if (code != MR_OK) return code;
  *t = open_mesh->next++;
  Line("tensor_alloc").number("handle", *t).NUMBER(dtype).NUMBER(layout).NUMBER(memory).NUMBER(flags).NUMBER(rank).LIST(dims);
  return MR_OK;
}

int32_t view(mr_handle, mr_handle t, uint32_t rank, const uint32_t* dims, mr_handle* v, mr_error*) {
  *v = open_mesh->next++;
  Line("tensor_view").number("handle", *v).number("tensor", t).list("dims", dims, rank);
  return MR_OK;
}

int32_t write(mr_handle, mr_handle t, const mr_distribution* d, const void*, uint64_t n, uint32_t, mr_error* e) {
  Line("tensor_write").number("tensor", t).number("bytes", n).number("present", d->present);
  return behave("tensor_write", e);
}

int32_t read(mr_handle, mr_handle, uint32_t, uint32_t, void* p, uint64_t n, mr_error* e) {
  for (uint64_t i = 0; i < n; ++i) static_cast<unsigned char*>(p)[i] = static_cast<unsigned char>(i);
  return behave("tensor_read", e);
}

int32_t release(mr_handle, const mr_handle* t, uint32_t n, mr_error* e) {
  Line("tensor_free").list("tensors", t, n);
  return behave("tensor_free", e);
}

int32_t create(mr_handle, uint32_t n, uint32_t v, mr_handle* s, mr_error* e) {
  int32_t code = behave("semaphores_create", e);
  if (code != MR_OK) return code;
  for (uint32_t i = 0; i < n; ++i) s[i] = open_mesh->next++;
  Line("semaphores_create").number("value", v).list("semaphores", s, n);
  return MR_OK;
}

int32_t event_record(mr_handle, uint32_t, mr_handle* event, mr_error* e) {
  *event = 1;
  return behave("event_record", e);
}

int32_t event_query(mr_handle, mr_handle, mr_event_status* s, mr_error* e) {
  s->done = 1;
  return behave("event_query", e);
}

int32_t event_free(mr_handle, const mr_handle*, uint32_t, mr_error*) { return MR_OK; }

int32_t enqueue(mr_handle, void* op, mr_error* e) {
  int32_t code = behave("enqueue", e);
  if (code != MR_OK) return code;
  mr_handle* output = record(op);
  if (output == nullptr) return fail(e, MR_UNSUPPORTED, "unknown operation");
  if (*output == 0) *output = open_mesh->next++;
  return MR_OK;
}

int32_t failure_next(mr_handle, uint64_t* launch, mr_error*, mr_error*) {
  *launch = 0;
  return MR_OK;
}

[[maybe_unused]] mr_driver table() {
  mr_driver d{};
  d.size = sizeof d;
  d.abi_version = TEST_ABI_VERSION;
  d.name = "test";
  d.open = open;
  d.close = close;
  d.info = info;
  d.tensor_alloc = alloc;
  d.tensor_view = view;
  d.tensor_write = write;
  d.tensor_read = read;
  d.tensor_free = release;
  d.semaphores_create = create;
  d.event_record = event_record;
  d.event_query = event_query;
  d.event_free = event_free;
  d.enqueue = enqueue;
  d.failure_next = failure_next;
  return d;
}

}  // namespace

extern "C" const mr_driver* meshrun_driver(uint32_t) {
#ifdef TEST_REFUSE_VERSION
  return nullptr;
#else
  static const mr_driver d = table();
  return &d;
#endif
}
