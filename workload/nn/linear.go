package nn

import (
	"github.com/meshrun/meshrun"
)

// Linear is a linear layer over rows that have the whole input width. Its output features are cut over the tensor-parallel axis
// (Placer.Column), or every device computes all of them (Placer.Replicated).
type Linear struct {
	// Activation follows the layer.
	Activation meshrun.ActivationKind

	weight, bias Value
}

// Forward applies the layer; the dtype is that of x.
func (l Linear) Forward(g *Graph, x Value) Value {
	return g.Matmul(x, l.weight, l.bias, l.Activation)
}

// RowLinear is a linear layer over rows whose input width is cut over the tensor-parallel axis. Each device computes a partial sum of all
// output features; a reduce-scatter adds them up and leaves each device its part.
type RowLinear struct {
	weight, bias Value
	parts        int // of the sum
}

// Forward applies the layer; the bias is added once, to the sum.
func (l RowLinear) Forward(g *Graph, x Value) Value {
	if l.parts == 1 {
		return g.Matmul(x, l.weight, l.bias, meshrun.NoActivation)
	}
	x = g.Matmul(x, l.weight, Value{}, meshrun.NoActivation)
	return g.Add(g.ScatterWidth(x), l.bias)
}

// Operations is how many operations Forward submits.
func (l RowLinear) Operations() int {
	if l.parts == 1 {
		return 1
	}
	return 3
}
