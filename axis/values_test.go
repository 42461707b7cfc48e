package axis

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/messages"
)

// Values that no name stands for come from programs, not from files. Each is refused here: further on they would index tables.
func TestUnknownValuesAreRefused(t *testing.T) {
	m := mesh(t, 1, 4, 1, messages.Ring)
	x, image := bf16(1, 1, 32, 32), bf16(1, 2, 4, 4, 8)
	image.Layout = messages.RowMajor
	rows := x
	rows.Layout = messages.RowMajor
	index := func(v ...int) messages.Index { i, _ := messages.IndexOf(v...); return i }
	pads := index(1)
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, tt := range []struct {
		op   messages.Operation
		in   []messages.Spec
		want string
	}{
		{messages.Convert{DType: 99}, []messages.Spec{x}, "dtype dtype(99): is a dtype of the runtime"},
		{messages.Convert{Layout: 99}, []messages.Spec{x}, "layout layout(99): is tile or row_major"},
		{messages.Matmul{DType: 99}, []messages.Spec{x, x}, "dtype(99)"},
		{messages.Matmul{Activation: 99}, []messages.Spec{x, x}, "activation activation(99)"},
		{messages.Activation{Fn: 99}, []messages.Spec{x}, "activation activation(99)"},
		{messages.GroupNorm{Groups: 1, Activation: 99}, []messages.Spec{image}, "activation activation(99)"},
		{messages.Binary{Fn: 99}, []messages.Spec{x, x}, "is add, sub or mul"},
		{messages.Binary{Fn: messages.Add, Scalar: 2}, []messages.Spec{x, x}, "scalar 2: stands where there is no b"},
		{messages.SDPA{Scale: nan}, []messages.Spec{bf16(1, 2, 32, 32), bf16(1, 2, 32, 32), bf16(1, 2, 32, 32)}, "scale NaN"},
		{messages.RingJointSDPA{MeshAxis: 1, Scale: inf}, []messages.Spec{bf16(1, 2, 32, 32), bf16(1, 2, 32, 32), bf16(1, 2, 32, 32)}, "scale +Inf"},
		{messages.ExpRingJointSDPA{MeshAxis: 1, Scale: nan}, []messages.Spec{bf16(1, 2, 32, 32), bf16(1, 2, 32, 32), bf16(1, 2, 32, 32)}, "scale NaN"},
		{messages.Norm{Epsilon: nan}, []messages.Spec{x}, "epsilon NaN"},
		{messages.Norm{RMS: true, Epsilon: inf}, []messages.Spec{x}, "epsilon +Inf"},
		{messages.FusedDistributedNorm{MeshAxis: 1, Epsilon: nan}, []messages.Spec{x}, "epsilon NaN"},
		{messages.GroupNorm{Groups: 1, Epsilon: nan}, []messages.Spec{image}, "epsilon NaN"},
		{messages.NeighborPad{Dims: index(2), Axes: index(1), PadLeft: pads, PadRight: pads, Mode: 99}, []messages.Spec{image}, "padding_mode padding_mode(99)"},
		{messages.NeighborPadHalo{Dims: index(2), Axes: index(1), PadLeft: pads, PadRight: pads, Mode: 99}, []messages.Spec{image}, "padding_mode padding_mode(99)"},
		{messages.Conv3D{Kernel: [3]int{1, 1, 1}, Mode: 99}, []messages.Spec{image, bf16(8, 8)}, "padding_mode padding_mode(99)"},
		{messages.NPConv3D{Kernel: [3]int{1, 3, 3}, Padding: [3]int{0, 1, 1}, Axes: [2]int{0, 1}, Mode: 99}, []messages.Spec{image, bf16(72, 8)}, "padding_mode padding_mode(99)"},
		{messages.RingJointSDPA{MeshAxis: 1}, []messages.Spec{x, rows, x}, "k layout row_major: is tile"},
		{messages.StridedAllGatherMatmul{MeshAxis: 1}, []messages.Spec{rows, bf16(128, 32)}, "input layout row_major: is tile"},
		{messages.MatmulStridedReduceScatter{MeshAxis: 1, UsePersistentBuffer: true}, []messages.Spec{rows, bf16(32, 128)}, "input layout row_major: is tile"},
		{messages.ExpRingJointSDPA{MeshAxis: 1}, []messages.Spec{x, x, rows}, "v layout row_major: is tile"},
	} {
		_, err := Make(m, tt.op, tt.in)
		require.ErrorIs(t, err, messages.ErrInvalid, "%+v", tt.op)
		require.ErrorContains(t, err, tt.want, "%+v", tt.op)
	}
	for _, key := range []messages.BufferKey{{Kind: messages.BufferAG, Shape: x.Shape, Axis: 1, DType: 99}, {Kind: messages.BufferNP, Shape: x.Shape, DType: 99}} {
		_, _, err := BufferParts(m, key)
		require.ErrorIs(t, err, messages.ErrInvalid, key)
	}
	_, err := Open(machine(1, 4, 1), 1, 99)
	require.ErrorContains(t, err, "topology topology(99)")
}
