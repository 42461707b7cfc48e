package casefile

import (
	"slices"
	"strings"

	"github.com/meshrun/meshrun/messages"
)

// op is one entry of the table of operations.
type op struct {
	slots    []slot // the tensors that it takes, in the order of "in"; each but the first may be given by its name instead
	variadic bool   // the last slot may repeat, up to messages.MaxInputs
	leases   bool   // it may name leases for its neighbour semaphores
	outputs  int    // how many names "out" may give
	decode   func(a *args) Action
}

type slot struct {
	names    []string // the first is the one in messages
	optional bool
}

func newSlot(names string, optional bool) slot { return slot{strings.Split(names, "|"), optional} }

func takes(names ...string) []slot {
	var s []slot
	for _, n := range names {
		s = append(s, newSlot(n, false))
	}
	return s
}

func optionally(s []slot, names ...string) []slot {
	for _, n := range names {
		s = append(s, newSlot(n, true))
	}
	return s
}

// later are operations of the format that this version does not know yet.
var later = []string{"lend"}

// ops is the table. To add an operation is to add an entry.
var ops map[string]op

func init() {
	qkv := takes("q", "k", "v")
	ringSlots := optionally(slices.Clone(qkv), "joint_q", "joint_k", "joint_v")
	ops = map[string]op{
		// collectives
		"all_gather":                       {slots: takes("input"), outputs: 1, decode: allGather},
		"all_gather_persistent_buffer":     {slots: takes("input"), outputs: 1, decode: allGatherPersistent},
		"reduce_scatter":                   {slots: takes("input"), outputs: 1, decode: reduceScatter},
		"reduce_scatter_persistent_buffer": {slots: takes("input"), outputs: 1, decode: reduceScatterPersistent},
		"fused_distributed_norm": {slots: optionally(takes("input"), "weight", "bias", "rope_cos", "rope_sin"), outputs: 1,
			decode: fusedNorm},
		"ring_joint_sdpa":                   {slots: ringSlots, outputs: 2, decode: ringSDPA},
		"exp_ring_joint_sdpa":               {slots: ringSlots, outputs: 2, decode: expRingSDPA},
		"slice_reshard":                     {slots: takes("input"), outputs: 1, decode: sliceReshard},
		"point_to_point":                    {slots: takes("input"), outputs: 1, decode: pointToPoint},
		"strided_all_gather_minimal_matmul": {slots: optionally(takes("input", "weight"), "bias"), outputs: 1, decode: stridedGatherMatmul},
		"matmul_strided_reduce_scatter": {slots: optionally(takes("input", "weight"), "bias", "residual|addcmul1", "gate|addcmul2"), outputs: 1,
			decode: matmulStridedScatter},

		// halos and convolutions
		"neighbor_pad":                   {slots: takes("input"), leases: true, outputs: 1, decode: neighborPad(false)},
		"neighbor_pad_persistent_buffer": {slots: takes("input"), leases: true, outputs: 1, decode: neighborPad(true)},
		"neighbor_pad_halo":              {slots: optionally(takes("input"), "padded_output"), leases: true, outputs: 1, decode: deviceHalo},
		"neighbor_pad_halo_only":         {slots: optionally(takes("input"), "padded_output"), leases: true, outputs: 1, decode: haloOnly},
		"neighbor_pad_halo_scatter":      {slots: takes("input"), leases: true, outputs: 1, decode: haloAndScatter},
		"halo_scatter":                   {slots: takes("compact", "padded|interior"), outputs: 1, decode: haloScatter},
		"conv3d":                         {slots: optionally(takes("input", "weight"), "bias", "halo|halo_buffer"), outputs: 1, decode: conv3D},
		"np_conv3d":                      {slots: optionally(takes("input", "weight"), "bias"), outputs: 1, decode: npConv3D},
		"group_norm":                     {slots: optionally(takes("input"), "weight", "bias", "stats"), outputs: 1, decode: groupNorm},
		"group_norm_stats":               {slots: takes("input"), outputs: 1, decode: groupNormStats},

		// what the manager lends
		"get_ag_ping_pong_buffer":           {outputs: 1, decode: getBuffer(gatherKey(messages.BufferAG))},
		"get_fsdp_weight_buffer":            {outputs: 1, decode: getBuffer(gatherKey(messages.BufferFSDP))},
		"get_rs_ping_pong_buffer":           {outputs: 2, decode: getBuffer(scatterKey)},
		"get_np_ping_pong_buffer":           {outputs: 1, decode: getBuffer(paddedKey)},
		"get_np_halo_buffer":                {outputs: 1, decode: getBuffer(haloKey)},
		"get_fused_norm_stats_buffer":       {outputs: 1, decode: getBuffer(statsKey)},
		"get_mm_progress_counters_buffer":   {outputs: 1, decode: getBuffer(countersKey(messages.BufferMMProgress))},
		"get_mm_credit_counters_buffer":     {outputs: 1, decode: getBuffer(countersKey(messages.BufferMMCredit))},
		"get_ag_ping_pong_semaphore":        {outputs: 1, decode: getSemaphore(messages.PoolAG)},
		"get_fsdp_ping_pong_semaphore":      {outputs: 1, decode: getSemaphore(messages.PoolFSDP)},
		"get_rs_ping_pong_semaphore":        {outputs: 1, decode: getSemaphore(messages.PoolRS)},
		"get_rs_ping_pong_semaphore_fused":  {outputs: 1, decode: getSemaphore(messages.PoolRSFused)},
		"get_exp_ring_ping_pong_semaphore":  {outputs: 1, decode: getSemaphore(messages.PoolExpRing)},
		"get_np_ping_pong_semaphore":        {outputs: 1, decode: getSemaphore(messages.PoolNP)},
		"get_np_fused_ping_pong_semaphore":  {outputs: 1, decode: getSemaphore(messages.PoolNPFused)},
		"get_sr_ping_pong_semaphore":        {outputs: 1, decode: getSemaphore(messages.PoolSR)},
		"get_barrier_semaphore":             {outputs: 1, decode: getSemaphore(messages.PoolBarrier)},
		"get_barrier_fused_semaphore":       {outputs: 1, decode: getSemaphore(messages.PoolBarrierFused)},
		"get_np_region_progress_semaphores": {outputs: 1, decode: getSemaphore(messages.PoolNPRegion)},
		"get_strided_ag_mm_semaphore":       {outputs: 1, decode: getSemaphore(messages.PoolStridedAGMM)},
		"get_ag_hyperparams":                {decode: gatherHyper},
		"get_rs_hyperparams":                {decode: scatterHyper},
		"prewarm":                           {decode: prewarm},
		"release_buffers":                   {decode: releaseBuffers},
		"reset_global_semaphores":           {decode: func(*args) Action { return Reset{} }},
		"reset":                             {decode: func(*args) Action { return Reset{} }},

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
		"device_to_host": {slots: takes("input"), outputs: 1, decode: deviceToHost},
		"read":           {slots: takes("input"), outputs: 1, decode: read},
		"write":          {slots: optionally(nil, "input"), outputs: 1, decode: write},
		"release":        {decode: release},
		"fence":          {decode: func(*args) Action { return Fence{} }},
		"sleep":          {decode: sleep},
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
