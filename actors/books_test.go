package actors

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/messages"
)

// What is taken is given back: places in queues, room inside the driver, references, answers; also where something has failed.

// TestFencesGiveTheirPlacesBack: what launches nothing has a place in the stream's queue no longer than it takes.
func TestFencesGiveTheirPlacesBack(t *testing.T) {
	_, r, s, x := single(t, func(c *Config) { c.Queue, c.Refuse = 4, true })
	require.NoError(t, x.Wait(limited(t)))
	for range 10 {
		require.NoError(t, s.Fence(limited(t)))
		require.NoError(t, s.Prewarm(limited(t), "", gatherKey(32)))
		require.NoError(t, s.Reset(limited(t), ""))
		require.NoError(t, s.ReleaseBuffers(limited(t), ""))
	}
	settle(t, r)
	assert.Zero(t, s.queued.Load())
	_, err := submit(s, local, x)
	require.NoError(t, err)
}

// TestOneAnswerWhenTheDeviceIsLostInTheMiddle: of a begin or a fence, whose event cannot be recorded.
func TestOneAnswerWhenTheDeviceIsLostInTheMiddle(t *testing.T) {
	for _, how := range []string{"begin", "fence"} {
		f, r, s, x := single(t, nil)
		require.NoError(t, x.Wait(limited(t)))
		settle(t, r)
		hold := make(chan struct{})
		require.True(t, r.thread.Schedule(func() { <-hold }))
		mustSubmit(t, s, local, x)
		if how == "begin" {
			require.NoError(t, s.BeginTrace(limited(t)))
		} else {
			_, err := s.fence(limited(t))
			require.NoError(t, err)
		}
		f.mu.Lock()
		f.recordErr = fmt.Errorf("%w: told to", messages.ErrDeviceLost)
		f.mu.Unlock()
		close(hold)
		settle(t, r)
		require.True(t, r.thread.Do(func() { assert.Zero(t, s.queue.open, how) }))
		assert.Zero(t, f.liveOf("trace"), how)
	}
}

// TestReplaysCountAsTheirLaunches against the limit of what is inside the driver.
func TestReplaysCountAsTheirLaunches(t *testing.T) {
	f, r, s, x := single(t, func(c *Config) { c.Inflight = 12 })
	require.NoError(t, x.Wait(limited(t)))
	require.NoError(t, s.BeginTrace(limited(t)))
	for range 10 {
		mustSubmit(t, s, local, x).Release()
	}
	tr, err := s.EndTrace(limited(t))
	require.NoError(t, err)
	f.hold()
	for range 6 {
		require.NoError(t, tr.Execute(limited(t)))
	}
	for replays := uint64(2); replays <= 6; replays += 2 {
		settle(t, r)
		assert.Equal(t, 10*replays, f.count(), "two replays are inside: the second goes in whole")
		f.finish(f.count())
		last := replays
		require.Eventually(t, func() bool { settle(t, r); return last == 6 || f.count() > 10*last }, 5*time.Second, time.Millisecond)
	}
	require.NoError(t, tr.Wait(limited(t)))
	require.True(t, r.thread.Do(func() { assert.Zero(t, r.actor.inside) }))
}

// TestAWriteRepairs: what was in a tensor does not matter to a write, also where it has failed; and a replay behind it is a new chance.
func TestAWriteRepairs(t *testing.T) {
	ctx := limited(t)
	f, _, s, x := single(t, nil)
	require.NoError(t, x.Wait(ctx))
	f.mu.Lock()
	f.fail[1] = fmt.Errorf("%w: told to", messages.ErrRejected)
	f.mu.Unlock()
	y := mustSubmit(t, s, local, x)
	require.Error(t, y.Wait(ctx))
	require.NoError(t, s.Rewrite(ctx, y, messages.Replicate, make([]byte, 4096)))
	require.NoError(t, y.Wait(ctx))
	require.NoError(t, mustSubmit(t, s, local, y).Wait(ctx))

	f = newFake(2, 2)
	r := start(t, f, nil)
	s = stream(t, r, "s")
	compact, padded, op := inPlace(t, s)
	require.NoError(t, s.BeginTrace(ctx))
	mustSubmit(t, s, op, compact, padded)
	tr, err := s.EndTrace(ctx)
	require.NoError(t, err)
	f.mu.Lock()
	f.fail[1] = fmt.Errorf("%w: told to", messages.ErrRejected)
	f.mu.Unlock()
	require.NoError(t, tr.Execute(ctx))
	require.ErrorIs(t, tr.Wait(ctx), messages.ErrRejected)
	require.NoError(t, tr.Execute(ctx))
	require.ErrorIs(t, tr.Wait(ctx), messages.ErrPoisoned, "what it adds to is what the failed one has left")
	require.NoError(t, s.Rewrite(ctx, padded, messages.Replicate, make([]byte, padded.spec.HostBytes())))
	require.NoError(t, padded.Wait(ctx))
	require.NoError(t, tr.Execute(ctx))
	require.NoError(t, tr.Wait(ctx))
}

// inPlace is a halo_scatter, which writes into one of its inputs.
func inPlace(t *testing.T, s *Stream) (compact, padded *Tensor, op messages.HaloScatter) {
	t.Helper()
	op = messages.HaloScatter{PadH: index(1, 1), PadW: index(1, 1), BorderOnly: true}
	write := func(dims ...int) *Tensor {
		x := &Tensor{}
		spec := messages.Spec{Shape: messages.ShapeOf(dims...), DType: messages.BFloat16, Layout: messages.RowMajor, Memory: messages.DRAM}
		require.NoError(t, s.Write(limited(t), devicecgo.TensorSpec{Spec: spec}, messages.Replicate, nil, x))
		require.NoError(t, x.Wait(limited(t)))
		return x
	}
	return write(68, 16), write(1, 1, 18, 18, 16), op
}

// TestBothNamesOfAMemoryCount: a trace reads a memory by the name that was written into and by the one that it was before; the failure of the
// write reaches it in either order.
func TestBothNamesOfAMemoryCount(t *testing.T) {
	for _, newFirst := range []bool{true, false} {
		f := newFake(2, 2)
		r := start(t, f, nil)
		s := stream(t, r, "s")
		ctx := limited(t)
		compact, padded, op := inPlace(t, s)
		f.mu.Lock()
		f.manual = true
		f.fail[1] = fmt.Errorf("%w: told to", messages.ErrRejected)
		f.mu.Unlock()
		written := mustSubmit(t, s, op, compact, padded)
		require.NoError(t, s.BeginTrace(ctx))
		if newFirst {
			mustSubmit(t, s, local, written)
			mustSubmit(t, s, local, padded)
		} else {
			mustSubmit(t, s, local, padded)
			mustSubmit(t, s, local, written)
		}
		tr, err := s.EndTrace(ctx)
		require.NoError(t, err)
		require.NoError(t, tr.Execute(ctx))
		require.Eventually(t, func() bool { f.finish(f.count()); return tr.last.done() }, 5*time.Second, time.Millisecond)
		require.ErrorIs(t, tr.Wait(ctx), messages.ErrPoisoned, "the new name first: %v", newFirst)
	}
}

// TestWhatIsOverIsForgotten: a tensor that is written again and again, or made of the one before, does not keep all that made it.
func TestWhatIsOverIsForgotten(t *testing.T) {
	ctx := limited(t)
	_, _, s, x := single(t, nil)
	require.NoError(t, s.BeginTrace(ctx))
	mustSubmit(t, s, local, x)
	tr, err := s.EndTrace(ctx)
	require.NoError(t, err)
	y := mustSubmit(t, s, local, x)
	const rounds = 100
	var made []weak.Pointer[task]
	watch := func(t *task) { made = append(made, weak.Make(t)) }
	for range rounds {
		require.NoError(t, s.Rewrite(ctx, x, messages.Replicate, make([]byte, 4096)))
		watch(x.mem.latest.Load())
		require.NoError(t, tr.Execute(ctx))
		watch(tr.last)
		z := mustSubmit(t, s, local, y)
		watch(z.producer)
		require.NoError(t, z.Wait(ctx))
		require.NoError(t, tr.Wait(ctx))
		y.Release()
		y = z
	}
	known := func() (n int) {
		runtime.GC()
		for _, p := range made {
			if p.Value() != nil {
				n++
			}
		}
		return n
	}
	require.Eventually(t, func() bool { return known() <= 15 }, 5*time.Second, time.Millisecond, "of %d tasks only the last ones may be known", len(made))
	runtime.KeepAlive(x)
	runtime.KeepAlive(y)
}

// TestLostCaptureIsNoLiveTrace: the device is lost while a trace is captured.
func TestLostCaptureIsNoLiveTrace(t *testing.T) {
	ctx := limited(t)
	_, r, s, x := single(t, nil)
	require.NoError(t, x.Wait(ctx))
	require.NoError(t, s.BeginTrace(ctx))
	mustSubmit(t, s, gather, x)
	settle(t, r)
	require.True(t, r.thread.Do(func() { r.actor.lose(fmt.Errorf("%w: told to", messages.ErrDeviceLost)) }))
	_, err := s.EndTrace(ctx)
	require.ErrorIs(t, err, messages.ErrDeviceLost)
	settle(t, r)
	stats, err := r.Stats(ctx)
	require.NoError(t, err)
	assert.Zero(t, stats.Traces)
}

// TestCanceledReadsAreForgotten while a capture keeps reads waiting.
func TestCanceledReadsAreForgotten(t *testing.T) {
	f := newFake(1, 4)
	r := start(t, f, nil)
	s, other := stream(t, r, "s"), stream(t, r, "other")
	x := upload(t, s, 1, 1, 32, 64)
	require.NoError(t, x.Wait(limited(t)))
	require.NoError(t, s.BeginTrace(limited(t)))
	settle(t, r)
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	for range 100 {
		_, err := other.Read(canceled, x, messages.Coord{})
		require.ErrorIs(t, err, context.Canceled)
	}
	settle(t, r)
	require.True(t, r.thread.Do(func() { assert.LessOrEqual(t, len(r.actor.reads), 1) }))
	s.Close()
}

// TestKilledStreamGivesItsReferencesBack: a replay in its outbox holds the trace.
func TestKilledStreamGivesItsReferencesBack(t *testing.T) {
	ctx := limited(t)
	f, r, s, x := single(t, nil)
	tr, out := captureGathers(t, s, 2, x)
	settle(t, r)
	hold := make(chan struct{})
	require.True(t, r.thread.Schedule(func() { <-hold }))
	require.NoError(t, tr.Execute(ctx))
	lost := mustSubmit(t, s, local, x)
	r.root.Stop(s.pid)
	close(hold)
	require.ErrorIs(t, tr.Wait(ctx), messages.ErrActorStopped)
	tr.Release()
	for _, y := range append(out, lost, x) {
		y.Release()
	}
	settle(t, r)
	stats, err := r.Stats(ctx)
	require.NoError(t, err)
	assert.Zero(t, stats.Traces)
	assert.Zero(t, f.liveOf("trace"))
	assert.Equal(t, stats.Buffers, f.liveOf("tensor"), "but for the pools' nothing is left")
}

// TestAWriteIntoAFailedCapture is told that there is nothing.
func TestAWriteIntoAFailedCapture(t *testing.T) {
	ctx := limited(t)
	_, _, s, x := single(t, nil)
	require.NoError(t, s.BeginTrace(ctx))
	later := mustSubmit(t, s, local, mustSubmit(t, s, persistent, x)) // whose banks do not exist
	_, err := s.EndTrace(ctx)
	require.Error(t, err)
	require.NoError(t, s.Rewrite(ctx, later, messages.Replicate, make([]byte, later.spec.HostBytes())))
	err = later.Wait(ctx)
	require.ErrorIs(t, err, messages.ErrPoisoned)
	require.ErrorContains(t, err, "the capture has failed")
}
