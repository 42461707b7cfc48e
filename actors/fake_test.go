package actors

import (
	"fmt"
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
	panicOn  uint64
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
	return nil
}
func (f *fakeDevice) ReadTensor(devicecgo.Handle, messages.Coord, []byte) error { return nil }
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
	for i := range out {
		out[i] = f.fresh("semaphore", messages.Spec{})
		f.log = append(f.log, entry{kind: "create", handle: out[i]})
	}
	return nil
}

func (f *fakeDevice) ResetSemaphores(uint32, []devicecgo.Handle) error { return nil }
func (f *fakeDevice) FreeSemaphores([]devicecgo.Handle) error          { return nil }

func (f *fakeDevice) RecordEvent(int) (devicecgo.Handle, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
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
	if h.Launch != f.launches+1 {
		return fmt.Errorf("%w: launch %d after %d", messages.ErrInternal, h.Launch, f.launches)
	}
	f.launches++
	var copied any
	switch a := args.(type) {
	case *devicecgo.AllGather:
		if a.Output == 0 {
			a.Output = f.fresh("tensor", messages.Spec{})
		}
		copied = *a
	case *devicecgo.ReduceScatter:
		if a.Output == 0 {
			a.Output = f.fresh("tensor", messages.Spec{})
		}
		copied = *a
	case *devicecgo.FusedDistributedNorm:
		a.Output = f.fresh("tensor", messages.Spec{})
		copied = *a
	case *devicecgo.RingJointSDPA:
		a.Output = f.fresh("tensor", messages.Spec{})
		copied = *a
	case *devicecgo.Activation:
		a.Output = f.fresh("tensor", messages.Spec{})
		copied = *a
	case *devicecgo.Binary:
		a.Output = f.fresh("tensor", messages.Spec{})
		copied = *a
	default:
		return fmt.Errorf("%w: fake: %T", messages.ErrUnsupported, args)
	}
	f.log = append(f.log, entry{kind: "launch", args: copied, launch: h.Launch, stream: h.Stream})
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

// touched are the resources of a launch that peers write: semaphores and persistent memory, with the axis along which they do.
func touched(args any) (axis uint32, barrier devicecgo.Handle, semaphores, memory []devicecgo.Handle, output devicecgo.Handle, reads []devicecgo.Handle) {
	switch a := args.(type) {
	case devicecgo.AllGather:
		return a.Axis, a.Barrier, a.Semaphores[:], []devicecgo.Handle{a.Output}, a.Output, []devicecgo.Handle{a.Input}
	case devicecgo.ReduceScatter:
		return a.Axis, a.Barrier, a.Semaphores[:], []devicecgo.Handle{a.Output, a.Intermediate}, a.Output, []devicecgo.Handle{a.Input}
	case devicecgo.FusedDistributedNorm:
		return a.Axis, 0, a.Semaphores[:], []devicecgo.Handle{a.Stats}, a.Output, []devicecgo.Handle{a.Input}
	case devicecgo.RingJointSDPA:
		return a.Axis, 0, a.Semaphores[:], []devicecgo.Handle{a.BufferK, a.BufferV}, a.Output, []devicecgo.Handle{a.Q, a.K, a.V}
	case devicecgo.Activation:
		return 0, 0, nil, nil, a.Output, []devicecgo.Handle{a.Input}
	case devicecgo.Binary:
		return 0, 0, nil, nil, a.Output, []devicecgo.Handle{a.A, a.B}
	}
	return 0, 0, nil, nil, 0, nil
}

// referee reads a log and finds the first breach of rule 3 (fenced creation) or rule 4 (bank safety), written straight from the design and
// independent of package pools: a resource that peers write, last used or read by launch i, may go to launch j only if some launch
// strictly between joined each line of j's axis, or everything up to i was seen retired before j, or (all but the barrier's own
// bank) j starts with a barrier.
func referee(log []entry) error {
	lastUse := map[devicecgo.Handle]uint64{}
	joined := [2][]uint64{} // launches that joined the lines of an axis
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
			axis, barrier, sems, mems, output, reads := touched(e.args)
			check := func(h devicecgo.Handle, what string) error {
				i := lastUse[h]
				if h == 0 || i == 0 || i <= retired {
					return nil
				}
				for _, k := range joined[axis] {
					if k > i && k < e.launch {
						return nil
					}
				}
				return fmt.Errorf("launch %d uses %s %d, last used by launch %d, with no join of axis %d and no fence between", e.launch, what, h, i, axis)
			}
			use := func(h devicecgo.Handle) {
				if h != 0 {
					lastUse[h] = e.launch
				}
			}
			for _, h := range append(append([]devicecgo.Handle{barrier}, sems...), mems...) {
				if unfenced[h] {
					return fmt.Errorf("launch %d names %d before a fence that follows its creation", e.launch, h)
				}
			}
			if err := check(barrier, "barrier"); err != nil {
				return err
			}
			if barrier == 0 {
				for _, h := range sems {
					if err := check(h, "semaphore"); err != nil {
						return err
					}
				}
				for _, h := range mems {
					if err := check(h, "memory"); err != nil {
						return err
					}
				}
			}
			use(barrier)
			for _, h := range append(append(append(sems, mems...), reads...), output) {
				use(h)
			}
			if sems != nil && sems[0] != 0 {
				joined[axis] = append(joined[axis], e.launch)
			}
		}
	}
	return nil
}
