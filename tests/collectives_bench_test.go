package tests

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
)

// The sizes of the bar: on 1x8, 64 MiB per device; the devices receive 7/8 of it each, 448 MiB in all.
const (
	devices  = 8
	perChip  = 64 << 20
	received = devices * perChip / devices * (devices - 1)
)

// memcpySeconds times one thread copying as many bytes as the devices receive, from and to memory that has been touched.
func memcpySeconds(from, to []byte) float64 {
	began := time.Now()
	for n := 0; n < received; n += len(from) {
		copy(to, from[:min(len(from), received-n)])
	}
	return time.Since(began).Seconds()
}

// BenchmarkCollectives measures steady-state collectives on the emulated 1x8 mesh through the whole runtime, as ratios to one-thread memcpy of the
// bytes that the devices receive, measured in turn. The emulator uses its simulation thread and up to two workers.
func BenchmarkCollectives(b *testing.B) {
	ctx := context.Background()
	from, to := make([]byte, 64<<20), make([]byte, 64<<20)
	for i := range from {
		from[i], to[i] = byte(i), 1
	}
	const elements = perChip / 2
	for _, topology := range []meshrun.Topology{meshrun.Ring, meshrun.Linear} {
		for dim := range 4 {
			whole := [4]int{8, 16, 512, 512} // 64 MiB of bfloat16, each dim divisible by 8
			require.Equal(b, elements, whole[0]*whole[1]*whole[2]*whole[3])
			slice := whole
			slice[dim] /= devices
			b.Run(fmt.Sprintf("all_gather/%s/dim=%d", topology, dim), func(b *testing.B) {
				measure(b, topology, slice[:], from, to, func(s *meshrun.Stream, x *meshrun.Tensor) (*meshrun.Tensor, error) {
					return s.AllGather(ctx, x, meshrun.AllGather{Dim: dim, MeshAxis: 1, UsePersistentBuffer: true})
				})
			})
			b.Run(fmt.Sprintf("reduce_scatter/%s/dim=%d", topology, dim), func(b *testing.B) {
				measure(b, topology, whole[:], from, to, func(s *meshrun.Stream, x *meshrun.Tensor) (*meshrun.Tensor, error) {
					return s.ReduceScatter(ctx, x, meshrun.ReduceScatter{Dim: dim, MeshAxis: 1, UsePersistentBuffer: true})
				})
			})
		}
	}
}

func measure(b *testing.B, topology meshrun.Topology, shape []int, from, to []byte, op func(*meshrun.Stream, *meshrun.Tensor) (*meshrun.Tensor, error)) {
	ctx := context.Background()
	mesh, err := meshrun.Open(ctx, meshrun.Config{Mesh: meshrun.MeshShape{Rows: 1, Cols: devices}, Topology: topology})
	require.NoError(b, err)
	defer mesh.Close(ctx)
	s, err := mesh.Stream("bench")
	require.NoError(b, err)
	x, err := s.Zeros(ctx, meshrun.Spec{Shape: meshrun.ShapeOf(shape...), DType: meshrun.BFloat16})
	require.NoError(b, err)
	once := func() float64 {
		began := time.Now()
		y, err := op(s, x)
		require.NoError(b, err)
		require.NoError(b, y.Wait(ctx))
		y.Release()
		return time.Since(began).Seconds()
	}
	for range 3 { // both banks exist and have been touched
		once()
	}
	var ratios []float64
	for b.Loop() {
		a, c := once(), memcpySeconds(from, to)
		ratios = append(ratios, a/c)
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "x-memcpy")
	b.ReportMetric(received/1e9, "GB-received")
}
