package main

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// tensor is the text of a case's tensor of random float32 values, the same on every device.
func tensor(a array, seed uint64) string {
	return fmt.Sprintf(`{"shape":%s,"dtype":"float32","fill":{"random":%d}}`, list(a.shape), seed)
}

// spread is the text of a global tensor that is cut.
func spread(a array, seed uint64, shard string) string {
	return fmt.Sprintf(`{"dtype":"float32","fill":{"global":%s,"random":%d,"shard":%s}}`, list(a.shape), seed, shard)
}

func list(v []int) string { return strings.ReplaceAll(fmt.Sprint(v), " ", ",") }

// close holds a tensor on a device against what is expected.
func closeTo(t *testing.T, l *log, name string, r, c int, want array, tolerance float64) {
	t.Helper()
	require.Equal(t, want.shape, l.Tensors[name].Shape, name)
	got := l.values(t, name, r, c)
	for i, v := range want.values {
		require.InDelta(t, v, got[i], tolerance, "%s on (%d,%d), element %v", name, r, c, want.index(i))
	}
}

// Each operation that a device does for itself, against the plain computation.
func TestOperationsOnOneDevice(t *testing.T) {
	const tight = 2e-5
	x, y := random(1, 1, 2, 33, 20), random(2, 1, 2, 33, 20)
	w, bias, row := random(3, 20, 24), random(4, 1, 24), random(5, 1, 20)
	q, k, v := random(6, 1, 2, 20, 16), random(7, 1, 2, 28, 16), random(8, 1, 2, 28, 16)
	cos, sin := random(9, 1, 1, 20, 16), random(10, 1, 1, 20, 16)
	tensors := map[string]string{"x": tensor(x, 1), "y": tensor(y, 2), "w": tensor(w, 3), "bias": tensor(bias, 4), "row": tensor(row, 5),
		"q": tensor(q, 6), "k": tensor(k, 7), "v": tensor(v, 8), "cos": tensor(cos, 9), "sin": tensor(sin, 10)}
	none := array{}
	for name, tt := range map[string]struct {
		call string
		want array
	}{
		"matmul":             {`"op":"matmul","in":["x","w"]`, matmul(x, w, none, same)},
		"matmul by names":    {`"op":"matmul","in":"x","weight":"w","bias":"bias"`, matmul(x, w, bias, same)},
		"linear":             {`"op":"linear","in":["x","w","bias"],"activation":"gelu"`, matmul(x, w, bias, gelu)},
		"matmul transposed":  {`"op":"matmul","in":["q","k"],"transpose_b":true`, matmul(q, build(func(i []int) float64 { return k.at(i[0], i[1], i[3], i[2]) }, 1, 2, 16, 28), none, same)},
		"layer_norm":         {`"op":"layer_norm","in":"x","epsilon":1e-6`, norm(x, false, 1e-6)},
		"layer_norm affine":  {`"op":"layer_norm","in":["x","row","row"]`, zip(norm(x, false, 1e-5), row, func(a, b float64) float64 { return a*b + b })},
		"rms_norm":           {`"op":"rms_norm","in":"x","weight":"row","epsilon":1e-6`, zip(norm(x, true, 1e-6), row, func(a, b float64) float64 { return a * b })},
		"rope":               {`"op":"rope","in":["q","cos","sin"]`, rope(q, cos, sin, false)},
		"rope by halves":     {`"op":"rope","in":["q","cos","sin"],"mode":"half"`, rope(q, cos, sin, true)},
		"sdpa":               {`"op":"sdpa","in":["q","k","v"]`, attention(q, k, v, 28)},
		"sdpa masked":        {`"op":"sdpa","q":"q","k":"k","v":"v","logical_n":19`, attention(q, k, v, 19)},
		"add":                {`"op":"add","in":["x","y"]`, zip(x, y, func(a, b float64) float64 { return a + b })},
		"sub, broadcast":     {`"op":"sub","in":["x","row"]`, zip(x, row, func(a, b float64) float64 { return a - b })},
		"mul by a scalar":    {`"op":"mul","in":"x","scalar":-2.5`, zip(x, x, func(a, _ float64) float64 { return a * -2.5 })},
		"addcmul":            {`"op":"addcmul","in":["x","y","row"]`, build(func(i []int) float64 { return x.at(i...) + y.at(i...)*row.at(i...) }, x.shape...)},
		"activation":         {`"op":"activation","in":"x","fn":"silu"`, zip(x, x, func(a, _ float64) float64 { return silu(a) })},
		"slice":              {`"op":"slice","in":"x","begin":[0,1,5,2],"end":[1,2,30,20]`, x.slice([]int{0, 1, 5, 2}, []int{1, 2, 30, 20})},
		"concat":             {`"op":"concat","in":["x","y","x"],"dim":1`, build(func(i []int) float64 { return []array{x, y, x}[i[1]/2].at(i[0], i[1]%2, i[2], i[3]) }, 1, 6, 33, 20)},
		"reshape":            {`"op":"reshape","in":"x","shape":[2,33,20]`, array{[]int{2, 33, 20}, x.values}},
		"reshape that moves": {`"op":"reshape","in":"x","shape":[1,1,66,20]`, array{[]int{1, 1, 66, 20}, x.values}},
		"permute":            {`"op":"permute","in":"x","order":[0,2,1,3]`, build(func(i []int) float64 { return x.at(i[0], i[2], i[1], i[3]) }, 1, 33, 2, 20)},
		"to_layout":          {`"op":"to_layout","in":"x","layout":"row_major"`, x},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var used []string
			for n, text := range tensors {
				if strings.Contains(tt.call, `"`+n+`"`) {
					used = append(used, fmt.Sprintf("%q:%s", n, text))
				}
			}
			l := ok(t, fmt.Sprintf(`{"mesh":[1,1],"tensors":{%s},"calls":[{%s,"out":"result"}]}`, strings.Join(used, ","), tt.call))
			closeTo(t, l, "result", 0, 0, tt.want, tight)
		})
	}
}

func TestTypecastRoundsToNearestEven(t *testing.T) {
	l := ok(t, `{"mesh":[1,1],"tensors":{"x":{"shape":[4],"dtype":"float32","layout":"row_major","fill":{"values":[1.00390625,1.01171875,-3.0,"NaN"]}}},
		"calls":[{"op":"typecast","in":"x","dtype":"bfloat16","out":"b"},{"op":"typecast","in":"b","dtype":"float32","out":"f"}]}`)
	require.Equal(t, "bfloat16", l.Tensors["b"].DType)
	require.Equal(t, []any{1.0, 1.015625, -3.0, "NaN"}, l.Tensors["f"].Devices[0].Values)
}

// Gathers concatenate along each line of the axis, on every device; persistent and not, on rings and on lines.
func TestGathers(t *testing.T) {
	global := random(1, 1, 1, 64, 64)
	for _, topology := range []string{"linear", "ring"} {
		for _, op := range []string{"all_gather", "all_gather_persistent_buffer"} {
			l := ok(t, fmt.Sprintf(`{"mesh":[2,4],"topology":%q,"tensors":{"x":%s},"calls":[
				{"op":%q,"in":"x","dim":-1,"mesh_axis":1,"use_hyperparams":true,"out":"rows"},{"op":%q,"in":"rows","dim":2,"mesh_axis":0,"out":"all"}]}`,
				topology, spread(global, 1, `{"0":2,"1":3}`), op, op))
			for r := range 2 {
				for c := range 4 {
					closeTo(t, l, "rows", r, c, global.shard(2, r, 2), 0)
					closeTo(t, l, "all", r, c, global, 0)
				}
			}
		}
	}
}

// A reduce-scatter leaves slice i of the sum over the line with the device at position i.
func TestReduceScatters(t *testing.T) {
	ones := build(func([]int) float64 { return 1 }, 1, 1, 32, 32)
	for _, topology := range []string{"linear", "ring"} {
		for _, op := range []string{"reduce_scatter", "reduce_scatter_persistent_buffer"} {
			l := ok(t, fmt.Sprintf(`{"mesh":[2,4],"topology":%q,"tensors":{"x":{"shape":[1,1,32,128],"dtype":"float32","fill":{"per_device":[1,2,3,4,10,20,30,40]}}},
				"calls":[{"op":%q,"in":"x","dim":3,"mesh_axis":1,"out":"y"}]}`, topology, op))
			for c := range 4 {
				closeTo(t, l, "y", 0, c, zip(ones, ones, func(a, _ float64) float64 { return 10 * a }), 0)
				closeTo(t, l, "y", 1, c, zip(ones, ones, func(a, _ float64) float64 { return 100 * a }), 0)
			}
		}
	}
}

// The norm of a width that is sharded is that of the whole width.
func TestFusedDistributedNorm(t *testing.T) {
	global := random(1, 1, 1, 32, 128)
	for _, rms := range []bool{true, false} {
		l := ok(t, fmt.Sprintf(`{"mesh":[1,4],"tensors":{"x":%s},"calls":[
			{"op":"fused_distributed_norm","in":"x","norm":%q,"mesh_axis":1,"epsilon":1e-6,"out":"y"},
			{"op":"fused_distributed_norm","in":"x","norm":%q,"mesh_axis":1,"epsilon":1e-6,"num_heads":2,"out":"heads"}]}`,
			spread(global, 1, `{"1":3}`), map[bool]string{true: "rms", false: "layer"}[rms], map[bool]string{true: "rms", false: "layer"}[rms]))
		want := norm(global, rms, 1e-6)
		for c := range 4 {
			mine := want.shard(3, c, 4)
			closeTo(t, l, "y", 0, c, mine, 2e-5)
			closeTo(t, l, "heads", 0, c, build(func(x []int) float64 { return mine.at(0, 0, x[2], x[1]*16+x[3]) }, 1, 2, 32, 16), 2e-5)
		}
	}
}

// Attention over a sequence that is sharded is that over the whole sequence; keys past logical_n do not count.
func TestRingAttention(t *testing.T) {
	q, k, v := random(1, 1, 2, 128, 16), random(2, 1, 2, 128, 16), random(3, 1, 2, 128, 16)
	const valid = 100
	l := ok(t, fmt.Sprintf(`{"mesh":[1,4],"tensors":{"q":%s,"k":%s,"v":%s},"calls":[
		{"op":"ring_joint_sdpa","in":["q","k","v"],"mesh_axis":1,"logical_n":%d,"out":"y"}]}`,
		spread(q, 1, `{"1":2}`), spread(k, 2, `{"1":2}`), spread(v, 3, `{"1":2}`), valid))
	want := attention(q, k, v, valid)
	for c := range 4 {
		closeTo(t, l, "y", 0, c, want.shard(2, c, 4), 2e-5)
	}
}

// The joint part stands behind the sequence and is attended to as a whole; its own result is the second one.
func TestRingAttentionWithAJointPart(t *testing.T) {
	q, k, v := random(1, 1, 1, 64, 16), random(2, 1, 1, 64, 16), random(3, 1, 1, 64, 16)
	jq, jk, jv := random(4, 1, 1, 32, 16), random(5, 1, 1, 32, 16), random(6, 1, 1, 32, 16)
	l := ok(t, fmt.Sprintf(`{"mesh":[2,1],"tensors":{"q":%s,"k":%s,"v":%s,"jq":%s,"jk":%s,"jv":%s},"calls":[
		{"op":"ring_joint_sdpa","in":["q","k","v","jq","jk","jv"],"cluster_axis":0,"joint_strategy":"rear","out":["y","joint"]}]}`,
		spread(q, 1, `{"0":2}`), spread(k, 2, `{"0":2}`), spread(v, 3, `{"0":2}`), tensor(jq, 4), tensor(jk, 5), tensor(jv, 6)))
	behind := func(a, b array) array {
		return build(func(x []int) float64 {
			if x[2] < 64 {
				return a.at(x...)
			}
			return b.at(x[0], x[1], x[2]-64, x[3])
		}, 1, 1, 96, 16)
	}
	want := attention(behind(q, jq), behind(k, jk), behind(v, jv), 96)
	for r := range 2 {
		closeTo(t, l, "y", r, 0, want.slice([]int{0, 0, 32 * r, 0}, []int{1, 1, 32 * (r + 1), 16}), 2e-5)
		closeTo(t, l, "joint", r, 0, want.slice([]int{0, 0, 64, 0}, []int{1, 1, 96, 16}), 2e-5)
	}
}

func TestGetters(t *testing.T) {
	l := ok(t, `{"mesh":[2,4],"num_links":2,"calls":[
		{"op":"get_ag_ping_pong_buffer","shape":[1,1,32,64],"dim":3,"mesh_axis":1},
		{"op":"get_rs_ping_pong_buffer","shape":[1,1,32,64],"dim":3,"mesh_axis":0,"out":["mid","out"]},
		{"op":"get_ag_ping_pong_semaphore","mesh_axis":1},{"op":"get_rs_ping_pong_semaphore","mesh_axis":0},{"op":"get_barrier_semaphore","mesh_axis":0},
		{"op":"get_rs_ping_pong_buffer","shape":[1,1,32,64],"dim":3,"mesh_axis":0,"return_intermediate":false,"out":"alone"},
		{"op":"get_ag_hyperparams","shape":[1,1,513,64]},{"op":"get_rs_hyperparams","shape":[1,1,32,64]}]}`)
	require.Equal(t, map[string]any{"shape": []any{1.0, 1.0, 32.0, 256.0}, "buffer": "ag(shape=[1, 1, 32, 64],dim=3,axis=1,dtype=bfloat16).bank0"},
		l.find(t, "get_ag_ping_pong_buffer").Returns)
	require.Equal(t, []any{"rs(shape=[1, 1, 32, 64],dim=3,axis=0).bank0.intermediate", "rs(shape=[1, 1, 32, 64],dim=3,axis=0).bank0.output"},
		l.Rows[2].Returns)
	require.Equal(t, []int{1, 1, 32, 32}, l.Tensors["alone"].Shape)
	require.Equal(t, []int{2, 1, 32, 64}, l.Tensors["mid"].Shape)
	require.Equal(t, []int{1, 1, 32, 32}, l.Tensors["out"].Shape)
	require.Equal(t, []any{"ag[1].bank0.0", "ag[1].bank0.1"}, l.find(t, "get_ag_ping_pong_semaphore").Returns)
	require.Equal(t, []any{"rs[0].bank0.0", "rs[0].bank0.1", "rs[0].bank0.2"}, l.find(t, "get_rs_ping_pong_semaphore").Returns)
	require.Equal(t, "barrier[0].bank0", l.find(t, "get_barrier_semaphore").Returns)
	require.Equal(t, map[string]any{"chunks_per_sync": 16.0, "num_workers_per_link": 3.0, "num_buffers_per_channel": 2.0}, l.find(t, "get_ag_hyperparams").Returns)
	require.Equal(t, map[string]any{"chunks_per_sync": 2.0, "num_workers_per_link": 2.0, "num_buffers_per_channel": 2.0}, l.find(t, "get_rs_hyperparams").Returns)
}

func TestFillsReachTheDevices(t *testing.T) {
	l := ok(t, `{"mesh":[2,2],"tensors":{
		"const":{"shape":[1,2],"layout":"row_major","fill":{"const":1.5}},
		"each":{"shape":[2],"layout":"row_major","fill":{"per_device":[0,1,2,3]}},
		"iota":{"shape":[1,3],"dtype":"uint32","layout":"row_major","fill":{"iota":true}},
		"given":{"shape":[2],"dtype":"float32","layout":"row_major","fill":{"values":["-Inf",-0.0]}},
		"cut":{"dtype":"int32","layout":"row_major","fill":{"global":[2,4],"iota":true,"shard":{"0":0,"1":1}}},
		"half":{"dtype":"float32","layout":"row_major","fill":{"global":[4],"iota":true,"shard":{"1":0}}},
		"zero":{"shape":[2]}},
		"calls":[]}`)
	require.Equal(t, []float64{1.5, 1.5}, l.values(t, "const", 1, 1))
	require.Equal(t, []float64{2, 2}, l.values(t, "each", 1, 0))
	require.Equal(t, []float64{0, 1, 2}, l.values(t, "iota", 0, 1))
	require.Equal(t, "-Inf", l.Tensors["given"].Devices[0].Values[0])
	require.True(t, math.Signbit(l.Tensors["given"].Devices[0].Values[1].(float64)))
	require.Equal(t, []float64{6, 7}, l.values(t, "cut", 1, 1))
	require.Equal(t, []float64{2, 3}, l.values(t, "half", 0, 1))
	require.Equal(t, []float64{0, 0}, l.values(t, "zero", 0, 0))
}
