package execute

import (
	"context"
	"fmt"
	"slices"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/cmd/meshrun/internal/casefile"
	"github.com/meshrun/meshrun/cmd/meshrun/internal/exit"
	"github.com/meshrun/meshrun/messages"
)

// stream is one stream of the case, run by one goroutine.
type stream struct {
	*execution
	s        *meshrun.Stream
	index    int
	records  []*record
	open     []*record // accepted, and not known to be over
	tensors  []Tensor  // what its names stood for when it ended
	panicked error
}

func newStream(r *execution, s *meshrun.Stream, index int) *stream {
	st := &stream{execution: r, s: s, index: index}
	calls := r.c.Streams[index].Calls
	for i := range calls {
		st.records = append(st.records, &record{call: &calls[i], stream: s.Name(), index: i})
	}
	return st
}

// run makes the calls one after another, then waits for what they make, keeps what has a name, and gives everything back.
func (s *stream) run(ctx context.Context) {
	defer func() {
		if p := recover(); p != nil {
			s.panicked = fmt.Errorf("stream %s: %w", s.s.Name(), exit.Panic(p))
		}
		s.s.Close()
	}()
	for _, rec := range s.records {
		// A call is one act: nobody else acts between its parts, and whether an earlier call has failed is not a matter of luck.
		err := s.s.Act(ctx, func() error {
			if s.hasFailed() {
				return errNotReached
			}
			rec.begun = true
			s.do(ctx, rec)
			return nil
		})
		if err != nil || ctx.Err() != nil || rec.ends(rec.err) {
			break
		}
		s.open = append(s.open, rec)
	}
	_ = s.s.Act(ctx, func() error { // the error is the interruption's
		for _, rec := range s.records {
			for _, t := range rec.results {
				if err := s.s.Wait(ctx, t); err != nil && rec.err == nil {
					rec.err = err
				}
			}
		}
		mine := s.names.streams[s.index]
		s.tensors = s.snapshot(ctx, s.s, mine)
		for i := range s.tensors {
			s.tensors[i].stream = s.s.Name()
		}
		for _, b := range mine {
			b.release()
		}
		return nil
	})
}

// hasFailed reports whether an earlier call has failed, unexpected, by now.
func (s *stream) hasFailed() bool {
	failed := false
	s.open = slices.DeleteFunc(s.open, func(rec *record) bool {
		over, err := rec.ended()
		failed = failed || rec.ends(err)
		return over
	})
	return failed
}

// do carries out one call; how it ends is in the record.
func (s *stream) do(ctx context.Context, rec *record) {
	switch a := rec.call.Action.(type) {
	case casefile.Refuse:
		s.own(rec, a.Err)
	case casefile.Answer:
		s.own(rec, nil).Returns = a.Value
	case casefile.Submit:
		s.submit(ctx, rec, a)
	case casefile.Lease:
		s.lease(ctx, rec, a)
	case casefile.HaloScatter:
		s.haloScatter(ctx, rec, a)
	case casefile.DeviceToHost:
		s.deviceToHost(ctx, rec, a)
	case casefile.Reset:
		rec.err = s.s.As(rec.step()).Reset(ctx)
	case casefile.Prewarm:
		rec.err = s.s.As(rec.step()).Prewarm(ctx, a.Keys...)
	case casefile.ReleaseBuffers:
		s.releaseBuffers(ctx, rec, a)
	case casefile.Read:
		s.read(ctx, rec, a)
	case casefile.Write:
		s.write(ctx, rec, a)
	case casefile.Release:
		s.release(rec, a)
	case casefile.Fence:
		rec.err = s.s.Fence(ctx)
	case casefile.Sleep:
		row := s.own(rec, nil)
		if err := s.s.Sleep(ctx, a.NS); err != nil {
			rec.err, row.Err = err, err
		}
	}
	if rec.err != nil {
		for i, name := range rec.call.Makes() {
			if s.names.streams[s.index][name] == nil {
				s.names.bind(s.index, name, &binding{rec: rec, result: i, failed: rec.err})
			}
		}
	}
}

// own puts the row of a call that the journal does not see into it.
func (s *stream) own(rec *record, err error) *messages.Row {
	rec.err = err
	row := &messages.Row{Step: rec.step(), Stream: s.s.Name(), Err: err}
	s.mesh.AddRow(row)
	return row
}

func (s *stream) submit(ctx context.Context, rec *record, a casefile.Submit) {
	in, semaphores, done, err := s.operands(ctx, rec.call, a.Check)
	defer done()
	if err != nil {
		s.own(rec, err)
		return
	}
	results, err := s.s.Submit(ctx, meshrun.Call{Op: a.Op, In: in, Step: rec.step(), Semaphores: semaphores})
	if err != nil {
		rec.err = err
		return
	}
	rec.results = results
	s.name(rec, results)
	if a.Wait {
		for _, t := range results {
			if err := s.s.Wait(ctx, t); err != nil {
				rec.err = err
			}
		}
	}
}

// operands finds the tensors and semaphores that a call names. Where it gives a shape instead, its input is zeros, which done gives back.
func (s *stream) operands(ctx context.Context, c *casefile.Call, check func([]messages.Spec) error) (in []*meshrun.Tensor, sems []*meshrun.Lease, done func(), err error) {
	done = func() {}
	if in, err = s.inputs(c); err != nil {
		return
	}
	if sems, err = s.names.semaphores(s.index, c.Name, c.Semaphores); err != nil {
		return
	}
	if check != nil {
		specs := make([]messages.Spec, len(in))
		for i, t := range in {
			if t != nil {
				specs[i] = t.Spec()
			}
		}
		if c.Anonymous != nil {
			specs[0] = *c.Anonymous
		}
		if err = check(specs); err != nil {
			return
		}
	}
	if c.Anonymous != nil {
		if in[0], err = s.s.Zeros(ctx, *c.Anonymous); err == nil {
			done = in[0].Release
		}
	}
	return
}

// lease takes a bank of semaphores. Nobody can give back one without a name, so that it goes home at once.
func (s *stream) lease(ctx context.Context, rec *record, a casefile.Lease) {
	lease, err := s.s.As(rec.step()).LeaseSemaphores(ctx, a.Op.Pool, a.Op.MeshAxis, a.Op.Workers)
	if err != nil {
		rec.err = err
		return
	}
	if len(rec.call.Out) == 0 {
		lease.Release()
		return
	}
	s.names.bind(s.index, rec.call.Out[0], &binding{lease: lease, rec: rec})
}

func (s *stream) haloScatter(ctx context.Context, rec *record, a casefile.HaloScatter) {
	in, semaphores, done, err := s.operands(ctx, rec.call, nil)
	defer done()
	if err != nil {
		s.own(rec, err)
		return
	}
	t, err := s.s.As(rec.step()).NeighborPadHaloScatter(ctx, in[0], a.Halo, a.BorderOnly, semaphores...)
	if err != nil {
		rec.err = err
		return
	}
	rec.results = []*meshrun.Tensor{t}
	s.name(rec, rec.results)
}

// deviceToHost reads what one device holds once the tensor has been gathered.
func (s *stream) deviceToHost(ctx context.Context, rec *record, a casefile.DeviceToHost) {
	in, _, done, err := s.operands(ctx, rec.call, nil)
	defer done()
	dims := [2]int{meshrun.NoAxis, meshrun.NoAxis}
	for i, dim := range a.Dims {
		if dim == nil || err != nil {
			continue
		}
		shape := in[0].Shape()
		dims[i] = *dim
		if dims[i] < 0 {
			dims[i] += shape.Rank()
		}
		if dims[i] < 0 || dims[i] >= shape.Rank() {
			err = messages.Invalid(rec.call.Name, "mesh_dims", *dim, "is a dim of %s", shape)
		}
	}
	if err != nil {
		s.own(rec, err)
		return
	}
	array, err := s.s.As(rec.step()).DeviceToHost(ctx, in[0], dims, a.Persistent)
	if err != nil {
		rec.err = err
		return
	}
	for _, name := range rec.call.Out {
		t := &Tensor{Name: name, Spec: messages.Spec{Shape: array.Shape, DType: array.DType, Layout: array.Layout},
			Devices: []Shard{s.shard(messages.Coord{}, array.Data, array.Shape)}}
		s.names.bind(s.index, name, &binding{host: t, rec: rec})
	}
}

func (s *stream) releaseBuffers(ctx context.Context, rec *record, a casefile.ReleaseBuffers) {
	if !a.All && len(a.Keys) == 0 {
		s.own(rec, nil) // no keys are none; to the runtime they are all
		return
	}
	rec.err = s.s.As(rec.step()).ReleaseBuffers(ctx, a.Keys...)
}

// inputs finds the tensors that a call names.
func (s *stream) inputs(c *casefile.Call) ([]*meshrun.Tensor, error) {
	in := make([]*meshrun.Tensor, len(c.In))
	for i, name := range c.In {
		if name == "" {
			continue
		}
		t, err := s.names.tensor(s.index, c.Name, name)
		if err != nil {
			return nil, err
		}
		in[i] = t
	}
	if c.Anonymous == nil && len(in) > 0 && in[0] != nil {
		spec := in[0].Spec()
		if c.Given.DType != messages.DTypeUnset && c.Given.DType != spec.DType {
			return nil, messages.Invalid(c.Name, "dtype", c.Given.DType, "is that of the input %q, %s", c.In[0], spec.DType)
		}
		if c.Given.Layout != messages.LayoutUnset && c.Given.Layout != spec.Layout {
			return nil, messages.Invalid(c.Name, "layout", c.Given.Layout, "is that of the input %q, %s", c.In[0], spec.Layout)
		}
	}
	return in, nil
}

// name lets the names of "out" stand for the results. A getter's one name stands for all that it lends; other results without a name are
// given back at once, since nobody can ask for them.
func (s *stream) name(rec *record, results []*meshrun.Tensor) {
	out := rec.call.Out
	submit, _ := rec.call.Action.(casefile.Submit)
	_, getter := submit.Op.(messages.GetBuffers)
	for i, name := range out {
		switch {
		case getter && len(out) == 1:
			s.names.bind(s.index, name, &binding{tensors: results, rec: rec})
			return
		case i < len(results):
			s.names.bind(s.index, name, &binding{tensors: results[i : i+1], rec: rec, result: i})
		default:
			s.names.bind(s.index, name, &binding{rec: rec})
		}
	}
	for i := len(out); i < len(results); i++ {
		results[i].Release()
	}
}

// release gives tensors back: all that are named, or none when one of the names is wrong.
func (s *stream) release(rec *record, a casefile.Release) {
	all := make([]*binding, len(a.Names))
	for i, name := range a.Names {
		all[i] = s.names.find(s.index, name)
		var err error
		switch {
		case all[i] == nil:
			_, err = s.names.tensor(s.index, rec.call.Name, name)
		case all[i].released || slices.Contains(all[:i], all[i]):
			err = fmt.Errorf("release: tensor %q: %w", name, meshrun.ErrReleased)
		}
		if err != nil {
			s.own(rec, err)
			return
		}
	}
	for _, b := range all {
		b.release()
	}
	s.own(rec, nil)
}

func (s *stream) read(ctx context.Context, rec *record, a casefile.Read) {
	in, err := s.inputs(rec.call)
	row := s.own(rec, err)
	if err != nil {
		return
	}
	devices := s.everyDevice()
	if a.At != nil {
		devices = []messages.Coord{*a.At}
	}
	t, err := s.fetch(ctx, s.s, in[0], devices)
	if err != nil {
		rec.err, row.Err = err, err
		return
	}
	sums := make([]readShard, len(t.Devices))
	for i, d := range t.Devices {
		sums[i] = readShard{d.At, d.SHA256}
	}
	row.Returns = readReturn{Shape: t.Spec.Shape, Devices: sums}
	for _, name := range rec.call.Out {
		copied := *t
		copied.Name = name
		s.names.bind(s.index, name, &binding{host: &copied, rec: rec})
	}
}

// readReturn is what a read returns in its row.
type readReturn struct {
	Shape   messages.Shape `json:"shape"`
	Devices []readShard    `json:"devices"`
}

type readShard struct {
	At     messages.Coord `json:"at"`
	SHA256 string         `json:"sha256,omitempty"`
}

// write makes a tensor of the host's data. Where it names one that is there, the name stands for the new one afterwards.
func (s *stream) write(ctx context.Context, rec *record, a casefile.Write) {
	in, err := s.inputs(rec.call)
	spec := a.Spec
	if err == nil && len(in) > 0 {
		spec = in[0].Spec()
		err = fits(rec.call.Name, spec, a.Fill, s.shape)
	}
	row := s.own(rec, err)
	if err != nil {
		return
	}
	t, err := upload(ctx, s.s, s.execution, spec, a.Fill)
	if err != nil {
		rec.err, row.Err = err, err
		return
	}
	rec.results = []*meshrun.Tensor{t}
	row.Returns = messages.Returned{Shape: spec.Shape, Buffer: messages.FreshName}
	makes := rec.call.Makes()
	for _, name := range makes {
		s.names.bind(s.index, name, &binding{tensors: rec.results, rec: rec})
	}
	if len(makes) == 0 {
		t.Release()
	}
}

// fits says whether a fill fills a tensor of the spec.
func fits(op string, spec messages.Spec, f casefile.Fill, mesh messages.MeshShape) error {
	shape, dist := f.Layout(spec.Shape, mesh)
	if got, err := dist.Shard(shape, mesh); err != nil {
		return err
	} else if got != spec.Shape {
		return messages.Invalid(op, "fill.global", shape, "gives shards of the tensor's shape, %s", spec.Shape)
	}
	if f.Kind == casefile.FillValues && int64(len(f.Values)) != shape.Elements() {
		return messages.Invalid(op, "fill.values", len(f.Values), "are %d, the elements of %s", shape.Elements(), shape)
	}
	return nil
}
