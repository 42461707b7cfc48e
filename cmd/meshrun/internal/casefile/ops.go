package casefile

import (
	"slices"

	"github.com/meshrun/meshrun/messages"
)

// op is one entry of the table of operations.
type op struct {
	slots    []slot // the tensors that it takes, in the order of "in"; each but the first may be given by its name instead
	variadic bool   // the last slot may repeat, up to messages.MaxInputs
	outputs  int    // how many names "out" may give
	decode   func(a *args) Action
}

type slot struct {
	name     string
	optional bool
}

func takes(names ...string) []slot {
	var s []slot
	for _, n := range names {
		s = append(s, slot{name: n})
	}
	return s
}

func optionally(s []slot, names ...string) []slot {
	for _, n := range names {
		s = append(s, slot{n, true})
	}
	return s
}

// later are operations of the format that this version does not know yet.
var later = []string{
	"neighbor_pad", "neighbor_pad_persistent_buffer", "neighbor_pad_halo", "neighbor_pad_halo_only", "neighbor_pad_halo_scatter", "halo_scatter",
	"slice_reshard", "exp_ring_joint_sdpa", "strided_all_gather_minimal_matmul", "matmul_strided_reduce_scatter", "np_conv3d",
	"point_to_point", "device_to_host", "reset", "reset_global_semaphores", "lend", "conv3d", "group_norm",
	"get_np_ping_pong_buffer", "get_np_ping_pong_semaphore", "get_np_halo_buffer", "get_np_fused_ping_pong_semaphore", "get_barrier_fused_semaphore",
	"get_np_region_progress_semaphores", "get_sr_ping_pong_semaphore", "get_exp_ring_ping_pong_semaphore", "get_strided_ag_mm_semaphore",
	"get_rs_ping_pong_semaphore_fused", "get_fused_norm_stats_buffer", "get_mm_progress_counters_buffer",
}

// ops is the table. To add an operation is to add an entry.
var ops map[string]op

func init() {
	qkv := takes("q", "k", "v")
	ops = map[string]op{
		// collectives
		"all_gather":                       {slots: takes("input"), outputs: 1, decode: allGather},
		"all_gather_persistent_buffer":     {slots: takes("input"), outputs: 1, decode: allGatherPersistent},
		"reduce_scatter":                   {slots: takes("input"), outputs: 1, decode: reduceScatter},
		"reduce_scatter_persistent_buffer": {slots: takes("input"), outputs: 1, decode: reduceScatterPersistent},
		"fused_distributed_norm": {slots: optionally(takes("input"), "weight", "bias", "rope_cos", "rope_sin"), outputs: 1,
			decode: fusedNorm},
		"ring_joint_sdpa": {slots: optionally(slices.Clone(qkv), "joint_q", "joint_k", "joint_v"), outputs: 2, decode: ringSDPA},

		// what the manager lends
		"get_ag_ping_pong_buffer":    {outputs: 1, decode: getGatherBuffer},
		"get_rs_ping_pong_buffer":    {outputs: 2, decode: getScatterBuffer},
		"get_ag_ping_pong_semaphore": {outputs: 1, decode: getSemaphore(messages.PoolAG)},
		"get_rs_ping_pong_semaphore": {outputs: 1, decode: getSemaphore(messages.PoolRS)},
		"get_barrier_semaphore":      {outputs: 1, decode: getSemaphore(messages.PoolBarrier)},
		"get_ag_hyperparams":         {decode: gatherHyper},
		"get_rs_hyperparams":         {decode: scatterHyper},

		// on each device for itself
		"matmul":     {slots: optionally(takes("input", "weight"), "bias"), outputs: 1, decode: matmul},
		"linear":     {slots: optionally(takes("input", "weight"), "bias"), outputs: 1, decode: matmul},
		"layer_norm": {slots: optionally(takes("input"), "weight", "bias"), outputs: 1, decode: norm(false)},
		"rms_norm":   {slots: optionally(takes("input"), "weight", "bias"), outputs: 1, decode: norm(true)},
		"rope":       {slots: takes("input", "cos", "sin"), outputs: 1, decode: rope},
		"sdpa":       {slots: slices.Clone(qkv), outputs: 1, decode: sdpa},
		"add":        {slots: optionally(takes("a"), "b"), outputs: 1, decode: elementwise(messages.Add)},
		"sub":        {slots: optionally(takes("a"), "b"), outputs: 1, decode: elementwise(messages.Sub)},
		"mul":        {slots: optionally(takes("a"), "b"), outputs: 1, decode: elementwise(messages.Mul)},
		"addcmul":    {slots: takes("input", "x", "y"), outputs: 1, decode: func(*args) Action { return Submit{Op: messages.Addcmul{}} }},
		"activation": {slots: takes("input"), outputs: 1, decode: activation},
		"slice":      {slots: takes("input"), outputs: 1, decode: slice},
		"concat":     {slots: takes("input"), variadic: true, outputs: 1, decode: concat},
		"reshape":    {slots: takes("input"), outputs: 1, decode: reshape},
		"permute":    {slots: takes("input"), outputs: 1, decode: permute},
		"to_layout":  {slots: takes("input"), outputs: 1, decode: toLayout},
		"typecast":   {slots: takes("input"), outputs: 1, decode: typecast},

		// between the host and the mesh
		"read":    {slots: takes("input"), outputs: 1, decode: read},
		"write":   {slots: optionally(nil, "input"), outputs: 1, decode: write},
		"release": {decode: release},
		"fence":   {decode: func(*args) Action { return Fence{} }},
		"sleep":   {decode: sleep},
	}
}

// Ops lists the names of the table, sorted.
func Ops() []string {
	var names []string
	for n := range ops {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
