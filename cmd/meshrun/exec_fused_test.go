package main

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// conv is a convolution of [N, T, H, W, C] with zeros, or the border, round it; the weight is [taps x channels, out], taps outermost.
func conv(x, w, bias array, kernel, stride, padding [3]int, replicate bool) array {
	out := w.shape[1]
	channels := x.shape[4]
	shape := []int{x.shape[0], 0, 0, 0, out}
	for i := range 3 {
		shape[i+1] = (x.shape[i+1]+2*padding[i]-kernel[i])/stride[i] + 1
	}
	return build(func(o []int) float64 {
		sum := bias.at(0, o[4])
		for kt := range kernel[0] {
			for kh := range kernel[1] {
				for kw := range kernel[2] {
					at := []int{o[0], 0, 0, 0, 0}
					inside := true
					for i, k := range []int{kt, kh, kw} {
						at[i+1] = o[i+1]*stride[i] + k - padding[i]
						if at[i+1] < 0 || at[i+1] >= x.shape[i+1] {
							inside = inside && replicate
							at[i+1] = min(max(at[i+1], 0), x.shape[i+1]-1)
						}
					}
					if !inside {
						continue
					}
					for at[4] = range channels {
						sum += x.at(at...) * w.at(((kt*kernel[1]+kh)*kernel[2]+kw)*channels+at[4], o[4])
					}
				}
			}
		}
		return sum
	}, shape...)
}

// part is the shard of a device: dim i cut along an axis.
func part(a array, mesh, at [2]int, dims ...int) array {
	begin, end := make([]int, len(a.shape)), append([]int{}, a.shape...)
	for axis, d := range dims {
		if d < 0 {
			continue
		}
		n := a.shape[d] / mesh[axis]
		begin[d], end[d] = at[axis]*n, (at[axis]+1)*n
	}
	return a.slice(begin, end)
}

func TestConvolutions(t *testing.T) {
	x, w, b := random(1, 1, 3, 8, 12, 6), random(2, 27*6, 10), random(3, 1, 10)
	const tensors = `"x":{"dtype":"float32","layout":"row_major","fill":{"global":[1,3,8,12,6],"random":1%s}},"w":{"shape":[162,10],"dtype":"float32","fill":{"random":2}},"b":{"shape":[1,10],"dtype":"float32","fill":{"random":3}}`
	for _, tt := range []struct{ stride, padding [3]int }{{[3]int{1, 1, 1}, [3]int{0, 0, 0}}, {[3]int{1, 1, 1}, [3]int{1, 1, 1}}, {[3]int{1, 2, 2}, [3]int{0, 1, 1}}} {
		l := ok(t, fmt.Sprintf(`{"mesh":[1,1],"tensors":{`+tensors+`},"calls":[{"op":"conv3d","in":["x","w","b"],"kernel":[3,3,3],"stride":%s,"padding":%s,"out_channels":10,"out":"y"}]}`,
			"", list(tt.stride[:]), list(tt.padding[:])))
		closeTo(t, l, "y", 0, 0, conv(x, w, b, [3]int{3, 3, 3}, tt.stride, tt.padding, false), 2e-5)
	}
	refusedCall(t, "[1,1]", fmt.Sprintf(tensors, ""), `"op":"conv3d","in":["x","w","b"],"kernel":[3,3,3],"out_channels":11`, "out_channels 11")

	// Over a mesh: the exchange and the convolution, in two calls and in one; H on either axis.
	for _, mesh := range [][2]int{{2, 2}, {4, 3}, {1, 2}, {2, 1}} {
		for _, axes := range [][2]int{{0, 1}, {1, 0}} {
			if 8%mesh[axes[0]] != 0 || 12%mesh[axes[1]] != 0 {
				continue
			}
			for _, mode := range []string{"zeros", "replicate"} {
				want := conv(x, w, b, [3]int{3, 3, 3}, [3]int{1, 1, 1}, [3]int{0, 1, 1}, mode == "replicate")
				shard := fmt.Sprintf(`,"shard":{"%d":2,"%d":3}`, axes[0], axes[1])
				l := ok(t, fmt.Sprintf(`{"mesh":%s,"tensors":{`+tensors+`},"calls":[
					{"op":"neighbor_pad_halo_only","in":"x","dims":[2,3],"axes":%s,"pad_left":[1,1],"pad_right":[1,1],"padding_mode":%q,"out":"halo"},
					{"op":"conv3d","in":["x","w","b","halo"],"kernel":[3,3,3],"padding":[0,1,1],"out":"two"},
					{"op":"np_conv3d","in":["x","w","b"],"kernel":[3,3,3],"padding":[0,1,1],"axes":%s,"padding_mode":%q,"out":"one"},
					{"op":"np_conv3d","in":["x","w","b"],"kernel":[3,3,3],"padding":[0,1,1],"axes":%s,"padding_mode":%q,"out":"again"}]}`,
					list(mesh[:]), shard, list(axes[:]), mode, list(axes[:]), mode, list(axes[:]), mode))
				dims := []int{2, 3}
				if axes[0] == 1 {
					dims = []int{3, 2}
				}
				everywhere(mesh, func(at [2]int) {
					for _, name := range []string{"two", "one", "again"} {
						closeTo(t, l, name, at[0], at[1], part(want, mesh, at, dims...), 2e-5)
					}
				})
				require.Equal(t, l.Tensors["two"].Devices[0].SHA256, l.Tensors["one"].Devices[0].SHA256, "the way does not change a bit")
			}
		}
	}
}

func TestStridedMatmuls(t *testing.T) {
	x, w, b := random(1, 1, 1, 33, 96), random(2, 96, 48), random(3, 1, 48)
	for _, mesh := range [][2]int{{1, 4}, {3, 1}, {2, 3}} {
		for axis := range 2 {
			n := mesh[axis]
			if n == 1 {
				continue
			}
			for _, topology := range []string{"linear", "unset"} {
				shard := [2]string{fmt.Sprintf(`{"%d":3}`, axis), fmt.Sprintf(`{"%d":0}`, axis)}
				text := fmt.Sprintf(`{"mesh":%s,"topology":%q,"num_links":2,"tensors":{"x":%s,"w":%s,"b":%s},"calls":[
					{"op":"strided_all_gather_minimal_matmul","in":["x","w","b"],"mesh_axis":%d,"activation":"silu","out":"a"},
					{"op":"strided_all_gather_minimal_matmul","in":["x","w"],"mesh_axis":%d,"num_workers_per_link":3,"out":"b2"}]}`,
					list(mesh[:]), topology, spread(x, 1, shard[0]), tensor(w, 2), tensor(b, 3), axis, axis)
				l := ok(t, text)
				everywhere(mesh, func(at [2]int) {
					closeTo(t, l, "a", at[0], at[1], matmul(x, w, b, silu), 5e-5)
					closeTo(t, l, "b2", at[0], at[1], matmul(x, w, array{}, same), 5e-5)
				})
			}
			if n < 3 {
				continue // a line
			}
			// x is cut along K and w along its rows: the sum over the line is the product, each device has its columns.
			r, g := random(4, 1, 1, 33, 48), random(5, 1, 1, 1, 48)
			cut := func(dim int) string { return fmt.Sprintf(`{"%d":%d}`, axis, dim) }
			l := ok(t, fmt.Sprintf(`{"mesh":%s,"tensors":{"x":%s,"w":%s,"b":%s,"r":%s,"g":%s},"calls":[
				{"op":"matmul_strided_reduce_scatter","in":["x","w"],"mesh_axis":%d,"out":"a"},
				{"op":"matmul_strided_reduce_scatter","in":["x","w","b"],"mesh_axis":%d,"use_persistent_buffer":true,"fused_semaphores":true,"out":"c"},
				{"op":"matmul_strided_reduce_scatter","in":["x","w",null,"r","g"],"mesh_axis":%d,"credits":true,"scalar":0.5,"out":"d"}]}`,
				list(mesh[:]), spread(x, 1, cut(3)), spread(w, 2, cut(0)), spread(b, 3, cut(1)), spread(r, 4, cut(3)), spread(g, 5, cut(3)), axis, axis, axis))
			whole := matmul(x, w, array{}, same)
			dims := []int{-1, -1}
			dims[axis] = 3
			fused := build(func(i []int) float64 { return r.at(i...) + 0.5*whole.at(i...)*g.at(i...) }, 1, 1, 33, 48)
			everywhere(mesh, func(at [2]int) {
				closeTo(t, l, "a", at[0], at[1], part(whole, mesh, at, dims...), 5e-5)
				closeTo(t, l, "c", at[0], at[1], part(matmul(x, w, b, same), mesh, at, dims...), 5e-5)
				closeTo(t, l, "d", at[0], at[1], part(fused, mesh, at, dims...), 5e-5)
			})
			e := effectsOf(l, "matmul_strided_reduce_scatter")
			require.Equal(t, "mm_progress", e[0]["progress"])
			require.Nil(t, e[0]["credit"])
			require.Equal(t, fmt.Sprintf("rs_fused[%d].bank0.0", axis), e[1]["semaphores"].([]any)[0])
			require.Equal(t, "mm_credit", e[2]["credit"])
		}
	}
}

func TestExpRingAttentionIsRingAttention(t *testing.T) {
	q, k, v := random(1, 1, 2, 96, 16), random(2, 1, 2, 96, 16), random(3, 1, 2, 96, 16)
	for _, mesh := range [][2]int{{1, 4}, {3, 1}, {2, 2}} {
		for axis := range 2 {
			cut := fmt.Sprintf(`{"%d":2}`, axis)
			l := ok(t, fmt.Sprintf(`{"mesh":%s,"num_links":2,"tensors":{"q":%s,"k":%s,"v":%s},"calls":[
				{"op":"exp_ring_joint_sdpa","in":["q","k","v"],"mesh_axis":%d,"logical_n":77,"out":"a"},{"op":"exp_ring_joint_sdpa","in":["q","k","v"],"mesh_axis":%d,"logical_n":77,"out":"b"},
				{"op":"ring_joint_sdpa","in":["q","k","v"],"mesh_axis":%d,"logical_n":77,"out":"c"}]}`, list(mesh[:]), spread(q, 1, cut), spread(k, 2, cut), spread(v, 3, cut), axis, axis, axis))
			want := attention(q, k, v, 77)
			dims := []int{-1, -1}
			dims[axis] = 2
			everywhere(mesh, func(at [2]int) {
				for _, name := range []string{"a", "b", "c"} {
					closeTo(t, l, name, at[0], at[1], part(want, mesh, at, dims...), 2e-5)
				}
			})
		}
	}
}

func TestPointToPoint(t *testing.T) {
	for _, tt := range []struct {
		pairs string
		want  []float64
	}{
		{`[[[0,0],[0,2]]]`, []float64{1, 2, 1, 4, 5, 6}},
		{`[[[0,0],[0,1]],[[0,1],[0,2]],[[0,2],[0,0]],[[1,0],[1,2]]]`, []float64{3, 1, 2, 4, 5, 4}},
		{`[[[0,0],[1,0]],[[1,1],[0,1]]]`, []float64{1, 5, 3, 1, 5, 6}},
	} {
		for _, layout := range []string{"tile", "row_major"} {
			l := ok(t, fmt.Sprintf(`{"mesh":[2,3],"tensors":{"x":{"shape":[3,5],"layout":%q,"fill":{"per_device":[1,2,3,4,5,6]}}},"calls":[
				{"op":"point_to_point","in":"x","pairs":%s,"out":"y"},{"op":"point_to_point","in":"x","pairs":%s,"out":"z"}]}`, layout, tt.pairs, tt.pairs))
			for _, name := range []string{"y", "z"} {
				exactly(t, l, name, 2, 3, func(r, c int) array { return constant(tt.want[3*r+c], 3, 5) })
			}
		}
	}
}

func TestDeviceToHost(t *testing.T) {
	whole := random(9, 2, 3, 12, 16)
	for dims, want := range map[string]array{"[2,3]": whole, "[-2,null]": part(whole, [2]int{2, 4}, [2]int{0, 0}, -1, 3), "[null,-1]": part(whole, [2]int{2, 4}, [2]int{0, 0}, 2, -1),
		"[null,null]": part(whole, [2]int{2, 4}, [2]int{0, 0}, 2, 3)} {
		for _, layout := range []string{"tile", "row_major"} {
			for _, persistent := range []string{"true", "false"} {
				l := ok(t, fmt.Sprintf(`{"mesh":[2,4],"tensors":{"x":{"dtype":"float32","layout":%q,"fill":{"global":[2,3,12,16],"random":9,"shard":{"0":2,"1":3}}}},"calls":[
					{"op":"device_to_host","in":"x","mesh_dims":%s,"use_persistent_buffer":%s,"out":"host"},{"op":"add","in":["host","x"],"expect":{"error":"a copy on the host"}}]}`, layout, dims, persistent))
				require.Len(t, l.Tensors["host"].Devices, 1, "one device is read")
				closeTo(t, l, "host", 0, 0, want, 0)
			}
		}
	}
}

// A reset goes back to bank 0 everywhere, and is refused while somebody holds semaphores.
func TestReset(t *testing.T) {
	for _, name := range []string{"reset_global_semaphores", "reset"} {
		gather := `{"op":"all_gather_persistent_buffer","shape":[1,1,32,32],"dim":3,"mesh_axis":1}`
		l := ok(t, fmt.Sprintf(`{"mesh":[2,4],"calls":[%s,{"op":"get_np_fused_ping_pong_semaphore","mesh_axis":0},{"op":%q},%s,{"op":"get_np_fused_ping_pong_semaphore","mesh_axis":0}]}`, gather, name, gather))
		require.Equal(t, l.Rows[1].Returns, l.Rows[4].Returns)
		require.Equal(t, "np_fused[0].bank0", l.Rows[5].Returns)
		require.Len(t, named(l.Rows[3], "reset_semaphore", "sem"), 48+4, "every pool that is there")
		require.Equal(t, name, l.Rows[3].Step)
	}
	p := execute(`{"mesh":[2,4],"streams":[{"calls":[{"op":"get_sr_ping_pong_semaphore","mesh_axis":0,"out":"mine"},{"op":"reset","expect":{"error":"callers hold 1 banks"}},
		{"op":"release","tensors":["mine"]},{"op":"reset"}]}]}`)
	require.Equal(t, 0, p.code, p.stderr)
}

// A getter whose caller has promised a fence makes its buffers without one; using them before it is refused.
func TestAPromisedFence(t *testing.T) {
	const get = `{"op":"get_ag_ping_pong_buffer","shape":[1,1,32,32],"dim":3,"mesh_axis":1,"device_synchronize":%t}`
	const gather = `{"op":"all_gather_persistent_buffer","shape":[1,1,32,32],"dim":3,"mesh_axis":1%s}`
	l := ok(t, fmt.Sprintf(`{"mesh":[2,4],"calls":[`+get+`,`+gather+`,{"op":"fence"},`+gather+`]}`, false, `,"expect":{"error":"behind a fence"}`, ""))
	require.Len(t, named(l.Rows[1], "allocate", "buf"), 2)
	for _, e := range l.Rows[1].Effects {
		require.NotEqual(t, "synchronize", call(e))
	}
	l = ok(t, fmt.Sprintf(`{"mesh":[2,4],"calls":[`+get+`,`+gather+`]}`, true, ""))
	require.Len(t, l.Rows[1].Effects, 4)
}

func TestGroupNorms(t *testing.T) {
	x := random(1, 2, 3, 4, 8)
	want := build(func(i []int) float64 {
		g := i[3] / 4
		mean, square := 0.0, 0.0
		for r := range 3 {
			for c := range 4 {
				for k := range 4 {
					mean += x.at(i[0], r, c, 4*g+k) / 48
				}
			}
		}
		for r := range 3 {
			for c := range 4 {
				for k := range 4 {
					d := x.at(i[0], r, c, 4*g+k) - mean
					square += d * d / 48
				}
			}
		}
		return (x.at(i...) - mean) / math.Sqrt(square+1e-5)
	}, 2, 3, 4, 8)
	l := ok(t, `{"mesh":[1,1],"tensors":{"x":{"shape":[2,3,4,8],"dtype":"float32","layout":"row_major","fill":{"random":1}}},"calls":[{"op":"group_norm","in":"x","groups":2,"out":"y"}]}`)
	closeTo(t, l, "y", 0, 0, want, 2e-5)
	// Cut along H and W: each device's statistics, gathered along dim 0.
	l = ok(t, `{"mesh":[3,2],"tensors":{"x":{"dtype":"float32","layout":"row_major","fill":{"global":[2,3,4,8],"random":1,"shard":{"0":1,"1":2}}}},"calls":[
		{"op":"group_norm_stats","in":"x","groups":2,"out":"s"},{"op":"all_gather","in":"s","dim":0,"mesh_axis":0,"out":"s"},{"op":"all_gather","in":"s","dim":0,"mesh_axis":1,"out":"s"},
		{"op":"group_norm","in":"x","stats":"s","groups":2,"out":"y"}]}`)
	everywhere([2]int{3, 2}, func(at [2]int) { closeTo(t, l, "y", at[0], at[1], part(want, [2]int{3, 2}, at, 1, 2), 2e-5) })
	refusedCall(t, "[1,1]", "", `"op":"group_norm","shape":[2,3,4,8],"layout":"row_major","groups":3`, "groups 3")
}
