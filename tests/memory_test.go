package tests

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
)

// TestOutOfMemoryTellsWhatToRelease: the failing allocation says what is live by owner, the largest free block, and which pools could be released; releasing
// them makes room, and the failure has harmed nothing else.
func TestOutOfMemoryTellsWhatToRelease(t *testing.T) {
	ctx := context.Background()
	for _, l1 := range []bool{false, true} {
		mesh, err := meshrun.Open(ctx, meshrun.Config{Mesh: meshrun.MeshShape{Rows: 1, Cols: 4}, Settings: []meshrun.Option{{Key: "dram_bytes", Value: "131072"}, {Key: "l1_bytes", Value: "65536"}}})
		require.NoError(t, err)
		s, err := mesh.Stream("main")
		require.NoError(t, err)
		memory := messages.DRAM
		if l1 {
			memory = messages.L1
		}
		x, err := s.Zeros(ctx, meshrun.Spec{Shape: meshrun.ShapeOf(1, 1, 32, 32), DType: meshrun.BFloat16})
		require.NoError(t, err)
		y, err := s.AllGather(ctx, x, meshrun.AllGather{Dim: 3, MeshAxis: 1, UsePersistentBuffer: true})
		require.NoError(t, err)
		held, err := s.AllGather(ctx, x, meshrun.AllGather{Dim: 2, MeshAxis: 1, UsePersistentBuffer: true})
		require.NoError(t, err)
		require.NoError(t, held.Wait(ctx))
		y.Release()

		big := meshrun.Spec{Shape: meshrun.ShapeOf(1, 1, 2048, 1024), DType: meshrun.BFloat16, Memory: memory}
		none, err := s.Zeros(ctx, big)
		require.NoError(t, err)
		err = none.Wait(ctx)
		require.ErrorIs(t, err, meshrun.ErrOutOfMemory)
		var told *messages.OutOfMemoryError
		require.ErrorAs(t, err, &told)
		require.Equal(t, []messages.Releasable{{Pool: "ag(shape=[1, 1, 32, 32],dim=3,axis=1,dtype=bfloat16)", Bytes: 2 * 8192}}, told.Releasable)
		assert.ErrorContains(t, err, "Could be released (release_buffers): ag(shape=[1, 1, 32, 32],dim=3,axis=1,dtype=bfloat16) 16384 bytes")
		if l1 {
			assert.ErrorContains(t, err, "bytes of L1 on every core; 768 of 65536 are live, 64768 free, the largest free block has 64768. Live by owner: rs[0] 96; rs[1] 96")
		} else {
			assert.ErrorContains(t, err, "34816 of 131072 are live, 96256 free, the largest free block has 96256. Live by owner: ag(shape=[1, 1, 32, 32],dim=2,axis=1,dtype=bfloat16) 16384; ag(")
		}

		// An operation that cannot have its result fails alone.
		wide, err := s.Zeros(ctx, meshrun.Spec{Shape: meshrun.ShapeOf(1, 1, 64, 512), DType: meshrun.BFloat16}) // 64 KiB of the 94 that are free
		require.NoError(t, err)
		z, err := s.Add(ctx, wide, wide)
		require.NoError(t, err)
		after, err := s.Add(ctx, z, z)
		require.NoError(t, err)
		require.ErrorIs(t, z.Wait(ctx), meshrun.ErrOutOfMemory)
		require.ErrorAs(t, z.Wait(ctx), &told)
		require.ErrorIs(t, after.Wait(ctx), meshrun.ErrPoisoned)
		sum, err := s.Add(ctx, x, x)
		require.NoError(t, err)
		require.NoError(t, sum.Wait(ctx))
		wide.Release()
		require.NoError(t, s.ReleaseBuffers(ctx, messages.BufferKey{Kind: messages.BufferAG, Shape: x.Shape(), Dim: 3, Axis: 1, DType: meshrun.BFloat16}))
		again, err := s.Zeros(ctx, meshrun.Spec{Shape: meshrun.ShapeOf(1, 1, 64, 512), DType: meshrun.BFloat16})
		require.NoError(t, err)
		require.NoError(t, again.Wait(ctx))
		again.Release()
		require.NoError(t, mesh.Close(ctx))
	}
}
