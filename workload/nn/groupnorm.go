package nn

import (
	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
)

// GroupNorm normalises over the pixels of a frame and the channels of a group, then applies weight, bias and activation.
type GroupNorm struct {
	// Activation follows the norm.
	Activation meshrun.ActivationKind

	groups       int
	epsilon      float32
	weight, bias Value
}

// GroupNorm places name.weight and name.bias, [width] each.
func (p *Placer) GroupNorm(name string, width, groups int, epsilon float32) GroupNorm {
	return GroupNorm{groups: groups, epsilon: epsilon, weight: p.Channels(name+".weight", width, 0), bias: p.Channels(name+".bias", width, 0)}
}

// GroupNorm normalises each frame of a field, over all its shards: their statistics are gathered. What is padding does not count.
func (c *Canvas) GroupNorm(x Field, n GroupNorm) Field {
	if c.err != nil {
		return Field{}
	}
	s := x.v.tensor.Shape()
	frames := c.reshape(x.v, s.Dim(1), s.Dim(2), s.Dim(3), s.Dim(4))
	op := messages.GroupNorm{Groups: n.groups, Epsilon: n.epsilon, Activation: n.Activation}
	var stats Value
	if c.cut() {
		rows, columns := c.layout.pictureAxes()
		stats = c.apply(messages.GroupNormStats{Groups: n.groups, LogicalH: x.H, AxisH: rows, LogicalW: x.W, AxisW: columns}, frames.Keep())
		for _, f := range []Factor{c.layout.TP, c.layout.SP} {
			if f.Size > 1 {
				stats = c.apply(messages.AllGather{Dim: 0, MeshAxis: f.Axis}, stats)
			}
		}
	}
	v := c.apply(op, frames, n.weight, n.bias, stats)
	x.v = c.reshape(v, 1, s.Dim(1), s.Dim(2), s.Dim(3), s.Dim(4))
	return x
}
