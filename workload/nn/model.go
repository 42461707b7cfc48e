package nn

import (
	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/film"
)

// Model is a model as its checkpoint describes it, on the host.
type Model interface {
	// Inputs names the arguments of a forward pass; noise goes on the first where inputs are varied.
	Inputs() []string
	// Output names the answer.
	Output() string
	// OutputShape is the shape of the answer to arguments that have been checked.
	OutputShape(checkpoint.Arrays) []int
	// CheckLayout says whether the model can lie on a mesh so.
	CheckLayout(Layout) error
	// CheckInputs says whether the arrays are arguments of a forward pass.
	CheckInputs(checkpoint.Arrays) error
	// Place lays the parameters over a mesh, or only checks them, as the Placer says. Its error is the Placer's.
	Place(p *Placer) Network
}

// Network is a model whose parameters are on a mesh. Any number of streams may use it at once.
type Network interface {
	// Forward submits a forward pass and reads its answer. Its error is the Graph's.
	Forward(g *Graph, in checkpoint.Arrays) checkpoint.Array
	// Operations is how many operations a forward pass submits; 0 where that is not known.
	Operations() int
}

// A model may be more than that.
type (
	// Fitter is a model whose arguments must suit the mesh.
	Fitter interface {
		// CheckFit says whether arguments that have been checked can be cut so.
		CheckFit(Layout, checkpoint.Arrays) error
	}
	// Painter is a model whose answer can be looked at.
	Painter interface {
		// Films are what the values of an answer show, one for each element of the batch.
		Films(checkpoint.Array) []film.Film
	}
	// Sampler is a model that comes to its answer in steps.
	Sampler interface {
		// StoredSteps is how many steps the stored answer took; 0 where they do not say.
		StoredSteps(outputs checkpoint.Arrays) int
		// SetSteps makes it so many; 0 is the model's own default.
		SetSteps(n int)
	}
)
