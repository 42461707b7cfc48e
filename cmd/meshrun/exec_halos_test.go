package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// pad is a halo exchange, as its arguments say.
type pad struct {
	dims, axes, left, right []int
	mode                    string
	logicalH, front         int
}

// args are the arguments of the call.
func (p pad) args() string {
	s := fmt.Sprintf(`"dims":%s,"axes":%s,"pad_left":%s,"pad_right":%s,"padding_mode":%q`, list(p.dims), list(p.axes), list(p.left), list(p.right), p.mode)
	if p.logicalH > 0 {
		s += fmt.Sprintf(`,"logical_h":%d`, p.logicalH)
	}
	if p.front > 0 {
		s += fmt.Sprintf(`,"t_front_pad":%d`, p.front)
	}
	return s
}

// at is the element of the whole tensor at a place that may lie outside of it in the padded dims.
func (p pad) at(whole array, x []int) float64 {
	y := append([]int{}, x...)
	for i, d := range p.dims {
		n := whole.shape[d]
		if y[d] < 0 || y[d] >= n {
			if p.mode == "zeros" {
				return 0
			}
			y[d] = min(max(y[d], 0), n-1)
		}
		if i == 0 && p.logicalH > 0 && y[d] >= p.logicalH {
			return 0
		}
	}
	return whole.at(y...)
}

// local is the shape of a shard: each padded dim is cut along its axis.
func (p pad) local(whole array, mesh [2]int) []int {
	s := append([]int{}, whole.shape...)
	for i, d := range p.dims {
		s[d] /= mesh[p.axes[i]]
	}
	return s
}

// padded is what a device has once its shard has been padded.
func (p pad) padded(whole array, mesh, at [2]int) array {
	local := p.local(whole, mesh)
	shape := append([]int{}, local...)
	for i, d := range p.dims {
		shape[d] += p.left[i] + p.right[i]
	}
	if p.front > 0 {
		shape[p.dims[0]-1] += p.front
	}
	return build(func(x []int) float64 {
		y := append([]int{}, x...)
		if p.front > 0 {
			if y[p.dims[0]-1] -= p.front; y[p.dims[0]-1] < 0 {
				return 0
			}
		}
		for i, d := range p.dims {
			y[d] += at[p.axes[i]]*local[d] - p.left[i]
		}
		return p.at(whole, y)
	}, shape...)
}

// compact is the halo alone, stick by stick: H-top, H-bottom, W-left, W-right, the W parts over the padded rows.
func (p pad) compact(whole array, mesh, at [2]int) array {
	local := p.local(whole, mesh)
	rank := len(local)
	h, w, channels := rank-3, rank-2, local[rank-1]
	begin := make([]int, rank)
	for i, d := range p.dims {
		begin[d] = at[p.axes[i]] * local[d]
	}
	outer := 1
	for _, n := range local[:h] {
		outer *= n
	}
	var values []float64
	sticks := 0
	stick := func(o, row, col int) {
		x := make([]int, rank)
		for i := h - 1; i >= 0; i-- {
			x[i], o = o%local[i], o/local[i]
		}
		x[h], x[w] = begin[h]+row, begin[w]+col
		for x[rank-1] = range channels {
			values = append(values, p.at(whole, x))
		}
		sticks++
	}
	part := func(rows, cols [2]int, columnsFirst bool) {
		for o := range outer {
			if columnsFirst {
				for c := cols[0]; c < cols[1]; c++ {
					for r := rows[0]; r < rows[1]; r++ {
						stick(o, r, c)
					}
				}
				continue
			}
			for r := rows[0]; r < rows[1]; r++ {
				for c := cols[0]; c < cols[1]; c++ {
					stick(o, r, c)
				}
			}
		}
	}
	H, W := local[h], local[w]
	part([2]int{-p.left[0], 0}, [2]int{0, W}, false)
	part([2]int{H, H + p.right[0]}, [2]int{0, W}, false)
	if len(p.dims) > 1 {
		rows := [2]int{-p.left[0], H + p.right[0]}
		part(rows, [2]int{-p.left[1], 0}, true)
		part(rows, [2]int{W, W + p.right[1]}, true)
	}
	return array{[]int{sticks, channels}, values}
}

// laid is the whole tensor over the mesh, row major, float32, each padded dim cut along its axis.
func (p pad) laid(whole array, seed uint64) string {
	shard := ""
	for i, d := range p.dims {
		if i > 0 {
			shard += ","
		}
		shard += fmt.Sprintf(`"%d":%d`, p.axes[i], d)
	}
	return fmt.Sprintf(`{"dtype":"float32","layout":"row_major","fill":{"global":%s,"random":%d,"shard":{%s}}}`, list(whole.shape), seed, shard)
}

func everywhere(mesh [2]int, f func(at [2]int)) {
	for r := range mesh[0] {
		for c := range mesh[1] {
			f([2]int{r, c})
		}
	}
}

// Padded tensors against the plain array: ranks 1 to 5, one dim and two, both axes first, one-sided pads, pads as long as the extent, borders of both
// kinds, meshes with axes of 1, 2, 3 and 8.
func TestNeighborPads(t *testing.T) {
	for _, tt := range []struct {
		mesh  [2]int
		shape []int
		pad   pad
	}{
		{[2]int{1, 3}, []int{6}, pad{dims: []int{0}, axes: []int{1}, left: []int{1}, right: []int{2}}},
		{[2]int{8, 1}, []int{8, 3}, pad{dims: []int{0}, axes: []int{0}, left: []int{1}, right: []int{1}}},
		{[2]int{2, 3}, []int{4, 9}, pad{dims: []int{1, 0}, axes: []int{1, 0}, left: []int{3, 1}, right: []int{0, 2}}},
		{[2]int{2, 2}, []int{6, 4, 5}, pad{dims: []int{0, 1}, axes: []int{1, 0}, left: []int{1, 1}, right: []int{1, 1}}},
		{[2]int{3, 1}, []int{2, 9, 4, 3}, pad{dims: []int{1}, axes: []int{0}, left: []int{2}, right: []int{1}, logicalH: 7}},
		{[2]int{2, 4}, []int{1, 3, 6, 8, 4}, pad{dims: []int{2, 3}, axes: []int{0, 1}, left: []int{1, 1}, right: []int{1, 1}, front: 2}},
		{[2]int{4, 2}, []int{1, 2, 8, 4, 33}, pad{dims: []int{2, 3}, axes: []int{0, 1}, left: []int{2, 0}, right: []int{0, 1}}},
		{[2]int{2, 2}, []int{2, 1, 4, 6, 3}, pad{dims: []int{2, 3}, axes: []int{1, 0}, left: []int{0, 1}, right: []int{0, 2}}},
		{[2]int{1, 2}, []int{1, 2, 4, 6, 3}, pad{dims: []int{2, 3}, axes: []int{0, 1}, left: []int{1, 1}, right: []int{1, 1}}},
		{[2]int{2, 3}, []int{1, 2, 6, 6, 2}, pad{dims: []int{-3, -2}, axes: []int{0, 1}, left: []int{1, 1}, right: []int{1, 1}, logicalH: 4, front: 1}},
	} {
		for _, mode := range []string{"zeros", "replicate"} {
			for _, op := range []string{"neighbor_pad", "neighbor_pad_persistent_buffer"} {
				p := tt.pad
				p.mode = mode
				given := p.args()
				p.dims = append([]int{}, p.dims...)
				for i := range p.dims {
					p.dims[i] = (p.dims[i] + len(tt.shape)) % len(tt.shape)
				}
				whole := random(5, tt.shape...)
				// Twice, so that both banks are looked at.
				l := ok(t, fmt.Sprintf(`{"mesh":%s,"tensors":{"x":%s},"calls":[{"op":%q,"in":"x",%s,"out":"a"},{"op":%q,"in":"x",%s,"out":"b"}]}`, list(tt.mesh[:]), p.laid(whole, 5), op, given, op, given))
				everywhere(tt.mesh, func(at [2]int) {
					want := p.padded(whole, tt.mesh, at)
					for _, name := range []string{"a", "b"} {
						require.Equal(t, want.shape, l.Tensors[name].Shape)
						require.Equal(t, want.values, l.values(t, name, at[0], at[1]), "%s %s on %v: %v", op, mode, at, tt)
					}
				})
			}
		}
	}
}

// The compact halo, the scatter of it, and both in one call give what neighbor_pad gives.
func TestHalos(t *testing.T) {
	for _, tt := range []struct {
		mesh  [2]int
		shape []int
		pad   pad
	}{
		{[2]int{2, 2}, []int{1, 2, 6, 8, 4}, pad{dims: []int{2, 3}, axes: []int{0, 1}, left: []int{1, 1}, right: []int{1, 1}}},
		{[2]int{2, 3}, []int{1, 1, 6, 6, 3}, pad{dims: []int{2, 3}, axes: []int{1, 0}, left: []int{2, 1}, right: []int{1, 2}}},
		{[2]int{3, 1}, []int{2, 9, 4, 3}, pad{dims: []int{1}, axes: []int{0}, left: []int{2}, right: []int{2}}},
		{[2]int{1, 8}, []int{8, 5, 2}, pad{dims: []int{0}, axes: []int{1}, left: []int{1}, right: []int{0}}},
		{[2]int{1, 2}, []int{1, 1, 4, 6, 5}, pad{dims: []int{2, 3}, axes: []int{0, 1}, left: []int{1, 1}, right: []int{1, 1}}},
		{[2]int{2, 2}, []int{1, 1, 4, 6, 5}, pad{dims: []int{2, 3}, axes: []int{0, 1}, left: []int{0, 1}, right: []int{0, 1}}},
	} {
		for _, mode := range []string{"zeros", "replicate"} {
			p := tt.pad
			p.mode = mode
			whole := random(6, tt.shape...)
			both := func(i int) string {
				if i >= len(p.left) {
					return "[0,0]"
				}
				return list([]int{p.left[i], p.right[i]})
			}
			text := fmt.Sprintf(`{"mesh":%s,"policy":"hold","tensors":{"x":%s},"calls":[{"op":"neighbor_pad_halo_only","in":"x",%s,"out":"halo"},
				{"op":"halo_scatter","in":["halo","x"],"np_padding_h":%s,"np_padding_w":%s,"out":"scattered"},
				{"op":"neighbor_pad_halo_scatter","in":"x",%s,"out":"in_one"}`, list(tt.mesh[:]), p.laid(whole, 6), p.args(), both(0), both(1), p.args())
			symmetric := true
			for i := range p.left {
				symmetric = symmetric && p.left[i] == p.right[i]
			}
			if symmetric { // an input pad is the same on both sides
				w := 0
				if len(p.left) > 1 {
					w = p.left[1]
				}
				text += fmt.Sprintf(`,{"op":"neighbor_pad_halo_scatter","in":"in_one",%s,"input_pad_h":%d,"input_pad_w":%d,"border_only":true,"out":"in_place"}`, p.args(), p.left[0], w)
			}
			l := ok(t, text+"]}")
			everywhere(tt.mesh, func(at [2]int) {
				names := []string{"scattered", "in_one"}
				if symmetric {
					names = append(names, "in_place")
				}
				halo := p.compact(whole, tt.mesh, at)
				require.Equal(t, halo.shape, l.Tensors["halo"].Shape, "%v", tt)
				require.Equal(t, halo.values, l.values(t, "halo", at[0], at[1]), "%s on %v: %v", mode, at, tt)
				want := p.padded(whole, tt.mesh, at)
				for _, name := range names {
					require.Equal(t, want.shape, l.Tensors[name].Shape)
					require.Equal(t, want.values, l.values(t, name, at[0], at[1]), "%s, %s on %v: %v", name, mode, at, tt)
				}
			})
		}
	}
}

// In place: the scatter's result is another name of its input, and releasing one leaves the other.
func TestAScatterInPlaceIsAnotherName(t *testing.T) {
	const scatter = `{"op":"neighbor_pad_halo_scatter","in":"x","dims":[2,3],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1],"input_pad_h":1,"input_pad_w":1,"border_only":true,"out":"y"}`
	l := ok(t, `{"mesh":[2,2],"streams":[{"calls":[{"op":"write","shape":[1,1,4,4,2],"layout":"row_major","fill":{"const":3},"out":"x"},`+scatter+`,
		{"op":"release","tensors":["x"]},{"op":"add","in":["y","y"],"out":"z"}]}]}`)
	require.Equal(t, []string{"y", "z"}, sorted(l.Tensors))
	border := pad{dims: []int{2, 3}, axes: []int{0, 1}, left: []int{1, 1}, right: []int{1, 1}, mode: "zeros"}
	whole := constant(3, 1, 1, 4, 4, 2)
	everywhere([2]int{2, 2}, func(at [2]int) {
		require.Equal(t, border.padded(whole, [2]int{2, 2}, at).values, l.values(t, "y", at[0], at[1]))
	})
}

// Semaphores that the caller brings stand for those that the operation would draw, and come back to him.
func TestBroughtSemaphores(t *testing.T) {
	for _, policy := range []string{"hold", "rotate"} {
		l := ok(t, fmt.Sprintf(`{"mesh":[2,2],"policy":%q,"calls":[{"op":"get_np_ping_pong_semaphore","mesh_axis":0,"out":"h"},{"op":"get_np_ping_pong_semaphore","mesh_axis":1,"out":"w"},
			{"op":"neighbor_pad","shape":[1,1,4,4,2],"layout":"row_major","dims":[2,3],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1],"neighbor_sems":["h","w"]},
			{"op":"neighbor_pad_halo_only","shape":[1,1,4,4,2],"layout":"row_major","dims":[2,3],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1],"neighbor_sems":["h","w"]},
			{"op":"neighbor_pad","shape":[1,1,4,4,2],"layout":"row_major","dims":[2],"axes":[0],"pad_left":[1],"pad_right":[1]},{"op":"neighbor_pad","shape":[1,1,4,4,2],"layout":"row_major","dims":[2],"axes":[0],"pad_left":[1],"pad_right":[1]},
			{"op":"release","tensors":["h","w"]},{"op":"neighbor_pad","shape":[1,1,4,4,2],"layout":"row_major","dims":[2],"axes":[0],"pad_left":[1],"pad_right":[1]}]}`, policy))
		var drawn []any
		for _, e := range effectsOf(l, "neighbor_pad") {
			drawn = append(drawn, e["semaphores"].([]any)[0])
		}
		want := []any{"np[0].bank0", "np[0].bank1", "np[0].bank1", "np[0].bank0"} // hold: bank 0 is the caller's until he gives it back
		if policy == "rotate" {
			want = []any{"np[0].bank0", "np[0].bank1", "np[0].bank0", "np[0].bank1"}
		}
		require.Equal(t, want, drawn, policy)
		require.Equal(t, "np[0].bank0", effectsOf(l, "neighbor_pad_halo")[0]["semaphore_h"])
	}
}
