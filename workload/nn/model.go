package nn

import (
	"github.com/meshrun/meshrun/workload/checkpoint"
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
