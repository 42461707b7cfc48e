package actors

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/messages"
)

func gatherKey(rows int) messages.BufferKey {
	return messages.BufferKey{Kind: messages.BufferAG, Shape: messages.ShapeOf(1, 1, rows, 64), Dim: 3, Axis: 1, DType: messages.BFloat16}
}

func count(log []entry, kind string) int {
	n := 0
	for _, e := range log {
		if e.kind == kind {
			n++
		}
	}
	return n
}

// lastGather is the first semaphore of the last all_gather in the log.
func lastGather(f *fakeDevice) devicecgo.Handle {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := len(f.log) - 1; i >= 0; i-- {
		if a, ok := f.log[i].args.(devicecgo.AllGather); ok {
			return a.Semaphores[0]
		}
	}
	return 0
}

// TestResetCoversEveryPoolAndRewinds (a repair of design 6): semaphores of lazy pools too, bank 0 next, two fences.
func TestResetCoversEveryPoolAndRewinds(t *testing.T) {
	f := newFake(2, 4)
	r := start(t, f, func(c *Config) { c.Policy = messages.Rotate })
	s := stream(t, r, "s")
	x := upload(t, s, 1, 1, 32, 64)
	ctx := limited(t)
	require.NoError(t, mustSubmit(t, s, gather, x).Wait(ctx))
	first := lastGather(f)
	lease, err := s.Lease(ctx, messages.GetSemaphores{Pool: messages.PoolNPRegion, MeshAxis: 1}, "")
	require.NoError(t, err)
	assert.Equal(t, []string{"np_region[1].0", "np_region[1].1", "np_region[1].2", "np_region[1].3"}, lease.Names())
	before, _ := r.Stats(ctx)
	require.NoError(t, s.Reset(ctx, ""))
	after, _ := r.Stats(ctx)
	assert.EqualValues(t, 2, after.Fences-before.Fences)
	assert.Equal(t, after.Semaphores, count(f.log, "reset"), "every live semaphore, those of the lazy pool included")
	assert.Equal(t, 48+2*4, after.Semaphores)
	require.NoError(t, mustSubmit(t, s, gather, x).Wait(ctx))
	assert.Equal(t, first, lastGather(f), "bank 0 again")
	require.NoError(t, referee(f.log))
}

// TestResetNeedsAQuietMesh: refused while other streams work or callers hold semaphores, and then nothing is reset.
func TestResetNeedsAQuietMesh(t *testing.T) {
	f := newFake(1, 4)
	r := start(t, f, nil)
	s, other := stream(t, r, "s"), stream(t, r, "other")
	x := upload(t, other, 1, 1, 32, 64)
	ctx := limited(t)
	require.NoError(t, x.Wait(ctx))
	f.hold()
	y := mustSubmit(t, other, local, x)
	settle(t, r)
	err := s.Reset(ctx, "")
	require.ErrorIs(t, err, messages.ErrBusy)
	assert.ErrorContains(t, err, "stream other")
	f.finish(1 << 60)
	require.NoError(t, y.Wait(ctx))

	lease, err := s.Lease(ctx, messages.GetSemaphores{Pool: messages.PoolAG, MeshAxis: 1}, "")
	require.NoError(t, err)
	require.ErrorIs(t, s.Reset(ctx, ""), messages.ErrBusy)
	assert.Zero(t, count(f.log, "reset"))
	lease.Release()
	lease.Release()
	require.NoError(t, s.Reset(ctx, ""))
	assert.NotZero(t, count(f.log, "reset"))
}

// TestPrewarm: 20 keys, exactly two fences; the first request afterwards allocates nothing (field case A34).
func TestPrewarm(t *testing.T) {
	f := newFake(1, 4)
	r := start(t, f, nil)
	s := stream(t, r, "s")
	x := upload(t, s, 1, 1, 96, 64)
	ctx := limited(t)
	require.NoError(t, x.Wait(ctx))
	var keys []messages.BufferKey
	for i := range 20 {
		keys = append(keys, gatherKey(32*(i+1)))
	}
	before, _ := r.Stats(ctx)
	require.NoError(t, s.Prewarm(ctx, "", keys...))
	after, _ := r.Stats(ctx)
	assert.EqualValues(t, 2, after.Fences-before.Fences)
	assert.Equal(t, 40, after.Buffers-before.Buffers)
	require.NoError(t, s.Prewarm(ctx, "", keys...), "again: nothing to do")
	created := count(f.log, "create")
	require.NoError(t, mustSubmit(t, s, persistent, x).Wait(ctx))
	last, _ := r.Stats(ctx)
	assert.Equal(t, created, count(f.log, "create"))
	assert.Equal(t, after.Fences, last.Fences)
	require.ErrorIs(t, s.Prewarm(ctx, "", messages.BufferKey{Kind: messages.BufferAG, Axis: 5}), messages.ErrInvalid)
	require.NoError(t, s.Prewarm(ctx, ""))
	require.NoError(t, referee(f.log))
}

// TestReleaseBuffers: refused, and nothing freed, while a bank is lent; afterwards the memory is gone and the next request makes it anew.
func TestReleaseBuffers(t *testing.T) {
	f := newFake(1, 4)
	r := start(t, f, nil)
	s := stream(t, r, "s")
	x := upload(t, s, 1, 1, 32, 64)
	ctx := limited(t)
	y := mustSubmit(t, s, persistent, x)
	require.NoError(t, y.Wait(ctx))
	tensors := f.liveOf("tensor")
	err := s.ReleaseBuffers(ctx, "", gatherKey(32))
	require.ErrorIs(t, err, messages.ErrInvalid)
	assert.ErrorContains(t, err, "ag(shape=[1, 1, 32, 64],dim=3,axis=1,dtype=bfloat16)")
	assert.Equal(t, tensors, f.liveOf("tensor"))
	y.Release()
	require.NoError(t, s.ReleaseBuffers(ctx, "", gatherKey(64)), "another key: nothing to free")
	assert.Equal(t, tensors, f.liveOf("tensor"))
	require.NoError(t, s.ReleaseBuffers(ctx, "", gatherKey(32)))
	assert.Equal(t, tensors-2, f.liveOf("tensor"))
	z := mustSubmit(t, s, persistent, x)
	require.NoError(t, z.Wait(ctx))
	assert.Equal(t, tensors, f.liveOf("tensor"))
	z.Release()
	require.NoError(t, s.ReleaseBuffers(ctx, ""))
	stats, _ := r.Stats(ctx)
	assert.Zero(t, stats.Buffers)
	require.NoError(t, referee(f.log))
}

// TestPromisedFence: buffers made without the creation fence are refused to a launch until a fence has come.
func TestPromisedFence(t *testing.T) {
	f := newFake(1, 4)
	r := start(t, f, func(c *Config) { c.Policy = messages.Rotate })
	s := stream(t, r, "s")
	x := upload(t, s, 1, 1, 32, 64)
	ctx := limited(t)
	require.NoError(t, x.Wait(ctx))
	before, _ := r.Stats(ctx)
	require.NoError(t, mustSubmit(t, s, messages.GetBuffers{Key: gatherKey(32), Unfenced: true}).Wait(ctx))
	after, _ := r.Stats(ctx)
	assert.Equal(t, before.Fences, after.Fences)
	y := mustSubmit(t, s, persistent, x)
	err := y.Wait(ctx)
	require.ErrorIs(t, err, messages.ErrInvalid)
	assert.ErrorContains(t, err, "call fence first")
	require.NoError(t, s.Fence(ctx))
	require.NoError(t, mustSubmit(t, s, persistent, x).Wait(ctx))
	require.NoError(t, referee(f.log))
}

// TestLeasesOfSemaphores: a caller's bank is passed by, may be brought to a halo exchange, and one bank always stays for the launches.
func TestLeasesOfSemaphores(t *testing.T) {
	f := newFake(2, 4)
	r := start(t, f, nil)
	s := stream(t, r, "s")
	ctx := limited(t)
	x := &Tensor{}
	spec := messages.Spec{Shape: messages.ShapeOf(1, 4, 8, 8, 16), DType: messages.BFloat16, Layout: messages.RowMajor, Memory: messages.DRAM}
	require.NoError(t, s.Write(ctx, devicecgo.TensorSpec{Spec: spec}, messages.Replicate, nil, x))
	lease, err := s.Lease(ctx, messages.GetSemaphores{Pool: messages.PoolNP, MeshAxis: 0}, "")
	require.NoError(t, err)
	assert.Equal(t, []string{"np[0].bank0"}, lease.Names())
	_, err = s.Lease(ctx, messages.GetSemaphores{Pool: messages.PoolNP, MeshAxis: 0}, "")
	require.ErrorIs(t, err, messages.ErrBudget)

	op := messages.NeighborPad{Dims: index(2), Axes: index(0), PadLeft: index(1), PadRight: index(1)}
	last := func() devicecgo.Handle {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.log[len(f.log)-2].args.(devicecgo.NeighborPad).Semaphores[0] // before the fence that saw it done
	}
	for range 3 {
		require.NoError(t, mustSubmit(t, s, op, x).Wait(ctx))
		assert.NotEqual(t, lease.Handles()[0], last(), "the leased bank is passed by")
	}
	y := &Tensor{}
	_, err = s.Submit(ctx, Call{Op: op, In: []*Tensor{x}, Semaphores: []*Lease{lease}}, []*Tensor{y, {}})
	require.NoError(t, err)
	require.NoError(t, y.Wait(ctx))
	assert.Equal(t, lease.Handles()[0], last())

	for want, bad := range map[string]Call{
		"np[0]: are a bank of np[1]": {Op: messages.NeighborPad{Dims: index(2), Axes: index(1), PadLeft: index(1), PadRight: index(1)}, In: []*Tensor{x}, Semaphores: []*Lease{lease}},
		"are at most the 2":          {Op: op, In: []*Tensor{x}, Semaphores: []*Lease{lease, lease, lease}},
		"is a lease of this mesh":    {Op: op, In: []*Tensor{x}, Semaphores: []*Lease{nil}},
	} {
		_, err := s.Submit(ctx, bad, []*Tensor{{}, {}})
		require.ErrorContains(t, err, want)
	}
	lease.Release()
	_, err = s.Submit(ctx, Call{Op: op, In: []*Tensor{x}, Semaphores: []*Lease{lease}}, []*Tensor{{}, {}})
	require.ErrorIs(t, err, messages.ErrReleased)
	require.Eventually(t, func() bool {
		l, err := s.Lease(ctx, messages.GetSemaphores{Pool: messages.PoolNP, MeshAxis: 0}, "")
		if err == nil {
			l.Release()
		}
		return err == nil
	}, 5*time.Second, time.Millisecond, "and comes back")
	require.NoError(t, referee(f.log))
}

// TestLazyPoolsAreMadeOnce, on both axes, between two fences, also when many ask at once; a thousand shapes later the semaphores are as many.
func TestLazyPoolsAreMadeOnce(t *testing.T) {
	f := newFake(2, 4)
	r := start(t, f, nil)
	ctx := limited(t)
	before, _ := r.Stats(ctx)
	var wg sync.WaitGroup
	for range 8 {
		s := stream(t, r, "")
		wg.Go(func() {
			// Half of the leases find the pool's last free bank taken, which is not the point here.
			l, err := s.Lease(ctx, messages.GetSemaphores{Pool: messages.PoolNPFused, MeshAxis: 0}, "")
			if err == nil {
				l.Release()
			}
		})
	}
	wg.Wait()
	after, _ := r.Stats(ctx)
	assert.Equal(t, 4, after.Semaphores-before.Semaphores, "two banks of one on each axis")
	assert.EqualValues(t, 2, after.Fences-before.Fences)

	s := stream(t, r, "shapes")
	for i := range 1000 {
		x := upload(t, s, 1, 1+i, 32, 64)
		y := mustSubmit(t, s, persistent, x)
		y.Release()
		x.Release()
		if i%100 == 99 {
			require.NoError(t, s.Fence(context.Background()), fmt.Sprint(i))
			require.NoError(t, s.ReleaseBuffers(context.Background(), ""))
		}
	}
	last, err := r.Stats(context.Background())
	require.NoError(t, err)
	assert.Equal(t, after.Semaphores, last.Semaphores)
}

// TestCountersHaveOneBank: the next use of the counters waits for the retirement of the last.
func TestCountersHaveOneBank(t *testing.T) {
	f := newFake(1, 4)
	r := start(t, f, nil)
	s := stream(t, r, "s")
	ctx := limited(t)
	x, w := upload(t, s, 1, 1, 32, 64), upload(t, s, 64, 128)
	op := messages.MatmulStridedReduceScatter{MeshAxis: 1, UsePersistentBuffer: true, Credits: true}
	require.NoError(t, mustSubmit(t, s, op, x, w).Wait(ctx))
	f.hold()
	mustSubmit(t, s, op, x, w)
	y := mustSubmit(t, s, op, x, w)
	settle(t, r)
	assert.EqualValues(t, 2, f.count())
	f.finish(2)
	require.Eventually(t, func() bool { return f.count() == 3 }, 5*time.Second, time.Millisecond)
	f.finish(3)
	require.NoError(t, y.Wait(ctx))
	require.NoError(t, referee(f.log))
}
