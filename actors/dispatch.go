package actors

import (
	"github.com/asynkron/protoactor-go/actor"

	"github.com/meshrun/meshrun/devicecgo"
)

// pinned runs every actor of a mesh on the mesh's owner thread. Messages between them cross no thread, and one wake-up of the
// thread serves all that is waiting.
type pinned struct{ thread *devicecgo.Thread }

var _ actor.Dispatcher = pinned{}

// Schedule implements actor.Dispatcher. A mailbox has at most one run outstanding.
func (p pinned) Schedule(fn func()) { p.thread.Schedule(fn) }

// Throughput is how many messages a mailbox handles before it yields to the Go scheduler, which is dear on a locked thread.
func (p pinned) Throughput() int { return 1 << 20 }
