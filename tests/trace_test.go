package tests

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/tests/testdriver"
)

// traced is one mesh with a stream, for traces.
type traced struct {
	t    *testing.T
	ctx  context.Context
	mesh *meshrun.Mesh
	s    *meshrun.Stream
	rng  *rand.Rand
}

func openTraced(t *testing.T, c meshrun.Config) *traced {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	mesh, err := meshrun.Open(ctx, c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, mesh.Close(context.Background())) })
	s, err := mesh.Stream("main")
	require.NoError(t, err)
	if c.Lockstep {
		mesh.Together(s)
	}
	return &traced{t, ctx, mesh, s, rand.New(rand.NewPCG(c.Seed, 22))}
}

func (m *traced) must(x *meshrun.Tensor, err error) *meshrun.Tensor {
	m.t.Helper()
	require.NoError(m.t, err)
	return x
}

// array makes a random one; on the mesh it is cut along dim over axis 1.
func (m *traced) array(dtype meshrun.DType, dims ...int) (unsharded, meshrun.Array) {
	w := randomWhole(m.rng, dims, dtype)
	return w, meshrun.Array{Shape: meshrun.ShapeOf(dims...), DType: dtype, Data: encode(w.values, dtype)}
}

func (m *traced) upload(a meshrun.Array, dim int) *meshrun.Tensor {
	return m.must(m.s.Upload(m.ctx, a, meshrun.ShardOn(1, dim)))
}

// read is what the device in each column of row 0 holds.
func (m *traced) read(x *meshrun.Tensor) (all [][]byte) {
	m.t.Helper()
	for c := range m.mesh.Info().Mesh.Cols {
		b, err := m.s.Read(m.ctx, x, meshrun.Coord{Col: c})
		require.NoError(m.t, err)
		all = append(all, b)
	}
	return all
}

// everywhere: each device holds the whole array.
func (m *traced) everywhere(x *meshrun.Tensor, a meshrun.Array, what string) {
	m.t.Helper()
	for c, b := range m.read(x) {
		require.Equal(m.t, a.Data, b, "%s, column %d", what, c)
	}
}

var tracedGather = meshrun.AllGather{Dim: 3, MeshAxis: 1, UsePersistentBuffer: true}

// TestOddTraceStaysRight is field case A22: three persistent gathers of one shape, captured once and replayed five times with new inputs, under
// lag, and with eager gathers of the same key between the replays, whose results are held.
func TestOddTraceStaysRight(t *testing.T) {
	for _, topology := range []meshrun.Topology{meshrun.Linear, meshrun.Ring} {
		for _, eager := range []bool{false, true} {
			for seed := uint64(1); seed <= 4; seed++ {
				t.Run(fmt.Sprintf("%s,eager=%v,seed=%d", topology, eager, seed), func(t *testing.T) {
					m := openTraced(t, meshrun.Config{Mesh: meshrun.MeshShape{Rows: 2, Cols: 4}, Topology: topology, Seed: seed, Lockstep: true,
						Settings: []meshrun.Option{{Key: "skew_us", Value: "300"}}})
					lag := rand.New(rand.NewPCG(seed, 1))
					for n := 1; n <= 40; n += 1 + lag.IntN(3) {
						require.NoError(t, m.mesh.Inject(m.ctx, fmt.Sprintf("device %d,%d delay %dus at launch %d", lag.IntN(2), lag.IntN(4), 50+lag.IntN(2000), n)))
					}
					var in, out []*meshrun.Tensor
					for range 3 {
						_, a := m.array(meshrun.BFloat16, 1, 1, 32, 256)
						in = append(in, m.upload(a, 3))
					}
					for _, x := range in { // run once: the pool grows to three banks
						out = append(out, m.must(m.s.AllGather(m.ctx, x, tracedGather)))
					}
					for _, y := range out {
						require.NoError(t, y.Wait(m.ctx))
					}
					for _, y := range out {
						y.Release()
					}
					require.NoError(t, m.s.BeginTrace(m.ctx))
					out = nil
					for _, x := range in {
						out = append(out, m.must(m.s.AllGather(m.ctx, x, tracedGather)))
					}
					trace, err := m.s.EndTrace(m.ctx)
					require.NoError(t, err)

					type held struct {
						y *meshrun.Tensor
						a meshrun.Array
					}
					var eagers []held
					for replay := range 5 {
						var arrays []meshrun.Array
						for _, x := range in {
							_, a := m.array(meshrun.BFloat16, 1, 1, 32, 256)
							arrays = append(arrays, a)
							require.NoError(t, m.s.Write(m.ctx, x, a, meshrun.ShardOn(1, 3)))
						}
						require.NoError(t, trace.Execute(m.ctx))
						if eager {
							for range 1 + replay%2 {
								_, a := m.array(meshrun.BFloat16, 1, 1, 32, 256)
								x := m.upload(a, 3)
								eagers = append(eagers, held{m.must(m.s.AllGather(m.ctx, x, tracedGather)), a})
								x.Release()
							}
						}
						if replay%2 == 0 { // at times two replays follow one another at once
							for i, y := range out {
								m.everywhere(y, arrays[i], fmt.Sprintf("replay %d, gather %d", replay, i))
							}
						}
					}
					for i, h := range eagers {
						m.everywhere(h.y, h.a, fmt.Sprintf("eager gather %d", i))
						h.y.Release()
					}
					trace.Release()
					require.ErrorIs(t, trace.Execute(m.ctx), meshrun.ErrReleased)
					for _, x := range append(in, out...) {
						x.Release()
					}
					require.NoError(t, m.s.Fence(m.ctx))
					require.NoError(t, m.s.ReleaseBuffers(m.ctx))
					stats, err := m.mesh.Stats(m.ctx)
					require.NoError(t, err)
					assert.Zero(t, stats.Buffers, "a released trace holds nothing")
					assert.Zero(t, stats.Traces)
					m.s.Close()
				})
			}
		}
	}
}

// TestTraceOfABlock: ring attention, reduce_scatter both ways, a norm over a sharded width and local work in one trace give the very bytes of the same
// calls without one.
func TestTraceOfABlock(t *testing.T) {
	m := openTraced(t, meshrun.Config{Mesh: meshrun.MeshShape{Rows: 1, Cols: 4}, Topology: meshrun.Ring, Seed: 5})
	_, a := m.array(meshrun.BFloat16, 1, 2, 128, 32)
	x := m.upload(a, 2)
	block := func(x *meshrun.Tensor) (results []*meshrun.Tensor) {
		attention, _, err := m.s.RingJointSDPA(m.ctx, x, x, x, nil, nil, nil, meshrun.RingJointSDPA{MeshAxis: 1})
		require.NoError(t, err)
		again, _, err := m.s.RingJointSDPA(m.ctx, attention, x, attention, nil, nil, nil, meshrun.RingJointSDPA{MeshAxis: 1})
		require.NoError(t, err)
		flat := m.must(m.s.Reshape(m.ctx, again, 1, 1, 64, 32))
		scattered := m.must(m.s.ReduceScatter(m.ctx, flat, meshrun.ReduceScatter{Dim: 2, MeshAxis: 1, UsePersistentBuffer: true}))
		fresh := m.must(m.s.ReduceScatter(m.ctx, flat, meshrun.ReduceScatter{Dim: 2, MeshAxis: 1}))
		sum := m.must(m.s.Add(m.ctx, scattered, fresh))
		norm := m.must(m.s.FusedDistributedNorm(m.ctx, sum, nil, nil, nil, nil, meshrun.FusedDistributedNorm{MeshAxis: 1, Epsilon: 1e-6}))
		for _, y := range []*meshrun.Tensor{flat, scattered} {
			y.Release()
		}
		return []*meshrun.Tensor{attention, again, fresh, sum, norm}
	}
	release := func(all []*meshrun.Tensor) {
		for _, y := range all {
			y.Release()
		}
	}
	release(block(x))
	require.NoError(t, m.s.BeginTrace(m.ctx))
	results := block(x)
	trace, err := m.s.EndTrace(m.ctx)
	require.NoError(t, err)
	for replay := range 4 {
		_, a := m.array(meshrun.BFloat16, 1, 2, 128, 32)
		require.NoError(t, m.s.Write(m.ctx, x, a, meshrun.ShardOn(1, 2)))
		require.NoError(t, trace.Execute(m.ctx))
		plain := m.upload(a, 2)
		expected := block(plain)
		for i := range results {
			require.Equal(t, m.read(expected[i]), m.read(results[i]), "replay %d, result %d", replay, i)
		}
		release(append(expected, plain))
	}
	release(append(results, x))
	trace.Release()
}

// TestTraceOfHalos: exchanges that write in place, into padded persistent buffers and into memory of their own; with a write into a tensor that the trace
// itself changes.
func TestTraceOfHalos(t *testing.T) {
	for seed := uint64(1); seed <= 3; seed++ {
		m := openTraced(t, meshrun.Config{Mesh: meshrun.MeshShape{Rows: 2, Cols: 2}, Seed: seed, Lockstep: true, Settings: []meshrun.Option{{Key: "skew_us", Value: "200"}}})
		index := func(v ...int) meshrun.Index { i, err := meshrun.IndexOf(v...); require.NoError(t, err); return i }
		pad := meshrun.NeighborPad{Dims: index(2, 3), Axes: index(0, 1), PadLeft: index(1, 1), PadRight: index(1, 1)}
		halo := meshrun.NeighborPadHalo{Dims: index(2, 3), Axes: index(0, 1), PadLeft: index(1, 1), PadRight: index(1, 1)}
		inPlace := halo
		inPlace.InputPadH, inPlace.InputPadW = 1, 1
		dist := meshrun.Distribution{2, 3}
		fill := func() meshrun.Array {
			_, a := m.array(meshrun.BFloat16, 1, 2, 16, 12, 16)
			a.Layout = meshrun.RowMajor
			return a
		}
		upload := func(a meshrun.Array) *meshrun.Tensor { return m.must(m.s.Upload(m.ctx, a, dist)) }
		run := func(x *meshrun.Tensor) []*meshrun.Tensor {
			p := pad
			fresh := m.must(m.s.NeighborPad(m.ctx, x, p))
			p.UsePersistentBuffer = true
			kept := m.must(m.s.NeighborPad(m.ctx, x, p))
			scattered := m.must(m.s.NeighborPadHaloScatter(m.ctx, x, halo, false))
			bordered := m.must(m.s.NeighborPadHaloScatter(m.ctx, x, inPlace, true))
			return []*meshrun.Tensor{fresh, kept, scattered, bordered}
		}
		release := func(all []*meshrun.Tensor) {
			for _, y := range all {
				y.Release()
			}
		}
		x := upload(fill())
		release(run(x))
		require.NoError(t, m.s.BeginTrace(m.ctx))
		results := run(x)
		trace, err := m.s.EndTrace(m.ctx)
		require.NoError(t, err)
		for replay := range 3 {
			a := fill()
			require.NoError(t, m.s.Write(m.ctx, x, a, dist))
			require.NoError(t, trace.Execute(m.ctx))
			plain := upload(a)
			expected := run(plain)
			for i := range results {
				require.Equal(t, m.read(expected[i]), m.read(results[i]), "seed %d, replay %d, result %d", seed, replay, i)
			}
			release(append(expected, plain))
		}
		release(append(results, x))
		trace.Release()
		m.s.Close()
	}
}

// TestNewPoolInACapture: nothing can be allocated then; the error says for what and what to do, and doing it helps.
func TestNewPoolInACapture(t *testing.T) {
	m := openTraced(t, meshrun.Config{Mesh: meshrun.MeshShape{Rows: 1, Cols: 2}})
	_, a := m.array(meshrun.BFloat16, 1, 1, 32, 64)
	x := m.upload(a, 3)
	capture := func() (*meshrun.Trace, *meshrun.Tensor, error) {
		require.NoError(t, m.s.BeginTrace(m.ctx))
		y := m.must(m.s.AllGather(m.ctx, x, tracedGather))
		trace, err := m.s.EndTrace(m.ctx)
		return trace, y, err
	}
	_, y, err := capture()
	require.ErrorIs(t, err, meshrun.ErrInvalid)
	require.EqualError(t, err, "all_gather (stream main): all_gather: buffer ag(shape=[1, 1, 32, 32],dim=3,axis=1,dtype=bfloat16).bank0: "+
		"exists before a trace that uses it is captured: nothing is allocated while one is; prewarm the key, or run the sequence once before BeginTrace")
	y.Release()
	require.NoError(t, m.s.Prewarm(m.ctx, meshrun.BufferKey{Kind: messages.BufferAG, Shape: meshrun.ShapeOf(1, 1, 32, 32), Dim: 3, Axis: 1, DType: meshrun.BFloat16}))
	trace, y, err := capture()
	require.NoError(t, err)
	require.NoError(t, trace.Execute(m.ctx))
	m.everywhere(y, a, "after prewarm")
	trace.Release()
}

// TestTwoCapturesAtOnce: the second begins when the first has ended, whatever order the callers wait in.
func TestTwoCapturesAtOnce(t *testing.T) {
	for seed := range uint64(20) {
		m := openTraced(t, meshrun.Config{Mesh: meshrun.MeshShape{Rows: 1, Cols: 4}, Seed: seed})
		_, a := m.array(meshrun.BFloat16, 1, 1, 32, 256)
		x := m.upload(a, 3)
		m.must(m.s.AllGather(m.ctx, x, tracedGather)).Release()
		require.NoError(t, m.s.Fence(m.ctx))
		second, err := m.mesh.Stream("second")
		require.NoError(t, err)
		require.NoError(t, m.s.BeginTrace(m.ctx))
		m.must(m.s.AllGather(m.ctx, x, tracedGather))
		require.NoError(t, second.BeginTrace(m.ctx))
		y := m.must(second.AllGather(m.ctx, x, tracedGather))
		ended, err := m.s.EndTrace(m.ctx)
		require.NoError(t, err)
		require.NoError(t, ended.Execute(m.ctx))
		trace, err := second.EndTrace(m.ctx)
		require.NoError(t, err)
		require.NoError(t, trace.Execute(m.ctx))
		require.NoError(t, trace.Wait(m.ctx))
		m.everywhere(y, a, "the second's")
		require.NoError(t, ended.Wait(m.ctx))
		m.s.Close()
		second.Close()
	}
}

// TestAnEndThatIsCanceledEndsTheCapture: or the others would wait for ever.
func TestAnEndThatIsCanceledEndsTheCapture(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	mesh, err := meshrun.Open(ctx, meshrun.Config{Mesh: meshrun.MeshShape{Rows: 1, Cols: 2}, Lockstep: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, mesh.Close(context.Background())) }()
	s, err := mesh.Stream("captures")
	require.NoError(t, err)
	other, err := mesh.Stream("other")
	require.NoError(t, err)
	mesh.Together(s, other)
	require.NoError(t, s.BeginTrace(ctx)) // now it is the other's turn
	canceled, stop := context.WithCancel(ctx)
	stop()
	_, err = s.EndTrace(canceled)
	require.ErrorIs(t, err, context.Canceled)
	a, err := meshrun.Floats(meshrun.ShapeOf(1, 2), meshrun.Float32, []float32{1, 2})
	require.NoError(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		x, err := other.Upload(ctx, a, meshrun.ShardOn(1, 1))
		assert.NoError(t, err)
		assert.NoError(t, other.Wait(ctx, x))
		other.Close()
	})
	_, err = s.Upload(ctx, a, meshrun.ShardOn(1, 1))
	assert.NoError(t, err, "it captures no more")
	s.Close()
	all.Wait()
}

// TestReplayOnALostDevice: everybody is told at once, and the mesh closes with the trace alive.
func TestReplayOnALostDevice(t *testing.T) {
	m := openTraced(t, meshrun.Config{Mesh: meshrun.MeshShape{Rows: 1, Cols: 4}})
	_, a := m.array(meshrun.BFloat16, 1, 1, 32, 256)
	x := m.upload(a, 3)
	require.NoError(t, m.s.BeginTrace(m.ctx))
	y := m.must(m.s.AllGather(m.ctx, x, meshrun.AllGather{Dim: 3, MeshAxis: 1}))
	z := m.must(m.s.Add(m.ctx, y, y))
	trace, err := m.s.EndTrace(m.ctx)
	require.NoError(t, err)
	require.NoError(t, trace.Execute(m.ctx))
	m.everywhere(y, a, "first replay")
	require.NoError(t, m.mesh.Inject(m.ctx, "device 0,2 stop at launch 5"))
	require.NoError(t, trace.Execute(m.ctx)) // launches 3 and 4
	require.NoError(t, z.Wait(m.ctx))
	require.NoError(t, trace.Execute(m.ctx))
	err = trace.Wait(m.ctx)
	require.ErrorIs(t, err, meshrun.ErrTimeout)
	assert.ErrorContains(t, err, "launch 5 (all_gather)")
	if err := trace.Execute(m.ctx); err == nil {
		require.Error(t, trace.Wait(m.ctx))
	}
	require.Error(t, z.Wait(m.ctx))
}

// TestTraceCallsReachTheDriver: through the ABI, with their numbers.
func TestTraceCallsReachTheDriver(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	m := openTraced(t, meshrun.Config{Driver: testdriver.Build(t), Mesh: meshrun.MeshShape{Rows: 1, Cols: 4}, Settings: []meshrun.Option{{Key: "log", Value: log}}})
	x := m.must(m.s.Zeros(m.ctx, meshrun.Spec{Shape: meshrun.ShapeOf(1, 1, 32, 64), DType: meshrun.BFloat16}))
	m.must(m.s.AllGather(m.ctx, x, meshrun.AllGather{Dim: 3, MeshAxis: 1}))
	require.NoError(t, m.s.BeginTrace(m.ctx))
	for range 2 {
		m.must(m.s.AllGather(m.ctx, x, meshrun.AllGather{Dim: 3, MeshAxis: 1}))
	}
	trace, err := m.s.EndTrace(m.ctx)
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, trace.Execute(m.ctx))
	}
	require.NoError(t, trace.Wait(m.ctx))
	trace.Release()
	require.NoError(t, m.s.Fence(m.ctx))
	require.NoError(t, m.mesh.Close(m.ctx))

	f, err := os.Open(log)
	require.NoError(t, err)
	defer f.Close()
	var got []string
	var handle any
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var call map[string]any
		require.NoError(t, json.Unmarshal(lines.Bytes(), &call))
		switch call["call"] {
		case "trace_begin":
			handle = call["trace"]
			got = append(got, fmt.Sprint("begin on queue ", call["queue"]))
		case "trace_end", "trace_free":
			assert.Equal(t, handle, call["trace"])
			got = append(got, fmt.Sprint(call["call"]))
		case "trace_execute":
			assert.Equal(t, handle, call["trace"])
			got = append(got, fmt.Sprint("execute on queue ", call["queue"], " from ", call["first_launch"]))
		}
	}
	assert.Equal(t, []string{"begin on queue 0", "trace_end", "execute on queue 0 from 2", "execute on queue 0 from 4", "trace_free"}, got)
}
