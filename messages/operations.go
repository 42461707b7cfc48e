package messages

// OpKind names an operation of the runtime. The names are those of tt-metal.
type OpKind uint8

// The operations that launch, then those that only move or lend resources.
const (
	OpUnset OpKind = iota
	OpAllGather
	OpReduceScatter
	OpMatmul
	OpLayerNorm
	OpRMSNorm
	OpFusedDistributedNorm
	OpRope
	OpSDPA
	OpRingJointSDPA
	OpBinary
	OpAddcmul
	OpActivation
	OpSlice
	OpConcat
	OpReshape
	OpPermute
	OpConvert
	OpGetSemaphores
	OpGetBuffers
	OpWrite
	opEnd
)

var opNames = [opEnd]string{"", "all_gather", "reduce_scatter", "matmul", "layer_norm", "rms_norm", "fused_distributed_norm", "rope",
	"sdpa", "ring_joint_sdpa", "binary", "addcmul", "activation", "slice", "concat", "reshape", "permute", "convert",
	"get_semaphores", "get_buffers", "write"}

func (k OpKind) String() string { return nameOf(opNames[:], int(k), "op") }

// MaxInputs and MaxOutputs bound the tensors of one operation.
const (
	MaxInputs  = 8
	MaxOutputs = 2
)

// Operation is what a caller asks for, without its tensors: those stand beside it, in the order that each type documents. An
// absent optional tensor is nil there. Operations are comparable values.
type Operation interface {
	Kind() OpKind
}

// NoAxis as a mesh axis means "no collective": the input is handed through.
const NoAxis = -1

// AllGather concatenates the shards of each line of the mesh axis along Dim, on every device of the line.
// In: the shard, any rank up to 4. Out: shape[Dim] times the length of the axis.
type AllGather struct {
	Dim                 int // may count from the end
	MeshAxis            int // 0, 1 or NoAxis
	UseHyperparams      bool
	UsePersistentBuffer bool
}

// ReduceScatter sums over each line of the mesh axis and leaves slice i along Dim with the device at position i.
// In: any rank up to 4, Dim divisible by the length of the axis. Out: shape[Dim] divided by it.
type ReduceScatter struct {
	Dim                 int
	MeshAxis            int
	UsePersistentBuffer bool
}

// ActivationKind is the function of an activation.
type ActivationKind uint8

// GELU is the exact form (erf), GELUTanh the tanh approximation.
const (
	NoActivation ActivationKind = iota
	GELU
	GELUTanh
	SiLU
	ReLU
	Sigmoid
	Tanh
)

var activationNames = [...]string{"none", "gelu", "gelu_tanh", "silu", "relu", "sigmoid", "tanh"}

func (a ActivationKind) String() string { return nameOf(activationNames[:], int(a), "activation") }

// ParseActivation reads the name of an activation, such as "gelu_tanh".
func ParseActivation(s string) (ActivationKind, error) {
	return parseName[ActivationKind](activationNames[:], s, "activation")
}

// Matmul is input [..., M, K] x weight [..., K, N] + bias [..., 1, N], then the activation. Also called linear.
// In: input, weight, bias (optional).
type Matmul struct {
	Activation ActivationKind
	TransposeB bool  // the weight is [..., N, K]
	DType      DType // of the result; unset: the input's
}

// Norm normalises over the last dim. In: input, weight (optional), bias (optional, layer norm only).
type Norm struct {
	RMS     bool // RMS norm; otherwise layer norm
	Epsilon float32
}

// FusedDistributedNorm is Norm over a width that is sharded on MeshAxis, with the statistics gathered; with NumHeads > 1 the result
// is split into heads and, with tables given, rotated.
// In: input [B,1,N,W], weight (optional), bias (optional), rope cos and sin (optional, both or none).
// Out: [B,1,N,W], or [B,H,N,W/H].
type FusedDistributedNorm struct {
	RMS      bool
	Epsilon  float32
	MeshAxis int // NoAxis or an axis of length 1: nothing is gathered
	NumHeads int // per device; 0 = 1
}

// Rope rotates the last dim by tables. In: x [B,H,N,D], cos and sin [1,1,N,D] or [1,H,N,D].
type Rope struct {
	Half bool // pairs are (i, i+D/2); otherwise (2i, 2i+1)
}

// SDPA is scaled dot-product attention. In: q [B,H,Sq,D], k, v [B,H,Sk,D].
type SDPA struct {
	Scale    float32 // 0: 1/sqrt(D)
	LogicalN int     // keys at or past it are masked; 0: all count
}

// RingJointSDPA is attention over a sequence that is sharded along dim 2 on MeshAxis, with an optional replicated joint part.
// In: q, k, v [B,H,N,D]; joint q, k, v [B,H,J,D] (all three or none). Out: [B,H,N,D], and [B,H,J,D] where joint parts are given.
type RingJointSDPA struct {
	MeshAxis int
	LogicalN int // valid keys of the whole sequence; 0: all
	Scale    float32
}

// BinaryKind is the function of Binary.
type BinaryKind uint8

// The elementwise operations of two operands.
const (
	Add BinaryKind = iota + 1
	Sub
	Mul
)

var binaryNames = [...]string{"", "add", "sub", "mul"}

func (b BinaryKind) String() string { return nameOf(binaryNames[:], int(b), "binary") }

// Binary is a (op) b, with dims of 1 broadcast; without b it is a (op) Scalar. In: a, b (optional).
type Binary struct {
	Fn     BinaryKind
	Scalar float32
}

// Addcmul is input + x*y, x and y broadcast. In: input, x, y.
type Addcmul struct{}

// Activation applies a function elementwise. In: input.
type Activation struct {
	Fn ActivationKind
}

// Index is a short list of numbers, one per dim.
type Index struct {
	n uint8
	v [MaxRank]int32
}

// IndexOf makes an Index of at most MaxRank numbers.
func IndexOf(v ...int) (Index, error) {
	var x Index
	if len(v) > MaxRank {
		return x, Invalid("", "index", v, "has at most %d numbers", MaxRank)
	}
	for i, n := range v {
		if int64(n) > 1<<31-1 || int64(n) < -1<<31 {
			return x, Invalid("", "index", v, "holds 32-bit numbers")
		}
		x.v[i] = int32(n)
	}
	x.n = uint8(len(v))
	return x, nil
}

// Len is how many numbers there are.
func (x Index) Len() int { return int(x.n) }

// At is number i.
func (x Index) At(i int) int { return int(x.v[i]) }

// Ints returns the numbers as a new slice.
func (x Index) Ints() []int {
	v := make([]int, x.n)
	for i := range v {
		v[i] = int(x.v[i])
	}
	return v
}

// Slice cuts [Begin, End) of every dim. In: input.
type Slice struct {
	Begin, End Index
}

// Concat joins tensors along Dim. In: 1 to 8 tensors.
type Concat struct {
	Dim int
}

// Reshape names the same elements by another shape. In: input.
type Reshape struct {
	Shape Shape
}

// Permute reorders dims: dim i of the result is dim Order[i] of the input. In: input.
type Permute struct {
	Order Index
}

// Convert changes dtype or layout; unset fields stay. In: input.
type Convert struct {
	DType  DType
	Layout Layout
}

// GetSemaphores turns a semaphore pool and lends its bank. No tensors.
type GetSemaphores struct {
	Pool     Pool
	MeshAxis int
}

// GetBuffers turns a buffer pool and lends its bank. No tensors in; out: the parts of the bank.
type GetBuffers struct {
	Key BufferKey
}

// The Kind methods name each operation.

func (AllGather) Kind() OpKind            { return OpAllGather }
func (ReduceScatter) Kind() OpKind        { return OpReduceScatter }
func (Matmul) Kind() OpKind               { return OpMatmul }
func (FusedDistributedNorm) Kind() OpKind { return OpFusedDistributedNorm }
func (Rope) Kind() OpKind                 { return OpRope }
func (SDPA) Kind() OpKind                 { return OpSDPA }
func (RingJointSDPA) Kind() OpKind        { return OpRingJointSDPA }
func (Binary) Kind() OpKind               { return OpBinary }
func (Addcmul) Kind() OpKind              { return OpAddcmul }
func (Activation) Kind() OpKind           { return OpActivation }
func (Slice) Kind() OpKind                { return OpSlice }
func (Concat) Kind() OpKind               { return OpConcat }
func (Reshape) Kind() OpKind              { return OpReshape }
func (Permute) Kind() OpKind              { return OpPermute }
func (Convert) Kind() OpKind              { return OpConvert }
func (GetSemaphores) Kind() OpKind        { return OpGetSemaphores }
func (GetBuffers) Kind() OpKind           { return OpGetBuffers }

// Kind is OpLayerNorm or OpRMSNorm.
func (n Norm) Kind() OpKind {
	if n.RMS {
		return OpRMSNorm
	}
	return OpLayerNorm
}
