package meshrun

import (
	"context"

	"github.com/meshrun/meshrun/messages"
)

// Operations and their arguments, from package messages, where each is described.
type (
	AllGather            = messages.AllGather
	ReduceScatter        = messages.ReduceScatter
	Matmul               = messages.Matmul
	Norm                 = messages.Norm
	FusedDistributedNorm = messages.FusedDistributedNorm
	Rope                 = messages.Rope
	SDPA                 = messages.SDPA
	RingJointSDPA        = messages.RingJointSDPA
	ActivationKind       = messages.ActivationKind
)

// The activations.
const (
	NoActivation = messages.NoActivation
	GELU         = messages.GELU
	GELUTanh     = messages.GELUTanh
	SiLU         = messages.SiLU
	ReLU         = messages.ReLU
	Sigmoid      = messages.Sigmoid
	Tanh         = messages.Tanh
)

// AllGather concatenates the shards of each line of an axis along a dim. On an axis of length 1, or none, the result is another
// reference to x.
func (s *Stream) AllGather(ctx context.Context, x *Tensor, op AllGather) (*Tensor, error) {
	return s.one(ctx, op, x)
}

// ReduceScatter sums over each line of an axis and leaves slice i with the device at position i.
func (s *Stream) ReduceScatter(ctx context.Context, x *Tensor, op ReduceScatter) (*Tensor, error) {
	return s.one(ctx, op, x)
}

// Matmul is x [..., M, K] times weight [..., K, N], plus bias (nil: none), then the activation.
func (s *Stream) Matmul(ctx context.Context, x, weight, bias *Tensor, op Matmul) (*Tensor, error) {
	return s.one(ctx, op, x, weight, bias)
}

// Norm normalises over the last dim; weight and bias may be nil.
func (s *Stream) Norm(ctx context.Context, x, weight, bias *Tensor, op Norm) (*Tensor, error) {
	return s.one(ctx, op, x, weight, bias)
}

// FusedDistributedNorm normalises over a width that is sharded on an axis; weight, bias, cos and sin may be nil.
func (s *Stream) FusedDistributedNorm(ctx context.Context, x, weight, bias, cos, sin *Tensor, op FusedDistributedNorm) (*Tensor, error) {
	return s.one(ctx, op, x, weight, bias, cos, sin)
}

// Rope rotates x [B,H,N,D] by the tables cos and sin.
func (s *Stream) Rope(ctx context.Context, x, cos, sin *Tensor, op Rope) (*Tensor, error) {
	return s.one(ctx, op, x, cos, sin)
}

// SDPA is scaled dot-product attention of q [B,H,Sq,D] over k and v [B,H,Sk,D].
func (s *Stream) SDPA(ctx context.Context, q, k, v *Tensor, op SDPA) (*Tensor, error) {
	return s.one(ctx, op, q, k, v)
}

// RingJointSDPA is attention over a sequence sharded on an axis, with an optional replicated joint part (nil: none), whose result is the
// second one.
func (s *Stream) RingJointSDPA(ctx context.Context, q, k, v, jointQ, jointK, jointV *Tensor, op RingJointSDPA) (out, joint *Tensor, err error) {
	return s.ringAttention(ctx, op, q, k, v, jointQ, jointK, jointV)
}

func (s *Stream) ringAttention(ctx context.Context, op messages.Operation, q, k, v, jointQ, jointK, jointV *Tensor) (out, joint *Tensor, err error) {
	in := []*Tensor{q, k, v, jointQ, jointK, jointV}
	if jointQ == nil {
		in = in[:3]
	}
	outs, err := s.Submit(ctx, Call{Op: op, In: in})
	if err != nil {
		return nil, nil, err
	}
	if len(outs) > 1 {
		joint = outs[1]
	}
	return outs[0], joint, nil
}

// Add is a + b, with dims of 1 broadcast.
func (s *Stream) Add(ctx context.Context, a, b *Tensor) (*Tensor, error) {
	return s.two(ctx, messages.Add, a, b)
}

// Sub is a - b, with dims of 1 broadcast.
func (s *Stream) Sub(ctx context.Context, a, b *Tensor) (*Tensor, error) {
	return s.two(ctx, messages.Sub, a, b)
}

// Mul is a * b, with dims of 1 broadcast.
func (s *Stream) Mul(ctx context.Context, a, b *Tensor) (*Tensor, error) {
	return s.two(ctx, messages.Mul, a, b)
}

// two is a function of two tensors: without the second it would be one of a scalar.
func (s *Stream) two(ctx context.Context, fn messages.BinaryKind, a, b *Tensor) (*Tensor, error) {
	if b == nil {
		return nil, messages.Invalid(fn.String(), "b", "absent", "is a tensor")
	}
	return s.one(ctx, messages.Binary{Fn: fn}, a, b)
}

// AddScalar is x + c.
func (s *Stream) AddScalar(ctx context.Context, x *Tensor, c float32) (*Tensor, error) {
	return s.one(ctx, messages.Binary{Fn: messages.Add, Scalar: c}, x)
}

// MulScalar is x * c.
func (s *Stream) MulScalar(ctx context.Context, x *Tensor, c float32) (*Tensor, error) {
	return s.one(ctx, messages.Binary{Fn: messages.Mul, Scalar: c}, x)
}

// Addcmul is input + x*y, with x and y broadcast.
func (s *Stream) Addcmul(ctx context.Context, input, x, y *Tensor) (*Tensor, error) {
	return s.one(ctx, messages.Addcmul{}, input, x, y)
}

// Activation applies a function elementwise.
func (s *Stream) Activation(ctx context.Context, x *Tensor, fn ActivationKind) (*Tensor, error) {
	return s.one(ctx, messages.Activation{Fn: fn}, x)
}

// Slice cuts [begin, end) of every dim.
func (s *Stream) Slice(ctx context.Context, x *Tensor, begin, end []int) (*Tensor, error) {
	b, err := messages.IndexOf(begin...)
	if err != nil {
		return nil, err
	}
	e, err := messages.IndexOf(end...)
	if err != nil {
		return nil, err
	}
	return s.one(ctx, messages.Slice{Begin: b, End: e}, x)
}

// Concat joins 1 to 8 tensors along a dim.
func (s *Stream) Concat(ctx context.Context, dim int, xs ...*Tensor) (*Tensor, error) {
	return s.one(ctx, messages.Concat{Dim: dim}, xs...)
}

// Reshape names the same elements by another shape: a second reference to x where the order in memory stays, else a copy.
func (s *Stream) Reshape(ctx context.Context, x *Tensor, dims ...int) (*Tensor, error) {
	shape, err := messages.NewShape(dims...)
	if err != nil {
		return nil, err
	}
	return s.one(ctx, messages.Reshape{Shape: shape}, x)
}

// Permute reorders dims: dim i of the result is dim order[i] of x.
func (s *Stream) Permute(ctx context.Context, x *Tensor, order ...int) (*Tensor, error) {
	o, err := messages.IndexOf(order...)
	if err != nil {
		return nil, err
	}
	return s.one(ctx, messages.Permute{Order: o}, x)
}

// ToLayout changes the layout; the tensor itself where it has it already.
func (s *Stream) ToLayout(ctx context.Context, x *Tensor, l Layout) (*Tensor, error) {
	return s.one(ctx, messages.Convert{Layout: l}, x)
}

// Typecast changes the dtype; the tensor itself where it has it already.
func (s *Stream) Typecast(ctx context.Context, x *Tensor, t DType) (*Tensor, error) {
	return s.one(ctx, messages.Convert{DType: t}, x)
}
