package actors

import (
	"fmt"

	"github.com/meshrun/meshrun/messages"
)

// Needs of a task are numbered: semaphores from 0, buffers from firstBuffer.
const firstBuffer = 2

// admit gives tickets as long as there is room inside the driver, and asks for what the tasks need. It reports whether it has
// given any.
func (d *device) admit() bool {
	room := d.rt.cfg.Inflight - d.pending.len() - d.flying.len()
	if room <= 0 || d.draining != nil {
		return false
	}
	before := d.ticket
	var wants [2]*acquire
	for ; room > 0; room-- {
		t := d.streams.take(admittable)
		if t == nil {
			break
		}
		if err := d.refused(t); err != nil {
			d.drop(t, err)
			room++
			continue
		}
		d.ticket++
		t.ticket = d.ticket
		d.pending.push(t)
		if t.plan == nil {
			continue
		}
		for i, n := range t.plan.Semaphores[:t.plan.NumSemaphores] {
			w := wants[n.Axis]
			if w == nil {
				w = &acquire{}
				wants[n.Axis] = w
			}
			w.pools = append(w.pools, n.Pool)
			w.leases = append(w.leases, lease{ticket: t.ticket, need: uint8(i)})
			t.missing++
		}
		for i := range t.plan.NumBuffers {
			n := &t.plan.Buffers[i]
			d.bufs = append(d.bufs, bufferAction{lease: lease{ticket: t.ticket, need: uint8(firstBuffer + i)}, key: n.Key, parts: n.Parts})
			t.missing++
		}
	}
	for a, w := range wants {
		if w != nil {
			d.ctx.Send(d.axes[a], w)
		}
	}
	d.flushBuffers()
	return d.ticket > before
}

// admittable: every input's producer has a ticket already, or is done.
func admittable(t *task) bool {
	for _, in := range t.in {
		if in != nil && in.producer != nil && in.producer.ticket == 0 && !in.producer.done() {
			return false
		}
	}
	return true
}

// refused says why a task cannot go on: what it reads has failed, or a pool that it needs is gone.
func (d *device) refused(t *task) error {
	if err := poisoned(t); err != nil {
		return err
	}
	for i := range d.actors {
		if d.actors[i].dead != nil && d.needs(t, i) {
			return d.actors[i].dead
		}
	}
	return nil
}

// poisoned: an input's producer has failed. Its error may be set although its stream has not been told yet.
func poisoned(t *task) error {
	for i, in := range t.in {
		if in != nil && in.producer != nil && in.producer.err != nil {
			return fmt.Errorf("%w: input %d: %w", messages.ErrPoisoned, i, in.producer.err)
		}
	}
	return nil
}

// granted puts the banks of a pool's answer into the tasks.
func (d *device) granted(m *granted) {
	if d.opened != nil {
		d.eagerMade(m)
		return
	}
	d.place(m.pool, m.made)
	for _, l := range m.leases {
		front := d.pending.front()
		if front == nil || l.ticket < front.ticket || l.ticket-front.ticket >= uint64(d.pending.len()) {
			d.giveBack(d.banks[m.pool][l.slot]) // the task has been answered meanwhile
			continue
		}
		t := d.pending.at(int(l.ticket - front.ticket))
		b := d.banks[m.pool][l.slot]
		if l.need >= firstBuffer {
			t.bufs[l.need-firstBuffer] = b
		} else {
			t.sems[l.need] = b
		}
		t.missing--
	}
}

// giveBack returns a bank of buffers to its pool. Semaphore banks are not lent, and under Rotate nothing is.
func (d *device) giveBack(b *bank) {
	if b != nil && b.pool == d.buffersPool() && d.rt.cfg.Policy == messages.Hold {
		d.bufs = append(d.bufs, bufferAction{lease: lease{slot: int32(b.slot)}, back: true})
	}
}

func (d *device) flushBuffers() {
	if len(d.bufs) > 0 {
		d.ctx.Send(d.actors[d.buffersPool()].pid, &takeBuffers{d.bufs})
		d.bufs = nil
	}
}
