package actors

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"
	"go.uber.org/zap/exp/zapslog"

	"github.com/meshrun/meshrun/axis"
	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/messages"
)

// Defaults of Config.
const (
	DefaultInflight = 64
	DefaultQueue    = 4096
)

// Config starts a runtime.
type Config struct {
	// Open opens the mesh. It is called once, on the thread that will own it.
	Open func() (devicecgo.Device, error)

	NumLinks int // of each collective; 0 = 1
	Topology messages.Topology
	Policy   messages.Policy

	Inflight int  // launches inside the driver at once, but that a replay goes in whole; 0 = DefaultInflight
	Queue    int  // operations of a stream that are not yet launched; 0 = DefaultQueue
	Refuse   bool // a full queue refuses with ErrQueueFull instead of making the caller wait

	// Lockstep makes an emulated mesh and its streams advance in turns, so that a run is a function of its input. See Together.
	Lockstep bool
	// Record keeps a journal of what is done for each call.
	Record bool
	// DeviceTimes has the journal of an emulated mesh that was opened with device_times=on say when each device was at each call.
	DeviceTimes bool

	// Break switches rules off; the zero value none.
	Break Break

	Logger *zap.Logger // nil: silent
}

// Runtime is a running mesh.
type Runtime struct {
	cfg    Config
	thread *devicecgo.Thread
	system *actor.ActorSystem
	root   *actor.RootContext
	device *actor.PID
	log    *zap.Logger

	info devicecgo.MeshInfo
	mesh axis.Mesh

	actor *device // only for use on the thread
	turns *turns  // lockstep only

	mu       sync.Mutex
	streams  map[string]*Stream
	nStreams uint32
	released []*memory // given back, not yet seen by the device actor

	anyReleased atomic.Bool
	captures    captures
	journal     []*messages.Row
	closing     bool
	gone        chan struct{} // the device actor has ended: nobody answers any more
	closed      chan struct{}
	closeErr    error

	broken atomic.Pointer[error] // why nothing can be done any more
}

// Start opens the mesh and brings the actors up: every eager pool is made and fenced when it returns.
func Start(ctx context.Context, cfg Config) (*Runtime, error) {
	if cfg.NumLinks == 0 {
		cfg.NumLinks = 1
	}
	for _, l := range []struct {
		field string
		value *int
		def   int
	}{{"inflight", &cfg.Inflight, DefaultInflight}, {"queue", &cfg.Queue, DefaultQueue}} {
		if *l.value < 0 {
			return nil, messages.Invalid("open", l.field, *l.value, "is positive, or 0 for %d", l.def)
		}
		if *l.value == 0 {
			*l.value = l.def
		}
	}
	if cfg.Policy > messages.Rotate {
		return nil, messages.Invalid("open", "policy", cfg.Policy, "is hold or rotate")
	}
	r := &Runtime{cfg: cfg, thread: devicecgo.NewThread(), streams: map[string]*Stream{}, gone: make(chan struct{}), closed: make(chan struct{}), log: cfg.Logger}
	if r.log == nil {
		r.log = zap.NewNop()
	}
	var dev devicecgo.Device
	var err error
	r.thread.Do(func() { dev, err = cfg.Open() })
	if err != nil {
		r.thread.Stop()
		return nil, err
	}
	fail := func(err error) (*Runtime, error) {
		r.thread.Do(func() { err = errors.Join(err, dev.Close()) })
		r.thread.Stop()
		return nil, err
	}
	r.info = dev.Info()
	r.mesh, err = axis.Open(axis.Machine{Shape: r.info.Shape, Grid: [2]int{r.info.GridX, r.info.GridY}, Links: r.info.Links, Wrap: r.info.Wrap}, cfg.NumLinks, cfg.Topology)
	if err != nil {
		return fail(err)
	}
	r.mesh = cfg.Break.mesh(r.mesh)
	if cfg.Lockstep {
		if dev.Emulator() == nil {
			return fail(messages.Invalid("open", "clock", "lockstep", "needs an emulated mesh"))
		}
		r.turns = newTurns(r)
	}
	// A message to an actor that has ended is harmless here; the library would start a goroutine per second to throttle its log of them.
	r.system = actor.NewActorSystem(actor.WithDeadLetterThrottleInterval(time.Nanosecond),
		actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slog.New(zapslog.NewHandler(r.log.Core())) }))
	r.root = r.system.Root

	opened := make(chan error, 1)
	r.actor = newDevice(r, dev, opened)
	props := actor.PropsFromProducer(func() actor.Actor { return r.actor },
		actor.WithDispatcher(pinned{r.thread}), actor.WithGuardian(actor.NewOneForOneStrategy(0, 0, stopAlways)), actor.WithSupervisor(actor.NewOneForOneStrategy(0, 0, stopAlways)))
	r.device, err = r.root.SpawnNamed(props, "device")
	if err != nil {
		return fail(fmt.Errorf("%w: %w", messages.ErrInternal, err))
	}
	select {
	case err = <-opened:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return nil, errors.Join(err, r.Close(context.Background()))
	}
	return r, nil
}

// stopAlways is the supervision of this version: an actor that fails is stopped, and what needs it fails with a typed error.
func stopAlways(any) actor.Directive { return actor.StopDirective }

// Info is what the driver told of the mesh.
func (r *Runtime) Info() devicecgo.MeshInfo { return r.info }

// Mesh is the mesh as the rules see it, with the resolved topology of each axis.
func (r *Runtime) Mesh() axis.Mesh { return r.mesh }

// Stream makes a stream. Names are unique; "" gets one.
func (r *Runtime) Stream(name string) (*Stream, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing {
		return nil, messages.ErrClosed
	}
	if why := r.broken.Load(); why != nil {
		return nil, fmt.Errorf("stream: %w", *why)
	}
	r.nStreams++
	if name == "" {
		name = "stream" + strconv.Itoa(int(r.nStreams))
	}
	if _, ok := r.streams[name]; ok {
		return nil, messages.Invalid("stream", "name", strconv.Quote(name), "is not in use")
	}
	s := newStream(r, name, r.nStreams)
	props := actor.PropsFromProducer(func() actor.Actor { return &streamActor{s: s} },
		actor.WithDispatcher(pinned{r.thread}), actor.WithGuardian(actor.NewOneForOneStrategy(0, 0, stopAlways)))
	pid, err := r.root.SpawnNamed(props, "stream/"+name)
	if err != nil {
		return nil, fmt.Errorf("%w: stream %q: %w", messages.ErrInternal, name, err)
	}
	s.pid = pid
	r.streams[name] = s
	r.root.Send(r.device, &streamOpened{s})
	return s, nil
}

// abandon answers what waits on any stream: the device actor is gone. A stream that comes later finds the mesh broken.
func (r *Runtime) abandon(why error) {
	r.mu.Lock()
	streams := make([]*Stream, 0, len(r.streams))
	for _, s := range r.streams {
		streams = append(streams, s)
	}
	r.mu.Unlock()
	for _, s := range streams {
		s.abandon(why)
	}
}

// forget frees the name of a closed stream; its actor ends when everything is answered.
func (r *Runtime) forget(s *Stream) {
	r.mu.Lock()
	known := r.streams[s.name] == s
	if known {
		delete(r.streams, s.name)
	}
	r.mu.Unlock()
	if known {
		r.root.Send(s.pid, doorbell{}) // what is still in the outbox goes first
		r.root.Send(s.pid, &streamClosed{s})
	}
}

// freed takes a memory whose last reference is gone. The device actor frees it or gives its bank back.
func (r *Runtime) freed(m *memory) {
	r.mu.Lock()
	first := len(r.released) == 0
	r.released = append(r.released, m)
	r.anyReleased.Store(true)
	r.mu.Unlock()
	if first {
		r.root.Send(r.device, collect{})
	}
}

func (r *Runtime) takeReleased(into []*memory) []*memory {
	r.mu.Lock()
	defer r.mu.Unlock()
	into, r.released = r.released, into[:0]
	r.anyReleased.Store(false)
	return into
}

// ask sends a request to the device actor and waits for its one answer.
func ask[T any](ctx context.Context, r *Runtime, make func(reply chan<- answer[T]) any) (T, error) {
	var zero T
	reply := newReply[T]()
	r.root.Send(r.device, make(reply))
	select {
	case a := <-reply:
		return a.value, a.err
	case <-ctx.Done():
		return zero, ctx.Err()
	case <-r.gone:
		select {
		case a := <-reply:
			return a.value, a.err
		default:
			return zero, r.why()
		}
	}
}

type answer[T any] struct {
	value T
	err   error
}

func newReply[T any]() chan answer[T] { return make(chan answer[T], 1) }

// why is the error of whatever is asked for too late.
func (r *Runtime) why() error {
	if e := r.broken.Load(); e != nil {
		return *e
	}
	return messages.ErrClosed
}

// Stats are counts of a running mesh.
type Stats struct {
	Launches   uint64         `json:"launches"`   // accepted by the driver
	Retired    uint64         `json:"retired"`    // finished on every device
	Fences     uint64         `json:"fences"`     // mesh-wide, of all kinds
	Reuse      uint64         `json:"reuse"`      // of them: fences because a bank's last user had not been followed by a join
	Semaphores int            `json:"semaphores"` // live
	Buffers    int            `json:"buffers"`    // of all pools
	Traces     int            `json:"traces"`     // live
	Pools      map[string]int `json:"pools"`      // semaphores by pool and axis
}

// Stats asks the device actor for its counts.
func (r *Runtime) Stats(ctx context.Context) (Stats, error) {
	return ask(ctx, r, func(reply chan<- answer[Stats]) any { return &statsRequest{reply} })
}

// Report is the emulator's JSON report: hazards, hang, stats. It is ErrUnsupported on other meshes.
func (r *Runtime) Report(ctx context.Context) ([]byte, error) {
	return emulated(ctx, r, devicecgo.Emulator.Report)
}

// Inject gives the emulator a fault, a line of docs/faults.md.
func (r *Runtime) Inject(ctx context.Context, fault string) error {
	_, err := emulated(ctx, r, func(e devicecgo.Emulator) (struct{}, error) { return struct{}{}, e.Fault(fault) })
	return err
}

// Now is the virtual time of an emulated mesh in ns.
func (r *Runtime) Now(ctx context.Context) (uint64, error) {
	return emulated(ctx, r, devicecgo.Emulator.Now)
}

// emulated runs a call of the emulator's extension on the owner thread.
func emulated[T any](ctx context.Context, r *Runtime, call func(devicecgo.Emulator) (T, error)) (T, error) {
	return ask(ctx, r, func(reply chan<- answer[T]) any {
		return onDevice(func(d devicecgo.Device) {
			e := d.Emulator()
			if e == nil {
				var zero T
				reply <- answer[T]{zero, fmt.Errorf("%w: the mesh is not emulated", messages.ErrUnsupported)}
				return
			}
			v, err := call(e)
			reply <- answer[T]{v, err}
		})
	})
}

// Journal returns the rows recorded so far, in launch order. Their content is settled once what they describe has been waited for.
func (r *Runtime) Journal() []*messages.Row {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*messages.Row(nil), r.journal...)
}

func (r *Runtime) addRow(row *messages.Row) {
	r.mu.Lock()
	r.journal = append(r.journal, row)
	r.mu.Unlock()
}

// Kill ends an actor at once, as a fault would: "device", "axis/A", "pool/NAME[A]", "buffers" or "stream/NAME".
func (r *Runtime) Kill(name string) error {
	id := name
	if name != "device" && len(name) < 7 || name != "device" && name[:7] != "stream/" {
		id = "device/" + name
	}
	pid := actor.NewPID(r.system.Address(), id)
	if _, ok := r.system.ProcessRegistry.GetLocal(id); !ok {
		return messages.Invalid("kill", "actor", strconv.Quote(name), "is a running actor")
	}
	r.root.Stop(pid)
	return nil
}

// closeGrace bounds how long Close waits for launches in flight, unless its context ends sooner.
const closeGrace = 5 * time.Second

// Close ends the mesh: new requests are refused, queued ones fail with ErrClosed, launches in flight may finish within a grace
// time, every handle is freed. It returns in bounded time, and again when called again.
func (r *Runtime) Close(ctx context.Context) error {
	r.mu.Lock()
	first := !r.closing
	r.closing = true
	streams := make([]*Stream, 0, len(r.streams))
	for _, s := range r.streams {
		streams = append(streams, s)
	}
	r.mu.Unlock()
	if first {
		go r.close(ctx, streams)
	}
	<-r.closed
	return r.closeErr
}

func (r *Runtime) close(ctx context.Context, streams []*Stream) {
	defer close(r.closed)
	for _, s := range streams {
		s.shut(messages.ErrClosed)
	}
	if r.turns != nil {
		r.turns.stop()
	}
	ctx, cancel := context.WithTimeout(ctx, closeGrace)
	defer cancel()
	if r.broken.Load() == nil {
		drained := newReply[struct{}]()
		r.root.Send(r.device, &drainRequest{reply: drained})
		select {
		case <-drained:
		case <-ctx.Done():
		case <-r.thread.Done():
		}
	}
	for _, s := range streams {
		r.root.Stop(s.pid)
	}
	ended := make(chan error, 1)
	go func() {
		var err error
		r.thread.Do(func() { err = r.actor.end() })
		ended <- err
	}()
	select {
	case r.closeErr = <-ended:
	case <-time.After(closeGrace):
		r.closeErr = fmt.Errorf("%w: the driver did not let go of the mesh within %v", messages.ErrTimeout, closeGrace)
	}
	stopped := make(chan struct{})
	go func() { r.thread.Stop(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(closeGrace):
	}
	for _, s := range streams {
		s.abandon(r.why())
	}
}
