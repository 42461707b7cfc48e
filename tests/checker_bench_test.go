package tests

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
)

// BenchmarkChecker is the work of one Wan block of width 1536 on 2x4 (sequence on axis 0, heads and features on axis 1), with real data and in
// chunks of 4 KiB and more: gathers, norms over the sharded width, products, ring attention, a scatter. What the checker costs is the one case
// against the other.
func BenchmarkChecker(b *testing.B) {
	for _, checker := range []string{"on", "off"} {
		b.Run(checker, func(b *testing.B) {
			ctx := context.Background()
			m, err := meshrun.Open(ctx, meshrun.Config{Mesh: meshrun.MeshShape{Rows: 2, Cols: 4}, Settings: []meshrun.Option{{Key: "checker", Value: checker}}})
			require.NoError(b, err)
			defer func() { require.NoError(b, m.Close(ctx)) }()
			s, err := m.Stream("block")
			require.NoError(b, err)
			const tokens, width, part, heads, ff = 64, 1536, 384, 3, 2240
			tensor := func(dims ...int) *meshrun.Tensor {
				values := make([]float32, meshrun.ShapeOf(dims...).Elements())
				for i := range values {
					values[i] = float32(i%61)/61 - 0.5
				}
				a, err := meshrun.Floats(meshrun.ShapeOf(dims...), meshrun.BFloat16, values)
				require.NoError(b, err)
				x, err := s.Upload(ctx, a, meshrun.Replicate)
				require.NoError(b, err)
				return x
			}
			x, q := tensor(1, 1, tokens, part), tensor(1, heads, tokens, 128)
			w, up, down := tensor(1, 1, width, part), tensor(1, 1, width, ff), tensor(1, 1, ff, width)
			got := func(t *meshrun.Tensor, err error) *meshrun.Tensor {
				require.NoError(b, err)
				return t
			}
			gathered := func(x *meshrun.Tensor) *meshrun.Tensor {
				return got(s.AllGather(ctx, x, meshrun.AllGather{Dim: 3, MeshAxis: 1, UsePersistentBuffer: true}))
			}
			norm := func(x *meshrun.Tensor) *meshrun.Tensor {
				return got(s.FusedDistributedNorm(ctx, x, nil, nil, nil, nil, meshrun.FusedDistributedNorm{RMS: true, Epsilon: 1e-6, MeshAxis: 1}))
			}
			product := func(x, w *meshrun.Tensor) *meshrun.Tensor { return got(s.Matmul(ctx, x, w, nil, meshrun.Matmul{})) }
			b.ResetTimer()
			for range b.N {
				var used []*meshrun.Tensor
				keep := func(t *meshrun.Tensor) *meshrun.Tensor { used = append(used, t); return t }
				all := keep(gathered(keep(norm(x))))
				for range 3 { // q, k, v
					keep(norm(keep(product(all, w))))
				}
				attended, _, err := s.RingJointSDPA(ctx, q, q, q, nil, nil, nil, meshrun.RingJointSDPA{MeshAxis: 0})
				require.NoError(b, err)
				keep(attended)
				y := keep(product(keep(gathered(x)), w))
				hidden := keep(product(keep(gathered(keep(norm(y)))), up))
				keep(got(s.ReduceScatter(ctx, keep(product(hidden, down)), meshrun.ReduceScatter{Dim: 3, MeshAxis: 1, UsePersistentBuffer: true})))
				require.NoError(b, s.Fence(ctx))
				for _, t := range used {
					t.Release()
				}
			}
		})
	}
}
