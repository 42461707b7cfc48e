package meshrun

import (
	"cmp"
	"context"

	"github.com/meshrun/meshrun/actors"
	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/messages"
)

// Stream is one caller's ordered sequence of operations. Its methods may be called from any goroutine.
type Stream struct {
	m    *Mesh
	s    *actors.Stream
	step string // see As
}

// Tensor is the handle of a tensor on the mesh: one shard of its Spec on every device. It belongs to the caller until Release.
type Tensor struct {
	t actors.Tensor
}

// Spec describes the tensor's shard. It is known as soon as the handle exists.
func (t *Tensor) Spec() Spec { return t.t.Spec() }

// Shape is the per-device shape.
func (t *Tensor) Shape() Shape { return t.t.Spec().Shape }

// Wait returns when the tensor's data are there, or with the error of the operation that makes them, or when ctx ends. With Config.Lockstep it is for
// the goroutine of the stream that makes the tensor; that of another stream uses its own Stream.Wait.
func (t *Tensor) Wait(ctx context.Context) error { return t.t.Wait(ctx) }

// Ended reports whether the operation that makes the tensor is over, and its error when it has failed. It never waits.
func (t *Tensor) Ended() (bool, error) { return t.t.Ended() }

// Release gives the tensor back: its memory may be used again once the last launch that reads it is over. Releasing twice, or
// a nil tensor, is harmless.
func (t *Tensor) Release() {
	if t != nil {
		t.t.Release()
	}
}

// Array is an array on the host: row-major elements of a dtype, little endian, without padding.
type Array struct {
	Shape  Shape // of the whole array
	DType  DType
	Layout Layout // that the tensor shall have; unset: Tile
	Data   []byte // nil: the tensor's content is undefined
}

// Floats makes an array of float32 values, rounded to the dtype.
func Floats(shape Shape, dtype DType, values []float32) (Array, error) {
	if int64(len(values)) != shape.Elements() {
		return Array{}, messages.Invalid("array", "values", len(values), "are %d, the elements of %s", shape.Elements(), shape)
	}
	data, err := messages.EncodeFloats(values, dtype)
	return Array{Shape: shape, DType: dtype, Data: data}, err
}

// Name is the stream's name.
func (s *Stream) Name() string { return s.s.Name() }

// Mesh is the mesh that the stream runs on.
func (s *Stream) Mesh() *Mesh { return s.m }

// Upload lays a host array over the mesh: a dim that the distribution names is cut along that axis and must divide by its length. The
// data are copied before it returns.
func (s *Stream) Upload(ctx context.Context, a Array, d Distribution) (*Tensor, error) {
	shape, err := d.Shard(a.Shape, s.m.rt.Mesh().Shape)
	if err != nil {
		return nil, err
	}
	spec := Spec{Shape: shape, DType: a.DType, Layout: a.Layout, Memory: messages.DRAM}
	if spec.Layout == messages.LayoutUnset {
		spec.Layout = Tile
	}
	t := &Tensor{}
	if err := s.s.Write(ctx, devicecgo.TensorSpec{Spec: spec}, d, a.Data, &t.t); err != nil {
		return nil, err
	}
	return t, nil
}

// Zeros allocates a tensor of zeros; the shape is that of the shard.
func (s *Stream) Zeros(ctx context.Context, spec Spec) (*Tensor, error) {
	if spec.Layout == messages.LayoutUnset {
		spec.Layout = Tile
	}
	if spec.Memory == messages.MemoryUnset {
		spec.Memory = messages.DRAM
	}
	t := &Tensor{}
	if err := s.s.Write(ctx, devicecgo.TensorSpec{Spec: spec, Zeroed: true}, Replicate, nil, &t.t); err != nil {
		return nil, err
	}
	return t, nil
}

// Wait is Tensor.Wait, on behalf of this stream: where streams take turns (Mesh.Together) it is this one's that is given away meanwhile, whichever
// stream makes the tensor.
func (s *Stream) Wait(ctx context.Context, t *Tensor) error { return s.s.Wait(ctx, &t.t) }

// Read waits for the tensor and returns the shard of one device, in the tensor's dtype.
func (s *Stream) Read(ctx context.Context, t *Tensor, at Coord) ([]byte, error) {
	if t == nil {
		return nil, messages.Invalid("read", "input", "absent", "is a tensor")
	}
	return s.s.Read(ctx, &t.t, at)
}

// ReadFloats is Read, widened to float32.
func (s *Stream) ReadFloats(ctx context.Context, t *Tensor, at Coord) ([]float32, error) {
	b, err := s.Read(ctx, t, at)
	if err != nil {
		return nil, err
	}
	return messages.DecodeFloats(b, t.t.Spec().DType)
}

// Fence returns when everything submitted to the mesh before it has retired on every device.
func (s *Stream) Fence(ctx context.Context) error { return s.s.Fence(ctx) }

// Act runs several requests as one act of a stream that takes turns (Mesh.Together): its turn ends behind the last of them.
func (s *Stream) Act(ctx context.Context, requests func() error) error { return s.s.Act(ctx, requests) }

// Sleep lets virtual time pass for a stream that takes turns (Mesh.Together).
func (s *Stream) Sleep(ctx context.Context, ns uint64) error { return s.s.Sleep(ctx, ns) }

// As is the same stream with another name for the steps of its calls in the journal; "" = the operations' own.
func (s *Stream) As(step string) *Stream { return &Stream{m: s.m, s: s.s, step: step} }

// Close ends the stream: what it has submitted goes on, nothing more is accepted.
func (s *Stream) Close() { s.s.Close() }

// Call is one request in its general form.
type Call struct {
	Op   messages.Operation
	In   []*Tensor // by the operation's slots; nil = absent
	Step string    // the step's name in the journal; "" = the operation's
	// Semaphores are leases that stand for the first semaphores that the operation would draw: the neighbour semaphores of a halo exchange.
	Semaphores []*Lease
}

// Submit queues an operation and returns the handles of its results at once. An operation that breaks a rule is refused and changes
// nothing. It waits only where the stream's queue is full.
func (s *Stream) Submit(ctx context.Context, c Call) ([]*Tensor, error) {
	var in [messages.MaxInputs]*actors.Tensor
	if len(c.In) > len(in) {
		return nil, messages.Invalid("submit", "inputs", len(c.In), "takes at most %d", len(in))
	}
	for i, t := range c.In {
		if t != nil {
			in[i] = &t.t
		}
	}
	var out [messages.MaxOutputs]*Tensor
	var inner [messages.MaxOutputs]*actors.Tensor
	for i := range out {
		out[i] = &Tensor{}
		inner[i] = &out[i].t
	}
	n, err := s.s.Submit(ctx, actors.Call{Op: c.Op, In: in[:len(c.In)], Step: cmp.Or(c.Step, s.step), Semaphores: c.Semaphores}, inner[:])
	if err != nil {
		return nil, err
	}
	return out[:n], nil
}

// one submits an operation of one result.
func (s *Stream) one(ctx context.Context, op messages.Operation, in ...*Tensor) (*Tensor, error) {
	var inner [messages.MaxInputs]*actors.Tensor
	if len(in) > len(inner) {
		return nil, messages.Invalid(op.Kind().String(), "inputs", len(in), "takes at most %d", len(inner))
	}
	for i, t := range in {
		if t != nil {
			inner[i] = &t.t
		}
	}
	out := &Tensor{}
	outs := [1]*actors.Tensor{&out.t}
	if _, err := s.s.Submit(ctx, actors.Call{Op: op, In: inner[:len(in)], Step: s.step}, outs[:]); err != nil {
		return nil, err
	}
	return out, nil
}
