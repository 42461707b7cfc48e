package actors

import (
	"context"
	"sync/atomic"

	"github.com/meshrun/meshrun/axis"
	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/messages"
)

// The life of a task. Only done is looked at by other goroutines.
const (
	taskQueued uint32 = iota
	taskDone
)

// task is one submitted operation on its way.
type task struct {
	stream *Stream
	plan   *axis.Plan
	in     [messages.MaxInputs]*Tensor
	out    [messages.MaxOutputs]*Tensor

	write   *write // a host array for out[0]; no plan
	fence   bool   // a fence; no plan
	call    traceCall
	control *control // what concerns the pools as a whole; no plan
	lease   *Lease   // OpGetSemaphores: who gets the bank
	trace   *Trace   // of a call below, or that an operation is captured in
	sources []*task  // what makes the inputs, where it is not their producers; of a replay: what makes the trace's
	brought []*Lease // banks of the caller's that stand for the first semaphores of the plan

	// The device actor's.
	ticket  uint64
	launch  uint64 // of a replay: the last one
	over    bool   // answered, though the stream may not have been told yet
	left    bool   // its place in the stream's queue is free again
	flies   bool   // the driver has accepted it
	size    int    // launches that it is, inside the driver
	missing int    // grants not yet here
	sems    [axis.MaxSemaphoreNeeds]*bank
	bufs    [axis.MaxBufferNeeds]*bank
	row     *messages.Row

	err   error // written before state, read after it
	state atomic.Uint32
}

// control is a request that concerns the pools as a whole.
type control struct {
	name    string
	reset   bool
	prewarm []axis.BufferNeed
	release func(messages.BufferKey) bool

	made []*bank // by prewarm
	gone []int   // slots of the buffers pool to be freed
}

// write is a host array on its way to the mesh.
type write struct {
	spec devicecgo.TensorSpec
	dist messages.Distribution
	data []byte  // nil: nothing is written
	into *Tensor // nil: a new tensor
}

func (t *task) done() bool { return t.state.Load() == taskDone }

// failed returns the error of a task that is done; nil while it is not.
func (t *task) failed() error {
	if t.done() {
		return t.err
	}
	return nil
}

func (t *task) name() string {
	switch {
	case t.write != nil:
		return messages.OpWrite.String()
	case t.fence:
		return "fence"
	case t.control != nil:
		return t.control.name
	case t.call != noTraceCall:
		return t.call.String()
	}
	return axis.OpName(t.plan.Op)
}

// wait blocks the goroutine of the task's stream until the task is answered.
func (t *task) wait(ctx context.Context) error { return t.waitBy(ctx, t.stream) }

// waitBy blocks the goroutine of a stream until the task, of any stream, is answered. In lockstep whether it is answered by now is asked in that
// stream's turn, or it would be a matter of luck.
func (t *task) waitBy(ctx context.Context, by *Stream) error {
	if t.captured() {
		return t.trace.notExecuted()
	}
	if turns := by.rt.turns; turns != nil {
		if err := turns.enter(ctx, by.seat); err != nil {
			return err
		}
		defer turns.leave(by.seat)
	}
	if !t.done() {
		if err := t.stream.await(ctx, t, by); err != nil {
			return err
		}
	}
	return t.err
}
