package nn

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/workload/checkpoint"
)

func TestExtent(t *testing.T) {
	l := Layout{Mesh: meshrun.MeshShape{Rows: 2, Cols: 4}, TP: Factor{4, 1}, SP: Factor{2, 0}}
	e := l.Extent(7, 9)
	assert.Equal(t, Extent{H: 7, W: 9, h: 2, w: 5}, e)
	assert.True(t, l.padded(e))
	assert.Equal(t, Extent{H: 14, W: 18, h: 4, w: 10}, e.Double())
	assert.False(t, l.padded(l.Extent(8, 10)))
	assert.True(t, l.padded(l.Extent(8, 9)))
	assert.Equal(t, meshrun.Distribution{3, 2}, l.Picture(2))
	rows, columns := l.pictureAxes()
	assert.Equal(t, [2]int{1, 0}, [2]int{rows, columns})
	rows, columns = Layout{TP: Serial, SP: Factor{2, 0}}.pictureAxes()
	assert.Equal(t, [2]int{1, 0}, [2]int{rows, columns}, "the other axis carries the rows, which are whole")
	rows, columns = Layout{TP: Factor{2, 0}, SP: Serial}.pictureAxes()
	assert.Equal(t, [2]int{0, 1}, [2]int{rows, columns})
}

func TestTapsFirst(t *testing.T) {
	// [out 2, in 3, taps 2], one byte an element.
	got := tapsFirst([]byte{0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15}, 2, 3, 2, 1)
	assert.Equal(t, []byte{0, 10, 2, 12, 4, 14, 1, 11, 3, 13, 5, 15}, got)
	assert.Nil(t, tapsFirst(nil, 2, 3, 2, 1))
}

// scene is a canvas on a mesh, and pictures made of seeded noise.
type scene struct {
	*Canvas
	t     *testing.T
	noise *rand.Rand
}

// onCanvas calls f with a canvas on 2x3 devices, rows over 3 and columns over 2 of them, and checks that f leaves nothing behind.
func onCanvas(t *testing.T, halo Halo, f func(*scene)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	layout, err := NewLayout(meshrun.MeshShape{Rows: 2, Cols: 3}, Factor{3, 1}, Factor{2, 0})
	require.NoError(t, err)
	mesh, err := meshrun.Open(ctx, meshrun.Config{Mesh: layout.Mesh, Lockstep: true})
	require.NoError(t, err)
	defer func() { assert.NoError(t, mesh.Close(ctx)) }()
	stream, err := mesh.Stream("s")
	require.NoError(t, err)
	defer stream.Close()
	g := NewGraph(ctx, stream, Run{Layout: layout, DType: meshrun.Float32, Halo: halo})
	s := &scene{NewCanvas(g), t, rand.New(rand.NewPCG(7, 11))}
	f(s)
	s.Close()
	require.NoError(t, g.Err())
	assert.Zero(t, g.Live())
	require.NoError(t, g.Close())
}

func (s *scene) random(dims ...int) checkpoint.Array {
	a := checkpoint.Array{Shape: dims}
	n := 1
	for _, d := range dims {
		n *= d
	}
	for range n {
		a.Values = append(a.Values, float32(s.noise.NormFloat64()))
	}
	return a
}

func (s *scene) field(a checkpoint.Array) Field {
	return s.UploadFrames(a.Values, a.Shape[0], a.Shape[1], a.Shape[2], a.Shape[3])
}

// conv uploads weights [out, in, 3 taps or 1, 3, 3].
func (s *scene) conv(w, bias checkpoint.Array) Conv {
	out, in, taps := w.Shape[0], w.Shape[1], w.Shape[2]*9
	ordered := make([]float32, len(w.Values))
	for o := range out {
		for i := range in {
			for k := range taps {
				ordered[(k*in+i)*out+o] = w.Values[(o*in+i)*taps+k]
			}
		}
	}
	return Conv{
		Kernel: [3]int{w.Shape[2], 3, 3},
		weight: s.Upload(ordered, []int{taps * in, out}, meshrun.Float32, meshrun.Replicate).Keep(),
		bias:   s.Upload(bias.Values, []int{1, out}, meshrun.Float32, meshrun.Replicate).Keep(),
	}
}

func (s *scene) linear(w checkpoint.Array) Linear { // [in, out]
	return Linear{weight: s.Upload(w.Values, w.Shape, meshrun.Float32, meshrun.Replicate).Keep()}
}

func (s *scene) near(want, got checkpoint.Array, what string) {
	s.t.Helper()
	require.NoError(s.t, s.Err())
	require.Equal(s.t, want.Shape, got.Shape, what)
	assert.Less(s.t, distance(want, got), 1e-4, what)
}

func distance(a, b checkpoint.Array) (most float64) {
	for i := range a.Values {
		most = max(most, math.Abs(float64(a.Values[i])-float64(b.Values[i])))
	}
	return most
}

// plainConv convolves [in, frames, rows, columns], zeros before the first frame and round every one.
func plainConv(x, w, bias checkpoint.Array) checkpoint.Array {
	out, in, kt := w.Shape[0], w.Shape[1], w.Shape[2]
	frames, rows, columns := x.Shape[1], x.Shape[2], x.Shape[3]
	y := checkpoint.Array{Shape: []int{out, frames, rows, columns}}
	for o := range out {
		for t := range frames {
			for r := range rows {
				for c := range columns {
					sum := float64(bias.Values[o])
					for i := range in {
						for k := range kt * 9 {
							dt, dr, dc := t+k/9-(kt-1), r+k/3%3-1, c+k%3-1
							if dt >= 0 && dr >= 0 && dr < rows && dc >= 0 && dc < columns {
								sum += float64(x.Values[((i*frames+dt)*rows+dr)*columns+dc]) * float64(w.Values[(o*in+i)*kt*9+k])
							}
						}
					}
					y.Values = append(y.Values, float32(sum))
				}
			}
		}
	}
	return y
}

// frames cuts frames of [channels, frames, rows, columns].
func framesOf(a checkpoint.Array, begin, end int) checkpoint.Array {
	plane := a.Shape[2] * a.Shape[3]
	out := checkpoint.Array{Shape: []int{a.Shape[0], end - begin, a.Shape[2], a.Shape[3]}}
	for c := range a.Shape[0] {
		out.Values = append(out.Values, a.Values[(c*a.Shape[1]+begin)*plane:(c*a.Shape[1]+end)*plane]...)
	}
	return out
}

// TestConv: two convolutions, one behind the other, over sizes that the mesh does not divide, in pieces of time, against plain sums.
func TestConv(t *testing.T) {
	for _, halo := range []Halo{HaloFull, HaloCompact} {
		for _, taps := range []int{1, 3} {
			for _, size := range [][2]int{{6, 4}, {7, 5}, {4, 3}} { // the last leaves a device without a row
				t.Run(fmt.Sprint(halo, taps, size), func(t *testing.T) {
					onCanvas(t, halo, func(s *scene) {
						x := s.random(3, 5, size[0], size[1])
						w1, b1, w2, b2 := s.random(4, 3, taps, 3, 3), s.random(4), s.random(2, 4, taps, 3, 3), s.random(2)
						first, second := s.conv(w1, b1), s.conv(w2, b2)
						var h1, h2 History
						var answers []Field
						for _, cut := range [][2]int{{0, 1}, {1, 2}, {2, 5}} {
							y := s.Conv(s.field(framesOf(x, cut[0], cut[1])), first, &h1, true)
							answers = append(answers, s.Conv(s.Activate(y, meshrun.ReLU), second, &h2, false))
						}
						middle := plainConv(x, w1, b1)
						for i, v := range middle.Values {
							middle.Values[i] = max(v, 0)
						}
						s.near(plainConv(middle, w2, b2), s.Frames(answers...), "")
						h1.Release(s.Graph)
						h2.Release(s.Graph)
						s.Release(first.weight, first.bias, second.weight, second.bias)
					})
				})
			}
		}
	}
}

// TestMasksMatter: with ones in place of the mask, neighbours see what lies past the picture.
func TestMasksMatter(t *testing.T) {
	for _, halo := range []Halo{HaloFull, HaloCompact} {
		onCanvas(t, halo, func(s *scene) {
			x := s.random(3, 1, 7, 5)
			w, bias := s.random(3, 3, 1, 3, 3), s.random(3)
			conv := s.conv(w, bias)
			key := maskKey{Extent: s.layout.Extent(7, 5)}
			ones := make([]float32, 9*6)
			for i := range ones {
				ones[i] = 1
			}
			s.masks[key] = s.uploadRows(ones, []int{1, 1, 9, 6, 1}, s.layout.Picture(2))
			y := s.Frames(s.Conv(s.Conv(s.field(x), conv, nil, false), conv, nil, false))
			assert.Greater(t, distance(plainConv(plainConv(x, w, bias), w, bias), y), 0.1)
			s.Release(conv.weight, conv.bias)
		})
	}
}

func TestUpsampleAndSplitFrames(t *testing.T) {
	onCanvas(t, HaloFull, func(s *scene) {
		x := s.random(4, 3, 7, 5)
		double := checkpoint.Array{Shape: []int{4, 3, 14, 10}}
		for plane := range 12 {
			for r := range 14 {
				for c := range 10 {
					double.Values = append(double.Values, x.Values[(plane*7+r/2)*5+c/2])
				}
			}
		}
		s.near(double, s.Frames(s.Upsample(s.field(x))), "upsample")
		split := checkpoint.Array{Shape: []int{2, 6, 7, 5}}
		for c := range 2 {
			for t := range 6 {
				split.Values = append(split.Values, x.Values[((c+t%2*2)*3+t/2)*35:][:35]...)
			}
		}
		s.near(split, s.Frames(s.SplitFrames(s.field(x))), "split")
	})
}

func TestGroupNormOfShards(t *testing.T) {
	onCanvas(t, HaloFull, func(s *scene) {
		x := s.random(6, 2, 7, 5)
		for i := range x.Values {
			x.Values[i] = x.Values[i]*2 + 3 // padding of zeros would show
		}
		weight, bias := s.random(6), s.random(6)
		norm := GroupNorm{
			groups: 2, epsilon: 1e-5,
			weight: s.Upload(weight.Values, []int{1, 1, 1, 1, 6}, meshrun.Float32, meshrun.Replicate).Keep(),
			bias:   s.Upload(bias.Values, []int{1, 1, 1, 1, 6}, meshrun.Float32, meshrun.Replicate).Keep(),
		}
		want := checkpoint.Array{Shape: x.Shape, Values: make([]float32, len(x.Values))}
		for group := range 2 {
			for t := range 2 {
				var sum, squares float64
				each := func(f func(i, c int)) {
					for c := group * 3; c < group*3+3; c++ {
						for p := range 35 {
							f((c*2+t)*35+p, c)
						}
					}
				}
				each(func(i, _ int) { sum += float64(x.Values[i]) / 105 })
				each(func(i, _ int) { squares += math.Pow(float64(x.Values[i])-sum, 2) / 105 })
				each(func(i, c int) {
					want.Values[i] = float32((float64(x.Values[i])-sum)/math.Sqrt(squares+1e-5)*float64(weight.Values[c]) + float64(bias.Values[c]))
				})
			}
		}
		s.near(want, s.Frames(s.GroupNorm(s.field(x), norm)), "")
		s.Release(norm.weight, norm.bias)
	})
}

func TestAttentionOfShards(t *testing.T) {
	onCanvas(t, HaloFull, func(s *scene) {
		x := s.random(3, 2, 7, 5)
		wq, wk, wv := s.random(3, 3), s.random(3, 3), s.random(3, 3)
		q, k, v := s.linear(wq), s.linear(wk), s.linear(wv)
		want := checkpoint.Array{Shape: x.Shape, Values: make([]float32, len(x.Values))}
		at := func(w checkpoint.Array, t, pixel, out int) (sum float64) {
			for c := range 3 {
				sum += float64(x.Values[(c*2+t)*35+pixel]) * float64(w.Values[c*3+out])
			}
			return sum
		}
		for t := range 2 {
			for i := range 35 {
				var total float64
				var mixed [3]float64
				for j := range 35 {
					var score float64
					for c := range 3 {
						score += at(wq, t, i, c) * at(wk, t, j, c)
					}
					e := math.Exp(score / math.Sqrt(3))
					total += e
					for c := range 3 {
						mixed[c] += e * at(wv, t, j, c)
					}
				}
				for c := range 3 {
					want.Values[(c*2+t)*35+i] = float32(mixed[c] / total)
				}
			}
		}
		s.near(want, s.Frames(s.Attention(s.field(x), q, k, v)), "")
		s.Release(q.weight, k.weight, v.weight)
	})
}
