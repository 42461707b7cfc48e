package workload

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/nn"
)

// The words of a run: phases of Progress, what a stream is held against, kinds of inputs.
const (
	phaseLoad    = "load"
	phaseOpen    = "open"
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
// What cannot be run is refused before anything runs, with an error that wraps meshrun.ErrInvalid, and no result. Once streams have run
// there is a result; the error is then the first of the streams', or that of ctx. A difference from what is expected is no error:
// it is in the result. When ctx ends everything ends within a second.
func Run(ctx context.Context, c Config, report func(Progress)) (*Result, error) {
	j, err := newJob(c, report)
	if err != nil {
		return nil, err
	}
	defer j.checkpoint.Close()
	s, err := j.openSession(ctx, j.meshConfig(), j.layout, func(n int) { j.progress(Progress{Phase: phasePlace, Done: n, Total: j.parameters}) })
	if err != nil {
		return nil, err
	}
	j.progress(Progress{Phase: phasePlace, Done: j.parameters, Total: j.parameters, Ended: true})
	expected, err := j.expected(ctx)
	if err != nil {
		return nil, errors.Join(err, s.close(ctx, false))
	}
	result := &Result{Model: c.Model, Mesh: j.layout.Mesh.String(), Streams: j.runStreams(ctx, s, expected)}
	result.Forwards = j.cfg.Streams * j.cfg.Steps
	err = result.finish(ctx, s.mesh)
	if framesErr := j.writeFrames(ctx, result); err == nil {
		err = framesErr
	}
	if closeErr := s.close(ctx, err == nil); err == nil {
		err = closeErr
	}
	result.OK = result.OK && err == nil
	return result, err
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
	s, err := j.openSession(ctx, meshrun.Config{Mesh: one.Mesh, Seed: j.cfg.Seed, Lockstep: true}, one, nil)
	if err != nil {
		return nil, err
	}
	err = j.refer(ctx, s, all, first)
	return all, errors.Join(err, s.close(ctx, err == nil))
}

// refer runs the model on one device for the streams from first on; those that share their input share the answer.
func (j *job) refer(ctx context.Context, s *session, all []*expectation, first int) error {
	stream, err := s.mesh.Stream(phaseRefer)
	if err != nil {
		return err
	}
	defer stream.Close()
	last := len(all)
	if j.cfg.Inputs == inputsSame {
		last = first + 1
	}
	done, total := 0, (last-first)*s.network.Operations()
	for k := first; k < last; k++ {
		out, n, err := s.forward(ctx, stream, j.inputs[k], func(n int) {
			j.progress(Progress{Phase: phaseRefer, Done: done + n, Total: total})
		})
		if err != nil {
			return fmt.Errorf("reference of stream %s: %w", streamName(k), err)
		}
		done += n
		all[k] = &expectation{againstOne, out.Values}
	}
	for k := last; k < len(all); k++ {
		all[k] = all[first]
	}
	j.progress(Progress{Phase: phaseRefer, Done: done, Total: total, Ended: true})
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
		r.Output, r.shape = out.Values, out.Shape
	}
	r.WallMS = float64(time.Since(begin)) / float64(time.Millisecond)
	r.VirtualMS = float64(max(s.now(ctx), virtual)-virtual) / 1e6
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
