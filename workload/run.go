package workload

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/nn"
)

// The words of a run: phases of Progress, what a stream is held against, kinds of inputs.
const (
	phaseLoad    = "load"
	phasePlace   = "place"
	phaseRefer   = "reference"
	phaseRun     = "run"
	phaseVerify  = "verify"
	againstFile  = "stored"
	againstOne   = "1x1"
	inputsVaried = "varied"
	inputsSame   = "same"
)

// Run loads the model, lays it over the mesh, runs all streams at once, and holds what they give against what is expected: stream 0
// against the stored answer, the others against the same model on one device.
//
// What cannot be run is refused before a mesh is opened, with an error that wraps meshrun.ErrInvalid, and no result. Once streams have
// run there is a result; the error is then the first of the streams', or that of ctx. A difference from what is expected is no error:
// it is in the result. When ctx ends everything ends within a second.
func Run(ctx context.Context, c Config, report func(Progress)) (*Result, error) {
	j, err := newJob(c, report)
	if err != nil {
		return nil, err
	}
	defer j.checkpoint.Close()
	expected, err := j.expected(ctx)
	if err != nil {
		return nil, err
	}
	s, err := j.openSession(ctx, j.meshConfig(), j.layout, phasePlace)
	if err != nil {
		return nil, err
	}
	result := &Result{Model: c.Model, Mesh: j.layout.Mesh.String(), Streams: j.runStreams(ctx, s, expected)}
	err = result.finish(ctx, s.mesh)
	if closeErr := s.close(ctx, err == nil); err == nil && closeErr != nil {
		err = closeErr
	}
	result.OK = result.OK && err == nil
	return result, err
}

// job is a run that has been found right.
type job struct {
	cfg        Config
	progress   func(Progress)
	checkpoint *checkpoint.Checkpoint
	model      nn.Model
	layout     nn.Layout
	parameters int                 // of the model
	inputs     []checkpoint.Arrays // of each stream
	stored     []float32           // the stored answer to the stored inputs; nil: there is none
	tolerance  Tolerance
}

// newJob checks everything that can be checked without a mesh.
func newJob(c Config, report func(Progress)) (*job, error) {
	if err := c.normalize(); err != nil {
		return nil, err
	}
	mesh, err := c.meshShape()
	if err != nil {
		return nil, err
	}
	layout, err := nn.NewLayout(mesh, c.TP, c.SP)
	if err != nil {
		return nil, err
	}
	j := &job{cfg: c, progress: serial(report), layout: layout}
	if j.checkpoint, err = checkpoint.Open(c.Model); err != nil {
		return nil, err
	}
	if err := j.load(); err != nil {
		return nil, errors.Join(err, j.checkpoint.Close())
	}
	return j, nil
}

func (j *job) load() error {
	model, class, err := loadModel(j.checkpoint.Config)
	if err != nil {
		return err
	}
	j.model = model
	if err := model.CheckLayout(j.layout); err != nil {
		return err
	}
	checker := nn.NewChecker(j.checkpoint.Weights)
	checker.OnTensor = func(n int) { j.progress(Progress{Phase: phaseLoad, Done: n}) }
	model.Place(checker)
	if err := checker.Err(); err != nil {
		return err
	}
	j.parameters = checker.Count()
	if j.inputs, err = streamInputs(j.checkpoint, model, &j.cfg); err != nil {
		return err
	}
	if err := j.loadStored(); err != nil {
		return err
	}
	j.tolerance = class.tolerance(j.cfg.DType)
	if j.cfg.Verify != nil {
		j.tolerance = *j.cfg.Verify
	}
	j.progress(Progress{Phase: phaseLoad, Done: j.parameters, Total: j.parameters, Ended: true})
	return nil
}

// loadStored reads the stored answer, where it is needed and there is one.
func (j *job) loadStored() error {
	if j.cfg.Mode == meshrun.Timing {
		return nil
	}
	outputs, ok, err := j.checkpoint.Outputs()
	if err != nil || !ok {
		return err
	}
	name, want := j.model.Output(), j.model.OutputShape(j.inputs[0])
	answer, ok := outputs[name]
	if !ok {
		return messages.Invalid("outputs.safetensors", "tensor "+name, "missing", "is the answer of the model, of shape %v", want)
	}
	if !slices.Equal(answer.Shape, want) {
		return messages.Invalid("outputs.safetensors", "tensor "+name, fmt.Sprint("shape ", answer.Shape), "is %v, as the inputs say", want)
	}
	j.stored = answer.Values
	return nil
}

// normalize fills in defaults and checks the values that no other part checks.
func (c *Config) normalize() error {
	if c.DType == 0 {
		c.DType = meshrun.BFloat16
	}
	if c.Mode == "" {
		c.Mode = meshrun.Functional
	}
	if c.Inputs == "" {
		c.Inputs = inputsVaried
	}
	if c.Steps == 0 {
		c.Steps = 1
	}
	switch {
	case c.DType != meshrun.BFloat16 && c.DType != meshrun.Float32:
		return messages.Invalid("run", "dtype", c.DType, "is bfloat16 or float32")
	case c.Mode != meshrun.Functional && c.Mode != meshrun.Timing:
		return messages.Invalid("run", "mode", strconv.Quote(string(c.Mode)), "is functional or timing")
	case c.Inputs != inputsVaried && c.Inputs != inputsSame:
		return messages.Invalid("run", "inputs", strconv.Quote(c.Inputs), "is varied or same")
	case c.Streams < 1:
		return messages.Invalid("run", "streams", c.Streams, "is at least 1")
	case c.Steps < 1:
		return messages.Invalid("run", "steps", c.Steps, "is at least 1")
	case c.NumLinks < 0:
		return messages.Invalid("run", "num_links", c.NumLinks, "is at least 1")
	case c.Queues < 0:
		return messages.Invalid("run", "queues", c.Queues, "is at least 1")
	}
	if v := c.Verify; v != nil {
		if !(v.PCC >= -1 && v.PCC <= 1) {
			return messages.Invalid("run", "verify pcc", v.PCC, "is from -1 to 1")
		}
		if !(v.MaxError >= 0) || math.IsInf(v.MaxError, 1) {
			return messages.Invalid("run", "verify max_error", v.MaxError, "is a number that is not negative")
		}
	}
	return nil
}

// meshShape is the shape of the mesh, or of the preset.
func (c *Config) meshShape() (meshrun.MeshShape, error) {
	if c.Preset == "" {
		return c.Mesh, c.Mesh.Validate()
	}
	if c.Mesh != (meshrun.MeshShape{}) {
		return c.Mesh, messages.Invalid("run", "mesh", c.Mesh, "is not given beside a preset, %s", c.Preset)
	}
	presets, err := meshrun.Presets()
	if err != nil {
		return meshrun.MeshShape{}, err
	}
	names := make([]string, len(presets))
	for i, p := range presets {
		if names[i] = p.Name; p.Name == c.Preset {
			return meshrun.MeshShape{Rows: p.Mesh[0], Cols: p.Mesh[1]}, nil
		}
	}
	return meshrun.MeshShape{}, messages.Invalid("run", "preset", strconv.Quote(c.Preset), "is one of %s", strings.Join(names, ", "))
}

func (j *job) meshConfig() meshrun.Config {
	c := meshrun.Config{Preset: j.cfg.Preset, NumLinks: j.cfg.NumLinks, Topology: j.cfg.Topology, Queues: j.cfg.Queues, Mode: j.cfg.Mode, Seed: j.cfg.Seed, Lockstep: true}
	if c.Preset == "" {
		c.Mesh = j.cfg.Mesh
	}
	return c
}

// serial makes report safe to be called by several goroutines; nil is a report to nobody.
func serial(report func(Progress)) func(Progress) {
	if report == nil {
		return func(Progress) {}
	}
	var mu sync.Mutex
	return func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		report(p)
	}
}

// expectation is what a stream is held against.
type expectation struct {
	against string
	values  []float32
}

// expected gathers what each stream is held against: the stored answer for stream 0, for the others that of the same model on one device,
// which runs here. Nothing is held against anything where no data move.
func (j *job) expected(ctx context.Context) ([]*expectation, error) {
	all := make([]*expectation, j.cfg.Streams)
	if j.cfg.Mode == meshrun.Timing {
		return all, nil
	}
	first := 0
	if j.stored != nil {
		all[0] = &expectation{againstFile, j.stored}
		first = 1
	}
	if first == len(all) {
		return all, nil
	}
	one := nn.One()
	s, err := j.openSession(ctx, meshrun.Config{Mesh: one.Mesh, Seed: j.cfg.Seed, Lockstep: true}, one, phaseRefer)
	if err != nil {
		return nil, err
	}
	err = j.refer(ctx, s, all, first)
	return all, errors.Join(err, s.close(ctx, err == nil))
}

// refer runs the model on one device for the streams from first on.
func (j *job) refer(ctx context.Context, s *session, all []*expectation, first int) error {
	stream, err := s.mesh.Stream(phaseRefer)
	if err != nil {
		return err
	}
	defer stream.Close()
	for k := first; k < len(all); k++ {
		j.progress(Progress{Phase: phaseRefer, Stream: streamName(k), Done: k - first, Total: len(all) - first})
		if k > first && j.cfg.Inputs == inputsSame {
			all[k] = all[first]
			continue
		}
		out, _, err := s.forward(ctx, stream, j.inputs[k], nil)
		if err != nil {
			return fmt.Errorf("reference of stream %s: %w", streamName(k), err)
		}
		all[k] = &expectation{againstOne, out.Values}
	}
	j.progress(Progress{Phase: phaseRefer, Done: len(all) - first, Total: len(all) - first, Ended: true})
	return nil
}

func streamName(k int) string { return "s" + strconv.Itoa(k) }

// runStreams runs all streams at once. In lockstep they take turns, so that what is launched when is a function of the run.
func (j *job) runStreams(ctx context.Context, s *session, expected []*expectation) []StreamResult {
	results := make([]StreamResult, j.cfg.Streams)
	streams := make([]*meshrun.Stream, 0, len(results))
	for k := range results {
		stream, err := s.mesh.Stream(streamName(k))
		if err != nil { // the mesh is going down: no stream can run
			results[k] = StreamResult{Name: streamName(k), Err: err, Error: err.Error()}
			continue
		}
		streams = append(streams, stream)
	}
	if len(streams) < len(results) {
		for _, stream := range streams {
			stream.Close()
		}
		return results
	}
	s.mesh.Together(streams...)
	var all sync.WaitGroup
	for k := range results {
		all.Go(func() {
			results[k] = j.runStream(ctx, s, streams[k], k)
			if results[k].Err != nil {
				results[k].Error = results[k].Err.Error()
			} else if e := expected[k]; e != nil {
				j.progress(Progress{Phase: phaseVerify, Stream: results[k].Name})
				results[k].Verify = j.tolerance.verify(results[k].Output, e.values, e.against)
				j.progress(Progress{Phase: phaseVerify, Stream: results[k].Name, Ended: true})
			}
			results[k].OK = results[k].Err == nil && (results[k].Verify == nil || results[k].Verify.OK)
		})
	}
	all.Wait()
	return results
}

// runStream runs the steps of one stream.
func (j *job) runStream(ctx context.Context, s *session, stream *meshrun.Stream, k int) StreamResult {
	defer stream.Close()
	r := StreamResult{Name: streamName(k)}
	total := s.network.Operations() * j.cfg.Steps
	begin, virtual := time.Now(), s.now(ctx)
	for range j.cfg.Steps {
		var out checkpoint.Array
		var n int
		before := r.Operations
		out, n, r.Err = s.forward(ctx, stream, j.inputs[k], func(n int) {
			j.progress(Progress{Phase: phaseRun, Stream: r.Name, Done: before + n, Total: total})
		})
		r.Operations += n
		if r.Err != nil {
			break
		}
		r.Output = out.Values
	}
	r.WallMS = float64(time.Since(begin)) / float64(time.Millisecond)
	r.VirtualMS = float64(s.now(ctx)-virtual) / 1e6
	j.progress(Progress{Phase: phaseRun, Stream: r.Name, Done: r.Operations, Total: total, Ended: true})
	return r
}

// now is the virtual time in ns, or 0 on a mesh that has none.
func (s *session) now(ctx context.Context) uint64 {
	t, err := s.mesh.Now(ctx)
	if err != nil {
		return 0
	}
	return t
}
