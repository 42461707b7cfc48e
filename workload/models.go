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
	"github.com/meshrun/meshrun/workload/wan"
)

// class is a model class of diffusers that can be run. A further model is a package beside wan and a line in classes.
type class struct {
	load      func(*checkpoint.Config) (nn.Model, error)
	tolerance func(meshrun.DType) Tolerance
}

var classes = map[string]class{
	wan.ClassName: {wan.Load, transformerTolerance},
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
