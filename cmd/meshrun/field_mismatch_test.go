package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	mesh "github.com/meshrun/meshrun"
)

// hazard is one of a report.
type hazard struct {
	Kind, Resource string
	Launches       []struct {
		Seq    int
		Op     string
		Stream string
	}
	Devices   [][2]int
	Text      string
	Waiting   []any
	Arguments []struct {
		Devices    [][2]int
		Op         string
		Seq        int
		Stream     string
		Shape      []int
		DType      string
		Dims, Axes []int
	}
}

func hazards(t *testing.T, l *log) (all []hazard) {
	t.Helper()
	text, err := json.Marshal(l.Report["hazards"])
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &all))
	return all
}

// wentOn is the hang of a case that was to go on behind its hazard; nil where it was to stop there.
func wentOn(t *testing.T, goOn bool, p program, l *log) map[string]any {
	t.Helper()
	if !goOn {
		require.Equal(t, 4, p.code)
		require.Nil(t, l.Report["hang"])
		return nil
	}
	require.Equal(t, 5, p.code, p.stderr)
	require.NotNil(t, l.Report["hang"])
	return l.Report["hang"].(map[string]any)
}

// unlessOn is what a hazard's text says of those who wait: nothing where the run goes on, since its hang does.
func unlessOn(more, text string) string {
	if more != "" {
		return ""
	}
	return text
}

// unstamped is the text of a hazard or hang behind its time.
func unstamped(t *testing.T, text string) string {
	t.Helper()
	_, behind, ok := strings.Cut(text, " ns: ")
	require.True(t, ok, text)
	return behind
}

func TestFieldB5AMismatchSaysWhatEveryDeviceHas(t *testing.T) {
	const odd = `{"mesh":[1,4],%s"faults":["device 0,3 shape [1,1,32,96] at launch 1"],"tensors":{"x":{"shape":[1,1,32,64],"fill":{"const":1}}},
		"calls":[{"op":"all_gather","in":"x","dim":3,"mesh_axis":1,"out":"y"}]}`
	const want = "devices enter launch 1 (all_gather, stream main) with different arguments: " +
		"device 0,3 has all_gather, seq 1, shape [1,1,32,96], dtype bfloat16, dim 3, axis 1, stream main; " +
		"every other device has all_gather, seq 1, shape [1,1,32,64], dtype bfloat16, dim 3, axis 1, stream main"
	for _, more := range []string{"", `"on_hazard":"continue",`} {
		p := execute(fmt.Sprintf(odd, more))
		l := readLog(t, p.stdout)
		all := hazards(t, l)
		require.Len(t, all, 1)
		h := all[0]
		require.Equal(t, "arguments", h.Kind)
		require.Equal(t, "all_gather", h.Resource)
		require.Equal(t, [][2]int{{0, 3}}, h.Devices)
		require.Equal(t, want+unlessOn(more, "; device 0,0 waits for barrier[1].bank0 (value 2, target 3), and 2 more wait"), unstamped(t, h.Text))
		require.Len(t, h.Waiting, len(unlessOn(more, "all")))
		require.Contains(t, p.stderr, want)
		require.Len(t, h.Arguments, 2)
		for i, shape := range [][]int{{1, 1, 32, 96}, {1, 1, 32, 64}} {
			a := h.Arguments[i]
			require.Equal(t, shape, a.Shape)
			require.Equal(t, [][][2]int{{{0, 3}}, {{0, 0}, {0, 1}, {0, 2}}}[i], a.Devices)
			require.Equal(t, []any{"all_gather", 1, "main", "bfloat16", []int{3}, []int{1}}, []any{a.Op, a.Seq, a.Stream, a.DType, a.Dims, a.Axes})
		}
		require.NotContains(t, l.Tensors, "y", "nothing can be read that is not right")
		hang := wentOn(t, more != "", p, l)
		if hang == nil {
			continue
		}
		require.Equal(t, "entered_other", hang["class"])
		require.Equal(t, numbers(0, 3), hang["device"])
		require.Equal(t, "device 0,3 is in launch 1 (all_gather) with shape [1,1,32,96], where its peers have [1,1,32,64]; "+
			"device 0,0 waits for barrier[1].bank0 (value 2, target 3), and 2 more wait", unstamped(t, hang["text"].(string)))
		for _, w := range hang["waiting"].([]any) {
			require.Equal(t, []any{numbers(0, 3)}, w.(map[string]any)["owed_by"])
		}
	}

	// An operation of each device alone has nobody who waits: it is reported, and what the others compute is right.
	const alone = `{"mesh":[1,2],%s"faults":["device 0,1 shape [64,32] at launch 2"],"tensors":{"x":{"shape":[32,64],"fill":{"const":1}},"w":{"shape":[64,32],"fill":{"const":1}}},
		"calls":[{"op":"mul","in":"x","scalar":2,"out":"z"},{"op":"matmul","in":["x","w"],"out":"y"}]}`
	for _, more := range []string{"", `"on_hazard":"continue",`} {
		p := execute(fmt.Sprintf(alone, more))
		require.Equal(t, 4, p.code, p.stderr)
		require.Contains(t, p.stderr, "device 0,1 has matmul, seq 2, shape [64,32], dtype bfloat16, stream main; every other device has matmul, seq 2, shape [32,64], dtype bfloat16, stream main")
		l := readLog(t, p.stdout)
		require.Nil(t, l.Report["hang"])
		if more != "" {
			exactly(t, l, "y", 1, 2, func(int, int) array { return constant(64, 32, 32) })
		}
	}

	// A halo exchange has two dims and axes; they are told in its order.
	p := execute(`{"mesh":[2,2],"faults":["device 1,0 shape [1,3,4,2] at launch 1"],"tensors":{"p":{"shape":[1,3,4,4],"layout":"row_major"}},
		"calls":[{"op":"neighbor_pad","in":"p","dims":[1,2],"axes":[1,0],"pad_left":[1,1],"pad_right":[1,1]},{"op":"fence"}]}`)
	require.Equal(t, 4, p.code, p.stderr)
	require.Contains(t, p.stderr, "device 1,0 has neighbor_pad, seq 1, shape [1,3,4,2], dtype bfloat16, dims 1 and 2, axes 1 and 0, stream main; every other device has")

	// What is no fault is refused; what can be seen at once, before anything runs.
	for fault, want := range map[string]string{
		"device 0,4 shape [1,1,32,96] at launch 1":         "device 0,4 is outside the mesh of 1x4",
		"device 0,3 shape [1,1,1,1,1,1,1,1,2] at launch 1": "shape is [1,1,1,1,1,1,1,1,2]: the rank must be 1..8",
		"device 0,3 shape [1,0,32,96] at launch 1":         "shape is [1,0,32,96]: every dim must be at least 1",
		"device 0,3 shape [1,1,32,many] at launch 1":       "shape is [1,1,32,many]: must be like [1,1,32,96]",
		"device 0,3 shape (1,1,32,96) at launch 1":         "must be like [1,1,32,96]",
		"device 0,3 shape [1,1,32,96] at launch 0":         `launch is "0": must be a whole number from 1`,
		"barrier drop at launch never":                     `launch is "never": must be a whole number from 1`,
	} {
		p := execute(strings.Replace(fmt.Sprintf(odd, ""), "device 0,3 shape [1,1,32,96] at launch 1", fault, 1))
		require.Equal(t, 2, p.code, p.stderr)
		require.Contains(t, p.stderr, fmt.Sprintf("faults: driver open: invalid: fault %q: ", fault))
		require.Contains(t, p.stderr, want)
		require.Equal(t, 1, strings.Count(p.stderr, "\n"), p.stderr)
		require.Empty(t, p.stdout)
	}
	p = execute(strings.Replace(fmt.Sprintf(odd, ""), "32,96", "32,64", 1))
	require.Equal(t, 2, p.code, p.stderr)
	require.Contains(t, p.stderr, `fault "device 0,3 shape [1,1,32,64] at launch 1": shape is [1,1,32,64]: must be another than that of launch 1 (all_gather), which every device has`)
	require.Equal(t, 0.0, readLog(t, p.stdout).Report["stats"].(map[string]any)["launches"], "the launch was not made")
}

func TestFieldA3OneStartBarrierThatIsDropped(t *testing.T) {
	s := strict{mesh: "[2,2]", tensors: `"p":{"dtype":"bfloat16","layout":"row_major","fill":{"global":[1,6,8,2],"random":4,"shard":{"0":1,"1":2}}}`}
	for range 200 {
		s.calls = append(s.calls, `{"op":"neighbor_pad_persistent_buffer","in":"p","dims":[1,2],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1]}`)
	}
	for seed := range 3 {
		more := fmt.Sprintf(`"seed":%d,"skew_us":3000,"faults":["barrier drop at launch 117"],`, seed)
		p := execute(s.text(more))
		require.Equal(t, 4, p.code, "seed %d: %s", seed, p.stderr)
		first := hazards(t, readLog(t, p.stdout))[0]
		p = execute(s.text(more + `"on_hazard":"continue",`))
		require.Contains(t, []int{4, 5}, p.code, "seed %d: %s", seed, p.stderr)
		l := readLog(t, p.stdout)
		require.Nil(t, l.Report["idle_faults"])
		all := hazards(t, l)
		require.Equal(t, first, all[0], "going on changes nothing of what came before")
		for _, h := range all {
			if h.Kind != "peer_not_entered" {
				continue
			}
			require.Len(t, h.Launches, 1)
			require.Equal(t, 117, h.Launches[0].Seq, "no other exchange")
			require.Equal(t, "neighbor_pad", h.Launches[0].Op)
			require.Len(t, h.Devices, 2)
			require.Contains(t, h.Text, "launch 117 (neighbor_pad, stream main)")
			require.Contains(t, h.Text, "though it begins with a barrier")
			for _, d := range h.Devices {
				require.Contains(t, h.Text, fmt.Sprintf("device %d,%d", d[0], d[1]))
			}
		}
		require.Equal(t, "peer_not_entered", first.Kind, "seed %d: %s", seed, first.Text)
	}
	// Where there is no such barrier, or no such launch, nothing happens, and the report says why.
	l := ok(t, `{"mesh":[2,2],"faults":["barrier drop at launch 1","barrier drop at launch 9"],"calls":[{"op":"mul","shape":[32,32],"scalar":2},{"op":"mul","shape":[32,32],"scalar":2}]}`)
	require.Equal(t, []any{map[string]any{"fault": "barrier drop at launch 1", "why": "launch 1 (binary, stream main) does not begin with a barrier"},
		map[string]any{"fault": "barrier drop at launch 9", "why": "there were 2 launches"}}, l.Report["idle_faults"])
}

func TestFieldA21ReshapesNameTheEdgeThatIsMissing(t *testing.T) {
	for _, tt := range []struct {
		preset string
		mesh   mesh.MeshShape
		want   string
	}{
		{"bh-quietbox-2x2", mesh.MeshShape{Rows: 1, Cols: 4}, "1x4: preset bh-quietbox-2x2 is 2x2: reshaped, edge (1,2) is missing: no link joins devices 0,1 and 1,0; leave out mesh"},
		{"bh-quietbox-2x2", mesh.MeshShape{Rows: 4, Cols: 1}, "4x1: preset bh-quietbox-2x2 is 2x2: reshaped, edge (1,2) is missing: no link joins devices 0,1 and 1,0; leave out mesh"},
		{"wh-t3000-2x4", mesh.MeshShape{Rows: 1, Cols: 8}, "1x8: preset wh-t3000-2x4 is 2x4: reshaped, edge (3,4) is missing: no link joins devices 0,3 and 1,0; leave out mesh"},
		{"bh-8xp150-2x4", mesh.MeshShape{Rows: 4, Cols: 2}, "4x2: preset bh-8xp150-2x4 is 2x4: reshaped, edge (0,2) is missing: no link joins devices 0,0 and 0,2, nor those of 5 more edges; leave out mesh"},
		{"wh-n300-1x2", mesh.MeshShape{Rows: 2, Cols: 1}, "2x1: preset wh-n300-1x2 is 1x2; leave out mesh"}, // has all its edges
		{"bh-quietbox-2x2", mesh.MeshShape{Rows: 2, Cols: 4}, "2x4: preset bh-quietbox-2x2 is 2x2; leave out mesh"},
	} {
		p := execute(fmt.Sprintf(`{"preset":%q,"mesh":[%d,%d],"calls":[{"op":"reduce_scatter","shape":[1,1,32,128],"dim":3,"mesh_axis":1}]}`, tt.preset, tt.mesh.Rows, tt.mesh.Cols))
		require.Equal(t, 2, p.code, p.stderr)
		require.Contains(t, p.stderr, "mesh: "+tt.want)
		require.Equal(t, 1, strings.Count(p.stderr, "\n"), p.stderr)
		require.Empty(t, p.stdout)
		_, err := mesh.Open(context.Background(), mesh.Config{Preset: tt.preset, Mesh: tt.mesh})
		require.ErrorIs(t, err, mesh.ErrInvalid)
		require.ErrorContains(t, err, "open: mesh "+tt.want)
	}
}

func TestFieldA19AStartTellsTheLinksOfEachAxis(t *testing.T) {
	for _, links := range []string{"2", "16"} {
		want := "axis 1: asked " + links + " links, 1 available"
		p := execute(`{"preset":"wh-n300-1x2","num_links":` + links + `,"calls":[{"op":"all_gather","shape":[1,1,32,32],"dim":3,"mesh_axis":1}]}`)
		require.Equal(t, 2, p.code, p.stderr)
		require.Contains(t, p.stderr, want)
		p = meshrunProgram("run", "--model", model, "--preset", "wh-n300-1x2", "--num_links", links)
		require.Equal(t, 2, p.code, p.stderr)
		require.Contains(t, p.stderr, want)
		_, err := mesh.Open(context.Background(), mesh.Config{Preset: "wh-n300-1x2", NumLinks: 2})
		require.ErrorContains(t, err, "axis 1: asked 2 links, 1 available")
	}
	for _, links := range []string{"0", "-1"} {
		p := meshrunProgram("run", "--model", model, "--mesh", "1x2", "--num_links", links)
		require.Equal(t, 2, p.code, p.stderr)
		require.Contains(t, p.stderr, "num_links "+links+": is at least 1")
	}
	for args, want := range map[string]string{
		"--mesh 1x1":               "mesh 1x1 (emulated-1x1), axis 0: one device, no links, axis 1: one device, no links",
		"--mesh 2x2 --num_links 3": "mesh 2x2 (emulated-2x2), axis 0: linear of 2, 3 of 3 links per edge, axis 1: linear of 2, 3 of 3 links per edge",
		"--mesh 1x4":               "mesh 1x4 (emulated-1x4), axis 0: one device, no links, axis 1: ring of 4, 1 of 1 link per edge",
		"--preset bh-quietbox-2x2": "mesh 2x2 (bh-quietbox-2x2), axis 0: linear of 2, 1 of 2 links per edge, axis 1: linear of 2, 1 of 2 links per edge",
		"--preset wh-t3000-2x4 --tp 4@1 --topology linear": "mesh 2x4 (wh-t3000-2x4), axis 0: linear of 2, 1 of 1 link per edge, axis 1: linear of 4, 1 of 1 link per edge",
	} {
		p := meshrunProgram(append([]string{"run", "--model", model, "--mode", "timing"}, strings.Fields(args)...)...)
		require.Equal(t, 0, p.code, p.stderr)
		require.Contains(t, strings.Split(p.stderr, "\n"), want)
		require.Less(t, strings.Index(p.stderr, want), strings.Index(p.stderr, "place weights"), "before anything is placed")
		p = meshrunProgram(append([]string{"run", "--model", model, "--mode", "timing", "--quiet"}, strings.Fields(args)...)...)
		require.Empty(t, p.stderr)
	}
}

// flat are the effects of all rows, each as text, with its call in front.
func (l *log) flat(t *testing.T) (calls, texts []string) {
	t.Helper()
	for _, r := range l.Rows {
		for _, e := range r.Effects {
			text, err := json.Marshal(e)
			require.NoError(t, err)
			calls, texts = append(calls, call(e)), append(texts, string(text))
		}
	}
	return calls, texts
}

func made(call string) bool { return call == "create_semaphore" || call == "allocate" }

// A5: what is made lazily is behind a fence before the first launch that names it. Without that fence the checker says so, but of what
// needs none: memory that peers write only behind a start barrier, and memory that only its own device writes.
func TestFieldA5WhatIsMadeLazilyIsFenced(t *testing.T) {
	const exchange = `"dims":[1,2],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1]`
	const conv = `{"op":"np_conv3d","in":["c","f"],"axes":[0,1],"kernel":[3,3,3],"padding":[1,1,1]}`
	for name, tt := range map[string]struct {
		call, resource string
		reported       bool
	}{
		"fused halo exchange":   {conv, "np_fused[0].bank0", true},
		"its other axis":        {conv, "np_fused[1].bank0", true},
		"fused barrier":         {conv, "barrier_fused[0].bank0", true},
		"region progress":       {conv, "np_region[0].3", true},
		"strided gather":        {`{"op":"strided_all_gather_minimal_matmul","in":["x","w"],"mesh_axis":1}`, "strided_ag_mm[1,2].bank0.0", true},
		"stats buffer":          {`{"op":"fused_distributed_norm","in":"x","norm":"rms","mesh_axis":1}`, "stats(rms,rows=32,axis=1).bank0", true},
		"gather buffer":         {`{"op":"all_gather_persistent_buffer","in":"x","dim":2,"mesh_axis":0}`, "ag(shape=[1, 1, 32, 64],dim=2,axis=0,dtype=float32).bank0", true},
		"halo buffer":           {`{"op":"neighbor_pad_halo_only","in":"p",` + exchange + `}`, "np_halo(shape=[2, 4, 4, 4],dim=1,pad=1,dim2=2,pad2=1,dtype=float32).bank0", false},
		"progress counters":     {`{"op":"matmul_strided_reduce_scatter","in":["x","u"],"mesh_axis":1}`, "mm_progress", false},
		"counters, no barrier":  {`{"op":"matmul_strided_reduce_scatter","in":["x","u"],"mesh_axis":1,"use_persistent_buffer":true}`, "mm_progress", false},
		"credit counters":       {`{"op":"matmul_strided_reduce_scatter","in":["x","u"],"mesh_axis":1,"credits":true}`, "mm_credit", false},
		"padded buffer":         {`{"op":"neighbor_pad_persistent_buffer","in":"p",` + exchange + `}`, "np(shape=[2, 6, 6, 4],dtype=float32).bank0", false},
		"halo of a convolution": {conv, "np_halo(shape=[1, 3, 4, 4, 4],dim=2,pad=1,dim2=3,pad2=1,dtype=float32).bank0", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := strict{tensors: used(tt.call), calls: []string{tt.call, `{"op":"fence"}`}}
			calls, texts := ok(t, s.text("")).flat(t)
			last, fenced, first := -1, false, -1
			for i, text := range texts {
				switch {
				case made(calls[i]) && strings.Contains(text, tt.resource+`"`):
					require.Equal(t, -1, last, "made once")
					last = i
				case last >= 0 && first < 0 && calls[i] == "synchronize":
					fenced = true
				case !made(calls[i]) && calls[i] != "synchronize" && first < 0 && strings.Contains(text, `"`+tt.resource+`"`):
					first = i
				}
			}
			require.GreaterOrEqual(t, last, 0, "%s is made: %s", tt.resource, texts)
			require.Greater(t, first, last, "and named")
			require.True(t, fenced, "a fence lies between")

			const broken = `"break":["no_creation_fence"],"on_hazard":"continue",`
			for _, more := range []string{broken, broken + `"seed":3,"skew_us":300,"faults":["device 1,2 late allocation 900us"],`} {
				p := execute(s.text(more))
				l := readLog(t, p.stdout)
				calls, _ := l.flat(t)
				require.Equal(t, "synchronize", calls[len(calls)-1])
				at := slices.IndexFunc(hazards(t, l), func(h hazard) bool { return h.Kind == "not_fenced" && h.Resource == tt.resource })
				require.Equal(t, tt.reported, at >= 0, "%s", reported(t, l))
				if tt.reported {
					require.Contains(t, []int{4, 5}, p.code)
				}
			}
		})
	}
	// The barrier is what makes a halo buffer safe: without it the checker names the buffer.
	s := strict{tensors: used(`"p"`), calls: []string{`{"op":"neighbor_pad_halo_only","in":"p",` + exchange + `}`, `{"op":"fence"}`}}
	p := execute(s.text(`"break":["no_creation_fence","no_start_barrier"],"on_hazard":"continue","skew_us":300,`))
	require.Contains(t, reported(t, readLog(t, p.stdout)), "peer_not_entered of np_halo(")
}

// B7: sixteen streams ask for what is not there yet, all at once. Every pool is made once, between a pair of fences of its own, and whole.
func TestFieldB7SixteenFirstRequestsAtOnce(t *testing.T) {
	kinds := []string{
		`{"op":"np_conv3d","in":["c","f"],"axes":[0,1],"kernel":[3,3,3],"padding":[1,1,1],"out":"y"}`,
		`{"op":"strided_all_gather_minimal_matmul","in":["x","w"],"mesh_axis":1,"out":"y"}`,
		`{"op":"fused_distributed_norm","in":"x","norm":"rms","mesh_axis":1,"out":"y"}`,
		`{"op":"neighbor_pad_halo_only","in":"p","dims":[1,2],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1]}`,
	}
	want := map[string]int{"np_conv3d": 8 + 8 + 2, "strided_all_gather_minimal_matmul": 12 + 2, "fused_distributed_norm": 2, "neighbor_pad_halo": 2}
	for _, seed := range []int{0, 1, 2} {
		var s strict
		for i := range 16 {
			s.streams = append(s.streams, []string{kinds[(i+seed)%len(kinds)]})
		}
		s.tensors = used(fmt.Sprint(kinds))
		l := ok(t, s.text(fmt.Sprintf(`"policy":"hold","seed":%d,"skew_us":%d,`, seed, 200*seed)))
		everything, making := map[string]int{}, map[string]int{}
		for _, r := range l.Rows[1:] {
			var calls []string
			for _, e := range r.Effects {
				calls = append(calls, call(e))
				if made(call(e)) {
					what := fmt.Sprint(e["sem"], e["buf"])
					everything[what]++
					require.Equal(t, 1, everything[what], "%s is made once", what)
				}
			}
			if !slices.ContainsFunc(calls, made) {
				continue
			}
			n := len(calls)
			launch := calls[n-1]
			making[launch] += n - 3
			require.Equal(t, "synchronize", calls[0], "a fence in front: %s", calls)
			require.Equal(t, "synchronize", calls[n-2], "and one behind: %s", calls)
			for _, c := range calls[1 : n-2] {
				require.True(t, made(c), "nothing but what is made lies between: %s", calls)
			}
			require.Equal(t, want[launch], n-3, "all banks of all its pools at once")
		}
		require.Equal(t, want, making)
		require.Len(t, l.Rows, 1+16)
		// All computed the same as they would alone.
		hashes := l.hashes()
		alone := ok(t, strict{tensors: s.tensors, streams: s.streams[:4]}.text(`"policy":"hold",`)).hashes()
		for name, h := range alone {
			require.Equal(t, h, hashes[name], name)
		}
	}
}

func TestFieldB2ADeviceThatSwapsTwoOfEight(t *testing.T) {
	const swapped = `{"mesh":[1,4],%s"faults":["device 0,3 swap launch 7 and 8"],"tensors":{"x":{"shape":[1,1,32,128],"fill":{"const":1}}},"calls":[%s]}`
	var calls []string
	for range 4 {
		calls = append(calls, `{"op":"all_gather","in":"x","dim":3,"mesh_axis":1}`, `{"op":"reduce_scatter","in":"x","dim":3,"mesh_axis":1}`)
	}
	const order = "device 0,3 enters launch 8 (reduce_scatter, stream main) where every other device has launch 7 (all_gather, stream main): the order of a queue must be the same on all"
	for _, more := range []string{"", `"on_hazard":"continue",`} {
		p := execute(fmt.Sprintf(swapped, more, strings.Join(calls, ",")))
		l := readLog(t, p.stdout)
		for i, r := range l.Rows[1:] {
			require.Equal(t, i >= 6, r.Error != "", "the first six are done: %s", r.Error)
		}
		first := hazards(t, l)[0]
		require.Equal(t, "order", first.Kind)
		require.Equal(t, order+unlessOn(more, "; device 0,0 waits for barrier[1].bank0 (value 2, target 3), and 3 more wait"), unstamped(t, first.Text))
		require.Equal(t, [][2]int{{0, 3}}, first.Devices)
		require.Equal(t, []int{8, 7}, []int{first.Launches[0].Seq, first.Launches[1].Seq})
		hang := wentOn(t, more != "", p, l)
		// What each waits for is in the hazard where the run ends with it, and otherwise in the hang.
		waiting := first.Waiting
		if hang != nil {
			require.Empty(t, first.Waiting)
			require.Equal(t, "entered_other", hang["class"])
			require.Equal(t, "device 0,3 is in launch 8 (reduce_scatter), not in launch 7 (all_gather); device 0,0 waits for barrier[1].bank0 (value 2, target 3), and 3 more wait",
				unstamped(t, hang["text"].(string)))
			waiting = hang["waiting"].([]any)
		}
		var waits []string
		for _, w := range waiting {
			w := w.(map[string]any)
			waits = append(waits, strings.TrimSpace(fmt.Sprintln(w["device"], w["op"], w["seq"], w["semaphore"], w["value"], w["target"], w["owed_by"])))
		}
		require.Equal(t, []string{
			"[0 0] all_gather 7 barrier[1].bank0 2 3 [[0 3]]", "[0 1] all_gather 7 barrier[1].bank0 2 3 [[0 3]]", "[0 2] all_gather 7 barrier[1].bank0 2 3 [[0 3]]",
			"[0 3] reduce_scatter 8 barrier[1].bank1 0 3 [[0 0] [0 1] [0 2]]"}, waits)
	}
}

// B2, with operations of each device alone: nobody waits, and what comes of the swap itself is no second finding where the run ends with it.
func TestASwapThatNobodyWaitsFor(t *testing.T) {
	const swapped = `{"mesh":[1,2],%s"faults":["device 0,1 swap launch 1 and 2"],"tensors":{"x":{"shape":[32,64],"fill":{"const":1}}},
		"calls":[{"op":"mul","in":"x","scalar":2,"out":"y"},{"op":"mul","in":"x","scalar":3,"out":"z"}]}`
	for more, found := range map[string]int{"": 1, `"on_hazard":"continue",`: 2} {
		p := execute(fmt.Sprintf(swapped, more))
		require.Equal(t, 4, p.code, p.stderr)
		all := hazards(t, readLog(t, p.stdout))
		require.Len(t, all, found)
		require.Equal(t, "device 0,1 enters launch 2 (binary, stream main) where every other device has launch 1 (binary, stream main): the order of a queue must be the same on all",
			unstamped(t, all[0].Text))
		require.Empty(t, all[0].Waiting)
	}
}

// B2: a stream that reads between its operations waits alone.
func TestFieldB2AReadStopsNobodyElse(t *testing.T) {
	const gather, scatter = `{"op":"all_gather","in":"x","dim":3,"mesh_axis":1,"out":"y"}`, `{"op":"reduce_scatter","in":"x","dim":3,"mesh_axis":1}`
	reads := []string{gather, `{"op":"read","in":"y"}`, gather, `{"op":"read","in":"y"}`, gather, `{"op":"read","in":"y"}`}
	others := slices.Repeat([]string{scatter}, 8)
	s := strict{mesh: "[1,4]", tensors: `"x":{"shape":[1,1,32,128],"fill":{"const":1}}`, streams: [][]string{reads, others}}
	l := ok(t, s.text(`"faults":["op all_gather #1 delay 5ms"],`))
	launches := map[string][]int{} // rows by stream
	for i, r := range l.Rows {
		if r.Time != nil {
			launches[r.Stream] = append(launches[r.Stream], i)
		}
	}
	a, b := launches["s0"], launches["s1"]
	require.Len(t, a, 3)
	require.Len(t, b, 8)
	at := func(row int) uint64 { return l.Rows[row].Time.Start }
	require.Less(t, a[0], b[0])
	// The gather takes 5 ms, the read waits for it; all of the other stream is issued meanwhile.
	require.Less(t, b[7], a[1], "%v and %v", a, b)
	require.Less(t, at(b[7]), at(a[1]))
	require.Greater(t, at(b[0]), uint64(5_000_000), "on one queue they come behind the slow one")
	// Each stream's own order holds, and times are in launch order.
	rows := slices.Sorted(slices.Values(append(slices.Clone(a), b...)))
	for i := range rows[1:] {
		require.Less(t, at(rows[i]), at(rows[i+1]))
	}
}
