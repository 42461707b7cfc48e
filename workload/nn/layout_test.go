package nn

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
)

func TestParseFactor(t *testing.T) {
	for text, want := range map[string]Factor{"4@1": {4, 1}, "1@0": {1, 0}, "32@1": {32, 1}, "1": {1, 0}} {
		f, err := ParseFactor(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, f)
	}
	for _, text := range []string{"", "4", "4@", "@1", "4@2", "4@-1", "0@1", "-2@0", "x@1", "4@1@0", "4 @1", "1.5@0"} {
		_, err := ParseFactor(text)
		require.ErrorIs(t, err, messages.ErrInvalid, text)
		assert.ErrorContains(t, err, "is DEGREE@AXIS, such as 4@1")
	}
	assert.Equal(t, "4@1", Factor{4, 1}.String())
}

func TestLayout(t *testing.T) {
	mesh := func(r, c int) meshrun.MeshShape { return meshrun.MeshShape{Rows: r, Cols: c} }
	for _, c := range []struct {
		mesh   meshrun.MeshShape
		tp, sp Factor
	}{
		{mesh(1, 1), Factor{}, Factor{}},
		{mesh(1, 1), Factor{1, 1}, Factor{1, 1}},
		{mesh(2, 4), Factor{4, 1}, Factor{2, 0}},
		{mesh(2, 4), Factor{2, 0}, Factor{4, 1}},
		{mesh(1, 4), Factor{4, 1}, Factor{1, 1}},
		{mesh(1, 4), Factor{1, 0}, Factor{4, 1}},
		{mesh(3, 1), Factor{3, 0}, Serial},
	} {
		_, err := NewLayout(c.mesh, c.tp, c.sp)
		assert.NoError(t, err, "%v", c)
	}
	for _, c := range []struct {
		mesh   meshrun.MeshShape
		tp, sp Factor
		want   string
	}{
		{mesh(2, 4), Factor{2, 1}, Factor{2, 0}, "layout: tp 2@1: is the length of its axis, 4 on axis 1 of mesh 2x4, or 1"},
		{mesh(2, 4), Factor{4, 1}, Factor{4, 1}, "layout: sp 4@1: lies on another axis than tp, 4@1"},
		{mesh(2, 4), Factor{4, 1}, Serial, "layout: mesh 2x4: has tp x sp devices, 4 x 1"},
		{mesh(2, 4), Factor{4, 2}, Factor{2, 0}, "layout: tp 4@2: lies on axis 0 (down the rows) or 1 (along the columns)"},
		{mesh(2, 4), Factor{4, 1}, Factor{2, -1}, "layout: sp 2@-1: lies on axis 0"},
		{mesh(2, 4), Factor{4, 1}, Factor{-2, 0}, "layout: sp -2@0: has a degree of at least 1"},
		{mesh(0, 4), Factor{4, 1}, Serial, "mesh 0x4: has 1 to 128 rows"},
	} {
		_, err := NewLayout(c.mesh, c.tp, c.sp)
		require.ErrorIs(t, err, messages.ErrInvalid, "%v", c)
		assert.ErrorContains(t, err, c.want)
	}
	l, err := NewLayout(mesh(2, 4), Factor{4, 1}, Factor{2, 0})
	require.NoError(t, err)
	assert.EqualError(t, l.CheckDivides("num_attention_heads", 6), "layout: tp 4@1: divides num_attention_heads, 6")
	assert.NoError(t, l.CheckDivides("num_attention_heads", 8))
	assert.Equal(t, 128, l.PaddedRows(120))
	assert.Equal(t, 128, l.PaddedRows(128))
	assert.Equal(t, 64, l.PaddedRows(1))
	assert.Equal(t, meshrun.Distribution{2, 3}, l.Activations())
	assert.Equal(t, meshrun.Distribution{2, messages.Replicated}, l.Rows())
	assert.Equal(t, meshrun.Distribution{messages.Replicated, 1}, l.Width(1))
	assert.Equal(t, meshrun.Replicate, One().Activations())
}
