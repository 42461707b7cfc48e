package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/tests/testdriver"
)

// generator makes requests on a 2x4 mesh, good and bad, from one source of randomness each.
type generator struct {
	t    *testing.T
	s    *meshrun.Stream
	good *rand.Rand
	bad  *rand.Rand
	x    map[string]*meshrun.Tensor // inputs by what they are
	gone *meshrun.Tensor            // released
	away *meshrun.Tensor            // of another mesh
}

func (g *generator) inputs() {
	for _, in := range []struct {
		name string
		spec meshrun.Spec
	}{
		{"tile", meshrun.Spec{Shape: meshrun.ShapeOf(1, 2, 64, 128), DType: meshrun.BFloat16}},
		{"f32", meshrun.Spec{Shape: meshrun.ShapeOf(64, 64), DType: meshrun.Float32}},
		{"u32", meshrun.Spec{Shape: meshrun.ShapeOf(4, 8, 64), DType: meshrun.UInt32, Layout: meshrun.RowMajor}},
		{"volume", meshrun.Spec{Shape: meshrun.ShapeOf(1, 3, 6, 8, 32), DType: meshrun.BFloat16, Layout: meshrun.RowMajor}},
		{"weight", meshrun.Spec{Shape: meshrun.ShapeOf(128, 64), DType: meshrun.BFloat16}},
		{"odd", meshrun.Spec{Shape: meshrun.ShapeOf(1, 1, 33, 35), DType: meshrun.BFloat16}},
		{"taps", meshrun.Spec{Shape: meshrun.ShapeOf(27*32, 16), DType: meshrun.BFloat16, Layout: meshrun.RowMajor}},
		{"heads", meshrun.Spec{Shape: meshrun.ShapeOf(1, 2, 32, 64), DType: meshrun.BFloat16}},
	} {
		x, err := g.s.Zeros(context.Background(), in.spec)
		require.NoError(g.t, err)
		g.x[in.name] = x
	}
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// request is one call and what it takes.
type request struct {
	text string
	op   messages.Operation
	in   []*meshrun.Tensor
}

// valid is a request that no rule forbids.
func (g *generator) valid() request {
	r := g.good
	axis := r.IntN(2)
	kind := r.IntN(13)
	persistent := r.IntN(2) == 0
	both := func(l, rr int) (meshrun.Index, meshrun.Index) { return index(l), index(rr) }
	switch kind {
	case 0, 1:
		return request{"all_gather", meshrun.AllGather{Dim: r.IntN(4), MeshAxis: axis, UsePersistentBuffer: persistent, UseHyperparams: r.IntN(2) == 0}, g.of("tile")}
	case 2, 3:
		return request{"reduce_scatter", meshrun.ReduceScatter{Dim: pick(r, 2, 3, -1), MeshAxis: axis, UsePersistentBuffer: persistent}, g.of("tile")}
	case 4:
		l, rr := both(r.IntN(3), 1+r.IntN(2))
		return request{"neighbor_pad", meshrun.NeighborPad{Dims: index(2), Axes: index(axis), PadLeft: l, PadRight: rr, UsePersistentBuffer: persistent}, g.of("volume")}
	case 5:
		return request{"neighbor_pad_halo", meshrun.NeighborPadHalo{Dims: index(2, 3), Axes: index(0, 1), PadLeft: index(1, r.IntN(2)), PadRight: index(1, 1)}, []*meshrun.Tensor{g.x["volume"], nil}}
	case 6:
		return request{"slice_reshard", meshrun.SliceReshard{Offset: r.IntN(6), Size: 8, MeshAxis: axis}, g.of("u32")}
	case 7:
		return request{"matmul", meshrun.Matmul{}, []*meshrun.Tensor{g.x["tile"], g.x["weight"], nil}}
	case 8:
		return request{"conv3d", meshrun.Conv3D{Kernel: [3]int{3, 3, 3}, Padding: [3]int{1, 1, 1}}, []*meshrun.Tensor{g.x["volume"], g.x["taps"], nil, nil}}
	case 9:
		return request{"np_conv3d", meshrun.NPConv3D{Axes: [2]int{0, 1}, Kernel: [3]int{3, 3, 3}, Padding: [3]int{1, 1, 1}}, []*meshrun.Tensor{g.x["volume"], g.x["taps"], nil}}
	case 10:
		return request{"ring_joint_sdpa", meshrun.RingJointSDPA{MeshAxis: axis}, []*meshrun.Tensor{g.x["heads"], g.x["heads"], g.x["heads"], nil, nil, nil}}
	case 11:
		return request{"fused_distributed_norm", meshrun.FusedDistributedNorm{RMS: true, Epsilon: 1e-6, MeshAxis: pick(r, 0, 1, meshrun.NoAxis)}, []*meshrun.Tensor{g.x["odd"], nil, nil, nil, nil}}
	default:
		return request{"get_semaphores", messages.GetSemaphores{Pool: pick(r, messages.PoolAG, messages.PoolRS, messages.PoolBarrier, messages.PoolNP), MeshAxis: axis}, nil}
	}
}

func (g *generator) of(name string) []*meshrun.Tensor { return []*meshrun.Tensor{g.x[name]} }

// invalid is a request that some rule forbids.
func (g *generator) invalid() request {
	r := g.bad
	axis := r.IntN(2)
	far := pick(r, 4, 5, 100, -5, -6, 1<<30)
	switch r.IntN(20) {
	case 0:
		return request{"dim", meshrun.AllGather{Dim: far, MeshAxis: axis, UsePersistentBuffer: r.IntN(2) == 0}, g.of("tile")}
	case 1:
		return request{"axis", meshrun.AllGather{Dim: 3, MeshAxis: pick(r, 2, 3, -2, 1000)}, g.of("tile")}
	case 2:
		return request{"rank 5", meshrun.AllGather{Dim: 3, MeshAxis: axis}, g.of("volume")}
	case 3:
		return request{"does not divide", meshrun.ReduceScatter{Dim: pick(r, 2, 3), MeshAxis: axis, UsePersistentBuffer: r.IntN(2) == 0}, g.of("odd")}
	case 4:
		return request{"released", meshrun.AllGather{Dim: 3, MeshAxis: axis}, []*meshrun.Tensor{g.gone}}
	case 5:
		return request{"another mesh", meshrun.ReduceScatter{Dim: 3, MeshAxis: axis}, []*meshrun.Tensor{g.away}}
	case 6:
		return request{"capacity", meshrun.AllGather{Dim: 3, MeshAxis: 1, UsePersistentBuffer: true, Capacity: pick(r, 1, 64, 511, -1)}, g.of("tile")}
	case 7:
		pad := pick(r, -1, 7, 1<<20)
		return request{"pad", meshrun.NeighborPad{Dims: index(2), Axes: index(axis), PadLeft: index(pad), PadRight: index(1), UsePersistentBuffer: r.IntN(2) == 0}, g.of("volume")}
	case 8:
		return request{"no pad", meshrun.NeighborPad{Dims: index(2), Axes: index(axis), PadLeft: index(0), PadRight: index(0)}, g.of("volume")}
	case 9:
		return request{"layout", meshrun.NeighborPad{Dims: index(2), Axes: index(axis), PadLeft: index(1), PadRight: index(1)}, g.of("tile")}
	case 10:
		return request{"links", meshrun.NeighborPad{Dims: index(2), Axes: index(axis), PadLeft: index(1), PadRight: index(1), NumLinks: index(pick(r, 0, -1, 3, 100))}, g.of("volume")}
	case 11:
		return request{"same axis", meshrun.NeighborPadHalo{Dims: index(2, 3), Axes: index(axis, axis), PadLeft: index(1, 1), PadRight: index(1, 1)}, []*meshrun.Tensor{g.x["volume"], nil}}
	case 12:
		return request{"input pad", meshrun.NeighborPadHalo{Dims: index(2), Axes: index(axis), PadLeft: index(1), PadRight: index(1), InputPadH: pick(r, -1, 3, 4)}, []*meshrun.Tensor{g.x["volume"], nil}}
	case 13:
		return request{"size", meshrun.SliceReshard{Offset: pick(r, 0, -1), Size: pick(r, 0, -4, 3, 5), MeshAxis: axis}, g.of("u32")}
	case 14:
		return request{"inner dims", meshrun.Matmul{}, []*meshrun.Tensor{g.x["tile"], g.x["f32"], nil}}
	case 15:
		return request{"kernel", meshrun.Conv3D{Kernel: [3]int{3, 3, pick(r, 0, -1, 5)}, Padding: [3]int{1, 1, 1}}, []*meshrun.Tensor{g.x["volume"], g.x["taps"], nil, nil}}
	case 16:
		return request{"np_conv3d", meshrun.NPConv3D{Axes: [2]int{axis, axis}, Kernel: [3]int{3, 3, 3}, Padding: [3]int{1, 1, 1}}, []*meshrun.Tensor{g.x["volume"], g.x["taps"], nil}}
	case 17:
		return request{"logical_n", meshrun.RingJointSDPA{MeshAxis: axis, LogicalN: pick(r, -1, 1000)}, []*meshrun.Tensor{g.x["heads"], g.x["heads"], g.x["heads"], nil, nil, nil}}
	case 18:
		return request{"pool axis", messages.GetSemaphores{Pool: messages.PoolAG, MeshAxis: pick(r, -1, 2)}, nil}
	default:
		return request{"no input", meshrun.AllGather{Dim: 3, MeshAxis: axis}, nil}
	}
}

// drive submits n good requests, with bad ones between them where bad is set, and returns the journal of the good ones and the counts at the end.
func drive(t *testing.T, c meshrun.Config, seed uint64, n int, bad bool) ([]*meshrun.Row, meshrun.Stats) {
	ctx := context.Background()
	c.Mesh, c.NumLinks, c.Record, c.Policy = meshrun.MeshShape{Rows: 2, Cols: 4}, 2, true, meshrun.Rotate
	mesh, err := meshrun.Open(ctx, c)
	require.NoError(t, err)
	defer mesh.Close(ctx)
	s, err := mesh.Stream("main")
	require.NoError(t, err)
	other, err := meshrun.Open(ctx, meshrun.Config{Driver: "null", Mesh: c.Mesh})
	require.NoError(t, err)
	defer other.Close(ctx)
	o, err := other.Stream("other")
	require.NoError(t, err)

	g := &generator{t: t, s: s, good: rand.New(rand.NewPCG(seed, 1)), bad: rand.New(rand.NewPCG(seed, 2)), x: map[string]*meshrun.Tensor{}}
	g.inputs()
	g.away, err = o.Zeros(ctx, meshrun.Spec{Shape: meshrun.ShapeOf(1, 2, 64, 128), DType: meshrun.BFloat16})
	require.NoError(t, err)
	g.gone, err = s.Zeros(ctx, meshrun.Spec{Shape: meshrun.ShapeOf(1, 2, 64, 128), DType: meshrun.BFloat16})
	require.NoError(t, err)
	g.gone.Release()

	for i := range n {
		for range g.bad.IntN(4) {
			q := g.invalid()
			if !bad {
				continue
			}
			_, err := s.Submit(ctx, meshrun.Call{Op: q.op, In: q.in})
			require.Error(t, err, "seed %d, before request %d: %s: %+v was accepted", seed, i, q.text, q.op)
		}
		q := g.valid()
		outs, err := s.Submit(ctx, meshrun.Call{Op: q.op, In: q.in})
		require.NoError(t, err, "seed %d, request %d: %s %+v", seed, i, q.text, q.op)
		for _, out := range outs {
			out.Release()
		}
		require.NoError(t, s.Fence(ctx)) // so that what is freed is freed at the same place in both runs
	}
	require.NoError(t, s.Fence(ctx))
	stats, err := mesh.Stats(ctx)
	require.NoError(t, err)
	var rows []*meshrun.Row
	for _, row := range mesh.Journal() {
		if row.Err == nil {
			rows = append(rows, row)
		}
	}
	require.NoError(t, mesh.Close(ctx))
	return rows, stats
}

// TestBadRequestsChangeNothing: rule 8. With wrong requests strewn between good ones, every good one draws the same banks and makes the same calls of
// the driver, handle by handle, as without.
func TestBadRequestsChangeNothing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	library := testdriver.Build(t)
	dir := t.TempDir()
	for round := range 6 {
		seed += uint64(round)
		run := func(bad bool) ([]*meshrun.Row, meshrun.Stats, string) {
			log := filepath.Join(dir, fmt.Sprint(bad))
			rows, stats := drive(t, meshrun.Config{Driver: library, Settings: []meshrun.Option{{Key: "log", Value: log}}}, seed, 150, bad)
			text, err := os.ReadFile(log)
			require.NoError(t, err)
			require.NoError(t, os.Remove(log))
			return rows, stats, string(text)
		}
		rows, stats, log := run(false)
		badRows, badStats, badLog := run(true)
		require.NotEmpty(t, log)
		require.Equal(t, len(rows), len(badRows), "seed %d", seed)
		for i := range rows {
			require.Equal(t, rows[i].Step, badRows[i].Step, "seed %d, row %d", seed, i)
			require.Equal(t, rows[i].Effects, badRows[i].Effects, "seed %d, row %d", seed, i)
		}
		require.Equal(t, stats, badStats, "seed %d", seed)
		lines, badLines := strings.Split(log, "\n"), strings.Split(badLog, "\n")
		require.Equal(t, len(lines), len(badLines), "seed %d", seed)
		for i := range lines {
			require.Equal(t, lines[i], badLines[i], "seed %d: the driver saw different calls", seed)
		}
	}
}

// TestShapesMakeNoSemaphores: the reference's count at open, 44 + 4 a link, and as many after a thousand shapes: pools are per axis, not per shape.
func TestShapesMakeNoSemaphores(t *testing.T) {
	ctx := context.Background()
	for _, links := range []int{1, 2, 4} {
		mesh, err := meshrun.Open(ctx, meshrun.Config{Driver: "null", Mesh: meshrun.MeshShape{Rows: 2, Cols: 4}, NumLinks: links})
		require.NoError(t, err)
		s, err := mesh.Stream("main")
		require.NoError(t, err)
		live := func() int {
			stats, err := mesh.Stats(ctx)
			require.NoError(t, err)
			return stats.Semaphores
		}
		require.Equal(t, 44+4*links, live())
		for i := range 1000 {
			x, err := s.Zeros(ctx, meshrun.Spec{Shape: meshrun.ShapeOf(1, 1+i%5, 8*(1+i), 32), DType: meshrun.BFloat16})
			require.NoError(t, err)
			y, err := s.AllGather(ctx, x, meshrun.AllGather{Dim: 3, MeshAxis: i % 2, UsePersistentBuffer: i%3 == 0})
			require.NoError(t, err)
			z, err := s.ReduceScatter(ctx, x, meshrun.ReduceScatter{Dim: 2, MeshAxis: i % 2, UsePersistentBuffer: i%3 == 0})
			require.NoError(t, err)
			for _, out := range []*meshrun.Tensor{x, y, z} {
				out.Release()
			}
		}
		require.NoError(t, s.Fence(ctx))
		require.Equal(t, 44+4*links, live(), "after 1,000 shapes")
		require.NoError(t, mesh.Close(ctx))
	}
}
