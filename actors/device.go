package actors

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/pools"
)

// device is the actor that alone calls the driver. It admits tasks fairly, stamps tickets, collects what the pools grant,
// launches in ticket order, fences, and learns what has retired.
type device struct {
	rt   *Runtime
	dev  devicecgo.Device
	self *actor.PID

	opened chan<- error // answered once the eager pools are made and fenced

	axes   [2]*actor.PID
	actors []poolActor // semaphore pools and the buffers, by index
	banks  [][]*bank   // by pool actor and slot

	streams   admission
	poolIndex [messages.PoolCount]int // of a pool in the table

	ticket  uint64      // the last one given
	pending deque[task] // have a ticket, not yet launched
	current *task       // taken from pending and not yet placed: answered also if we panic
	flying  deque[task] // launched, not yet retired
	inside  int         // launches of those that are pending or flying
	launch  uint64      // the last number that the driver accepted
	joins   pools.Joins

	events    []event            // in order; each covers the launches up to it
	recorded  uint64             // events ever recorded
	marked    uint64             // launches covered by an event
	retired   uint64             // every launch up to it has retired
	fencing   bool               // a fence is in progress: nothing is launched meanwhile
	leases    int                // banks of semaphores that callers hold
	unfenced  []*bank            // made on a promise, not yet fenced
	idle      func([]pools.Idle) // what ends the task that found no memory, once the buffers actor has said what it could release
	resetting bool               // a reset has its ticket: nothing else gets one

	timeRuns bool          // in lockstep: virtual time was set going and has not come to rest
	poll     time.Duration // the next look at the events, while any is outstanding
	failed   map[uint64]error

	grave    []*memory // nobody refers to it any more, but tasks that use it may not be over
	collects []*memory

	build *builder       // apart, since the driver gets pointers into it: it must hold none itself
	names names          // only when a journal is kept
	bufs  []bufferAction // for the buffers actor, in ticket order
	free  []devicecgo.Handle
	asked int // descriptions of pools still to come
	first [][]pools.NewBank

	capture         *Trace         // a stream captures it: nobody else gets a ticket
	traces          []*Trace       // released, but tasks that replay them may not be over
	reads           []*readRequest // wait for the end of the capture
	unfencedReplays bool           // for tests: rule 4 is not asked before a replay

	opening  bool // the first fence is under way: in lockstep nobody else moves the clock yet
	draining *drainRequest
	ended    bool
	stats    Stats
}

type poolActor struct {
	pid  *actor.PID
	name string
	axis int   // NoAxis: the buffers
	dead error // why nothing can be had of it any more
}

// event marks every queue; when it is done, all launches up to upTo have retired.
type event struct {
	handles []devicecgo.Handle // one per queue, those still open
	upTo    uint64
	then    func(error) // of a fence
}

func newDevice(rt *Runtime, dev devicecgo.Device, opened chan<- error) *device {
	d := &device{rt: rt, dev: dev, opened: opened, poll: pollFirst, failed: map[uint64]error{}, build: &builder{}}
	if rt.cfg.Record {
		d.names = names{}
	}
	return d
}

// Receive implements actor.Actor. A panic is a bug of ours: every waiting caller is told, then the supervisor stops the actor.
func (d *device) Receive(ctx actor.Context) {
	defer func() {
		if r := recover(); r != nil {
			d.lose(fmt.Errorf("%w: device actor: %v", messages.ErrInternal, r))
			panic(r)
		}
	}()
	switch m := ctx.Message().(type) {
	case *actor.Started:
		d.start(ctx)
	case *actor.Stopping, *actor.Stopped:
		why := fmt.Errorf("%w: device", messages.ErrActorStopped)
		d.rt.broken.CompareAndSwap(nil, &why)
		d.end()
	case *actor.Terminated:
		d.terminated(m.Who)
	case *streamOpened:
		d.streams.add(m.s)
		if e := d.dev.Emulator(); e != nil {
			_ = e.NameStream(m.s.id, m.s.name) // on failure reports show the number
		}
	case *streamClosed:
		m.s.queue.closed = true
	case *streamDied:
		m.s.queue.dead = true
	case *orphaned:
		for _, t := range m.tasks {
			d.letGo(t)
			if t.call == beginTrace {
				d.rt.captures.end(t.trace)
			}
		}
	case *traceReleased:
		d.traces = append(d.traces, m.trace)
	case *submitted:
		m.stream.queue.add(m.tasks)
	case *granted:
		d.granted(m)
	case *idlePools:
		d.tellIdle(m.pools)
	case collect: // step does
	case tick:
		if (d.draining != nil || d.opening) && d.rt.turns != nil {
			d.runTime(^uint64(0))
		}
		d.look()
	case *advance:
		d.advance(m)
	case *readRequest:
		d.read(m)
	case *statsRequest:
		m.reply <- answer[Stats]{value: d.snapshot()}
	case onDevice:
		m(d.dev)
	case *drainRequest:
		d.draining = m
	}
	d.step()
}

// step does all that can be done now.
func (d *device) step() {
	if d.ended || d.opened != nil {
		return
	}
	if d.draining != nil {
		d.refuseQueued()
	}
	d.collect()
	for {
		d.launchReady()
		d.mark()
		d.look()
		if !d.admit() {
			break
		}
	}
	d.bury()
	d.flushBuffers()
	d.flushAnswers()
	if d.opening && d.rt.turns != nil && len(d.events) > 0 {
		d.send(d.self, tick{})
	}
	if d.draining == nil {
		return
	}
	if d.pending.len() == 0 && d.flying.len() == 0 && !d.fencing && d.idle == nil {
		d.draining.reply <- answer[struct{}]{}
		d.draining = nil
	} else if d.rt.turns != nil && len(d.events) > 0 {
		d.send(d.self, tick{}) // nobody else moves the clock any more
	}
}

func (d *device) send(to *actor.PID, message any) { d.rt.root.Send(to, message) }

// start spawns the axes with their pools, the buffers, and asks the eager pools for their banks.
func (d *device) start(ctx actor.Context) {
	d.self = ctx.Self()
	d.rt.thread.SetTimer(d.timer)
	for i, kind := range pools.Kinds() {
		d.poolIndex[kind.Pool] = i
	}
	spawn := func(name string, a actor.Actor) *actor.PID {
		pid, err := ctx.SpawnNamed(actor.PropsFromProducer(func() actor.Actor { return a }, actor.WithDispatcher(pinned{d.rt.thread})), name)
		if err != nil {
			panic(err)
		}
		ctx.Watch(pid)
		return pid
	}
	for a := range d.axes {
		ax := &axisActor{rt: d.rt, axis: a, pools: map[messages.Pool]*actor.PID{}}
		for _, kind := range pools.Kinds() {
			name := fmt.Sprintf("%s[%d]", kind.Pool, a)
			sem := &semaphoreActor{device: d.self, index: len(d.actors), pool: pools.NewSemaphores(d.rt.cfg.Break.kind(kind, a), a, d.rt.mesh.NumLinks)}
			pid := spawn("pool/"+name, sem)
			ax.pools[kind.Pool] = pid
			d.actors = append(d.actors, poolActor{pid: pid, name: name, axis: a})
			d.asked++
			ctx.Send(pid, describe{})
		}
		d.axes[a] = spawn("axis/"+strconv.Itoa(a), ax)
	}
	index := len(d.actors)
	pid := spawn("buffers", &buffersActor{device: d.self, index: index, pools: pools.NewBuffers(d.rt.cfg.Policy)})
	d.actors = append(d.actors, poolActor{pid: pid, name: "buffers", axis: messages.NoAxis})
	d.banks = make([][]*bank, len(d.actors))
	d.first = make([][]pools.NewBank, len(d.actors))
}

// described collects the first banks of the pools. When all are there the eager ones are made in the reference's order, pool by pool and
// axis by axis, and fenced once; the others have their places and are made, on both axes at once, before their first use.
func (d *device) described(m *granted) {
	d.first[m.pool] = m.made
	if d.asked--; d.asked > 0 {
		return
	}
	row := d.newRow("open", "")
	opened := d.opened
	d.opened = nil
	d.opening = true
	done := func(err error) {
		d.opening = false
		if row != nil {
			row.Err = err
		}
		opened <- err
	}
	if row != nil {
		d.rt.addRow(row)
	}
	for _, kind := range pools.Kinds() {
		var group []*bank
		for a := range d.axes {
			pool := d.semaphorePool(kind.Pool, a)
			group = append(group, d.place(pool, d.first[pool])...)
		}
		for _, b := range group {
			b.group = group
			if !kind.Eager {
				continue
			}
			if err := d.make(b, row); err != nil {
				done(err)
				return
			}
		}
	}
	d.first = nil
	if d.rt.cfg.Break.NoCreationFence {
		done(nil)
		return
	}
	d.startFence(row, done)
}

// place gives new banks their slots in the device's table. They are made before the first launch that uses one of them.
func (d *device) place(pool int, made []pools.NewBank) []*bank {
	group := make([]*bank, len(made))
	for i := range made {
		b := &bank{pool: pool, slot: made[i].Slot, unmade: &made[i], group: group}
		group[i] = b
		for len(d.banks[pool]) <= b.slot {
			d.banks[pool] = append(d.banks[pool], nil)
		}
		d.banks[pool][b.slot] = b
	}
	return group
}

// make creates what a bank holds. On failure the bank stays unmade, and the next task that gets it tries again.
func (d *device) make(b *bank, row *messages.Row) error {
	nb := b.unmade
	if nb == nil {
		return nil
	}
	if len(nb.Semaphores) > 0 {
		handles := make([]devicecgo.Handle, len(nb.Semaphores))
		if err := d.dev.CreateSemaphores(0, handles); err != nil {
			return fmt.Errorf("semaphores of %s: %w", nb.Semaphores[0], err)
		}
		b.semaphores, b.names = handles, nb.Semaphores
		for i, h := range handles {
			d.called(h, nb.Semaphores[i], messages.Spec{})
			effect(row, "create_semaphore", field("sem", nb.Semaphores[i]), field("value", 0))
		}
		d.stats.Semaphores += len(handles)
		b.unmade = nil
		return nil
	}
	buffers := make([]buffer, 0, len(nb.Parts))
	for i, part := range nb.Parts {
		h, err := d.dev.AllocTensor(devicecgo.TensorSpec{Spec: part.Spec, Zeroed: part.Zeroed, ShardRows: part.ShardRows, ShardCols: part.ShardCols})
		if err != nil {
			for _, made := range buffers {
				err = errors.Join(err, d.dev.FreeTensors(made.base))
			}
			return fmt.Errorf("buffer %s: %w", nb.Names[i], err)
		}
		buffers = append(buffers, buffer{base: h, spec: part.Spec, name: nb.Names[i]})
		d.called(h, nb.Names[i], part.Spec)
		effect(row, "allocate", allocation(nb.Names[i], part)...)
	}
	b.buffers = buffers
	d.stats.Buffers += len(buffers)
	b.unmade = nil
	return nil
}

// terminated: an actor is gone. What waits for it fails; what will need it is refused at admission.
func (d *device) terminated(who *actor.PID) {
	if d.ended {
		return
	}
	for a := range d.axes {
		if d.axes[a].Equal(who) {
			for i := range d.actors {
				if d.actors[i].axis == a {
					d.poolGone(i, "axis "+strconv.Itoa(a))
				}
			}
			return
		}
	}
	for i := range d.actors {
		if d.actors[i].pid.Equal(who) {
			d.poolGone(i, d.actors[i].name)
			return
		}
	}
}

func (d *device) poolGone(i int, name string) {
	if d.actors[i].dead != nil {
		return
	}
	d.actors[i].dead = fmt.Errorf("%w: %s", messages.ErrActorStopped, name)
	for t := range d.pending.all() {
		if t.missing > 0 && d.needs(t, i) {
			t.err = d.actors[i].dead
			t.missing = 0
		}
	}
	if i == d.buffersPool() {
		d.tellIdle(nil)
	}
}

// needs reports whether a task draws from a pool.
func (d *device) needs(t *task, pool int) bool {
	if t.plan == nil {
		return false
	}
	for _, n := range t.plan.Semaphores[:t.plan.NumSemaphores] {
		if d.semaphorePool(n.Pool, n.Axis) == pool {
			return true
		}
	}
	return t.plan.NumBuffers > 0 && pool == d.buffersPool()
}

// buffersPool is the index of the buffers actor.
func (d *device) buffersPool() int { return len(d.actors) - 1 }

// semaphorePool is the index of a semaphore pool's actor.
func (d *device) semaphorePool(p messages.Pool, axis int) int {
	return axis*len(pools.Kinds()) + d.poolIndex[p]
}

// snapshot fills in the counts.
func (d *device) snapshot() Stats {
	s := d.stats
	s.Launches, s.Retired = d.launch, d.retired
	s.Pools = map[string]int{}
	for i, p := range d.actors[:len(d.actors)-1] {
		for _, b := range d.banks[i] {
			s.Pools[p.name] += len(b.semaphores)
		}
	}
	return s
}

// lose makes everything fail fast: the device does not answer, or we are broken.
func (d *device) lose(why error) {
	if d.rt.broken.Load() == nil {
		d.rt.broken.Store(&why)
	}
	d.fail(why)
	d.flushAnswers()
}

// fail answers everything that is queued, pending or in flight with an error.
func (d *device) fail(why error) {
	d.tellIdle(nil)
	d.dropCapture(why)
	if t := d.current; t != nil {
		d.current = nil
		t.size = 0 // nobody counts any more
		d.drop(t, why)
	}
	for {
		t := d.flying.pop()
		if t == nil {
			break
		}
		d.answer(t, why)
	}
	for {
		t := d.pending.pop()
		if t == nil {
			break
		}
		d.drop(t, why)
	}
	for _, t := range d.streams.takeAll() {
		d.drop(t, why)
	}
	d.inside = 0
	events := d.events
	d.events, d.fencing = nil, false
	for _, e := range events {
		if e.then != nil {
			e.then(why)
		}
	}
	d.retired = d.launch
	if d.opened != nil {
		d.opened <- why
		d.opened = nil
	}
	if d.draining != nil {
		d.draining.reply <- answer[struct{}]{}
		d.draining = nil
	}
}

// refuseQueued answers what has no ticket yet: the mesh is closing.
func (d *device) refuseQueued() {
	for _, t := range d.streams.takeAll() {
		d.drop(t, messages.ErrClosed)
	}
}

// end closes the mesh, once. Handles go with it.
func (d *device) end() error {
	if d.ended {
		return nil
	}
	d.ended = true
	why := d.rt.why()
	d.rt.broken.CompareAndSwap(nil, &why)
	d.fail(why)
	d.flushAnswers()
	close(d.rt.gone)
	d.rt.abandon(why) // what has been sent and has not come here is lost
	d.rt.thread.SetTimer(nil)
	return d.dev.Close()
}
