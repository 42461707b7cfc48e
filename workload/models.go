package workload

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/nn"
	"github.com/meshrun/meshrun/workload/pipeline"
	"github.com/meshrun/meshrun/workload/vae"
	"github.com/meshrun/meshrun/workload/wan"
)

// class is a model class of diffusers that can be run. A further model is a package beside wan and a line in classes.
type class struct {
	load      func(*checkpoint.Config) (nn.Model, error)
	tolerance func(meshrun.DType) Tolerance
}

var classes = map[string]class{
	wan.ClassName:     {wan.Load, transformerTolerance},
	vae.WanClass:      {loader(vae.LoadWan), decoderTolerance},
	vae.KLClass:       {loader(vae.LoadKL), decoderTolerance},
	vae.TAESDClass:    {loader(vae.LoadTAESD), decoderTolerance},
	pipeline.WanClass: {pipeline.LoadWan, pipelineTolerance},
}

// loader hides which model it is that a function loads.
func loader[M nn.Model](load func(*checkpoint.Config) (M, error)) func(*checkpoint.Config) (nn.Model, error) {
	return func(c *checkpoint.Config) (nn.Model, error) {
		m, err := load(c)
		if err != nil {
			return nil, err
		}
		return m, nil
	}
}

// Classes lists the model classes that can be run.
func Classes() []string { return slices.Sorted(maps.Keys(classes)) }

// transformerTolerance is what a right transformer keeps with room to spare: in bfloat16 it reaches 0.99998 and 3 %.
func transformerTolerance(t meshrun.DType) Tolerance {
	if t == meshrun.Float32 {
		return Tolerance{PCC: 0.999999, MaxError: 1e-4}
	}
	return Tolerance{PCC: 0.9999, MaxError: 0.05}
}

// decoderTolerance is what a right decoder of latents keeps.
func decoderTolerance(t meshrun.DType) Tolerance {
	if t == meshrun.Float32 {
		return Tolerance{PCC: 0.99999, MaxError: 1e-3}
	}
	return Tolerance{PCC: 0.9995, MaxError: 0.25}
}

// pipelineTolerance is what a right pipeline keeps. Errors of each step feed the next, and the decoder makes them larger: in bfloat16 the
// latents of four steps reach 0.99994 and 5 %, the frames 0.9998 and 16 %.
func pipelineTolerance(t meshrun.DType) Tolerance {
	if t == meshrun.Float32 {
		return Tolerance{PCC: 0.9999, MaxError: 1e-3}
	}
	return Tolerance{PCC: 0.9995, MaxError: 0.3}
}

// loadModel reads the model that a config.json describes.
func loadModel(c *checkpoint.Config) (nn.Model, class, error) {
	name := c.ClassName()
	if err := c.Err(); err != nil {
		return nil, class{}, err
	}
	cl, ok := classes[name]
	if !ok {
		return nil, class{}, messages.Invalid("model", "_class_name", strconv.Quote(name), "is a model class that is supported: %s", strings.Join(Classes(), ", "))
	}
	m, err := cl.load(c)
	return m, cl, err
}
