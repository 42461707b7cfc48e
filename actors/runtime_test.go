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
	"go.uber.org/goleak"

	"github.com/meshrun/meshrun/axis"
	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/messages"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limited gives a test ten seconds: a wait that never ends is a failure, not a hang of the suite.
func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func start(t *testing.T, f *fakeDevice, mutate func(*Config)) *Runtime {
	t.Helper()
	cfg := Config{Open: func() (devicecgo.Device, error) { return f, nil }}
	if mutate != nil {
		mutate(&cfg)
	}
	r, err := Start(limited(t), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		f.finish(1 << 60)
		require.NoError(t, r.Close(context.Background()))
		assert.Equal(t, 1, f.closed, "the mesh is closed exactly once")
	})
	return r
}

func stream(t *testing.T, r *Runtime, name string) *Stream {
	t.Helper()
	s, err := r.Stream(name)
	require.NoError(t, err)
	return s
}

// single is a mesh of one line with a stream, "s", and a tensor.
func single(t *testing.T, mutate func(*Config)) (*fakeDevice, *Runtime, *Stream, *Tensor) {
	t.Helper()
	f := newFake(1, 4)
	r := start(t, f, mutate)
	s := stream(t, r, "s")
	return f, r, s, upload(t, s, 1, 1, 32, 64)
}

// retireLate has the device finish its launches by and by, until stop is called.
func retireLate(f *fakeDevice) (stop func()) {
	f.hold()
	stopped := make(chan struct{})
	var device sync.WaitGroup
	device.Go(func() {
		for {
			select {
			case <-stopped:
				return
			default:
				f.finish(f.count() - min(f.count(), uint64(3)))
				time.Sleep(200 * time.Microsecond) // the pace of the device, not a synchronisation
				f.finish(f.count())
			}
		}
	})
	return func() {
		close(stopped)
		device.Wait()
	}
}

// submit is Submit of an operation of one result.
func submit(s *Stream, op messages.Operation, in ...*Tensor) (*Tensor, error) {
	out := &Tensor{}
	_, err := s.Submit(context.Background(), Call{Op: op, In: in}, []*Tensor{out, {}})
	return out, err
}

func index(v ...int) messages.Index {
	i, err := messages.IndexOf(v...)
	if err != nil {
		panic(err)
	}
	return i
}

func mustSubmit(t *testing.T, s *Stream, op messages.Operation, in ...*Tensor) *Tensor {
	t.Helper()
	out, err := submit(s, op, in...)
	require.NoError(t, err)
	return out
}

func upload(t *testing.T, s *Stream, dims ...int) *Tensor {
	t.Helper()
	return input(t, s, dims...)
}

// settle waits until the mesh's thread has nothing to do: all that was sent has been dealt with.
func settle(t *testing.T, r *Runtime) {
	t.Helper()
	rest := make(chan struct{})
	require.True(t, r.thread.WhenIdle(func() { close(rest) }))
	<-rest
}

var (
	gather     = messages.AllGather{Dim: 3, MeshAxis: 1}
	persistent = messages.AllGather{Dim: 3, MeshAxis: 1, UsePersistentBuffer: true}
	scatter    = messages.ReduceScatter{Dim: 3, MeshAxis: 1, UsePersistentBuffer: true}
	local      = messages.Activation{Fn: messages.SiLU}
)

// TestOpenMakesTheEagerPools: 44 + 4·links semaphores on two axes, and one fence behind them (design 6).
func TestOpenMakesTheEagerPools(t *testing.T) {
	for _, links := range []int{1, 2, 4} {
		f := newFake(2, 4)
		r := start(t, f, func(c *Config) { c.NumLinks = links })
		stats, err := r.Stats(limited(t))
		require.NoError(t, err)
		assert.Equal(t, 44+4*links, stats.Semaphores)
		assert.Equal(t, 44+4*links, f.liveOf("semaphore"))
		assert.EqualValues(t, 1, stats.Fences)
	}
}

// TestBanksAlternate: steady alternation of two banks needs no fence, and the launches of a stream keep their order.
func TestBanksAlternate(t *testing.T) {
	f := newFake(2, 4)
	f.manual = true
	r := start(t, f, nil)
	f.finish(0)
	s := stream(t, r, "s")
	x := upload(t, s, 1, 1, 32, 64)
	var last *Tensor
	for range 20 {
		last = mustSubmit(t, s, gather, x)
	}
	require.Eventually(t, func() bool { return f.count() == 20 }, 5*time.Second, time.Millisecond)
	f.finish(20)
	require.NoError(t, last.Wait(limited(t)))
	stats, _ := r.Stats(limited(t))
	assert.Zero(t, stats.Reuse, "alternating banks need no fence")
	var sems []devicecgo.Handle
	for _, e := range f.log {
		if a, ok := e.args.(devicecgo.AllGather); ok {
			sems = append(sems, a.Semaphores[0])
			assert.NotZero(t, a.Barrier, "without a persistent buffer a barrier is taken")
		}
	}
	for i := 2; i < len(sems); i++ {
		assert.Equal(t, sems[i-2], sems[i])
		assert.NotEqual(t, sems[i-1], sems[i])
	}
	require.NoError(t, referee(f.log))
}

// TestGetterForcesAFence: a getter that turns the bank between two launches breaks alternation; the runtime fences (rule 4).
func TestGetterForcesAFence(t *testing.T) {
	f := newFake(2, 4)
	r := start(t, f, func(c *Config) { c.Policy = messages.Rotate })
	s := stream(t, r, "s")
	x := upload(t, s, 1, 1, 32, 64)
	f.hold()
	mustSubmit(t, s, gather, x)
	mustSubmit(t, s, messages.GetSemaphores{Pool: messages.PoolAG, MeshAxis: 1})
	mustSubmit(t, s, messages.GetSemaphores{Pool: messages.PoolBarrier, MeshAxis: 1})
	y := mustSubmit(t, s, gather, x)
	require.Eventually(t, func() bool { return f.count() == 1 }, 5*time.Second, time.Millisecond)
	settle(t, r)
	require.EqualValues(t, 1, f.count(), "the launch waits behind the fence")
	f.finish(1)
	require.Eventually(t, func() bool { return f.count() == 2 }, 5*time.Second, time.Millisecond)
	f.finish(2)
	require.NoError(t, y.Wait(limited(t)))
	stats, _ := r.Stats(limited(t))
	assert.EqualValues(t, 1, stats.Reuse)
	require.NoError(t, referee(f.log))
}

// TestRefereeSeesRed: the referee of the random test below finds what it is there for.
func TestRefereeSeesRed(t *testing.T) {
	ag := func(launch uint64, sem devicecgo.Handle) entry {
		return entry{kind: "launch", launch: launch, args: devicecgo.AllGather{Axis: 1, Semaphores: [2]devicecgo.Handle{sem, sem + 1}, Output: 90 + sem}}
	}
	require.Error(t, referee([]entry{ag(1, 10), ag(2, 10)}), "one bank twice in a row")
	require.NoError(t, referee([]entry{ag(1, 10), ag(2, 20), ag(3, 10)}), "two banks in turn")
	require.NoError(t, referee([]entry{ag(1, 10), {kind: "fence", upTo: 1}, ag(2, 10)}))
	require.Error(t, referee([]entry{{kind: "create", handle: 10}, ag(1, 10)}), "unfenced creation")
	act := entry{kind: "launch", launch: 3, args: devicecgo.Activation{Input: 100, Output: 101}}
	require.Error(t, referee([]entry{ag(1, 10), ag(2, 20), act, {kind: "launch", launch: 4,
		args: devicecgo.AllGather{Axis: 1, Semaphores: [2]devicecgo.Handle{10, 11}, Output: 100}}}), "a result read after the next gather of its key")
}

// TestRules3And4UnderRandomStreams drives random operations from several streams, holding and releasing results at random, with launches
// retiring late, and lets the referee read the log.
func TestRules3And4UnderRandomStreams(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	for round := range 8 {
		t.Run(fmt.Sprintf("seed=%d", seed+uint64(round)), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(round)))
			f := newFake(2+rng.IntN(3), 2+rng.IntN(3))
			r := start(t, f, func(c *Config) { c.Inflight = 1 + rng.IntN(20) })
			stop := retireLate(f)
			var callers sync.WaitGroup
			for i := range 4 {
				s := stream(t, r, "")
				rng := rand.New(rand.NewPCG(seed, uint64(100*round+i)))
				callers.Go(func() {
					x := &Tensor{}
					spec := messages.Spec{Shape: messages.ShapeOf(1, 1, 32, 240), DType: messages.BFloat16, Layout: messages.Tile, Memory: messages.DRAM}
					if !assert.NoError(t, s.Write(context.Background(), devicecgo.TensorSpec{Spec: spec}, messages.Replicate, nil, x)) {
						return
					}
					rowMajor, weights := &Tensor{}, [2]*Tensor{{}, {}}
					spec.Layout = messages.RowMajor
					assert.NoError(t, s.Write(context.Background(), devicecgo.TensorSpec{Spec: spec}, messages.Replicate, nil, rowMajor))
					for a := range weights {
						spec := messages.Spec{Shape: messages.ShapeOf(240*r.mesh.Shape.Axis(a), 32), DType: messages.BFloat16, Layout: messages.Tile, Memory: messages.DRAM}
						assert.NoError(t, s.Write(context.Background(), devicecgo.TensorSpec{Spec: spec}, messages.Replicate, nil, weights[a]))
					}
					var held []*Tensor
					for range 200 {
						in := x
						var op messages.Operation
						a := rng.IntN(2)
						switch rng.IntN(11) {
						case 0:
							op = messages.AllGather{Dim: 3, MeshAxis: a}
						case 1:
							op = messages.AllGather{Dim: 3, MeshAxis: a, UsePersistentBuffer: true}
						case 2:
							op = messages.ReduceScatter{Dim: 3, MeshAxis: a, UsePersistentBuffer: true}
						case 3:
							op = messages.ReduceScatter{Dim: 3, MeshAxis: a}
						case 4:
							op = messages.FusedDistributedNorm{MeshAxis: a}
						case 7:
							op, in = messages.NeighborPad{Dims: index(2, 3), Axes: index(a, 1-a), PadLeft: index(rng.IntN(2), 1), PadRight: index(1, rng.IntN(2)), UsePersistentBuffer: rng.IntN(2) == 0}, rowMajor
						case 8:
							op, in = messages.NeighborPad{Dims: index(2), Axes: index(a), PadLeft: index(0), PadRight: index(1)}, rowMajor
						case 9:
							op, in = messages.SliceReshard{Size: 12, MeshAxis: a}, rowMajor
						case 10:
							op = messages.StridedAllGatherMatmul{MeshAxis: a, NumWorkersPerLink: 1 + rng.IntN(2)}
						case 5:
							op = messages.GetSemaphores{Pool: []messages.Pool{messages.PoolAG, messages.PoolRS, messages.PoolBarrier}[rng.IntN(3)], MeshAxis: a}
							in = nil
						default:
							op = local
							if len(held) > 0 {
								in = held[rng.IntN(len(held))]
							}
						}
						var ins []*Tensor
						if in != nil {
							ins = []*Tensor{in}
						}
						if g, ok := op.(messages.StridedAllGatherMatmul); ok {
							ins = append(ins, weights[g.MeshAxis])
						}
						y, err := submit(s, op, ins...)
						if !assert.NoError(t, err) {
							return
						}
						if y.mem != nil {
							held = append(held, y)
						}
						for len(held) > rng.IntN(4) {
							k := rng.IntN(len(held))
							held[k].Release()
							held = append(held[:k], held[k+1:]...)
						}
					}
					assert.NoError(t, s.Fence(limited(t)))
				})
			}
			callers.Wait()
			stop()
			require.NoError(t, referee(f.log))
		})
	}
}

// TestHoldNeverOverwrites: three streams keep their last result of one key while asking for the next: nobody's memory is given to another
// (field case B4).
func TestHoldNeverOverwrites(t *testing.T) {
	f := newFake(1, 4)
	r := start(t, f, nil)
	owner := map[devicecgo.Handle]*Tensor{}
	for i := range 3 {
		s := stream(t, r, fmt.Sprintf("s%d", i))
		x := upload(t, s, 1, 1, 32, 64)
		for range 3 {
			y := mustSubmit(t, s, persistent, x)
			require.NoError(t, y.Wait(limited(t)))
			h := y.mem.bank.buffers[0].base
			assert.NotContains(t, owner, h)
			owner[h] = y
		}
	}
	stats, _ := r.Stats(limited(t))
	assert.Equal(t, 9, stats.Buffers, "the pool grew to what is held")
	for _, y := range owner {
		y.Release()
	}
	s := stream(t, r, "late")
	x := upload(t, s, 1, 1, 32, 64)
	for range 20 {
		y := mustSubmit(t, s, persistent, x)
		y.Release()
	}
	require.NoError(t, s.Fence(limited(t)))
	stats, _ = r.Stats(limited(t))
	assert.Equal(t, 9, stats.Buffers, "released banks are used again")
}

// TestRotateTurnsTheIndex: the reference's policy hands the banks out in turn whether released or not.
func TestRotateTurnsTheIndex(t *testing.T) {
	f := newFake(1, 4)
	r := start(t, f, func(c *Config) { c.Policy = messages.Rotate })
	s := stream(t, r, "s")
	x := upload(t, s, 1, 1, 32, 64)
	var got []devicecgo.Handle
	for range 5 {
		y := mustSubmit(t, s, persistent, x)
		require.NoError(t, y.Wait(limited(t)))
		got = append(got, y.mem.bank.buffers[0].base)
	}
	assert.Equal(t, []devicecgo.Handle{got[0], got[1], got[0], got[1], got[0]}, got)
	assert.NotEqual(t, got[0], got[1])
}

// TestReleaseFreesMemory: memory of its own is freed once the last launch that reads it has retired, not before; views go with it.
func TestReleaseFreesMemory(t *testing.T) {
	f := newFake(1, 4)
	r := start(t, f, nil)
	s := stream(t, r, "s")
	x := upload(t, s, 32, 64) // rank 2: gathered through a view
	require.NoError(t, x.Wait(limited(t)))
	f.hold()
	y := mustSubmit(t, s, messages.AllGather{Dim: 1, MeshAxis: 1}, x)
	assert.Equal(t, messages.ShapeOf(32, 256), y.Spec().Shape)
	x.Release()
	x.Release() // harmless
	y.Release()
	require.Eventually(t, func() bool { return f.count() == 1 }, 5*time.Second, time.Millisecond)
	assert.Equal(t, 2, f.liveOf("tensor"))
	f.finish(1)
	require.Eventually(t, func() bool { return f.liveOf("tensor") == 0 && f.liveOf("view") == 0 }, 5*time.Second, time.Millisecond)
	_, err := submit(s, local, x)
	require.ErrorIs(t, err, messages.ErrReleased)
}

// TestAliasSharesMemory: on an axis of one the result is a second reference; memory returns when both are released (field case A25).
func TestAliasSharesMemory(t *testing.T) {
	f := newFake(1, 4)
	r := start(t, f, nil)
	s := stream(t, r, "s")
	x := upload(t, s, 1, 1, 32, 64)
	y := mustSubmit(t, s, messages.AllGather{Dim: 3, MeshAxis: 0, UsePersistentBuffer: true}, x)
	z := mustSubmit(t, s, messages.ReduceScatter{Dim: 3, MeshAxis: messages.NoAxis}, x)
	y.Release()
	z.Release()
	w := mustSubmit(t, s, local, x)
	require.NoError(t, w.Wait(limited(t)), "releasing the alias has not freed the input")
	x.Release()
	w.Release()
	require.Eventually(t, func() bool { return f.liveOf("tensor") == 0 }, 5*time.Second, time.Millisecond)
}

// TestInvalidRequestsChangeNothing: refused before anything is enqueued; no index has moved.
func TestInvalidRequestsChangeNothing(t *testing.T) {
	f := newFake(2, 4)
	r := start(t, f, func(c *Config) { c.Policy = messages.Rotate })
	s := stream(t, r, "s")
	x := upload(t, s, 1, 1, 32, 66)
	bad := []messages.Operation{
		messages.AllGather{Dim: 4, MeshAxis: 1}, messages.AllGather{Dim: -5, MeshAxis: 1}, messages.AllGather{Dim: 0, MeshAxis: 2},
		messages.ReduceScatter{Dim: 3, MeshAxis: 1}, messages.ReduceScatter{Dim: 9, MeshAxis: 0}, messages.Matmul{},
		messages.GetSemaphores{Pool: messages.PoolAG, MeshAxis: 7}, messages.RingJointSDPA{MeshAxis: 0},
	}
	for range 3 {
		for _, op := range bad {
			_, err := submit(s, op, x)
			require.ErrorIs(t, err, messages.ErrInvalid, "%#v", op)
		}
		mustSubmit(t, s, gather, x)
	}
	require.NoError(t, s.Fence(limited(t)))
	assert.EqualValues(t, 3, f.count())
	var sems []devicecgo.Handle
	for _, e := range f.log {
		if a, ok := e.args.(devicecgo.AllGather); ok {
			sems = append(sems, a.Semaphores[0])
		}
	}
	assert.Equal(t, sems[0], sems[2])
	assert.NotEqual(t, sems[0], sems[1])
}

// TestFailuresPoisonWhatDependsOnThem: a launch that the driver refuses, and one that fails later, reach their callers and readers, and
// nobody else.
func TestFailuresPoisonWhatDependsOnThem(t *testing.T) {
	f := newFake(1, 4)
	f.refuse = func(a devicecgo.Args) error {
		if g, ok := a.(*devicecgo.AllGather); ok && g.NumLinks == 1 && g.Dim == 2 {
			return fmt.Errorf("%w: told to", messages.ErrRejected)
		}
		return nil
	}
	f.fail[2] = fmt.Errorf("%w: launch two", messages.ErrOutOfMemory)
	r := start(t, f, nil)
	s := stream(t, r, "s")
	x := upload(t, s, 1, 1, 32, 64)
	refused := mustSubmit(t, s, messages.AllGather{Dim: 2, MeshAxis: 1, UsePersistentBuffer: true}, x)
	reader := mustSubmit(t, s, local, refused)
	first := mustSubmit(t, s, local, x)
	second := mustSubmit(t, s, gather, x)
	third := mustSubmit(t, s, local, second)
	fourth := mustSubmit(t, s, local, first)

	ctx := limited(t)
	require.ErrorIs(t, refused.Wait(ctx), messages.ErrRejected)
	require.ErrorIs(t, reader.Wait(ctx), messages.ErrPoisoned)
	require.ErrorIs(t, reader.Wait(ctx), messages.ErrRejected, "the cause is named")
	require.NoError(t, first.Wait(ctx))
	require.ErrorIs(t, second.Wait(ctx), messages.ErrOutOfMemory)
	require.ErrorIs(t, third.Wait(ctx), messages.ErrPoisoned)
	require.NoError(t, fourth.Wait(ctx))
	var op *messages.OpError
	require.ErrorAs(t, second.Wait(ctx), &op)
	assert.EqualValues(t, 2, op.Launch)
	// The bank of the refused gather went home.
	refused.Release()
	again := mustSubmit(t, s, messages.AllGather{Dim: 3, MeshAxis: 1, UsePersistentBuffer: true}, x)
	require.NoError(t, again.Wait(ctx))
}

// TestPoisonTravelsBeforeAdmission: a chain behind a refused launch is answered although none of it ever gets a ticket, and names the root.
func TestPoisonTravelsBeforeAdmission(t *testing.T) {
	f := newFake(1, 4)
	f.refuse = func(a devicecgo.Args) error {
		if _, ok := a.(*devicecgo.AllGather); ok {
			return fmt.Errorf("%w: told to", messages.ErrRejected)
		}
		return nil
	}
	r := start(t, f, func(c *Config) { c.Inflight = 2 })
	s := stream(t, r, "s")
	y := mustSubmit(t, s, gather, upload(t, s, 1, 1, 32, 64))
	for range 30 {
		y = mustSubmit(t, s, local, y)
	}
	err := y.Wait(limited(t))
	require.ErrorIs(t, err, messages.ErrPoisoned)
	require.ErrorIs(t, err, messages.ErrRejected)
	assert.Less(t, len(err.Error()), 200, "the root, not the chain: %v", err)
}

// TestAllocationFailureFailsOneTask: a pool's buffers cannot be made: the task gets the error, the next one tries again.
func TestAllocationFailureFailsOneTask(t *testing.T) {
	f := newFake(1, 4)
	r := start(t, f, nil)
	s := stream(t, r, "s")
	x := upload(t, s, 1, 1, 32, 64)
	require.NoError(t, x.Wait(limited(t)))
	f.mu.Lock()
	f.allocErr = fmt.Errorf("%w: full", messages.ErrOutOfMemory)
	f.mu.Unlock()
	y := mustSubmit(t, s, persistent, x)
	require.ErrorIs(t, y.Wait(limited(t)), messages.ErrOutOfMemory)
	f.mu.Lock()
	f.allocErr = nil
	f.mu.Unlock()
	z := mustSubmit(t, s, persistent, x)
	require.NoError(t, z.Wait(limited(t)))
	require.NoError(t, referee(f.log))
}

// TestKilledPoolStopsItsGrantsOnly: the actors are real. Killing one pool fails what draws from it, also what is already waiting; other
// pools and the other axis go on.
func TestKilledPoolStopsItsGrantsOnly(t *testing.T) {
	f := newFake(2, 4)
	r := start(t, f, nil)
	s := stream(t, r, "s")
	x := upload(t, s, 1, 1, 32, 64)
	require.NoError(t, mustSubmit(t, s, gather, x).Wait(limited(t)))
	require.NoError(t, r.Kill("pool/ag[1]"))
	ctx := limited(t)
	require.Eventually(t, func() bool {
		return errors.Is(mustSubmit(t, s, gather, x).Wait(ctx), messages.ErrActorStopped)
	}, 5*time.Second, time.Millisecond)
	assert.ErrorContains(t, mustSubmit(t, s, gather, x).Wait(ctx), "ag[1]")
	require.NoError(t, mustSubmit(t, s, scatter, x).Wait(ctx))
	require.NoError(t, mustSubmit(t, s, messages.AllGather{Dim: 3, MeshAxis: 0}, x).Wait(ctx))
	require.NoError(t, mustSubmit(t, s, local, x).Wait(ctx))
	require.ErrorIs(t, r.Kill("pool/none"), messages.ErrInvalid)

	require.NoError(t, r.Kill("axis/0"))
	require.Eventually(t, func() bool {
		return errors.Is(mustSubmit(t, s, messages.AllGather{Dim: 3, MeshAxis: 0}, x).Wait(ctx), messages.ErrActorStopped)
	}, 5*time.Second, time.Millisecond)
	require.NoError(t, mustSubmit(t, s, scatter, x).Wait(ctx), "axis 1 goes on")

	other := stream(t, r, "other")
	y := upload(t, other, 1, 1, 32, 64)
	require.NoError(t, r.Kill("stream/s"))
	require.Eventually(t, func() bool { _, err := submit(s, local, x); return errors.Is(err, messages.ErrActorStopped) }, 5*time.Second, time.Millisecond)
	require.NoError(t, mustSubmit(t, other, local, y).Wait(ctx))
}

// TestDevicePanicAnswersEverybody: a panic of the device actor reaches no user and loses nobody's answer.
func TestDevicePanicAnswersEverybody(t *testing.T) {
	f := newFake(1, 4)
	f.panicOn = 3
	r := start(t, f, nil)
	s := stream(t, r, "s")
	x := upload(t, s, 1, 1, 32, 64)
	var results []*Tensor
	for range 10 {
		y, err := submit(s, gather, x)
		if err != nil {
			break
		}
		results = append(results, y)
	}
	ctx := limited(t)
	failed := 0
	for _, y := range results {
		if err := y.Wait(ctx); err != nil {
			require.ErrorIs(t, err, messages.ErrInternal)
			failed++
		}
	}
	assert.Positive(t, failed)
	_, err := r.Stats(ctx)
	require.ErrorIs(t, err, messages.ErrInternal, "who asks a dead device actor is told at once")
	_, err = s.Read(ctx, x, messages.Coord{})
	require.ErrorIs(t, err, messages.ErrInternal)
	require.NoError(t, ctx.Err())
}

// TestCloseAnswersEverything: Close with work queued and in flight returns in bounded time, each request has an answer (field case A33).
func TestCloseAnswersEverything(t *testing.T) {
	for _, manual := range []bool{false, true} {
		f := newFake(1, 4)
		r, err := Start(limited(t), Config{Inflight: 4, Open: func() (devicecgo.Device, error) { return f, nil }})
		require.NoError(t, err)
		f.mu.Lock()
		f.manual = manual
		f.mu.Unlock()
		s := stream(t, r, "s")
		x := &Tensor{}
		spec := messages.Spec{Shape: messages.ShapeOf(1, 1, 32, 64), DType: messages.BFloat16, Layout: messages.Tile, Memory: messages.DRAM}
		require.NoError(t, s.Write(context.Background(), devicecgo.TensorSpec{Spec: spec}, messages.Replicate, nil, x))
		var results []*Tensor
		for range 10 {
			results = append(results, mustSubmit(t, s, gather, x))
		}
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		began := time.Now()
		var closers sync.WaitGroup
		for range 3 { // closing at once from several goroutines is one close
			closers.Go(func() { assert.NoError(t, r.Close(ctx)) })
		}
		closers.Wait()
		cancel()
		assert.Less(t, time.Since(began), 2*time.Second)
		for i, y := range results {
			if err := y.Wait(limited(t)); err != nil {
				require.ErrorIs(t, err, messages.ErrClosed, "result %d", i)
			} else {
				assert.False(t, manual)
			}
		}
		_, err = submit(s, gather, x)
		require.ErrorIs(t, err, messages.ErrClosed)
		_, err = r.Stream("late")
		require.ErrorIs(t, err, messages.ErrClosed)
		require.ErrorIs(t, s.Fence(limited(t)), messages.ErrClosed)
		assert.Equal(t, 1, f.closed)
		x.Release() // after Close: harmless
	}
}

// TestQueueRefusesOrWaits: a stream's queue is bounded; the excess is refused at once or waits, and nothing is lost (field case C6).
func TestQueueRefusesOrWaits(t *testing.T) {
	f := newFake(1, 4)
	r := start(t, f, func(c *Config) { c.Queue, c.Inflight, c.Refuse = 100, 1, true })
	s := stream(t, r, "s")
	x := upload(t, s, 1, 1, 32, 64)
	require.NoError(t, x.Wait(limited(t)))
	f.hold()
	accepted, refused := 0, 0
	var last *Tensor
	for range 1000 {
		y, err := submit(s, local, x)
		if err != nil {
			require.ErrorIs(t, err, messages.ErrQueueFull)
			refused++
			continue
		}
		accepted++
		last = y
	}
	assert.Equal(t, 1000, accepted+refused)
	assert.InDelta(t, 101, accepted, 1, "the queue and the one inside the driver")
	f.finish(1 << 60)
	require.NoError(t, last.Wait(limited(t)))
	assert.EqualValues(t, accepted, f.count())

	g := newFake(1, 4)
	w := start(t, g, func(c *Config) { c.Queue, c.Inflight = 10, 2 })
	ws := stream(t, w, "s")
	wx := upload(t, ws, 1, 1, 32, 64)
	for range 500 { // waits for room instead
		mustSubmit(t, ws, local, wx)
	}
	require.NoError(t, ws.Fence(limited(t)))
	assert.EqualValues(t, 500, g.count())
}

// TestFairness: one busy stream does not keep a quiet one waiting; order inside each stream is kept (field case C10).
func TestFairness(t *testing.T) {
	f := newFake(1, 4)
	r := start(t, f, func(c *Config) { c.Inflight = 4 })
	busy, quiet := stream(t, r, "busy"), stream(t, r, "quiet")
	bx, qx := upload(t, busy, 1, 1, 32, 64), upload(t, quiet, 1, 1, 32, 64)
	require.NoError(t, qx.Wait(limited(t)))
	require.NoError(t, bx.Wait(limited(t)))
	f.hold()
	for range 100 {
		mustSubmit(t, busy, local, bx)
	}
	require.Eventually(t, func() bool { return f.count() == 4 }, 5*time.Second, time.Millisecond)
	q := mustSubmit(t, quiet, local, qx)
	settle(t, r)
	f.finish(1 << 60)
	require.NoError(t, q.Wait(limited(t)))
	require.NoError(t, busy.Fence(limited(t)))
	for _, e := range f.log {
		if e.kind == "launch" && e.stream == quiet.id {
			assert.LessOrEqual(t, e.launch, uint64(8), "the quiet stream's launch comes with the next round")
		}
	}
}

// TestWhatComesWhileTheMeshClosesIsClosed: an operation that got in just before, whose stream's actor is stopped before it has seen it.
func TestWhatComesWhileTheMeshClosesIsClosed(t *testing.T) {
	f := newFake(1, 4)
	r := start(t, f, nil)
	s := stream(t, r, "late")
	x := upload(t, s, 1, 1, 32, 64)
	require.NoError(t, x.Wait(limited(t)))
	hold := make(chan struct{})
	require.True(t, r.thread.Schedule(func() { <-hold }))
	y := mustSubmit(t, s, messages.AllGather{Dim: 3, MeshAxis: 1}, x)
	s.shut(messages.ErrClosed)
	r.root.Stop(s.pid) // overtakes the doorbell
	close(hold)
	require.ErrorIs(t, y.Wait(limited(t)), messages.ErrClosed)
}

// TestManyStreamsFirstRequestAtOnce: 16 streams use a pool first at the same instant: it is made once, between two fences (field case B7).
func TestManyStreamsFirstRequestAtOnce(t *testing.T) {
	f := newFake(1, 4)
	r := start(t, f, nil)
	streams := make([]*Stream, 16)
	inputs := make([]*Tensor, 16)
	for i := range streams {
		streams[i] = stream(t, r, "")
		inputs[i] = upload(t, streams[i], 1, 1, 32, 64)
		require.NoError(t, inputs[i].Wait(limited(t)))
	}
	before, _ := r.Stats(limited(t))
	var wg sync.WaitGroup
	go1 := make(chan struct{})
	for i, s := range streams {
		wg.Go(func() {
			<-go1
			y, err := submit(s, persistent, inputs[i])
			if assert.NoError(t, err) {
				assert.NoError(t, y.Wait(limited(t)))
				y.Release()
			}
		})
	}
	close(go1)
	wg.Wait()
	after, _ := r.Stats(limited(t))
	assert.GreaterOrEqual(t, after.Buffers, 2)
	assert.LessOrEqual(t, after.Buffers, 16)
	require.NoError(t, referee(f.log))
	assert.GreaterOrEqual(t, after.Fences-before.Fences, uint64(2))
}

// TestOneThread: every driver call comes from one OS thread whatever goroutine asks; a call from elsewhere is an error (rule 1).
func TestOneThread(t *testing.T) {
	r := openNull(t, nil)
	var mesh devicecgo.Device
	got := make(chan struct{})
	r.root.Send(r.device, onDevice(func(d devicecgo.Device) { mesh = d; close(got) }))
	<-got
	_, err := mesh.RecordEvent(0)
	require.ErrorIs(t, err, messages.ErrWrongThread)
	s := stream(t, r, "s")
	x := upload(t, s, 1, 1, 32, 64)
	require.NoError(t, mustSubmit(t, s, gather, x).Wait(limited(t)), "and the mesh is none the worse")
}

// TestDispatchedPlansAreTheRules: what is sent to the driver is what package axis decided.
func TestDispatchedPlansAreTheRules(t *testing.T) {
	f := newFake(2, 4)
	r := start(t, f, func(c *Config) { c.NumLinks = 2 })
	s := stream(t, r, "s")
	x := upload(t, s, 1, 640, 128)
	y := mustSubmit(t, s, messages.AllGather{Dim: -2, MeshAxis: 1, UseHyperparams: true}, x)
	require.NoError(t, y.Wait(limited(t)))
	plan, err := axis.Make(r.mesh, messages.AllGather{Dim: -2, MeshAxis: 1, UseHyperparams: true}, []messages.Spec{x.Spec()})
	require.NoError(t, err)
	var a devicecgo.AllGather
	for _, e := range f.log {
		if g, ok := e.args.(devicecgo.AllGather); ok {
			a = g
		}
	}
	assert.EqualValues(t, plan.Dim, a.Dim)
	assert.EqualValues(t, 2, a.NumLinks)
	assert.Equal(t, messages.Ring, devicecgo.TopologyOf(a.Topology))
	assert.EqualValues(t, 16, a.ChunksPerSync)
	assert.EqualValues(t, 3, a.NumWorkersPerLink)
	assert.Equal(t, messages.ShapeOf(1, 2560, 128), y.Spec().Shape)
}

// Without its device actor a mesh answers everything that it is asked, at once: what is under way, and what comes later on streams of then
// and of before.
func TestWhatComesBehindTheDeviceActorIsAnswered(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(*Runtime, *fakeDevice) error
		kind error
	}{
		"killed":   {func(r *Runtime, _ *fakeDevice) error { return r.Kill("device") }, messages.ErrActorStopped},
		"panicked": {func(_ *Runtime, f *fakeDevice) error { return nil }, messages.ErrInternal},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(1, 4)
			if tt.kind == messages.ErrInternal {
				f.panicOn = 1
			}
			r := start(t, f, nil)
			s := stream(t, r, "s")
			x := upload(t, s, 1, 1, 32, 64)
			require.NoError(t, tt.end(r, f))
			ctx := limited(t)
			for range 3 {
				if y, err := submit(s, gather, x); err != nil {
					require.ErrorIs(t, err, tt.kind)
				} else {
					require.ErrorIs(t, y.Wait(ctx), tt.kind)
				}
				require.ErrorIs(t, s.Fence(ctx), tt.kind)
				_, err := s.Read(ctx, x, messages.Coord{})
				require.ErrorIs(t, err, tt.kind)
			}
			_, err := r.Stream("late")
			require.ErrorIs(t, err, tt.kind)
		})
	}
}
