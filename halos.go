package meshrun

import (
	"cmp"
	"context"

	"github.com/meshrun/meshrun/actors"
	"github.com/meshrun/meshrun/messages"
)

// Halo exchanges, the fused operations, and what concerns the pools; the arguments are described in package messages.
type (
	NeighborPad                = messages.NeighborPad
	NeighborPadHalo            = messages.NeighborPadHalo
	HaloScatter                = messages.HaloScatter
	SliceReshard               = messages.SliceReshard
	PointToPoint               = messages.PointToPoint
	Pair                       = messages.Pair
	ExpRingJointSDPA           = messages.ExpRingJointSDPA
	StridedAllGatherMatmul     = messages.StridedAllGatherMatmul
	MatmulStridedReduceScatter = messages.MatmulStridedReduceScatter
	Conv3D                     = messages.Conv3D
	NPConv3D                   = messages.NPConv3D
	GroupNorm                  = messages.GroupNorm
	GroupNormStats             = messages.GroupNormStats
	Index                      = messages.Index
	PaddingMode                = messages.PaddingMode
	BufferKey                  = messages.BufferKey
	Pool                       = messages.Pool
	// Lease is a bank of semaphores that a caller holds for operations of his own, until Release.
	Lease = actors.Lease
)

// Padding modes.
const (
	PadZeros     = messages.PadZeros
	PadReplicate = messages.PadReplicate
)

// IndexOf makes a list of numbers, one per dim.
func IndexOf(v ...int) (Index, error) { return messages.IndexOf(v...) }

// NeighborPad pads one or two dims of a row-major tensor with what the neighbours hold there. Leases stand for the neighbour semaphores; none:
// they are drawn.
func (s *Stream) NeighborPad(ctx context.Context, x *Tensor, op NeighborPad, semaphores ...*Lease) (*Tensor, error) {
	out, err := s.Submit(ctx, Call{Op: op, In: []*Tensor{x}, Semaphores: semaphores})
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

// NeighborPadHalo exchanges the halo of a row-major [.., H, W, C] tensor into a compact buffer. padded may be nil; with op.IntoPadded it is drawn
// and returned as the second result.
func (s *Stream) NeighborPadHalo(ctx context.Context, x, padded *Tensor, op NeighborPadHalo, semaphores ...*Lease) (halo, into *Tensor, err error) {
	out, err := s.Submit(ctx, Call{Op: op, In: []*Tensor{x, padded}, Semaphores: semaphores})
	if err != nil {
		return nil, nil, err
	}
	if len(out) > 1 {
		into = out[1]
	}
	return out[0], into, nil
}

// HaloScatter writes a compact halo round an interior; with op.BorderOnly in the memory of x, and the result is another name of it.
func (s *Stream) HaloScatter(ctx context.Context, compact, x *Tensor, op HaloScatter) (*Tensor, error) {
	return s.one(ctx, op, compact, x)
}

// NeighborPadHaloScatter exchanges the halo and writes it round the interior: in place where x is padded already (borderOnly), else into a
// persistent padded buffer that gets the interior beside the exchange.
func (s *Stream) NeighborPadHaloScatter(ctx context.Context, x *Tensor, op NeighborPadHalo, borderOnly bool, semaphores ...*Lease) (*Tensor, error) {
	out := &Tensor{}
	err := s.s.NeighborPadHaloScatter(ctx, &x.t, actors.HaloScatterCall{Halo: op, BorderOnly: borderOnly, Semaphores: semaphores, Step: cmp.Or(s.step, "neighbor_pad_halo_scatter")}, &out.t)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// SliceReshard cuts rows of dim 0 of the whole tensor and shares them out evenly again.
func (s *Stream) SliceReshard(ctx context.Context, x *Tensor, op SliceReshard) (*Tensor, error) {
	return s.one(ctx, op, x)
}

// PointToPoint sends shards from device to device; a device that receives nothing keeps its own.
func (s *Stream) PointToPoint(ctx context.Context, x *Tensor, pairs ...Pair) (*Tensor, error) {
	op, err := messages.NewPointToPoint(pairs...)
	if err != nil {
		return nil, err
	}
	return s.one(ctx, op, x)
}

// ExpRingJointSDPA is RingJointSDPA with one semaphore per link.
func (s *Stream) ExpRingJointSDPA(ctx context.Context, q, k, v, jointQ, jointK, jointV *Tensor, op ExpRingJointSDPA) (out, joint *Tensor, err error) {
	return s.ringAttention(ctx, op, q, k, v, jointQ, jointK, jointV)
}

// StridedAllGatherMatmul gathers x along its last dim while it multiplies; bias may be nil.
func (s *Stream) StridedAllGatherMatmul(ctx context.Context, x, weight, bias *Tensor, op StridedAllGatherMatmul) (*Tensor, error) {
	return s.one(ctx, op, x, weight, bias)
}

// MatmulStridedReduceScatter multiplies and scatters the sum while the products come; bias, and residual with gate, may be nil.
func (s *Stream) MatmulStridedReduceScatter(ctx context.Context, x, weight, bias, residual, gate *Tensor, op MatmulStridedReduceScatter) (*Tensor, error) {
	return s.one(ctx, op, x, weight, bias, residual, gate)
}

// Conv3D is a convolution of a row-major [N, T, H, W, C] tensor; bias and the compact halo may be nil.
func (s *Stream) Conv3D(ctx context.Context, x, weight, bias, halo *Tensor, op Conv3D) (*Tensor, error) {
	return s.one(ctx, op, x, weight, bias, halo)
}

// NPConv3D is the halo exchange and the convolution in one; bias may be nil.
func (s *Stream) NPConv3D(ctx context.Context, x, weight, bias *Tensor, op NPConv3D) (*Tensor, error) {
	return s.one(ctx, op, x, weight, bias)
}

// GroupNorm normalises groups of channels of a row-major [N, .., C] tensor; weight, bias and stats may be nil. With stats, each device's
// GroupNormStats gathered along dim 0, the norm is over all shards.
func (s *Stream) GroupNorm(ctx context.Context, x, weight, bias, stats *Tensor, op GroupNorm) (*Tensor, error) {
	return s.one(ctx, op, x, weight, bias, stats)
}

// GroupNormStats is each device's part of the statistics of a sharded group norm.
func (s *Stream) GroupNormStats(ctx context.Context, x *Tensor, op GroupNormStats) (*Tensor, error) {
	return s.one(ctx, op, x)
}

// DeviceToHost gathers a tensor along a dim per mesh axis (NoAxis: not along that one) and returns what one device then holds.
func (s *Stream) DeviceToHost(ctx context.Context, x *Tensor, meshDims [2]int, persistent bool) (Array, error) {
	data, spec, err := s.s.DeviceToHost(ctx, &x.t, meshDims, persistent, cmp.Or(s.step, "device_to_host"))
	return Array{Shape: spec.Shape, DType: spec.DType, Layout: spec.Layout, Data: data}, err
}

// LeaseSemaphores turns a semaphore pool and lends its bank (the reference's get_..._semaphore). workers counts for strided_ag_mm alone.
func (s *Stream) LeaseSemaphores(ctx context.Context, pool Pool, axis, workers int) (*Lease, error) {
	return s.s.Lease(ctx, messages.GetSemaphores{Pool: pool, MeshAxis: axis, Workers: workers}, s.step)
}

// LeaseBuffers turns a buffer pool and lends the buffers of its bank (the reference's get_..._buffer).
func (s *Stream) LeaseBuffers(ctx context.Context, key BufferKey, unfenced bool) ([]*Tensor, error) {
	return s.Submit(ctx, Call{Op: messages.GetBuffers{Key: key, Unfenced: unfenced}})
}

// Reset puts every semaphore to 0 and every pool to bank 0. It waits for what the stream has submitted, and is refused with ErrBusy while other
// streams have work under way or callers hold banks of semaphores.
func (s *Stream) Reset(ctx context.Context) error { return s.s.Reset(ctx, s.step) }

// Prewarm makes the buffers of the keys that do not exist yet, with two fences in all: the first request for one of them then allocates nothing.
func (s *Stream) Prewarm(ctx context.Context, keys ...BufferKey) error {
	return s.s.Prewarm(ctx, s.step, keys...)
}

// ReleaseBuffers frees the pools of the keys, or all pools when none is given. It is refused, and frees nothing, while a bank of one is lent.
func (s *Stream) ReleaseBuffers(ctx context.Context, keys ...BufferKey) error {
	return s.s.ReleaseBuffers(ctx, s.step, keys...)
}
