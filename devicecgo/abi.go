package devicecgo

/*
#include "meshrun_driver.h"
*/
import "C"

import (
	"unsafe"

	"github.com/meshrun/meshrun/messages"
)

// Handle names an object of the driver: slot in the low half, generation in the high half, 0 = none.
type Handle uint64

// The operations of the ABI, MR_OP_... of the header.
const (
	OpAllGather            = C.MR_OP_ALL_GATHER
	OpReduceScatter        = C.MR_OP_REDUCE_SCATTER
	OpMatmul               = C.MR_OP_MATMUL
	OpNorm                 = C.MR_OP_NORM
	OpFusedDistributedNorm = C.MR_OP_FUSED_DISTRIBUTED_NORM
	OpRope                 = C.MR_OP_ROPE
	OpSDPA                 = C.MR_OP_SDPA
	OpRingJointSDPA        = C.MR_OP_RING_JOINT_SDPA
	OpBinary               = C.MR_OP_BINARY
	OpAddcmul              = C.MR_OP_ADDCMUL
	OpActivation           = C.MR_OP_ACTIVATION
	OpSlice                = C.MR_OP_SLICE
	OpConcat               = C.MR_OP_CONCAT
	OpReshape              = C.MR_OP_RESHAPE
	OpPermute              = C.MR_OP_PERMUTE
	OpConvert              = C.MR_OP_CONVERT

	OpNeighborPad                = C.MR_OP_NEIGHBOR_PAD
	OpNeighborPadHalo            = C.MR_OP_NEIGHBOR_PAD_HALO
	OpHaloScatter                = C.MR_OP_HALO_SCATTER
	OpSliceReshard               = C.MR_OP_SLICE_RESHARD
	OpExpRingJointSDPA           = C.MR_OP_EXP_RING_JOINT_SDPA
	OpStridedAllGatherMatmul     = C.MR_OP_STRIDED_ALL_GATHER_MATMUL
	OpMatmulStridedReduceScatter = C.MR_OP_MATMUL_STRIDED_REDUCE_SCATTER
	OpConv3D                     = C.MR_OP_CONV3D
	OpNPConv3D                   = C.MR_OP_NP_CONV3D
	OpPointToPoint               = C.MR_OP_POINT_TO_POINT
	OpGroupNorm                  = C.MR_OP_GROUP_NORM
	OpGroupNormStats             = C.MR_OP_GROUP_NORM_STATS
)

// Limits of the ABI.
const (
	MaxLinks   = C.MR_MAX_LINKS
	MaxStrided = C.MR_MAX_STRIDED
	MaxPairs   = C.MR_MAX_PAIRS
)

// Presence bits of OpHeader.Present.
const (
	HasChunksPerSync = C.MR_HAS_CHUNKS_PER_SYNC
	HasWorkers       = C.MR_HAS_WORKERS
	HasBuffers       = C.MR_HAS_BUFFERS
	HasScale         = C.MR_HAS_SCALE
	HasLogicalN      = C.MR_HAS_LOGICAL_N
	HasScalar        = C.MR_HAS_SCALAR
	HasAxis          = C.MR_HAS_AXIS
	HasLogicalH      = C.MR_HAS_LOGICAL_H
	HasW             = C.MR_HAS_W
	HasLogicalW      = C.MR_HAS_LOGICAL_W
)

// The ABI's enums have values of their own; these functions are the only place where they meet the runtime's.

// ABIDType is the ABI's number of a dtype.
func ABIDType(t messages.DType) uint32 { return dtypeToABI[t] }

// DTypeOf is the dtype of an ABI number; DTypeUnset when it is unknown.
func DTypeOf(n uint32) messages.DType { return fromABI[messages.DType](dtypeToABI[:], n) }

// ABILayout is the ABI's number of a layout.
func ABILayout(l messages.Layout) uint32 { return layoutToABI[l] }

// LayoutOf is the layout of an ABI number.
func LayoutOf(n uint32) messages.Layout { return fromABI[messages.Layout](layoutToABI[:], n) }

// ABIMemory is the ABI's number of a memory.
func ABIMemory(m messages.Memory) uint32 { return memoryToABI[m] }

// MemoryOf is the memory of an ABI number.
func MemoryOf(n uint32) messages.Memory { return fromABI[messages.Memory](memoryToABI[:], n) }

// ABITopology is the ABI's number of a topology, which must be set.
func ABITopology(t messages.Topology) uint32 { return topologyToABI[t] }

// TopologyOf is the topology of an ABI number.
func TopologyOf(n uint32) messages.Topology { return fromABI[messages.Topology](topologyToABI[:], n) }

// ABIActivation is the ABI's number of an activation.
func ABIActivation(a messages.ActivationKind) uint32 { return activationToABI[a] }

// ABIBinary is the ABI's number of an elementwise function of two operands.
func ABIBinary(b messages.BinaryKind) uint32 { return binaryToABI[b] }

// ABINorm is the ABI's number of RMS norm or layer norm.
func ABINorm(rms bool) uint32 {
	if rms {
		return C.MR_NORM_RMS
	}
	return C.MR_NORM_LAYER
}

// ABIRope is the ABI's number of the half or the interleaved pairing.
func ABIRope(half bool) uint32 {
	if half {
		return C.MR_ROPE_HALF
	}
	return C.MR_ROPE_INTERLEAVED
}

// ABIPad is the ABI's number of a padding mode.
func ABIPad(mode messages.PaddingMode) uint32 {
	if mode == messages.PadReplicate {
		return C.MR_PAD_REPLICATE
	}
	return C.MR_PAD_ZEROS
}

var (
	activationToABI = [...]uint32{messages.NoActivation: C.MR_ACT_NONE, messages.GELU: C.MR_ACT_GELU, messages.GELUTanh: C.MR_ACT_GELU_TANH,
		messages.SiLU: C.MR_ACT_SILU, messages.ReLU: C.MR_ACT_RELU, messages.Sigmoid: C.MR_ACT_SIGMOID, messages.Tanh: C.MR_ACT_TANH}
	binaryToABI = [...]uint32{messages.Add: C.MR_BINARY_ADD, messages.Sub: C.MR_BINARY_SUB, messages.Mul: C.MR_BINARY_MUL}

	dtypeToABI = [...]uint32{messages.BFloat16: C.MR_BFLOAT16, messages.Float32: C.MR_FLOAT32, messages.UInt32: C.MR_UINT32,
		messages.Int32: C.MR_INT32, messages.UInt16: C.MR_UINT16, messages.UInt8: C.MR_UINT8, messages.BFloat8B: C.MR_BFLOAT8_B}
	layoutToABI   = [...]uint32{messages.Tile: C.MR_TILE, messages.RowMajor: C.MR_ROW_MAJOR}
	memoryToABI   = [...]uint32{messages.DRAM: C.MR_DRAM, messages.L1: C.MR_L1}
	topologyToABI = [...]uint32{messages.Linear: C.MR_LINEAR, messages.Ring: C.MR_RING}
)

func fromABI[T ~uint8](table []uint32, n uint32) T {
	if n != 0 {
		for i, v := range table {
			if v == n {
				return T(i)
			}
		}
	}
	return 0
}

// OpHeader begins every args struct.
type OpHeader struct {
	Size    uint32
	Op      uint32
	Queue   uint32
	Present uint32
	Launch  uint64
	Stream  uint32
	_       uint32
}

// Header gives access to the header of any args struct.
func (h *OpHeader) Header() *OpHeader { return h }

// Args is one operation as the driver gets it: a pointer to one of the structs below. Their fields are described in
// meshrun_driver.h; the layouts are the same, which the compiler checks at the end of this file.
type Args interface {
	Header() *OpHeader
}

// AllGather is mr_all_gather.
type AllGather struct {
	OpHeader
	Input, Output        Handle
	Semaphores           [2]Handle
	Barrier              Handle
	Dim, Axis            uint32
	NumLinks, Topology   uint32
	ChunksPerSync        uint32
	NumWorkersPerLink    uint32
	NumBuffersPerChannel uint32
	_                    uint32
}

// ReduceScatter is mr_reduce_scatter.
type ReduceScatter struct {
	OpHeader
	Input, Output, Intermediate Handle
	Semaphores                  [3]Handle
	Barrier                     Handle
	Dim, Axis                   uint32
	NumLinks, Topology          uint32
	Memory                      uint32
	ChunksPerSync               uint32
	NumWorkersPerLink           uint32
	NumBuffersPerChannel        uint32
}

// Matmul is mr_matmul.
type Matmul struct {
	OpHeader
	Input, Weight, Bias, Output Handle
	Activation                  uint32
	TransposeB                  uint32
	DType                       uint32
	_                           uint32
}

// Norm is mr_norm.
type Norm struct {
	OpHeader
	Input, Weight, Bias, Output Handle
	Kind                        uint32
	Epsilon                     float32
}

// FusedDistributedNorm is mr_fused_distributed_norm.
type FusedDistributedNorm struct {
	OpHeader
	Input, Weight, Bias, RopeCos, RopeSin Handle
	Stats                                 Handle
	Semaphores                            [2]Handle
	Output                                Handle
	Kind                                  uint32
	Epsilon                               float32
	Axis                                  uint32
	NumLinks, Topology                    uint32
	NumHeads                              uint32
}

// Rope is mr_rope.
type Rope struct {
	OpHeader
	Input, Cos, Sin, Output Handle
	Mode                    uint32
	_                       uint32
}

// SDPA is mr_sdpa.
type SDPA struct {
	OpHeader
	Q, K, V, Output Handle
	Scale           float32
	LogicalN        uint32
}

// RingJointSDPA is mr_ring_joint_sdpa.
type RingJointSDPA struct {
	OpHeader
	Q, K, V                Handle
	JointQ, JointK, JointV Handle
	BufferK, BufferV       Handle
	Semaphores             [2]Handle
	Output, JointOutput    Handle
	Axis                   uint32
	NumLinks, Topology     uint32
	LogicalN               uint32
	Scale                  float32
	_                      uint32
}

// Binary is mr_binary.
type Binary struct {
	OpHeader
	A, B, Output Handle
	Kind         uint32
	Scalar       float32
}

// Addcmul is mr_addcmul.
type Addcmul struct {
	OpHeader
	Input, X, Y, Output Handle
}

// Activation is mr_activation.
type Activation struct {
	OpHeader
	Input, Output Handle
	Kind          uint32
	_             uint32
}

// Slice is mr_slice.
type Slice struct {
	OpHeader
	Input, Output Handle
	Rank          uint32
	_             uint32
	Begin, End    [messages.MaxRank]uint32
}

// Concat is mr_concat.
type Concat struct {
	OpHeader
	Inputs [C.MR_MAX_CONCAT]Handle
	Output Handle
	Count  uint32
	Dim    uint32
}

// Reshape is mr_reshape.
type Reshape struct {
	OpHeader
	Input, Output Handle
	Rank          uint32
	_             uint32
	Dims          [messages.MaxRank]uint32
}

// Permute is mr_permute.
type Permute struct {
	OpHeader
	Input, Output Handle
	Rank          uint32
	_             uint32
	Order         [messages.MaxRank]uint32
}

// Convert is mr_convert.
type Convert struct {
	OpHeader
	Input, Output Handle
	DType         uint32
	Layout        uint32
}

// NeighborPad is mr_neighbor_pad.
type NeighborPad struct {
	OpHeader
	Input, Output       Handle
	Semaphores          [2]Handle
	Barrier             Handle
	Count, Mode         uint32
	Dims, Axes          [2]uint32
	PadLeft, PadRight   [2]uint32
	NumLinks            [2]uint32
	LogicalH, TFrontPad uint32
}

// NeighborPadHalo is mr_neighbor_pad_halo.
type NeighborPadHalo struct {
	OpHeader
	Input, Halo, PaddedOutput       Handle
	SemaphoreH, SemaphoreW, Barrier Handle
	AxisH, AxisW                    uint32
	PadHLeft, PadHRight             uint32
	PadWLeft, PadWRight             uint32
	LinksH, LinksW                  uint32
	Mode                            uint32
	InputPadH, InputPadW            uint32
	_                               uint32
}

// HaloScatter is mr_halo_scatter.
type HaloScatter struct {
	OpHeader
	Compact, Padded, Output Handle
	PadHLeft, PadHRight     uint32
	PadWLeft, PadWRight     uint32
	BorderOnly              uint32
	_                       uint32
}

// SliceReshard is mr_slice_reshard.
type SliceReshard struct {
	OpHeader
	Input, Output, Semaphore, Barrier Handle
	Offset, Size                      uint32
	Axis                              uint32
	NumLinks, Topology                uint32
	_                                 uint32
}

// PointToPoint is mr_point_to_point.
type PointToPoint struct {
	OpHeader
	Input, Output, Semaphore, Barrier Handle
	Axis                              uint32
	NumLinks, Topology                uint32
	Count                             uint32
	From, To                          [C.MR_MAX_PAIRS]uint32
}

// ExpRingJointSDPA is mr_exp_ring_joint_sdpa.
type ExpRingJointSDPA struct {
	OpHeader
	Q, K, V                Handle
	JointQ, JointK, JointV Handle
	BufferK, BufferV       Handle
	Semaphores             [C.MR_MAX_LINKS]Handle
	Output, JointOutput    Handle
	Axis                   uint32
	NumLinks, Topology     uint32
	LogicalN               uint32
	Scale                  float32
	_                      uint32
}

// StridedAllGatherMatmul is mr_strided_all_gather_matmul.
type StridedAllGatherMatmul struct {
	OpHeader
	Input, Weight, Bias  Handle
	Gathered, Output     Handle
	Semaphores           [C.MR_MAX_STRIDED]Handle
	SemaphoreCount       uint32
	Axis                 uint32
	NumLinks, Topology   uint32
	NumWorkersPerLink    uint32
	NumBuffersPerChannel uint32
	Activation           uint32
	_                    uint32
}

// MatmulStridedReduceScatter is mr_matmul_strided_reduce_scatter.
type MatmulStridedReduceScatter struct {
	OpHeader
	Input, Weight, Bias  Handle
	Residual, Gate       Handle
	Progress, Credit     Handle
	Intermediate, Output Handle
	Semaphores           [3]Handle
	Barrier              Handle
	Axis                 uint32
	NumLinks, Topology   uint32
	Scalar               float32
}

// Conv3D is mr_conv3d.
type Conv3D struct {
	OpHeader
	Input, Weight, Bias, Halo, Output Handle
	Kernel, Stride, Padding, Dilation [3]uint32
	Groups, Mode                      uint32
}

// NPConv3D is mr_np_conv3d.
type NPConv3D struct {
	OpHeader
	Input, Weight, Bias, Halo, Output Handle
	SemaphoreH, SemaphoreW, Barrier   Handle
	Region                            [4 * C.MR_MAX_LINKS]Handle
	AxisH, AxisW                      uint32
	Links, Mode                       uint32
	Kernel, Stride, Padding, Dilation [3]uint32
	Groups                            uint32
	_                                 uint32
}

// GroupNorm is mr_group_norm.
type GroupNorm struct {
	OpHeader
	Input, Weight, Bias, Stats, Output Handle
	NumGroups, Activation              uint32
	Epsilon                            float32
	_                                  uint32
}

// GroupNormStats is mr_group_norm_stats.
type GroupNormStats struct {
	OpHeader
	Input, Output   Handle
	NumGroups       uint32
	LogicalH, AxisH uint32
	LogicalW, AxisW uint32
	_               uint32
}

// The sizes must agree with the header; a wrong one is an index out of range at compile time. That the fields stand in the
// same order is shown by the recording driver of the tests, which prints them by their C names.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(OpHeader{})-C.sizeof_mr_op_header]
	_ = [1]struct{}{}[unsafe.Sizeof(AllGather{})-C.sizeof_mr_all_gather]
	_ = [1]struct{}{}[unsafe.Sizeof(ReduceScatter{})-C.sizeof_mr_reduce_scatter]
	_ = [1]struct{}{}[unsafe.Sizeof(Matmul{})-C.sizeof_mr_matmul]
	_ = [1]struct{}{}[unsafe.Sizeof(Norm{})-C.sizeof_mr_norm]
	_ = [1]struct{}{}[unsafe.Sizeof(FusedDistributedNorm{})-C.sizeof_mr_fused_distributed_norm]
	_ = [1]struct{}{}[unsafe.Sizeof(Rope{})-C.sizeof_mr_rope]
	_ = [1]struct{}{}[unsafe.Sizeof(SDPA{})-C.sizeof_mr_sdpa]
	_ = [1]struct{}{}[unsafe.Sizeof(RingJointSDPA{})-C.sizeof_mr_ring_joint_sdpa]
	_ = [1]struct{}{}[unsafe.Sizeof(Binary{})-C.sizeof_mr_binary]
	_ = [1]struct{}{}[unsafe.Sizeof(Addcmul{})-C.sizeof_mr_addcmul]
	_ = [1]struct{}{}[unsafe.Sizeof(Activation{})-C.sizeof_mr_activation]
	_ = [1]struct{}{}[unsafe.Sizeof(Slice{})-C.sizeof_mr_slice]
	_ = [1]struct{}{}[unsafe.Sizeof(Concat{})-C.sizeof_mr_concat]
	_ = [1]struct{}{}[unsafe.Sizeof(Reshape{})-C.sizeof_mr_reshape]
	_ = [1]struct{}{}[unsafe.Sizeof(Permute{})-C.sizeof_mr_permute]
	_ = [1]struct{}{}[unsafe.Sizeof(Convert{})-C.sizeof_mr_convert]
	_ = [1]struct{}{}[unsafe.Sizeof(NeighborPad{})-C.sizeof_mr_neighbor_pad]
	_ = [1]struct{}{}[unsafe.Sizeof(NeighborPadHalo{})-C.sizeof_mr_neighbor_pad_halo]
	_ = [1]struct{}{}[unsafe.Sizeof(HaloScatter{})-C.sizeof_mr_halo_scatter]
	_ = [1]struct{}{}[unsafe.Sizeof(SliceReshard{})-C.sizeof_mr_slice_reshard]
	_ = [1]struct{}{}[unsafe.Sizeof(PointToPoint{})-C.sizeof_mr_point_to_point]
	_ = [1]struct{}{}[unsafe.Sizeof(ExpRingJointSDPA{})-C.sizeof_mr_exp_ring_joint_sdpa]
	_ = [1]struct{}{}[unsafe.Sizeof(StridedAllGatherMatmul{})-C.sizeof_mr_strided_all_gather_matmul]
	_ = [1]struct{}{}[unsafe.Sizeof(MatmulStridedReduceScatter{})-C.sizeof_mr_matmul_strided_reduce_scatter]
	_ = [1]struct{}{}[unsafe.Sizeof(Conv3D{})-C.sizeof_mr_conv3d]
	_ = [1]struct{}{}[unsafe.Sizeof(NPConv3D{})-C.sizeof_mr_np_conv3d]
	_ = [1]struct{}{}[unsafe.Sizeof(GroupNorm{})-C.sizeof_mr_group_norm]
	_ = [1]struct{}{}[unsafe.Sizeof(GroupNormStats{})-C.sizeof_mr_group_norm_stats]
	_ = [1]struct{}{}[messages.MaxRank-C.MR_MAX_RANK]
)
