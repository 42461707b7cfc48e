package nn

import (
	"math"

	"github.com/meshrun/meshrun"
)

// RopeTables are the cosines and sines of rotary positions, [1, 1, rows, head dim] each, with both elements of a pair alike. The zero
// value rotates nothing.
type RopeTables struct {
	Cos, Sin Value
}

// Rope is a rotary embedding over positions of several coordinates (diffusers: get_1d_rotary_pos_embed for each, joined along the head
// dim): coordinate a turns Dims[a] elements of each head, as pairs (2i, 2i+1), by position / Theta^(2i/Dims[a]).
type Rope struct {
	Dims  []int
	Theta float64
}

func (r Rope) width() int {
	n := 0
	for _, d := range r.Dims {
		n += d
	}
	return n
}

// Tables computes the tables [rows, sum of Dims] of tokens positions; the rows that follow do not turn.
func (r Rope) Tables(tokens, rows int, position func(token, coordinate int) int) (cos, sin []float32) {
	width := r.width()
	cos, sin = make([]float32, rows*width), make([]float32, rows*width)
	for i := tokens * width; i < len(cos); i++ {
		cos[i] = 1
	}
	at := 0
	for a, d := range r.Dims {
		for i := 0; i < d; i += 2 {
			frequency := math.Pow(r.Theta, -float64(i)/float64(d))
			for t := range tokens {
				s, c := math.Sincos(float64(position(t, a)) * frequency)
				for j := t*width + at + i; j < t*width+at+i+2; j++ {
					cos[j], sin[j] = float32(c), float32(s)
				}
			}
		}
		at += d
	}
	return cos, sin
}

// UploadRope lays the tables of r over the mesh, cut like the rows of the sequence. See Rope.Tables.
func (g *Graph) UploadRope(r Rope, tokens, rows int, position func(token, coordinate int) int) RopeTables {
	var cos, sin []float32
	if !g.timing {
		cos, sin = r.Tables(tokens, rows, position)
	}
	dims := []int{1, 1, rows, r.width()}
	return RopeTables{
		Cos: g.Upload(cos, dims, meshrun.Float32, g.layout.Rows()),
		Sin: g.Upload(sin, dims, meshrun.Float32, g.layout.Rows()),
	}
}
