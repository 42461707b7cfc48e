/* A driver that does nothing, at once: every launch is done when it is enqueued, and results are handles without data. It
 * exists to measure what the runtime itself costs. It keeps no state: the mesh handle is its shape. */
#include "driver.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

static atomic_uint_fast64_t last_handle;

static mr_handle fresh(void) { return atomic_fetch_add_explicit(&last_handle, 1, memory_order_relaxed) + 1; }

static int32_t null_open(const mr_open_options* o, mr_handle* mesh, mr_error* e) {
  (void)e;
  uint64_t rows = o->rows ? o->rows : 1, cols = o->cols ? o->cols : 1;
  *mesh = (uint64_t)o->queues << 32 | rows << 16 | cols;
  return MR_OK;
}

static int32_t null_close(mr_handle m, mr_error* e) { return (void)m, (void)e, MR_OK; }

static int32_t null_info(mr_handle m, mr_mesh_info* i, mr_error* e) {
  (void)e;
  memset(i, 0, sizeof *i);
  i->size = sizeof *i;
  i->rows = (uint32_t)(m >> 16 & 0xffff);
  i->cols = (uint32_t)(m & 0xffff);
  i->queues = (uint32_t)(m >> 32);
  i->grid_x = i->grid_y = 8;
  i->links[0] = i->links[1] = 4;
  i->wrap[0] = i->rows > 2;
  i->wrap[1] = i->cols > 2;
  i->dram_bytes = (uint64_t)32 << 30;
  i->l1_bytes = 1464 << 10;
  strcpy(i->name, "null");
  strcpy(i->arch, "none");
  return MR_OK;
}

static int32_t null_alloc(mr_handle m, const mr_tensor_spec* s, mr_handle* t, mr_error* e) {
  (void)m, (void)s, (void)e;
  *t = fresh();
  return MR_OK;
}

static int32_t null_view(mr_handle m, mr_handle t, uint32_t rank, const uint32_t* dims, mr_handle* v, mr_error* e) {
  (void)m, (void)t, (void)rank, (void)dims, (void)e;
  *v = fresh();
  return MR_OK;
}

static int32_t null_write(mr_handle m, mr_handle t, const mr_distribution* d, const void* p, uint64_t n, uint32_t q, mr_error* e) {
  return (void)m, (void)t, (void)d, (void)p, (void)n, (void)q, (void)e, MR_OK;
}

static int32_t null_read(mr_handle m, mr_handle t, uint32_t row, uint32_t col, void* p, uint64_t n, mr_error* e) {
  (void)m, (void)t, (void)row, (void)col, (void)e;
  memset(p, 0, n);
  return MR_OK;
}

static int32_t null_free(mr_handle m, const mr_handle* h, uint32_t n, mr_error* e) {
  return (void)m, (void)h, (void)n, (void)e, MR_OK;
}

static int32_t null_create(mr_handle m, uint32_t n, uint32_t v, mr_handle* s, mr_error* e) {
  (void)m, (void)v, (void)e;
  for (uint32_t i = 0; i < n; ++i) s[i] = fresh();
  return MR_OK;
}

static int32_t null_reset(mr_handle m, const mr_handle* s, uint32_t n, uint32_t v, mr_error* e) {
  return (void)m, (void)s, (void)n, (void)v, (void)e, MR_OK;
}

static int32_t null_record(mr_handle m, uint32_t q, mr_handle* event, mr_error* e) {
  (void)m, (void)q, (void)e;
  *event = 1;
  return MR_OK;
}

static int32_t null_query(mr_handle m, mr_handle event, mr_event_status* s, mr_error* e) {
  (void)m, (void)event, (void)e;
  s->done = 1;
  return MR_OK;
}

static int32_t null_wait_on(mr_handle m, uint32_t q, mr_handle event, mr_error* e) {
  return (void)m, (void)q, (void)event, (void)e, MR_OK;
}

/* Where each operation has its results. */
static const struct {
  uint16_t first, second;
} outputs[MR_OP_END] = {
    [MR_OP_ALL_GATHER] = {offsetof(mr_all_gather, output), 0},
    [MR_OP_REDUCE_SCATTER] = {offsetof(mr_reduce_scatter, output), 0},
    [MR_OP_MATMUL] = {offsetof(mr_matmul, output), 0},
    [MR_OP_NORM] = {offsetof(mr_norm, output), 0},
    [MR_OP_FUSED_DISTRIBUTED_NORM] = {offsetof(mr_fused_distributed_norm, output), 0},
    [MR_OP_ROPE] = {offsetof(mr_rope, output), 0},
    [MR_OP_SDPA] = {offsetof(mr_sdpa, output), 0},
    [MR_OP_RING_JOINT_SDPA] = {offsetof(mr_ring_joint_sdpa, output), offsetof(mr_ring_joint_sdpa, joint_output)},
    [MR_OP_BINARY] = {offsetof(mr_binary, output), 0},
    [MR_OP_ADDCMUL] = {offsetof(mr_addcmul, output), 0},
    [MR_OP_ACTIVATION] = {offsetof(mr_activation, output), 0},
    [MR_OP_SLICE] = {offsetof(mr_slice, output), 0},
    [MR_OP_CONCAT] = {offsetof(mr_concat, output), 0},
    [MR_OP_RESHAPE] = {offsetof(mr_reshape, output), 0},
    [MR_OP_PERMUTE] = {offsetof(mr_permute, output), 0},
    [MR_OP_CONVERT] = {offsetof(mr_convert, output), 0},
    [MR_OP_NEIGHBOR_PAD] = {offsetof(mr_neighbor_pad, output), 0},
    [MR_OP_NEIGHBOR_PAD_HALO] = {offsetof(mr_neighbor_pad_halo, halo), 0},
    [MR_OP_HALO_SCATTER] = {offsetof(mr_halo_scatter, output), 0},
    [MR_OP_SLICE_RESHARD] = {offsetof(mr_slice_reshard, output), 0},
    [MR_OP_EXP_RING_JOINT_SDPA] = {offsetof(mr_exp_ring_joint_sdpa, output), offsetof(mr_exp_ring_joint_sdpa, joint_output)},
    [MR_OP_STRIDED_ALL_GATHER_MATMUL] = {offsetof(mr_strided_all_gather_matmul, output), 0},
    [MR_OP_MATMUL_STRIDED_REDUCE_SCATTER] = {offsetof(mr_matmul_strided_reduce_scatter, output), 0},
    [MR_OP_CONV3D] = {offsetof(mr_conv3d, output), 0},
    [MR_OP_NP_CONV3D] = {offsetof(mr_np_conv3d, output), 0},
    [MR_OP_POINT_TO_POINT] = {offsetof(mr_point_to_point, output), 0},
    [MR_OP_GROUP_NORM] = {offsetof(mr_group_norm, output), 0},
    [MR_OP_GROUP_NORM_STATS] = {offsetof(mr_group_norm_stats, output), 0},
};

static int32_t null_enqueue(mr_handle m, void* op, mr_error* e) {
  (void)m;
  uint32_t kind = ((const mr_op_header*)op)->op;
  if (kind >= MR_OP_END || outputs[kind].first == 0) {
    e->code = MR_UNSUPPORTED;
    strcpy(e->message, "the null driver does not know this operation");
    return MR_UNSUPPORTED;
  }
  mr_handle* first = (mr_handle*)((char*)op + outputs[kind].first);
  if (*first == 0) *first = fresh();
  if (outputs[kind].second != 0) *(mr_handle*)((char*)op + outputs[kind].second) = fresh();
  return MR_OK;
}

static int32_t null_supported(uint32_t op, int32_t* yes, mr_error* e) {
  (void)e;
  *yes = op > 0 && op < MR_OP_END;
  return MR_OK;
}

static int32_t null_failure(mr_handle m, uint64_t* launch, mr_error* failure, mr_error* e) {
  (void)m, (void)failure, (void)e;
  *launch = 0;
  return MR_OK;
}

#define NULL_DRIVER(title, bits)                                                                                               \
  {                                                                                                                            \
    .size = sizeof(mr_driver), .abi_version = MR_ABI_VERSION, .name = title, .flags = bits, .open = null_open,                 \
    .close = null_close, .info = null_info, .tensor_alloc = null_alloc, .tensor_view = null_view, .tensor_write = null_write, \
    .tensor_read = null_read, .tensor_free = null_free, .semaphores_create = null_create, .semaphores_reset = null_reset,      \
    .semaphores_free = null_free, .event_record = null_record, .event_query = null_query, .event_wait_on = null_wait_on,      \
    .event_free = null_free, .enqueue = null_enqueue, .op_supported = null_supported, .failure_next = null_failure,            \
  }

const mr_driver* meshrun_null_driver(uint32_t version) {
  static const mr_driver table = NULL_DRIVER("null", 0);
  return version == MR_ABI_VERSION ? &table : NULL;
}

const mr_driver* meshrun_null_unpinned_driver(uint32_t version) {
  static const mr_driver table = NULL_DRIVER("null-unpinned", MR_DRIVER_ANY_THREAD);
  return version == MR_ABI_VERSION ? &table : NULL;
}
