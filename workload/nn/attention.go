package nn

import (
	"github.com/meshrun/meshrun/messages"
)

// SplitHeads makes [B, heads of the device, rows, head dim] of [B, 1, rows, width].
func (g *Graph) SplitHeads(x Value, heads int) Value {
	if g.err != nil {
		return Value{}
	}
	s := x.tensor.Shape()
	heads /= g.layout.TP.Size
	x = g.reshape(x, s.Dim(0), s.Dim(2), heads, s.Dim(3)/heads)
	return g.permute(x, 0, 2, 1, 3)
}

// MergeHeads makes [B, 1, rows, width] of [B, heads of the device, rows, head dim].
func (g *Graph) MergeHeads(x Value) Value {
	if g.err != nil {
		return Value{}
	}
	s := x.tensor.Shape()
	x = g.permute(x, 0, 2, 1, 3)
	return g.reshape(x, s.Dim(0), 1, s.Dim(2), s.Dim(1)*s.Dim(3))
}

// SelfAttention attends within a sequence that is cut over the sequence-parallel axis; tokens is how many of its rows, padded as they are,
// count as keys. Keys and values go round the axis; on an axis of one they are all there.
func (g *Graph) SelfAttention(q, k, v Value, tokens int) Value {
	if g.layout.SP.Size == 1 {
		return g.CrossAttention(q, k, v, tokens)
	}
	return g.apply(messages.RingJointSDPA{MeshAxis: g.layout.SP.Axis, LogicalN: tokens}, q, k, v)
}

// CrossAttention attends to keys and values that every device has whole; tokens is how many of them count.
func (g *Graph) CrossAttention(q, k, v Value, tokens int) Value {
	return g.apply(messages.SDPA{LogicalN: tokens}, q, k, v)
}
