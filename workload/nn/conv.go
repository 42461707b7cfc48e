package nn

import (
	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
)

// Conv is a convolution of odd kernel that keeps the size of the picture: zeros lie round it. In time it sees the frames before, never those
// that follow.
type Conv struct {
	Kernel [3]int // frames, rows, columns

	weight, bias Value
}

// History is what a convolution that looks back in time remembers between calls: its last frames. At first they are zeros. The zero
// History is that of a convolution that has seen nothing.
type History struct {
	past Value
}

// Release forgets.
func (h *History) Release(g *Graph) {
	g.Release(h.past)
	*h = History{}
}

// follow puts what is remembered in front of x and remembers its last frames.
func (h *History) follow(c *Canvas, x Value, frames int) Value {
	if c.err != nil {
		return Value{}
	}
	s := x.tensor.Shape()
	past := h.past
	if past.tensor == nil {
		past = c.zeroFrames(s.With(1, frames))
	}
	x = c.apply(messages.Concat{Dim: 1}, past, x)
	begin, end := make([]int, 5), s.Dims()
	begin[1], end[1] = s.Dim(1), s.Dim(1)+frames
	h.past = c.slice(x.Keep(), begin, end)
	return x
}

// Conv convolves a field and consumes it. h is needed where the kernel looks back in time. With room the answer has room round it for the
// halo of the convolution that follows, where that needs any.
func (c *Canvas) Conv(x Field, conv Conv, h *History, room bool) Field {
	if c.err != nil {
		return Field{}
	}
	op := messages.Conv3D{Kernel: conv.Kernel, Padding: [3]int{0, conv.Kernel[1] / 2, conv.Kernel[2] / 2}}
	spatial := conv.Kernel[1] > 1 || conv.Kernel[2] > 1
	var halo Value
	switch {
	case !spatial || !c.cut():
	case c.run.Halo == HaloCompact && conv.Kernel[0] == 1:
		x = c.masked(x)
		halo = c.exchange(x, op.Padding)
	case c.run.Halo == HaloCompact:
		x = c.masked(x)
		x = c.surround(x, op.Padding)
		op.Padding = c.leave(room, conv.Kernel)
	default:
		x = c.masked(x)
		x.v = c.neighborPad(x, op.Padding)
		op.Padding = [3]int{}
	}
	if conv.Kernel[0] > 1 {
		x.v = h.follow(c, x.v, conv.Kernel[0]-1)
	}
	x.v = c.apply(op, x.v, conv.weight, conv.bias, halo)
	x.room = 0
	if spatial && c.cut() {
		x.room = op.Padding[1]
		if halo.tensor != nil {
			x.room = 0
		}
	}
	return x
}

// leave is the padding that makes a convolution of a padded picture leave room for the next halo.
func (c *Canvas) leave(room bool, kernel [3]int) [3]int {
	if !room {
		return [3]int{}
	}
	return [3]int{0, kernel[1] / 2, kernel[2] / 2}
}

// pads are both sides' pads, dims and axes of an exchange of a field's rows and columns.
func (c *Canvas) pads(x Field, pad [3]int) (dims, axes, pads, links messages.Index) {
	index := func(v ...int) messages.Index {
		i, err := messages.IndexOf(v...)
		c.Fail(err)
		return i
	}
	rows, columns := c.layout.pictureAxes()
	n := min(c.stream.Mesh().Info().NumLinks, x.v.tensor.Shape().Dim(1))
	return index(2, 3), index(rows, columns), index(pad[1], pad[2]), index(n, n)
}

// neighborPad is the field with its halo, in a buffer that lives on.
func (c *Canvas) neighborPad(x Field, pad [3]int) Value {
	dims, axes, pads, links := c.pads(x, pad)
	return c.apply(meshrun.NeighborPad{Dims: dims, Axes: axes, PadLeft: pads, PadRight: pads, NumLinks: links, UsePersistentBuffer: true}, x.v)
}

// exchange is the halo of a field, alone; the field is not consumed.
func (c *Canvas) exchange(x Field, pad [3]int) Value {
	dims, axes, pads, links := c.pads(x, pad)
	return c.apply(meshrun.NeighborPadHalo{Dims: dims, Axes: axes, PadLeft: pads, PadRight: pads, NumLinks: links, InputPadH: x.room, InputPadW: x.room}, x.v.Keep())
}

// surround is the field with its halo round it: in its room where it has one, else in new memory.
func (c *Canvas) surround(x Field, pad [3]int) Field {
	halo := c.exchange(x, pad)
	index := func(n int) messages.Index {
		i, _ := messages.IndexOf(n, n)
		return i
	}
	x.v = c.apply(meshrun.HaloScatter{PadH: index(pad[1]), PadW: index(pad[2]), BorderOnly: x.room > 0}, halo, x.v)
	return x
}
