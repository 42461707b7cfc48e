package tests

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
)

// The fused operations and bfloat8_b through the whole runtime, against plain computations in float64.

// fusedMesh is one mesh with a stream, and the arrays laid on it.
type fusedMesh struct {
	t    *testing.T
	ctx  context.Context
	mesh *meshrun.Mesh
	s    *meshrun.Stream
	rows int
	cols int
	rng  *rand.Rand
}

func openFused(t *testing.T, rows, cols, links int, topology meshrun.Topology) *fusedMesh {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	ctx := context.Background()
	mesh, err := meshrun.Open(ctx, meshrun.Config{Mesh: meshrun.MeshShape{Rows: rows, Cols: cols}, NumLinks: links, Topology: topology})
	require.NoError(t, err)
	s, err := mesh.Stream("main")
	require.NoError(t, err)
	m := &fusedMesh{t: t, ctx: ctx, mesh: mesh, s: s, rows: rows, cols: cols, rng: rand.New(rand.NewPCG(seed, 1))}
	t.Cleanup(func() { require.NoError(t, mesh.Close(ctx)) })
	return m
}

// array is a random host array of float32 values that a bfloat16 holds, so that uploads round nothing.
func (m *fusedMesh) array(dims ...int) []float32 {
	n := 1
	for _, d := range dims {
		n *= d
	}
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(m.rng.IntN(255)-127) / 128
	}
	return v
}

func (m *fusedMesh) upload(v []float32, dtype meshrun.DType, d meshrun.Distribution, dims ...int) *meshrun.Tensor {
	m.t.Helper()
	a, err := meshrun.Floats(meshrun.ShapeOf(dims...), dtype, v)
	require.NoError(m.t, err)
	x, err := m.s.Upload(m.ctx, a, d)
	require.NoError(m.t, err)
	return x
}

// read concatenates what device (r, c) holds.
func (m *fusedMesh) read(x *meshrun.Tensor, r, c int) []float32 {
	m.t.Helper()
	v, err := m.s.ReadFloats(m.ctx, x, meshrun.Coord{Row: r, Col: c})
	require.NoError(m.t, err)
	return v
}

func (m *fusedMesh) close(got []float32, want []float64, tolerance float64, what string, args ...any) {
	m.t.Helper()
	require.Len(m.t, got, len(want), what)
	for i, w := range want {
		if !(math.Abs(float64(got[i])-w) <= tolerance*(1+math.Abs(w))) {
			require.Failf(m.t, "wrong value", "%s: element %d is %g, want %g", fmt.Sprintf(what, args...), i, got[i], w)
		}
	}
}

func tolerance(t meshrun.DType) float64 {
	if t == meshrun.Float32 {
		return 3e-5
	}
	return 1.0 / 128
}

// product is x [rows, k] times w [k, n].
func product(x, w []float32, k, n int) []float64 {
	out := make([]float64, len(x)/k*n)
	for i := range len(x) / k {
		for j := range k {
			for c := range n {
				out[i*n+c] += float64(x[i*k+j]) * float64(w[j*n+c])
			}
		}
	}
	return out
}

func bothFloats(t *testing.T, f func(t *testing.T, dtype meshrun.DType)) {
	for _, dtype := range []meshrun.DType{meshrun.Float32, meshrun.BFloat16} {
		t.Run(dtype.String(), func(t *testing.T) { f(t, dtype) })
	}
}

func TestStridedAllGatherMatmul(t *testing.T) {
	for _, topology := range []meshrun.Topology{meshrun.Ring, meshrun.Linear} {
		bothFloats(t, func(t *testing.T, dtype meshrun.DType) {
			m := openFused(t, 2, 4, 2, topology)
			const rows, k, n = 24, 64, 20 // n: of one device
			w, b := m.array(k, 4*n), m.array(1, 4*n)
			weight, bias := m.upload(w, dtype, meshrun.ShardOn(1, 1), k, 4*n), m.upload(b, dtype, meshrun.ShardOn(1, 1), 1, 4*n)
			for call := range 4 { // more calls than banks
				x := m.array(1, 1, rows, k)
				out, err := m.s.StridedAllGatherMatmul(m.ctx, m.upload(x, dtype, meshrun.ShardOn(1, 3), 1, 1, rows, k), weight, bias,
					meshrun.StridedAllGatherMatmul{MeshAxis: 1, NumWorkersPerLink: 1 + call, Activation: meshrun.ReLU})
				require.NoError(t, err)
				whole := product(x, w, k, 4*n)
				for c := range 4 {
					want := make([]float64, rows*n)
					for i := range want {
						want[i] = max(0, whole[i/n*4*n+c*n+i%n]+float64(b[c*n+i%n]))
					}
					for r := range 2 {
						m.close(m.read(out, r, c), want, tolerance(dtype), "call %d, device %d,%d", call, r, c)
					}
				}
			}
		})
	}
}

func TestMatmulStridedReduceScatter(t *testing.T) {
	bothFloats(t, func(t *testing.T, dtype meshrun.DType) {
		m := openFused(t, 1, 4, 2, meshrun.Ring)
		const rows, k, n = 24, 64, 40
		w, b, gate := m.array(k, n), m.array(1, n), m.array(1, 1, 1, n)
		// Each device has its rows of the weight whole, and its columns of bias, residual and gate.
		weight, bias := m.upload(w, dtype, meshrun.ShardOn(1, 0), k, n), m.upload(b, dtype, meshrun.ShardOn(1, 1), 1, n)
		g := m.upload(gate, dtype, meshrun.ShardOn(1, 3), 1, 1, 1, n)
		for call := range 6 {
			op := meshrun.MatmulStridedReduceScatter{MeshAxis: 1, UsePersistentBuffer: call%2 == 0, FusedSemaphores: call%3 == 0, Credits: call > 2}
			x, residual := m.array(1, 1, rows, k), m.array(1, 1, rows, n)
			var res, gates *meshrun.Tensor
			if call%3 != 1 {
				res, gates, op.Scalar = m.upload(residual, dtype, meshrun.ShardOn(1, 3), 1, 1, rows, n), g, 0.5
			}
			out, err := m.s.MatmulStridedReduceScatter(m.ctx, m.upload(x, dtype, meshrun.ShardOn(1, 3), 1, 1, rows, k), weight, bias, res, gates, op)
			require.NoError(t, err)
			whole := product(x, w, k, n)
			for c := range 4 {
				want := make([]float64, rows*n/4)
				for i := range want {
					column := c*n/4 + i%(n/4)
					at := i/(n/4)*n + column
					want[i] = whole[at] + float64(b[column])
					if res != nil {
						want[i] = float64(residual[at]) + 0.5*want[i]*float64(gate[column])
					}
				}
				m.close(m.read(out, 0, c), want, tolerance(dtype), "call %d, device %d", call, c)
			}
		}
	})
}

// TestMatmulStridedReduceScatterIsForRings: a line is refused before anything is enqueued, with what to do instead.
func TestMatmulStridedReduceScatterIsForRings(t *testing.T) {
	m := openFused(t, 1, 4, 1, meshrun.Linear)
	x, w := m.upload(m.array(1, 1, 8, 16), meshrun.BFloat16, meshrun.ShardOn(1, 3), 1, 1, 8, 16), m.upload(m.array(16, 16), meshrun.BFloat16, meshrun.ShardOn(1, 0), 16, 16)
	_, err := m.s.MatmulStridedReduceScatter(m.ctx, x, w, nil, nil, nil, meshrun.MatmulStridedReduceScatter{MeshAxis: 1})
	require.ErrorIs(t, err, meshrun.ErrInvalid)
	assert.ErrorContains(t, err, "rings only")
	assert.ErrorContains(t, err, "use matmul, then reduce_scatter")
}

// attention is softmax(q k^T / sqrt(d)) v for one head of rows of width d; only the keys that `valid` allows.
func attention(q, k, v []float32, d int) []float64 {
	var out []float64
	for i := range len(q) / d {
		sum, acc := 0.0, make([]float64, d)
		for j := range len(k) / d {
			dot := 0.0
			for c := range d {
				dot += float64(q[i*d+c]) * float64(k[j*d+c])
			}
			e := math.Exp(dot / math.Sqrt(float64(d)))
			sum += e
			for c := range d {
				acc[c] += e * float64(v[j*d+c])
			}
		}
		for c := range d {
			out = append(out, acc[c]/sum)
		}
	}
	return out
}

// TestRingAttention: both kinds, with a joint part and a logical length, against plain attention.
func TestRingAttention(t *testing.T) {
	for _, topology := range []meshrun.Topology{meshrun.Ring, meshrun.Linear} {
		bothFloats(t, func(t *testing.T, dtype meshrun.DType) {
			m := openFused(t, 2, 4, 2, topology)
			const heads, tokens, joint, d, logical = 2, 32, 5, 16, 27
			for call := range 4 {
				q, k, v := m.array(1, heads, tokens, d), m.array(1, heads, tokens, d), m.array(1, heads, tokens, d)
				jq, jk, jv := m.array(1, heads, joint, d), m.array(1, heads, joint, d), m.array(1, heads, joint, d)
				split := func(x []float32) *meshrun.Tensor {
					return m.upload(x, dtype, meshrun.ShardOn(1, 2), 1, heads, tokens, d)
				}
				whole := func(x []float32) *meshrun.Tensor { return m.upload(x, dtype, meshrun.Replicate, 1, heads, joint, d) }
				tensors := []*meshrun.Tensor{split(q), split(k), split(v), whole(jq), whole(jk), whole(jv)}
				var out, jout *meshrun.Tensor
				var err error
				if call%2 == 0 {
					out, jout, err = m.s.ExpRingJointSDPA(m.ctx, tensors[0], tensors[1], tensors[2], tensors[3], tensors[4], tensors[5], meshrun.ExpRingJointSDPA{MeshAxis: 1, LogicalN: logical})
				} else {
					out, jout, err = m.s.RingJointSDPA(m.ctx, tensors[0], tensors[1], tensors[2], tensors[3], tensors[4], tensors[5], meshrun.RingJointSDPA{MeshAxis: 1, LogicalN: logical})
				}
				require.NoError(t, err)
				for c := range 4 {
					var want, jwant []float64
					for h := range heads {
						rows := func(x []float32, of, from, to int) []float32 { return x[(h*of+from)*d : (h*of+to)*d] }
						keys := append(append([]float32(nil), rows(k, tokens, 0, logical)...), rows(jk, joint, 0, joint)...)
						values := append(append([]float32(nil), rows(v, tokens, 0, logical)...), rows(jv, joint, 0, joint)...)
						want = append(want, attention(rows(q, tokens, c*tokens/4, (c+1)*tokens/4), keys, values, d)...)
						jwant = append(jwant, attention(rows(jq, joint, 0, joint), keys, values, d)...)
					}
					m.close(m.read(out, 1, c), want, tolerance(dtype), "call %d, device %d", call, c)
					m.close(m.read(jout, 1, c), jwant, tolerance(dtype), "joint part of call %d, device %d", call, c)
				}
			}
		})
	}
}

// TestFusedDistributedNormRMS: RMS norm over a sharded width, split into heads and rotated.
func TestFusedDistributedNormRMS(t *testing.T) {
	bothFloats(t, func(t *testing.T, dtype meshrun.DType) {
		m := openFused(t, 2, 4, 1, meshrun.TopologyUnset)
		const tokens, heads, d = 11, 8, 6 // heads of all devices
		const width = heads * d
		x, w := m.array(1, 1, tokens, width), m.array(1, 1, 1, width)
		cos, sin := m.array(1, 1, tokens, d), m.array(1, 1, tokens, d)
		out, err := m.s.FusedDistributedNorm(m.ctx, m.upload(x, dtype, meshrun.ShardOn(1, 3), 1, 1, tokens, width), m.upload(w, dtype, meshrun.ShardOn(1, 3), 1, 1, 1, width), nil,
			m.upload(cos, dtype, meshrun.Replicate, 1, 1, tokens, d), m.upload(sin, dtype, meshrun.Replicate, 1, 1, tokens, d),
			meshrun.FusedDistributedNorm{RMS: true, Epsilon: 1e-5, MeshAxis: 1, NumHeads: heads / 4})
		require.NoError(t, err)
		for c := range 4 {
			want := make([]float64, tokens*width/4)
			for row := range tokens {
				squares := 0.0
				for i := range width {
					squares += math.Pow(float64(x[row*width+i]), 2)
				}
				norm := func(i int) float64 {
					return float64(x[row*width+i]) / math.Sqrt(squares/width+1e-5) * float64(w[i])
				}
				for h := range heads / 4 {
					for i := range d {
						at := (c*heads/4+h)*d + i
						turned := -norm(at ^ 1)
						if i%2 == 1 {
							turned = -turned
						}
						want[(h*tokens+row)*d+i] = norm(at)*float64(cos[row*d+i]) + turned*float64(sin[row*d+i])
					}
				}
			}
			for r := range 2 {
				m.close(m.read(out, r, c), want, tolerance(dtype), "device %d,%d", r, c)
			}
		}
	})
}

// TestFusedDistributedNormLayer: layer norm over a sharded width, with the modulation as weight and bias.
func TestFusedDistributedNormLayer(t *testing.T) {
	bothFloats(t, func(t *testing.T, dtype meshrun.DType) {
		m := openFused(t, 4, 2, 1, meshrun.TopologyUnset)
		const tokens, width = 9, 64
		x, scale, shift := m.array(1, 1, tokens, width), m.array(1, 1, 1, width), m.array(1, 1, 1, width)
		for i := range x {
			x[i] = float32(math.RoundToEven(float64(x[i]+2)*64) / 64) // what a bfloat16 holds: the rounding of inputs is not what is tested
		}
		norm := func(row, i int) float64 {
			mean, variance := 0.0, 0.0
			for j := range width {
				mean += float64(x[row*width+j]) / width
			}
			for j := range width {
				variance += math.Pow(float64(x[row*width+j])-mean, 2) / width
			}
			return (float64(x[row*width+i])-mean)/math.Sqrt(variance+1e-6)*float64(scale[i]) + float64(shift[i])
		}
		on := meshrun.ShardOn(0, 3)
		out, err := m.s.FusedDistributedNorm(m.ctx, m.upload(x, dtype, on, 1, 1, tokens, width), m.upload(scale, dtype, on, 1, 1, 1, width), m.upload(shift, dtype, on, 1, 1, 1, width),
			nil, nil, meshrun.FusedDistributedNorm{Epsilon: 1e-6, MeshAxis: 0})
		require.NoError(t, err)
		for r := range 4 {
			var want []float64
			for row := range tokens {
				for i := range width / 4 {
					want = append(want, norm(row, r*width/4+i))
				}
			}
			m.close(m.read(out, r, 1), want, 2*tolerance(dtype), "device %d,1", r)
		}
	})
}

// blocks rounds rows of `width` to bfloat8_b: 16 values share the exponent of the largest and keep 7 bits below it.
func blocks(x []float32, width int) []float32 {
	out := make([]float32, len(x))
	for begin := 0; begin < len(x); {
		end := min(begin+16, (begin/width+1)*width)
		largest := 0.0
		for _, v := range x[begin:end] {
			largest = max(largest, math.Abs(float64(v)))
		}
		if largest > 0 {
			unit := math.Ldexp(1, math.Ilogb(largest)-6)
			for i, v := range x[begin:end] {
				out[begin+i] = float32(max(-127, min(127, math.RoundToEven(float64(v)/unit))) * unit)
			}
		}
		begin = end
	}
	return out
}

// TestBFloat8B: casts, gathers and sums of block floats.
func TestBFloat8B(t *testing.T) {
	m := openFused(t, 1, 4, 2, meshrun.Ring)
	const rows, width = 8, 128
	x := m.array(1, 1, rows, width)
	for i := range x {
		x[i] = float32(math.Ldexp(float64(x[i]), m.rng.IntN(16)-8))
	}
	want := blocks(x, width)
	require.NotEqual(t, x, want)

	written := m.upload(x, meshrun.BFloat8B, meshrun.Replicate, 1, 1, rows, width)
	assert.Equal(t, want, m.read(written, 0, 2), "a write rounds")
	for _, from := range []meshrun.DType{meshrun.Float32, meshrun.BFloat16} { // the values fit a bfloat16
		cast, err := m.s.Typecast(m.ctx, m.upload(x, from, meshrun.Replicate, 1, 1, rows, width), meshrun.BFloat8B)
		require.NoError(t, err)
		assert.Equal(t, want, m.read(cast, 0, 1), "from %s", from)
		back, err := m.s.Typecast(m.ctx, cast, from)
		require.NoError(t, err)
		assert.Equal(t, want, m.read(back, 0, 3), "to %s", from)
	}

	shard := m.upload(x, meshrun.BFloat8B, meshrun.ShardOn(1, 3), 1, 1, rows, width)
	for call := range 4 {
		whole, err := m.s.AllGather(m.ctx, shard, meshrun.AllGather{Dim: 3, MeshAxis: 1, UsePersistentBuffer: call%2 == 0})
		require.NoError(t, err)
		assert.Equal(t, meshrun.BFloat8B, whole.Spec().DType)
		for c := range 4 {
			assert.Equal(t, want, m.read(whole, 0, c), "a gather is bit exact")
		}
		whole.Release()
	}
	sum, err := m.s.ReduceScatter(m.ctx, written, meshrun.ReduceScatter{Dim: 2, MeshAxis: 1, UsePersistentBuffer: true})
	require.NoError(t, err)
	for c := range 4 {
		four := make([]float32, rows/4*width)
		for i := range four {
			four[i] = 4 * want[c*rows/4*width+i]
		}
		assert.Equal(t, four, m.read(sum, 0, c)) // a power of two moves the exponents alone
	}

	w := m.array(width, 32)
	weight := m.upload(w, meshrun.BFloat8B, meshrun.Replicate, width, 32)
	y, err := m.s.Matmul(m.ctx, written, weight, nil, meshrun.Matmul{DType: meshrun.Float32})
	require.NoError(t, err)
	m.close(m.read(y, 0, 0), product(want, blocks(w, 32), width, 32), 3e-5, "a matmul of block floats")

	for what, refuse := range map[string]func() error{
		"whole blocks of 16": func() error {
			_, err := m.s.AllGather(m.ctx, m.upload(m.array(1, 1, 4, 40), meshrun.BFloat8B, meshrun.Replicate, 1, 1, 4, 40), meshrun.AllGather{Dim: 3, MeshAxis: 1})
			return err
		},
		"row_major": func() error { _, err := m.s.ToLayout(m.ctx, written, meshrun.RowMajor); return err },
		"is tile where the dtype is bfloat8_b": func() error {
			_, err := m.s.Zeros(m.ctx, meshrun.Spec{Shape: meshrun.ShapeOf(2, 32), DType: meshrun.BFloat8B, Layout: meshrun.RowMajor})
			return err
		},
	} {
		err := refuse()
		require.ErrorIs(t, err, meshrun.ErrInvalid, what)
		assert.ErrorContains(t, err, what)
	}
}
