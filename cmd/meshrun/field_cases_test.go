package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What broke for people who do this work, as cases: each test is named by what broke, and holds the right answer. The neighbours of each stand
// beside it: other axes and dims, ranks, sizes around a tile, axes of one, two, three and eight.

// constant is an array that holds one value.
func constant(v float64, shape ...int) array {
	return build(func([]int) float64 { return v }, shape...)
}

// exactly holds a tensor on every device of a mesh against what is expected there.
func exactly(t *testing.T, l *log, name string, rows, cols int, want func(r, c int) array) {
	t.Helper()
	for r := range rows {
		for c := range cols {
			w := want(r, c)
			require.Equal(t, w.shape, l.Tensors[name].Shape, name)
			require.Equal(t, w.values, l.values(t, name, r, c), "%s on (%d,%d)", name, r, c)
		}
	}
}

// ascending is the per_device fill 1, 2, 3, ... of n devices.
func ascending(n int) string {
	v := make([]int, n)
	for i := range v {
		v[i] = i + 1
	}
	return list(v)
}

// effectsOf are the effects of one call over all rows.
func effectsOf(l *log, name string) []map[string]any {
	var out []map[string]any
	for _, r := range l.Rows {
		for _, e := range r.Effects {
			if call(e) == name {
				out = append(out, e)
			}
		}
	}
	return out
}

// allocated is the shape of a buffer that was allocated.
func allocated(t *testing.T, l *log, name string) []any {
	t.Helper()
	for _, e := range effectsOf(l, "allocate") {
		if e["buf"] == name {
			return e["shape"].([]any)
		}
	}
	require.Fail(t, "not allocated", name)
	return nil
}

func numbers(v ...int) []any {
	out := make([]any, len(v))
	for i := range v {
		out[i] = float64(v[i])
	}
	return out
}

// refusedCall runs a case whose last call must be refused before anything is enqueued, with the texts in its error; what follows must still work.
func refusedCall(t *testing.T, mesh, tensors, bad string, want ...string) {
	t.Helper()
	p := execute(fmt.Sprintf(`{"mesh":%s,"tensors":{%s},"calls":[{%s}]}`, mesh, tensors, bad))
	require.Equal(t, 2, p.code, "%s: %s", bad, p.stderr)
	require.Equal(t, 1, strings.Count(p.stderr, "\n"), p.stderr)
	l := readLog(t, p.stdout)
	last := l.Rows[len(l.Rows)-1]
	require.Empty(t, last.Effects, "nothing was enqueued")
	for _, w := range want {
		require.Contains(t, last.Error, w)
		require.Contains(t, p.stderr, w)
	}
}

func TestFieldA8TheIntermediateOfAReduceScatterDependsOnTheTopology(t *testing.T) {
	for _, tt := range []struct {
		topology     string
		shape        []int
		dim, n       int
		intermediate []int
	}{
		{`"ring"`, []int{1, 1, 64, 256}, 3, 4, []int{1, 1, 64, 256}},
		{`"linear"`, []int{1, 1, 64, 256}, 3, 4, []int{2, 1, 64, 256}},
		{`"unset"`, []int{1, 1, 64, 256}, 3, 4, []int{1, 1, 64, 256}},
		{`"ring"`, []int{1, 1, 64, 256}, 3, 2, []int{2, 1, 64, 256}}, // an axis of two is a line
		{`"unset"`, []int{1, 1, 64, 256}, 2, 2, []int{2, 1, 64, 256}},
		{`"linear"`, []int{96, 256}, 0, 3, []int{2, 1, 96, 256}},
		{`"ring"`, []int{96, 256}, 0, 3, []int{1, 1, 96, 256}},
		{`"linear"`, []int{2, 64, 256}, 1, 8, []int{2, 2, 64, 256}},
		{`"ring"`, []int{3, 1, 64, 256}, -1, 8, []int{3, 1, 64, 256}},
		{`"linear"`, []int{8, 1, 32, 32}, 0, 8, []int{16, 1, 32, 32}},
	} {
		for axis := range 2 {
			mesh, rows, cols := fmt.Sprintf("[1,%d]", tt.n), 1, tt.n
			if axis == 0 {
				mesh, rows, cols = fmt.Sprintf("[%d,1]", tt.n), tt.n, 1
			}
			l := ok(t, fmt.Sprintf(`{"mesh":%s,"topology":%s,"tensors":{"x":{"shape":%s,"fill":{"per_device":%s}}},"calls":[
				{"op":"reduce_scatter_persistent_buffer","in":"x","dim":%d,"mesh_axis":%d,"out":"a"},
				{"op":"reduce_scatter_persistent_buffer","in":"x","dim":%d,"mesh_axis":%d,"out":"b"}]}`,
				mesh, tt.topology, list(tt.shape), ascending(tt.n), tt.dim, axis, tt.dim, axis))
			launch := effectsOf(l, "reduce_scatter")
			require.Len(t, launch, 2)
			buffer := launch[0]["intermediate_buffer"].(string)
			got := allocated(t, l, buffer)
			for len(got) < 4 {
				got = append([]any{1.0}, got...)
			}
			require.Equal(t, numbers(tt.intermediate...), got, "%v", tt)
			doubled := tt.intermediate[0] != 1 && size(tt.intermediate) == 2*size(tt.shape)
			require.Equal(t, doubled, launch[0]["topology"] == "linear", "the buffer is sized for the topology that the operation runs in")
			require.NotEqual(t, buffer, launch[1]["intermediate_buffer"], "banks alternate")
			out := append([]int{}, tt.shape...)
			out[(tt.dim+len(out))%len(out)] /= tt.n
			if size(out) <= 4096 {
				sum := float64(tt.n * (tt.n + 1) / 2)
				exactly(t, l, "a", rows, cols, func(int, int) array { return constant(sum, out...) })
				exactly(t, l, "b", rows, cols, func(int, int) array { return constant(sum, out...) })
			}
		}
	}
}

func TestFieldA11ReduceScatterOfSizesThatAreNotTiles(t *testing.T) {
	for _, op := range []string{"reduce_scatter", "reduce_scatter_persistent_buffer"} {
		for _, tt := range []struct {
			n, dim       int
			shape, want  []int
			dtype        string
			fill         string
			value        float64
			axis0, rings bool
		}{
			{n: 2, dim: 3, shape: []int{1, 1, 64, 130}, want: []int{1, 1, 64, 65}, dtype: "bfloat16", value: 3},
			{n: 8, dim: 3, shape: []int{1, 1, 256, 128}, want: []int{1, 1, 256, 16}, dtype: "float32", value: 36},
			{n: 2, dim: 2, shape: []int{1, 1, 62, 33}, want: []int{1, 1, 31, 33}, dtype: "bfloat16", value: 3},
			{n: 3, dim: 3, shape: []int{1, 1, 31, 99}, want: []int{1, 1, 31, 33}, dtype: "float32", value: 6},
			{n: 3, dim: 1, shape: []int{2, 3, 1, 1}, want: []int{2, 1, 1, 1}, dtype: "bfloat16", value: 6},
			{n: 8, dim: 0, shape: []int{8, 31}, want: []int{1, 31}, dtype: "float32", value: 36},
			{n: 8, dim: 0, shape: []int{264}, want: []int{33}, dtype: "float32", value: 36},
			{n: 1, dim: 3, shape: []int{1, 1, 5, 33}, want: []int{1, 1, 5, 33}, dtype: "bfloat16", value: 1},
		} {
			for _, topology := range []string{"linear", "unset"} {
				for axis := range 2 {
					mesh := []int{1, tt.n}
					if axis == 0 {
						mesh = []int{tt.n, 1}
					}
					l := ok(t, fmt.Sprintf(`{"mesh":%s,"topology":%q,"tensors":{"x":{"shape":%s,"dtype":%q,"fill":{"per_device":%s}}},
						"calls":[{"op":%q,"in":"x","dim":%d,"mesh_axis":%d,"out":"y"}]}`, list(mesh), topology, list(tt.shape), tt.dtype, ascending(tt.n), op, tt.dim, axis))
					if size(tt.want) <= 4096 {
						exactly(t, l, "y", mesh[0], mesh[1], func(int, int) array { return constant(tt.value, tt.want...) })
					}
				}
			}
		}
		for _, bad := range []struct {
			mesh, shape string
			dim, axis   int
			want        string
		}{
			{"[1,2]", "[1,1,64,131]", 3, 1, "131"},
			{"[2,1]", "[1,1,33,64]", 2, 0, "33"},
			{"[1,3]", "[1,4,32,32]", 1, 1, "4"},
			{"[1,8]", "[12,32]", 0, 1, "12"},
		} {
			refusedCall(t, bad.mesh, "", fmt.Sprintf(`"op":%q,"shape":%s,"dim":%d,"mesh_axis":%d`, op, bad.shape, bad.dim, bad.axis), bad.want+": divides by the length")
		}
	}
}

func TestFieldA13AllGatherOfSizesThatAreNotTiles(t *testing.T) {
	for _, tt := range []struct {
		n, dim   int
		shape    []int
		topology string
	}{
		{2, 3, []int{1, 1, 1, 33}, "unset"},
		{4, 2, []int{1, 1, 8, 128}, "unset"},
		{8, 2, []int{1, 1, 13, 24}, "linear"},
		{8, 2, []int{1, 1, 13, 24}, "ring"},
		{3, 3, []int{1, 2, 3, 31}, "ring"},
		{3, 1, []int{1, 5, 7, 9}, "linear"},
		{2, 0, []int{3, 1, 33, 1}, "linear"},
		{8, 3, []int{1, 1, 2, 1}, "ring"},
	} {
		for _, op := range []string{"all_gather", "all_gather_persistent_buffer"} {
			for axis := range 2 {
				mesh := []int{1, tt.n}
				if axis == 0 {
					mesh = []int{tt.n, 1}
				}
				l := ok(t, fmt.Sprintf(`{"mesh":%s,"topology":%q,"tensors":{"x":{"shape":%s,"fill":{"per_device":%s}}},"calls":[{"op":%q,"in":"x","dim":%d,"mesh_axis":%d,"out":"y"}]}`,
					list(mesh), tt.topology, list(tt.shape), ascending(tt.n), op, tt.dim, axis))
				out := append([]int{}, tt.shape...)
				out[tt.dim] *= tt.n
				want := build(func(x []int) float64 { return float64(x[tt.dim]/tt.shape[tt.dim] + 1) }, out...)
				exactly(t, l, "y", mesh[0], mesh[1], func(int, int) array { return want })
			}
		}
	}
}

func TestFieldA14AllGatherOfLowRanks(t *testing.T) {
	gathered := func(shape []int, dim, n int) array {
		out := append([]int{}, shape...)
		out[dim] *= n
		return build(func(x []int) float64 { return float64(x[dim]/shape[dim] + 1) }, out...)
	}
	type gather struct {
		n, dim int
		shape  []int
		layout string
	}
	tests := []gather{{8, 0, []int{32, 16}, "tile"}, {8, 1, []int{16, 32}, "tile"}, {8, 0, []int{5}, "tile"}, {2, 0, []int{33}, "tile"}, {3, 0, []int{31}, "row_major"},
		{8, -2, []int{16, 31}, "row_major"}, {1, 1, []int{3, 4}, "tile"}}
	for _, m := range []int{1, 16, 32, 48, 64} {
		tests = append(tests, gather{2, -1, []int{1, m, 32}, "tile"}, gather{2, -1, []int{1, m, 32}, "row_major"}, gather{2, 1, []int{1, m, 32}, "tile"})
	}
	for _, tt := range tests {
		for axis := range 2 {
			mesh := []int{1, tt.n}
			if axis == 0 {
				mesh = []int{tt.n, 1}
			}
			dim := (tt.dim + len(tt.shape)) % len(tt.shape)
			want := func(int, int) array { return gathered(tt.shape, dim, tt.n) }
			text := `{"mesh":%s,"tensors":{"x":{"shape":%s,"layout":%q,"fill":{"per_device":%s}}},"calls":[{"op":%q,"in":"x","dim":%d,"mesh_axis":%d,"out":"a"},{"op":%q,"in":"x","dim":%d,"mesh_axis":%d,"out":"b"}]}`
			l := ok(t, fmt.Sprintf(text, list(mesh), list(tt.shape), tt.layout, ascending(tt.n), "all_gather", tt.dim, axis, "all_gather", tt.dim, axis))
			exactly(t, l, "a", mesh[0], mesh[1], want)
			exactly(t, l, "b", mesh[0], mesh[1], want)
			if tt.layout != "tile" {
				continue // persistent buffers are tiled; see below
			}
			const persistent = "all_gather_persistent_buffer"
			l = ok(t, fmt.Sprintf(text, list(mesh), list(tt.shape), tt.layout, ascending(tt.n), persistent, tt.dim, axis, persistent, tt.dim, axis))
			exactly(t, l, "a", mesh[0], mesh[1], want)
			exactly(t, l, "b", mesh[0], mesh[1], want)
			if tt.n > 1 {
				require.NotEqual(t, l.Rows[1].Returns.(map[string]any)["buffer"], l.Rows[2].Returns.(map[string]any)["buffer"], "both results live, in different banks")
			}
		}
	}
	refusedCall(t, "[1,2]", "", `"op":"all_gather_persistent_buffer","shape":[1,16,32],"layout":"row_major","dim":-1,"mesh_axis":1`, "layout row_major", "is tile where a persistent buffer is used")
	refusedCall(t, "[1,2]", "", `"op":"all_gather","shape":[1,1,1,16,32],"dim":-1,"mesh_axis":1`, "[1, 1, 1, 16, 32]", "rank 1 to 4")
	refusedCall(t, "[1,2]", "", `"op":"reduce_scatter","shape":[1,1,1,16,32],"dim":-1,"mesh_axis":1`, "[1, 1, 1, 16, 32]", "rank 1 to 4")
	for _, dim := range []int{-4, 3} {
		refusedCall(t, "[1,2]", "", fmt.Sprintf(`"op":"all_gather","shape":[1,16,32],"dim":%d,"mesh_axis":1`, dim), fmt.Sprintf("dim %d", dim))
	}
}

func TestFieldA17ReduceScatterOfEveryDim(t *testing.T) {
	x := random(17, 8, 6, 12, 18)
	for _, topology := range []string{"linear", "unset"} {
		for _, mesh := range [][]int{{1, 2}, {2, 1}, {1, 3}, {2, 3}} {
			for dim := range 4 {
				for axis := range 2 {
					n := mesh[axis]
					if x.shape[dim]%n != 0 {
						continue
					}
					for _, op := range []string{"reduce_scatter", "reduce_scatter_persistent_buffer"} {
						l := ok(t, fmt.Sprintf(`{"mesh":%s,"topology":%q,"tensors":{"x":{"shape":[8,6,12,18],"dtype":"float32","fill":{"random":17}}},
							"calls":[{"op":%q,"in":"x","dim":%d,"mesh_axis":%d,"out":"y"},{"op":"slice","in":"y","begin":[0,0,0,0],"end":[2,2,4,6],"out":"z"}]}`, list(mesh), topology, op, dim, axis))
						part := x.shape[dim] / n
						for r := range mesh[0] {
							for c := range mesh[1] {
								at := []int{r, c}[axis]
								begin, end := []int{0, 0, 0, 0}, []int{2, 2, 4, 6}
								begin[dim] += at * part
								end[dim] = begin[dim] + min(end[dim], part)
								want := x.slice(begin, end)
								closeTo(t, l, "z", r, c, zip(want, want, func(a, _ float64) float64 { return float64(n) * a }), 1e-6)
							}
						}
					}
				}
			}
		}
	}
}

func TestFieldA19MoreLinksThanThereAre(t *testing.T) {
	gather := `,"calls":[{"op":"all_gather","shape":[1,1,32,32],"dim":3,"mesh_axis":1},{"op":"reduce_scatter","shape":[1,1,32,32],"dim":3,"mesh_axis":1}]}`
	for text, want := range map[string]string{
		`{"preset":"wh-t3000-2x4","num_links":2`: "num_links 2: axis 0: asked 2 links, 1 available",
		`{"preset":"wh-t3000-1x8","num_links":3`: "num_links 3: axis 1: asked 3 links, ",
		`{"mesh":[2,4],"num_links":0`:            "num_links: 0: is at least 1",
		`{"mesh":[2,4],"num_links":-1`:           "num_links: -1: is at least 1",
	} {
		p := execute(text + gather)
		require.Equal(t, 2, p.code, "%s: %s", text, p.stderr)
		require.Contains(t, p.stderr, want)
		require.Equal(t, 1, strings.Count(p.stderr, "\n"), p.stderr)
	}
	// An axis of one has no edges, and lowers the number for nobody.
	for _, mesh := range []string{"[1,8]", "[1,2]", "[1,3]", "[1,1]", "[4,2]"} {
		for links := 1; links <= 4; links++ {
			l := ok(t, fmt.Sprintf(`{"mesh":%s,"num_links":%d,"calls":[{"op":"all_gather","shape":[1,1,32,96],"dim":3,"mesh_axis":1}]}`, mesh, links))
			for _, e := range effectsOf(l, "all_gather") {
				require.Equal(t, float64(links), e["links"])
			}
		}
	}
	p := meshrunProgram("info", "--preset", "wh-t3000-2x4")
	require.Contains(t, p.stdout, "links per edge")
}

func TestFieldA21AMeshReshapedToALineItIsNot(t *testing.T) {
	p := execute(`{"preset":"bh-quietbox-2x2","mesh":[1,4],"calls":[{"op":"reduce_scatter","shape":[1,1,32,128],"dim":3,"mesh_axis":1}]}`)
	require.Equal(t, 2, p.code, p.stderr)
	require.Contains(t, p.stderr, "1x4: preset bh-quietbox-2x2 is 2x2")
	for _, batch := range []int{1, 3} {
		for _, topology := range []string{"linear", "unset"} {
			l := ok(t, fmt.Sprintf(`{"mesh":[1,4],"topology":%q,"tensors":{"x":{"shape":[%d,1,32,128],"fill":{"per_device":[1,2,3,4]}}},
				"calls":[{"op":"reduce_scatter","in":"x","dim":3,"mesh_axis":1,"out":"y"}]}`, topology, batch))
			exactly(t, l, "y", 1, 4, func(int, int) array { return constant(10, batch, 1, 32, 32) })
		}
	}
	// A line without the link from its last device to its first does not run as a ring.
	p = execute(`{"preset":"wh-t3000-2x4","topology":"ring","calls":[{"op":"reduce_scatter","shape":[1,1,32,128],"dim":3,"mesh_axis":1}]}`)
	require.Equal(t, 2, p.code, p.stderr)
	require.Contains(t, p.stderr, "axis 1 of 2x4 has no link from its last device to its first")
}

func TestFieldA24ManyShapesMakeNoSemaphores(t *testing.T) {
	runtime := func(l *log) map[string]any { return l.Report["stats"].(map[string]any)["runtime"].(map[string]any) }
	var calls []string
	for k := 1; k <= 40; k++ {
		calls = append(calls, fmt.Sprintf(`{"op":"all_gather_persistent_buffer","shape":[1,%d,32,64],"dim":3,"mesh_axis":1}`, k))
	}
	l := ok(t, `{"mesh":[2,4],"calls":[`+strings.Join(calls, ",")+`]}`)
	require.Equal(t, 48.0, runtime(l)["semaphores"], "44 + 4 for each link, before and after")
	require.Equal(t, 80.0, runtime(l)["buffers"])
	require.Len(t, effectsOf(l, "create_semaphore"), 48)

	// Pools can be released, but not one of which a bank is held.
	l = ok(t, `{"mesh":[2,4],"streams":[{"calls":[{"op":"all_gather_persistent_buffer","shape":[1,1,32,64],"dim":3,"mesh_axis":1,"out":"y"},
		{"op":"all_gather_persistent_buffer","shape":[1,2,32,64],"dim":3,"mesh_axis":1},
		{"op":"release_buffers","expect":{"error":"ag(shape=[1, 1, 32, 64],dim=3,axis=1,dtype=bfloat16): is not in use"}},
		{"op":"release_buffers","keys":[{"op":"get_ag_ping_pong_buffer","shape":[1,2,32,64],"dim":-1,"mesh_axis":1}]},
		{"op":"release","tensors":["y"]},{"op":"release_buffers"},
		{"op":"all_gather_persistent_buffer","shape":[1,1,32,64],"dim":3,"mesh_axis":1,"out":"z"}]}]}`)
	require.Len(t, effectsOf(l, "free"), 4)
	require.Equal(t, 2.0, runtime(l)["buffers"], "made anew")

	// What does not fit says what it is and what there is.
	p := execute(`{"mesh":[1,4],"limits":{"dram_bytes":600000},"tensors":{"x":{"shape":[1,1,32,64]}},"streams":[{"calls":[
		{"op":"all_gather_persistent_buffer","in":"x","dim":3,"mesh_axis":1,"out":"a"},
		{"op":"all_gather_persistent_buffer","shape":[1,8,32,64],"dim":3,"mesh_axis":1,"out":"b"},
		{"op":"all_gather_persistent_buffer","shape":[1,12,32,64],"dim":3,"mesh_axis":1}]}]}`)
	require.Equal(t, 6, p.code, p.stderr)
	for _, want := range []string{"ag(shape=[1, 12, 32, 64],dim=3,axis=1,dtype=bfloat16).bank1", "needs 196608 bytes of DRAM", "free",
		"ag(shape=[1, 8, 32, 64],dim=3,axis=1,dtype=bfloat16) 262144", "ag(shape=[1, 1, 32, 64],dim=3,axis=1,dtype=bfloat16) 32768", "the largest free block", "Could be released (release_buffers): ag(shape=[1, 12, 32, 64],dim=3,axis=1,dtype=bfloat16) 196608 bytes"} {
		require.Contains(t, p.stderr, want)
	}
	require.Equal(t, 1, strings.Count(p.stderr, "\n"), p.stderr)
}

func TestFieldA25AResultThatIsAPersistentBufferIsReleased(t *testing.T) {
	for _, policy := range []string{"hold", "rotate"} {
		for _, op := range []string{"reduce_scatter_persistent_buffer", "all_gather_persistent_buffer"} {
			l := ok(t, fmt.Sprintf(`{"mesh":[2,4],"policy":%q,"tensors":{"x":{"shape":[1,1,8,32],"fill":{"per_device":[1,2,3,4,5,6,7,8]}}},"calls":[
				{"op":%q,"in":"x","dim":3,"mesh_axis":1,"out":"a"},{"op":"release","tensors":["a"]},{"op":"release","tensors":["a"],"expect":{"error":"released"}},
				{"op":%q,"in":"x","dim":3,"mesh_axis":1,"out":"b"},{"op":"release","tensors":["b"]},
				{"op":%q,"in":"x","dim":3,"mesh_axis":1,"out":"c"}]}`, policy, op, op, op))
			require.Equal(t, []string{"c", "x"}, sorted(l.Tensors))
			exactly(t, l, "c", 2, 4, func(r, _ int) array {
				if op == "reduce_scatter_persistent_buffer" {
					return constant([]float64{10, 26}[r], 1, 1, 8, 8)
				}
				return build(func(x []int) float64 { return float64(4*r + x[3]/32 + 1) }, 1, 1, 8, 128)
			})
		}
	}
	// On an axis of one the result is the input itself: giving it back does not take the input away, nor the other way round.
	for _, axis := range []string{"0", "null"} {
		for _, op := range []string{"reduce_scatter", "reduce_scatter_persistent_buffer", "all_gather", "all_gather_persistent_buffer"} {
			l := ok(t, fmt.Sprintf(`{"mesh":[1,4],"streams":[{"calls":[{"op":"write","shape":[1,1,32,32],"fill":{"const":7},"out":"x"},
				{"op":%q,"in":"x","dim":3,"mesh_axis":%s,"out":"y"},{"op":"release","tensors":["y"]},{"op":"add","in":["x","x"],"out":"z"},
				{"op":%q,"in":"x","dim":3,"mesh_axis":%s,"out":"y2"},{"op":"release","tensors":["x"]},{"op":"add","in":["y2","y2"],"out":"w"}]}]}`, op, axis, op, axis))
			for _, name := range []string{"z", "w"} {
				exactly(t, l, name, 1, 4, func(int, int) array { return constant(14, 1, 1, 32, 32) })
			}
		}
	}
}

func TestFieldA29NumberFormatsOfSums(t *testing.T) {
	sum := func(mesh, dtype, rounding, fill string, dim, axis int) *log {
		return ok(t, fmt.Sprintf(`{"mesh":%s,%s"tensors":{"x":{"shape":[1,1,32,128],"dtype":%q,"fill":%s}},"calls":[
			{"op":"reduce_scatter","in":"x","dim":%d,"mesh_axis":%d,"out":"a"},{"op":"reduce_scatter_persistent_buffer","in":"x","dim":%d,"mesh_axis":%d,"out":"b"}]}`,
			mesh, rounding, dtype, fill, dim, axis, dim, axis))
	}
	for _, name := range []string{"a", "b"} {
		// float32 stays float32 all the way.
		l := sum("[1,4]", "float32", "", `{"const":1.000244140625}`, 3, 1)
		exactly(t, l, name, 1, 4, func(int, int) array { return constant(4.0009765625, 1, 1, 32, 32) })
		// bfloat16 is summed in float32 and rounded once.
		l = sum("[1,4]", "bfloat16", "", `{"per_device":[256,1,1,1]}`, 3, 1)
		exactly(t, l, name, 1, 4, func(int, int) array { return constant(260, 1, 1, 32, 32) }) // 259, to even
		l = sum("[4,1]", "bfloat16", `"topology":"linear",`, `{"per_device":[1,256,1,1]}`, 2, 0)
		exactly(t, l, name, 4, 1, func(int, int) array { return constant(260, 1, 1, 8, 128) })
		// As hardware rounds, at each hop: 256 absorbs each 1, but not a 2 that has come from the other side.
		l = sum("[1,4]", "bfloat16", `"rounding":"per_hop",`, `{"per_device":[256,1,1,1]}`, 3, 1)
		for c := range 4 {
			for _, v := range l.values(t, name, 0, c) {
				require.Contains(t, []float64{256, 258, 260}, v)
			}
		}
		for _, dtype := range []string{"uint32", "int32"} {
			l = sum("[1,4]", dtype, "", `{"per_device":[16777217,1,2,3]}`, 3, 1)
			exactly(t, l, name, 1, 4, func(int, int) array { return constant(16777223, 1, 1, 32, 32) })
		}
	}
	for _, dtype := range []string{"uint8", "uint16"} {
		refusedCall(t, "[1,4]", "", fmt.Sprintf(`"op":"reduce_scatter","shape":[1,1,32,128],"dtype":%q,"dim":3,"mesh_axis":1`, dtype), "dtype "+dtype, "is not summed")
	}
	// Gathers are bit exact for every dtype.
	for dtype, fill := range map[string]string{"bfloat16": `{"random":1}`, "float32": `{"random":2}`, "uint32": `{"iota":true}`, "int32": `{"iota":true}`, "uint16": `{"iota":true}`, "uint8": `{"const":255}`, "bfloat8_b": `{"random":3}`} {
		for _, op := range []string{"all_gather", "all_gather_persistent_buffer"} {
			l := ok(t, fmt.Sprintf(`{"mesh":[1,4],"tensors":{"x":{"dtype":%q,"fill":{"global":[1,1,32,128],%s,"shard":{"1":2}}},"whole":{"dtype":%q,"fill":{"global":[1,1,32,128],%s}}},"calls":[
				{"op":%q,"in":"x","dim":2,"mesh_axis":1,"out":"y"}]}`, dtype, strings.Trim(fill, "{}"), dtype, strings.Trim(fill, "{}"), op))
			for c := range 4 {
				require.Equal(t, l.Tensors["whole"].Devices[c].SHA256, l.Tensors["y"].Devices[c].SHA256, dtype)
			}
		}
	}
}

func TestFieldA34PrewarmedPoolsAreThereAtTheFirstCall(t *testing.T) {
	var keys, calls []string
	for k := 1; k <= 10; k++ {
		keys = append(keys, fmt.Sprintf(`{"op":"get_ag_ping_pong_buffer","shape":[1,%d,32,64],"dim":3,"mesh_axis":1}`, k),
			fmt.Sprintf(`{"op":"get_rs_ping_pong_buffer","shape":[1,%d,32,64],"dim":2,"mesh_axis":0}`, k))
		calls = append(calls, fmt.Sprintf(`{"op":"all_gather_persistent_buffer","shape":[1,%d,32,64],"dim":3,"mesh_axis":1}`, k),
			fmt.Sprintf(`{"op":"reduce_scatter_persistent_buffer","shape":[1,%d,32,64],"dim":2,"mesh_axis":0}`, k))
	}
	l := ok(t, `{"mesh":[2,4],"calls":[{"op":"prewarm","keys":[`+strings.Join(keys, ",")+`]},`+strings.Join(calls, ",")+`,{"op":"prewarm","keys":[`+keys[0]+`]}]}`)
	kinds := func(r row) map[string]int {
		n := map[string]int{}
		for _, e := range r.Effects {
			if e["buf"] != "fresh" {
				n[call(e)]++
			}
		}
		return n
	}
	require.Equal(t, map[string]int{"synchronize": 2, "allocate": 10*2 + 10*4}, kinds(l.Rows[1]))
	for _, r := range l.Rows[2:22] {
		require.Zero(t, kinds(r)["allocate"], r.Step)
		require.Zero(t, kinds(r)["synchronize"], r.Step)
	}
	require.Empty(t, l.Rows[22].Effects, "they are there already")
	for _, bad := range []struct{ keys, want string }{
		{`{"op":"get_ag_ping_pong_buffer","shape":[1,1,32,64],"dim":5,"mesh_axis":1}`, "dim 5"},
		{`{"op":"get_rs_ping_pong_buffer","shape":[1,1,31,64],"dim":2,"mesh_axis":0}`, "divides by the length 2"},
	} {
		refusedCall(t, "[2,4]", "", `"op":"prewarm","keys":[`+bad.keys+`]`, bad.want)
	}
}

func TestFieldA26SliceReshard(t *testing.T) {
	rows := func(first, n int) array {
		return build(func(x []int) float64 {
			if row := first + x[0]; row < 12 {
				return float64(row)
			}
			return 0
		}, n, 2, 3, 4)
	}
	whole := make([]float64, 12*24)
	for i := range whole {
		whole[i] = float64(i / 24)
	}
	for axis, mesh := range map[int][2]int{0: {4, 1}, 1: {1, 4}} {
		tensors := fmt.Sprintf(`"x":{"layout":"row_major","fill":{"global":[12,2,3,4],"values":%s,"shard":{"%d":0}}}`, strings.ReplaceAll(fmt.Sprint(whole), " ", ","), axis)
		for _, tt := range []struct{ offset, size int }{{2, 8}, {2, 12}, {0, 12}, {11, 4}, {12, 4}, {40, 8}, {0, 4}, {3, 16}} {
			l := ok(t, fmt.Sprintf(`{"mesh":%s,"tensors":{%s},"calls":[{"op":"slice_reshard","in":"x","output_dim_offset":%d,"output_dim_shape":%d,"mesh_axis":%d,"out":"y"},
				{"op":"slice_reshard","in":"x","output_dim_offset":%d,"output_dim_shape":%d,"mesh_axis":%d,"out":"z"}]}`,
				list(mesh[:]), tensors, tt.offset, tt.size, axis, tt.offset, tt.size, axis))
			for _, name := range []string{"y", "z"} {
				exactly(t, l, name, mesh[0], mesh[1], func(r, c int) array { return rows(tt.offset+(r+c)*tt.size/4, tt.size/4) })
			}
		}
		for args, want := range map[string]string{
			`"output_dim_offset":2,"output_dim_shape":10`:         "output_dim_shape 10: is positive and divides by the length 4",
			`"output_dim_offset":2,"output_dim_shape":0`:          "output_dim_shape 0",
			`"output_dim_offset":-1,"output_dim_shape":8`:         "output_dim_offset -1",
			`"output_dim_offset":2,"output_dim_shape":8,"dim":1`:  "dim 1: is 0",
			`"output_dim_offset":2,"output_dim_shape":8,"dim":-1`: "dim -1: is 0",
		} {
			refusedCall(t, list(mesh[:]), tensors, fmt.Sprintf(`"op":"slice_reshard","in":"x",%s,"mesh_axis":%d`, args, axis), want)
		}
		refusedCall(t, list(mesh[:]), "", fmt.Sprintf(`"op":"slice_reshard","shape":[3,2,3,4],"output_dim_offset":0,"output_dim_shape":8,"mesh_axis":%d`, axis), "layout tile: is row_major")
		// The other axis has one device: a plain slice.
		l := ok(t, fmt.Sprintf(`{"mesh":%s,"tensors":{%s},"calls":[{"op":"slice_reshard","in":"x","output_dim_offset":1,"output_dim_shape":5,"mesh_axis":%d,"out":"y"}]}`, list(mesh[:]), tensors, 1-axis))
		exactly(t, l, "y", mesh[0], mesh[1], func(r, c int) array {
			return build(func(x []int) float64 {
				if x[0] >= 2 {
					return 0 // past the end of the shard, which is the whole there
				}
				return float64(3*(r+c) + 1 + x[0])
			}, 5, 2, 3, 4)
		})
	}
}

func TestFieldA28HeightsThatTheMeshDoesNotDivide(t *testing.T) {
	const line = `{"mesh":[2,1],"tensors":{"x":{"layout":"row_major","fill":{"global":[1,6,1,1],"values":[1,2,3,4,5,6],"shard":{"0":1}}}},
		"calls":[{"op":%q,"in":"x","dims":[1],"axes":[0],"pad_left":[1],"pad_right":[1],"padding_mode":%q,"logical_h":5,"out":"y"}]}`
	for _, op := range []string{"neighbor_pad", "neighbor_pad_persistent_buffer"} {
		l := ok(t, fmt.Sprintf(line, op, "zeros"))
		require.Equal(t, []float64{0, 1, 2, 3, 4}, l.values(t, "y", 0, 0))
		require.Equal(t, []float64{3, 4, 5, 0, 0}, l.values(t, "y", 1, 0))
		l = ok(t, fmt.Sprintf(line, op, "replicate"))
		require.Equal(t, []float64{1, 1, 2, 3, 4}, l.values(t, "y", 0, 0))
		require.Equal(t, []float64{3, 4, 5, 0, 0}, l.values(t, "y", 1, 0), "rows past the logical height count as zeros in both modes")
	}
	// Every logical height, and widths masked along with it, against the plain array.
	whole := random(28, 1, 3, 6, 4, 2)
	for _, mode := range []string{"zeros", "replicate"} {
		for logical := 1; logical <= 6; logical++ {
			p := pad{dims: []int{2, 3}, axes: []int{1, 0}, left: []int{1, 1}, right: []int{1, 1}, mode: mode, logicalH: logical, front: 2}
			l := ok(t, fmt.Sprintf(`{"mesh":[2,3],"tensors":{"x":%s},"calls":[{"op":"neighbor_pad","in":"x",%s,"out":"y"}]}`, p.laid(whole, 28), p.args()))
			everywhere([2]int{2, 3}, func(at [2]int) {
				want := p.padded(whole, [2]int{2, 3}, at)
				require.Equal(t, []int{1, 5, 4, 4, 2}, l.Tensors["y"].Shape, "two frames of zeros in front of three")
				require.Equal(t, want.values, l.values(t, "y", at[0], at[1]), "%s, logical %d on %v", mode, logical, at)
				require.Equal(t, make([]float64, 2*4*4*2), l.values(t, "y", at[0], at[1])[:2*4*4*2], "also in the halo rows")
			})
		}
	}
	for args, want := range map[string]string{`"logical_h":7`: "logical_h 7: is 0 (all rows are real) to 6", `"logical_h":-1`: "logical_h -1", `"t_front_pad":-2`: "t_front_pad -2"} {
		refusedCall(t, "[2,1]", "", `"op":"neighbor_pad","shape":[1,3,1,1],"layout":"row_major","dims":[1],"axes":[0],"pad_left":[1],"pad_right":[1],`+args, want)
	}
}

// A caller may bring buffers and semaphores of his own: what does not fit is refused, with both sides named, before anything is enqueued.
func TestFieldWhatCallersBringDoesNotFit(t *testing.T) {
	const tensors = `"x":{"shape":[1,2,4,4,8],"layout":"row_major"},"f":{"shape":[1,2,4,4,8],"layout":"row_major","dtype":"float32"},
		"good":{"shape":[1,2,6,6,8],"layout":"row_major"},"tiled":{"shape":[1,2,6,6,8]},"wide":{"shape":[1,2,6,6,8],"layout":"row_major","dtype":"float32"},"small":{"shape":[1,2,6,5,8],"layout":"row_major"},
		"halo":{"shape":[40,8],"layout":"row_major"},"halo32":{"shape":[40,8],"layout":"row_major","dtype":"float32"},"halo_tiled":{"shape":[40,8]},"halo_short":{"shape":[39,8],"layout":"row_major"},
		"w":{"shape":[72,8]}`
	const exchange = `"op":"neighbor_pad_halo_only","dims":[2,3],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1]`
	for bad, want := range map[string][]string{
		exchange + `,"in":["x","tiled"]`: {"padded_output [1, 2, 6, 6, 8] bfloat16 tile", "[1, 2, 6, 6, 8] bfloat16 row_major"},
		exchange + `,"in":["x","wide"]`:  {"padded_output [1, 2, 6, 6, 8] float32", "[1, 2, 6, 6, 8] bfloat16 row_major"},
		exchange + `,"in":["f","good"]`:  {"padded_output [1, 2, 6, 6, 8] bfloat16", "[1, 2, 6, 6, 8] float32 row_major"},
		exchange + `,"in":["x","small"]`: {"padded_output [1, 2, 6, 5, 8]", "[1, 2, 6, 6, 8]"},
		`"op":"halo_scatter","in":["halo_tiled","x"],"np_padding_h":1,"np_padding_w":1`:                                         {"layout tile: is row_major"},
		`"op":"halo_scatter","in":["halo32","x"],"np_padding_h":1,"np_padding_w":1`:                                             {"compact dtype float32: is that of the tensor, bfloat16"},
		`"op":"halo_scatter","in":["halo_short","x"],"np_padding_h":1,"np_padding_w":1`:                                         {"compact [39, 8]: is [40, 8]"},
		`"op":"halo_scatter","in":["halo","good"],"np_padding_h":1,"np_padding_w":2,"border_only":true`:                         {"compact [40, 8]"},
		`"op":"halo_scatter","in":["halo","x"],"np_padding_h":2,"np_padding_w":1,"border_only":true`:                            {"interior within its pads"},
		`"op":"conv3d","in":["x","w",null,"halo_short"],"kernel":[1,3,3],"padding":[0,1,1]`:                                     {"halo [39, 8] bfloat16", "[40, 8] bfloat16"},
		`"op":"conv3d","in":["x","w",null,"halo32"],"kernel":[1,3,3],"padding":[0,1,1]`:                                         {"halo [40, 8] float32", "[40, 8] bfloat16"},
		`"op":"neighbor_pad","in":"x","dims":[2],"axes":[0],"pad_left":[1],"pad_right":[1],"neighbor_sems":["x"]`:               {`neighbor_sems "x"`, "a tensor"},
		`"op":"neighbor_pad","in":"x","dims":[2],"axes":[0],"pad_left":[1],"pad_right":[1],"neighbor_sems":["ag"]`:              {"semaphores ag[0]: are a bank of np[0]"},
		`"op":"neighbor_pad","in":"x","dims":[2],"axes":[0],"pad_left":[1],"pad_right":[1],"neighbor_sems":["np1"]`:             {"semaphores np[1]: are a bank of np[0]"},
		`"op":"neighbor_pad","in":"x","dims":[2],"axes":[0],"pad_left":[1],"pad_right":[1],"neighbor_sems":["np0","bar","np0"]`: {"semaphores 3: are at most the 2"},
		`"op":"neighbor_pad","in":"x","dims":[2],"axes":[0],"pad_left":[1],"pad_right":[1],"neighbor_sems":["gone"]`:            {"released"},
		exchange + `,"in":["x","freed"]`: {"released"},
		exchange + `,"in":["freed"]`:     {"released"},
		exchange + `,"in":["x","pair"]`:  {"this name stands for 2 buffers"},
	} {
		p := execute(fmt.Sprintf(`{"mesh":[2,2],"policy":"hold","tensors":{%s},"calls":[{"op":"get_ag_ping_pong_semaphore","mesh_axis":0,"out":"ag"},{"op":"get_np_ping_pong_semaphore","mesh_axis":1,"out":"np1"},
			{"op":"get_np_ping_pong_semaphore","mesh_axis":0,"out":"gone"},{"op":"release","tensors":["gone"]},
			{"op":"get_np_ping_pong_semaphore","mesh_axis":0,"out":"np0"},{"op":"get_barrier_semaphore","mesh_axis":0,"out":"bar"},
			{"op":"write","shape":[1,2,6,6,8],"layout":"row_major","fill":{"const":0},"out":"freed"},{"op":"release","tensors":["freed"]},
			{"op":"get_rs_ping_pong_buffer","shape":[1,1,32,32],"dim":3,"mesh_axis":0,"out":"pair"},{%s},{"op":"fence"}]}`, tensors, bad))
		require.Equal(t, 2, p.code, "%s: %s", bad, p.stderr)
		require.Equal(t, 1, strings.Count(p.stderr, "\n"), p.stderr)
		l := readLog(t, p.stdout)
		require.Len(t, l.Rows, 1+10)
		require.Empty(t, l.Rows[10].Effects, "nothing was enqueued")
		for _, w := range want {
			require.Contains(t, l.Rows[10].Error, w, bad)
		}
	}
}
