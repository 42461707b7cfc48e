package wan

import (
	"github.com/meshrun/meshrun/workload/checkpoint"
)

// shape is the geometry of one forward pass.
type shape struct {
	batch    int
	channels int // of the answer
	latent   [3]int
	patch    [3]int
	grid     [3]int // tokens along frames, rows and columns
	tokens   int
}

func (c Config) shape(in checkpoint.Arrays) shape {
	d := in[hiddenStates].Shape
	s := shape{batch: d[0], channels: c.OutChannels, latent: [3]int(d[2:]), patch: c.Patch, tokens: 1}
	for i := range s.grid {
		s.grid[i] = s.latent[i] / c.Patch[i]
		s.tokens *= s.grid[i]
	}
	return s
}

// answer is the shape of the sample.
func (s shape) answer() []int {
	return []int{s.batch, s.channels, s.latent[0], s.latent[1], s.latent[2]}
}

// position is the place of a token along frames, rows or columns. Tokens are numbered columns first.
func (s shape) position(token, axis int) int {
	for a := 2; a > axis; a-- {
		token /= s.grid[a]
	}
	return token % s.grid[axis]
}

// eachPixel calls f for each pixel of a latent of so many channels: with the batch element, the token of its patch, its channel, its
// place within the patch, and its place in the latent.
func (s shape) eachPixel(channels int, f func(b, token, channel, inPatch, pixel int)) {
	for b := range s.batch {
		for c := range channels {
			for frame := range s.latent[0] {
				for row := range s.latent[1] {
					for column := range s.latent[2] {
						at := [3]int{frame, row, column}
						token, inPatch, pixel := 0, 0, b*channels+c
						for a, n := range at {
							token = token*s.grid[a] + n/s.patch[a]
							inPatch = inPatch*s.patch[a] + n%s.patch[a]
							pixel = pixel*s.latent[a] + n
						}
						f(b, token, c, inPatch, pixel)
					}
				}
			}
		}
	}
}

// patchify unfolds a latent [B, C, F, H, W] into one row per token, [B, 1, rows, C x patch]: a convolution whose kernel is its stride is a
// linear layer over them. Rows past the tokens are zeros.
func (s shape) patchify(latent checkpoint.Array, rows int) checkpoint.Array {
	channels, size := latent.Shape[1], s.patch[0]*s.patch[1]*s.patch[2]
	out := checkpoint.Array{Shape: []int{s.batch, 1, rows, channels * size}}
	if latent.Values == nil {
		return out
	}
	out.Values = make([]float32, s.batch*rows*channels*size)
	s.eachPixel(channels, func(b, token, channel, inPatch, pixel int) {
		out.Values[((b*rows+token)*channels+channel)*size+inPatch] = latent.Values[pixel]
	})
	return out
}

// unpatchify is the way back from [B, 1, rows, patch x C], where the channels of a pixel lie side by side, to [B, C, F, H, W].
func (s shape) unpatchify(x checkpoint.Array) checkpoint.Array {
	size := s.patch[0] * s.patch[1] * s.patch[2]
	out := checkpoint.Array{Shape: s.answer()}
	if x.Values == nil {
		return out
	}
	rows := x.Shape[2]
	out.Values = make([]float32, s.batch*s.channels*s.latent[0]*s.latent[1]*s.latent[2])
	s.eachPixel(s.channels, func(b, token, channel, inPatch, pixel int) {
		out.Values[pixel] = x.Values[((b*rows+token)*size+inPatch)*s.channels+channel]
	})
	return out
}

// padRows pads dim 1 of [B, n] or [B, n, width] with zeros.
func padRows(a checkpoint.Array, width, rows int) checkpoint.Array {
	batch, n := a.Shape[0], a.Shape[1]
	out := checkpoint.Array{Shape: append([]int{batch, rows}, a.Shape[2:]...)}
	if a.Values == nil {
		return out
	}
	out.Values = make([]float32, batch*rows*width)
	for b := range batch {
		copy(out.Values[b*rows*width:], a.Values[b*n*width:(b+1)*n*width])
	}
	return out
}
