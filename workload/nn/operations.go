package nn

import (
	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
)

// GatherWidth gives every device of the tensor-parallel axis the whole width.
func (g *Graph) GatherWidth(x Value) Value {
	return g.apply(messages.AllGather{Dim: 3, MeshAxis: g.layout.TP.axis(), UsePersistentBuffer: true}, x)
}

// ScatterWidth adds partial sums up over the tensor-parallel axis and leaves each device its part of the width.
func (g *Graph) ScatterWidth(x Value) Value {
	return g.apply(messages.ReduceScatter{Dim: 3, MeshAxis: g.layout.TP.axis(), UsePersistentBuffer: true}, x)
}

// GatherRows gives every device of the sequence-parallel axis all rows.
func (g *Graph) GatherRows(x Value) Value {
	return g.apply(messages.AllGather{Dim: 2, MeshAxis: g.layout.SP.axis(), UsePersistentBuffer: true}, x)
}

// Matmul is x [.., M, K] times weight [K, N], plus bias (optional), then the activation.
func (g *Graph) Matmul(x, weight, bias Value, activation meshrun.ActivationKind) Value {
	return g.apply(messages.Matmul{Activation: activation}, x, weight, bias)
}

// Add is x + y, with dims of 1 broadcast; the dtype is that of x.
func (g *Graph) Add(x, y Value) Value { return g.apply(messages.Binary{Fn: messages.Add}, x, y) }

// Addcmul is x + y*z, with y and z broadcast; the dtype is that of x.
func (g *Graph) Addcmul(x, y, z Value) Value { return g.apply(messages.Addcmul{}, x, y, z) }

// Activation applies a function elementwise.
func (g *Graph) Activation(x Value, fn meshrun.ActivationKind) Value {
	return g.apply(messages.Activation{Fn: fn}, x)
}

// Typecast changes the dtype.
func (g *Graph) Typecast(x Value, t meshrun.DType) Value {
	return g.apply(messages.Convert{DType: t}, x)
}

// Chunk cuts the last dim into n equal parts.
func (g *Graph) Chunk(x Value, n int) []Value {
	parts := make([]Value, n)
	if g.err != nil {
		return parts
	}
	begin, end := make([]int, x.tensor.Shape().Rank()), x.tensor.Shape().Dims()
	last := len(end) - 1
	width := end[last] / n
	for i := range parts {
		begin[last], end[last] = i*width, (i+1)*width
		parts[i] = g.slice(x.Keep(), begin, end)
	}
	if !x.kept {
		g.Release(x)
	}
	return parts
}

// slice cuts [begin, end) of every dim.
func (g *Graph) slice(x Value, begin, end []int) Value {
	b, errB := messages.IndexOf(begin...)
	e, errE := messages.IndexOf(end...)
	g.Fail(errB)
	g.Fail(errE)
	return g.apply(messages.Slice{Begin: b, End: e}, x)
}

// reshape names the same elements by another shape.
func (g *Graph) reshape(x Value, dims ...int) Value {
	if g.err != nil {
		return Value{}
	}
	shape, err := meshrun.NewShape(dims...)
	g.Fail(err)
	return g.apply(messages.Reshape{Shape: shape}, x)
}

// permute reorders dims: dim i of the result is dim order[i] of x.
func (g *Graph) permute(x Value, order ...int) Value {
	o, err := messages.IndexOf(order...)
	g.Fail(err)
	return g.apply(messages.Permute{Order: o}, x)
}
