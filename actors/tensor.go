package actors

import (
	"cmp"
	"context"
	"sync/atomic"

	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/pools"
)

// Tensor is the handle of a tensor on the mesh: known at once, its data later. It belongs to the caller until Release.
type Tensor struct {
	spec     messages.Spec
	mem      *memory
	part     int
	producer *task // nil when nothing has to be waited for
	source   *task // of another name of a tensor, where naming it is a task: what makes the data
	released atomic.Bool
	own      memory // what mem points to, unless the tensor names the memory of another
}

// Spec describes the tensor's shard.
func (t *Tensor) Spec() messages.Spec { return t.spec }

// Release gives the tensor back. Its memory is free when the last launch that reads it is done. Releasing twice is harmless.
func (t *Tensor) Release() {
	if t != nil && t.mem != nil && !t.released.Swap(true) {
		t.mem.unref()
	}
}

// Wait returns when the tensor's data are there, or the operation that makes them has failed, or ctx ends. In lockstep it is for the goroutine
// of the stream that makes the tensor.
func (t *Tensor) Wait(ctx context.Context) error { return t.waitBy(ctx, nil) }

// waitBy waits on behalf of a stream; nil = the one that makes the tensor.
func (t *Tensor) waitBy(ctx context.Context, by *Stream) error {
	for _, made := range t.makers() {
		if made != nil {
			if err := made.waitBy(ctx, cmp.Or(by, made.stream)); err != nil {
				return err
			}
		}
	}
	return nil
}

// makers are the tasks that make what the tensor holds, as far as has been submitted: the last replay of a trace or write into its memory, else the
// operation whose result it is and, where that passed its input through, the one that made the input.
func (t *Tensor) makers() [2]*task {
	if t.mem != nil {
		if w := t.mem.latest.Load(); w != nil {
			return [2]*task{w}
		}
	}
	if p := t.producer; p != nil && p.captured() && p.plan.Alias {
		return p.in[0].makers()
	}
	return [2]*task{t.producer, t.source}
}

// maker is the first of the makers; nil when nothing has to be waited for.
func (t *Tensor) maker() *task { return t.makers()[0] }

// memory is what one result lives in: memory of its own or a bank of a buffer pool. It is counted: each handle of a caller and
// each task that has no ticket yet holds one reference. Tickets are launched in order, so what is free for a later ticket is known as soon as
// the earlier ones have been given.
type memory struct {
	refs   atomic.Int32
	pooled bool // a bank of the buffers
	rt     *Runtime
	latest atomic.Pointer[task] // the last write into it that has been submitted, or replay of a trace that names it as a result

	// The rest belongs to the device actor.
	lease      lease  // of a pool's bank, if the ticket is set
	pool       int    // index of that pool's actor
	bank       *bank  // that bank, once granted
	own        buffer // otherwise
	lastTicket uint64 // the last task that reads or writes it
}

// there reports whether it has been made.
func (m *memory) there() bool { return m.bank != nil || m.own.base != 0 }

// ref takes a reference unless there is none left to share.
func (m *memory) ref() bool {
	for {
		n := m.refs.Load()
		if n <= 0 {
			return false
		}
		if m.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// unref drops a reference; the last one sends the memory back to the device actor. For callers; the device actor has its own.
func (m *memory) unref() {
	if m.refs.Add(-1) == 0 {
		m.rt.freed(m)
	}
}

// buffer is one tensor of the driver with the views that were made of it.
type buffer struct {
	base  devicecgo.Handle
	spec  messages.Spec
	views []view
	name  string // of the pool's buffer; "" = fresh
}

type view struct {
	shape  messages.Shape
	handle devicecgo.Handle
}

// buffer returns the driver's tensor behind a part of the memory.
func (m *memory) buffer(part int) *buffer {
	if m.bank != nil {
		return &m.bank.buffers[part]
	}
	return &m.own
}

// bank is a set of semaphores or buffers that a pool lends as one.
type bank struct {
	pool       int            // index of the pool's actor
	slot       int            // the pool's number for it
	unmade     *pools.NewBank // what has still to be made
	group      []*bank        // the banks that are made with it
	semaphores []devicecgo.Handle
	names      []string // of the semaphores
	buffers    []buffer
	unfenced   bool   // made on the caller's promise of a fence, which has not come yet
	lastUse    uint64 // the last launch that used it, or read what it holds
}

// Lease is a bank of semaphores that a caller holds for operations of his own, until Release. Under Rotate it is the bank that the getter
// has turned up, and nothing is held.
type Lease struct {
	names    []string
	handles  []devicecgo.Handle
	pool     messages.Pool
	axis     int
	released atomic.Bool
	mem      memory // counts references, as a tensor's does
}

// Names are the semaphores' names in logs and reports, such as "ag[1].bank0.1".
func (l *Lease) Names() []string { return l.names }

// Handles are the driver's handles of the semaphores.
func (l *Lease) Handles() []devicecgo.Handle { return l.handles }

// Release gives the bank back once what was submitted with it has its place in the order. Releasing twice is harmless.
func (l *Lease) Release() {
	if l != nil && !l.released.Swap(true) {
		l.mem.unref()
	}
}
