package nn

import (
	"fmt"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/workload/checkpoint"
)

// Halo is how a convolution gets the pixels of its neighbours. The answers are the same, to the bit.
type Halo string

const (
	// HaloFull copies each picture into a padded buffer that lives on, with the neighbours' pixels round it, and convolves that.
	HaloFull Halo = "full"
	// HaloCompact exchanges the neighbours' pixels alone. A convolution in one frame reads them where they arrived. One that looks back in time
	// needs them round the picture: they are scattered there, in place where the convolution before has left room for them.
	HaloCompact Halo = "compact"
)

// Field is a picture or several frames of one, [1, frames, rows, columns, channels] in row-major order, cut as Layout.Extent says.
type Field struct {
	Extent
	v Value
	// room is how many pixels round the interior are there to be overwritten by a halo.
	room int
}

// Keep is the field, to be read but not consumed.
func (f Field) Keep() Field {
	f.v = f.v.Keep()
	return f
}

// Canvas draws pictures with a graph: its methods are layers over fields. What several layers share, such as masks, it holds until Close.
type Canvas struct {
	*Graph
	masks map[maskKey]Value
	zeros map[messages.Shape]Value
}

type maskKey struct {
	Extent
	room int
}

// NewCanvas makes a canvas of a graph.
func NewCanvas(g *Graph) *Canvas {
	return &Canvas{Graph: g, masks: map[maskKey]Value{}, zeros: map[messages.Shape]Value{}}
}

// Close releases what layers share.
func (c *Canvas) Close() {
	for _, v := range c.masks {
		c.Release(v)
	}
	for _, v := range c.zeros {
		c.Release(v)
	}
}

// cut says whether pictures are cut at all.
func (c *Canvas) cut() bool { return c.layout.Mesh.Devices() > 1 }

// UploadFrames lays frames [channels, frames, rows, columns] over the mesh. Without values their content is undefined.
func (c *Canvas) UploadFrames(values []float32, channels, frames, rows, columns int) Field {
	e := c.layout.Extent(rows, columns)
	h, w := e.h*c.layout.TP.Size, e.w*c.layout.SP.Size
	var data []float32
	if values != nil && !c.timing {
		data = make([]float32, frames*h*w*channels)
		for ch := range channels {
			for t := range frames {
				for y := range rows {
					for x := range columns {
						data[((t*h+y)*w+x)*channels+ch] = values[((ch*frames+t)*rows+y)*columns+x]
					}
				}
			}
		}
	}
	return Field{Extent: e, v: c.uploadRows(data, []int{1, frames, h, w, channels}, c.layout.Picture(2))}
}

// uploadRows is Upload in row-major order and the graph's dtype.
func (c *Canvas) uploadRows(values []float32, dims []int, d meshrun.Distribution) Value {
	return c.uploadAs(values, dims, c.dtype, meshrun.RowMajor, d)
}

// Frames waits for fields, puts their shards together as [channels, frames, rows, columns], one behind the other, without what is
// padding, and consumes them.
func (c *Canvas) Frames(fields ...Field) checkpoint.Array {
	var out checkpoint.Array
	if c.err != nil || len(fields) == 0 {
		return out
	}
	first := fields[0]
	channels, frames := first.v.tensor.Shape().Dim(4), 0
	for _, f := range fields {
		frames += f.v.tensor.Shape().Dim(1)
	}
	out.Shape = []int{channels, frames, first.H, first.W}
	if !c.timing {
		out.Values = make([]float32, channels*frames*first.H*first.W)
	}
	begin := 0
	for _, f := range fields {
		n := f.v.tensor.Shape().Dim(1)
		whole := c.collect(f.v, c.layout.Picture(2))
		if c.err != nil {
			return checkpoint.Array{}
		}
		if !c.timing {
			h, w := whole.Shape[2], whole.Shape[3]
			for ch := range channels {
				for t := range n {
					for y := range f.H {
						for x := range f.W {
							out.Values[((ch*frames+begin+t)*f.H+y)*f.W+x] = whole.Values[((t*h+y)*w+x)*channels+ch]
						}
					}
				}
			}
		}
		begin += n
		if !f.v.kept {
			c.Release(f.v)
		}
	}
	return out
}

// TapField shows a field, as Tap does.
func (c *Canvas) TapField(name string, f Field) {
	if c.err == nil && c.OnTap != nil && !c.timing {
		a := c.Frames(f.Keep())
		if c.err == nil {
			c.OnTap(name, a)
		}
	}
}

// AddFields is x + y.
func (c *Canvas) AddFields(x, y Field) Field {
	x.v = c.Add(x.v, y.v)
	return x
}

// Cast changes the dtype.
func (c *Canvas) Cast(x Field, t meshrun.DType) Field {
	x.v = c.Typecast(x.v, t)
	return x
}

// Activate applies a function to each element.
func (c *Canvas) Activate(x Field, fn meshrun.ActivationKind) Field {
	x.v = c.Activation(x.v, fn)
	return x
}

// Scale is x times a number.
func (c *Canvas) Scale(x Field, by float32) Field {
	x.v = c.apply(messages.Binary{Fn: messages.Mul, Scalar: by}, x.v)
	return x
}

// RMSNorm normalises over the channels of each pixel.
func (c *Canvas) RMSNorm(x Field, weight Value, epsilon float32) Field {
	x.v = c.apply(messages.Norm{RMS: true, Epsilon: epsilon}, x.v, weight)
	return x
}

// Pointwise applies a linear layer to the channels of each pixel.
func (c *Canvas) Pointwise(x Field, l Linear) Field {
	x.v = l.Forward(c.Graph, x.v)
	return x
}

// Upsample doubles every pixel both ways.
func (c *Canvas) Upsample(x Field) Field {
	if c.err != nil {
		return Field{}
	}
	x.Extent = x.Double()
	s := x.v.tensor.Shape()
	n, h, w, ch := s.Dim(1), s.Dim(2), s.Dim(3), s.Dim(4)
	v := c.twice(c.reshape(x.v, 1, n*h*w, 1, ch), 2) // columns
	v = c.twice(c.reshape(v, 1, n*h, 1, 2*w*ch), 2)  // rows
	x.v = c.reshape(v, 1, n, 2*h, 2*w, ch)
	return x
}

// twice joins a value with itself along a dim.
func (c *Canvas) twice(x Value, dim int) Value {
	out := c.apply(messages.Concat{Dim: dim}, x.Keep(), x.Keep())
	if !x.kept {
		c.Release(x)
	}
	return out
}

// SplitFrames makes two frames of every one: the first half of the channels, then the second.
func (c *Canvas) SplitFrames(x Field) Field {
	if c.err != nil {
		return Field{}
	}
	s := x.v.tensor.Shape()
	n, h, w, ch := s.Dim(1), s.Dim(2), s.Dim(3), s.Dim(4)/2
	halves := c.Chunk(x.v, 2)
	for i, v := range halves {
		halves[i] = c.reshape(v, n, 1, h, w, ch)
	}
	x.v = c.reshape(c.apply(messages.Concat{Dim: 1}, halves...), 1, 2*n, h, w, ch)
	return x
}

// Attention lets every pixel of a frame attend to all pixels of the frame: with one head, over the channels. x is what keys and values are
// made of; they are made of the whole picture on each device, because that is half of what gathering both would send.
func (c *Canvas) Attention(x Field, q, k, v Linear) Field {
	if c.err != nil {
		return Field{}
	}
	s := x.v.tensor.Shape()
	n, h, w := s.Dim(1), s.Dim(2), s.Dim(3)
	query := q.Forward(c.Graph, x.v.Keep())
	whole := c.whole(x)
	if c.err != nil {
		return Field{}
	}
	width := query.tensor.Shape().Dim(4)
	key, value := k.Forward(c.Graph, whole.Keep()), v.Forward(c.Graph, whole)
	out := c.CrossAttention(c.reshape(query, n, 1, h*w, width), key, value, 0)
	x.v = c.reshape(out, 1, n, h, w, width)
	return x
}

// whole gives every device all pixels of each frame, [frames, 1, pixels, channels], and consumes the field.
func (c *Canvas) whole(x Field) Value {
	s := x.v.tensor.Shape()
	n, ch := s.Dim(1), s.Dim(4)
	v := c.reshape(x.v, n, s.Dim(2), s.Dim(3), ch)
	for i, f := range []Factor{c.layout.TP, c.layout.SP} {
		if f.Size > 1 {
			v = c.apply(messages.AllGather{Dim: 1 + i, MeshAxis: f.Axis}, v)
		}
	}
	if c.layout.padded(x.Extent) {
		v = c.slice(v, []int{0, 0, 0, 0}, []int{n, x.H, x.W, ch})
	}
	return c.reshape(v, n, 1, x.H*x.W, ch)
}

// masked puts zeros where shards hold more than the picture: a neighbour must not see what has been computed there.
func (c *Canvas) masked(x Field) Field {
	if c.err != nil || !c.layout.padded(x.Extent) {
		return x
	}
	key := maskKey{x.Extent, x.room}
	mask, ok := c.masks[key]
	if !ok {
		mask = c.mask(key)
		c.masks[key] = mask
	}
	x.v = c.apply(messages.Binary{Fn: messages.Mul}, x.v, mask.Keep())
	return x
}

// mask uploads [1, 1, rows, columns, 1]: 1 in the picture, else 0, also in the room round every shard.
func (c *Canvas) mask(k maskKey) Value {
	tp, sp := c.layout.TP.Size, c.layout.SP.Size
	h, w := k.h+2*k.room, k.w+2*k.room
	values := make([]float32, tp*h*sp*w)
	for y := range tp * h {
		for x := range sp * w {
			row, column := y%h-k.room, x%w-k.room
			inside := row >= 0 && row < k.h && column >= 0 && column < k.w
			if inside && y/h*k.h+row < k.H && x/w*k.w+column < k.W {
				values[y*sp*w+x] = 1
			}
		}
	}
	return c.uploadRows(values, []int{1, 1, tp * h, sp * w, 1}, c.layout.Picture(2))
}

// zeroFrames are frames of zeros, which the canvas holds.
func (c *Canvas) zeroFrames(shape messages.Shape) Value {
	v, ok := c.zeros[shape]
	if !ok && c.err == nil {
		t, err := c.stream.Zeros(c.ctx, meshrun.Spec{Shape: shape, DType: c.dtype, Layout: meshrun.RowMajor})
		if err != nil {
			c.Fail(fmt.Errorf("frames of zeros: %w", err))
			return Value{}
		}
		v = c.own(t)
		c.zeros[shape] = v
	}
	return v.Keep()
}
