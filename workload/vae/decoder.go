package vae

import (
	"fmt"

	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/film"
	"github.com/meshrun/meshrun/workload/nn"
)

// Names of argument and answer.
const (
	latent = "z"      // [B, channels, (frames,) rows, columns]
	sample = "sample" // likewise, with 3 channels
)

// decoder is what the decoders have in common.
type decoder struct {
	class      string
	channels   int     // of the latent
	rank       int     // of the latent: 5 with frames, else 4
	growth     int     // of rows and columns
	timeGrowth int     // of each latent frame but the first
	low, high  float32 // of the answer: what is black and what is white
}

// checkColours holds a configuration to pictures of three channels.
func checkColours(c *checkpoint.Config) {
	if c.Positive("out_channels", 3) != 3 {
		c.Fail("out_channels", "is 3: red, green and blue")
	}
}

// Inputs names the argument.
func (d *decoder) Inputs() []string { return []string{latent} }

// Output names the answer.
func (d *decoder) Output() string { return sample }

// frames is how many frames come of so many latent ones: the first stands for one.
func (d *decoder) frames(latents int) int { return 1 + (latents-1)*d.timeGrowth }

// OutputShape is the shape of the answer.
func (d *decoder) OutputShape(in checkpoint.Arrays) []int {
	z := in[latent].Shape
	out := []int{z[0], 3}
	if d.rank == 5 {
		out = append(out, d.frames(z[2]))
	}
	return append(out, z[d.rank-2]*d.growth, z[d.rank-1]*d.growth)
}

// CheckLayout has nothing to say: any mesh will do, for latents that are large enough.
func (d *decoder) CheckLayout(nn.Layout) error { return nil }

// CheckInputs says whether there is a latent.
func (d *decoder) CheckInputs(in checkpoint.Arrays) error {
	z, ok := in[latent]
	if !ok {
		return messages.Invalid("inputs", "tensor "+latent, "missing", "is the argument of %s", d.class)
	}
	want := map[int]string{4: "rows, columns]", 5: "frames, rows, columns]"}[d.rank]
	if len(z.Shape) != d.rank || z.Shape[1] != d.channels {
		return messages.Invalid("inputs", "tensor "+latent, fmt.Sprint("shape ", z.Shape), "is [batch, channels %d, %s", d.channels, want)
	}
	for _, n := range z.Shape {
		if n < 1 {
			return messages.Invalid("inputs", "tensor "+latent, fmt.Sprint("shape ", z.Shape), "is not empty")
		}
	}
	return nil
}

// CheckFit says whether every device gets rows and columns.
func (d *decoder) CheckFit(l nn.Layout, in checkpoint.Arrays) error {
	z := in[latent].Shape
	h, w := z[d.rank-2], z[d.rank-1]
	if h < l.TP.Size || w < l.SP.Size {
		return messages.Invalid("inputs", "tensor "+latent, fmt.Sprint("shape ", z), "has a row and a column for each of the %d x %d devices that cut it (tp x sp)", l.TP.Size, l.SP.Size)
	}
	return nil
}

// Films are the pictures of an answer.
func (d *decoder) Films(a checkpoint.Array) []film.Film {
	n := len(a.Shape)
	frames := 1
	if d.rank == 5 {
		frames = a.Shape[2]
	}
	films := make([]film.Film, a.Shape[0])
	size := len(a.Values) / len(films)
	for b := range films {
		films[b] = film.FromChannels(a.Values[b*size:][:size], frames, a.Shape[n-2], a.Shape[n-1], d.low, d.high)
	}
	return films
}

// eachElement decodes one element of the batch at a time and puts the answers behind each other. The latent given is
// [channels, frames, rows, columns], and so is the answer.
func (d *decoder) eachElement(g *nn.Graph, in checkpoint.Arrays, decode func(*nn.Canvas, checkpoint.Array) checkpoint.Array) checkpoint.Array {
	z := in[latent]
	out := checkpoint.Array{Shape: d.OutputShape(in)}
	size := 1
	for _, n := range z.Shape[1:] {
		size *= n
	}
	element := checkpoint.Array{Shape: []int{d.channels, 1, z.Shape[d.rank-2], z.Shape[d.rank-1]}}
	if d.rank == 5 {
		element.Shape[1] = z.Shape[2]
	}
	for b := range z.Shape[0] {
		if z.Values != nil {
			element.Values = z.Values[b*size:][:size]
		}
		c := nn.NewCanvas(g)
		answer := decode(c, element)
		c.Close()
		if g.Err() != nil {
			return checkpoint.Array{}
		}
		out.Values = append(out.Values, answer.Values...)
	}
	return out
}

// frame is one frame of [channels, frames, rows, columns].
func frame(a checkpoint.Array, t int) checkpoint.Array {
	channels, frames, plane := a.Shape[0], a.Shape[1], a.Shape[2]*a.Shape[3]
	f := checkpoint.Array{Shape: []int{channels, 1, a.Shape[2], a.Shape[3]}}
	if a.Values == nil {
		return f
	}
	for c := range channels {
		f.Values = append(f.Values, a.Values[(c*frames+t)*plane:][:plane]...)
	}
	return f
}

// upload lays a latent over the mesh.
func upload(c *nn.Canvas, a checkpoint.Array) nn.Field {
	return c.UploadFrames(a.Values, a.Shape[0], a.Shape[1], a.Shape[2], a.Shape[3])
}
