package actors

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/pools"
)

// Trace is a sequence of operations that was captured once and runs again with one call: on the same memory, with the same banks.
//
// The tensors that the capture returned are its results. They hold nothing before the first Execute; a Wait or Read after that waits for the
// latest Execute, and operations that read one come behind it. Each Execute writes the same memory anew.
//
// A trace keeps what it names: banks of the buffers (under Hold nobody else gets one), memory of inputs and results, semaphores that the caller
// brought. Release gives all of it back.
type Trace struct {
	stream   *Stream
	released atomic.Bool
	refs     atomic.Int32 // the caller's, and one for each replay without a ticket
	failure  atomic.Pointer[error]

	// Under the stream's lock while it is captured; the device actor's afterwards.
	held    []*memory
	known   map[*memory]bool
	inputs  []*Tensor // made outside
	results []*memory
	last    *task // the latest replay; under the stream's lock

	// The device actor's.
	handle     devicecgo.Handle // from when the driver keeps what is enqueued
	ending     bool             // the end has its ticket
	over       bool             // the capture is
	steps      []step
	joins      pools.Joins // within the trace, whose launches count from 1
	lastUse    map[*bank]uint64
	pins       []int
	lastTicket uint64
}

// step is one launch of a trace.
type step struct {
	*task
	reads []*bank
}

// banks calls fn with each bank that the launch uses or reads.
func (s *step) banks(fn func(*bank)) {
	for _, b := range s.sems[:s.plan.NumSemaphores] {
		fn(b)
	}
	for _, b := range s.bufs[:s.plan.NumBuffers] {
		fn(b)
	}
	for _, b := range s.reads {
		fn(b)
	}
}

type traceCall uint8

const (
	noTraceCall traceCall = iota
	beginTrace
	endTrace
	executeTrace
)

func (c traceCall) String() string {
	return [...]string{"", "begin_trace", "end_trace", "execute_trace"}[c]
}

// captured: the task is an operation that is kept in a trace, not launched.
func (t *task) captured() bool { return t.trace != nil && t.call == noTraceCall }

// ---- the caller's side

// BeginTrace makes the stream capture: what it submits until EndTrace is planned and checked as ever, but kept instead of launched. Other streams wait
// meanwhile, however long that is. It is queued like an operation; what goes wrong is told by EndTrace.
//
// Nothing that needs the host or the device can be captured: reads, writes, fences and getters are refused, and so is an operation whose banks
// do not exist yet: prewarm them, or run the sequence once before.
func (s *Stream) BeginTrace(ctx context.Context) error {
	tr := &Trace{stream: s, known: map[*memory]bool{}, lastUse: map[*bank]uint64{}}
	tr.refs.Store(1)
	_, err := s.enqueue(ctx, &task{stream: s, trace: tr, call: beginTrace}, beginTrace.String())
	return err
}

// EndTrace ends the capture. On an error there is no trace and nothing has run; the results of the capture still have to be released.
func (s *Stream) EndTrace(ctx context.Context) (*Trace, error) {
	s.mu.Lock()
	tr := s.capture
	s.mu.Unlock()
	t, err := s.enqueue(ctx, &task{stream: s, trace: tr, call: endTrace}, endTrace.String())
	if err != nil {
		s.abandonTrace(err) // or the others would wait for ever
		tr.Release()
		return nil, err
	}
	if err := t.wait(ctx); err != nil {
		tr.Release()
		return nil, err
	}
	return tr, nil
}

// Execute queues a replay: like Submit it does not wait for the device.
func (tr *Trace) Execute(ctx context.Context) error {
	if !tr.ref() {
		return fmt.Errorf("execute_trace: %w", messages.ErrReleased)
	}
	s := tr.stream
	_, err := s.enqueue(ctx, &task{stream: s, trace: tr, call: executeTrace}, executeTrace.String())
	if err != nil {
		tr.unref()
	}
	return err
}

// Wait returns when the latest Execute is done, with its error. In lockstep it is for the goroutine of the trace's stream.
func (tr *Trace) Wait(ctx context.Context) error {
	tr.stream.mu.Lock()
	t := tr.last
	tr.stream.mu.Unlock()
	if t == nil {
		return tr.notExecuted()
	}
	return t.wait(ctx)
}

// Release lets go of what the trace keeps, once its last replay is done. Results that the caller still holds stay readable.
func (tr *Trace) Release() {
	if tr != nil && !tr.released.Swap(true) {
		tr.unref()
	}
}

func (tr *Trace) ref() bool {
	for !tr.released.Load() {
		n := tr.refs.Load()
		if n <= 0 {
			return false
		}
		if tr.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

func (tr *Trace) unref() {
	if tr.refs.Add(-1) == 0 {
		tr.stream.rt.root.Send(tr.stream.rt.device, &traceReleased{tr})
	}
}

// notExecuted is why a result of the trace holds nothing.
func (tr *Trace) notExecuted() error {
	if e := tr.failure.Load(); e != nil {
		return fmt.Errorf("%w: the capture has failed: %w", messages.ErrPoisoned, root(*e))
	}
	return &messages.InvalidError{Field: "tensor", Value: "of a trace", Rule: "holds nothing before the trace has been executed", Hint: "EndTrace, then Execute"}
}

// notCapturing refuses what cannot be captured. The stream's lock is held.
func (s *Stream) notCapturing(what string) error {
	if s.capture == nil {
		return nil
	}
	return &messages.InvalidError{Op: what, Field: "stream", Value: s.name, Rule: "captures a trace: only operations can be captured, since a replay does nothing else",
		Hint: "do it before BeginTrace or behind EndTrace"}
}

// mayWait is notCapturing for a call that submits nothing itself.
func (s *Stream) mayWait(what string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.notCapturing(what)
}

// turnCapture carries out a call of a trace on the caller's side. The stream's lock is held.
func (s *Stream) turnCapture(t *task) error {
	tr := t.trace
	switch t.call {
	case beginTrace:
		if err := s.notCapturing(t.name()); err != nil {
			return err
		}
		s.capture = tr
		s.rt.captures.begin(tr)
	case endTrace:
		if tr == nil || s.capture != tr {
			return messages.Invalid(t.name(), "stream", s.name, "captures a trace: BeginTrace comes first")
		}
		s.capture = nil
	case executeTrace:
		if err := s.notCapturing(t.name()); err != nil {
			return err
		}
		for _, in := range tr.inputs {
			if p := in.maker(); p != nil {
				t.sources = append(t.sources, p)
			}
		}
		for _, m := range tr.results {
			m.latest.Store(t)
		}
		tr.last = t
	}
	return nil
}

// captures are those that have been begun and not ended, in the order of their begins: they get their turns in it, so that nobody who has begun
// waits for one that began later.
type captures struct {
	mu   sync.Mutex
	open []*Trace
}

func (c *captures) begin(tr *Trace) {
	c.mu.Lock()
	c.open = append(c.open, tr)
	c.mu.Unlock()
}

func (c *captures) end(tr *Trace) {
	c.mu.Lock()
	c.open = slices.DeleteFunc(c.open, func(o *Trace) bool { return o == tr })
	c.mu.Unlock()
}

func (c *captures) first() *Trace {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) == 0 {
		return nil
	}
	return c.open[0]
}

// abandonTrace ends a capture that is not ended in order.
func (s *Stream) abandonTrace(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if tr := s.capture; tr != nil && s.closed == nil {
		s.capture = nil
		s.post(&task{stream: s, trace: tr, call: endTrace, err: why})
	}
}

// resolve finds what makes the inputs, as of now.
func (t *task) resolve() error {
	for i, in := range t.in {
		if in == nil {
			continue
		}
		p := in.maker()
		if p != nil && p.captured() && p.trace != t.trace {
			return fmt.Errorf("%s: input %d: %w", t.name(), i, p.trace.notExecuted())
		}
		if p != in.producer && t.sources == nil {
			t.sources = make([]*task, len(t.in))
			for k, before := range t.in[:i] {
				if before != nil {
					t.sources[k] = before.producer
				}
			}
		}
		if t.sources != nil {
			t.sources[i] = p
		}
	}
	return nil
}

// from calls fn with each task that makes an input, as of the submission, and the input's number, until fn says no.
func (t *task) from(fn func(i int, made *task) bool) {
	if t.sources != nil {
		for i, made := range t.sources {
			if made != nil && !fn(i, made) {
				return
			}
		}
		return
	}
	for i, in := range t.in {
		if in != nil && in.producer != nil && !fn(i, in.producer) {
			return
		}
	}
}

// source is what makes an input, as of the submission.
func (t *task) source(i int) *task {
	if t.sources != nil {
		return t.sources[i]
	}
	return t.in[i].producer
}

// first is the first launch of a task, which but for a replay has one.
func (t *task) first() uint64 {
	if t.call == executeTrace {
		return t.launch + 1 - uint64(len(t.trace.steps))
	}
	return t.launch
}

// hold takes the trace's references for a task that is captured. The banks of its own results circulate while it is captured, and are pinned
// at its end.
func (tr *Trace) hold(t *task) {
	keep := func(m *memory) {
		if !tr.known[m] {
			tr.known[m] = true
			m.refs.Add(1) // the task has one
			tr.held = append(tr.held, m)
		}
	}
	for i, in := range t.in {
		if in == nil {
			continue
		}
		if p := t.source(i); p != nil && p.captured() {
			continue // a result of the trace: kept already, or pooled
		}
		if !slices.ContainsFunc(tr.inputs, func(o *Tensor) bool { return o.mem == in.mem && o.maker() == in.maker() }) {
			tr.inputs = append(tr.inputs, in)
		}
		keep(in.mem)
	}
	for _, l := range t.brought {
		keep(&l.mem)
	}
	if t.plan.Alias {
		return
	}
	for _, out := range t.out[:t.plan.NumOutputs] {
		if !out.mem.pooled {
			keep(out.mem)
		}
		tr.results = append(tr.results, out.mem)
	}
}

// ---- the device actor's side

// mayCapture says why an operation cannot be captured: its banks are not there, or it would need a fence within the trace.
func (d *device) mayCapture(t *task) error {
	tr := t.trace
	if tr.failed() != nil || d.capture != tr || tr.handle == 0 {
		return tr.notExecuted()
	}
	refuse := func(b *bank, rule, hint string) error {
		field, name := "semaphores", ""
		switch {
		case b.unmade != nil && len(b.unmade.Names) > 0:
			field, name = "buffer", b.unmade.Names[0]
		case b.unmade != nil:
			name = b.unmade.Semaphores[0]
		case len(b.buffers) > 0:
			field, name = "buffer", b.buffers[0].name
		default:
			name = b.names[0]
		}
		return &messages.InvalidError{Op: t.name(), Field: field, Value: name, Rule: rule, Hint: hint}
	}
	for _, all := range [][]*bank{t.sems[:], t.bufs[:]} {
		for _, b := range all {
			if b != nil && b.unmade != nil {
				return refuse(b, "exists before a trace that uses it is captured: nothing is allocated while one is",
					"prewarm the key, or run the sequence once before BeginTrace")
			}
		}
	}
	if t.plan.Alias {
		return nil
	}
	if b := (draws{t.plan, &t.sems, &t.bufs, &tr.stream.rt.cfg.Break}).conflict(&tr.joins, func(b *bank) uint64 { return tr.lastUse[b] }); b != nil {
		return refuse(b, fmt.Sprintf("is used again in one trace only behind a collective that joins its devices, and launch %d of the trace used it last", tr.lastUse[b]),
			"a trace holds no fence: split it there")
	}
	return nil
}

// add takes a launch that the driver keeps.
func (tr *Trace) add(t *task) {
	s := step{task: t}
	for _, in := range t.in {
		if in != nil && in.mem.bank != nil {
			s.reads = append(s.reads, in.mem.bank)
		}
	}
	tr.steps = append(tr.steps, s)
	n := uint64(len(tr.steps))
	s.banks(func(b *bank) { tr.lastUse[b] = n })
	joined(&tr.joins, t.plan, n)
}

// safe is rule 4 for a whole replay behind launch `behind`.
func (tr *Trace) safe(j pools.Joins, behind uint64) bool {
	used := make(map[*bank]uint64, len(tr.lastUse))
	lastUse := func(b *bank) uint64 {
		if n, ok := used[b]; ok {
			return n
		}
		return b.lastUse
	}
	for i := range tr.steps {
		s := &tr.steps[i]
		if (draws{s.plan, &s.sems, &s.bufs, &tr.stream.rt.cfg.Break}).conflict(&j, lastUse) != nil {
			return false
		}
		n := behind + uint64(i) + 1
		s.banks(func(b *bank) { used[b] = n })
		joined(&j, s.plan, n)
	}
	return true
}

func (tr *Trace) fail(err error) {
	if tr.failed() == nil {
		tr.failure.Store(&err)
	}
}

func (tr *Trace) failed() error {
	if e := tr.failure.Load(); e != nil {
		return *e
	}
	return nil
}

func (d *device) carryOutTrace(t *task) {
	tr := t.trace
	switch t.call {
	case beginTrace:
		d.mark() // no event can be recorded meanwhile
		if t.over {
			return // the device was lost just now
		}
		h, err := d.dev.BeginTrace(0)
		if err != nil {
			tr.fail(err)
			d.drop(t, err)
			return
		}
		tr.handle = h
		effect(t.row, "begin_trace", field("queue", 0))
		d.finish(t, nil)
	case endTrace:
		err := d.endCapture(tr, nil)
		if err == nil {
			effect(t.row, "end_trace", field("launches", len(tr.steps)))
		}
		d.answer(t, err)
		d.journal(t)
	case executeTrace:
		d.replay(t)
	}
}

// endCapture lets the others go on. What was captured is kept, and the banks that it uses with it, unless something has failed.
func (d *device) endCapture(tr *Trace, err error) error {
	if tr.over {
		return tr.failed()
	}
	tr.over = true
	d.rt.captures.end(tr)
	if d.capture == tr {
		d.capture = nil
	}
	if err == nil {
		err = tr.failed()
	}
	if tr.handle != 0 {
		if err == nil {
			err = d.dev.EndTrace(tr.handle)
		}
		if err != nil {
			_ = d.dev.FreeTrace(tr.handle) // the error at hand says more
			tr.handle = 0
		}
	}
	if err == nil {
		seen := map[*bank]bool{}
		for i := range tr.steps {
			tr.steps[i].banks(func(b *bank) {
				if b.pool == d.buffersPool() && !seen[b] {
					seen[b] = true
					tr.pins = append(tr.pins, b.slot)
				}
			})
		}
		d.pin(tr, false)
		d.stats.Traces++
	} else {
		tr.fail(err)
		d.letGoMemory(tr)
	}
	reads := d.reads
	d.reads = nil
	for _, m := range reads {
		d.read(m)
	}
	return err
}

// pin has the buffers actor keep a trace's banks, or keep them no longer.
func (d *device) pin(tr *Trace, ends bool) {
	if len(tr.pins) > 0 {
		d.bufs = append(d.bufs, bufferAction{pin: &pin{tr.pins, ends}})
		d.flushBuffers()
	}
}

// endOrphan ends the capture of a stream of which nothing more will come, and reports whether there was one.
func (d *device) endOrphan() bool {
	tr := d.capture
	if tr == nil || !tr.stream.queue.dead || tr.stream.queue.tasks.len() > 0 || d.pending.len() > 0 {
		return false
	}
	_ = d.endCapture(tr, fmt.Errorf("%w: stream %s, while it captured a trace", messages.ErrActorStopped, tr.stream.name))
	return true
}

// dropCapture: all is lost.
func (d *device) dropCapture(why error) {
	if tr := d.capture; tr != nil {
		d.capture = nil
		tr.over, tr.handle = true, 0
		tr.fail(why)
		d.letGoMemory(tr)
	}
	for _, m := range d.reads {
		m.reply <- answer[struct{}]{err: why}
	}
	d.reads = nil
}

// replay makes the one call that launches all that a trace holds.
func (d *device) replay(t *task) {
	tr := t.trace
	if len(tr.steps) == 0 {
		d.finish(t, nil)
		return
	}
	first := d.launch + 1
	if err := d.dev.ExecuteTrace(tr.handle, 0, first); err != nil {
		d.journal(t)
		d.drop(t, err)
		return
	}
	for i := range tr.steps {
		s := &tr.steps[i]
		d.launch++
		joined(&d.joins, s.plan, d.launch)
		s.banks(func(b *bank) { b.lastUse = d.launch })
	}
	t.launch = d.launch
	if t.row != nil {
		t.row.Launch = first
		effect(t.row, "execute_trace", field("launches", len(tr.steps)), field("first", first))
		d.journal(t)
	}
	d.fly(t)
}

// letGoTrace gives up a replay's reference: it has its place in the order now, or will never have one.
func (d *device) letGoTrace(t *task) {
	tr := t.trace
	tr.lastTicket = max(tr.lastTicket, t.ticket)
	if tr.refs.Add(-1) == 0 {
		d.traces = append(d.traces, tr)
	}
}

// buryTraces frees the traces that nobody refers to and whose replays are over.
func (d *device) buryTraces(over uint64) {
	kept := d.traces[:0]
	for _, tr := range d.traces {
		switch {
		case !tr.over || tr.lastTicket > over:
			kept = append(kept, tr)
		case tr.handle != 0:
			_ = d.dev.FreeTrace(tr.handle) // a stale handle here is harmless
			tr.handle = 0
			d.stats.Traces--
			d.pin(tr, true)
			d.letGoMemory(tr)
		}
	}
	clear(d.traces[len(kept):])
	d.traces = kept
}

// letGoMemory gives up a trace's references; its replays are over.
func (d *device) letGoMemory(tr *Trace) {
	for _, m := range tr.held {
		if m.refs.Add(-1) == 0 {
			d.back(m)
		}
	}
	tr.held = nil
}

// Rewrite lays a host array over the mesh into a tensor that exists, behind what the stream has submitted: what it submits later reads it. The data are
// copied before it returns.
func (s *Stream) Rewrite(ctx context.Context, t *Tensor, dist messages.Distribution, data []byte) error {
	if t == nil || t.mem == nil || t.mem.rt != s.rt {
		return messages.Invalid("write", "tensor", "absent", "is a tensor of this mesh")
	}
	if err := s.checkData(t.spec, dist, data); err != nil {
		return err
	}
	if !hold(t) {
		return fmt.Errorf("write: %w", messages.ErrReleased)
	}
	w := &task{stream: s, write: &write{dist: dist, data: append([]byte(nil), data...), into: t}}
	if _, err := s.enqueue(ctx, w, messages.OpWrite.String()); err != nil {
		t.mem.unref()
		return err
	}
	return nil
}
