package casefile

import (
	"github.com/meshrun/meshrun/messages"
)

// Case is one case file, decoded.
type Case struct {
	Name     string
	Mesh     messages.MeshShape // zero: the preset's
	Preset   string
	GridX    int // 0: the default
	GridY    int
	NumLinks int // 0: 1
	Topology messages.Topology
	Queues   int
	Timing   bool // moves no data
	Seed     uint64
	Policy   messages.Policy
	Rounding string // "once", "per_hop" or "" (the emulator's)
	Refuse   bool   // a full queue refuses
	Limits   Limits
	Faults   []string
	SkewUS   int
	Break    []string // rules switched off
	GoOn     bool     // after a hazard
	Tensors  []Tensor // in the order of the file
	Streams  []Stream
}

// Limits bound what a case may use; 0 is the default of each.
type Limits struct {
	HostBytes int64 // of the emulation's data, functional mode
	DRAMBytes int64 // per device
	L1Bytes   int64 // per core
	Queue     int
	Inflight  int
	// NoProgress is in microseconds, by operation; that of "" is for all others.
	NoProgress map[string]int
}

// DefaultHostBytes is the host memory that a functional case may need when it does not say.
const DefaultHostBytes = 4 << 30

// MainStream is the name of the one stream of a case with "calls".
const MainStream = "main"

// Tensor is one tensor of the case, made before the streams start.
type Tensor struct {
	Name string
	Spec messages.Spec
	Fill Fill
}

// Stream is one concurrent sequence of calls.
type Stream struct {
	Name  string
	Calls []Call
}

// Call is one call of a stream.
type Call struct {
	Name  string // of the operation
	Where string // in the file, such as "streams[0].calls[2]"

	In        []string       // names of tensors by the action's slots; "" = absent
	Anonymous *messages.Spec // instead of In[0]: zeros for this call alone
	Given     messages.Spec  // dtype and layout that In[0] must have; unset = any

	Semaphores []string // leases that stand for the neighbour semaphores of a halo exchange

	Out    []string // names for the results
	Action Action
	Expect string // part of the error that the call must end with, lower case; "" = it must not fail

	offset int64
}

// Action is what a call does. The types below are all there are.
type Action interface{ action() }

// Submit hands an operation to the mesh.
type Submit struct {
	Op    messages.Operation
	Wait  bool                           // a getter: goes on when it has what it asked for
	Check func(in []messages.Spec) error // what the operation itself does not check; nil = nothing
}

// Lease turns a pool of semaphores and takes its bank.
type Lease struct{ Op messages.GetSemaphores }

// HaloScatter exchanges halos and writes them round the interior: in place where the tensor is padded already, else in a padded buffer.
type HaloScatter struct {
	Halo       messages.NeighborPadHalo
	BorderOnly bool
}

// DeviceToHost gathers along a dim per mesh axis and copies what one device then holds.
type DeviceToHost struct {
	Dims       [2]*int // nil: not along that axis
	Persistent bool
}

// Reset puts every semaphore to 0 and every pool to its first bank.
type Reset struct{}

// Prewarm makes the buffers of the keys that are not there yet.
type Prewarm struct{ Keys []messages.BufferKey }

// ReleaseBuffers frees the pools of the keys; all pools where All is set.
type ReleaseBuffers struct {
	Keys []messages.BufferKey
	All  bool
}

// Answer returns a value without any work.
type Answer struct{ Value any }

// Refuse is a call whose arguments break a rule.
type Refuse struct{ Err error }

// Read waits for a tensor and copies its shards to the host.
type Read struct{ At *messages.Coord }

// Write makes a tensor of the host's data, or replaces what the name In[0] stands for.
type Write struct {
	Spec messages.Spec
	Fill Fill
}

// Release gives tensors back.
type Release struct{ Names []string }

// Fence waits until everything that the mesh was given before has been done on every device.
type Fence struct{}

// Sleep lets virtual time pass.
type Sleep struct{ NS uint64 }

func (Submit) action()         {}
func (Lease) action()          {}
func (HaloScatter) action()    {}
func (DeviceToHost) action()   {}
func (Reset) action()          {}
func (Prewarm) action()        {}
func (ReleaseBuffers) action() {}
func (Answer) action()         {}
func (Refuse) action()         {}
func (Read) action()           {}
func (Write) action()          {}
func (Release) action()        {}
func (Fence) action()          {}
func (Sleep) action()          {}
