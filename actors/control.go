package actors

import (
	"cmp"
	"context"
	"fmt"

	"github.com/meshrun/meshrun/axis"
	"github.com/meshrun/meshrun/messages"
)

// carryOutControl does what a request about the pools as a whole asks for.
func (d *device) carryOutControl(t *task) {
	c := t.control
	switch {
	case c.reset:
		d.reset(t)
	case c.release != nil:
		d.releaseBuffers(t)
	default: // prewarmed: makeBanks has made what was missing
		d.journal(t)
		d.answer(t, nil)
	}
}

// reset puts every semaphore to 0 and every pool to bank 0, between two fences. It is refused unless the mesh is quiet but for the stream
// that asks.
func (d *device) reset(t *task) {
	end := func(err error) {
		d.resetting = false
		if t.row != nil {
			t.row.Err = err
		}
		d.journal(t)
		d.answer(t, err)
	}
	if err := d.busy(t); err != nil {
		end(err)
		return
	}
	d.startFence(t.row, func(err error) {
		for i := range d.actors[:d.buffersPool()] {
			for _, b := range d.banks[i] {
				if err == nil && b.unmade == nil {
					if err = d.dev.ResetSemaphores(0, b.semaphores); err == nil {
						for _, name := range b.names {
							effect(t.row, "reset_semaphore", field("sem", name), field("value", 0))
						}
					}
				}
			}
		}
		if err != nil {
			end(err)
			return
		}
		for _, a := range d.actors {
			d.send(a.pid, rewind{})
		}
		d.startFence(t.row, end)
	})
}

// busy says what keeps a reset from going on: work of other streams, or banks that callers hold.
func (d *device) busy(t *task) error {
	refuse := func(what string) error {
		return fmt.Errorf("%w: reset: %s; a reset needs a quiet mesh", messages.ErrBusy, what)
	}
	for _, q := range d.streams.queues {
		if q != t.stream.queue && q.open > 0 {
			return refuse(fmt.Sprintf("stream %s has %d operations under way", q.stream.name, q.open))
		}
	}
	if d.leases > 0 {
		return refuse(fmt.Sprintf("callers hold %d banks of semaphores", d.leases))
	}
	return nil
}

// releaseBuffers frees the buffers of the pools that the buffers actor has forgotten, once nothing in flight uses them.
func (d *device) releaseBuffers(t *task) {
	slots := t.control.gone
	if len(slots) == 0 {
		d.journal(t)
		d.answer(t, nil)
		return
	}
	d.startFence(t.row, func(err error) {
		table := d.banks[d.buffersPool()]
		for _, slot := range slots {
			b := table[slot]
			for i := range b.buffers {
				for _, v := range b.buffers[i].views {
					d.free = append(d.free, v.handle)
				}
				d.free = append(d.free, b.buffers[i].base)
				d.stats.Buffers--
				effect(t.row, "free", field("buf", b.buffers[i].name))
			}
			b.buffers = nil
		}
		d.freeNow()
		d.journal(t)
		d.answer(t, err)
	})
}

// control submits a request about the pools and waits for its answer.
func (s *Stream) control(ctx context.Context, c *control, step string) error {
	t, err := s.enqueue(ctx, &task{stream: s, control: c}, cmp.Or(step, c.name))
	if err != nil {
		return err
	}
	return t.wait(ctx)
}

// Reset puts every semaphore of every pool to 0 and every pool to bank 0. It waits for what the stream has submitted, and is refused with ErrBusy
// while other streams have work under way or callers hold banks of semaphores.
// step is its name in the journal; "" = reset_global_semaphores.
func (s *Stream) Reset(ctx context.Context, step string) error {
	return s.control(ctx, &control{name: "reset_global_semaphores", reset: true}, step)
}

// Prewarm makes the buffers of the keys that do not exist yet, with two fences in all: the first request for one of them then allocates nothing.
func (s *Stream) Prewarm(ctx context.Context, step string, keys ...messages.BufferKey) error {
	c := &control{name: "prewarm"}
	for _, k := range keys {
		key, parts, err := axis.BufferParts(s.rt.mesh, k)
		if err != nil {
			return s.refused(step, c.name, err)
		}
		c.prewarm = append(c.prewarm, axis.BufferNeed{Key: key, Parts: parts})
	}
	if len(keys) == 0 {
		return nil
	}
	return s.control(ctx, c, step)
}

// refused journals a request about the pools that breaks a rule and returns its error.
func (s *Stream) refused(step, name string, err error) error {
	return s.fail(Call{Step: cmp.Or(step, name)}, fmt.Errorf("%s: %w", name, err))
}

// ReleaseBuffers frees the pools of the given keys, or of all keys when none is given. It is refused, and frees nothing, while a bank of one is
// lent.
func (s *Stream) ReleaseBuffers(ctx context.Context, step string, keys ...messages.BufferKey) error {
	const name = "release_buffers"
	all := map[messages.BufferKey]bool{}
	for _, k := range keys {
		key, _, err := axis.BufferParts(s.rt.mesh, k)
		if err != nil {
			return s.refused(step, name, err)
		}
		all[key] = true
	}
	return s.control(ctx, &control{name: name, release: func(k messages.BufferKey) bool { return len(keys) == 0 || all[k] }}, step)
}

// Lease turns a semaphore pool and lends its bank to the caller (the reference's get_..._semaphore).
func (s *Stream) Lease(ctx context.Context, op messages.GetSemaphores, step string) (*Lease, error) {
	plan, err := axis.Make(s.rt.mesh, op, nil)
	if err != nil {
		return nil, s.fail(Call{Op: op, Step: step}, err)
	}
	l := &Lease{pool: op.Pool, axis: op.MeshAxis}
	l.mem.rt = s.rt
	l.mem.refs.Store(2) // the caller's and the task's
	t, err := s.enqueue(ctx, &task{stream: s, plan: plan, lease: l}, cmp.Or(step, axis.OpName(op)))
	if err != nil {
		return nil, err
	}
	if err := t.wait(ctx); err != nil {
		return nil, err
	}
	return l, nil
}
