package axis

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/messages"
)

// TestGroupNorm: statistics have count, mean and distances per group; what does not fit is named.
func TestGroupNorm(t *testing.T) {
	m := mesh(t, 2, 4, 1, messages.Linear)
	x := rows(2, 3, 4, 5, 6)
	p, err := Make(m, messages.GroupNormStats{Groups: 3, LogicalH: 8, AxisH: 0, LogicalW: 20, AxisW: 1}, []messages.Spec{x})
	require.NoError(t, err)
	stats := p.Outputs[0].Driver
	assert.Equal(t, messages.ShapeOf(1, 1, 2, 9), stats.Shape)
	assert.Equal(t, messages.Float32, stats.DType)
	stats.Shape = stats.Shape.With(0, 8)
	p, err = Make(m, messages.GroupNorm{Groups: 3, Epsilon: 1e-6}, []messages.Spec{x, rows(6), rows(1, 6), stats})
	require.NoError(t, err)
	assert.Equal(t, x.Shape, p.Outputs[0].Shape)
	assert.Zero(t, p.NumSemaphores+p.NumBuffers)

	tiled := x
	tiled.Layout = messages.Tile
	for _, c := range []struct {
		op    messages.Operation
		in    []messages.Spec
		field string
	}{
		{messages.GroupNorm{Groups: 4}, []messages.Spec{x}, "groups"},
		{messages.GroupNorm{}, []messages.Spec{x}, "groups"},
		{messages.GroupNorm{Groups: 3}, []messages.Spec{tiled}, "input layout"},
		{messages.GroupNorm{Groups: 3}, []messages.Spec{rows(6)}, "input"},
		{messages.GroupNorm{Groups: 3, Epsilon: -1}, []messages.Spec{x}, "epsilon"},
		{messages.GroupNorm{Groups: 3, Activation: messages.Tanh + 1}, []messages.Spec{x}, "activation"},
		{messages.GroupNorm{Groups: 3}, []messages.Spec{x, {}, rows(2, 6)}, "bias"},
		{messages.GroupNorm{Groups: 3}, []messages.Spec{x, {}, {}, rows(1, 1, 2, 9)}, "stats"},
		{messages.GroupNormStats{Groups: 3, LogicalH: 9}, []messages.Spec{x}, "logical_h"},
		{messages.GroupNormStats{Groups: 3, LogicalW: -1, AxisW: 1}, []messages.Spec{x}, "logical_w"},
		{messages.GroupNormStats{Groups: 3, LogicalW: 1, AxisW: 2}, []messages.Spec{x}, "axis_w"},
		{messages.GroupNormStats{Groups: 3, LogicalH: 1}, []messages.Spec{rows(2, 4, 6)}, "logical_h"},
		{messages.GroupNormStats{Groups: 3, LogicalH: 1, AxisH: 1, LogicalW: 1, AxisW: 1}, []messages.Spec{x}, "axis_h and axis_w"},
	} {
		_, err := Make(m, c.op, c.in)
		var invalid *messages.InvalidError
		require.ErrorAs(t, err, &invalid, "%+v", c.op)
		assert.Equal(t, c.field, invalid.Field)
	}
}
