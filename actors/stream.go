package actors

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/meshrun/meshrun/axis"
	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/messages"
)

// Stream is one caller's ordered sequence of operations. Its methods may be called from any goroutine.
type Stream struct {
	rt   *Runtime
	name string
	id   uint32
	pid  *actor.PID
	seat *seat // lockstep only

	queue *streamQueue // the device actor's

	mu      sync.Mutex
	outbox  []*task    // submitted, not yet seen by the stream's actor
	last    [4]planned // the latest plans: a stream repeats itself
	nLast   int
	closed  error         // why nothing is accepted any more
	capture *Trace        // that operations go into; nil: none
	room    chan struct{} // closed and replaced when a full queue has room again; nil when nobody waits
	waiters []waiter
	dead    error // the stream's actor is gone: nothing will be answered any more

	queued   atomic.Int64 // submitted and not yet launched or answered
	nWaiters atomic.Int32
}

type planned struct {
	op   messages.Operation
	in   [messages.MaxInputs]messages.Spec
	plan *axis.Plan
}

type waiter struct {
	task *task
	done chan struct{}
	by   *Stream // whose goroutine waits
}

func newStream(r *Runtime, name string, id uint32) *Stream {
	s := &Stream{rt: r, name: name, id: id}
	if r.turns != nil {
		s.seat = r.turns.seat()
	}
	return s
}

// Name is the stream's name.
func (s *Stream) Name() string { return s.name }

// Call is one request of a stream.
type Call struct {
	Op   messages.Operation
	In   []*Tensor // by the operation's slots; nil = absent
	Step string    // the name of the step in the journal; "" = the operation's
	// Row, in a journal, is the row of a call that submits several operations; nil = one of its own.
	Row *messages.Row
	// Semaphores are banks of the caller's that stand for the first ones that the operation would draw: the neighbour semaphores of a halo
	// exchange.
	Semaphores []*Lease
}

// Submit plans an operation and queues it. The results in out are made before it returns: their specs are known, their data
// come later. An operation that breaks a rule is refused and changes nothing. It waits only where the stream's queue is full.
// It returns how many results there are.
func (s *Stream) Submit(ctx context.Context, c Call, out []*Tensor) (int, error) {
	if c.Op == nil {
		return 0, messages.Invalid("submit", "op", "nil", "is an operation")
	}
	if s.rt.turns != nil {
		if err := s.rt.turns.enter(ctx, s.seat); err != nil {
			return 0, err
		}
		defer s.rt.turns.leave(s.seat)
	}
	if err := s.admit(ctx); err != nil {
		return 0, s.fail(c, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed != nil {
		return 0, s.fail(c, s.closed)
	}
	var specs [messages.MaxInputs]messages.Spec
	if len(c.In) > messages.MaxInputs {
		return 0, s.fail(c, messages.Invalid(axis.OpName(c.Op), "inputs", len(c.In), "takes at most %d", messages.MaxInputs))
	}
	for i, t := range c.In {
		if t != nil {
			if t.mem == nil || t.mem.rt != s.rt {
				return 0, s.fail(c, messages.Invalid(axis.OpName(c.Op), "input", i, "is a tensor of this mesh"))
			}
			specs[i] = t.spec
		}
	}
	plan, err := s.plan(c.Op, specs, len(c.In))
	if err == nil && (plan.Kind == messages.OpGetSemaphores || plan.Kind == messages.OpGetBuffers) {
		err = s.notCapturing(plan.Kind.String())
	}
	if err != nil {
		return 0, s.fail(c, err)
	}
	for i, t := range c.In {
		if t != nil && !hold(t) {
			unhold(c.In[:i])
			return 0, s.fail(c, &messages.OpError{Op: axis.OpName(c.Op), Stream: s.name, Err: fmt.Errorf("%w: input %d", messages.ErrReleased, i)})
		}
	}
	if plan.Alias && !s.rt.cfg.Record {
		// The reference taken above becomes the result's.
		in := c.In[0]
		out[0].spec = aliasSpec(in, plan)
		out[0].mem, out[0].part, out[0].producer, out[0].source = in.mem, in.part, in.producer, in.source
		unhold(c.In[1:])
		return 1, nil
	}
	t := &task{stream: s, plan: plan, trace: s.capture}
	copy(t.in[:], c.In)
	if err := t.resolve(); err != nil {
		unhold(c.In)
		return 0, s.fail(c, err)
	}
	if err := s.bring(t, c.Semaphores); err != nil {
		unhold(c.In)
		return 0, s.fail(c, err)
	}
	for i := range plan.NumOutputs {
		s.result(t, out[i], i)
	}
	if t.trace != nil {
		t.trace.hold(t)
	}
	if s.rt.cfg.Record {
		if t.row = c.Row; t.row == nil {
			t.row = &messages.Row{}
		}
		t.row.Step, t.row.Stream = c.Step, s.name
		if c.Step == "" {
			t.row.Step = axis.OpName(c.Op)
		}
	}
	s.post(t)
	return plan.NumOutputs, nil
}

// bring takes the caller's banks for the first semaphores of a plan.
func (s *Stream) bring(t *task, leases []*Lease) error {
	op := axis.OpName(t.plan.Op)
	if len(leases) > t.plan.NumSemaphores {
		return messages.Invalid(op, "semaphores", len(leases), "are at most the %d that the operation draws", t.plan.NumSemaphores)
	}
	for i, l := range leases {
		n := t.plan.Semaphores[i]
		err := error(nil)
		switch {
		case l == nil || l.mem.rt != s.rt:
			err = messages.Invalid(op, "semaphores", i, "is a lease of this mesh")
		case l.pool != n.Pool || l.axis != n.Axis:
			err = messages.Invalid(op, "semaphores", fmt.Sprintf("%s[%d]", l.pool, l.axis), "are a bank of %s[%d]", n.Pool, n.Axis)
		case !l.mem.ref():
			err = fmt.Errorf("%s: %w: semaphores %d", op, messages.ErrReleased, i)
		case l.released.Load() && s.rt.cfg.Policy == messages.Hold:
			l.mem.unref()
			err = fmt.Errorf("%s: %w: semaphores %d", op, messages.ErrReleased, i)
		}
		if err != nil {
			for _, taken := range t.brought {
				taken.mem.unref()
			}
			t.brought = nil
			return err
		}
		t.brought = append(t.brought, l)
	}
	return nil
}

// hold takes a reference for a task, unless the tensor has been released.
func hold(t *Tensor) bool {
	if !t.mem.ref() {
		return false
	}
	if t.released.Load() {
		t.mem.unref()
		return false
	}
	return true
}

// unhold gives the references to inputs up again.
func unhold(in []*Tensor) {
	for _, t := range in {
		if t != nil {
			t.mem.unref()
		}
	}
}

func aliasSpec(in *Tensor, p *axis.Plan) messages.Spec {
	spec := in.spec
	spec.Shape = p.Outputs[0].Shape
	return spec
}

// result initialises the handle of one result.
func (s *Stream) result(t *task, out *Tensor, i int) {
	o := &t.plan.Outputs[i]
	out.spec = o.Driver
	out.spec.Shape = o.Shape
	out.producer = t
	t.out[i] = out
	if t.plan.Alias || t.plan.InPlace {
		in := t.in[0]
		if t.plan.InPlace {
			in = t.in[1]
		}
		in.mem.ref()
		if t.plan.InPlace && t.trace == nil && in.mem.latest.Load() != nil {
			in.mem.latest.Store(t)
		}
		out.spec = aliasSpec(in, t.plan)
		out.mem, out.part = in.mem, in.part
		if t.plan.Alias {
			out.source = cmp.Or(in.source, in.producer)
		}
		return // the task needs no reference of its own to it: it has one to the input
	}
	if o.Buffer != axis.Fresh && i > 0 && t.plan.Outputs[i-1].Buffer == o.Buffer {
		out.mem = t.out[i-1].mem // two parts of one bank live as one
		out.mem.refs.Add(2)
	} else {
		out.mem = &out.own
		out.own.rt = s.rt
		out.own.refs.Store(2) // the caller's and the task's
	}
	if o.Buffer != axis.Fresh {
		out.part = o.Part
		out.mem.pooled = true
	}
}

// post puts a task into the outbox and rings once. The stream's lock is held.
func (s *Stream) post(t *task) {
	s.queued.Add(1)
	s.outbox = append(s.outbox, t)
	if len(s.outbox) == 1 {
		s.rt.root.Send(s.pid, doorbell{})
	}
}

// fail journals a refused call and returns its error.
func (s *Stream) fail(c Call, err error) error {
	if s.rt.cfg.Record && !errors.Is(err, context.Canceled) {
		step := c.Step
		if step == "" {
			step = axis.OpName(c.Op)
		}
		s.rt.addRow(&messages.Row{Step: step, Stream: s.name, Err: err})
	}
	return err
}

// plan works the operation out, or remembers.
func (s *Stream) plan(op messages.Operation, in [messages.MaxInputs]messages.Spec, n int) (*axis.Plan, error) {
	for i := range s.last {
		if p := &s.last[i]; p.plan != nil && p.op == op && p.in == in {
			return p.plan, nil
		}
	}
	plan, err := axis.Make(s.rt.mesh, op, in[:n])
	if err == nil {
		s.last[s.nLast%len(s.last)] = planned{op, in, plan}
		s.nLast++
	}
	return plan, err
}

// admit waits until the queue has room.
func (s *Stream) admit(ctx context.Context) error {
	limit := int64(s.rt.cfg.Queue)
	for s.queued.Load() >= limit {
		if s.rt.cfg.Refuse {
			return fmt.Errorf("%w: stream %s: queue of %d operations", messages.ErrQueueFull, s.name, limit)
		}
		s.mu.Lock()
		if s.closed != nil {
			s.mu.Unlock()
			return s.closed
		}
		if s.room == nil {
			s.room = make(chan struct{})
		}
		room := s.room
		s.mu.Unlock()
		if s.queued.Load() < limit {
			break
		}
		if err := s.sleep(ctx, room); err != nil {
			return err
		}
	}
	return nil
}

// sleep waits for a signal from the mesh's thread; in lockstep it gives its turn away meanwhile.
func (s *Stream) sleep(ctx context.Context, signal <-chan struct{}) error {
	if s.rt.turns != nil {
		return s.rt.turns.block(ctx, s.seat, signal)
	}
	select {
	case <-signal:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// left tells that n tasks are no longer queued.
func (s *Stream) left(n int) {
	s.queued.Add(int64(-n))
	s.mu.Lock()
	if s.room != nil {
		close(s.room)
		s.room = nil
		s.woken()
	}
	s.mu.Unlock()
}

// woken tells the turns that the goroutine of this stream has been signalled.
func (s *Stream) woken() {
	if s.rt.turns != nil {
		s.rt.turns.ready(s.seat)
	}
}

// await waits for a task of this stream, which any goroutine may do.
func (s *Stream) await(ctx context.Context, t *task, by *Stream) error {
	w := waiter{t, make(chan struct{}), by}
	s.mu.Lock()
	if s.dead != nil {
		t.answer(s.dead)
		s.mu.Unlock()
		return nil
	}
	s.waiters = append(s.waiters, w)
	s.nWaiters.Add(1)
	s.mu.Unlock()
	if t.done() { // answered before the waiter could be seen
		s.drop(w)
		return nil
	}
	if err := by.sleep(ctx, w.done); err != nil {
		s.drop(w)
		return err
	}
	return nil
}

func (s *Stream) drop(w waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.waiters {
		if s.waiters[i].done == w.done {
			s.waiters = append(s.waiters[:i], s.waiters[i+1:]...)
			s.nWaiters.Add(-1)
			return
		}
	}
}

// wake signals the waiters whose tasks are done.
func (s *Stream) wake() {
	if s.nWaiters.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.waiters[:0]
	for _, w := range s.waiters {
		if w.task.done() {
			close(w.done)
			s.nWaiters.Add(-1)
			w.by.woken()
		} else {
			kept = append(kept, w)
		}
	}
	clear(s.waiters[len(kept):])
	s.waiters = kept
}

// Write lays a host array over the mesh, into a new tensor of the given spec, whose shape is that of the shard. The data are
// copied before it returns; nil leaves the tensor's content undefined unless it is asked to be zeroed.
func (s *Stream) Write(ctx context.Context, spec devicecgo.TensorSpec, dist messages.Distribution, data []byte, out *Tensor) error {
	if data != nil {
		if err := s.checkData(spec.Spec, dist, data); err != nil {
			return err
		}
	}
	if spec.Shape.Rank() == 0 || spec.DType == messages.DTypeUnset {
		return messages.Invalid("write", "spec", spec.Spec, "has a shape and a dtype")
	}
	if err := axis.CheckStorage("write", spec.Spec); err != nil {
		return err
	}
	if s.rt.turns != nil {
		if err := s.rt.turns.enter(ctx, s.seat); err != nil {
			return err
		}
		defer s.rt.turns.leave(s.seat)
	}
	if err := s.admit(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed != nil {
		return s.closed
	}
	if err := s.notCapturing("write"); err != nil {
		return err
	}
	t := &task{stream: s, write: &write{spec: spec, dist: dist, data: append([]byte(nil), data...)}}
	if data == nil {
		t.write.data = nil
	}
	out.spec, out.producer, out.mem = spec.Spec, t, &out.own
	out.own.rt = s.rt
	out.own.refs.Store(2) // the caller's and the task's
	t.out[0] = out
	s.post(t)
	return nil
}

// checkData holds a host array to what a tensor of the spec takes, laid over the mesh like this.
func (s *Stream) checkData(spec messages.Spec, dist messages.Distribution, data []byte) error {
	global := dist.Global(spec.Shape, s.rt.mesh.Shape)
	if want := (messages.Spec{Shape: global, DType: spec.DType}).HostBytes(); int64(len(data)) != want {
		return messages.Invalid("write", "data", fmt.Sprintf("%d bytes", len(data)), "is %d bytes: %s elements of %s", want, global, spec.DType)
	}
	return nil
}

// Fence returns when everything submitted to the mesh before it has retired on every device.
func (s *Stream) Fence(ctx context.Context) error {
	t, err := s.fence(ctx)
	if err != nil {
		return err
	}
	return t.wait(ctx)
}

func (s *Stream) fence(ctx context.Context) (*task, error) {
	return s.enqueue(ctx, &task{stream: s, fence: true}, "fence")
}

// enqueue queues a task that is ready made.
func (s *Stream) enqueue(ctx context.Context, t *task, step string) (*task, error) {
	if s.rt.turns != nil {
		if err := s.rt.turns.enter(ctx, s.seat); err != nil {
			return nil, err
		}
		defer s.rt.turns.leave(s.seat)
	}
	if t.write != nil || t.call == executeTrace {
		if err := s.admit(ctx); err != nil {
			return nil, s.fail(Call{Step: step}, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed != nil {
		return nil, s.closed
	}
	if t.call == noTraceCall {
		if err := s.notCapturing(t.name()); err != nil {
			return nil, s.fail(Call{Step: step}, err)
		}
	}
	if t.write != nil {
		if p := t.write.into.maker(); p != nil && !p.captured() { // a result of a trace has its memory though it holds nothing
			t.sources = []*task{p}
		}
		t.write.into.mem.latest.Store(t)
	}
	if err := s.turnCapture(t); err != nil {
		return nil, s.fail(Call{Step: step}, err)
	}
	if s.rt.cfg.Record {
		t.row = &messages.Row{Step: step, Stream: s.name}
	}
	s.post(t)
	return t, nil
}

// Read returns the shard of one device as a host array of the tensor's dtype, once it is there.
func (s *Stream) Read(ctx context.Context, t *Tensor, at messages.Coord) ([]byte, error) {
	return s.read(ctx, t, at, nil)
}

// Wait is Tensor.Wait for a tensor of any stream, by the goroutine of this one.
func (s *Stream) Wait(ctx context.Context, t *Tensor) error { return t.waitBy(ctx, s) }

func (s *Stream) read(ctx context.Context, t *Tensor, at messages.Coord, row *messages.Row) ([]byte, error) {
	if at.Row < 0 || at.Col < 0 || at.Row >= s.rt.mesh.Shape.Rows || at.Col >= s.rt.mesh.Shape.Cols {
		return nil, messages.Invalid("read", "device", at, "lies on the mesh %s", s.rt.mesh.Shape)
	}
	if t == nil || t.mem == nil || t.mem.rt != s.rt {
		return nil, messages.Invalid("read", "input", 0, "is a tensor of this mesh")
	}
	if !hold(t) {
		return nil, fmt.Errorf("read: %w", messages.ErrReleased)
	}
	defer t.mem.unref()
	err := s.mayWait("read")
	if err == nil {
		err = t.waitBy(ctx, s)
	}
	if err != nil {
		return nil, err
	}
	data := make([]byte, t.spec.HostBytes())
	_, err = ask(ctx, s.rt, func(reply chan<- answer[struct{}]) any { return &readRequest{ctx, t, at, data, row, reply} })
	if err != nil {
		return nil, err
	}
	return data, nil
}

// Sleep lets virtual time pass for this stream; in real time outside lockstep it returns at once.
func (s *Stream) Sleep(ctx context.Context, ns uint64) error {
	if s.rt.turns == nil {
		return ctx.Err()
	}
	return s.rt.turns.sleep(ctx, s.seat, ns)
}

// Close ends the stream: what it has submitted goes on, nothing more is accepted. In lockstep its seat is given up, in its turn: what the
// device actor does about it must not fall into the act of another stream.
func (s *Stream) Close() {
	if s.rt.turns != nil {
		_ = s.rt.turns.enter(context.Background(), s.seat) // fails when the mesh closes: then nobody acts
	}
	s.abandonTrace(fmt.Errorf("%w: stream %s, while it captured a trace", messages.ErrClosed, s.name))
	s.shut(fmt.Errorf("stream %s: %w", s.name, messages.ErrClosed))
	s.rt.forget(s)
	if s.rt.turns != nil {
		s.rt.turns.settle()
		s.rt.turns.end(s.seat)
	}
}

// shut refuses what comes and wakes callers that wait for room.
func (s *Stream) shut(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed == nil {
		s.closed = why
	}
	if s.room != nil {
		close(s.room)
		s.room = nil
		s.woken()
	}
}

// abandon answers what nobody else can answer any more: the tasks that still have waiters. On a mesh that is closed that is why, whatever
// came first.
func (s *Stream) abandon(why error) {
	s.shut(why)
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(s.closed, messages.ErrClosed) {
		why = s.closed
	}
	s.dead = why
	for _, t := range s.outbox {
		t.answer(why)
	}
	if len(s.outbox) > 0 {
		s.rt.root.Send(s.rt.device, &orphaned{s.outbox})
	}
	s.outbox = nil
	for _, w := range s.waiters {
		w.task.answer(why)
		close(w.done)
		w.by.woken()
	}
	s.waiters = nil
	s.nWaiters.Store(0)
}

// answer marks a task done, once.
func (t *task) answer(err error) {
	if t.done() {
		return
	}
	t.err = err
	t.state.Store(taskDone)
}

// take empties the outbox.
func (s *Stream) take() []*task {
	s.mu.Lock()
	defer s.mu.Unlock()
	tasks := s.outbox
	s.outbox = nil
	return tasks
}

// streamActor forwards what its stream has submitted, as one message, and answers what has retired.
type streamActor struct {
	s *Stream
}

type doorbell struct{}

// Receive implements actor.Actor.
func (a *streamActor) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case doorbell:
		if tasks := a.s.take(); len(tasks) > 0 {
			ctx.Send(a.s.rt.device, &submitted{stream: a.s, tasks: tasks})
		}
	case *streamClosed:
		ctx.Send(a.s.rt.device, m)
	case *retired:
		for _, t := range m.tasks {
			t.state.Store(taskDone)
		}
		a.s.wake()
	case *actor.Stopped:
		a.s.abandon(fmt.Errorf("%w: stream %s", messages.ErrActorStopped, a.s.name))
		ctx.Send(a.s.rt.device, &streamDied{a.s})
	}
}
