package devicecgo

import "github.com/meshrun/meshrun/messages"

// MeshInfo is what a driver tells of its mesh.
type MeshInfo struct {
	Name, Arch     string
	Shape          messages.MeshShape
	GridX, GridY   int // compute cores per device
	Queues         int
	Links          [2]int  // per edge along each axis
	Wrap           [2]bool // whether the axis closes into a ring
	DRAMBytes      int64   // per device
	L1Bytes        int64   // per core
	ExclusiveCores bool
	AnyThread      bool // the driver takes calls from any thread
}

// TensorSpec is a spec as the driver gets it: with what only an allocation needs.
type TensorSpec struct {
	messages.Spec
	Zeroed               bool
	ShardRows, ShardCols int // L1 only: height sharded over the grid; 0 = interleaved
}

// Device is the face of an open mesh. *Mesh implements it over cgo; tests implement it in Go.
//
// Every method must be called on the thread that opened the mesh. The errors wrap a kind of package messages: ErrInvalid,
// ErrReleased (a stale handle), ErrWrongThread, ErrOutOfMemory, ErrRejected, ErrTimeout, ErrDeviceLost, ErrHazard, ErrUnsupported, ErrInternal.
type Device interface {
	Info() MeshInfo

	// AllocTensor allocates one shard of the spec on every device.
	AllocTensor(spec TensorSpec) (Handle, error)
	// ViewTensor names the memory of a tensor by another shape of as many elements. Both must be freed.
	ViewTensor(tensor Handle, shape messages.Shape) (Handle, error)
	// WriteTensor lays a host array of the tensor's dtype over the mesh, in the order of the queue. It copies.
	WriteTensor(tensor Handle, dist messages.Distribution, data []byte, queue int) error
	// ReadTensor copies the shard of one device to the host. What writes it must be done.
	ReadTensor(tensor Handle, at messages.Coord, data []byte) error
	TensorSpec(tensor Handle) (messages.Spec, error)
	FreeTensors(tensors ...Handle) error

	CreateSemaphores(initial uint32, out []Handle) error
	ResetSemaphores(value uint32, semaphores []Handle) error
	FreeSemaphores(semaphores []Handle) error

	// RecordEvent marks the queue; QueryEvent is true when all that was enqueued before the mark has retired on every device.
	RecordEvent(queue int) (Handle, error)
	QueryEvent(event Handle) (bool, error)
	WaitOnEvent(queue int, event Handle) error
	FreeEvent(event Handle) error

	// BeginTrace makes the driver keep what is launched on the queue instead of launching it, until EndTrace. Results get their memory then.
	BeginTrace(queue int) (Handle, error)
	EndTrace(trace Handle) error
	// ExecuteTrace launches all that a trace holds, with launch numbers from first on.
	ExecuteTrace(trace Handle, queue int, first uint64) error
	// FreeTrace lets go of what a trace names. A trace that has not ended is abandoned.
	FreeTrace(trace Handle) error

	// Launch enqueues one operation. On success the output handles in args are set.
	Launch(args Args) error
	// NextFailure returns the oldest launch that ran and failed and has not been returned yet; launch 0 when there is none.
	NextFailure() (launch uint64, failure error, err error)

	// Emulator is nil unless the mesh is emulated.
	Emulator() Emulator

	// Close ends the mesh, also with work in flight, in bounded time. Handles are gone afterwards.
	Close() error
}

// ClockState is how an advance of virtual time ended.
type ClockState int

// ClockProgress: an event is done or the time is reached. ClockIdle: nothing is left to do. ClockBusy: call again.
const (
	ClockProgress ClockState = iota
	ClockIdle
	ClockBusy
)

// Emulator is what an emulated mesh can do beyond hardware. Same threads, same errors.
type Emulator interface {
	// Now is the virtual time of the host in ns.
	Now() (uint64, error)
	// Advance lets virtual time run until an event not yet seen done is done, until untilNS, or until nothing is left, parking
	// the caller at most maxWaitUS of real time.
	Advance(untilNS uint64, maxWaitUS int) (ClockState, error)
	// LaunchTimes returns the first start and the last end of a retired launch over the devices, in virtual ns.
	LaunchTimes(launch uint64) (start, end uint64, err error)
	// LaunchDevices returns the times of a retired launch on each device, row by row; none unless the mesh was opened with device_times=on.
	LaunchDevices(launch uint64) ([]messages.DeviceTime, error)
	// Fault injects one fault, a line of docs/faults.md.
	Fault(line string) error
	// Report is the JSON object of hazards, hang and stats.
	Report() ([]byte, error)
	// SemaphoreValue is the value on core (0,0) of a device.
	SemaphoreValue(semaphore Handle, at messages.Coord) (uint32, error)
	// Name tells the emulator how reports call a tensor or a semaphore.
	Name(object Handle, name string) error
	// NameStream does so for a stream, before its first launch.
	NameStream(stream uint32, name string) error
}

// Options open a mesh.
type Options struct {
	Shape  messages.MeshShape // zero: the driver's own
	Queues int                // 0 = 1
	Config []Setting          // driver-specific
}

// Setting is one driver-specific key and value.
type Setting struct{ Key, Value string }
