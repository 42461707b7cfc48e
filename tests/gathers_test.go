package tests

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
)

// unsharded is an unsharded array and how it lies on a mesh: cut along Dim over Axis, the same on the other axis.
type unsharded struct {
	dims   []int
	values []float64
}

// block is the part [begin, end) of dim.
func (w unsharded) block(dim, begin, end int) unsharded {
	out := unsharded{dims: append([]int(nil), w.dims...)}
	out.dims[dim] = end - begin
	inner := 1
	for _, d := range w.dims[dim+1:] {
		inner *= d
	}
	row := w.dims[dim] * inner
	for at := 0; at < len(w.values); at += row {
		out.values = append(out.values, w.values[at+begin*inner:at+end*inner]...)
	}
	return out
}

func randomWhole(r *rand.Rand, dims []int, dtype meshrun.DType) unsharded {
	n := 1
	for _, d := range dims {
		n *= d
	}
	w := unsharded{dims: dims, values: make([]float64, n)}
	for i := range w.values {
		switch dtype {
		case meshrun.BFloat16:
			w.values[i] = float64(r.IntN(512)-256) / 64 // sums of eight are exact in float32
		case meshrun.Float32:
			w.values[i] = float64(r.IntN(1<<20)-1<<19) / 4096
		case meshrun.UInt8:
			w.values[i] = float64(r.IntN(256))
		case meshrun.UInt16:
			w.values[i] = float64(r.IntN(1 << 16))
		default:
			w.values[i] = float64(r.IntN(1 << 24))
		}
	}
	return w
}

// encode writes values as elements of a dtype, little endian; decode reads them.
func encode(values []float64, dtype meshrun.DType) []byte {
	var out []byte
	for _, v := range values {
		switch dtype {
		case meshrun.BFloat16:
			out = binary.LittleEndian.AppendUint16(out, messages.ToBF16(float32(v)))
		case meshrun.Float32:
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(v)))
		case meshrun.UInt8:
			out = append(out, byte(v))
		case meshrun.UInt16:
			out = binary.LittleEndian.AppendUint16(out, uint16(v))
		default:
			out = binary.LittleEndian.AppendUint32(out, uint32(v))
		}
	}
	return out
}

func shapeOf(dims []int) meshrun.Shape { return meshrun.ShapeOf(dims...) }

// TestGathersAndScattersOfAnyShape draws meshes, topologies, links, ranks, dims, dtypes and layouts, and compares with the plain array. Gathers are exact for
// every dtype; the sums are of numbers that add exactly, so a scatter has one right answer: the sum, rounded once.
func TestGathersAndScattersOfAnyShape(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	ctx := context.Background()
	for round := range 12 {
		mesh := meshrun.MeshShape{Rows: pick(r, 1, 2, 3, 4, 8), Cols: pick(r, 1, 2, 3)}
		if r.IntN(2) == 0 {
			mesh.Rows, mesh.Cols = mesh.Cols, mesh.Rows
		}
		c := meshrun.Config{Mesh: mesh, NumLinks: 1 + r.IntN(4), Topology: pick(r, meshrun.TopologyUnset, meshrun.Linear, meshrun.Ring)}
		m, err := meshrun.Open(ctx, c)
		require.NoError(t, err)
		s, err := m.Stream("")
		require.NoError(t, err)
		for call := range 10 {
			axis := r.IntN(2)
			n := [2]int{mesh.Rows, mesh.Cols}[axis]
			dims := make([]int, 1+r.IntN(4))
			for i := range dims {
				dims[i] = pick(r, 1, 2, 3, 5, 31, 32, 33)
			}
			dim := r.IntN(len(dims))
			dims[dim] *= n
			layout := pick(r, meshrun.Tile, meshrun.RowMajor)
			persistent := r.IntN(2) == 0
			if persistent {
				layout = meshrun.Tile // of the pools' buffers
			}
			named := dim
			if r.IntN(2) == 0 {
				named -= len(dims)
			}
			scatter := r.IntN(2) == 0
			dtype := pick(r, meshrun.BFloat16, meshrun.Float32, meshrun.UInt32, meshrun.Int32, meshrun.UInt16, meshrun.UInt8)
			if scatter {
				dtype = pick(r, meshrun.BFloat16, meshrun.Float32)
			}
			what := fmt.Sprintf("seed %d, round %d, call %d: %+v, dims %v, dim %d, axis %d, %s %s, persistent %v, scatter %v", seed, round, call, c, dims, named, axis, dtype, layout, persistent, scatter)

			if !scatter {
				w := randomWhole(r, dims, dtype)
				x, err := s.Upload(ctx, meshrun.Array{Shape: shapeOf(dims), DType: dtype, Layout: layout, Data: encode(w.values, dtype)}, meshrun.ShardOn(axis, dim))
				require.NoError(t, err, what)
				y, err := s.AllGather(ctx, x, meshrun.AllGather{Dim: named, MeshAxis: axis, UsePersistentBuffer: persistent, UseHyperparams: r.IntN(2) == 0})
				require.NoError(t, err, what)
				require.Equal(t, shapeOf(dims), y.Shape(), what)
				want := encode(w.values, dtype)
				eachDevice(mesh, func(at meshrun.Coord) {
					got, err := s.Read(ctx, y, at)
					require.NoError(t, err, what)
					require.True(t, string(want) == string(got), "%s: device %v differs", what, at)
				})
				x.Release()
				y.Release()
				continue
			}
			// Each device of a line has a summand of its own: one array [n, ...] cut along a dim in front.
			stacked := append([]int{n}, dims...)
			w := randomWhole(r, stacked, dtype)
			if len(stacked) > 4 { // the summands are laid out over dim 0 instead
				stacked = append([]int{n * dims[0]}, dims[1:]...)
			}
			x, err := s.Upload(ctx, meshrun.Array{Shape: shapeOf(stacked), DType: dtype, Layout: layout, Data: encode(w.values, dtype)}, meshrun.ShardOn(axis, 0))
			require.NoError(t, err, what)
			summand, err := s.Reshape(ctx, x, dims...)
			require.NoError(t, err, what)
			y, err := s.ReduceScatter(ctx, summand, meshrun.ReduceScatter{Dim: named, MeshAxis: axis, UsePersistentBuffer: persistent})
			require.NoError(t, err, what)
			sum := unsharded{dims: dims, values: make([]float64, len(w.values)/n)}
			for i, v := range w.values {
				sum.values[i%len(sum.values)] += v
			}
			part := dims[dim] / n
			eachDevice(mesh, func(at meshrun.Coord) {
				position := [2]int{at.Row, at.Col}[axis]
				want := encode(sum.block(dim, position*part, (position+1)*part).values, dtype)
				got, err := s.Read(ctx, y, at)
				require.NoError(t, err, what)
				require.True(t, string(want) == string(got), "%s: device %v differs", what, at)
			})
			for _, out := range []*meshrun.Tensor{x, summand, y} {
				out.Release()
			}
		}
		require.NoError(t, m.Close(ctx))
	}
}

func eachDevice(mesh meshrun.MeshShape, do func(meshrun.Coord)) {
	for row := range mesh.Rows {
		for col := range mesh.Cols {
			do(meshrun.Coord{Row: row, Col: col})
		}
	}
}
