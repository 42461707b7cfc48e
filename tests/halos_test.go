package tests

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/meshrun/meshrun"
	"github.com/stretchr/testify/require"
)

// halo is one random padding of a whole tensor [N, H, W, C] of 16-bit elements, H cut over axis 0 and W over axis 1.
type halo struct {
	rows, cols  int
	n, h, w, c  int // of one shard
	left, right [2]int
	replicate   bool
	logicalH    int
	front       int // frames of zeros
	whole       []uint16
}

func randomHalo(r *rand.Rand, rows, cols int) halo {
	x := halo{rows: rows, cols: cols, n: 1 + r.IntN(3), h: 1 + r.IntN(4), w: 1 + r.IntN(4), c: 1 + r.IntN(4), replicate: r.IntN(2) == 0}
	for x.left == [2]int{} && x.right == [2]int{} {
		for i, most := range []int{min(2, x.h), min(2, x.w)} {
			x.left[i], x.right[i] = r.IntN(most+1), r.IntN(most+1)
		}
	}
	x.whole = randomElements(r, x.n*x.h*rows*x.w*cols*x.c)
	return x
}

// randomElements are never 0, so that zeros mean something.
func randomElements(r *rand.Rand, n int) []uint16 {
	v := make([]uint16, n)
	for i := range v {
		v[i] = uint16(1 + r.IntN(0x7000))
	}
	return v
}

func rowMajor(shape meshrun.Shape, v []uint16) meshrun.Array {
	data := make([]byte, 0, 2*len(v))
	for _, x := range v {
		data = binary.LittleEndian.AppendUint16(data, x)
	}
	return meshrun.Array{Shape: shape, DType: meshrun.BFloat16, Layout: meshrun.RowMajor, Data: data}
}

func elements(data []byte) []uint16 {
	v := make([]uint16, len(data)/2)
	for i := range v {
		v[i] = binary.LittleEndian.Uint16(data[2*i:])
	}
	return v
}

func (x halo) array() meshrun.Array {
	return rowMajor(meshrun.ShapeOf(x.n, x.h*x.rows, x.w*x.cols, x.c), x.whole)
}

// at is the element of the whole tensor, with its borders and masks.
func (x halo) at(n, h, w, c int) uint16 {
	height, width := x.h*x.rows, x.w*x.cols
	if n < 0 || !x.replicate && (h < 0 || h >= height || w < 0 || w >= width) {
		return 0
	}
	h, w = min(max(h, 0), height-1), min(max(w, 0), width-1)
	if x.logicalH != 0 && h >= x.logicalH {
		return 0
	}
	return x.whole[((n*height+h)*width+w)*x.c+c]
}

// padded is what a device holds in the end.
func (x halo) padded(device meshrun.Coord) []uint16 {
	var v []uint16
	for n := -x.front; n < x.n; n++ {
		for h := -x.left[0]; h < x.h+x.right[0]; h++ {
			for w := -x.left[1]; w < x.w+x.right[1]; w++ {
				for c := range x.c {
					v = append(v, x.at(n, device.Row*x.h+h, device.Col*x.w+w, c))
				}
			}
		}
	}
	return v
}

func index(v ...int) meshrun.Index {
	i, err := meshrun.IndexOf(v...)
	if err != nil {
		panic(err)
	}
	return i
}

func (x halo) mode() meshrun.PaddingMode {
	if x.replicate {
		return meshrun.PadReplicate
	}
	return meshrun.PadZeros
}

func (x halo) exchange() meshrun.NeighborPadHalo {
	return meshrun.NeighborPadHalo{Dims: index(1, 2), Axes: index(0, 1), PadLeft: index(x.left[:]...), PadRight: index(x.right[:]...), Mode: x.mode()}
}

func (x halo) pad(persistent bool) meshrun.NeighborPad {
	op := x.exchange()
	return meshrun.NeighborPad{Dims: op.Dims, Axes: op.Axes, PadLeft: op.PadLeft, PadRight: op.PadRight, Mode: op.Mode, UsePersistentBuffer: persistent,
		LogicalH: x.logicalH, TFrontPad: x.front}
}

// everyDevice reads a tensor from each device and gives it to check; then it is released.
func everyDevice(ctx context.Context, s *meshrun.Stream, t *meshrun.Tensor, rows, cols int, check func(at meshrun.Coord, got []uint16) error) error {
	defer t.Release()
	for d := range rows * cols {
		at := meshrun.Coord{Row: d / cols, Col: d % cols}
		data, err := s.Read(ctx, t, at)
		if err != nil {
			return err
		}
		if err := check(at, elements(data)); err != nil {
			return fmt.Errorf("device %v: %w", at, err)
		}
	}
	return nil
}

func same(got, want []uint16) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d elements, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("element %d is %d, want %d", i, got[i], want[i])
		}
	}
	return nil
}

func onMesh(t *testing.T, rows, cols int, seed uint64, streams int, play func(ctx context.Context, s *meshrun.Stream, r *rand.Rand) error) {
	t.Helper()
	ctx := t.Context()
	mesh, err := meshrun.Open(ctx, meshrun.Config{Mesh: meshrun.MeshShape{Rows: rows, Cols: cols}, Seed: seed,
		Settings: []meshrun.Option{{Key: "skew_us", Value: "100"}}})
	require.NoError(t, err)
	defer func() { require.NoError(t, mesh.Close(context.WithoutCancel(ctx))) }()
	var all sync.WaitGroup
	errs := make([]error, streams)
	for i := range streams {
		s, err := mesh.Stream(fmt.Sprintf("s%d", i))
		require.NoError(t, err)
		all.Go(func() { errs[i] = play(ctx, s, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...), "seed %d, mesh %dx%d", seed, rows, cols)
}

// TestHalos: padding in one go, and by way of the compact buffer, is padding the whole tensor and cutting it.
func TestHalos(t *testing.T) {
	for seed := uint64(1); seed <= 12; seed++ {
		r := rand.New(rand.NewPCG(seed, 99))
		rows, cols := []int{1, 2, 3, 4}[r.IntN(4)], []int{1, 2, 4, 8}[r.IntN(4)]
		t.Logf("seed %d: mesh %dx%d", seed, rows, cols)
		onMesh(t, rows, cols, seed, 3, func(ctx context.Context, s *meshrun.Stream, r *rand.Rand) error {
			for range 4 {
				if err := playHalo(ctx, s, r, rows, cols); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

func playHalo(ctx context.Context, s *meshrun.Stream, r *rand.Rand, rows, cols int) error {
	x := randomHalo(r, rows, cols)
	in, err := s.Upload(ctx, x.array(), meshrun.Distribution{1, 2})
	if err != nil {
		return err
	}
	defer in.Release()
	padded := func(what string, y *meshrun.Tensor, err error, want halo) error {
		if err == nil {
			err = everyDevice(ctx, s, y, rows, cols, func(at meshrun.Coord, got []uint16) error { return same(got, want.padded(at)) })
		}
		if err != nil {
			return fmt.Errorf("%s of %+v: %w", what, want, err)
		}
		return nil
	}
	y, err := s.NeighborPad(ctx, in, x.pad(false))
	if err := padded("neighbor_pad", y, err, x); err != nil {
		return err
	}
	masked := x
	masked.logicalH, masked.front = 1+r.IntN(x.h*rows), r.IntN(3)
	y, err = s.NeighborPad(ctx, in, masked.pad(true))
	if err := padded("neighbor_pad, masked and persistent", y, err, masked); err != nil {
		return err
	}

	compact, _, err := s.NeighborPadHalo(ctx, in, nil, x.exchange())
	if err != nil {
		return err
	}
	pads := meshrun.HaloScatter{PadH: index(x.left[0], x.right[0]), PadW: index(x.left[1], x.right[1])}
	y, err = s.HaloScatter(ctx, compact, in, pads)
	compact.Release()
	if err := padded("neighbor_pad_halo and halo_scatter", y, err, x); err != nil {
		return err
	}
	y, err = s.NeighborPadHaloScatter(ctx, in, x.exchange(), false)
	if err := padded("neighbor_pad_halo_scatter into the padded buffer", y, err, x); err != nil {
		return err
	}
	// In place: the exchange of what has been padded already changes nothing, if both sides of a dim are padded alike.
	if x.left != x.right {
		return nil
	}
	full, err := s.NeighborPad(ctx, in, x.pad(false))
	if err != nil {
		return err
	}
	defer full.Release()
	again := x.exchange()
	again.InputPadH, again.InputPadW = x.left[0], x.left[1]
	y, err = s.NeighborPadHaloScatter(ctx, full, again, true)
	return padded("neighbor_pad_halo_scatter in place", y, err, x)
}

// TestNeighborPadOneDim: one dim, either axis, as the causal convolutions of a decoder pad it.
func TestNeighborPadOneDim(t *testing.T) {
	const seed = 5
	onMesh(t, 2, 4, seed, 2, func(ctx context.Context, s *meshrun.Stream, r *rand.Rand) error {
		for i := range 8 {
			x := randomHalo(r, 2, 4)
			axis := i % 2
			x.left[axis], x.right[axis], x.left[1-axis], x.right[1-axis] = 1, i/2%2, 0, 0
			in, err := s.Upload(ctx, x.array(), meshrun.Distribution{1, 2})
			if err != nil {
				return err
			}
			y, err := s.NeighborPad(ctx, in, meshrun.NeighborPad{Dims: index(axis - 3), Axes: index(axis), PadLeft: index(x.left[axis]),
				PadRight: index(x.right[axis]), Mode: x.mode(), UsePersistentBuffer: i >= 4})
			if err != nil {
				return err
			}
			in.Release()
			if err := everyDevice(ctx, s, y, 2, 4, func(at meshrun.Coord, got []uint16) error { return same(got, x.padded(at)) }); err != nil {
				return fmt.Errorf("axis %d of %+v: %w", axis, x, err)
			}
		}
		return nil
	})
}

// TestReshardAndMove: rows shared out anew, shards moved, and one device's copy of the whole.
func TestReshardAndMove(t *testing.T) {
	for seed := uint64(1); seed <= 6; seed++ {
		rows, cols := []int{1, 2, 4}[seed%3], 4
		t.Logf("seed %d: mesh %dx%d", seed, rows, cols)
		onMesh(t, rows, cols, seed, 2, func(ctx context.Context, s *meshrun.Stream, r *rand.Rand) error {
			for range 4 {
				height, rest := 1+r.IntN(4), 1+r.IntN(5)
				whole := randomElements(r, height*cols*rest)
				in, err := s.Upload(ctx, rowMajor(meshrun.ShapeOf(height*cols, rest), whole), meshrun.ShardOn(1, 0))
				if err != nil {
					return err
				}
				shard := func(col int) []uint16 { return whole[col*height*rest : (col+1)*height*rest] }

				share, offset := 1+r.IntN(5), r.IntN(height*cols+1)
				y, err := s.SliceReshard(ctx, in, meshrun.SliceReshard{Offset: offset, Size: share * cols, MeshAxis: 1})
				if err != nil {
					return err
				}
				extended := append(append([]uint16(nil), whole...), make([]uint16, share*cols*rest)...)
				err = everyDevice(ctx, s, y, rows, cols, func(at meshrun.Coord, got []uint16) error {
					begin := (offset + at.Col*share) * rest
					return same(got, extended[begin:begin+share*rest])
				})
				if err != nil {
					return fmt.Errorf("slice_reshard of %d rows from %d of %d: %w", share*cols, offset, height*cols, err)
				}

				from := r.IntN(cols)
				to := (from + 1 + r.IntN(cols-1)) % cols
				y, err = s.PointToPoint(ctx, in, meshrun.Pair{From: meshrun.Coord{Row: rows - 1, Col: from}, To: meshrun.Coord{Row: rows - 1, Col: to}})
				if err != nil {
					return err
				}
				err = everyDevice(ctx, s, y, rows, cols, func(at meshrun.Coord, got []uint16) error {
					if at.Row == rows-1 && at.Col == to {
						return same(got, shard(from))
					}
					return same(got, shard(at.Col))
				})
				if err != nil {
					return fmt.Errorf("point_to_point from %d to %d: %w", from, to, err)
				}

				got, err := s.DeviceToHost(ctx, in, [2]int{meshrun.NoAxis, 0}, r.IntN(2) == 0)
				if err != nil {
					return err
				}
				if err := same(elements(got.Data), whole); err != nil {
					return fmt.Errorf("device_to_host: %w", err)
				}
				in.Release()
			}
			return nil
		})
	}
}

// TestSliceReshardAlone: an axis of one is a plain local slice.
func TestSliceReshardAlone(t *testing.T) {
	onMesh(t, 1, 2, 1, 1, func(ctx context.Context, s *meshrun.Stream, _ *rand.Rand) error {
		in, err := s.Upload(ctx, rowMajor(meshrun.ShapeOf(3, 1), []uint16{1, 2, 3}), meshrun.Replicate)
		if err != nil {
			return err
		}
		defer in.Release()
		y, err := s.SliceReshard(ctx, in, meshrun.SliceReshard{Offset: 1, Size: 3, MeshAxis: 0})
		if err != nil {
			return err
		}
		return everyDevice(ctx, s, y, 1, 2, func(_ meshrun.Coord, got []uint16) error { return same(got, []uint16{2, 3, 0}) })
	})
}
