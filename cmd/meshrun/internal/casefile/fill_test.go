package casefile

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/messages"
)

func filled(t *testing.T, tensor string) ([]float32, messages.Shape, messages.Distribution) {
	c, err := Parse([]byte(`{"mesh":[2,4],"tensors":{"x":`+tensor+`},"calls":[]}`), machines)
	require.NoError(t, err)
	x := c.Tensors[0]
	shape, dist := x.Fill.Layout(x.Spec.Shape, c.Mesh)
	values, err := messages.DecodeFloats(x.Fill.Bytes(shape, x.Spec.DType), x.Spec.DType)
	require.NoError(t, err)
	require.Len(t, values, int(shape.Elements()))
	return values, shape, dist
}

func TestFills(t *testing.T) {
	v, shape, dist := filled(t, `{"shape":[1,3]}`)
	require.Equal(t, []float32{0, 0, 0}, v)
	require.Equal(t, messages.ShapeOf(1, 3), shape)
	require.Equal(t, messages.Replicate, dist)

	v, _, _ = filled(t, `{"shape":[2],"fill":{"const":1.5}}`)
	require.Equal(t, []float32{1.5, 1.5}, v)

	v, _, _ = filled(t, `{"shape":[3],"dtype":"uint32","fill":{"iota":true}}`)
	require.Equal(t, []float32{0, 1, 2}, v)

	v, _, _ = filled(t, `{"shape":[2],"dtype":"float32","fill":{"values":[-0.25,"-Inf"]}}`)
	require.Equal(t, []float32{-0.25, float32(math.Inf(-1))}, v)

	v, shape, dist = filled(t, `{"shape":[1,2],"fill":{"per_device":[0,1,2,3,4,5,6,7]}}`)
	require.Equal(t, messages.ShapeOf(8, 2), shape)
	require.Equal(t, messages.Distribution{0, 0}, dist)
	require.Equal(t, []float32{0, 0, 1, 1, 2, 2, 3, 3}, v[:8])
}

func TestGlobalTensors(t *testing.T) {
	c, err := Parse([]byte(`{"mesh":[2,4],"tensors":{"x":{"dtype":"float32","fill":{"global":[4,8],"iota":true,"shard":{"0":0,"1":-1}}}},"calls":[]}`), machines)
	require.NoError(t, err)
	x := c.Tensors[0]
	require.Equal(t, messages.ShapeOf(2, 2), x.Spec.Shape)
	shape, dist := x.Fill.Layout(x.Spec.Shape, c.Mesh)
	require.Equal(t, messages.ShapeOf(4, 8), shape)
	require.Equal(t, messages.Distribution{0, 1}, dist)

	_, shape, dist = filled(t, `{"fill":{"global":[4,8],"const":2}}`)
	require.Equal(t, messages.ShapeOf(4, 8), shape)
	require.Equal(t, messages.Replicate, dist)
}

// The first outputs of splitmix64 are published: from state 1234567 it gives 6457827717110365317.
func TestRandom(t *testing.T) {
	require.Equal(t, float64(uint64(6457827717110365317)>>40)/(1<<23)-1, random(1234567, 0))
	require.Equal(t, random(5, 0), random(4, 1), "element i of seed s begins from s XOR i")
	for i := range uint64(1000) {
		v := random(1, i)
		require.True(t, v >= -1 && v < 1 && float64(float32(v)) == v)
	}
}

func TestElementsAreRoundedOnce(t *testing.T) {
	// Halfway between two bfloat16 values, and a little more: two roundings, to float32 first, would lose the little.
	v := 1 + 1.0/256 + 1.0/(1<<40)
	b := appendElement(nil, v, messages.BFloat16)
	got, err := messages.DecodeFloats(b, messages.BFloat16)
	require.NoError(t, err)
	require.Equal(t, float32(1+1.0/128), got[0])
	for _, v := range []float64{0, 1, -1, 1e-40, 3e38, -3.39e38, 1e300, 257, 0.1} {
		b := appendElement(nil, v, messages.BFloat16)
		got, _ := messages.DecodeFloats(b, messages.BFloat16)
		want, _ := messages.EncodeFloats([]float32{float32(v)}, messages.BFloat16)
		require.Equal(t, want, b, "%v gave %v", v, got)
	}
	require.Equal(t, []byte{255, 255, 255, 255}, appendElement(nil, 5e9, messages.UInt32))
	require.Equal(t, []byte{0xff, 0xff, 0xff, 0xff}, appendElement(nil, -1, messages.Int32))
	require.Equal(t, []byte{2}, appendElement(nil, 2.5, messages.UInt8))
}
