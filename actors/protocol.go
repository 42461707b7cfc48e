package actors

import (
	"context"

	"github.com/meshrun/meshrun/axis"
	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/pools"
)

// The messages between the actors of a mesh. They carry slices: one message per batch and hop.

// streamOpened: a stream exists. To the device actor.
type streamOpened struct{ s *Stream }

// streamClosed: nothing more will come of a stream; its actor may end when all is answered.
type streamClosed struct{ s *Stream }

// submitted: what a stream's outbox held. Stream actor to device actor.
type submitted struct {
	stream *Stream
	tasks  []*task
}

// retired: answered tasks of one stream, errors filled in. Device actor to stream actor.
type retired struct{ tasks []*task }

// lease is one bank wanted by one task: filled in by the pool.
type lease struct {
	ticket  uint64
	need    uint8 // which need of the task
	workers uint8 // of a semaphore pool that has sets of banks by workers
	keep    bool  // of a semaphore pool: for the caller, until it is given back
	slot    int32 // the pool's number for the bank; noBank: there is none
}

// noBank in a lease: nothing was granted, or (prewarm, release) nothing was asked for.
const noBank = -1

// acquire: semaphores wanted by a batch of tasks on one axis, in ticket order. Device actor to axis actor.
type acquire struct {
	pools  []messages.Pool // beside leases
	leases []lease
}

// take: what is wanted of one pool. Axis actor to pool actor.
type take struct{ leases []lease }

// granted: the pool's answer, slots filled in, with the banks that must be made before use. Pool actor to device actor.
type granted struct {
	pool   int // index of the pool's actor
	leases []lease
	made   []pools.NewBank
	warm   []int // slots of pools that are to be prewarmed
	gone   []int // slots that the pool has forgotten: their buffers are to be freed
	err    error // why a lease has no bank
}

// back returns leases of callers to a semaphore pool.
type back struct{ leases []lease }

// rewind sets a pool's indices back to bank 0.
type rewind struct{}

// id names the grant of a buffer: no two tasks have one ticket.
func (l lease) id() pools.Lease { return pools.Lease(l.ticket<<8 | uint64(l.need)) }

// bufferAction is a buffer wanted, one given back (nothing else), a pool to be prewarmed, pools to be released, or banks to be kept for a trace. Actions stand in
// ticket order.
type bufferAction struct {
	lease
	want    *axis.BufferNeed
	prewarm bool
	release func(messages.BufferKey) bool
	pin     *pin
}

// pin: slots that a trace names from now on, or no longer.
type pin struct {
	slots []int
	ends  bool
}

// takeBuffers: device actor to buffers actor; answered by granted.
type takeBuffers struct{ actions []bufferAction }

// traceReleased: nobody refers to a trace any more.
type traceReleased struct{ trace *Trace }

// streamDied: a stream's actor has ended; nothing more will come of it, not even the end of a trace.
type streamDied struct{ s *Stream }

// whatIsIdle asks the buffers actor what could be released; answered by idlePools.
type whatIsIdle struct{}

type idlePools struct{ pools []pools.Idle }

// describe asks a pool for its first banks; answered by granted without leases. The eager ones are made at open, the others when they are
// first used.
type describe struct{}

// collect: memory has been given back; see Runtime.takeReleased.
type collect struct{}

// tick: time to look at the events.
type tick struct{}

// advance lets virtual time run. Lockstep only. Without reply, the turns are told.
type advance struct {
	until uint64
	reply chan<- answer[devicecgo.ClockState]
}

// orphaned are tasks whose stream's actor is gone, and which have been answered: what they refer to has to be given up.
type orphaned struct{ tasks []*task }

type readRequest struct {
	ctx    context.Context // of who waits for it
	tensor *Tensor
	at     messages.Coord
	data   []byte
	row    *messages.Row // that the read belongs to, or nil
	reply  chan<- answer[struct{}]
}

type statsRequest struct{ reply chan<- answer[Stats] }

// drainRequest: admit nothing more, fail what is queued, answer when nothing is in flight.
type drainRequest struct{ reply chan<- answer[struct{}] }

// onDevice runs a function on the owner thread.
type onDevice func(devicecgo.Device)
