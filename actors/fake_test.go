package actors

import (
	"fmt"
	"reflect"
	"sync"

	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/messages"
)

// fakeDevice is a mesh in Go that records what is done to it and completes launches only when told to (or at once). It can refuse and
// fail launches. Its log is what the referee of rule 4 reads.
type fakeDevice struct {
	info devicecgo.MeshInfo

	mu       sync.Mutex
	manual   bool // launches retire only through finish
	finished uint64
	launches uint64
	next     devicecgo.Handle
	live     map[devicecgo.Handle]string
	specs    map[devicecgo.Handle]messages.Spec
	events   map[devicecgo.Handle]uint64
	log      []entry
	refuse   func(devicecgo.Args) error
	fail     map[uint64]error
	closed   int
	allocErr error
	// of all events from now on
	recordErr error
	panicOn   uint64

	traces    map[devicecgo.Handle][]entry // by handle
	capturing devicecgo.Handle
	traceErr  error // of the next call of a trace
}

// trace makes a call of a trace.
func (f *fakeDevice) trace(call func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.traceErr; err != nil {
		f.traceErr = nil
		return err
	}
	return call()
}

func (f *fakeDevice) BeginTrace(int) (h devicecgo.Handle, err error) {
	return h, f.trace(func() error {
		if f.capturing != 0 {
			return fmt.Errorf("%w: a trace within a trace", messages.ErrRejected)
		}
		if f.traces == nil {
			f.traces = map[devicecgo.Handle][]entry{}
		}
		h = f.fresh("trace", messages.Spec{})
		f.capturing, f.traces[h] = h, nil
		return nil
	})
}

func (f *fakeDevice) EndTrace(h devicecgo.Handle) error {
	return f.trace(func() error {
		if f.capturing != h {
			return fmt.Errorf("%w: not captured", messages.ErrRejected)
		}
		f.capturing = 0
		return nil
	})
}

func (f *fakeDevice) ExecuteTrace(h devicecgo.Handle, _ int, first uint64) error {
	return f.trace(func() error {
		if f.live[h] != "trace" || f.capturing != 0 {
			return fmt.Errorf("%w: trace %d", messages.ErrReleased, h)
		}
		for _, e := range f.traces[h] {
			f.launches++
			e.launch = f.launches
			f.log = append(f.log, e)
		}
		if n := uint64(len(f.traces[h])); f.launches-n+1 != first {
			return fmt.Errorf("%w: launch %d after %d", messages.ErrInternal, first, f.launches-n)
		}
		return nil
	})
}

func (f *fakeDevice) FreeTrace(h devicecgo.Handle) error {
	return f.trace(func() error {
		if f.live[h] != "trace" {
			return fmt.Errorf("%w: trace %d", messages.ErrReleased, h)
		}
		if f.capturing == h {
			f.capturing = 0
		}
		delete(f.live, h)
		f.log = append(f.log, entry{kind: "free trace", handle: h, launch: f.finished})
		return nil
	})
}

// strict refuses what a driver refuses while a trace is captured.
func (f *fakeDevice) strict(what string) error {
	if f.capturing != 0 {
		return fmt.Errorf("%w: %s while a trace is captured", messages.ErrRejected, what)
	}
	return nil
}

// entry is one call that matters for the rules.
type entry struct {
	kind   string // "create", "fence" (an event seen done), "launch", "free"
	handle devicecgo.Handle
	args   any // a copy of the args struct of a launch
	launch uint64
	stream uint32
	upTo   uint64 // of a fence
}

func newFake(rows, cols int) *fakeDevice {
	return &fakeDevice{
		info: devicecgo.MeshInfo{Name: "fake", Shape: messages.MeshShape{Rows: rows, Cols: cols}, GridX: 8, GridY: 8, Queues: 1,
			Links: [2]int{4, 4}, Wrap: [2]bool{rows > 2, cols > 2}},
		live: map[devicecgo.Handle]string{}, specs: map[devicecgo.Handle]messages.Spec{}, events: map[devicecgo.Handle]uint64{}, fail: map[uint64]error{},
	}
}

func (f *fakeDevice) fresh(kind string, spec messages.Spec) devicecgo.Handle {
	f.next++
	f.live[f.next] = kind
	f.specs[f.next] = spec
	return f.next
}

// hold keeps the launches from retiring by themselves.
func (f *fakeDevice) hold() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.manual = true
}

// finish lets the launches up to n retire.
func (f *fakeDevice) finish(n uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.finished = max(f.finished, n)
}

func (f *fakeDevice) count() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.launches
}

func (f *fakeDevice) liveOf(kind string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, k := range f.live {
		if k == kind {
			n++
		}
	}
	return n
}

func (f *fakeDevice) Info() devicecgo.MeshInfo { return f.info }

func (f *fakeDevice) AllocTensor(spec devicecgo.TensorSpec) (devicecgo.Handle, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.allocErr != nil {
		return 0, f.allocErr
	}
	if err := f.strict("allocation"); err != nil {
		return 0, err
	}
	h := f.fresh("tensor", spec.Spec)
	f.log = append(f.log, entry{kind: "create", handle: h})
	return h, nil
}

func (f *fakeDevice) ViewTensor(t devicecgo.Handle, shape messages.Shape) (devicecgo.Handle, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.live[t] == "" {
		return 0, fmt.Errorf("%w: view", messages.ErrReleased)
	}
	spec := f.specs[t]
	spec.Shape = shape
	return f.fresh("view", spec), nil
}

func (f *fakeDevice) WriteTensor(devicecgo.Handle, messages.Distribution, []byte, int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.strict("write")
}
func (f *fakeDevice) ReadTensor(devicecgo.Handle, messages.Coord, []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.strict("read")
}
func (f *fakeDevice) TensorSpec(devicecgo.Handle) (messages.Spec, error) {
	return messages.Spec{}, nil
}

func (f *fakeDevice) FreeTensors(ts ...devicecgo.Handle) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range ts {
		if f.live[t] == "" {
			return fmt.Errorf("%w: free of %d", messages.ErrReleased, t)
		}
		delete(f.live, t)
		f.log = append(f.log, entry{kind: "free", handle: t, launch: f.finished})
	}
	return nil
}

func (f *fakeDevice) CreateSemaphores(_ uint32, out []devicecgo.Handle) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.strict("allocation"); err != nil {
		return err
	}
	for i := range out {
		out[i] = f.fresh("semaphore", messages.Spec{})
		f.log = append(f.log, entry{kind: "create", handle: out[i]})
	}
	return nil
}

func (f *fakeDevice) ResetSemaphores(_ uint32, sems []devicecgo.Handle) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range sems {
		f.log = append(f.log, entry{kind: "reset", handle: h})
	}
	return nil
}

func (f *fakeDevice) FreeSemaphores([]devicecgo.Handle) error { return nil }

func (f *fakeDevice) RecordEvent(int) (devicecgo.Handle, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.strict("event_record"); err != nil {
		return 0, err
	}
	if f.recordErr != nil {
		return 0, f.recordErr
	}
	h := f.fresh("event", messages.Spec{})
	f.events[h] = f.launches
	return h, nil
}

func (f *fakeDevice) QueryEvent(e devicecgo.Handle) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.manual {
		f.finished = f.launches
	}
	done := f.events[e] <= f.finished
	if done {
		f.log = append(f.log, entry{kind: "fence", upTo: f.events[e]})
	}
	return done, nil
}

func (f *fakeDevice) WaitOnEvent(int, devicecgo.Handle) error { return nil }

func (f *fakeDevice) FreeEvent(e devicecgo.Handle) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.live, e)
	delete(f.events, e)
	return nil
}

func (f *fakeDevice) Launch(args devicecgo.Args) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		if err := f.refuse(args); err != nil {
			return err
		}
	}
	h := args.Header()
	if f.panicOn != 0 && h.Launch == f.panicOn {
		f.panicOn = 0
		panic("the fake was told to")
	}
	if f.capturing != 0 {
		if h.Launch != 0 {
			return fmt.Errorf("%w: launch %d while a trace is captured", messages.ErrInternal, h.Launch)
		}
	} else {
		if h.Launch != f.launches+1 {
			return fmt.Errorf("%w: launch %d after %d", messages.ErrInternal, h.Launch, f.launches)
		}
		f.launches++
	}
	// Results that nobody has named are allocated, as a driver does.
	v := reflect.ValueOf(args).Elem()
	out := v.FieldByName("Output")
	if !out.IsValid() {
		return fmt.Errorf("%w: fake: %T", messages.ErrUnsupported, args)
	}
	if out.IsZero() {
		out.Set(reflect.ValueOf(f.fresh("tensor", messages.Spec{})))
	}
	e := entry{kind: "launch", args: v.Interface(), launch: h.Launch, stream: h.Stream}
	if f.capturing != 0 {
		f.traces[f.capturing] = append(f.traces[f.capturing], e)
	} else {
		f.log = append(f.log, e)
	}
	return nil
}

func (f *fakeDevice) NextFailure() (uint64, error, error) { //nolint:staticcheck // as the interface has it
	f.mu.Lock()
	defer f.mu.Unlock()
	for n, err := range f.fail {
		if n <= f.finished {
			delete(f.fail, n)
			return n, err, nil
		}
	}
	return 0, nil, nil
}

func (f *fakeDevice) Emulator() devicecgo.Emulator { return nil }

func (f *fakeDevice) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed++
	return nil
}

// use is one resource of a launch that peers write, with the pairs that do: whole lines of an axis, neighbours along it, or (single) a pool of
// one bank.
type use struct {
	what       string
	handle     devicecgo.Handle
	axis       uint32
	neighbours bool
	single     bool
	guarded    bool // by the launch's own start barrier or entry handshake
}

// joins is what a launch joins: lines, or neighbours, of an axis.
type joins struct {
	axis       uint32
	neighbours bool
}

// uses lists the resources of a launch, what it reads beside them, and whom it joins; written from the design's table, independent of package
// axis.
func uses(args any) (all []use, reads []devicecgo.Handle, joined []joins) {
	line := func(axis uint32, barrier devicecgo.Handle, sems []devicecgo.Handle, memory ...devicecgo.Handle) {
		all = append(all, use{what: "barrier", handle: barrier, axis: axis})
		for _, h := range sems {
			all = append(all, use{what: "semaphore", handle: h, axis: axis, guarded: barrier != 0})
		}
		for _, h := range memory {
			all = append(all, use{what: "memory", handle: h, axis: axis, guarded: barrier != 0})
		}
		joined = append(joined, joins{axis: axis})
	}
	switch a := args.(type) {
	case devicecgo.AllGather:
		line(a.Axis, a.Barrier, a.Semaphores[:], a.Output)
		reads = append(reads, a.Input)
	case devicecgo.ReduceScatter:
		line(a.Axis, a.Barrier, a.Semaphores[:], a.Output, a.Intermediate)
		reads = append(reads, a.Input)
	case devicecgo.FusedDistributedNorm:
		line(a.Axis, 0, a.Semaphores[:], a.Stats)
		reads = append(reads, a.Input)
	case devicecgo.RingJointSDPA:
		line(a.Axis, 0, a.Semaphores[:], a.BufferK, a.BufferV)
		reads = append(reads, a.Q, a.K, a.V)
	case devicecgo.SliceReshard:
		line(a.Axis, a.Barrier, []devicecgo.Handle{a.Semaphore})
		reads = append(reads, a.Input)
	case devicecgo.StridedAllGatherMatmul:
		line(a.Axis, 0, a.Semaphores[:], a.Gathered)
		reads = append(reads, a.Input, a.Weight)
	case devicecgo.MatmulStridedReduceScatter:
		line(a.Axis, a.Barrier, a.Semaphores[:], a.Output)
		all = append(all, use{what: "counters", handle: a.Progress, single: true}, use{what: "counters", handle: a.Credit, single: true})
		reads = append(reads, a.Input, a.Weight)
	case devicecgo.NeighborPad:
		first := true
		for i := range a.Count {
			if a.Semaphores[i] == 0 {
				continue
			}
			all = append(all, use{what: "neighbour semaphore", handle: a.Semaphores[i], axis: a.Axes[i], neighbours: true, guarded: first})
			if first {
				all = append(all, use{what: "barrier", handle: a.Barrier, axis: a.Axes[i]})
			}
			joined = append(joined, joins{a.Axes[i], !first})
			first = false
		}
		all = append(all, use{what: "memory", handle: a.Output, guarded: true})
		reads = append(reads, a.Input)
	case devicecgo.NPConv3D:
		all = append(all, use{what: "neighbour semaphore", handle: a.SemaphoreH, axis: a.AxisH, guarded: true},
			use{what: "neighbour semaphore", handle: a.SemaphoreW, axis: a.AxisW, neighbours: true},
			use{what: "barrier", handle: a.Barrier, axis: a.AxisH}, use{what: "memory", handle: a.Halo, guarded: true})
		for _, h := range a.Region {
			all = append(all, use{what: "region", handle: h, single: true})
		}
		joined = append(joined, joins{axis: a.AxisH}, joins{a.AxisW, true})
		reads = append(reads, a.Input, a.Weight)
	case devicecgo.Activation:
		reads = append(reads, a.Input, a.Output)
	case devicecgo.Binary:
		reads = append(reads, a.A, a.B, a.Output)
	case devicecgo.Convert:
		reads = append(reads, a.Input, a.Output)
	}
	return all, reads, joined
}

// referee reads a log and finds the first breach of rule 3 (fenced creation) or rule 4 (bank safety), written straight from the design and
// independent of package pools: a resource that peers write, last used or read by launch i, may go to launch j only if some launch
// strictly between joined every pair of j, or everything up to i was seen retired before j, or j's own start barrier or handshake answers
// for it; what has one bank needs the retirement.
func referee(log []entry) error {
	lastUse := map[devicecgo.Handle]uint64{}
	lines, neighbours := [2][]uint64{}, [2][]uint64{} // launches that joined lines, or neighbours, of an axis
	retired := uint64(0)
	unfenced := map[devicecgo.Handle]bool{}
	for _, e := range log {
		switch e.kind {
		case "create":
			unfenced[e.handle] = true
		case "fence":
			retired = max(retired, e.upTo)
			clear(unfenced)
		case "launch":
			all, reads, joined := uses(e.args)
			for _, u := range all {
				if u.handle == 0 {
					continue
				}
				if unfenced[u.handle] {
					return fmt.Errorf("launch %d names %s %d before a fence that follows its creation", e.launch, u.what, u.handle)
				}
				i := lastUse[u.handle]
				if i == 0 || i <= retired || u.guarded && !u.single {
					continue
				}
				between := lines[u.axis]
				if u.neighbours {
					between = append(append([]uint64{}, between...), neighbours[u.axis]...)
				}
				ok := false
				for _, k := range between {
					ok = ok || k > i && k < e.launch
				}
				if !ok || u.single {
					return fmt.Errorf("launch %d uses %s %d, last used by launch %d, with no join of axis %d and no fence between", e.launch, u.what, u.handle, i, u.axis)
				}
			}
			for _, u := range all {
				lastUse[u.handle] = e.launch
			}
			for _, h := range reads {
				lastUse[h] = e.launch
			}
			for _, j := range joined {
				if j.neighbours {
					neighbours[j.axis] = append(neighbours[j.axis], e.launch)
				} else {
					lines[j.axis] = append(lines[j.axis], e.launch)
				}
			}
		}
	}
	return nil
}
