package execute

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/axis"
	"github.com/meshrun/meshrun/cmd/meshrun/internal/casefile"
	"github.com/meshrun/meshrun/cmd/meshrun/internal/exit"
	"github.com/meshrun/meshrun/messages"
)

// Result is what happened.
type Result struct {
	Rows    []*messages.Row
	Tensors []Tensor // by name
	Report  map[string]json.RawMessage

	// Failures are the calls that failed and were not expected to, the expectations that were missed, hazards and hangs.
	Failures []error
}

// Err joins the failures.
func (r *Result) Err() error { return errors.Join(r.Failures...) }

// execution is a case under way.
type execution struct {
	c       *casefile.Case
	mesh    *meshrun.Mesh
	shape   messages.MeshShape
	names   *names
	streams []*stream
}

// Options are what is asked for beside the case.
type Options struct {
	Devices bool // rows say when each device was at them
}

// Run carries out a case. An error is what kept the case from being begun, or an interruption: there is no result then. Where the mesh
// could not be opened the result is that row.
func Run(ctx context.Context, c *casefile.Case, o Options) (*Result, error) {
	if err := checkHost(c); err != nil {
		return nil, err
	}
	mesh, err := meshrun.Open(ctx, config(c, o))
	switch {
	case ctx.Err() != nil:
		if err == nil {
			err = mesh.Close(ctx)
		}
		return nil, errors.Join(context.Cause(ctx), err)
	case err != nil:
		if err := badFaults(ctx, c, o, err); err != nil {
			return nil, err
		}
		return notOpened(err), nil
	}
	r := &execution{c: c, mesh: mesh, shape: mesh.Info().Mesh}
	out, err := r.run(ctx)
	// Closing brings every actor to rest: what they have written may be read then.
	closing := mesh.Close(ctx)
	if err != nil {
		return nil, err
	}
	r.describe(out)
	if closing != nil {
		out.Failures = append(out.Failures, closing)
	}
	return out, nil
}

// run does everything that needs the mesh.
func (r *execution) run(ctx context.Context) (*Result, error) {
	r.names = newNames(len(r.c.Streams))
	out := &Result{}
	setup, err := r.makeTensors(ctx)
	if err == nil {
		err = r.runStreams(ctx)
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		out.Failures = append(out.Failures, err)
	default:
		out.Tensors = r.snapshot(ctx, setup, r.names.shared)
		for _, s := range r.streams {
			out.Tensors = append(out.Tensors, s.tensors...)
		}
	}
	out.Report, err = r.report(ctx)
	return out, err
}

// describe puts the rows in order and judges them.
func (r *execution) describe(out *Result) {
	out.Rows = r.order(r.mesh.Journal())
	out.Tensors = listed(out.Tensors, r.c.Policy, out.Rows)
	seen := observed(out.Report)
	var ended []*CallError // by what the mesh has seen
	for _, s := range r.streams {
		if s.panicked != nil {
			out.Failures = append(out.Failures, s.panicked)
		}
		for _, rec := range s.records {
			var call *CallError
			switch err := rec.judge(); {
			case err == nil:
			case errors.As(err, &call) && endedBy(seen, err):
				ended = append(ended, call)
			default:
				out.Failures = append(out.Failures, err)
			}
		}
	}
	out.Failures = append(out.Failures, seen...)
	if len(ended) > 0 {
		out.Failures = append(out.Failures, &endedError{ended})
	}
}

// config is the mesh that the case wants.
func config(c *casefile.Case, o Options) meshrun.Config {
	mode := meshrun.Functional
	if c.Timing {
		mode = meshrun.Timing
	}
	cfg := meshrun.Config{Mesh: c.Mesh, Preset: c.Preset, NumLinks: c.NumLinks, Topology: c.Topology, Policy: c.Policy, Queues: c.Queues,
		Inflight: c.Limits.Inflight, Queue: c.Limits.Queue, Refuse: c.Refuse, Mode: mode, Seed: c.Seed, GridX: c.GridX, GridY: c.GridY,
		Lockstep: true, Record: true, Skew: time.Duration(c.SkewUS) * time.Microsecond, GoOn: c.GoOn, Break: c.Break, DeviceTimes: o.Devices, NoProgress: map[string]time.Duration{}}
	for op, us := range c.Limits.NoProgress {
		cfg.NoProgress[op] = time.Duration(us) * time.Microsecond
	}
	set := func(key string, value any, given bool) {
		if given {
			cfg.Settings = append(cfg.Settings, meshrun.Option{Key: key, Value: fmt.Sprint(value)})
		}
	}
	for _, f := range c.Faults { // before the mesh makes anything
		set("fault", f, true)
	}
	set("rounding", c.Rounding, c.Rounding != "")
	set("dram_bytes", c.Limits.DRAMBytes, c.Limits.DRAMBytes > 0)
	set("l1_bytes", c.Limits.L1Bytes, c.Limits.L1Bytes > 0)
	return cfg
}

// badFaults says whether a mesh could not be opened for its faults alone: then the case is wrong, not the mesh.
func badFaults(ctx context.Context, c *casefile.Case, o Options, why error) error {
	if len(c.Faults) == 0 {
		return nil
	}
	without := *c
	without.Faults = nil
	mesh, err := meshrun.Open(ctx, config(&without, o))
	if err != nil {
		return nil
	}
	return errors.Join(fmt.Errorf("faults: %w", why), mesh.Close(ctx))
}

// checkHost refuses a functional case whose data the host may not hold, before anything is allocated.
func checkHost(c *casefile.Case) error {
	if c.Timing {
		return nil
	}
	m := axis.Mesh{Shape: c.Mesh, Grid: grid(c), NumLinks: max(c.NumLinks, 1), Topology: [2]messages.Topology{messages.Linear, messages.Linear}}
	for a := range m.Topology {
		if c.Mesh.Axis(a) > 2 && c.Topology != messages.Linear {
			m.Topology[a] = messages.Ring // which needs less
		}
	}
	if need := c.HostBytes(m); need > c.Limits.HostBytes {
		return fmt.Errorf("%w: limits.host_bytes %d: the tensors of this case take %d bytes of the host at least; raise the limit, or use mode timing",
			meshrun.ErrBudget, c.Limits.HostBytes, need)
	}
	return nil
}

// grid is that of the mesh which the case wants, as far as it can be told before it is opened.
func grid(c *casefile.Case) [2]int {
	out := [2]int{8, 8}
	presets, _ := meshrun.Presets() // opening the mesh tells the error
	for _, p := range presets {
		if p.Name == c.Preset {
			out = p.Grid
		}
	}
	if c.GridX > 0 {
		out = [2]int{c.GridX, c.GridY}
	}
	return out
}

func notOpened(err error) *Result {
	report := map[string]json.RawMessage{}
	for key, value := range map[string]string{"hazards": "[]", "hang": "null", "faults": "[]", "stats": "{}", "virtual_ns": "0"} {
		report[key] = json.RawMessage(value)
	}
	return &Result{Rows: []*messages.Row{{Step: "open", Err: err}}, Report: report, Failures: []error{fmt.Errorf("%w: %s", exit.ErrNotOpened, strings.TrimPrefix(err.Error(), "open: "))}} // its own kind counts, not the cause's
}

// setupStream makes the case's tensors. What it does is not shown.
const setupStream = "(case)"

// makeTensors lays the case's tensors over the mesh before the streams start.
func (r *execution) makeTensors(ctx context.Context) (*meshrun.Stream, error) {
	s, err := r.mesh.Stream(setupStream)
	if err != nil {
		return nil, err
	}
	for i := range r.c.Tensors {
		t := &r.c.Tensors[i]
		handle, err := upload(ctx, s, r, t.Spec, t.Fill)
		if err != nil {
			return nil, fmt.Errorf("tensors.%s: %w", t.Name, err)
		}
		r.names.shared[t.Name] = &binding{tensors: []*meshrun.Tensor{handle}}
	}
	if len(r.c.Tensors) > 0 {
		if err := s.Fence(ctx); err != nil {
			return nil, fmt.Errorf("tensors: %w", err)
		}
	}
	for _, t := range r.c.Tensors {
		if err := r.names.shared[t.Name].tensors[0].Wait(ctx); err != nil {
			return nil, fmt.Errorf("tensors.%s: %w", t.Name, err)
		}
	}
	s.Close()
	return s, nil
}

// upload makes a tensor of a fill.
func upload(ctx context.Context, s *meshrun.Stream, r *execution, spec messages.Spec, fill casefile.Fill) (*meshrun.Tensor, error) {
	if fill.Kind == casefile.FillZeros {
		return s.Zeros(ctx, spec)
	}
	shape, dist := fill.Layout(spec.Shape, r.shape)
	a := meshrun.Array{Shape: shape, DType: spec.DType, Layout: spec.Layout}
	if !r.c.Timing {
		a.Data = fill.Bytes(shape, spec.DType)
	}
	return s.Upload(ctx, a, dist)
}

// runStreams runs each stream in a goroutine of its own; they take turns, in the order of the file.
func (r *execution) runStreams(ctx context.Context) error {
	var public []*meshrun.Stream
	for i := range r.c.Streams {
		s, err := r.mesh.Stream(r.c.Streams[i].Name)
		if err != nil {
			return err
		}
		public = append(public, s)
		r.streams = append(r.streams, newStream(r, s, i))
	}
	r.mesh.Together(public...)
	var done sync.WaitGroup
	for _, s := range r.streams {
		done.Go(func() { s.run(ctx) })
	}
	done.Wait()
	return nil
}
