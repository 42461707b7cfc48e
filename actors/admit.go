package actors

import (
	"errors"

	"github.com/meshrun/meshrun/axis"
	"github.com/meshrun/meshrun/messages"
)

// Needs of a task are numbered: semaphores from 0, buffers from firstBuffer.
const firstBuffer = axis.MaxSemaphoreNeeds

// admit gives tickets as long as there is room inside the driver, and asks for what the tasks need. It reports whether it has
// given any.
func (d *device) admit() bool {
	room := d.rt.cfg.Inflight - d.inside
	if room <= 0 || d.draining != nil || d.resetting || d.capture != nil && d.capture.ending {
		return false
	}
	before := d.ticket
	var wants [2]*acquire
	for room > 0 {
		t := d.streams.take(d.mayEnter)
		if t == nil {
			if d.endOrphan() {
				continue
			}
			break
		}
		d.collect() // what its caller gave back before he submitted it
		if err := d.refused(t); err != nil {
			d.drop(t, err)
			continue
		}
		t.size = 1
		if t.call == executeTrace {
			t.size = max(len(t.trace.steps), 1)
		}
		room -= t.size
		d.inside += t.size
		d.ticket++
		t.ticket = d.ticket
		d.pending.push(t)
		d.want(t, &wants)
		d.letGo(t)
		if t.call == beginTrace {
			d.capture = t.trace
		}
		if t.call == endTrace {
			t.trace.ending = true // nothing draws from a pool before the trace's banks are pinned
			break
		}
		if t.control != nil && t.control.reset {
			d.resetting = true // nothing draws from a pool before it has been rewound
			break
		}
	}
	for a, w := range wants {
		if w != nil {
			d.send(d.axes[a], w)
		}
	}
	d.flushBuffers()
	return d.ticket > before
}

// want notes what a task draws from the pools.
func (d *device) want(t *task, wants *[2]*acquire) {
	if t.control != nil {
		d.wantControl(t)
	}
	if t.plan == nil {
		return
	}
	p := t.plan
	keep := t.lease != nil && d.rt.cfg.Policy == messages.Hold
	for i, n := range p.Semaphores[:p.NumSemaphores] {
		if i < len(t.brought) {
			t.sems[i] = t.brought[i].mem.bank // the caller's own
			continue
		}
		w := wants[n.Axis]
		if w == nil {
			w = &acquire{}
			wants[n.Axis] = w
		}
		w.pools = append(w.pools, n.Pool)
		l := lease{ticket: t.ticket, need: uint8(i), workers: uint8(n.Workers), keep: keep}
		w.leases = append(w.leases, l)
		if keep {
			t.lease.mem.lease, t.lease.mem.pool = l, d.semaphorePool(n.Pool, n.Axis)
			d.leases++
		}
		t.missing++
	}
	for i := range p.NumBuffers {
		l := lease{ticket: t.ticket, need: uint8(firstBuffer + i)}
		d.bufs = append(d.bufs, bufferAction{lease: l, want: &p.Buffers[i]})
		t.missing++
		kept := false
		for o := range p.NumOutputs {
			if p.Outputs[o].Buffer == i {
				t.out[o].mem.lease, t.out[o].mem.pool = l, d.buffersPool()
				kept = true
			}
		}
		if !kept { // only the launch itself uses it, such as the K and V of ring attention: it goes home behind it
			d.giveBack(d.buffersPool(), l)
		}
	}
}

// wantControl asks for what a prewarm or a release needs of the buffers actor.
func (d *device) wantControl(t *task) {
	c := t.control
	for i := range c.prewarm {
		d.bufs = append(d.bufs, bufferAction{lease: lease{ticket: t.ticket, need: firstBuffer}, want: &c.prewarm[i], prewarm: true})
		t.missing++
	}
	if c.release != nil {
		d.bufs = append(d.bufs, bufferAction{lease: lease{ticket: t.ticket, need: firstBuffer}, release: c.release})
		t.missing++
	}
}

// letGo gives up the task's references, one to each input and to each result that is not an input's: it has its place in the order now, or
// will never have one.
func (d *device) letGo(t *task) {
	drop := func(m *memory) {
		m.lastTicket = max(m.lastTicket, t.ticket)
		if m.refs.Add(-1) == 0 {
			d.back(m)
		}
	}
	for _, in := range t.in {
		if in != nil {
			drop(in.mem)
		}
	}
	for _, l := range t.brought {
		drop(&l.mem)
	}
	if t.lease != nil {
		drop(&t.lease.mem)
	}
	if t.write != nil && t.write.into != nil {
		drop(t.write.into.mem)
	}
	if t.call == executeTrace {
		d.letGoTrace(t)
	}
	if t.plan == nil || !t.plan.Alias && !t.plan.InPlace {
		for _, out := range t.out {
			if out != nil {
				drop(out.mem)
			}
		}
	}
}

// mayEnter: while a stream captures, its tasks alone.
func (d *device) mayEnter(t *task) bool {
	if d.capture != nil {
		return t.stream == d.capture.stream
	}
	return admittable(t) && (t.call != beginTrace || t.trace == d.rt.captures.first())
}

// admittable: what makes the inputs has a ticket already, or has been answered.
func admittable(t *task) bool {
	ok := true
	t.from(func(_ int, made *task) bool {
		ok = !made.ahead()
		return ok
	})
	return ok
}

// ahead: the task has no place in the order yet.
func (t *task) ahead() bool { return t.ticket == 0 && !t.over && !t.done() }

// refused says why a task cannot go on: what it reads has failed, or a pool that it needs is gone.
func (d *device) refused(t *task) error {
	if err := poisoned(t); err != nil {
		return err
	}
	if d.capture != nil && !admittable(t) {
		return &messages.InvalidError{Op: t.name(), Field: "input", Value: "of another stream", Rule: "has been launched before a trace that reads it is captured: while one is, other streams wait",
			Hint: "wait for it before BeginTrace"}
	}
	for i := range d.actors {
		if d.actors[i].dead != nil && d.needs(t, i) {
			return d.actors[i].dead
		}
	}
	return nil
}

// poisoned: an input's producer has failed. Its error may be set although its stream has not been told yet. A write does not mind what was there, as long
// as there is memory.
func poisoned(t *task) error {
	if t.write != nil && t.write.into != nil && t.write.into.mem.there() {
		return nil
	}
	var err error
	t.from(func(i int, made *task) bool {
		if made.err != nil {
			err = &messages.PoisonedError{Input: i, Cause: root(made.err)}
		}
		return err == nil
	})
	return err
}

// root is the failure that the first of a chain of poisoned operations read.
func root(err error) error {
	var p *messages.PoisonedError
	if errors.As(err, &p) {
		return p.Cause
	}
	return err
}

// granted puts the banks of a pool's answer into the tasks.
func (d *device) granted(m *granted) {
	if d.opened != nil {
		d.described(m)
		return
	}
	d.place(m.pool, m.made)
	for _, l := range m.leases {
		front := d.pending.front()
		if front == nil || l.ticket < front.ticket || l.ticket-front.ticket >= uint64(d.pending.len()) {
			continue // the task has been answered meanwhile
		}
		t := d.pending.at(int(l.ticket - front.ticket))
		t.missing--
		switch {
		case l.slot == noBank:
			if m.err != nil && t.err == nil {
				t.err = m.err
			}
			if t.control != nil {
				for _, slot := range m.warm {
					t.control.made = append(t.control.made, d.banks[m.pool][slot])
				}
				t.control.gone = append(t.control.gone, m.gone...)
			}
		case l.need >= firstBuffer:
			t.bufs[l.need-firstBuffer] = d.banks[m.pool][l.slot]
		default:
			t.sems[l.need] = d.banks[m.pool][l.slot]
		}
	}
}

// giveBack returns a bank to its pool.
func (d *device) giveBack(pool int, l lease) {
	if pool == d.buffersPool() {
		d.bufs = append(d.bufs, bufferAction{lease: l})
	} else {
		d.leases--
		d.send(d.actors[pool].pid, &back{[]lease{l}})
	}
}

func (d *device) flushBuffers() {
	if len(d.bufs) > 0 {
		d.send(d.actors[d.buffersPool()].pid, &takeBuffers{d.bufs})
		d.bufs = nil
	}
}
