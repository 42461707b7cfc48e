package tests

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
)

// video is a whole [N, T, H, W, C] tensor of values that bfloat16 holds.
type video struct {
	n, t, h, w, c int
	v             []float32
}

func (x video) at(n, t, h, w, c int) float64 {
	return float64(x.v[(((n*x.t+t)*x.h+h)*x.w+w)*x.c+c])
}

func (x video) array(t *testing.T, dtype meshrun.DType) meshrun.Array {
	a, err := meshrun.Floats(meshrun.ShapeOf(x.n, x.t, x.h, x.w, x.c), dtype, x.v)
	require.NoError(t, err)
	a.Layout = meshrun.RowMajor
	return a
}

// randoms are multiples of 1/64 in [-2, 2].
func randoms(r *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.IntN(257)-128) / 64
	}
	return v
}

func randomVideo(r *rand.Rand, n, t, h, w, c int) video {
	return video{n, t, h, w, c, randoms(r, n*t*h*w*c)}
}

// conv is the whole convolution with stride 1, in double.
func (x video) conv(weight, bias []float32, out int, op meshrun.NPConv3D) []float64 {
	size := [3]int{x.t, x.h, x.w}
	var result []float64
	var o [3]int
	for n := range x.n {
		for o[0] = 0; o[0] < x.t+2*op.Padding[0]-op.Kernel[0]+1; o[0]++ {
			for o[1] = range x.h {
				for o[2] = range x.w {
					for k := range out {
						sum := float64(bias[k])
						row := 0
						for tap := range op.Kernel[0] * op.Kernel[1] * op.Kernel[2] {
							at := [3]int{tap / (op.Kernel[1] * op.Kernel[2]), tap / op.Kernel[2] % op.Kernel[1], tap % op.Kernel[2]}
							zero := false
							for i := range at {
								at[i] = o[i] + at[i]*max(op.Dilation[i], 1) - op.Padding[i]
								if at[i] < 0 || at[i] >= size[i] {
									zero = zero || op.Mode == meshrun.PadZeros
									at[i] = min(max(at[i], 0), size[i]-1)
								}
							}
							for c := range x.c {
								if !zero {
									sum += x.at(n, at[0], at[1], at[2], c) * float64(weight[row*out+k])
								}
								row++
							}
						}
						result = append(result, sum)
					}
				}
			}
		}
	}
	return result
}

// whole reads every device's shard of a tensor cut along H on axis 0 and W on axis 1, and puts them together.
func whole(t *testing.T, s *meshrun.Stream, x *meshrun.Tensor, rows, cols int) []float32 {
	shape := x.Shape()
	n, frames, h, w, c := shape.Dim(0), shape.Dim(1), shape.Dim(2), shape.Dim(3), shape.Dim(4)
	all := make([]float32, n*frames*h*rows*w*cols*c)
	for r := range rows {
		for k := range cols {
			shard, err := s.ReadFloats(t.Context(), x, meshrun.Coord{Row: r, Col: k})
			require.NoError(t, err)
			for line := range n * frames * h {
				to := ((line/h*rows+r)*h+line%h)*w*cols*c + k*w*c
				copy(all[to:to+w*c], shard[line*w*c:(line+1)*w*c])
			}
		}
	}
	return all
}

func openStream(t *testing.T, rows, cols int) *meshrun.Stream {
	mesh, err := meshrun.Open(t.Context(), meshrun.Config{Mesh: meshrun.MeshShape{Rows: rows, Cols: cols}})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		assert.NoError(t, mesh.Close(ctx))
	})
	s, err := mesh.Stream("main")
	require.NoError(t, err)
	return s
}

func worst(got []float32, want []float64) float64 {
	w := 0.0
	for i := range want {
		w = max(w, math.Abs(float64(got[i])-want[i])/(1+math.Abs(want[i])))
	}
	return w
}

// TestConv3D: a convolution sharded over H and W with its halo exchanged within gives the bits of the whole one on one device, launch after
// launch, and both what plain loops give.
func TestConv3D(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for i, dtype := range []meshrun.DType{meshrun.BFloat16, meshrun.Float32} {
		for _, mode := range []meshrun.PaddingMode{meshrun.PadZeros, meshrun.PadReplicate} {
			t.Run(fmt.Sprintf("%s/%s", dtype, mode), func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, uint64(i)))
				const rows, cols, out = 2, 3, 5
				op := meshrun.NPConv3D{Axes: [2]int{0, 1}, Kernel: [3]int{1 + r.IntN(3), 3, 3}, Padding: [3]int{0, 1, 1}, Mode: mode}
				if r.IntN(2) == 0 {
					op.Dilation, op.Padding = [3]int{1, 2, 2}, [3]int{0, 2, 2}
				}
				channels := 1 + r.IntN(9)
				taps := op.Kernel[0] * 9 * channels
				weight, bias := randoms(r, taps*out), randoms(r, out)
				local := meshrun.Conv3D{Kernel: op.Kernel, Padding: op.Padding, Dilation: op.Dilation, Mode: mode}

				one, many := openStream(t, 1, 1), openStream(t, rows, cols)
				upload := func(s *meshrun.Stream, v []float32, shape meshrun.Shape) *meshrun.Tensor {
					a, err := meshrun.Floats(shape, meshrun.Float32, v)
					require.NoError(t, err)
					x, err := s.Upload(t.Context(), a, meshrun.Replicate)
					require.NoError(t, err)
					return x
				}
				ctx := t.Context()
				w1, b1 := upload(one, weight, meshrun.ShapeOf(taps, out)), upload(one, bias, meshrun.ShapeOf(1, out))
				w2, b2 := upload(many, weight, meshrun.ShapeOf(taps, out)), upload(many, bias, meshrun.ShapeOf(1, out))
				for range 4 {
					x := randomVideo(r, 1+r.IntN(2), 3, rows*4, cols*3, channels)
					x1, err := one.Upload(ctx, x.array(t, dtype), meshrun.Replicate)
					require.NoError(t, err)
					y1, err := one.Conv3D(ctx, x1, w1, b1, nil, local)
					require.NoError(t, err)
					x2, err := many.Upload(ctx, x.array(t, dtype), meshrun.Distribution{2, 3})
					require.NoError(t, err)
					y2, err := many.NPConv3D(ctx, x2, w2, b2, op)
					require.NoError(t, err)
					alone, sharded := whole(t, one, y1, 1, 1), whole(t, many, y2, rows, cols)
					assert.Equal(t, alone, sharded)
					limit := 1e-5
					if dtype == meshrun.BFloat16 {
						limit = 1.0 / 256
					}
					want := x.conv(weight, bias, out, op)
					require.Len(t, alone, len(want))
					assert.Less(t, worst(alone, want), limit)
				}
			})
		}
	}
}

// TestGroupNormSharded: statistics of the shards, gathered over both axes, give the norm of the whole, without rows and columns of padding.
func TestGroupNormSharded(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	const rows, cols, groups, n = 3, 2, 2, 2
	for _, padded := range []bool{false, true} {
		t.Run(fmt.Sprintf("padded=%v", padded), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			s := openStream(t, rows, cols)
			ctx := t.Context()
			x := randomVideo(r, n, 2, rows*3, cols*2, 6)
			validH, validW := x.h, x.w
			op := meshrun.GroupNormStats{Groups: groups}
			if padded { // the last row of devices holds nothing but padding
				validH, validW = x.h-4, x.w-1
				op = meshrun.GroupNormStats{Groups: groups, LogicalH: validH, AxisH: 0, LogicalW: validW, AxisW: 1}
			}
			in, err := s.Upload(ctx, x.array(t, meshrun.Float32), meshrun.Distribution{2, 3})
			require.NoError(t, err)
			stats, err := s.GroupNormStats(ctx, in, op)
			require.NoError(t, err)
			for axis := range 2 {
				stats, err = s.AllGather(ctx, stats, meshrun.AllGather{Dim: 0, MeshAxis: axis})
				require.NoError(t, err)
			}
			assert.Equal(t, meshrun.ShapeOf(rows*cols, 1, n, 3*groups), stats.Shape())
			norm, err := s.GroupNorm(ctx, in, nil, nil, stats, meshrun.GroupNorm{Groups: groups, Epsilon: 1e-5, Activation: meshrun.SiLU})
			require.NoError(t, err)
			got := whole(t, s, norm, rows, cols)

			want := make([]float64, len(x.v))
			for b := range n {
				for g := range groups {
					var count, sum, squares float64
					each := func(fn func(i int, v float64, counts bool)) {
						for i := range want {
							c, w, h := i%x.c, i/x.c%x.w, i/x.c/x.w%x.h
							if i/(len(want)/n) == b && c/(x.c/groups) == g {
								fn(i, float64(x.v[i]), h < validH && w < validW)
							}
						}
					}
					each(func(_ int, v float64, counts bool) {
						if counts {
							count, sum = count+1, sum+v
						}
					})
					each(func(_ int, v float64, counts bool) {
						if counts {
							squares += (v - sum/count) * (v - sum/count)
						}
					})
					each(func(i int, v float64, _ bool) {
						y := (v - sum/count) / math.Sqrt(squares/count+1e-5)
						want[i] = y / (1 + math.Exp(-y))
					})
				}
			}
			assert.Less(t, worst(got, want), 1e-5)

			if !padded { // and what one device makes of the whole, which needs no statistics
				one := openStream(t, 1, 1)
				in, err := one.Upload(ctx, x.array(t, meshrun.Float32), meshrun.Replicate)
				require.NoError(t, err)
				norm, err := one.GroupNorm(ctx, in, nil, nil, nil, meshrun.GroupNorm{Groups: groups, Epsilon: 1e-5, Activation: meshrun.SiLU})
				require.NoError(t, err)
				assert.Less(t, worst(whole(t, one, norm, 1, 1), want), 1e-5)
			}
		})
	}
}

// TestGroupNormRefusals: a request that breaks a rule is refused where it is submitted, by field and value.
func TestGroupNormRefusals(t *testing.T) {
	s := openStream(t, 2, 2)
	ctx := t.Context()
	spec := meshrun.Spec{Shape: meshrun.ShapeOf(1, 2, 4, 4, 6), DType: meshrun.BFloat16, Layout: meshrun.RowMajor}
	x, err := s.Zeros(ctx, spec)
	require.NoError(t, err)
	spec.Layout = meshrun.Tile
	tiled, err := s.Zeros(ctx, spec)
	require.NoError(t, err)
	_, err = s.GroupNorm(ctx, x, nil, nil, nil, meshrun.GroupNorm{Groups: 4})
	assert.ErrorContains(t, err, "groups")
	_, err = s.GroupNorm(ctx, tiled, nil, nil, nil, meshrun.GroupNorm{Groups: 2})
	assert.ErrorContains(t, err, "layout")
	_, err = s.GroupNorm(ctx, x, x, nil, nil, meshrun.GroupNorm{Groups: 2})
	assert.ErrorContains(t, err, "weight")
	_, err = s.GroupNorm(ctx, x, nil, nil, x, meshrun.GroupNorm{Groups: 2})
	assert.ErrorContains(t, err, "stats")
	_, err = s.GroupNorm(ctx, x, nil, nil, nil, meshrun.GroupNorm{Groups: 2, Epsilon: float32(math.NaN())})
	assert.ErrorContains(t, err, "epsilon")
	_, err = s.GroupNormStats(ctx, x, meshrun.GroupNormStats{Groups: 2, LogicalH: 9})
	assert.ErrorContains(t, err, "logical_h")
	_, err = s.GroupNormStats(ctx, x, meshrun.GroupNormStats{Groups: 2, LogicalH: 8, LogicalW: 8})
	assert.ErrorContains(t, err, "axis_h and axis_w")
}
