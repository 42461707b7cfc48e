package actors

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/messages"
)

// captureGathers captures n persistent gathers of x; the results are the caller's.
func captureGathers(t *testing.T, s *Stream, n int, x *Tensor) (*Trace, []*Tensor) {
	t.Helper()
	warm := make([]*Tensor, n) // as many banks as results are held
	for i := range warm {
		warm[i] = mustSubmit(t, s, persistent, x)
	}
	for _, w := range warm {
		require.NoError(t, w.Wait(limited(t)))
	}
	for _, w := range warm {
		w.Release()
	}
	require.NoError(t, s.BeginTrace(limited(t)))
	var out []*Tensor
	for range n {
		out = append(out, mustSubmit(t, s, persistent, x))
	}
	tr, err := s.EndTrace(limited(t))
	require.NoError(t, err)
	return tr, out
}

// finishEach has replays of some launches each retire one by one, as they are launched; `launched` were there before.
func finishEach(t *testing.T, f *fakeDevice, launched, launches uint64, replays int) {
	t.Helper()
	for range replays {
		launched += launches
		require.Eventually(t, func() bool { return f.count() >= launched }, 5*time.Second, time.Millisecond)
		f.finish(launched)
	}
}

// oddTrace replays a trace of three gathers five times with nothing retiring by itself and returns the device's log.
func oddTrace(t *testing.T, unfenced bool) (*fakeDevice, Stats) {
	f, r, s, x := single(t, nil)
	tr, out := captureGathers(t, s, 3, x)
	settle(t, r)
	r.thread.Do(func() { r.actor.unfencedReplays = unfenced })
	f.hold()
	for range 5 {
		require.NoError(t, tr.Execute(limited(t)))
	}
	settle(t, r)
	if !unfenced {
		assert.Less(t, f.count(), uint64(3+15), "the second replay waits behind a fence")
	}
	finishEach(t, f, 3, 3, 5)
	for _, y := range out {
		require.NoError(t, y.Wait(limited(t)))
		y.Release()
	}
	stats, err := r.Stats(limited(t))
	require.NoError(t, err)
	tr.Release()
	settle(t, r)
	return f, stats
}

// TestOddTraceIsFenced (field case A22): the last gather of a replay and the first of the next have the same semaphores.
func TestOddTraceIsFenced(t *testing.T) {
	f, stats := oddTrace(t, false)
	require.NoError(t, referee(f.log))
	assert.EqualValues(t, 4, stats.Reuse, "one between any two replays")
	assert.EqualValues(t, 18, stats.Launches)
	assert.Equal(t, 1, stats.Traces)
	assert.Zero(t, f.liveOf("trace"), "released")
}

// TestOddTraceWithoutTheFenceIsSeen: the rule switched off, the referee sees red.
func TestOddTraceWithoutTheFenceIsSeen(t *testing.T) {
	f, _ := oddTrace(t, true)
	require.ErrorContains(t, referee(f.log), "with no join of axis 1 and no fence between")
}

// TestReaderAtTheEndOfATrace: what the last launch of a trace reads, the first of the next replay writes.
func TestReaderAtTheEndOfATrace(t *testing.T) {
	f, r, s, x := single(t, nil)
	require.NoError(t, s.Prewarm(limited(t), "", gatherKey(32)))
	require.NoError(t, s.BeginTrace(limited(t)))
	y := mustSubmit(t, s, persistent, x)
	mustSubmit(t, s, gather, x) // turns the semaphores, and joins
	mustSubmit(t, s, local, y)
	tr, err := s.EndTrace(limited(t))
	require.NoError(t, err)
	f.hold()
	for range 3 {
		require.NoError(t, tr.Execute(limited(t)))
	}
	settle(t, r)
	finishEach(t, f, 0, 3, 3)
	require.NoError(t, tr.Wait(limited(t)))
	require.NoError(t, referee(f.log))
}

// TestEvenTraceNeedsNoFence: with two banks in turn replays follow one another as eager launches do.
func TestEvenTraceNeedsNoFence(t *testing.T) {
	f, r, s, x := single(t, nil)
	tr, _ := captureGathers(t, s, 4, x)
	before, _ := r.Stats(limited(t))
	for range 6 {
		require.NoError(t, tr.Execute(limited(t)))
	}
	require.NoError(t, tr.Wait(limited(t)))
	after, _ := r.Stats(limited(t))
	assert.Equal(t, before.Reuse, after.Reuse)
	require.NoError(t, referee(f.log))
}

// TestRules3And4WithTraces: traces of random operations are replayed among eager work of other streams, launches retiring late.
func TestRules3And4WithTraces(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	for round := range 6 {
		t.Run(fmt.Sprintf("seed=%d", seed+uint64(round)), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(round)))
			f := newFake(2, 4)
			r := start(t, f, func(c *Config) { c.Inflight = 2 + rng.IntN(20) })
			stop := retireLate(f)
			op := func(rng *rand.Rand) messages.Operation {
				a := rng.IntN(2)
				return []messages.Operation{
					messages.AllGather{Dim: 3, MeshAxis: a}, messages.AllGather{Dim: 3, MeshAxis: a, UsePersistentBuffer: true},
					messages.ReduceScatter{Dim: 3, MeshAxis: a, UsePersistentBuffer: true}, messages.ReduceScatter{Dim: 3, MeshAxis: a},
					messages.FusedDistributedNorm{MeshAxis: a}, local,
				}[rng.IntN(6)]
			}
			var callers sync.WaitGroup
			replays, captured := 0, 0
			for i := range 3 {
				s := stream(t, r, "")
				rng := rand.New(rand.NewPCG(seed, uint64(100*round+i)))
				callers.Go(func() {
					ctx := limited(t)
					x := &Tensor{}
					spec := messages.Spec{Shape: messages.ShapeOf(1, 1, 32, 240), DType: messages.BFloat16, Layout: messages.Tile, Memory: messages.DRAM}
					if !assert.NoError(t, s.Write(ctx, devicecgo.TensorSpec{Spec: spec}, messages.Replicate, nil, x)) {
						return
					}
					sequence := func(ops []messages.Operation) (all []*Tensor) {
						for _, op := range ops {
							y, err := submit(s, op, x)
							assert.NoError(t, err)
							all = append(all, y)
							if rng := rand.New(rand.NewPCG(seed, uint64(len(all)))); rng.IntN(2) == 0 {
								y.Release()
							}
						}
						return all
					}
					var traces []*Trace
					for range 3 {
						var ops []messages.Operation
						for range 1 + rng.IntN(6) {
							ops = append(ops, op(rng))
						}
						for _, y := range sequence(ops) {
							y.Release()
						}
						if !assert.NoError(t, s.BeginTrace(ctx)) {
							return
						}
						results := sequence(ops)
						tr, err := s.EndTrace(ctx)
						if errors.Is(err, messages.ErrInvalid) { // a trace of another stream holds the banks, or a fence would be needed inside
							for _, y := range results {
								y.Release()
							}
							continue
						}
						if !assert.NoError(t, err) {
							return
						}
						traces = append(traces, tr)
						f.mu.Lock()
						captured++
						f.mu.Unlock()
						for range 6 {
							if k := rng.IntN(len(traces) + 1); k < len(traces) {
								assert.NoError(t, traces[k].Execute(ctx))
								f.mu.Lock()
								replays++
								f.mu.Unlock()
							}
							y := mustSubmit(t, s, op(rng), x)
							y.Release()
						}
						for _, y := range results {
							y.Release()
						}
					}
					for _, tr := range traces {
						tr.Release() // some are in flight
					}
					assert.NoError(t, s.Fence(ctx))
				})
			}
			callers.Wait()
			stop()
			settle(t, r)
			require.NoError(t, referee(f.log))
			t.Logf("%d captured of 9, %d replays", captured, replays)
			assert.Positive(t, replays)
			assert.Zero(t, f.liveOf("trace"))
			stats, _ := r.Stats(limited(t))
			assert.Zero(t, stats.Traces)
		})
	}
}

// TestEagerWorkDoesNotGetATracesBanks: a trace holds them, released results or not, until it is released itself.
func TestEagerWorkDoesNotGetATracesBanks(t *testing.T) {
	f, _, s, x := single(t, nil)
	tr, out := captureGathers(t, s, 2, x)
	pinned := map[devicecgo.Handle]bool{}
	for _, y := range out {
		pinned[y.mem.bank.buffers[0].base] = true
		y.Release()
	}
	for range 6 {
		require.NoError(t, tr.Execute(limited(t)))
		y := mustSubmit(t, s, persistent, x)
		require.NoError(t, y.Wait(limited(t)))
		assert.NotContains(t, pinned, y.mem.bank.buffers[0].base)
		y.Release()
	}
	err := s.ReleaseBuffers(limited(t), "")
	require.ErrorIs(t, err, messages.ErrInvalid)
	assert.ErrorContains(t, err, "named by a trace; release the trace first")
	tr.Release()
	again := map[devicecgo.Handle]bool{}
	for range 6 {
		y := mustSubmit(t, s, persistent, x)
		require.NoError(t, y.Wait(limited(t)))
		again[y.mem.bank.buffers[0].base] = true
		y.Release()
	}
	for h := range pinned {
		assert.Contains(t, again, h, "a released trace gives its banks back")
	}
	require.NoError(t, s.ReleaseBuffers(limited(t), ""))
	require.NoError(t, referee(f.log))
}

// TestCaptureRefusesWhatWouldAllocate: a bank that does not exist yet is named, and nothing is half made; then it works.
func TestCaptureRefusesWhatWouldAllocate(t *testing.T) {
	f, r, s, x := single(t, nil)
	require.NoError(t, x.Wait(limited(t)))
	before, tensors := f.liveOf("semaphore"), f.liveOf("tensor")
	require.NoError(t, s.BeginTrace(limited(t)))
	ok := mustSubmit(t, s, gather, x)
	bad := mustSubmit(t, s, persistent, x)
	later := mustSubmit(t, s, local, bad)
	tr, err := s.EndTrace(limited(t))
	assert.Nil(t, tr)
	require.ErrorIs(t, err, messages.ErrInvalid)
	assert.ErrorContains(t, err, "ag(shape=[1, 1, 32, 64],dim=3,axis=1,dtype=bfloat16).bank0")
	assert.ErrorContains(t, err, "prewarm the key, or run the sequence once before BeginTrace")
	for _, y := range []*Tensor{ok, bad, later} {
		require.ErrorIs(t, y.Wait(limited(t)), messages.ErrPoisoned)
		_, err := submit(s, local, y)
		require.ErrorIs(t, err, messages.ErrPoisoned)
		y.Release()
	}
	require.NoError(t, s.Fence(limited(t)))
	assert.Equal(t, before, f.liveOf("semaphore"))
	assert.Equal(t, tensors, f.liveOf("tensor"))
	assert.Zero(t, f.liveOf("trace"))
	assert.Zero(t, f.count(), "nothing has run")

	require.NoError(t, s.Prewarm(limited(t), "", gatherKey(32)))
	require.NoError(t, s.BeginTrace(limited(t)))
	good := mustSubmit(t, s, persistent, x)
	tr, err = s.EndTrace(limited(t))
	require.NoError(t, err)
	require.NoError(t, tr.Execute(limited(t)))
	require.NoError(t, good.Wait(limited(t)))
	tr.Release()
	settle(t, r)
	require.NoError(t, referee(f.log))
}

// TestCaptureRefusesAFenceInside: np_region has one bank, which a second launch may use only when the first has retired: no trace can hold both.
func TestCaptureRefusesAFenceInside(t *testing.T) {
	f := newFake(2, 2)
	r := start(t, f, nil)
	s := stream(t, r, "s")
	x, w := &Tensor{}, &Tensor{}
	spec := messages.Spec{Shape: messages.ShapeOf(1, 3, 8, 6, 4), DType: messages.BFloat16, Layout: messages.RowMajor, Memory: messages.DRAM}
	require.NoError(t, s.Write(limited(t), devicecgo.TensorSpec{Spec: spec}, messages.Replicate, nil, x))
	spec.Shape, spec.Layout = messages.ShapeOf(9*4, 16), messages.Tile
	require.NoError(t, s.Write(limited(t), devicecgo.TensorSpec{Spec: spec}, messages.Replicate, nil, w))
	op := messages.NPConv3D{Axes: [2]int{0, 1}, Kernel: [3]int{1, 3, 3}, Padding: [3]int{0, 1, 1}}
	mustSubmit(t, s, op, x, w).Release()
	for n := 1; n <= 2; n++ {
		require.NoError(t, s.BeginTrace(limited(t)))
		for range n {
			mustSubmit(t, s, op, x, w).Release()
		}
		tr, err := s.EndTrace(limited(t))
		if n == 2 {
			require.ErrorIs(t, err, messages.ErrInvalid)
			assert.ErrorContains(t, err, "np_region")
			assert.ErrorContains(t, err, "launch 1 of the trace used it last; a trace holds no fence: split it there")
			continue
		}
		require.NoError(t, err)
		require.NoError(t, s.Fence(limited(t)))
		before, _ := r.Stats(limited(t))
		f.hold()
		launched := f.count()
		for range 3 {
			require.NoError(t, tr.Execute(limited(t)))
		}
		settle(t, r)
		finishEach(t, f, launched, 1, 3)
		require.NoError(t, tr.Wait(limited(t)))
		after, _ := r.Stats(limited(t))
		assert.Equal(t, before.Reuse+2, after.Reuse, "one launch between two fences each")
		tr.Release()
	}
	settle(t, r)
	require.NoError(t, referee(f.log))
}

// TestCaptureRefusesWaits: what cannot be captured is refused where it is asked for, and the capture goes on.
func TestCaptureRefusesWaits(t *testing.T) {
	f := newFake(1, 4)
	r := start(t, f, nil)
	s, other := stream(t, r, "s"), stream(t, r, "other")
	ctx := limited(t)
	x := upload(t, s, 1, 1, 32, 64)
	require.NoError(t, x.Wait(ctx))
	_, err := s.EndTrace(ctx)
	require.ErrorContains(t, err, "BeginTrace comes first")
	require.NoError(t, s.BeginTrace(ctx))
	y := mustSubmit(t, s, gather, x)
	_, readErr := s.Read(ctx, x, messages.Coord{})
	_, leaseErr := s.Lease(ctx, messages.GetSemaphores{Pool: messages.PoolAG, MeshAxis: 1}, "")
	_, getErr := submit(s, messages.GetSemaphores{Pool: messages.PoolAG, MeshAxis: 1})
	writeErr := s.Write(ctx, devicecgo.TensorSpec{Spec: x.spec}, messages.Replicate, nil, &Tensor{})
	for what, err := range map[string]error{"fence": s.Fence(ctx), "read": readErr, "lease": leaseErr, "getter": getErr, "write": writeErr,
		"reset": s.Reset(ctx, ""), "prewarm": s.Prewarm(ctx, "", gatherKey(32)), "release": s.ReleaseBuffers(ctx, ""), "begin": s.BeginTrace(ctx),
		"device_to_host": func() error { _, _, err := s.DeviceToHost(ctx, x, [2]int{messages.NoAxis, 3}, false, ""); return err }(),
		"rewrite":        s.Rewrite(ctx, x, messages.Replicate, make([]byte, 4096))} {
		require.ErrorIs(t, err, messages.ErrInvalid, what)
		assert.ErrorContains(t, err, "captures a trace", what)
	}
	require.ErrorContains(t, y.Wait(ctx), "holds nothing before the trace has been executed")
	_, err = submit(other, local, y)
	require.ErrorContains(t, err, "holds nothing before the trace has been executed")

	// Others wait: their operation comes behind the capture, and so does their read.
	z := mustSubmit(t, other, local, x)
	settle(t, r)
	assert.Zero(t, f.count())
	read := make(chan error, 1)
	go func() { _, err := other.Read(ctx, x, messages.Coord{}); read <- err }()
	tr, err := s.EndTrace(ctx)
	require.NoError(t, err)
	require.NoError(t, z.Wait(ctx))
	require.NoError(t, <-read)
	assert.EqualValues(t, 1, f.count())
	require.NoError(t, tr.Execute(ctx))
	require.NoError(t, y.Wait(ctx))
	u := mustSubmit(t, other, local, y)
	require.NoError(t, u.Wait(ctx))
	tr.Release()
	tr.Release()
	require.ErrorIs(t, tr.Execute(ctx), messages.ErrReleased)
	require.NoError(t, y.Wait(ctx), "a result outlives its trace")
	settle(t, r)
	assert.Zero(t, f.liveOf("trace"))
}

// TestReplayFailure: the failing launch is named; what reads the results is poisoned; the next replay is a new chance.
func TestReplayFailure(t *testing.T) {
	ctx := limited(t)
	f, _, s, x := single(t, nil)
	tr, out := captureGathers(t, s, 2, x)
	f.mu.Lock()
	f.fail[4] = fmt.Errorf("%w: told to", messages.ErrRejected)
	f.mu.Unlock()
	require.NoError(t, tr.Execute(ctx)) // launches 3 and 4
	dependent := mustSubmit(t, s, local, out[0])
	err := out[1].Wait(ctx)
	require.ErrorIs(t, err, messages.ErrRejected)
	assert.ErrorContains(t, err, "all_gather in a trace (stream s, launch 4)")
	require.ErrorIs(t, dependent.Wait(ctx), messages.ErrPoisoned)
	require.NoError(t, tr.Execute(ctx))
	require.NoError(t, out[1].Wait(ctx))
	require.NoError(t, tr.Wait(ctx))

	f.mu.Lock()
	f.traceErr = fmt.Errorf("%w: refused", messages.ErrRejected)
	f.mu.Unlock()
	launches := f.count()
	require.NoError(t, tr.Execute(ctx))
	require.ErrorContains(t, tr.Wait(ctx), "refused")
	assert.Equal(t, launches, f.count())
	require.NoError(t, tr.Execute(ctx))
	require.NoError(t, tr.Wait(ctx))
	require.NoError(t, referee(f.log))
}

// TestPoisonedCapture: what reads a failed operation cannot be captured, and a driver that cannot capture says so.
func TestPoisonedCapture(t *testing.T) {
	ctx := limited(t)
	f, _, s, x := single(t, nil)
	f.mu.Lock()
	f.fail[1] = fmt.Errorf("%w: told to", messages.ErrRejected)
	f.mu.Unlock()
	y := mustSubmit(t, s, local, x)
	require.Error(t, y.Wait(ctx))
	require.NoError(t, s.BeginTrace(ctx))
	z := mustSubmit(t, s, local, y)
	_, err := s.EndTrace(ctx)
	require.ErrorIs(t, err, messages.ErrPoisoned)
	require.ErrorIs(t, z.Wait(ctx), messages.ErrPoisoned)
	for range 2 { // begin, then end
		f.mu.Lock()
		f.traceErr = fmt.Errorf("%w: no traces here", messages.ErrUnsupported)
		f.mu.Unlock()
		require.NoError(t, s.BeginTrace(ctx))
		mustSubmit(t, s, local, x).Release()
		_, err = s.EndTrace(ctx)
		require.ErrorIs(t, err, messages.ErrUnsupported)
	}
	require.NoError(t, mustSubmit(t, s, local, x).Wait(ctx), "the mesh goes on")
	assert.Zero(t, f.liveOf("trace"))
}

// TestCaptureWithoutAnEnd: a stream that closes, or whose actor dies, while it captures does not hold up the others; nor does the mesh's end.
func TestCaptureWithoutAnEnd(t *testing.T) {
	for _, how := range []string{"close", "kill", "mesh", "lost", "canceled"} {
		t.Run(how, func(t *testing.T) {
			f := newFake(1, 4)
			r := start(t, f, nil)
			s, other := stream(t, r, "s"), stream(t, r, "other")
			ctx := limited(t)
			x := upload(t, other, 1, 1, 32, 64)
			require.NoError(t, x.Wait(ctx))
			require.NoError(t, s.BeginTrace(ctx))
			mustSubmit(t, s, gather, x)
			settle(t, r)
			y := mustSubmit(t, other, local, x)
			settle(t, r)
			switch how {
			case "close":
				s.Close()
			case "kill":
				require.NoError(t, r.Kill("stream/s"))
			case "mesh":
				require.NoError(t, r.Close(ctx))
				require.ErrorIs(t, y.Wait(ctx), messages.ErrClosed)
				_, err := s.EndTrace(ctx)
				require.ErrorIs(t, err, messages.ErrClosed)
				return
			case "lost":
				r.thread.Do(func() { r.actor.lose(fmt.Errorf("%w: told to", messages.ErrDeviceLost)) })
				require.ErrorIs(t, y.Wait(ctx), messages.ErrDeviceLost)
				return
			case "canceled":
				canceled, cancel := context.WithCancel(ctx)
				cancel()
				if tr, err := s.EndTrace(canceled); err == nil {
					tr.Release()
				}
			}
			require.NoError(t, y.Wait(ctx))
			settle(t, r)
			assert.Zero(t, f.liveOf("trace"))
		})
	}
}

// TestCloseWithLiveTraces: in flight and at rest.
func TestCloseWithLiveTraces(t *testing.T) {
	f, r, s, x := single(t, nil)
	tr, out := captureGathers(t, s, 2, x)
	for range 3 {
		require.NoError(t, tr.Execute(limited(t)))
	}
	require.NoError(t, tr.Wait(limited(t)))
	f.hold()
	require.NoError(t, tr.Execute(limited(t)))
	settle(t, r)
	ctx, cancel := context.WithCancel(limited(t))
	cancel()
	require.NoError(t, r.Close(ctx), "what is in flight has no time left")
	require.ErrorIs(t, tr.Wait(limited(t)), messages.ErrClosed)
	require.ErrorIs(t, tr.Execute(limited(t)), messages.ErrClosed)
	assert.Equal(t, 1, f.closed)
	tr.Release()
	for _, y := range out {
		y.Release()
	}
}

// TestTraceKeepsItsMemory: inputs and results that the caller has released are freed with the trace, behind its last launch.
func TestTraceKeepsItsMemory(t *testing.T) {
	ctx := limited(t)
	f, r, s, x := single(t, nil)
	require.NoError(t, x.Wait(ctx))
	require.NoError(t, s.BeginTrace(ctx))
	y := mustSubmit(t, s, gather, x)
	z := mustSubmit(t, s, local, y)
	tr, err := s.EndTrace(ctx)
	require.NoError(t, err)
	for _, u := range []*Tensor{x, y, z} {
		u.Release()
	}
	settle(t, r)
	assert.Equal(t, 3, f.liveOf("tensor"))
	f.hold()
	require.NoError(t, tr.Execute(ctx))
	tr.Release()
	settle(t, r)
	assert.Equal(t, 3, f.liveOf("tensor"), "in flight")
	assert.Equal(t, 1, f.liveOf("trace"))
	f.finish(2)
	require.Eventually(t, func() bool { return f.liveOf("tensor") == 0 && f.liveOf("trace") == 0 }, 5*time.Second, time.Millisecond)
	at := func(kind string) (first int) {
		for i, e := range f.log {
			if e.kind == kind {
				return i
			}
		}
		return -1
	}
	assert.Less(t, at("free trace"), at("free"), "the trace goes first")
}

// TestTraceJournal: begin, what is captured, end and execute each have their row, with the calls made.
func TestTraceJournal(t *testing.T) {
	f, r, s, x := single(t, func(c *Config) { c.Record = true })
	tr, _ := captureGathers(t, s, 3, x)
	f.hold()
	for range 2 {
		require.NoError(t, tr.Execute(limited(t)))
	}
	settle(t, r)
	finishEach(t, f, 3, 3, 2)
	require.NoError(t, tr.Wait(limited(t)))
	var got []string
	for _, row := range r.Journal()[4:] { // behind open and the warm-up
		line := row.Step
		for _, e := range row.Effects {
			line += " " + e.Call
			if e.Call == "execute_trace" {
				line += fmt.Sprint(" ", e.Get("launches"), " from ", e.Get("first"))
			}
		}
		got = append(got, line)
	}
	assert.Equal(t, []string{"begin_trace begin_trace", "all_gather all_gather", "all_gather all_gather", "all_gather all_gather", "end_trace end_trace",
		"execute_trace execute_trace 3 from 4", "execute_trace synchronize execute_trace 3 from 7"}, got)
}

// TestTraceUnderRotate: the reference's policy lends nothing, so eager gathers of the key meet the trace's banks; rule 4 holds all the same.
func TestTraceUnderRotate(t *testing.T) {
	for eager := range 4 {
		f, r, s, x := single(t, func(c *Config) { c.Policy = messages.Rotate })
		tr, out := captureGathers(t, s, 3, x)
		f.hold()
		for range 4 {
			require.NoError(t, tr.Execute(limited(t)))
			mustSubmit(t, s, local, out[2])
			for range eager {
				mustSubmit(t, s, persistent, x)
			}
		}
		last := mustSubmit(t, s, local, out[2])
		for !last.producer.done() {
			settle(t, r)
			f.finish(f.count())
		}
		require.NoError(t, referee(f.log), "%d eager gathers between two replays", eager)
	}
}

// TestOthersWaitInTheirQueues: while a stream captures, what others submit stays in their bounded queues.
func TestOthersWaitInTheirQueues(t *testing.T) {
	f := newFake(1, 4)
	r := start(t, f, func(c *Config) { c.Queue, c.Refuse = 3, true })
	s, other := stream(t, r, "s"), stream(t, r, "other")
	x := upload(t, s, 1, 1, 32, 64)
	require.NoError(t, x.Wait(limited(t)))
	require.NoError(t, s.BeginTrace(limited(t)))
	mustSubmit(t, s, gather, x)
	settle(t, r)
	var last *Tensor
	for range 3 {
		last = mustSubmit(t, other, local, x)
	}
	_, err := submit(other, local, x)
	require.ErrorIs(t, err, messages.ErrQueueFull)
	_, err = s.EndTrace(limited(t))
	require.NoError(t, err)
	require.NoError(t, last.Wait(limited(t)))
}
