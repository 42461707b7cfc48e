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
	OpNeighborPad
	OpNeighborPadHalo
	OpHaloScatter
	OpSliceReshard
	OpPointToPoint
	OpExpRingJointSDPA
	OpStridedAllGatherMatmul
	OpMatmulStridedReduceScatter
	OpConv3D
	OpNPConv3D
	OpGroupNorm
	OpGroupNormStats
	OpGetSemaphores
	OpGetBuffers
	OpWrite
	opEnd
)

var opNames = [opEnd]string{"", "all_gather", "reduce_scatter", "matmul", "layer_norm", "rms_norm", "fused_distributed_norm", "rope",
	"sdpa", "ring_joint_sdpa", "binary", "addcmul", "activation", "slice", "concat", "reshape", "permute", "convert",
	"neighbor_pad", "neighbor_pad_halo", "halo_scatter", "slice_reshard", "point_to_point", "exp_ring_joint_sdpa",
	"strided_all_gather_minimal_matmul", "matmul_strided_reduce_scatter", "conv3d", "np_conv3d", "group_norm", "group_norm_stats",
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

// PaddingMode says what lies beyond the outer border of the mesh.
type PaddingMode uint8

// Zeros, or copies of the outermost element.
const (
	PadZeros PaddingMode = iota
	PadReplicate
)

var paddingNames = [...]string{"zeros", "replicate"}

func (m PaddingMode) String() string { return nameOf(paddingNames[:], int(m), "padding_mode") }

// ParsePaddingMode reads "zeros" or "replicate".
func ParsePaddingMode(s string) (PaddingMode, error) {
	return parseName[PaddingMode](paddingNames[:], s, "padding_mode")
}

// AllGather concatenates the shards of each line of the mesh axis along Dim, on every device of the line.
// In: the shard, any rank up to 4. Out: shape[Dim] times the length of the axis.
type AllGather struct {
	Dim                 int // may count from the end
	MeshAxis            int // 0, 1 or NoAxis
	UseHyperparams      bool
	UsePersistentBuffer bool
	// FSDP draws from the pools of weight gathers (fsdp) instead of those of activations, so that neither waits for the other's banks.
	FSDP bool
	// Capacity is the length of the gathered dim of the persistent buffer, 0 = that of the result: one buffer then serves every smaller shape.
	Capacity int
}

// ReduceScatter sums over each line of the mesh axis and leaves slice i along Dim with the device at position i.
// In: any rank up to 4, Dim divisible by the length of the axis. Out: shape[Dim] divided by it.
type ReduceScatter struct {
	Dim                 int
	MeshAxis            int
	UsePersistentBuffer bool
	// DriverHyperparams leaves chunks, workers and buffers to the driver instead of giving the reference's (2, 2, 2).
	DriverHyperparams bool
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

// NeighborPad pads one or two dims of a row-major tensor with what the neighbours along mesh axes hold there. Dims[0] is exchanged
// first, Dims[1] over the padded rows, so that corners are right. It always runs along lines.
// In: [.., any rank from 2 to 5]. Out: dim Dims[i] longer by PadLeft[i] + PadRight[i], and dim Dims[0]-1 by TFrontPad.
type NeighborPad struct {
	Dims, Axes          Index
	PadLeft, PadRight   Index
	NumLinks            Index // per dim; empty = 1 each
	Mode                PaddingMode
	UsePersistentBuffer bool
	LogicalH            int // rows of the whole Dims[0] at or past it count as zeros; 0 = all rows are real
	TFrontPad           int // frames of zeros in front of dim Dims[0]-1
}

// NeighborPadHalo exchanges the halo of a row-major [.., H, W, C] tensor into a compact buffer [sticks, C]: H-top, H-bottom, W-left, W-right.
// In: the tensor; padded output (optional) that gets the interior beside the exchange. Out: the compact buffer.
type NeighborPadHalo struct {
	Dims, Axes           Index // the dim of H, and of W where it is padded too
	PadLeft, PadRight    Index
	NumLinks             Index
	Mode                 PaddingMode
	InputPadH, InputPadW int // the input's own padding, which is not part of its interior
	// IntoPadded draws a persistent padded buffer (the np pool) as the padded output.
	IntoPadded bool
}

// HaloScatter writes a compact halo round an interior. BorderOnly: the tensor is padded already and only its border is written, in its memory;
// otherwise it is the bare interior and the result is a new padded tensor.
// In: compact, tensor.
type HaloScatter struct {
	PadH, PadW Index // left and right pad; PadW empty = none
	BorderOnly bool
}

// SliceReshard cuts rows [Offset, Offset+Size) of dim 0 of the whole tensor, which is sharded along dim 0 over MeshAxis, and shares them out evenly
// again; rows past the end are zeros. In: row major, rank 1 to 5. Out: Size / length of the axis rows.
type SliceReshard struct {
	Dim      int // 0
	Offset   int // output_dim_offset
	Size     int // output_dim_shape, a multiple of the length of the axis
	MeshAxis int
}

// MaxPairs is the most pairs of one PointToPoint.
const MaxPairs = 128

// Pair is a sender and a receiver.
type Pair struct{ From, To Coord }

// PointToPoint sends shards from device to device; every device that receives nothing keeps its own. In: any tensor. Out: the same shape.
// NewPointToPoint makes one.
type PointToPoint struct {
	count uint8
	pairs [MaxPairs][4]uint8
}

// NewPointToPoint makes the operation of the given pairs, at most MaxPairs.
func NewPointToPoint(pairs ...Pair) (PointToPoint, error) {
	var p PointToPoint
	if len(pairs) == 0 || len(pairs) > MaxPairs {
		return p, Invalid("point_to_point", "pairs", len(pairs), "are 1 to %d", MaxPairs)
	}
	for i, pair := range pairs {
		for _, c := range []Coord{pair.From, pair.To} {
			if c.Row < 0 || c.Col < 0 || c.Row > 127 || c.Col > 127 {
				return p, Invalid("point_to_point", "device", c, "lies on a mesh")
			}
		}
		p.pairs[i] = [4]uint8{uint8(pair.From.Row), uint8(pair.From.Col), uint8(pair.To.Row), uint8(pair.To.Col)}
	}
	p.count = uint8(len(pairs))
	return p, nil
}

// Pairs returns the pairs.
func (p PointToPoint) Pairs() []Pair {
	out := make([]Pair, p.count)
	for i := range out {
		x := p.pairs[i]
		out[i] = Pair{Coord{int(x[0]), int(x[1])}, Coord{int(x[2]), int(x[3])}}
	}
	return out
}

// ExpRingJointSDPA is RingJointSDPA with one semaphore per link. Same tensors, same result.
type ExpRingJointSDPA struct {
	MeshAxis int
	LogicalN int
	Scale    float32
}

// StridedAllGatherMatmul gathers the input along its last dim over MeshAxis while it multiplies: act(gathered x weight + bias).
// In: input [.., M, K/n], weight [K, N], bias (optional). Out: [.., M, N].
type StridedAllGatherMatmul struct {
	MeshAxis             int
	NumWorkersPerLink    int // 0 = 2
	NumBuffersPerChannel int // 0 = the driver's choice
	Activation           ActivationKind
}

// MatmulStridedReduceScatter multiplies and scatters the sum over MeshAxis along the last dim while the products come. Rings only.
// In: input [.., M, K], weight [K, N], bias [.., 1, N/n] (optional; added once), residual and gate [.., M, N/n] (both or none).
// Out: residual + Scalar * (sum + bias) * gate, [.., M, N/n].
type MatmulStridedReduceScatter struct {
	MeshAxis            int
	UsePersistentBuffer bool
	FusedSemaphores     bool    // draws rs_fused instead of rs
	Credits             bool    // a second set of counters for the way back
	Scalar              float32 // 0 = 1
}

// Conv3D is a convolution of a row-major [N, T, H, W, C] tensor.
// In: input, weight [kT*kH*kW*C/Groups, O] (taps outermost), bias [1, O] (optional), compact halo (optional: H and W padding comes from it).
type Conv3D struct {
	Kernel, Stride, Padding, Dilation [3]int // T, H, W; zero Stride and Dilation = 1
	Groups                            int    // 0 = 1
	Mode                              PaddingMode
}

// NPConv3D is NeighborPadHalo and Conv3D in one: H and W are padded by Padding[1] and Padding[2] with what the neighbours hold.
// In: input [N, T, H, W, C], weight, bias (optional).
type NPConv3D struct {
	Axes                              [2]int // of H and of W
	NumLinks                          int    // 0 = the mesh's
	Kernel, Stride, Padding, Dilation [3]int
	Groups                            int
	Mode                              PaddingMode
}

// GroupNorm normalises a row-major [N, .., C] tensor over all but dim 0, each group of channels by itself, then activates. The statistics are
// those of the shard, or with stats those of all its parts: GroupNormStats of each device, gathered along dim 0. Who wants statistics
// per frame puts the frames into dim 0.
// In: input, weight and bias [.., C] (optional), stats [parts, 1, N, 3*Groups] (optional).
type GroupNorm struct {
	Groups     int
	Epsilon    float32
	Activation ActivationKind
}

// GroupNormStats is what each device knows of a sharded GroupNorm: count, mean and sum of squared distances per group, in float32. The logical
// extents are those of the whole dims H and W of [N, .., H, W, C], sharded on AxisH and AxisW; what lies past them does not count.
// In: input. Out: [1, 1, N, 3*Groups].
type GroupNormStats struct {
	Groups   int
	LogicalH int // 0: all rows count
	AxisH    int
	LogicalW int // 0: all columns count
	AxisW    int
}

// FusedDistributedNorm is Norm over a width that is sharded on MeshAxis, with the statistics gathered; with NumHeads > 1 the result
// is split into heads and, with tables given, rotated.
// In: input [B,1,N,W], weight (optional), bias (optional), rope cos and sin (optional, both or none).
// Out: [B,1,N,W], or [B,H,N,W/H].
type FusedDistributedNorm struct {
	RMS      bool
	Epsilon  float32
	MeshAxis int    // NoAxis or an axis of length 1: nothing is gathered
	NumHeads int    // per device; 0 = 1
	Key      string // of the stats buffer; "" = by kind, rows and axis
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
	Workers  int // strided_ag_mm: num_workers_per_link
}

// GetBuffers turns a buffer pool and lends its bank. No tensors in; out: the parts of the bank.
type GetBuffers struct {
	Key BufferKey
	// Unfenced makes new buffers without the fences around it: the caller promises a fence of his own before the first launch that uses
	// one, and a launch before it is refused (device_synchronize=False).
	Unfenced bool
}

// The Kind methods name each operation.

func (AllGather) Kind() OpKind                  { return OpAllGather }
func (ReduceScatter) Kind() OpKind              { return OpReduceScatter }
func (Matmul) Kind() OpKind                     { return OpMatmul }
func (FusedDistributedNorm) Kind() OpKind       { return OpFusedDistributedNorm }
func (Rope) Kind() OpKind                       { return OpRope }
func (SDPA) Kind() OpKind                       { return OpSDPA }
func (RingJointSDPA) Kind() OpKind              { return OpRingJointSDPA }
func (Binary) Kind() OpKind                     { return OpBinary }
func (Addcmul) Kind() OpKind                    { return OpAddcmul }
func (Activation) Kind() OpKind                 { return OpActivation }
func (Slice) Kind() OpKind                      { return OpSlice }
func (Concat) Kind() OpKind                     { return OpConcat }
func (Reshape) Kind() OpKind                    { return OpReshape }
func (Permute) Kind() OpKind                    { return OpPermute }
func (Convert) Kind() OpKind                    { return OpConvert }
func (NeighborPad) Kind() OpKind                { return OpNeighborPad }
func (NeighborPadHalo) Kind() OpKind            { return OpNeighborPadHalo }
func (HaloScatter) Kind() OpKind                { return OpHaloScatter }
func (SliceReshard) Kind() OpKind               { return OpSliceReshard }
func (PointToPoint) Kind() OpKind               { return OpPointToPoint }
func (ExpRingJointSDPA) Kind() OpKind           { return OpExpRingJointSDPA }
func (StridedAllGatherMatmul) Kind() OpKind     { return OpStridedAllGatherMatmul }
func (MatmulStridedReduceScatter) Kind() OpKind { return OpMatmulStridedReduceScatter }
func (Conv3D) Kind() OpKind                     { return OpConv3D }
func (NPConv3D) Kind() OpKind                   { return OpNPConv3D }
func (GroupNorm) Kind() OpKind                  { return OpGroupNorm }
func (GroupNormStats) Kind() OpKind             { return OpGroupNormStats }
func (GetSemaphores) Kind() OpKind              { return OpGetSemaphores }
func (GetBuffers) Kind() OpKind                 { return OpGetBuffers }

// Kind is OpLayerNorm or OpRMSNorm.
func (n Norm) Kind() OpKind {
	if n.RMS {
		return OpRMSNorm
	}
	return OpLayerNorm
}
