/* meshrun_driver.h: the C ABI between meshrun and a mesh driver, version 2.
 *
 * A driver is one table of function pointers, returned by the one exported symbol meshrun_driver(). The emulator is linked
 * into the program; any other driver is a shared library loaded at run time, so the Go program builds without it.
 *
 * Rules of the line
 *  - Handles are 64 bits: slot in the low 32, generation in the high 32, 0 = none. A stale handle is an error, never a crash.
 *  - Every function takes an mr_error last and returns its code. No C++ exception leaves a driver.
 *  - Every struct begins with its size in bytes, so that a driver can tell an older caller from a newer one.
 *  - An optional number has a bit in `present`; there are no magic values.
 *  - All calls for a mesh come from the thread that opened it, unless the driver sets MR_DRIVER_ANY_THREAD; then calls come
 *    from any thread, one at a time.
 *  - enqueue() returns when the host work is done. Completion is learnt by polling an event.
 *  - Writes copy; reads are called only when the producer's event is done. The driver keeps no pointer that it was given.
 *  - Op structs hold no pointers. `output` handles are in-out: 0 asks the driver to allocate the result and to put its handle
 *    there; otherwise the result goes into the tensor named.
 */
#ifndef MESHRUN_DRIVER_H
#define MESHRUN_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MR_ABI_VERSION 2u
#define MR_MAX_RANK 8
#define MR_MESSAGE_BYTES 1008
#define MR_MAX_CONCAT 8

typedef uint64_t mr_handle;

/* ---- errors ------------------------------------------------------------------------------------------------------- */

enum {
  MR_OK = 0,
  MR_INVALID_ARGUMENT = 1,
  MR_STALE_HANDLE = 2,
  MR_WRONG_THREAD = 3,
  MR_OUT_OF_MEMORY = 4,
  MR_REJECTED = 5,    /* the operation's own validation refused it; nothing was enqueued */
  MR_TIMEOUT = 6,     /* a wait that cannot or did not end; the message holds the report */
  MR_DEVICE_LOST = 7, /* sticky: every later call returns it, except close and extensions */
  MR_UNSUPPORTED = 8,
  MR_INTERNAL = 9,
  MR_HAZARD = 10 /* sticky: the mesh stopped on something that goes wrong on hardware; the message names it */
};

typedef struct mr_error {
  uint32_t size;
  int32_t code;
  uint32_t flags;
  uint32_t reserved;
  char message[MR_MESSAGE_BYTES]; /* NUL-terminated */
} mr_error;

/* ---- values ------------------------------------------------------------------------------------------------------- */

enum { MR_BFLOAT16 = 1, MR_FLOAT32 = 2, MR_UINT32 = 3, MR_INT32 = 4, MR_UINT16 = 5, MR_UINT8 = 6, MR_BFLOAT8_B = 7 };
enum { MR_TILE = 1, MR_ROW_MAJOR = 2 };
enum { MR_DRAM = 1, MR_L1 = 2 };
enum { MR_LINEAR = 1, MR_RING = 2 };

/* mr_tensor_spec describes one shard; every device of the mesh holds one of this shape. */
typedef struct mr_tensor_spec {
  uint32_t size;
  uint32_t dtype;
  uint32_t layout;
  uint32_t memory;
  uint32_t flags; /* MR_ZEROED */
  uint32_t rank;
  uint32_t dims[MR_MAX_RANK];
  /* L1 only, 0 = interleaved: height sharded, one shard of shard_rows x shard_cols per core of the whole grid */
  uint32_t shard_rows;
  uint32_t shard_cols;
} mr_tensor_spec;
enum { MR_ZEROED = 1 };

/* mr_distribution says how one host array is laid over the mesh: per axis either replicated or cut along a dimension. The
 * host array has the shape of the shard with each cut dimension multiplied by the length of its axis. */
typedef struct mr_distribution {
  uint32_t size;
  uint32_t present;    /* bit a: axis a is cut along dim[a]; otherwise it is replicated */
  uint32_t dim[2];
} mr_distribution;

typedef struct mr_open_options {
  uint32_t size;
  uint32_t rows;
  uint32_t cols;
  uint32_t queues;
  const char* config; /* driver-specific settings, one "key=value" a line; NULL = none */
} mr_open_options;

typedef struct mr_mesh_info {
  uint32_t size;
  uint32_t rows;
  uint32_t cols;
  uint32_t grid_x; /* compute cores per device */
  uint32_t grid_y;
  uint32_t queues;
  uint32_t flags;
  uint32_t links[2]; /* links per edge along axis 0 (down the rows) and axis 1 (along the columns) */
  uint32_t wrap[2];  /* 1 where the axis closes into a ring */
  uint32_t reserved;
  uint64_t dram_bytes; /* per device */
  uint64_t l1_bytes;   /* per core */
  char name[64];       /* of the machine, e.g. "bh-galaxy-4x8" */
  char arch[32];
} mr_mesh_info;
enum { MR_MESH_EXCLUSIVE_CORES = 1 }; /* launches of two queues cannot share the cores: collectives run on one queue only */

typedef struct mr_event_status {
  uint32_t size;
  uint32_t done;
} mr_event_status;

/* ---- operations --------------------------------------------------------------------------------------------------- */

enum {
  MR_OP_ALL_GATHER = 1,
  MR_OP_REDUCE_SCATTER = 2,
  MR_OP_MATMUL = 3,
  MR_OP_NORM = 4,
  MR_OP_FUSED_DISTRIBUTED_NORM = 5,
  MR_OP_ROPE = 6,
  MR_OP_SDPA = 7,
  MR_OP_RING_JOINT_SDPA = 8,
  MR_OP_BINARY = 9,
  MR_OP_ADDCMUL = 10,
  MR_OP_ACTIVATION = 11,
  MR_OP_SLICE = 12,
  MR_OP_CONCAT = 13,
  MR_OP_RESHAPE = 14,
  MR_OP_PERMUTE = 15,
  MR_OP_CONVERT = 16,
  MR_OP_NEIGHBOR_PAD = 17,
  MR_OP_NEIGHBOR_PAD_HALO = 18,
  MR_OP_HALO_SCATTER = 19,
  MR_OP_SLICE_RESHARD = 20,
  MR_OP_EXP_RING_JOINT_SDPA = 21,
  MR_OP_STRIDED_ALL_GATHER_MATMUL = 22,
  MR_OP_MATMUL_STRIDED_REDUCE_SCATTER = 23,
  MR_OP_CONV3D = 24,
  MR_OP_NP_CONV3D = 25,
  MR_OP_POINT_TO_POINT = 26,
  MR_OP_GROUP_NORM = 27,
  MR_OP_GROUP_NORM_STATS = 28,
  MR_OP_END
};

typedef struct mr_op_header {
  uint32_t size;   /* of the whole op struct */
  uint32_t op;     /* MR_OP_... */
  uint32_t queue;
  uint32_t present;
  uint64_t launch; /* the runtime's launch number, from 1; named in reports. 0 while a trace is captured: nothing is launched */
  uint32_t stream; /* the runtime's stream number; named in reports */
  uint32_t reserved;
} mr_op_header;

/* bits of mr_op_header.present for the collectives' hyperparameters */
enum { MR_HAS_CHUNKS_PER_SYNC = 1, MR_HAS_WORKERS = 2, MR_HAS_BUFFERS = 4 };
/* bits of mr_op_header.present for the attention ops */
enum { MR_HAS_SCALE = 1, MR_HAS_LOGICAL_N = 2 };
/* bit of mr_op_header.present for the distributed norm: the width is sharded on `axis`; without it the width is whole */
enum { MR_HAS_AXIS = 1 };

/* All_gather along `dim` of a rank-4 input over `axis`. The slice of the device at position i of its line becomes slice i of
 * the result, on every device of the line. Without a barrier the output must be persistent. */
typedef struct mr_all_gather {
  mr_op_header h;
  mr_handle input;
  mr_handle output;
  mr_handle semaphores[2]; /* one per direction of travel */
  mr_handle barrier;       /* 0 = none */
  uint32_t dim;
  uint32_t axis;
  uint32_t num_links;
  uint32_t topology;
  uint32_t chunks_per_sync;
  uint32_t num_workers_per_link;
  uint32_t num_buffers_per_channel;
  uint32_t reserved;
} mr_all_gather;

/* Reduce_scatter along `dim` of a rank-4 input over `axis`: the device at position i keeps slice i of the sum over its line.
 * The intermediate has the input's shape on a ring and twice its dim 0 on a line (both directions are staged there); it and
 * the output are given together, or each alone, or neither. */
typedef struct mr_reduce_scatter {
  mr_op_header h;
  mr_handle input;
  mr_handle output;
  mr_handle intermediate; /* 0 = the driver's own scratch */
  mr_handle semaphores[3];/* one per direction of travel, and one that joins them */
  mr_handle barrier;
  uint32_t dim;
  uint32_t axis;
  uint32_t num_links;
  uint32_t topology;
  uint32_t memory; /* of an output that the driver allocates */
  uint32_t chunks_per_sync;
  uint32_t num_workers_per_link;
  uint32_t num_buffers_per_channel;
} mr_reduce_scatter;

enum { MR_ACT_NONE = 0, MR_ACT_GELU = 1, MR_ACT_GELU_TANH = 2, MR_ACT_SILU = 3, MR_ACT_RELU = 4, MR_ACT_SIGMOID = 5, MR_ACT_TANH = 6 };

/* output[..., M, N] = act(input[..., M, K] x weight[..., K, N] + bias[..., 1, N]). Leading dims of the weight broadcast. */
typedef struct mr_matmul {
  mr_op_header h;
  mr_handle input;
  mr_handle weight;
  mr_handle bias; /* 0 = none */
  mr_handle output;
  uint32_t activation;
  uint32_t transpose_b; /* weight is [..., N, K] */
  uint32_t dtype;       /* of the output */
  uint32_t reserved;
} mr_matmul;

enum { MR_NORM_LAYER = 1, MR_NORM_RMS = 2 };

/* Normalises over the last dim. weight and bias broadcast against the input ([1,1,1,W] or any shape that broadcasts); 0 = none. */
typedef struct mr_norm {
  mr_op_header h;
  mr_handle input;
  mr_handle weight;
  mr_handle bias;
  mr_handle output;
  uint32_t kind;
  float epsilon;
} mr_norm;

/* The same over a width that is sharded on `axis`: each device sums its part, the sums go round the line through the
 * semaphores into the stats buffer, each device normalises its part with the totals. With num_heads > 1 the result is
 * split into heads ([B,1,N,H*D] -> [B,H,N,D]); with rope tables each head is rotated. Without MR_HAS_AXIS, or on an axis of
 * length 1, nothing is gathered and neither stats buffer nor semaphores are given. */
typedef struct mr_fused_distributed_norm {
  mr_op_header h;
  mr_handle input;
  mr_handle weight;
  mr_handle bias;
  mr_handle rope_cos; /* [1,1,N,D] or [1,H,N,D]; 0 = none */
  mr_handle rope_sin;
  mr_handle stats; /* persistent, float32, row major [1, 1, rows, S * axis length]: S = 1 (RMS: sum of squares) or 2 (layer: mean, M2) */
  mr_handle semaphores[2];
  mr_handle output;
  uint32_t kind;
  float epsilon;
  uint32_t axis;
  uint32_t num_links;
  uint32_t topology;
  uint32_t num_heads; /* per device */
} mr_fused_distributed_norm;

enum { MR_ROPE_INTERLEAVED = 1, MR_ROPE_HALF = 2 };

/* Rotates the last dim of x [B,H,N,D] by the tables cos, sin [1,1,N,D] or [1,H,N,D]. Interleaved: elements 2i and 2i+1 are a
 * pair; half: elements i and i+D/2 are. out = x*cos + rotate(x)*sin. */
typedef struct mr_rope {
  mr_op_header h;
  mr_handle input;
  mr_handle cos;
  mr_handle sin;
  mr_handle output;
  uint32_t mode;
  uint32_t reserved;
} mr_rope;

/* softmax(q k^T * scale) v on q [B,H,Sq,D], k and v [B,H,Sk,D]. Keys at or past logical_n are masked. Default scale 1/sqrt(D). */
typedef struct mr_sdpa {
  mr_op_header h;
  mr_handle q;
  mr_handle k;
  mr_handle v;
  mr_handle output;
  float scale;
  uint32_t logical_n;
} mr_sdpa;

/* Attention over a sequence that is sharded along dim 2 on `axis`: K and V go round the line into buffer_k and buffer_v
 * (the gathered shape) while each device attends to what has arrived. Joint parts [B,H,J,D] are replicated and come
 * behind the sequence; logical_n counts the valid keys of the whole sequence, without the joint part. */
typedef struct mr_ring_joint_sdpa {
  mr_op_header h;
  mr_handle q;
  mr_handle k;
  mr_handle v;
  mr_handle joint_q; /* all three or none */
  mr_handle joint_k;
  mr_handle joint_v;
  mr_handle buffer_k;
  mr_handle buffer_v;
  mr_handle semaphores[2];
  mr_handle output;
  mr_handle joint_output;
  uint32_t axis;
  uint32_t num_links;
  uint32_t topology;
  uint32_t logical_n;
  float scale;
  uint32_t reserved;
} mr_ring_joint_sdpa;

enum { MR_BINARY_ADD = 1, MR_BINARY_SUB = 2, MR_BINARY_MUL = 3 };
enum { MR_HAS_SCALAR = 1 };

/* a (op) b with broadcasting of dims of size 1, in either operand; b = 0 and MR_HAS_SCALAR: a (op) scalar. */
typedef struct mr_binary {
  mr_op_header h;
  mr_handle a;
  mr_handle b;
  mr_handle output;
  uint32_t kind;
  float scalar;
} mr_binary;

/* input + x * y, with x and y broadcast against the input. */
typedef struct mr_addcmul {
  mr_op_header h;
  mr_handle input;
  mr_handle x;
  mr_handle y;
  mr_handle output;
} mr_addcmul;

typedef struct mr_activation {
  mr_op_header h;
  mr_handle input;
  mr_handle output;
  uint32_t kind; /* MR_ACT_... */
  uint32_t reserved;
} mr_activation;

typedef struct mr_slice {
  mr_op_header h;
  mr_handle input;
  mr_handle output;
  uint32_t rank;
  uint32_t reserved;
  uint32_t begin[MR_MAX_RANK];
  uint32_t end[MR_MAX_RANK];
} mr_slice;

typedef struct mr_concat {
  mr_op_header h;
  mr_handle inputs[MR_MAX_CONCAT];
  mr_handle output;
  uint32_t count;
  uint32_t dim;
} mr_concat;

typedef struct mr_reshape {
  mr_op_header h;
  mr_handle input;
  mr_handle output;
  uint32_t rank;
  uint32_t reserved;
  uint32_t dims[MR_MAX_RANK];
} mr_reshape;

/* output dim i is input dim order[i] */
typedef struct mr_permute {
  mr_op_header h;
  mr_handle input;
  mr_handle output;
  uint32_t rank;
  uint32_t reserved;
  uint32_t order[MR_MAX_RANK];
} mr_permute;

/* to_layout and typecast */
typedef struct mr_convert {
  mr_op_header h;
  mr_handle input;
  mr_handle output;
  uint32_t dtype;
  uint32_t layout;
} mr_convert;

/* ---- halos --------------------------------------------------------------------------------------------------------- */

enum { MR_PAD_ZEROS = 1, MR_PAD_REPLICATE = 2 };
enum { MR_HAS_LOGICAL_H = 1 };

/* Pads one or two dims of a row-major tensor with what the neighbours along a mesh axis hold there; the mesh's outer borders get zeros
 * or copies of the outermost element. dims[0] is exchanged first, dims[1] over the padded rows, so that corners are right. Rows of the
 * whole dims[0] at or past logical_h count as zeros; t_front_pad frames of zeros come in front of dim dims[0]-1. Always along lines. */
typedef struct mr_neighbor_pad {
  mr_op_header h;
  mr_handle input;
  mr_handle output;        /* 0 = the driver allocates it */
  mr_handle semaphores[2]; /* one per dim; 0 where both its pads are 0: that axis takes no part */
  mr_handle barrier;       /* joins the lines of the first axis that takes part */
  uint32_t count;          /* of dims: 1 or 2 */
  uint32_t mode;           /* MR_PAD_... */
  uint32_t dims[2];
  uint32_t axes[2];
  uint32_t pad_left[2];
  uint32_t pad_right[2];
  uint32_t num_links[2];
  uint32_t logical_h;
  uint32_t t_front_pad;
} mr_neighbor_pad;

enum { MR_HAS_W = 1 };

/* Exchanges the halo of the interior of a row-major [..., H, W, C] tensor into a compact buffer of sticks [sticks, C]: H-top, H-bottom,
 * W-left, W-right. H parts are outer, pad row, column; W parts are outer, pad column, row (the H-padded ones). The interior is the input
 * without input_pad_h rows and input_pad_w columns on each side. With padded_output the interior is copied there beside the exchange. */
typedef struct mr_neighbor_pad_halo {
  mr_op_header h; /* MR_HAS_W: the W part exists */
  mr_handle input;
  mr_handle halo;
  mr_handle padded_output; /* 0 = none */
  mr_handle semaphore_h;
  mr_handle semaphore_w;
  mr_handle barrier;
  uint32_t axis_h;
  uint32_t axis_w;
  uint32_t pad_h_left;
  uint32_t pad_h_right;
  uint32_t pad_w_left;
  uint32_t pad_w_right;
  uint32_t links_h;
  uint32_t links_w;
  uint32_t mode;
  uint32_t input_pad_h;
  uint32_t input_pad_w;
  uint32_t reserved;
} mr_neighbor_pad_halo;

/* Writes a compact halo round an interior. border_only: `padded` has its interior already and only its border is written, in place;
 * otherwise `padded` is the bare interior [..., H, W, C] and the output is a new padded tensor. */
typedef struct mr_halo_scatter {
  mr_op_header h;
  mr_handle compact;
  mr_handle padded;
  mr_handle output; /* border_only: the same memory as `padded`, returned as its handle */
  uint32_t pad_h_left;
  uint32_t pad_h_right;
  uint32_t pad_w_left;
  uint32_t pad_w_right;
  uint32_t border_only;
  uint32_t reserved;
} mr_halo_scatter;

/* Cuts rows [offset, offset + size) of dim 0 of the whole row-major tensor, sharded along dim 0 over `axis`, and shares them out evenly again.
 * Rows past the end are zeros. */
typedef struct mr_slice_reshard {
  mr_op_header h;
  mr_handle input;
  mr_handle output;
  mr_handle semaphore;
  mr_handle barrier;
  uint32_t offset;
  uint32_t size;
  uint32_t axis;
  uint32_t num_links;
  uint32_t topology;
  uint32_t reserved;
} mr_slice_reshard;

#define MR_MAX_PAIRS 128
/* Each pair (from, to) of devices, numbered row by row, sends from's shard to `to`; every other device keeps its own. */
typedef struct mr_point_to_point {
  mr_op_header h;
  mr_handle input;
  mr_handle output;
  mr_handle semaphore;
  mr_handle barrier;
  uint32_t axis; /* that the pairs cross */
  uint32_t num_links;
  uint32_t topology;
  uint32_t count;
  uint32_t from[MR_MAX_PAIRS];
  uint32_t to[MR_MAX_PAIRS];
} mr_point_to_point;

/* ---- fused --------------------------------------------------------------------------------------------------------- */

#define MR_MAX_LINKS 8
/* ring_joint_sdpa with one semaphore per link, each counting what its link has brought from both ways. */
typedef struct mr_exp_ring_joint_sdpa {
  mr_op_header h;
  mr_handle q;
  mr_handle k;
  mr_handle v;
  mr_handle joint_q;
  mr_handle joint_k;
  mr_handle joint_v;
  mr_handle buffer_k;
  mr_handle buffer_v;
  mr_handle semaphores[MR_MAX_LINKS]; /* num_links of them */
  mr_handle output;
  mr_handle joint_output;
  uint32_t axis;
  uint32_t num_links;
  uint32_t topology;
  uint32_t logical_n;
  float scale;
  uint32_t reserved;
} mr_exp_ring_joint_sdpa;

#define MR_MAX_STRIDED 66
/* Gathers input [..., M, K/n] along K over `axis` into `gathered` [..., M, K] while it multiplies with weight [K, N]: out = act(gathered x weight +
 * bias). Semaphores: two, one per way, then 2 * num_links * num_workers_per_link, one per way, link and worker. */
typedef struct mr_strided_all_gather_matmul {
  mr_op_header h; /* MR_HAS_BUFFERS */
  mr_handle input;
  mr_handle weight;
  mr_handle bias; /* [.., 1, N]; 0 = none */
  mr_handle gathered;
  mr_handle output;
  mr_handle semaphores[MR_MAX_STRIDED];
  uint32_t semaphore_count;
  uint32_t axis;
  uint32_t num_links;
  uint32_t topology;
  uint32_t num_workers_per_link;
  uint32_t num_buffers_per_channel;
  uint32_t activation;
  uint32_t reserved;
} mr_strided_all_gather_matmul;

/* Multiplies input [..., M, K] (each device its part of K) with weight [K, N] and scatters the sum over `axis` along N while the products come: out
 * [..., M, N/n] = sum + bias, then residual + scalar * out * gate where those are given. Rings only. The matmul tells the scatter how far
 * it is through the progress counters: one uint32 row of slots per core. */
typedef struct mr_matmul_strided_reduce_scatter {
  mr_op_header h; /* MR_HAS_SCALAR */
  mr_handle input;
  mr_handle weight;
  mr_handle bias;     /* [.., 1, N/n], added once, by the owner of the slice; 0 = none */
  mr_handle residual; /* addcmul: both or none */
  mr_handle gate;
  mr_handle progress;
  mr_handle credit; /* counters of the way back, same shape; 0 = none */
  mr_handle intermediate; /* 0 = the driver's own scratch */
  mr_handle output;
  mr_handle semaphores[3];
  mr_handle barrier; /* 0 where the output is persistent */
  uint32_t axis;
  uint32_t num_links;
  uint32_t topology;
  float scalar;
} mr_matmul_strided_reduce_scatter;

/* Convolution of a row-major [N, T, H, W, C] input with weight [kT*kH*kW*C/groups, O] (taps outermost, channels innermost) and bias [1, O]. padding
 * pads every side of T, H, W by the mode. With a halo the H and W padding is read from the compact buffer instead, and padding[1] and
 * padding[2] are its pads. */
typedef struct mr_conv3d {
  mr_op_header h;
  mr_handle input;
  mr_handle weight;
  mr_handle bias; /* 0 = none */
  mr_handle halo; /* 0 = none */
  mr_handle output;
  uint32_t kernel[3];
  uint32_t stride[3];
  uint32_t padding[3];
  uint32_t dilation[3];
  uint32_t groups;
  uint32_t mode; /* MR_PAD_... */
} mr_conv3d;

/* neighbor_pad_halo and conv3d in one: interior outputs are computed while the halo travels. np_region semaphores: 4 * num_links, region
 * (H-top, H-bottom, W-left, W-right) outermost. */
typedef struct mr_np_conv3d {
  mr_op_header h; /* MR_HAS_W */
  mr_handle input;
  mr_handle weight;
  mr_handle bias;
  mr_handle halo;
  mr_handle output;
  mr_handle semaphore_h;
  mr_handle semaphore_w;
  mr_handle barrier;
  mr_handle region[4 * MR_MAX_LINKS];
  uint32_t axis_h;
  uint32_t axis_w;
  uint32_t links;
  uint32_t mode;
  uint32_t kernel[3];
  uint32_t stride[3];
  uint32_t padding[3]; /* T: local; H and W: from the halo, on both sides */
  uint32_t dilation[3];
  uint32_t groups;
  uint32_t reserved;
} mr_np_conv3d;

/* ---- group norm ---------------------------------------------------------------------------------------------------- */

/* Normalises row-major [N, .., C] over all but dim 0, each of num_groups groups of C/num_groups channels by itself, with the population
 * variance: act((x - mean) / sqrt(variance + epsilon) * weight + bias). The statistics are those of this device's shard, or, with `stats`,
 * those of all its parts, combined in order of part. */
typedef struct mr_group_norm {
  mr_op_header h;
  mr_handle input;
  mr_handle weight; /* [.., C]; 0 = none */
  mr_handle bias;   /* the same */
  mr_handle stats;  /* float32 [parts, 1, N, 3 * num_groups], parts of group_norm_stats gathered along dim 0; 0 = none */
  mr_handle output;
  uint32_t num_groups;
  uint32_t activation; /* MR_ACT_... */
  float epsilon;
  uint32_t reserved;
} mr_group_norm;

enum { MR_HAS_LOGICAL_W = 2 };

/* What a device knows of a sharded group norm: float32 [1, 1, N, 3 * num_groups], per group the count of elements, their mean, and the sum of
 * squared distances from it. logical_h and logical_w are the extents of the whole dims H and W of [N, .., H, W, C], sharded on axis_h and
 * axis_w: what lies at or past them does not count, and a device that has nothing else says count 0. */
typedef struct mr_group_norm_stats {
  mr_op_header h; /* MR_HAS_LOGICAL_H, MR_HAS_LOGICAL_W */
  mr_handle input;
  mr_handle output;
  uint32_t num_groups;
  uint32_t logical_h;
  uint32_t axis_h;
  uint32_t logical_w;
  uint32_t axis_w;
  uint32_t reserved;
} mr_group_norm_stats;

/* ---- the table ---------------------------------------------------------------------------------------------------- */

enum { MR_DRIVER_ANY_THREAD = 1 };

typedef struct mr_driver {
  uint32_t size;
  uint32_t abi_version;
  const char* name;
  uint32_t flags;
  uint32_t reserved;

  int32_t (*open)(const mr_open_options* options, mr_handle* mesh, mr_error* error);
  int32_t (*close)(mr_handle mesh, mr_error* error); /* also with work in flight: returns in bounded time */
  int32_t (*info)(mr_handle mesh, mr_mesh_info* info, mr_error* error);

  /* Tensors. A view shares the memory of its tensor, from its first element on, under a shape of at most as many elements; the memory is
   * free when the last of them is freed. */
  int32_t (*tensor_alloc)(mr_handle mesh, const mr_tensor_spec* spec, mr_handle* tensor, mr_error* error);
  int32_t (*tensor_view)(mr_handle mesh, mr_handle tensor, uint32_t rank, const uint32_t* dims, mr_handle* view, mr_error* error);
  int32_t (*tensor_write)(mr_handle mesh, mr_handle tensor, const mr_distribution* distribution, const void* data, uint64_t bytes,
                          uint32_t queue, mr_error* error);
  int32_t (*tensor_read)(mr_handle mesh, mr_handle tensor, uint32_t row, uint32_t col, void* data, uint64_t bytes, mr_error* error);
  int32_t (*tensor_info)(mr_handle mesh, mr_handle tensor, mr_tensor_spec* spec, mr_error* error);
  int32_t (*tensor_free)(mr_handle mesh, const mr_handle* tensors, uint32_t count, mr_error* error);

  /* Global semaphores: one 32-bit word on every core of every device, in L1. */
  int32_t (*semaphores_create)(mr_handle mesh, uint32_t count, uint32_t initial, mr_handle* semaphores, mr_error* error);
  int32_t (*semaphores_reset)(mr_handle mesh, const mr_handle* semaphores, uint32_t count, uint32_t value, mr_error* error);
  int32_t (*semaphores_free)(mr_handle mesh, const mr_handle* semaphores, uint32_t count, mr_error* error);

  /* Events. An event is done when everything enqueued before it on its queue has retired on every device. A fence is an
   * event on every queue, polled until done. */
  int32_t (*event_record)(mr_handle mesh, uint32_t queue, mr_handle* event, mr_error* error);
  int32_t (*event_query)(mr_handle mesh, mr_handle event, mr_event_status* status, mr_error* error);
  int32_t (*event_wait_on)(mr_handle mesh, uint32_t queue, mr_handle event, mr_error* error);
  int32_t (*event_free)(mr_handle mesh, const mr_handle* events, uint32_t count, mr_error* error);

  /* Traces. Between begin and end, operations enqueued on that queue are checked and kept instead of launched; the results that they
   * allocate get their memory then. Nothing else that a replay would not do again is allowed meanwhile: no allocation, no write, read,
   * reset or event, no other queue. execute launches all of them again, in order, on the same memory and semaphores, or, when it returns an
   * error, none; their launch numbers are first_launch, first_launch + 1, and so on. What a trace names keeps its memory, although freed, until the trace is freed. To free a
   * trace that is still captured abandons it. */
  int32_t (*trace_begin)(mr_handle mesh, uint32_t queue, mr_handle* trace, mr_error* error);
  int32_t (*trace_end)(mr_handle mesh, mr_handle trace, mr_error* error);
  int32_t (*trace_execute)(mr_handle mesh, mr_handle trace, uint32_t queue, uint64_t first_launch, mr_error* error);
  int32_t (*trace_free)(mr_handle mesh, mr_handle trace, mr_error* error);

  /* Operations. `op` points to one op struct, which begins with mr_op_header. */
  int32_t (*enqueue)(mr_handle mesh, void* op, mr_error* error);
  int32_t (*op_supported)(uint32_t op, int32_t* supported, mr_error* error);

  /* Launches that ran and failed, oldest first, each reported once; *launch = 0 when there is none. The code and the message
   * of the failure are put into `failure`. */
  int32_t (*failure_next)(mr_handle mesh, uint64_t* launch, mr_error* failure, mr_error* error);

  /* A table of further functions by name, or NULL. */
  const void* (*extension)(const char* name);
} mr_driver;

/* The one exported symbol. Returns NULL for a version that the driver does not speak. */
const mr_driver* meshrun_driver(uint32_t abi_version);
typedef const mr_driver* (*mr_driver_entry)(uint32_t abi_version);

/* ---- extension "meshrun.emulator.1": what an emulated mesh can do beyond hardware ---------------------------------- */

typedef struct mr_launch_profile {
  uint32_t size;
  uint32_t retired;
  uint64_t start_ns; /* virtual: the first device's start and the last device's end */
  uint64_t end_ns;
} mr_launch_profile;

/* Virtual times of one device in a launch. What it waited for others to begin the launch is no cost of the operation. */
typedef struct mr_device_profile {
  uint64_t start_ns;
  uint64_t end_ns;
  uint64_t waiting_ns;
} mr_device_profile;

enum { MR_CLOCK_PROGRESS = 0, MR_CLOCK_IDLE = 1, MR_CLOCK_BUSY = 2 };

typedef struct mr_emulator_ext {
  uint32_t size;
  uint32_t reserved;
  /* The virtual time of the host, in ns. */
  int32_t (*clock_now)(mr_handle mesh, uint64_t* now_ns, mr_error* error);
  /* Lockstep only (config clock=lockstep): lets virtual time run until an event recorded and not yet seen done is done, until
   * `until_ns`, or until nothing is left to do, but parks the caller no longer than max_wait_us of real time. *state tells
   * which: PROGRESS (an event is done, or until_ns reached), IDLE (no event is left), BUSY (call again). */
  int32_t (*clock_advance)(mr_handle mesh, uint64_t until_ns, uint32_t max_wait_us, int32_t* state, mr_error* error);
  int32_t (*launch_profile)(mr_handle mesh, uint64_t launch, mr_launch_profile* profile, mr_error* error);
  /* One fault, in the text of docs/faults.md, e.g. "device 0,1 stop at launch 20". A launch that has been is MR_INVALID_ARGUMENT. */
  int32_t (*fault)(mr_handle mesh, const char* text, mr_error* error);
  /* The report so far as JSON: {"hazards":[...],"hang":null|{...},"stats":{...},"virtual_ns":n}. Writes at most `capacity` bytes
   * with the NUL and puts the bytes needed into *needed. */
  int32_t (*report)(mr_handle mesh, char* json, uint64_t capacity, uint64_t* needed, mr_error* error);
  /* One named preset per line, with shape, grid, links, wrap and memory, as JSON array. Needs no mesh. */
  int32_t (*presets)(char* json, uint64_t capacity, uint64_t* needed, mr_error* error);
  /* The value of a semaphore on core (0,0) of a device. */
  int32_t (*semaphore_value)(mr_handle mesh, mr_handle semaphore, uint32_t row, uint32_t col, uint32_t* value, mr_error* error);
  /* Tells the emulator the name by which reports call a tensor or a semaphore. Control characters, and what is no UTF-8, are shown escaped. */
  int32_t (*name)(mr_handle mesh, mr_handle object, const char* name, mr_error* error);
  /* The same for a stream, by the number that op headers give it. Once: before its first operation. */
  int32_t (*name_stream)(mr_handle mesh, uint32_t stream, const char* name, mr_error* error);
  /* Times of a retired launch on each device, row by row, `capacity` of them at most. *count is how many there are: 0 unless the mesh was
   * opened with device_times=on. */
  int32_t (*launch_devices)(mr_handle mesh, uint64_t launch, mr_device_profile* devices, uint32_t capacity, uint32_t* count, mr_error* error);
} mr_emulator_ext;

#ifdef __cplusplus
}
#endif
#endif
