package workload

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/nn"
)

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
	var forwards int
	if j.checkpoint, forwards, err = openModel(c); err != nil {
		return nil, err
	}
	if err := j.load(); err != nil {
		return nil, errors.Join(err, j.checkpoint.Close())
	}
	j.cfg.Steps *= forwards
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
	if fitter, ok := model.(nn.Fitter); ok {
		for _, in := range j.inputs {
			if err := fitter.CheckFit(j.layout, in); err != nil {
				return err
			}
		}
	}
	outputs, err := j.steps()
	if err != nil {
		return err
	}
	if err := j.loadStored(outputs); err != nil {
		return err
	}
	if err := j.prepareFrames(); err != nil {
		return err
	}
	j.tolerance = class.tolerance(j.cfg.DType)
	if j.cfg.Verify != nil {
		j.tolerance = *j.cfg.Verify
	}
	j.progress(Progress{Phase: phaseLoad, Done: j.parameters, Total: j.parameters, Ended: true})
	return nil
}

// steps reads the stored outputs and says how many steps a stream takes: a pipeline's are its own affair, another model repeats its
// forward pass. A stored answer that took another number of steps is none.
func (j *job) steps() (checkpoint.Arrays, error) {
	outputs, ok, err := j.checkpoint.Outputs()
	if err != nil {
		return nil, err
	}
	if sampler, is := j.model.(nn.Sampler); is {
		stored := sampler.StoredSteps(outputs)
		n := j.cfg.Steps
		if n == 0 {
			n = stored
		}
		sampler.SetSteps(n)
		if j.cfg.Steps = 1; n != stored {
			ok = false
		}
	}
	j.cfg.Steps = max(j.cfg.Steps, 1)
	if !ok {
		return nil, nil
	}
	return outputs, nil
}

// loadStored takes the stored answer, where it is needed and there is one.
func (j *job) loadStored(outputs checkpoint.Arrays) error {
	if j.cfg.Mode == meshrun.Timing || outputs == nil {
		return nil
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
