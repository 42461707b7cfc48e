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

// Conv convolves a field and consumes it. h is needed where the kernel looks back in time. With room the answer may have room round it, which
// the halo of the next convolution fills: between the two there must be nothing but layers of single pixels.
func (c *Canvas) Conv(x Field, conv Conv, h *History, room bool) Field {
	if c.err != nil {
		return Field{}
	}
	pad := [3]int{0, conv.Kernel[1] / 2, conv.Kernel[2] / 2}
	op := messages.Conv3D{Kernel: conv.Kernel, Padding: pad}
	var halo Value
	if c.cut() && pad != [3]int{} {
		if x = c.masked(x); c.err != nil {
			return Field{}
		}
		switch {
		case c.run.Halo != HaloCompact:
			x.v = c.neighborPad(x, pad)
			op.Padding, room = [3]int{}, false
		case conv.Kernel[0] == 1:
			halo, room = c.exchange(x, pad), false
		default:
			x.v = c.surround(x, pad)
			if !room {
				op.Padding = [3]int{}
			} // else the padded picture is padded again, so that the answer is as large
		}
	} else {
		room = false
	}
	if conv.Kernel[0] > 1 {
		x.v = h.follow(c, x.v, conv.Kernel[0]-1)
	}
	x.v = c.apply(op, x.v, conv.weight, conv.bias, halo)
	if x.room = 0; room {
		x.room = pad[1]
	}
	return x
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
func (c *Canvas) surround(x Field, pad [3]int) Value {
	halo := c.exchange(x, pad)
	index := func(n int) messages.Index {
		i, _ := messages.IndexOf(n, n)
		return i
	}
	return c.apply(meshrun.HaloScatter{PadH: index(pad[1]), PadW: index(pad[2]), BorderOnly: x.room > 0}, halo, x.v)
}
