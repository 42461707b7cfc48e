package messages

import (
	"encoding/json"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestNamesRoundTrip: every enum prints a name that parses back; an unknown name is refused with the known ones.
func TestNamesRoundTrip(t *testing.T) {
	for _, d := range DTypes() {
		got, err := ParseDType(d.String())
		require.NoError(t, err)
		assert.Equal(t, d, got)
	}
	for _, top := range []Topology{TopologyUnset, Linear, Ring} {
		got, err := ParseTopology(top.String())
		require.NoError(t, err)
		assert.Equal(t, top, got)
	}
	for a := NoActivation; a <= Tanh; a++ {
		got, err := ParseActivation(a.String())
		require.NoError(t, err)
		assert.Equal(t, a, got)
	}
	_, err := ParseDType("float16")
	require.ErrorIs(t, err, ErrInvalid)
	assert.ErrorContains(t, err, `dtype "float16": must be one of bfloat16, float32, uint32`)
	_, err = ParseLayout("")
	require.Error(t, err)
	assert.Equal(t, "dtype(99)", DType(99).String())
}

// TestShape: the rank-4 view and the way back, JSON, limits.
func TestShape(t *testing.T) {
	s := ShapeOf(2, 3)
	assert.Equal(t, ShapeOf(1, 1, 2, 3), s.Rank4())
	assert.Equal(t, s, s.Rank4().Tail(2))
	assert.Equal(t, 3, s.Dim(-1))
	assert.EqualValues(t, 6, s.Elements())
	assert.Equal(t, "[2, 3]", s.String())
	b, err := json.Marshal(s)
	require.NoError(t, err)
	assert.Equal(t, "[2,3]", string(b))
	var back Shape
	require.NoError(t, json.Unmarshal(b, &back))
	assert.Equal(t, s, back)
	for _, bad := range [][]int{{0}, {-1, 2}, {1 << 31}, {1, 1, 1, 1, 1, 1, 1, 1, 1}} {
		_, err := NewShape(bad...)
		require.ErrorIs(t, err, ErrInvalid, "%v", bad)
	}
	require.Error(t, json.Unmarshal([]byte(`[1.5]`), &back))
	require.Error(t, json.Unmarshal([]byte(`[0]`), &back))
	assert.Panics(t, func() { ShapeOf(0) })
	// Counts do not wrap around: 2^64 elements are not 0.
	for _, big := range []Shape{ShapeOf(1<<16, 1<<16, 1<<16, 1<<16), ShapeOf(1<<30, 1<<30, 1<<30, 1<<30, 1<<30, 1<<30, 1<<30, 1<<30)} {
		for _, layout := range []Layout{Tile, RowMajor} {
			spec := Spec{Shape: big, DType: Float32, Layout: layout}
			assert.GreaterOrEqual(t, spec.HostBytes(), int64(1<<50), "%s", spec)
			assert.GreaterOrEqual(t, spec.DeviceBytes(), int64(1<<50), "%s", spec)
		}
	}
}

// TestDistribution: shard and global are inverse; what does not divide is refused.
func TestDistribution(t *testing.T) {
	mesh := MeshShape{Rows: 2, Cols: 4}
	for _, d := range []Distribution{Replicate, ShardOn(0, 0), ShardOn(1, 1), {0, 1}, {1, 0}} {
		global := ShapeOf(8, 16)
		shard, err := d.Shard(global, mesh)
		require.NoError(t, err)
		assert.Equal(t, global, d.Global(shard, mesh))
	}
	_, err := ShardOn(1, 0).Shard(ShapeOf(6, 2), mesh)
	require.ErrorContains(t, err, "divides by the length 4 of axis 1")
	_, err = ShardOn(1, 2).Shard(ShapeOf(6, 2), mesh)
	require.ErrorIs(t, err, ErrInvalid)
}

// TestMeshShape parses what it prints and nothing else.
func TestMeshShape(t *testing.T) {
	m, err := ParseMeshShape("2x4")
	require.NoError(t, err)
	assert.Equal(t, MeshShape{2, 4}, m)
	assert.Equal(t, "2x4", m.String())
	for _, bad := range []string{"", "2", "2x", "x4", "0x4", "2x-1", "2x4x1", "129x1", "axb"} {
		_, err := ParseMeshShape(bad)
		require.ErrorIs(t, err, ErrInvalid, bad)
	}
}

// TestBF16: every pattern survives widening and rounding; rounding is to nearest even, checked against a plain search.
func TestBF16(t *testing.T) {
	for i := range 1 << 16 {
		f := FromBF16(uint16(i))
		if f != f {
			r := FromBF16(ToBF16(f))
			require.True(t, r != r, "NaN %04x", i)
			continue
		}
		require.Equal(t, uint16(i), ToBF16(f))
	}
	for _, c := range []struct {
		bits uint32
		want uint16
	}{{0x3f800000, 0x3f80}, {0x3f807fff, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82}, {0x7f7fffff, 0x7f80}, {0xff800000, 0xff80}} {
		assert.Equal(t, c.want, ToBF16(math.Float32frombits(c.bits)), "%08x", c.bits)
	}
}

// TestEncodeDecode: floats survive their dtype; integers truncate and saturate.
func TestEncodeDecode(t *testing.T) {
	for _, c := range []struct {
		t    DType
		in   []float32
		want []float32
	}{
		{Float32, []float32{1.1, -3}, []float32{1.1, -3}},
		{BFloat16, []float32{1, 257}, []float32{1, 256}},
		{UInt8, []float32{-1, 3.9, 300}, []float32{0, 3, 255}},
		{Int32, []float32{-1.9, 7}, []float32{-1, 7}},
		{UInt16, []float32{70000}, []float32{65535}},
		{UInt32, []float32{5, float32(math.NaN())}, []float32{5, 0}},
	} {
		b, err := EncodeFloats(c.in, c.t)
		require.NoError(t, err)
		got, err := DecodeFloats(b, c.t)
		require.NoError(t, err)
		assert.Equal(t, c.want, got, c.t.String())
	}
	_, err := DecodeFloats([]byte{1, 2, 3}, Float32)
	require.ErrorIs(t, err, ErrInvalid)
	_, err = EncodeFloats([]float32{1}, DTypeUnset)
	require.ErrorIs(t, err, ErrInvalid)
}

// TestNames of semaphores and buffers are those of the recorded logs.
func TestNames(t *testing.T) {
	assert.Equal(t, "rs[0].bank1.2", SemaphoreName(PoolRS, 0, 0, 1, 2, 3, 2))
	assert.Equal(t, "exp_ring[1].bank0", SemaphoreName(PoolExpRing, 1, 0, 0, 0, 1, 2))
	assert.Equal(t, "np_region[0].3", SemaphoreName(PoolNPRegion, 0, 0, 0, 3, 4, 1))
	assert.Equal(t, "strided_ag_mm[0,2].bank0.17", SemaphoreName(PoolStridedAGMM, 0, 2, 0, 17, 18, 2))
	h := BufferKey{Kind: BufferNPHalo, Shape: ShapeOf(1, 1, 16, 16, 16), Dim: 2, Pad: [2]int{1, 1}, DType: BFloat16}
	assert.Equal(t, "np_halo(shape=[1, 1, 16, 16, 16],dim=2,pad=1,dim2=None,pad2=0,dtype=bfloat16)", h.String())
	h.HasW, h.Dim2, h.Pad2 = true, 3, [2]int{1, 0}
	assert.Equal(t, "np_halo(shape=[1, 1, 16, 16, 16],dim=2,pad=1,dim2=3,pad2=[1,0],dtype=bfloat16)", h.String())
	assert.Equal(t, "mm_progress", BufferKey{Kind: BufferMMProgress}.BankName(0, ""))
	k := BufferKey{Kind: BufferRS, Shape: ShapeOf(1, 1, 128, 256), Dim: 3, Axis: 1, DType: BFloat16}
	assert.Equal(t, "rs(shape=[1, 1, 128, 256],dim=3,axis=1).bank1.output", k.BankName(1, "output"))
	k.DType = Float32
	assert.Equal(t, "rs(shape=[1, 1, 128, 256],dim=3,axis=1,dtype=float32)", k.String())
}

// TestEffectJSON keeps the order of fields.
func TestEffectJSON(t *testing.T) {
	b, err := json.Marshal(Effect{Call: "all_gather", Fields: []Field{{"z", 1}, {"a", nil}, {"m", []string{"x"}}}})
	require.NoError(t, err)
	assert.Equal(t, `{"call":"all_gather","z":1,"a":null,"m":["x"]}`, string(b))
}

// TestErrors say what, where, the value and the rule, and keep their kind.
func TestErrors(t *testing.T) {
	e := &InvalidError{Op: "all_gather", Field: "dim", Value: "9", Rule: "is a dim", Hint: "try 3"}
	assert.Equal(t, "all_gather: dim 9: is a dim; try 3", e.Error())
	op := &OpError{Op: "matmul", Stream: "s", Launch: 4, Err: e}
	assert.Equal(t, "matmul (stream s, launch 4): all_gather: dim 9: is a dim; try 3", op.Error())
	require.ErrorIs(t, op, ErrInvalid)
	var inv *InvalidError
	require.True(t, errors.As(op, &inv))
}
