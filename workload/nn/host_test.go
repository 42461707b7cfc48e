package nn

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/workload/checkpoint"
)

func TestTranspose(t *testing.T) {
	for _, size := range []int{2, 4} {
		const rows, columns = 67, 130 // more than a block, no multiple of it
		data := make([]byte, rows*columns*size)
		for i := range data {
			data[i] = byte(i * 7)
		}
		for _, order := range []func(int) int{nil, func(r int) int { return rows - 1 - r }} {
			out := transpose(data, rows, columns, size, order)
			for r := range rows {
				to := r
				if order != nil {
					to = order(r)
				}
				for c := range columns {
					require.Equal(t, data[(r*columns+c)*size:(r*columns+c+1)*size], out[(c*rows+to)*size:(c*rows+to+1)*size])
				}
			}
		}
	}
	assert.Nil(t, transpose(nil, 2, 2, 4, nil))
}

// TestRope compares with the angles of a small case computed by hand.
func TestRope(t *testing.T) {
	r := Rope{Dims: []int{4, 2}, Theta: 100}
	cos, sin := r.Tables(2, 3, func(token, coordinate int) int { return []int{3, 5}[coordinate] * token })
	require.Len(t, cos, 18)
	angles := []float64{3, 3, 0.3, 0.3, 5, 5}
	for j, a := range angles {
		assert.Equal(t, float32(1), cos[j])
		assert.Zero(t, sin[j])
		assert.InDelta(t, math.Cos(a), cos[6+j], 1e-7)
		assert.InDelta(t, math.Sin(a), sin[6+j], 1e-7)
		assert.Equal(t, float32(1), cos[12+j], "padding does not turn")
		assert.Zero(t, sin[12+j])
	}
}

func TestSinusoids(t *testing.T) {
	v := Sinusoids([]float32{0, 250}, 4)
	assert.Equal(t, []float32{1, 1, 0, 0}, v[:4])
	for i, want := range []float64{math.Cos(250), math.Cos(2.5), math.Sin(250), math.Sin(2.5)} {
		assert.InDelta(t, want, v[4+i], 3e-5)
	}
}

// TestPut puts a 2x2 mesh of shards together.
func TestPut(t *testing.T) {
	whole := checkpoint.Array{Shape: []int{2, 1, 2, 4}, Values: make([]float32, 16)}
	for r := range 2 {
		for c := range 2 {
			shard := []float32{0, 1, 2, 3} // [2, 1, 1, 2]
			for i := range shard {
				shard[i] += float32(100*r + 10*c)
			}
			put(whole, shard, []int{2, 1, 1, 2}, []int{0, 0, r, 2 * c})
		}
	}
	assert.Equal(t, []float32{0, 1, 10, 11, 100, 101, 110, 111, 2, 3, 12, 13, 102, 103, 112, 113}, whole.Values)
	assert.Equal(t, -1, messages.Replicated)
}
