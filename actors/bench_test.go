package actors

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/devicecgo/null"
	"github.com/meshrun/meshrun/messages"
)

func openNull(tb testing.TB, mutate func(*Config)) *Runtime {
	tb.Helper()
	driver, err := devicecgo.NewRegistry(null.Drivers()...).Lookup("null")
	require.NoError(tb, err)
	cfg := Config{
		Open: func() (devicecgo.Device, error) {
			return driver.Open(devicecgo.Options{Shape: messages.MeshShape{Rows: 4, Cols: 8}})
		},
		NumLinks: 2,
	}
	if mutate != nil {
		mutate(&cfg)
	}
	r, err := Start(context.Background(), cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, r.Close(context.Background())) })
	return r
}

func input(tb testing.TB, s *Stream, dims ...int) *Tensor {
	tb.Helper()
	x := &Tensor{}
	spec := messages.Spec{Shape: messages.ShapeOf(dims...), DType: messages.BFloat16, Layout: messages.Tile, Memory: messages.DRAM}
	require.NoError(tb, s.Write(context.Background(), devicecgo.TensorSpec{Spec: spec}, messages.Replicate, nil, x))
	return x
}

// BenchmarkSubmit is the bar of dispatch: one stream submits gathers without waiting, on a driver that does nothing; the fence at the end is
// included. The reference spends about 3.5 us on a persistent gather and 1.9 us on another.
func BenchmarkSubmit(b *testing.B) {
	for _, c := range []struct {
		name string
		op   messages.AllGather
	}{
		{"all_gather", messages.AllGather{Dim: 3, MeshAxis: 1, UseHyperparams: true}},
		{"all_gather_persistent", messages.AllGather{Dim: 3, MeshAxis: 1, UseHyperparams: true, UsePersistentBuffer: true}},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := openNull(b, nil)
			s, err := r.Stream("s")
			require.NoError(b, err)
			x := input(b, s, 1, 1, 1024, 1536)
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				y := &Tensor{}
				out := [1]*Tensor{y}
				in := [1]*Tensor{x}
				if _, err := s.Submit(ctx, Call{Op: c.op, In: in[:]}, out[:]); err != nil {
					b.Fatal(err)
				}
				y.Release()
			}
			require.NoError(b, s.Fence(ctx))
		})
	}
}

// BenchmarkReplay is a trace of 100 gathers on a driver that does nothing; the time is that of one replay.
func BenchmarkReplay(b *testing.B) {
	r := openNull(b, nil)
	s, err := r.Stream("s")
	require.NoError(b, err)
	x := input(b, s, 1, 1, 1024, 1536)
	ctx := context.Background()
	require.NoError(b, s.BeginTrace(ctx))
	for range 100 {
		y := &Tensor{}
		out, in := [1]*Tensor{y}, [1]*Tensor{x}
		_, err := s.Submit(ctx, Call{Op: messages.AllGather{Dim: 3, MeshAxis: 1}, In: in[:]}, out[:])
		require.NoError(b, err)
		y.Release()
	}
	tr, err := s.EndTrace(ctx)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if err := tr.Execute(ctx); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, tr.Wait(ctx))
}
