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
	// InPlace: the launch writes into the memory of its last input, and result 0 is another name of it.
	InPlace bool

	// Views are the shapes in which the driver sees the inputs; rank 0 = as they are.
	Views [messages.MaxInputs]messages.Shape

	Outputs    [messages.MaxOutputs]Output
	NumOutputs int

	// Semaphores in the order in which they are drawn.
	Semaphores    [MaxSemaphoreNeeds]SemaphoreNeed
	NumSemaphores int

	Buffers    [MaxBufferNeeds]BufferNeed
	NumBuffers int

	// What the launch tells the driver, resolved.
	Dim      int
	Axis     int
	NumLinks int
	Topology messages.Topology
	Hyper    Hyper

	// Halo is what a halo exchange is told, resolved.
	Halo Halo

	// Joins says, per mesh axis, which devices cannot finish the launch before all of them have begun it.
	Joins [2]Scope
}

// Bounds of what one operation draws.
const (
	MaxSemaphoreNeeds = 4
	MaxBufferNeeds    = 3
)

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
	Pool    messages.Pool
	Axis    int
	Workers int // strided_ag_mm: which set of banks
	Reuse   Reuse
}

// BufferNeed is one bank of a buffer pool, with what it holds should it have to be made.
type BufferNeed struct {
	Key   messages.BufferKey
	Parts []messages.Part
	Axis  int // along which peers write it
	Reuse Reuse
}

// Reuse is what must have happened between a bank's last user and this launch (rule 4).
type Reuse uint8

const (
	// Guarded: the launch's own start barrier or entry handshake answers for it; or peers do not write it.
	Guarded Reuse = iota
	// AfterLineJoin: a launch between has joined each line of the axis.
	AfterLineJoin
	// AfterNeighbourJoin: a launch between has joined each device with the next one along the axis.
	AfterNeighbourJoin
	// AfterRetirement: the last user has retired on every device. For pools of one bank.
	AfterRetirement
)

// Scope says which sets of devices a launch joins.
type Scope uint8

// The scopes, from none to whole lines.
const (
	JoinsNobody Scope = iota
	JoinsNeighbours
	JoinsLine
)

func (p *Plan) need(pool messages.Pool, axis int, reuse Reuse) {
	p.Semaphores[p.NumSemaphores] = SemaphoreNeed{Pool: pool, Axis: axis, Reuse: reuse}
	p.NumSemaphores++
}

func (p *Plan) buffer(key messages.BufferKey, parts []messages.Part, axis int, reuse Reuse) {
	p.Buffers[p.NumBuffers] = BufferNeed{Key: key, Parts: parts, Axis: axis, Reuse: reuse}
	p.NumBuffers++
}

func (p *Plan) output(driver messages.Spec, shape messages.Shape, buffer, part int) {
	p.Outputs[p.NumOutputs] = Output{Driver: driver, Shape: shape, Buffer: buffer, Part: part}
	p.NumOutputs++
}

// fresh is an output of its own memory, in DRAM, that the caller sees as the driver makes it.
func (p *Plan) fresh(s messages.Spec) {
	s.Memory = messages.DRAM
	p.output(s, s.Shape, Fresh, 0)
}

// alias hands input 0 through under another shape.
func (p *Plan) alias(in messages.Spec, shape messages.Shape) {
	p.Alias = true
	in.Shape = shape
	p.output(in, shape, Fresh, 0)
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
		messages.OpAllGather:                  {slots: required("input"), plan: planAllGather},
		messages.OpReduceScatter:              {slots: required("input"), plan: planReduceScatter},
		messages.OpMatmul:                     {slots: join(required("input", "weight"), optional("bias")), plan: planMatmul},
		messages.OpLayerNorm:                  {slots: join(required("input"), optional("weight", "bias")), plan: planNorm},
		messages.OpRMSNorm:                    {slots: join(required("input"), optional("weight", "bias")), plan: planNorm},
		messages.OpFusedDistributedNorm:       {slots: join(required("input"), optional("weight", "bias", "rope_cos", "rope_sin")), plan: planFusedNorm},
		messages.OpRope:                       {slots: required("input", "cos", "sin"), plan: planRope},
		messages.OpSDPA:                       {slots: required("q", "k", "v"), plan: planSDPA},
		messages.OpRingJointSDPA:              {slots: join(required("q", "k", "v"), optional("joint_q", "joint_k", "joint_v")), plan: planRingSDPA},
		messages.OpBinary:                     {slots: join(required("a"), optional("b")), plan: planBinary},
		messages.OpAddcmul:                    {slots: required("input", "x", "y"), plan: planAddcmul},
		messages.OpActivation:                 {slots: required("input"), plan: planActivation},
		messages.OpSlice:                      {slots: required("input"), plan: planSlice},
		messages.OpConcat:                     {slots: required("input"), variadic: true, plan: planConcat},
		messages.OpReshape:                    {slots: required("input"), plan: planReshape},
		messages.OpPermute:                    {slots: required("input"), plan: planPermute},
		messages.OpConvert:                    {slots: required("input"), plan: planConvert},
		messages.OpNeighborPad:                {slots: required("input"), plan: planNeighborPad},
		messages.OpNeighborPadHalo:            {slots: join(required("input"), optional("padded_output")), plan: planNeighborPadHalo},
		messages.OpHaloScatter:                {slots: required("compact", "tensor"), plan: planHaloScatter},
		messages.OpSliceReshard:               {slots: required("input"), plan: planSliceReshard},
		messages.OpPointToPoint:               {slots: required("input"), plan: planPointToPoint},
		messages.OpExpRingJointSDPA:           {slots: join(required("q", "k", "v"), optional("joint_q", "joint_k", "joint_v")), plan: planRingSDPA},
		messages.OpStridedAllGatherMatmul:     {slots: join(required("input", "weight"), optional("bias")), plan: planStridedAllGatherMatmul},
		messages.OpMatmulStridedReduceScatter: {slots: join(required("input", "weight"), optional("bias", "residual", "gate")), plan: planMatmulStridedReduceScatter},
		messages.OpConv3D:                     {slots: join(required("input", "weight"), optional("bias", "halo")), plan: planConv3D},
		messages.OpNPConv3D:                   {slots: join(required("input", "weight"), optional("bias")), plan: planNPConv3D},
		messages.OpGroupNorm:                  {slots: join(required("input"), optional("weight", "bias", "stats")), plan: planGroupNorm},
		messages.OpGroupNormStats:             {slots: required("input"), plan: planGroupNormStats},
		messages.OpGetSemaphores:              {plan: planGetSemaphores},
		messages.OpGetBuffers:                 {plan: planGetBuffers},
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
	err := r.plan(m, op, padded[:n], p)
	if err == nil {
		err = p.checkShapes()
	}
	for i := 0; err == nil && i < p.NumOutputs; i++ {
		err = checkStorage("layout", p.Outputs[i].Driver)
	}
	if err != nil {
		if inv, ok := err.(*messages.InvalidError); ok && inv.Op == "" {
			inv.Op = name
		}
		return nil, err
	}
	return p, nil
}

// checkShapes refuses what no shape can hold, such as a gathered dim of 2^31.
func (p *Plan) checkShapes() error {
	for _, o := range p.Outputs[:p.NumOutputs] {
		if !o.Shape.Valid() || !o.Driver.Shape.Valid() {
			return tooLong("result", o.Driver.Shape)
		}
	}
	for _, b := range p.Buffers[:p.NumBuffers] {
		if err := checkParts(b.Parts); err != nil {
			return err
		}
	}
	return nil
}

func checkParts(parts []messages.Part) error {
	for _, part := range parts {
		if !part.Spec.Shape.Valid() {
			return tooLong("buffer", part.Spec.Shape)
		}
	}
	return nil
}

func tooLong(field string, s messages.Shape) error {
	return fail(field, s, "has dims of at least 1 and less than 2^31; one that is not shows as 0")
}

// OpName is the name under which a user knows the operation: that of the function for Binary, else that of the kind.
func OpName(op messages.Operation) string {
	if b, ok := op.(messages.Binary); ok {
		return b.Fn.String()
	}
	return op.Kind().String()
}

func present(s messages.Spec) bool { return s.DType != messages.DTypeUnset }
