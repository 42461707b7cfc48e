package casefile

import (
	"fmt"
	"slices"

	"github.com/meshrun/meshrun/axis"
	"github.com/meshrun/meshrun/messages"
)

// args are the members of one call while its arguments are read.
type args struct {
	*fields
	file    *Case
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

// lineAxis is meshAxis where something has to lie along it.
func (a *args) lineAxis() int {
	i := a.meshAxis()
	if i == messages.NoAxis {
		a.refuse("mesh_axis", "null", "is 0 or 1")
	}
	return i
}

func allGather(a *args) Action {
	op := a.allGather()
	op.UsePersistentBuffer = a.boolean(a.take("use_persistent_buffer"), false)
	return Submit{Op: op}
}

func allGatherPersistent(a *args) Action {
	op := a.allGather()
	op.UsePersistentBuffer = true
	return Submit{Op: op}
}

func (a *args) allGather() messages.AllGather {
	return messages.AllGather{Dim: a.dim(), MeshAxis: a.meshAxis(), UseHyperparams: a.boolean(a.take("use_hyperparams"), false),
		FSDP: a.boolean(a.take("fsdp"), false), Capacity: a.capacity()}
}

// capacity is how long the gathered dim of a buffer is that serves several shapes; 0 when absent.
func (a *args) capacity() int { return a.positive("capacity") }

// positive is a number that counts from 1; 0 when absent.
func (a *args) positive(names ...string) int {
	n := a.take(names...)
	if n == nil {
		return 0
	}
	i := a.anyInt(n)
	if i < 1 {
		a.refuse(names[0], i, "is at least 1")
	}
	return i
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
		Key:      a.text(a.take("key")),
	}}
}

func (a *args) epsilon(otherwise float64) float32 {
	if n := a.take("epsilon"); n != nil {
		return float32(a.number(n))
	}
	return float32(otherwise)
}

func ringSDPA(a *args) Action { return Submit{Op: messages.RingJointSDPA(a.ringAttention())} }

func expRingSDPA(a *args) Action { return Submit{Op: a.ringAttention()} }

func (a *args) ringAttention() messages.ExpRingJointSDPA {
	a.onlyDim(2, "the sequence")
	a.oneOf(a.take("joint_strategy"), "rear", "rear")
	return messages.ExpRingJointSDPA{MeshAxis: a.lineAxis(), LogicalN: a.anyInt(a.take("logical_n")), Scale: float32(a.number(a.take("scale")))}
}

// onlyDim reads the dim of an operation that works along one dim of a rank-4 tensor, whatever it is told.
func (a *args) onlyDim(dim int, what string) {
	if n := a.take("dim"); n != nil {
		if i := a.anyInt(n); i != dim && i != dim-4 {
			a.refuse("dim", i, "is %d, %s", dim, what)
		}
	}
}

func sliceReshard(a *args) Action {
	return Submit{Op: messages.SliceReshard{Dim: a.anyInt(a.take("dim")), Offset: a.anyInt(a.required("output_dim_offset")),
		Size: a.anyInt(a.required("output_dim_shape")), MeshAxis: a.lineAxis()}}
}

// pointToPoint reads "pairs": [[[r,c],[r,c]], ...], from and to.
func pointToPoint(a *args) Action {
	var pairs []messages.Pair
	for _, n := range a.elements(a.required("pairs"), "pairs of devices") {
		both := a.elements(n, "two devices")
		if len(both) != 2 {
			a.fail(n, "%s: is a pair of devices, [from, to]", n)
			continue
		}
		pairs = append(pairs, messages.Pair{From: a.device(both[0]), To: a.device(both[1])})
	}
	op, err := messages.NewPointToPoint(pairs...)
	if err != nil && a.refused == nil {
		a.refused = err
	}
	return Submit{Op: op}
}

// device is [row, column].
func (a *args) device(n *node) messages.Coord {
	p := a.ints(n)
	if len(p) != 2 {
		a.fail(n, "%s: is [row, column] of a device", n)
		return messages.Coord{}
	}
	return messages.Coord{Row: p[0], Col: p[1]}
}

func stridedGatherMatmul(a *args) Action {
	a.onlyDim(3, "the last")
	return Submit{Op: messages.StridedAllGatherMatmul{MeshAxis: a.lineAxis(), NumWorkersPerLink: a.positive("num_workers_per_link"),
		NumBuffersPerChannel: a.positive("num_buffers_per_channel"),
		Activation:           word(a.decoder, a.take("activation", "fused_activation"), messages.ParseActivation, messages.NoActivation)}}
}

func matmulStridedScatter(a *args) Action {
	a.onlyDim(3, "the last")
	return Submit{Op: messages.MatmulStridedReduceScatter{MeshAxis: a.lineAxis(),
		UsePersistentBuffer: a.boolean(a.take("use_persistent_buffer", "using_persistent_buffers"), false),
		FusedSemaphores:     a.boolean(a.take("fused_semaphores"), false), Credits: a.boolean(a.take("credits"), false),
		Scalar: float32(a.number(a.take("scalar", "fused_ternary_scalar")))}}
}

func deviceToHost(a *args) Action {
	out := DeviceToHost{}
	n := a.required("mesh_dims")
	dims := a.elements(n, "dims")
	if n != nil && len(dims) != 2 {
		a.fail(n, "%s: is a dim for each of the two mesh axes; null: not along that one", n)
		dims = nil
	}
	for i, e := range dims {
		if e.kind != null {
			dim := a.anyInt(e)
			out.Dims[i] = &dim
		}
	}
	out.Persistent = a.boolean(a.take("use_persistent_buffer"), true)
	return out
}

// ownShape is a shape that is an argument, not an input of zeros.
func (a *args) ownShape(names ...string) messages.Shape {
	a.own(names[0])
	return a.callShape(a.required(names...))
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

func hyper(h axis.Hyper) map[string]int {
	return map[string]int{"chunks_per_sync": h.ChunksPerSync, "num_workers_per_link": h.NumWorkersPerLink, "num_buffers_per_channel": h.NumBuffersPerChannel}
}

func gatherHyper(a *args) Action {
	s := a.ownShape("shape")
	if s.Rank() < 3 {
		a.refuse("shape", s, "has rank 3 at least: the rows are dim 2")
		return Answer{}
	}
	return Answer{Value: hyper(axis.AllGatherHyper(s))}
}

func scatterHyper(a *args) Action {
	a.ownShape("shape")
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
		in, scalar := a.take("in"), a.take("scalar")
		if scalar == nil && a.take("b") == nil && (in == nil || len(in.list) < 2 || in.list[1].kind == null) {
			a.fail(a.n, "%s needs b, or a \"scalar\"", a.what)
		}
		return Submit{Op: messages.Binary{Fn: fn, Scalar: float32(a.number(scalar))}}
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

func reshape(a *args) Action { return Submit{Op: messages.Reshape{Shape: a.ownShape("shape")}} }

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
	at := a.device(n)
	return Read{At: &at}
}

func write(a *args) Action {
	w := Write{Spec: a.spec(a.own("shape"))}
	a.own("dtype")
	a.own("layout")
	given := w.Spec // the fill of a tensor that exists is checked against that tensor
	w.Fill = a.fill(a.required("fill"), &w.Spec, a.file.Mesh)
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
