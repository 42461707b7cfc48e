package actors

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/meshrun/meshrun/axis"
	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/pools"
)

// markEvery is after how many launches an event is recorded at the latest, so that retirement is seen before the driver is full.
const markEvery = 16

// launchReady carries out the pending tasks in ticket order, as far as their banks are there and no fence is in progress.
func (d *device) launchReady() {
	for !d.fencing && d.idle == nil {
		t := d.pending.front()
		if t == nil || t.missing > 0 {
			return
		}
		if t.err == nil {
			t.err = poisoned(t)
		}
		if t.err == nil && t.captured() {
			t.err = d.mayCapture(t)
		}
		if t.err == nil && !t.captured() && d.makeBanks(t) {
			continue // after the fence
		}
		if t.err == nil && !t.captured() && !d.safe(t) {
			d.stats.Reuse++
			d.startFence(t.row, func(error) {})
			continue
		}
		d.current = d.pending.pop()
		d.carryOut(t)
		d.current = nil
		if !t.flies {
			d.inside -= t.size
		}
		if d.launch-d.marked >= markEvery {
			d.mark()
		}
	}
}

// carryOut does what the task asks for.
func (d *device) carryOut(t *task) {
	switch {
	case t.err != nil:
		d.drop(t, t.err)
	case t.fence:
		d.startFence(t.row, func(err error) {
			d.journal(t)
			d.answer(t, err)
		})
	case t.write != nil:
		onItsWay := t.write.data != nil
		if err := d.put(t); err != nil || !onItsWay {
			d.finish(t, err)
			break
		}
		d.leave(t)
		d.record(func(err error) { d.answer(t, err) }) // it can be read once it is there
	case t.control != nil:
		d.carryOutControl(t)
	case t.call != noTraceCall:
		d.carryOutTrace(t)
	case t.plan.Kind == messages.OpGetSemaphores || t.plan.Kind == messages.OpGetBuffers:
		d.lend(t)
		d.finish(t, nil)
	case t.plan.Alias:
		if t.row != nil {
			t.row.Returns = d.returned(t)
		}
		d.finish(t, nil)
	default:
		d.enqueue(t)
	}
}

// makeBanks makes the banks of a task that do not exist yet, between two fences: what others still do with the memory is over before, and
// every device has them before anybody uses them. It reports whether a fence has begun; the task goes on behind it.
//
// Where the caller has promised a fence of his own the banks are made at once; a launch that uses one before a fence is refused.
func (d *device) makeBanks(t *task) bool {
	var unmade []*bank
	add := func(b *bank) {
		if b != nil && b.unmade != nil && !slices.ContainsFunc(unmade, func(x *bank) bool { return x.group[0] == b.group[0] }) {
			unmade = append(unmade, b)
		}
	}
	for _, b := range t.sems {
		add(b)
	}
	for _, b := range t.bufs {
		add(b)
	}
	if t.control != nil {
		for _, b := range t.control.made {
			add(b)
		}
	}
	if len(unmade) == 0 {
		return false
	}
	if d.rt.cfg.Break.NoCreationFence {
		t.err = d.makeAll(t, unmade)
		return false
	}
	if t.promised() {
		t.err = d.makeAll(t, unmade)
		for _, b := range unmade {
			for _, member := range b.group {
				member.unfenced = true
				d.unfenced = append(d.unfenced, member)
			}
		}
		return false
	}
	d.startFence(t.row, func(err error) {
		if err == nil {
			err = d.makeAll(t, unmade)
		}
		if err != nil {
			t.err = err
			return
		}
		d.startFence(t.row, func(err error) { t.err = err })
	})
	return true
}

func (d *device) makeAll(t *task, banks []*bank) error {
	for _, b := range banks {
		for _, member := range b.group {
			if err := d.make(member, t.row); err != nil {
				return err
			}
		}
	}
	return nil
}

// promised: the caller of a getter has promised a fence before the first launch that uses what it makes.
func (t *task) promised() bool {
	if t.plan == nil {
		return false
	}
	get, ok := t.plan.Op.(messages.GetBuffers)
	return ok && get.Unfenced
}

// safe is rule 4: may the launch, or each launch of a replay, use its banks after what used them last?
func (d *device) safe(t *task) bool {
	switch {
	case t.call == executeTrace:
		return d.unfencedReplays || t.trace.safe(d.joins, d.launch)
	case t.plan == nil || t.plan.Alias || t.lease != nil:
		return true
	}
	return draws{t.plan, &t.sems, &t.bufs, &d.rt.cfg.Break}.conflict(&d.joins, func(b *bank) uint64 { return b.lastUse }) == nil
}

// draws are the banks that peers write in a launch.
type draws struct {
	plan *axis.Plan
	sems *[axis.MaxSemaphoreNeeds]*bank
	bufs *[axis.MaxBufferNeeds]*bank
	free *Break // of whose pools nobody asks
}

// conflict is the first bank that the launch must not use yet.
func (u draws) conflict(j *pools.Joins, lastUse func(*bank) uint64) *bank {
	for i, n := range u.plan.Semaphores[:u.plan.NumSemaphores] {
		if !reusable(j, n.Reuse, n.Axis, lastUse(u.sems[i])) && !u.free.oneBank(n.Pool, n.Axis) {
			return u.sems[i]
		}
	}
	for i := range u.plan.NumBuffers {
		if n := &u.plan.Buffers[i]; !reusable(j, n.Reuse, n.Axis, lastUse(u.bufs[i])) {
			return u.bufs[i]
		}
	}
	return nil
}

func reusable(j *pools.Joins, r axis.Reuse, line int, lastUse uint64) bool {
	switch r {
	case axis.AfterLineJoin:
		return j.SafeOnLine(line, lastUse)
	case axis.AfterNeighbourJoin:
		return j.SafeForNeighbours(line, lastUse)
	case axis.AfterRetirement:
		return j.Retired(lastUse)
	}
	return true
}

// joined notes whom a launch joins.
func joined(j *pools.Joins, p *axis.Plan, launch uint64) {
	for a, scope := range p.Joins {
		switch scope {
		case axis.JoinsLine:
			j.Line(a, launch)
		case axis.JoinsNeighbours:
			j.Neighbours(a, launch)
		}
	}
}

// unfencedBank finds a bank of the task that was made on a promise which has not been kept.
func (d *device) unfencedBank(t *task) error {
	for _, b := range t.bufs {
		if b != nil && b.unfenced {
			return &messages.InvalidError{Op: t.name(), Field: "buffer", Value: b.buffers[0].name, Rule: "is used only behind a fence that follows its creation",
				Hint: "the getter was called without one (device_synchronize=false): call fence first"}
		}
	}
	return nil
}

// enqueue makes the one call that launches a task.
func (d *device) enqueue(t *task) {
	err := d.unfencedBank(t)
	var args devicecgo.Args
	if err == nil {
		args, err = d.build.args(d, t)
	}
	if err == nil {
		h := args.Header()
		if !t.captured() {
			h.Launch = d.launch + 1
		}
		h.Stream = t.stream.id
		err = d.dev.Launch(args)
	}
	if err != nil {
		// The driver refused: nothing was enqueued, and the launch joins nobody.
		d.journal(t)
		d.drop(t, err)
		return
	}
	if t.captured() {
		d.results(t, args)
		t.trace.add(t)
		d.describeLaunch(t, args)
		d.answer(t, nil)
		return
	}
	d.launch++
	t.launch = d.launch
	p := t.plan
	joined(&d.joins, p, t.launch)
	for _, b := range t.sems[:p.NumSemaphores] {
		b.lastUse = t.launch
	}
	for _, b := range t.bufs[:p.NumBuffers] {
		b.lastUse = t.launch
	}
	d.results(t, args)
	d.describeLaunch(t, args)
	d.used(t)
	d.fly(t)
}

// fly takes what the driver has accepted: it is answered when it has retired.
func (d *device) fly(t *task) {
	t.flies = true
	d.leave(t)
	d.flying.push(t)
}

func (d *device) describeLaunch(t *task, args devicecgo.Args) {
	if t.row != nil {
		t.row.Launch = t.launch
		d.describe(t.row, args)
		t.row.Returns = d.returned(t)
		d.journal(t)
	}
}

// results ties the driver's outputs to the handles of the caller.
func (d *device) results(t *task, args devicecgo.Args) {
	if t.plan.InPlace {
		return
	}
	for i := range t.plan.NumOutputs {
		o := &t.plan.Outputs[i]
		mem := t.out[i].mem
		if o.Buffer == axis.Fresh {
			mem.own.base = outputOf(args, i)
			mem.own.spec = o.Driver
			d.called(mem.own.base, messages.FreshName, o.Driver)
		} else {
			mem.bank = t.bufs[o.Buffer]
		}
	}
}

// used notes the launch on the banks that it reads.
func (d *device) used(t *task) {
	for _, in := range t.in {
		if in != nil && in.mem.bank != nil {
			in.mem.bank.lastUse = t.launch
		}
	}
}

// lend hands a getter's banks to the caller.
func (d *device) lend(t *task) {
	if l := t.lease; l != nil {
		b := t.sems[0]
		l.mem.bank, l.handles, l.names = b, b.semaphores, b.names
	}
	for i := range t.plan.NumOutputs {
		t.out[i].mem.bank = t.bufs[t.plan.Outputs[i].Buffer]
	}
	if t.row != nil {
		t.row.Returns = d.returned(t)
	}
}

// put allocates a tensor and writes the host array into it.
func (d *device) put(t *task) error {
	w := t.write
	if w.into != nil {
		if p := w.into.producer; p != nil && p.captured() && !w.into.mem.there() {
			return p.trace.notExecuted()
		}
		return d.rewrite(w)
	}
	mem := t.out[0].mem
	h, err := d.dev.AllocTensor(w.spec)
	if err != nil {
		return err
	}
	mem.own = buffer{base: h, spec: w.spec.Spec}
	d.called(h, messages.FreshName, w.spec.Spec)
	if w.data == nil {
		return nil
	}
	err = d.dev.WriteTensor(h, w.dist, w.data, 0)
	w.data = nil
	return err
}

// rewrite writes the host array into a tensor that is there.
func (d *device) rewrite(w *write) error {
	h, err := d.handle(w.into, messages.Shape{})
	if err == nil {
		err = d.dev.WriteTensor(h, w.dist, w.data, 0)
	}
	if b := w.into.mem.bank; b != nil {
		b.lastUse = max(b.lastUse, d.launch) // the write stands behind that launch: what joins later has done it
	}
	w.data = nil
	return err
}

// askWhatIsIdle has a task that found no memory wait for the buffers actor to say what could be released; then goes on with that in the error.
// Nothing is launched meanwhile. It reports whether the task waits.
func (d *device) askWhatIsIdle(err error, then func(error)) bool {
	buffers := &d.actors[d.buffersPool()]
	var told *messages.OutOfMemoryError
	if !errors.Is(err, messages.ErrOutOfMemory) || errors.As(err, &told) || d.idle != nil || buffers.dead != nil || d.ended {
		return false
	}
	d.idle = func(idle []pools.Idle) {
		told := &messages.OutOfMemoryError{Err: err}
		for _, p := range idle {
			if bytes := d.made(p.Slots); bytes > 0 {
				told.Releasable = append(told.Releasable, messages.Releasable{Pool: p.Key.String(), Bytes: bytes})
			}
		}
		slices.SortStableFunc(told.Releasable, func(a, b messages.Releasable) int { return cmp.Compare(b.Bytes, a.Bytes) })
		then(told)
	}
	d.send(buffers.pid, whatIsIdle{})
	return true
}

// made is how many bytes the buffers in these slots have on every device, as far as they have been made.
func (d *device) made(slots []int) (bytes int64) {
	for _, slot := range slots {
		b := d.banks[d.buffersPool()][slot]
		if b == nil || b.unmade != nil {
			continue
		}
		for i := range b.buffers {
			bytes += b.buffers[i].spec.DeviceBytes()
		}
	}
	return bytes
}

func (d *device) tellIdle(idle []pools.Idle) {
	if then := d.idle; then != nil {
		d.idle = nil
		then(idle)
	}
}

// finish answers a task that launches nothing.
func (d *device) finish(t *task, err error) {
	if err != nil && d.askWhatIsIdle(err, func(err error) { d.finish(t, err) }) {
		return
	}
	d.journal(t)
	d.answer(t, err)
}

// drop answers a task that will not be launched.
func (d *device) drop(t *task, err error) {
	if d.askWhatIsIdle(err, func(err error) { d.drop(t, err) }) {
		return
	}
	if t.row != nil {
		t.row.Err = err
	}
	if t.ticket == 0 {
		d.letGo(t)
	}
	err = fmt.Errorf("%w", &messages.OpError{Op: t.name(), Stream: t.stream.name, Err: err})
	switch {
	case t.captured():
		t.trace.fail(err)
	case t.call == endTrace:
		_ = d.endCapture(t.trace, err)
	}
	d.answer(t, err)
}

// leave gives a task's place in its stream's queue back, once: it is launched or answered.
func (d *device) leave(t *task) {
	if !t.left {
		t.left = true
		t.stream.queue.left++
	}
}

// answer hands a task to its stream's actor, with the next flush. The first answer counts: when all is lost, what was being done is answered by that.
func (d *device) answer(t *task, err error) {
	if t.over {
		return
	}
	d.leave(t)
	if t.row != nil && t.row.Err == nil {
		t.row.Err = err
	}
	t.err = err
	t.over = true
	t.sources = nil // or each would keep the one before
	if !t.captured() {
		clear(t.in[:])
	}
	q := t.stream.queue
	q.answered = append(q.answered, t)
	q.open--
}

// flushAnswers sends each stream what has been answered, as one message.
func (d *device) flushAnswers() {
	closed := false
	for _, q := range d.streams.queues {
		if len(q.answered) > 0 {
			d.send(q.stream.pid, &retired{q.answered})
			q.answered = nil
		}
		if q.left > 0 {
			q.stream.left(q.left)
			q.left = 0
		}
		closed = closed || q.closed && q.open == 0
	}
	if closed {
		d.streams.remove(func(q *streamQueue) { d.rt.root.Poison(q.stream.pid) })
	}
}

// handle is the driver's tensor behind an input, in the given shape.
func (d *device) handle(t *Tensor, shape messages.Shape) (devicecgo.Handle, error) {
	if shape.Rank() == 0 {
		shape = t.spec.Shape
	}
	return d.as(t.mem.buffer(t.part), shape)
}

// as names a buffer by a shape, making a view where it has another.
func (d *device) as(b *buffer, shape messages.Shape) (devicecgo.Handle, error) {
	if b.base == 0 {
		return 0, fmt.Errorf("%w: a tensor without memory", messages.ErrInternal)
	}
	if shape == b.spec.Shape {
		return b.base, nil
	}
	for _, v := range b.views {
		if v.shape == shape {
			return v.handle, nil
		}
	}
	h, err := d.dev.ViewTensor(b.base, shape)
	if err != nil {
		return 0, err
	}
	b.views = append(b.views, view{shape, h})
	if d.names != nil {
		spec := b.spec
		spec.Shape = shape
		d.called(h, d.names[b.base].name, spec)
	}
	return h, nil
}
