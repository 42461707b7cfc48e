package axis

import (
	"github.com/meshrun/meshrun/messages"
)

// Plan is one operation worked out: what the driver is told, which resources it takes and what it returns.
type Plan struct {
	Kind messages.OpKind
	Op   messages.Operation

	// Alias: nothing is launched; result 0 names the memory of input 0, by the shape of Outputs[0].
	Alias bool

	// Views are the shapes in which the driver sees the inputs; rank 0 = as they are.
	Views [messages.MaxInputs]messages.Shape

	Outputs    [messages.MaxOutputs]Output
	NumOutputs int

	// Semaphores in the order in which they are drawn.
	Semaphores    [2]SemaphoreNeed
	NumSemaphores int

	Buffers    [2]BufferNeed
	NumBuffers int

	// What the launch tells the driver, resolved.
	Dim      int
	Axis     int
	NumLinks int
	Topology messages.Topology
	Hyper    Hyper

	// Joins says which devices cannot finish the launch before all of them have begun it.
	Joins Scope
	// StartBarrier: the launch begins with a barrier over each line of Axis, so that only the barrier's own bank needs an
	// earlier join.
	StartBarrier bool
}

// Output is one result.
type Output struct {
	Driver messages.Spec  // as the driver makes it
	Shape  messages.Shape // as the caller sees it
	Buffer int            // index in Buffers of the bank that holds it, or Fresh
	Part   int            // which buffer of the bank
}

// Fresh marks an output that the driver allocates for this call.
const Fresh = -1

// SemaphoreNeed is one bank of a semaphore pool.
type SemaphoreNeed struct {
	Pool messages.Pool
	Axis int
}

// BufferNeed is one bank of a buffer pool, with what it holds should it have to be made.
type BufferNeed struct {
	Key   messages.BufferKey
	Parts []messages.Part
}

// Scope says which sets of devices a launch joins.
type Scope uint8

// The scopes, from none to each whole line of the plan's axis.
const (
	JoinsNobody Scope = iota
	JoinsLine
)

func (p *Plan) need(pool messages.Pool, axis int) {
	p.Semaphores[p.NumSemaphores] = SemaphoreNeed{Pool: pool, Axis: axis}
	p.NumSemaphores++
}

func (p *Plan) buffer(key messages.BufferKey, parts []messages.Part) {
	p.Buffers[p.NumBuffers] = BufferNeed{Key: key, Parts: parts}
	p.NumBuffers++
}

func (p *Plan) output(driver messages.Spec, shape messages.Shape, buffer, part int) {
	p.Outputs[p.NumOutputs] = Output{Driver: driver, Shape: shape, Buffer: buffer, Part: part}
	p.NumOutputs++
}

// fresh is an output of its own memory that the caller sees as the driver makes it.
func (p *Plan) fresh(s messages.Spec) { p.output(s, s.Shape, Fresh, 0) }

// alias hands input 0 through under another shape.
func (p *Plan) alias(in messages.Spec, shape messages.Shape) {
	p.Alias = true
	in.Shape = shape
	p.fresh(in)
}

// rule works out one kind of operation. `in` has an entry per slot of the operation; an absent optional tensor is a zero Spec.
type rule struct {
	slots    []slot
	variadic bool // the last slot may repeat
	plan     func(m Mesh, op messages.Operation, in []messages.Spec, p *Plan) error
}

// slot is one input of an operation.
type slot struct {
	name     string
	optional bool
}

func required(names ...string) []slot {
	s := make([]slot, len(names))
	for i, n := range names {
		s[i] = slot{name: n}
	}
	return s
}

func optional(names ...string) []slot {
	s := required(names...)
	for i := range s {
		s[i].optional = true
	}
	return s
}

func join(a ...[]slot) []slot {
	var s []slot
	for _, x := range a {
		s = append(s, x...)
	}
	return s
}

// rules is the table of operations. An operation that is not in it does not exist.
var rules map[messages.OpKind]rule

func init() {
	rules = map[messages.OpKind]rule{
		messages.OpAllGather:            {slots: required("input"), plan: planAllGather},
		messages.OpReduceScatter:        {slots: required("input"), plan: planReduceScatter},
		messages.OpMatmul:               {slots: join(required("input", "weight"), optional("bias")), plan: planMatmul},
		messages.OpLayerNorm:            {slots: join(required("input"), optional("weight", "bias")), plan: planNorm},
		messages.OpRMSNorm:              {slots: join(required("input"), optional("weight", "bias")), plan: planNorm},
		messages.OpFusedDistributedNorm: {slots: join(required("input"), optional("weight", "bias", "rope_cos", "rope_sin")), plan: planFusedNorm},
		messages.OpRope:                 {slots: required("input", "cos", "sin"), plan: planRope},
		messages.OpSDPA:                 {slots: required("q", "k", "v"), plan: planSDPA},
		messages.OpRingJointSDPA:        {slots: join(required("q", "k", "v"), optional("joint_q", "joint_k", "joint_v")), plan: planRingSDPA},
		messages.OpBinary:               {slots: join(required("a"), optional("b")), plan: planBinary},
		messages.OpAddcmul:              {slots: required("input", "x", "y"), plan: planAddcmul},
		messages.OpActivation:           {slots: required("input"), plan: planActivation},
		messages.OpSlice:                {slots: required("input"), plan: planSlice},
		messages.OpConcat:               {slots: required("input"), variadic: true, plan: planConcat},
		messages.OpReshape:              {slots: required("input"), plan: planReshape},
		messages.OpPermute:              {slots: required("input"), plan: planPermute},
		messages.OpConvert:              {slots: required("input"), plan: planConvert},
		messages.OpGetSemaphores:        {plan: planGetSemaphores},
		messages.OpGetBuffers:           {plan: planGetBuffers},
	}
}

// Make works an operation out for inputs of the given specs, or says which rule it breaks. It changes nothing.
func Make(m Mesh, op messages.Operation, in []messages.Spec) (*Plan, error) {
	kind := op.Kind()
	r, ok := rules[kind]
	if !ok {
		return nil, messages.Invalid(kind.String(), "op", kind, "is an operation of this runtime")
	}
	name := OpName(op)
	if len(in) > len(r.slots) && !r.variadic || len(in) > messages.MaxInputs {
		return nil, messages.Invalid(name, "inputs", len(in), "takes at most %d", min(len(r.slots), messages.MaxInputs))
	}
	var padded [messages.MaxInputs]messages.Spec
	copy(padded[:], in)
	n := max(len(in), len(r.slots))
	for i, s := range r.slots {
		if padded[i].DType == messages.DTypeUnset && !s.optional {
			return nil, messages.Invalid(name, s.name, "absent", "is a tensor")
		}
	}
	p := &Plan{Kind: kind, Op: op, Axis: messages.NoAxis}
	if err := r.plan(m, op, padded[:n], p); err != nil {
		if inv, ok := err.(*messages.InvalidError); ok && inv.Op == "" {
			inv.Op = name
		}
		return nil, err
	}
	return p, nil
}

// OpName is the name under which a user knows the operation: that of the function for Binary, else that of the kind.
func OpName(op messages.Operation) string {
	if b, ok := op.(messages.Binary); ok {
		return b.Fn.String()
	}
	return op.Kind().String()
}

func present(s messages.Spec) bool { return s.DType != messages.DTypeUnset }
