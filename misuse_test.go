package meshrun_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
)

// What a program can get wrong is refused where it stands, and the mesh goes on.
func TestMisuseIsRefused(t *testing.T) {
	ctx := context.Background()
	open := func() (*meshrun.Mesh, *meshrun.Stream, *meshrun.Tensor) {
		mesh, err := meshrun.Open(ctx, meshrun.Config{Mesh: meshrun.MeshShape{Rows: 1, Cols: 2}})
		require.NoError(t, err)
		s, err := mesh.Stream("s")
		require.NoError(t, err)
		x, err := s.Zeros(ctx, meshrun.Spec{Shape: meshrun.ShapeOf(2, 4), DType: meshrun.BFloat16})
		require.NoError(t, err)
		return mesh, s, x
	}
	mesh, s, x := open()
	defer mesh.Close(ctx)
	other, _, foreign := open()
	defer other.Close(ctx)

	for name, call := range map[string]func() error{
		"no operation":      func() error { _, err := s.Submit(ctx, meshrun.Call{}); return err },
		"no second operand": func() error { _, err := s.Mul(ctx, x, nil); return err },
		"no tensor to read": func() error { _, err := s.Read(ctx, nil, meshrun.Coord{}); return err },
		"no floats to read": func() error { _, err := s.ReadFloats(ctx, nil, meshrun.Coord{}); return err },
		"no tensor to write": func() error {
			a, err := meshrun.Floats(x.Shape(), meshrun.BFloat16, make([]float32, 8))
			require.NoError(t, err)
			return s.Write(ctx, nil, a, meshrun.Replicate)
		},
		"another mesh's, read": func() error { _, err := s.Read(ctx, foreign, meshrun.Coord{}); return err },
		"another mesh's":       func() error { _, err := s.Add(ctx, x, foreign); return err },
		"an unknown dtype":     func() error { _, err := s.Typecast(ctx, x, 99); return err },
		"an unknown layout":    func() error { _, err := s.ToLayout(ctx, x, 99); return err },
		"zeros of no dtype":    func() error { _, err := s.Zeros(ctx, meshrun.Spec{Shape: x.Shape(), DType: 99}); return err },
		"zeros of no memory": func() error {
			_, err := s.Zeros(ctx, meshrun.Spec{Shape: x.Shape(), DType: meshrun.UInt8, Memory: 99})
			return err
		},
		"an array of no dtype": func() error {
			_, err := s.Upload(ctx, meshrun.Array{Shape: x.Shape(), DType: 99, Data: make([]byte, 32)}, meshrun.Replicate)
			return err
		},
		"no data for 2^64 elements": func() error {
			_, err := s.Upload(ctx, meshrun.Array{Shape: meshrun.ShapeOf(1<<16, 1<<16, 1<<16, 1<<16), DType: meshrun.UInt8, Data: []byte{}}, meshrun.Replicate)
			return err
		},
	} {
		require.ErrorIs(t, call(), meshrun.ErrInvalid, name)
	}
	_, err := s.Read(ctx, x, meshrun.Coord{})
	require.NoError(t, err, "the mesh goes on")

	for _, c := range []meshrun.Config{{Topology: 99}, {Policy: 99}, {Queues: -1}, {NumLinks: -1}, {Inflight: -1}, {Queue: -1}, {Mode: "quick"}} {
		c.Mesh = meshrun.MeshShape{Rows: 1, Cols: 2}
		_, err := meshrun.Open(ctx, c)
		require.ErrorIs(t, err, meshrun.ErrInvalid, "%+v", c)
	}
}
