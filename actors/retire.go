package actors

import (
	"slices"
	"time"

	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/messages"
)

// While events are outstanding the owner thread looks at them at these intervals, doubling from the first to the last.
const (
	pollFirst = 20 * time.Microsecond
	pollLast  = time.Millisecond
)

// timer tells the owner thread when to look at the events next.
func (d *device) timer() (time.Duration, func()) {
	if len(d.events) == 0 || d.rt.turns != nil {
		return -1, nil
	}
	after := d.poll
	d.poll = min(2*d.poll, pollLast)
	return after, func() { d.send(d.self, tick{}) }
}

// mark records an event behind the launches that none covers yet.
func (d *device) mark() {
	if d.marked == d.launch {
		return
	}
	d.record(nil)
}

// startFence begins a mesh-wide fence: an event on every queue. Nothing is launched until it is done; then `then` runs.
func (d *device) startFence(row *messages.Row, then func(error)) {
	effect(row, "synchronize")
	d.stats.Fences++
	d.fencing = true
	promised := d.unfenced
	d.unfenced = nil
	d.record(func(err error) {
		d.fencing = false
		for _, b := range promised {
			b.unfenced = err != nil
		}
		then(err)
	})
}

func (d *device) record(then func(error)) {
	e := event{upTo: d.launch, then: then}
	for q := range max(d.rt.info.Queues, 1) {
		h, err := d.dev.RecordEvent(q)
		if err != nil {
			if then != nil {
				then(err)
			}
			d.lose(err)
			return
		}
		e.handles = append(e.handles, h)
	}
	d.marked = d.launch
	d.recorded++
	d.events = append(d.events, e)
	d.poll = pollFirst
}

// look asks whether the oldest events are done, and goes on with what waited for them.
//
// While virtual time runs nothing is looked at: what a look finds would be a matter of real time.
func (d *device) look() {
	if err := d.retireDone(); err != nil {
		d.lose(err)
	}
}

func (d *device) retireDone() error {
	for len(d.events) > 0 && !d.timeRuns {
		done, err := d.query(&d.events[0])
		if err != nil || !done {
			return err
		}
		e := d.events[0]
		d.events = d.events[1:]
		d.poll = pollFirst
		d.retire(e.upTo)
		if e.then != nil {
			e.then(nil)
			d.launchReady()
			d.mark()
		}
	}
	return nil
}

func (d *device) query(e *event) (bool, error) {
	for len(e.handles) > 0 {
		last := len(e.handles) - 1
		done, err := d.dev.QueryEvent(e.handles[last])
		if err != nil || !done {
			return false, err
		}
		if err := d.dev.FreeEvent(e.handles[last]); err != nil {
			return false, err
		}
		e.handles = e.handles[:last]
	}
	return true, nil
}

// retire answers the launches up to one, and frees what waited for them.
func (d *device) retire(upTo uint64) {
	if upTo <= d.retired {
		return
	}
	d.retired = upTo
	d.joins.Fence(upTo)
	d.collectFailures()
	for d.flying.len() > 0 && d.flying.front().launch <= upTo {
		t := d.flying.pop()
		d.inside -= t.size
		err := poisoned(t)
		op, launch := t.name(), t.launch
		for n := t.launch; n >= t.first() && len(d.failed) > 0; n-- { // the first failure of a replay is its own
			if f, ok := d.failed[n]; ok {
				delete(d.failed, n)
				err, launch = f, n
				if t.call == executeTrace {
					op = t.trace.steps[n-t.first()].name() + " in a trace"
				}
			}
		}
		if err != nil {
			err = &messages.OpError{Op: op, Stream: t.stream.name, Launch: launch, Err: err}
		}
		if t.row != nil && d.dev.Emulator() != nil {
			start, end, err := d.dev.Emulator().LaunchTimes(t.first())
			if err == nil && t.first() != t.launch {
				_, end, err = d.dev.Emulator().LaunchTimes(t.launch)
			}
			if err == nil {
				if !t.row.Timed { // a call may launch several times
					t.row.Timed, t.row.StartNS = true, start
				}
				t.row.EndNS = max(t.row.EndNS, end)
			}
			if d.rt.cfg.DeviceTimes {
				d.timeDevices(t)
			}
		}
		d.answer(t, err)
	}
	d.bury()
}

// timeDevices adds to a row what its launches took on each device.
func (d *device) timeDevices(t *task) {
	for n := t.first(); n <= t.launch; n++ {
		times, err := d.dev.Emulator().LaunchDevices(n)
		if err != nil {
			return
		}
		t.row.Devices = withTimes(t.row.Devices, times)
	}
}

// withTimes adds what a later launch took on each device. A launch that is no longer kept has no times, wherever in the row it stands.
func withTimes(sum, launch []messages.DeviceTime) []messages.DeviceTime {
	if len(launch) == 0 {
		return sum
	}
	if len(sum) != len(launch) {
		return launch
	}
	for i, one := range launch {
		sum[i].EndNS = max(sum[i].EndNS, one.EndNS)
		sum[i].WaitingNS += one.WaitingNS
	}
	return sum
}

func (d *device) collectFailures() {
	for {
		launch, failure, err := d.dev.NextFailure()
		if err != nil || launch == 0 {
			return
		}
		d.failed[launch] = failure
	}
}

// collect takes what callers have given back.
func (d *device) collect() {
	if !d.rt.anyReleased.Load() {
		return
	}
	d.collects = d.rt.takeReleased(d.collects)
	for _, m := range d.collects {
		d.back(m)
	}
	clear(d.collects)
}

// back takes memory that nobody refers to any more: a bank goes home at once, for later tickets; memory of its own waits in the grave until
// the last task that uses it is over.
func (d *device) back(m *memory) {
	if m.lease.ticket != 0 {
		d.giveBack(m.pool, m.lease)
	} else {
		d.grave = append(d.grave, m)
	}
}

// over is the ticket up to which every task has been answered.
func (d *device) over() uint64 {
	switch {
	case d.flying.len() > 0:
		return d.flying.front().ticket - 1
	case d.current != nil:
		return d.current.ticket - 1
	case d.pending.len() > 0:
		return d.pending.front().ticket - 1
	}
	return d.ticket
}

// bury frees the memory in the grave that no task uses any more.
func (d *device) bury() {
	over := d.over()
	d.buryTraces(over)
	kept := d.grave[:0]
	for _, m := range d.grave {
		if m.lastTicket > over {
			kept = append(kept, m)
			continue
		}
		if m.own.base != 0 {
			for _, v := range m.own.views {
				d.free = append(d.free, v.handle)
			}
			d.free = append(d.free, m.own.base)
			m.own = buffer{}
		}
	}
	clear(d.grave[len(kept):])
	d.grave = kept
	d.freeNow()
}

func (d *device) freeNow() {
	if len(d.free) == 0 || d.ended {
		return
	}
	for _, h := range d.free {
		delete(d.names, h)
	}
	_ = d.dev.FreeTensors(d.free...) // a stale handle here is harmless: the memory is gone
	d.free = d.free[:0]
}

// read copies a shard to the host; its producer is done.
func (d *device) read(m *readRequest) {
	if d.capture != nil && d.capture.handle != 0 {
		d.reads = slices.DeleteFunc(d.reads, func(r *readRequest) bool { return r.ctx.Err() != nil })
		d.reads = append(d.reads, m) // when the trace is captured
		return
	}
	h, err := d.handle(m.tensor, messages.Shape{})
	if err == nil {
		err = d.dev.ReadTensor(h, m.at, m.data)
		effect(m.row, "to_host", field("shape", m.tensor.spec.Shape))
	}
	m.reply <- answer[struct{}]{err: err}
}

// advance lets virtual time run for a bounded piece of real time, then tells how it went once the consequences have settled.
func (d *device) advance(m *advance) {
	if d.ended {
		if m.reply != nil {
			m.reply <- answer[devicecgo.ClockState]{err: d.rt.why()}
		}
		return
	}
	recorded := d.recorded
	var state devicecgo.ClockState
	var now uint64
	var err error
	if why := d.rt.broken.Load(); why != nil {
		err = *why // time stands still
	} else if state, now, err = d.runTime(m.until); err == nil {
		d.look()
	}
	d.rt.thread.WhenIdle(func() {
		if state == devicecgo.ClockIdle && d.recorded != recorded {
			state = devicecgo.ClockProgress // what has retired made room for more
		}
		if m.reply != nil {
			m.reply <- answer[devicecgo.ClockState]{state, err}
			return
		}
		d.rt.turns.moved(state, now, err)
	})
}

// runTime lets virtual time run for a bounded piece of real time.
func (d *device) runTime(until uint64) (devicecgo.ClockState, uint64, error) {
	const pieceUS = 2000
	e := d.dev.Emulator()
	state, err := e.Advance(until, pieceUS)
	var now uint64
	if err == nil {
		now, err = e.Now()
	}
	d.timeRuns = err == nil && state == devicecgo.ClockBusy
	if err != nil {
		_ = d.retireDone() // what was over before is over; err says more than that nobody can be asked any more
		d.lose(err)
	}
	return state, now, err
}
