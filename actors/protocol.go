package actors

import (
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
	ticket uint64
	need   uint8 // which need of the task
	slot   int32 // the pool's number for the bank
}

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
}

// id names the grant of a buffer: no two tasks have one ticket.
func (l lease) id() pools.Lease { return pools.Lease(l.ticket<<8 | uint64(l.need)) }

// bufferAction is a buffer wanted, or one given back (no need). Actions stand in ticket order.
type bufferAction struct {
	lease
	want *axis.BufferNeed
}

// takeBuffers: device actor to buffers actor; answered by granted.
type takeBuffers struct{ actions []bufferAction }

// makeEager asks a pool for its first banks; answered by granted without leases.
type makeEager struct{}

// collect: memory has been given back; see Runtime.takeReleased.
type collect struct{}

// tick: time to look at the events.
type tick struct{}

// advance lets virtual time run. Lockstep only. Without reply, the turns are told.
type advance struct {
	until uint64
	reply chan<- answer[devicecgo.ClockState]
}

type readRequest struct {
	tensor *Tensor
	at     messages.Coord
	data   []byte
	reply  chan<- answer[struct{}]
}

type statsRequest struct{ reply chan<- answer[Stats] }

// drainRequest: admit nothing more, fail what is queued, answer when nothing is in flight.
type drainRequest struct{ reply chan<- answer[struct{}] }

// onDevice runs a function on the owner thread.
type onDevice func(devicecgo.Device)
