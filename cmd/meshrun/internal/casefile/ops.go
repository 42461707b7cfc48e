package casefile

import (
	"fmt"
	"slices"

	"github.com/meshrun/meshrun/axis"
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

// args are the members of one call while its arguments are read.
type args struct {
	*fields
	case_   *Case
	claim   []string // keys of the general part that the operation takes for itself
	refused error    // a value that breaks a rule: the call is refused when its turn comes, not the file
}

func (a *args) refuse(field string, value any, rule string, more ...any) {
	if a.refused == nil {
		a.refused = messages.Invalid(a.what, field, value, rule, more...)
	}
}

func (a *args) own(key string) *node {
	a.claim = append(a.claim, key)
	return a.take(key)
}

func (a *args) claims(key string) bool { return slices.Contains(a.claim, key) }

func (a *args) dim() int { return a.anyInt(a.required("dim")) }

// meshAxis reads 0, 1 or null. Other numbers are left to the rules of the operation, but -1, which is null to them.
func (a *args) meshAxis() int {
	n := a.required("mesh_axis", "cluster_axis")
	if n == nil || n.kind == null {
		return messages.NoAxis
	}
	i := a.anyInt(n)
	if i == messages.NoAxis {
		a.refuse("mesh_axis", i, "is 0 (down the rows), 1 (along the columns) or null")
	}
	return i
}

func allGather(a *args) Action {
	return Submit{Op: messages.AllGather{Dim: a.dim(), MeshAxis: a.meshAxis(), UseHyperparams: a.boolean(a.take("use_hyperparams"), false),
		UsePersistentBuffer: a.boolean(a.take("use_persistent_buffer"), false)}}
}

func allGatherPersistent(a *args) Action {
	return Submit{Op: messages.AllGather{Dim: a.dim(), MeshAxis: a.meshAxis(), UseHyperparams: a.boolean(a.take("use_hyperparams"), false),
		UsePersistentBuffer: true}}
}

func reduceScatter(a *args) Action {
	return Submit{Op: messages.ReduceScatter{Dim: a.dim(), MeshAxis: a.meshAxis(), UsePersistentBuffer: a.boolean(a.take("use_persistent_buffer"), false)}}
}

func reduceScatterPersistent(a *args) Action {
	return Submit{Op: messages.ReduceScatter{Dim: a.dim(), MeshAxis: a.meshAxis(), UsePersistentBuffer: true}}
}

func fusedNorm(a *args) Action {
	return Submit{Op: messages.FusedDistributedNorm{
		RMS:      a.oneOf(a.take("norm"), "rms", "rms", "layer") == "rms",
		Epsilon:  a.epsilon(1e-5),
		MeshAxis: a.meshAxis(),
		NumHeads: a.anyInt(a.take("num_heads", "num_heads_per_device")),
	}}
}

func (a *args) epsilon(otherwise float64) float32 {
	if n := a.take("epsilon"); n != nil {
		return float32(a.number(n))
	}
	return float32(otherwise)
}

func ringSDPA(a *args) Action {
	if n := a.take("dim"); n != nil && a.anyInt(n) != 2 {
		a.refuse("dim", n, "is 2, the sequence")
	}
	a.oneOf(a.take("joint_strategy"), "rear", "rear")
	return Submit{Op: messages.RingJointSDPA{MeshAxis: a.meshAxis(), LogicalN: a.anyInt(a.take("logical_n")), Scale: float32(a.number(a.take("scale")))}}
}

func getGatherBuffer(a *args) Action {
	key := messages.BufferKey{Kind: messages.BufferAG, Shape: a.ownShape(), Dim: a.dim(), Axis: a.meshAxis(), DType: a.ownDType(messages.BFloat16)}
	return Submit{Op: messages.GetBuffers{Key: key}, Wait: true}
}

func getScatterBuffer(a *args) Action {
	key := messages.BufferKey{Kind: messages.BufferRS, Shape: a.ownShape(), Dim: a.dim(), Axis: a.meshAxis(), DType: a.ownDType(messages.BFloat16)}
	output, intermediate := a.boolean(a.take("return_output_buffer"), true), a.boolean(a.take("return_intermediate"), true)
	switch {
	case !output && !intermediate:
		a.fail(a.n, "return_output_buffer and return_intermediate are both false: a buffer has at least one part")
	case !output:
		key.Parts = messages.IntermediateOnly
	case !intermediate:
		key.Parts = messages.OutputOnly
	}
	return Submit{Op: messages.GetBuffers{Key: key}, Wait: true}
}

// ownShape is a shape that is an argument, not an input of zeros.
func (a *args) ownShape() messages.Shape {
	a.own("shape")
	return a.callShape(a.required("shape"))
}

// callShape is a shape whose dims are a matter of the call's rules.
func (a *args) callShape(n *node) messages.Shape {
	if n == nil {
		return messages.Shape{}
	}
	dims := a.ints(n)
	s, err := messages.NewShape(dims...)
	if err != nil {
		a.refuse("shape", fmt.Sprint(dims), "has at most %d dims, each at least 1", messages.MaxRank)
	} else if len(dims) == 0 && n.kind == list {
		a.refuse("shape", "[]", "has at least one dim")
	}
	return s
}

func (a *args) ownDType(otherwise messages.DType) messages.DType {
	return word(a.decoder, a.own("dtype"), messages.ParseDType, otherwise)
}

func getSemaphore(pool messages.Pool) func(*args) Action {
	return func(a *args) Action {
		return Submit{Op: messages.GetSemaphores{Pool: pool, MeshAxis: a.meshAxis()}, Wait: true}
	}
}

func hyper(h axis.Hyper) map[string]int {
	return map[string]int{"chunks_per_sync": h.ChunksPerSync, "num_workers_per_link": h.NumWorkersPerLink, "num_buffers_per_channel": h.NumBuffersPerChannel}
}

func gatherHyper(a *args) Action {
	s := a.ownShape()
	if s.Rank() < 3 {
		a.refuse("shape", s, "has rank 3 at least: the rows are dim 2")
		return Answer{}
	}
	return Answer{Value: hyper(axis.AllGatherHyper(s))}
}

func scatterHyper(a *args) Action {
	a.ownShape()
	return Answer{Value: hyper(axis.ReduceScatterHyper())}
}

func matmul(a *args) Action {
	return Submit{Op: messages.Matmul{
		Activation: word(a.decoder, a.take("activation"), messages.ParseActivation, messages.NoActivation),
		TransposeB: a.boolean(a.take("transpose_b"), false),
		DType:      word(a.decoder, a.own("dtype"), messages.ParseDType, messages.DTypeUnset),
	}}
}

func norm(rms bool) func(*args) Action {
	return func(a *args) Action { return Submit{Op: messages.Norm{RMS: rms, Epsilon: a.epsilon(1e-5)}} }
}

func rope(a *args) Action {
	return Submit{Op: messages.Rope{Half: a.oneOf(a.take("mode"), "interleaved", "interleaved", "half") == "half"}}
}

func sdpa(a *args) Action {
	return Submit{Op: messages.SDPA{Scale: float32(a.number(a.take("scale"))), LogicalN: a.anyInt(a.take("logical_n"))}}
}

func elementwise(fn messages.BinaryKind) func(*args) Action {
	return func(a *args) Action {
		return Submit{Op: messages.Binary{Fn: fn, Scalar: float32(a.number(a.take("scalar")))}}
	}
}

func activation(a *args) Action {
	return Submit{Op: messages.Activation{Fn: word(a.decoder, a.required("fn", "activation"), messages.ParseActivation, messages.NoActivation)}}
}

func slice(a *args) Action {
	return Submit{Op: messages.Slice{Begin: a.index(a.required("begin")), End: a.index(a.required("end"))}}
}

func (a *args) index(n *node) messages.Index {
	x, err := messages.IndexOf(a.ints(n)...)
	if err != nil {
		a.fail(n, "%v", err)
	}
	return x
}

func concat(a *args) Action { return Submit{Op: messages.Concat{Dim: a.dim()}} }

func reshape(a *args) Action { return Submit{Op: messages.Reshape{Shape: a.ownShape()}} }

func permute(a *args) Action {
	return Submit{Op: messages.Permute{Order: a.index(a.required("order", "dims"))}}
}

func toLayout(a *args) Action {
	a.own("layout")
	return Submit{Op: messages.Convert{Layout: word(a.decoder, a.required("layout"), messages.ParseLayout, messages.Tile)}}
}

func typecast(a *args) Action {
	a.own("dtype")
	return Submit{Op: messages.Convert{DType: word(a.decoder, a.required("dtype"), messages.ParseDType, messages.BFloat16)}}
}

func read(a *args) Action {
	n := a.take("at")
	if n == nil {
		return Read{}
	}
	p := a.ints(n)
	if len(p) != 2 {
		a.fail(n, "%s: is [row, column] of a device", n)
		return Read{}
	}
	return Read{At: &messages.Coord{Row: p[0], Col: p[1]}}
}

func write(a *args) Action {
	w := Write{Spec: a.spec(a.own("shape"))}
	a.own("dtype")
	a.own("layout")
	given := w.Spec // the fill of a tensor that exists is checked against that tensor
	w.Fill = a.fill(a.required("fill"), &w.Spec, a.case_.Mesh)
	switch in := a.present("in", "input"); {
	case in != nil && given.Shape.Rank() > 0:
		a.fail(in, "shape is that of the tensor: leave it out")
	case in == nil && w.Spec.Shape.Rank() == 0 && w.Fill.Global.Rank() == 0:
		a.fail(a.n, "write needs \"shape\", or \"in\"")
	}
	return w
}

func release(a *args) Action { return Release{Names: a.names(a.required("tensors"))} }

func sleep(a *args) Action {
	us := a.anyInt(a.required("us"))
	if us < 0 {
		a.refuse("us", us, "is not negative")
	}
	return Sleep{NS: uint64(max(us, 0)) * 1000}
}

// spec reads dtype and layout beside a shape that has been taken, with the defaults of an input.
func (a *args) spec(shape *node) messages.Spec {
	return messages.Spec{Shape: a.shape(shape), DType: word(a.decoder, a.take("dtype"), messages.ParseDType, messages.BFloat16),
		Layout: word(a.decoder, a.take("layout"), messages.ParseLayout, messages.Tile), Memory: messages.DRAM}
}
