package meshrun

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/meshrun/meshrun/actors"
	"github.com/meshrun/meshrun/axis"
	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/devicecgo/emulator"
	"github.com/meshrun/meshrun/devicecgo/null"
	"github.com/meshrun/meshrun/messages"
)

// The words of the runtime, from package messages.
type (
	// Shape is the per-device shape of a tensor.
	Shape = messages.Shape
	// DType is the storage type of a tensor's elements.
	DType = messages.DType
	// Layout is the order of elements in device memory.
	Layout = messages.Layout
	// Spec describes one shard of a tensor.
	Spec = messages.Spec
	// MeshShape is the number of rows and columns of a mesh.
	MeshShape = messages.MeshShape
	// Coord is the place of a device on the mesh.
	Coord = messages.Coord
	// Topology is the shape in which a collective goes along an axis.
	Topology = messages.Topology
	// Policy says how long memory handed to a caller is his.
	Policy = messages.Policy
	// Distribution says how a host array is laid over the mesh.
	Distribution = messages.Distribution
	// Row is one step of a journal.
	Row = messages.Row
	// Stats are counts of a running mesh.
	Stats = actors.Stats
)

// Dtypes, layouts, topologies, policies.
const (
	BFloat16 = messages.BFloat16
	Float32  = messages.Float32
	UInt32   = messages.UInt32
	Int32    = messages.Int32
	UInt16   = messages.UInt16
	UInt8    = messages.UInt8
	BFloat8B = messages.BFloat8B

	Tile     = messages.Tile
	RowMajor = messages.RowMajor

	TopologyUnset = messages.TopologyUnset
	Linear        = messages.Linear
	Ring          = messages.Ring

	Hold   = messages.Hold
	Rotate = messages.Rotate

	NoAxis = messages.NoAxis
)

// The kinds of errors; errors.Is finds them.
var (
	ErrInvalid      = messages.ErrInvalid
	ErrReleased     = messages.ErrReleased
	ErrClosed       = messages.ErrClosed
	ErrQueueFull    = messages.ErrQueueFull
	ErrPoisoned     = messages.ErrPoisoned
	ErrOutOfMemory  = messages.ErrOutOfMemory
	ErrRejected     = messages.ErrRejected
	ErrTimeout      = messages.ErrTimeout
	ErrDeviceLost   = messages.ErrDeviceLost
	ErrHazard       = messages.ErrHazard
	ErrUnsupported  = messages.ErrUnsupported
	ErrWrongThread  = messages.ErrWrongThread
	ErrActorStopped = messages.ErrActorStopped
	ErrBudget       = messages.ErrBudget
	ErrBusy         = messages.ErrBusy
	ErrInternal     = messages.ErrInternal
)

// Replicate gives every device the whole array.
var Replicate = messages.Replicate

// ShardOn cuts along dim over one mesh axis, 0 or 1, and replicates over the other. It panics on another axis.
func ShardOn(axis, dim int) Distribution { return messages.ShardOn(axis, dim) }

// NewShape makes a shape, each dim at least 1.
func NewShape(dims ...int) (Shape, error) { return messages.NewShape(dims...) }

// ShapeOf is NewShape for constants; it panics on a wrong one.
func ShapeOf(dims ...int) Shape { return messages.ShapeOf(dims...) }

// Mode says whether an emulated mesh moves and computes data.
type Mode string

// Functional computes real data; Timing moves none, so that big models run on big meshes.
const (
	Functional Mode = "functional"
	Timing     Mode = "timing"
)

// Config opens a mesh. The zero value of a field is its default.
type Config struct {
	// Driver is "emulator" (the default), "null" (does nothing, at once), or the path of a shared library.
	Driver string
	// Mesh is the shape. It may be left out with a preset.
	Mesh MeshShape
	// Preset names a real machine, such as "wh-t3000-2x4"; emulator only. Presets lists them.
	Preset string

	// NumLinks is how many links per edge a collective uses; 0 = 1. Without a preset an emulated mesh has as many.
	NumLinks int
	Topology Topology
	// Policy is Hold by default. Rotate is the reference's behaviour, legal for one stream on one queue.
	Policy Policy
	Queues int // command queues; 0 = 1

	Inflight int  // launches inside the driver at once, but that a replay goes in whole; 0 = 64
	Queue    int  // operations of a stream not yet launched; 0 = 4096
	Refuse   bool // a full queue refuses with ErrQueueFull instead of making the caller wait

	// The emulator's.
	Mode     Mode
	Seed     uint64
	Lockstep bool     // streams and virtual time advance in turns: see Mesh.Together
	GridX    int      // compute cores; 0 = the preset's, or 8
	GridY    int      //
	Settings []Option // further settings of the driver, see docs/emulator.md

	// Record keeps a journal of every call.
	Record bool
	// DeviceTimes has the journal of an emulated mesh say, for each call, when each device began and ended it, and how long it waited
	// for others to begin.
	DeviceTimes bool
	// NoProgress are the limits of an emulated mesh: an operation that waits, and of which nothing moves for longer, is a hang. By operation, as the
	// report calls it; that of "" is for all others. Whole microseconds; 0 and absent: none.
	NoProgress map[string]time.Duration
	// Skew puts the devices and links of an emulated mesh apart by seeded delays of up to so long; whole microseconds.
	Skew time.Duration
	// GoOn lets an emulated mesh go on after a hazard, which its report then lists. Otherwise it stops at the first, with ErrHazard.
	GoOn bool
	// Break switches rules off, to prove that they matter: "one_bank POOL[AXIS]", "no_creation_fence", "no_start_barrier", "ring_halo",
	// "linear_intermediate". What runs with a broken rule is worth nothing.
	Break []string

	Logger *zap.Logger
}

// Option is one driver-specific setting.
type Option struct{ Key, Value string }

// Mesh is an open mesh. Its methods may be called from any goroutine.
type Mesh struct {
	rt     *actors.Runtime
	driver string
}

// Open opens a mesh, makes and fences the eager pools, and returns when it can take work.
func Open(ctx context.Context, c Config) (*Mesh, error) {
	if c.Driver == "" {
		c.Driver = emulator.Name
	}
	if c.Mode == "" {
		c.Mode = Functional
	}
	if c.Mode != Functional && c.Mode != Timing {
		return nil, messages.Invalid("open", "mode", strconv.Quote(string(c.Mode)), "is functional or timing")
	}
	if c.NumLinks < 0 {
		return nil, messages.Invalid("open", "num_links", c.NumLinks, "is at least 1")
	}
	if c.Queues < 0 {
		return nil, messages.Invalid("open", "queues", c.Queues, "is at least 1")
	}
	if c.Preset == "" {
		if err := c.Mesh.Validate(); err != nil {
			return nil, err
		}
	}
	if err := c.checkReshape(); err != nil {
		return nil, err
	}
	driver, err := drivers().Lookup(c.Driver)
	if err != nil {
		return nil, err
	}
	broken, err := parseBreaks(c.Break)
	if err != nil {
		return nil, err
	}
	if c.Skew < 0 || c.Skew%time.Microsecond != 0 {
		return nil, messages.Invalid("open", "skew", c.Skew, "is a whole number of microseconds, at least 0")
	}
	for op, limit := range c.NoProgress {
		if limit < 0 || limit%time.Microsecond != 0 {
			return nil, messages.Invalid("open", "no_progress "+op, limit, "is a whole number of microseconds, at least 0")
		}
	}
	options := devicecgo.Options{Shape: c.Mesh, Queues: c.Queues}
	if c.Driver == emulator.Name {
		options.Config = append(c.emulator(), broken.settings...)
	}
	for _, o := range c.Settings {
		options.Config = append(options.Config, devicecgo.Setting{Key: o.Key, Value: o.Value})
	}
	rt, err := actors.Start(ctx, actors.Config{
		Open:     func() (devicecgo.Device, error) { return opened(driver.Open(options)) },
		NumLinks: c.NumLinks, Topology: c.Topology, Policy: c.Policy, Inflight: c.Inflight, Queue: c.Queue, Refuse: c.Refuse,
		Lockstep: c.Lockstep, Record: c.Record, DeviceTimes: c.DeviceTimes, Break: broken.rules, Logger: c.Logger,
	})
	if err != nil {
		return nil, err
	}
	return &Mesh{rt: rt, driver: c.Driver}, nil
}

// checkReshape refuses a mesh beside a preset of another shape.
func (c *Config) checkReshape() error {
	if c.Preset == "" || c.Mesh == (MeshShape{}) || c.Driver != emulator.Name {
		return nil
	}
	presets, err := Presets()
	if err != nil {
		return err
	}
	for _, p := range presets {
		if m := p.Machine(); p.Name == c.Preset && m.Shape != c.Mesh {
			if err := c.Mesh.Validate(); err != nil {
				return err
			}
			e := axis.ReshapeError(p.Name, m, c.Mesh)
			e.Op = "open"
			return e
		}
	}
	return nil
}

// opened keeps a nil *devicecgo.Mesh from becoming a non-nil Device.
func opened(m *devicecgo.Mesh, err error) (devicecgo.Device, error) {
	if err != nil {
		return nil, err
	}
	return m, nil
}

func drivers() *devicecgo.Registry {
	return devicecgo.NewRegistry(append(null.Drivers(), emulator.Driver())...)
}

func (c *Config) emulator() []devicecgo.Setting {
	s := []devicecgo.Setting{{Key: "mode", Value: string(c.Mode)}, {Key: "seed", Value: strconv.FormatUint(c.Seed, 10)}, {Key: "clock", Value: "free"}}
	if c.Lockstep {
		s[2].Value = "lockstep"
	}
	add := func(key string, n int) {
		if n != 0 {
			s = append(s, devicecgo.Setting{Key: key, Value: strconv.Itoa(n)})
		}
	}
	if c.Preset != "" {
		s = append(s, devicecgo.Setting{Key: "preset", Value: c.Preset})
	} else {
		add("num_links", max(c.NumLinks, 1))
	}
	add("skew_us", int(c.Skew/time.Microsecond))
	if c.GoOn {
		s = append(s, devicecgo.Setting{Key: "on_hazard", Value: "continue"})
	}
	for _, op := range slices.Sorted(maps.Keys(c.NoProgress)) {
		key := "no_progress_us"
		if op != "" {
			key += "[" + op + "]"
		}
		s = append(s, devicecgo.Setting{Key: key, Value: strconv.FormatInt(c.NoProgress[op].Microseconds(), 10)})
	}
	if c.DeviceTimes {
		s = append(s, devicecgo.Setting{Key: "device_times", Value: "on"})
	}
	add("grid_x", c.GridX)
	add("grid_y", c.GridY)
	return s
}

// Preset describes one machine that the emulator knows.
type Preset struct {
	Name  string  `json:"name"`
	Arch  string  `json:"arch"`
	Mesh  [2]int  `json:"mesh"`       // rows and columns
	Grid  [2]int  `json:"grid"`       // compute cores per device, x and y
	Links [2]int  `json:"links"`      // per edge of each axis
	Wrap  [2]bool `json:"wrap"`       // whether the axis closes into a ring
	DRAM  int64   `json:"dram_bytes"` // per device
	L1    int64   `json:"l1_bytes"`   // per core
}

// Machine is the preset as the rules of package axis see it.
func (p Preset) Machine() axis.Machine {
	return axis.Machine{Shape: MeshShape{Rows: p.Mesh[0], Cols: p.Mesh[1]}, Grid: p.Grid, Links: p.Links, Wrap: p.Wrap}
}

// Presets lists the machines that the emulator knows.
func Presets() ([]Preset, error) {
	text, err := emulator.Presets()
	if err != nil {
		return nil, err
	}
	var p []Preset
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, fmt.Errorf("%w: the emulator's presets: %w", ErrInternal, err)
	}
	return p, nil
}

// Info describes an open mesh.
type Info struct {
	Driver   string
	Name     string // of the machine
	Arch     string
	Mesh     MeshShape
	GridX    int
	GridY    int
	Queues   int
	NumLinks int         // that collectives use
	Links    [2]int      // per edge of each axis
	Wrap     [2]bool     // whether the axis closes into a ring
	Topology [2]Topology // of each axis, resolved
	DRAM     int64       // bytes per device
	L1       int64       // bytes per core
}

// Info describes the mesh.
func (m *Mesh) Info() Info {
	i, mesh := m.rt.Info(), m.rt.Mesh()
	return Info{Driver: m.driver, Name: i.Name, Arch: i.Arch, Mesh: i.Shape, GridX: i.GridX, GridY: i.GridY, Queues: i.Queues,
		NumLinks: mesh.NumLinks, Links: i.Links, Wrap: i.Wrap, Topology: mesh.Topology, DRAM: i.DRAMBytes, L1: i.L1Bytes}
}

// Stream makes a stream: one caller's ordered sequence of operations. Names are unique while the stream is open; "" gets one.
func (m *Mesh) Stream(name string) (*Stream, error) {
	s, err := m.rt.Stream(name)
	if err != nil {
		return nil, err
	}
	return &Stream{m: m, s: s}, nil
}

// Together makes streams of a lockstep mesh take turns, in this order, until each is closed: then what is submitted, granted and timed
// is a function of their programs and the seed. Each of the streams must be used by one goroutine.
func (m *Mesh) Together(streams ...*Stream) {
	inner := make([]*actors.Stream, len(streams))
	for i, s := range streams {
		inner[i] = s.s
	}
	m.rt.Together(inner...)
}

// Stats returns the counts of the mesh.
func (m *Mesh) Stats(ctx context.Context) (Stats, error) { return m.rt.Stats(ctx) }

// Report returns the emulator's report as JSON: hazards, hang, stats. ErrUnsupported elsewhere.
func (m *Mesh) Report(ctx context.Context) ([]byte, error) { return m.rt.Report(ctx) }

// Inject gives the emulator a fault, such as "device 0,1 stop at launch 20", which counts launches on the mesh: one that has been is ErrInvalid.
// ErrUnsupported elsewhere.
func (m *Mesh) Inject(ctx context.Context, fault string) error { return m.rt.Inject(ctx, fault) }

// Now is the virtual time of an emulated mesh in ns.
func (m *Mesh) Now(ctx context.Context) (uint64, error) { return m.rt.Now(ctx) }

// Journal returns the rows recorded so far (Config.Record), in launch order.
func (m *Mesh) Journal() []*Row { return m.rt.Journal() }

// AddRow puts a row of the caller's own into the journal, behind those that are there.
func (m *Mesh) AddRow(row *Row) { m.rt.AddRow(row) }

// Kill ends an actor as a fault would: "device", "axis/0", "pool/ag[1]", "buffers" or "stream/NAME". What needs it then fails with
// ErrActorStopped; the rest goes on.
func (m *Mesh) Kill(actor string) error { return m.rt.Kill(actor) }

// Close ends the mesh: queued operations fail with ErrClosed, launches in flight get a grace time or until ctx ends, all memory is
// freed. It returns in bounded time.
func (m *Mesh) Close(ctx context.Context) error { return m.rt.Close(ctx) }
