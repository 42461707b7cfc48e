package meshrun

import (
	"context"

	"github.com/meshrun/meshrun/actors"
	"github.com/meshrun/meshrun/messages"
)

// Trace is a sequence of operations that was captured once and runs again with one call, without the host's work for each: on the same memory, with
// the same banks.
//
// The tensors that the operations returned while they were captured are the trace's results. They hold nothing before the first Execute. Wait and
// Read wait for the latest Execute that has been submitted, and an operation that reads one comes behind it. Each Execute writes the same memory anew: what
// an earlier one left there is gone once the next has begun. New input comes by Stream.Write into the tensors that were read.
//
// A trace keeps the memory of its inputs and results and the banks that it uses, released or not, until Release; under Hold nobody else gets them.
type Trace struct {
	t *actors.Trace
}

// BeginTrace makes the stream capture: what it submits until EndTrace is planned and checked as ever, but kept instead of launched. Other streams
// wait meanwhile, however long that is. What goes wrong is told by EndTrace.
//
// Only operations can be captured. Reads, writes, fences and getters are refused, and so is an operation whose banks do not exist yet: name them to
// Prewarm, or run the sequence once before.
func (s *Stream) BeginTrace(ctx context.Context) error { return s.s.BeginTrace(ctx) }

// EndTrace ends the capture and waits until it is done. On an error there is no trace and nothing has run; what the operations returned still has to be
// released.
func (s *Stream) EndTrace(ctx context.Context) (*Trace, error) {
	t, err := s.s.EndTrace(ctx)
	if err != nil {
		return nil, err
	}
	return &Trace{t}, nil
}

// Execute runs the trace behind what its stream has submitted. Like Submit it does not wait for the device.
func (t *Trace) Execute(ctx context.Context) error { return t.t.Execute(ctx) }

// Wait returns when the latest Execute is done, with its error. In lockstep it is for the goroutine of the trace's stream.
func (t *Trace) Wait(ctx context.Context) error { return t.t.Wait(ctx) }

// Release lets go of the trace once its last Execute is done. Releasing twice, or a nil trace, is harmless.
func (t *Trace) Release() {
	if t != nil {
		t.t.Release()
	}
}

// Write lays a host array over the mesh into a tensor that exists, of the same dtype and, cut like this, of the same shape: behind what the
// stream has submitted, before what it submits next. The data are copied before it returns.
func (s *Stream) Write(ctx context.Context, t *Tensor, a Array, d Distribution) error {
	if t == nil {
		return messages.Invalid("write", "tensor", "absent", "is a tensor of this mesh")
	}
	shape, err := d.Shard(a.Shape, s.m.rt.Mesh().Shape)
	if err != nil {
		return err
	}
	if spec := t.Spec(); shape != spec.Shape || a.DType != spec.DType {
		return messages.Invalid("write", "array", Spec{Shape: shape, DType: a.DType, Layout: spec.Layout, Memory: spec.Memory}, "is, cut like this, as the tensor: %s", spec)
	}
	return s.s.Rewrite(ctx, &t.t, d, a.Data)
}
