package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/cmd/meshrun/internal/casefile"
	exec "github.com/meshrun/meshrun/cmd/meshrun/internal/execute"
)

// seeds is how many seeds each kind of operation runs under: 100 in CI, MESHRUN_SEEDS=10000 for the whole proof.
func seeds(t *testing.T) uint64 {
	if s := os.Getenv("MESHRUN_SEEDS"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		return n
	}
	return 20
}

// strict is a case of several calls, to be run under many seeds.
type strict struct {
	mesh    string // of the case; "" = [2,4]
	tensors string
	calls   []string
	streams [][]string // instead of calls
}

func (s strict) text(more string) string {
	work := `"calls":[` + strings.Join(s.calls, ",") + `]`
	if s.streams != nil {
		var all []string
		for i, calls := range s.streams {
			all = append(all, fmt.Sprintf(`{"name":"s%d","calls":[%s]}`, i, strings.Join(calls, ",")))
		}
		work = `"streams":[` + strings.Join(all, ",") + `]`
	}
	mesh := s.mesh
	if mesh == "" {
		mesh = "[2,4]"
	}
	return fmt.Sprintf(`{"mesh":%s,%s"tensors":{%s},%s}`, mesh, more, s.tensors, work)
}

// hashes are the results by name and device.
func (l *log) hashes() map[string]string {
	all := map[string]string{}
	for name, x := range l.Tensors {
		for _, d := range x.Devices {
			all[fmt.Sprint(name, d.At)] = d.SHA256
		}
	}
	return all
}

// repeat makes n rounds of a call whose result is kept in a sum and given back, so that banks come round again.
func repeat(n int, name, call string) []string {
	var calls []string
	for i := range n {
		calls = append(calls, fmt.Sprintf(`{%s,"out":"%s%d"}`, call, name, i), fmt.Sprintf(`{"op":"mul","in":"%s%d","scalar":2,"out":"%ssum%d"}`, name, i, name, i),
			fmt.Sprintf(`{"op":"release","tensors":["%s%d"]}`, name, i))
	}
	return calls
}

const strictTensors = `
	"x":{"dtype":"float32","fill":{"global":[1,1,64,256],"random":1,"shard":{"0":2,"1":3}}},
	"w":{"shape":[256,32],"dtype":"float32","fill":{"random":2}},
	"u":{"shape":[64,128],"dtype":"float32","fill":{"random":3}},
	"p":{"dtype":"float32","layout":"row_major","fill":{"global":[2,8,16,4],"random":4,"shard":{"0":1,"1":2}}},
	"r":{"dtype":"float32","layout":"row_major","fill":{"global":[24,3,5],"random":5,"shard":{"1":0}}},
	"q":{"dtype":"float32","fill":{"global":[1,2,64,16],"random":6,"shard":{"1":2}}},
	"k":{"dtype":"float32","fill":{"global":[1,2,64,16],"random":7,"shard":{"1":2}}},
	"v":{"dtype":"float32","fill":{"global":[1,2,64,16],"random":8,"shard":{"1":2}}},
	"c":{"dtype":"float32","layout":"row_major","fill":{"global":[1,3,8,16,4],"random":9,"shard":{"0":2,"1":3}}},
	"f":{"shape":[108,6],"dtype":"float32","fill":{"random":10}},
	"y":{"dtype":"float32","fill":{"global":[1,1,4,32],"random":11,"shard":{"1":3}}}`

// used are the lines of strictTensors that the calls name: what a case does not use it need not hold.
func used(calls ...string) string {
	var lines []string
	for line := range strings.Lines(strictTensors) {
		line = strings.TrimSuffix(strings.TrimSpace(line), ",")
		if name, _, ok := strings.Cut(line, ":"); ok && strings.Contains(strings.Join(calls, ""), name) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, ",")
}

func kinds() map[string][]string {
	return map[string][]string{
		"gather": append(append(repeat(4, "a", `"op":"all_gather_persistent_buffer","in":"x","dim":3,"mesh_axis":1`),
			repeat(3, "b", `"op":"all_gather_persistent_buffer","in":"x","dim":2,"mesh_axis":0`)...), repeat(2, "c", `"op":"all_gather","in":"x","dim":3,"mesh_axis":1`)...),
		"scatter": append(append(repeat(4, "a", `"op":"reduce_scatter_persistent_buffer","in":"x","dim":3,"mesh_axis":1`),
			repeat(3, "b", `"op":"reduce_scatter_persistent_buffer","in":"x","dim":2,"mesh_axis":0`)...), repeat(2, "c", `"op":"reduce_scatter","in":"x","dim":3,"mesh_axis":1`)...),
		"halo": append(append(repeat(4, "a", `"op":"neighbor_pad_persistent_buffer","in":"p","dims":[2],"axes":[1],"pad_left":[1],"pad_right":[0]`),
			repeat(4, "b", `"op":"neighbor_pad_persistent_buffer","in":"p","dims":[1,2],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,0]`)...),
			repeat(3, "c", `"op":"neighbor_pad","in":"p","dims":[1,2],"axes":[0,1],"pad_left":[0,2],"pad_right":[1,1],"padding_mode":"replicate"`)...),
		"compact": repeat(4, "a", `"op":"neighbor_pad_halo_only","in":"p","dims":[1,2],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1]`),
		"reshard": repeat(5, "a", `"op":"slice_reshard","in":"r","output_dim_offset":3,"output_dim_shape":16,"mesh_axis":1,"dim":0`),
		"attention": append(repeat(3, "a", `"op":"ring_joint_sdpa","in":["q","k","v"],"mesh_axis":1`),
			repeat(3, "b", `"op":"exp_ring_joint_sdpa","in":["q","k","v"],"mesh_axis":1,"logical_n":50`)...),
		"convolution": repeat(4, "a", `"op":"np_conv3d","in":["c","f"],"axes":[0,1],"kernel":[3,3,3],"padding":[1,1,1]`),
		"norm": append(repeat(4, "a", `"op":"fused_distributed_norm","in":"x","norm":"rms","mesh_axis":1`),
			repeat(3, "b", `"op":"fused_distributed_norm","in":"x","norm":"layer","mesh_axis":0`)...),
		"fused": append(repeat(3, "a", `"op":"strided_all_gather_minimal_matmul","in":["x","w"],"mesh_axis":1`),
			repeat(3, "b", `"op":"matmul_strided_reduce_scatter","in":["x","u"],"mesh_axis":1,"use_persistent_buffer":true`)...),
	}
}

// run carries out a case that must be free of hazards and gives what it computed: as exec does, but for the printing, which would take most of
// the time.
func (s strict) run(t *testing.T, seed uint64, skew int) map[string]string {
	t.Helper()
	c, err := casefile.Parse([]byte(s.text(fmt.Sprintf(`"seed":%d,"skew_us":%d,`, seed, skew))), nil)
	require.NoError(t, err)
	result, err := exec.Run(t.Context(), c, exec.Options{})
	require.NoError(t, err, "seed %d", seed)
	require.NoError(t, result.Err(), "seed %d", seed)
	all := map[string]string{}
	for _, x := range result.Tensors {
		for _, d := range x.Devices {
			all[fmt.Sprint(x.Name, [2]int{d.At.Row, d.At.Col})] = d.SHA256
		}
	}
	return all
}

// With the rules in place no seed shows a hazard or another number than the mesh without skew; that one is held against plain computations
// elsewhere.
func TestNoSeedShowsAHazard(t *testing.T) {
	for name, calls := range kinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, policy := range []string{"hold", "rotate"} {
				s := strict{tensors: used(calls...), calls: calls}
				if policy == "hold" {
					s = strict{tensors: used(calls...), streams: [][]string{calls}}
				}
				want := s.run(t, 0, 0)
				require.NotEmpty(t, want)
				for seed := range seeds(t) / 2 {
					require.Equal(t, want, s.run(t, seed+1, 20+int(seed%5)*100), "%s, seed %d", policy, seed+1)
				}
			}
		})
	}
}

// A random mix of all kinds in three streams.
func TestNoSeedShowsAHazardInAMix(t *testing.T) {
	const parts = 4
	for part := range uint64(parts) {
		t.Run(fmt.Sprint(part), func(t *testing.T) {
			t.Parallel()
			for seed := part; seed < seeds(t); seed += parts {
				mixed(t, seed)
			}
		})
	}
}

// mixed runs the mix of one seed with and without skew.
func mixed(t *testing.T, seed uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	s := strict{streams: make([][]string, 3)}
	for i := range s.streams {
		all := kinds()
		for _, name := range slices.Sorted(maps.Keys(all)) {
			calls := all[name]
			from := 3 * r.IntN(len(calls)/3)
			s.streams[i] = append(s.streams[i], calls[from:from+3]...)
		}
	}
	for i := range s.streams { // in an order that the seed decides
		rounds := len(s.streams[i]) / 3
		shuffled := make([]string, 0, len(s.streams[i]))
		for k, at := range r.Perm(rounds) {
			for _, call := range s.streams[i][3*at : 3*at+3] {
				shuffled = append(shuffled, strings.NewReplacer(`"out":"`, fmt.Sprintf(`"out":"n%d`, k), `"tensors":["`, fmt.Sprintf(`"tensors":["n%d`, k),
					`"mul","in":"`, fmt.Sprintf(`"mul","in":"n%d`, k)).Replace(call))
			}
		}
		s.streams[i] = shuffled
	}
	s.tensors = used(fmt.Sprint(s.streams))
	require.Equal(t, s.run(t, 0, 0), s.run(t, seed, 300), "seed %d", seed)
}

// reported are the kinds and resources of the hazards of a run.
func reported(t *testing.T, l *log) string {
	var all []struct{ Kind, Resource, Text string }
	text, err := json.Marshal(l.Report["hazards"])
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &all))
	var b strings.Builder
	for _, h := range all {
		fmt.Fprintf(&b, "%s of %s: %s\n", h.Kind, h.Resource, h.Text)
	}
	return b.String()
}

// Each rule matters: without it the checker names the cause under every seed, and under some the numbers are wrong or the run hangs.
func TestRulesThatAreSwitchedOff(t *testing.T) {
	// Another input in each round, so that what a later one writes too early shows.
	rounds := func(n int, input, call string) (calls []string) {
		for i := range n {
			calls = append(calls, fmt.Sprintf(`{"op":"mul","in":%q,"scalar":%d,"out":"in%d"}`, input, i+1, i))
			calls = append(calls, repeat(1, fmt.Sprint("a", i, "x"), fmt.Sprintf(call, fmt.Sprint("in", i)))...)
		}
		return calls
	}
	// Many back to back, so that at times a device is in the next while its neighbour has not left; the results are looked at in the end.
	var inputs, gathers, sums []string
	for i := range 64 {
		inputs = append(inputs, fmt.Sprintf(`{"op":"mul","in":"y","scalar":%d,"out":"in%d"}`, i+1, i))
		gathers = append(gathers, fmt.Sprintf(`{"op":"all_gather_persistent_buffer","in":"in%d","dim":3,"mesh_axis":1,"out":"a%d"}`, i, i))
		sums = append(sums, fmt.Sprintf(`{"op":"add","in":["a%d","a%d"],"out":"sum%d"}`, i, max(i-1, 0), i), fmt.Sprintf(`{"op":"release","tensors":["in%d"]}`, i))
	}
	gathers = slices.Concat(inputs, gathers, sums)
	halos := rounds(24, "p", `"op":"neighbor_pad_persistent_buffer","in":%q,"dims":[2],"axes":[1],"pad_left":[1],"pad_right":[0]`)
	for rule, tt := range map[string]struct {
		calls []string
		named string
	}{
		"one_bank ag[1]":      {gathers, "semaphore_in_use of ag[1]"},
		"no_creation_fence":   {repeat(3, "a", `"op":"strided_all_gather_minimal_matmul","in":["x","w"],"mesh_axis":1`), "not_fenced of strided_ag_mm"},
		"no_start_barrier":    {halos, "peer_not_entered of "},
		"ring_halo":           {halos, "ring_halo of np[1]"},
		"linear_intermediate": {repeat(3, "a", `"op":"reduce_scatter_persistent_buffer","in":"x","dim":3,"mesh_axis":1`), "wrong_intermediate of rs("},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			s := strict{tensors: used(tt.calls...), streams: [][]string{tt.calls}}
			want := s.run(t, 0, 0)
			bad := 0
			for seed := range uint64(20) {
				broken := fmt.Sprintf(`"break":[%q],"seed":%d,"skew_us":400,"faults":["device 1,2 delay 1ms","device 1,2 late allocation 900us"],`, rule, seed)
				p := execute(s.text(broken))
				require.Equal(t, 4, p.code, "seed %d: %s", seed, p.stderr)
				first, _, _ := strings.Cut(reported(t, readLog(t, p.stdout)), "\n")
				require.Contains(t, first, tt.named, "seed %d", seed)
				require.Contains(t, p.stderr, "hazard")
				p = execute(s.text(broken + `"on_hazard":"continue",`))
				require.Contains(t, []int{4, 5}, p.code, "seed %d: %s", seed, p.stderr)
				l := readLog(t, p.stdout)
				require.Contains(t, reported(t, l), tt.named)
				if p.code == 5 || !equal(l.hashes(), want) {
					bad++
				}
			}
			t.Logf("%d of 20 seeds went wrong", bad)
			require.Positive(t, bad)
		})
	}
}

// Where all devices are so close together that each waits before its peers raise anything, the order is none the less: without skew a pool
// of one bank is named.
func TestOneBankIsNamedWithoutSkew(t *testing.T) {
	for pool, call := range map[string]string{
		"ag[1]": `"op":"all_gather_persistent_buffer","in":"x","dim":3,"mesh_axis":1`,
		"rs[1]": `"op":"reduce_scatter_persistent_buffer","in":"x","dim":3,"mesh_axis":1`,
		"rs[0]": `"op":"reduce_scatter_persistent_buffer","in":"x","dim":2,"mesh_axis":0`,
	} {
		for _, topology := range []string{"linear", "ring"} {
			calls := repeat(2, "a", call)
			p := execute(strict{tensors: used(calls...), calls: calls}.text(fmt.Sprintf(`"topology":%q,"break":["one_bank %s"],`, topology, pool)))
			require.Equal(t, 4, p.code, "%s, %s: %s", pool, topology, p.stderr)
			require.Contains(t, reported(t, readLog(t, p.stdout)), "semaphore_in_use of "+pool, topology)
		}
	}
}

func equal(got, want map[string]string) bool {
	if len(got) != len(want) {
		return false
	}
	for k, v := range want {
		if got[k] != v {
			return false
		}
	}
	return true
}

// What looks safe and is not: the runtime fences.
func TestPatternsThatLookSafe(t *testing.T) {
	gather := func(out string) string {
		return fmt.Sprintf(`{"op":"all_gather_persistent_buffer","in":"x","dim":3,"mesh_axis":1,"out":%q}`, out)
	}
	keep := func(in, out string) string { return fmt.Sprintf(`{"op":"mul","in":%q,"scalar":2,"out":%q}`, in, out) }
	for name, s := range map[string]strict{
		"a getter turns a bank between two launches": {calls: []string{gather("a"), keep("a", "ka"), `{"op":"get_ag_ping_pong_semaphore","mesh_axis":1}`, gather("b"), keep("b", "kb"),
			`{"op":"get_ag_ping_pong_semaphore","mesh_axis":1}`, gather("c"), keep("c", "kc")}},
		"a norm that gathers nothing but draws a bank": {mesh: "[1,4]", calls: []string{gather("a"), keep("a", "ka"), `{"op":"fused_distributed_norm","in":"x","mesh_axis":0,"out":"n"}`,
			gather("b"), keep("b", "kb"), `{"op":"fused_distributed_norm","in":"x","mesh_axis":0,"out":"m"}`, gather("c"), keep("c", "kc")}},
		"a result read after the next gather of its key": {calls: []string{gather("a"), gather("b"), keep("a", "ka"), gather("c"), keep("b", "kb"), gather("d"), keep("c", "kc"), keep("d", "kd")}},
		"a one-sided exchange with the barrier on the other axis": {calls: repeat(6, "a",
			`"op":"neighbor_pad_persistent_buffer","in":"p","dims":[1,2],"axes":[0,1],"pad_left":[0,1],"pad_right":[1,0]`)},
		"K and V of one pair": {calls: append(repeat(4, "a", `"op":"ring_joint_sdpa","in":["q","k","v"],"mesh_axis":1`),
			repeat(2, "b", `"op":"ring_joint_sdpa","in":["q","v","k"],"mesh_axis":1`)...)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.tensors = used(s.calls...)
			want := s.run(t, 0, 0)
			for seed := range uint64(20) {
				require.Equal(t, want, s.run(t, seed, 400), "seed %d", seed)
			}
		})
	}
}

// The same seed gives the same output, bit for bit; another seed other times.
func TestSkewIsAFunctionOfTheSeed(t *testing.T) {
	s := strict{tensors: used(kinds()["gather"]...), streams: [][]string{kinds()["gather"]}}
	at := func(seed int) string {
		p := execute(s.text(fmt.Sprintf(`"seed":%d,"skew_us":300,`, seed)))
		require.Equal(t, 0, p.code, p.stderr)
		return p.stdout
	}
	require.Equal(t, at(5), at(5))
	require.NotEqual(t, at(5), at(6))
}

// Two devices with different orders: the checker names both launches; without it the hang report does.
func TestADeviceThatSwapsTwoLaunches(t *testing.T) {
	text := `{"mesh":[1,4],"faults":["device 0,3 swap launch 1 and 2"],%s"tensors":{"x":{"shape":[1,1,32,128],"fill":{"const":1}}},
		"calls":[{"op":"all_gather","in":"x","dim":3,"mesh_axis":1},{"op":"reduce_scatter","in":"x","dim":3,"mesh_axis":1},{"op":"fence"}]}`
	p := execute(fmt.Sprintf(text, ""))
	require.Equal(t, 4, p.code, p.stderr)
	require.Contains(t, p.stderr, "device 0,3 enters launch 2 (reduce_scatter, stream main) where every other device has launch 1 (all_gather, stream main)")
	p = execute(fmt.Sprintf(text, `"on_hazard":"continue",`))
	require.Equal(t, 5, p.code, p.stderr)
	require.Contains(t, p.stdout, `"class":"entered_other","device":[0,3]`)
}

// A1: without a persistent buffer there is always a barrier, and a device that lags 5 ms is waited for.
func TestADeviceThatLags(t *testing.T) {
	s := strict{mesh: "[1,4]", tensors: `"g":{"dtype":"float32","fill":{"global":[1,1,32,256],"random":1,"shard":{"1":3}}}`,
		calls: []string{`{"op":"all_gather","in":"g","dim":3,"mesh_axis":1,"out":"y"}`}}
	want := s.run(t, 0, 0)
	for seed := range seeds(t) {
		p := execute(s.text(fmt.Sprintf(`"seed":%d,"skew_us":50,"faults":["device 0,2 delay 5ms"],`, seed)))
		require.Equal(t, 0, p.code, p.stderr)
		require.Equal(t, want, readLog(t, p.stdout).hashes())
	}
}

// A3: 200 two-dimensional exchanges back to back, devices up to 3 ms apart.
func TestExchangesBackToBack(t *testing.T) {
	s := strict{mesh: "[2,2]", tensors: `"p":{"dtype":"bfloat16","layout":"row_major","fill":{"global":[1,6,8,2],"random":4,"shard":{"0":1,"1":2}}}`,
		streams: [][]string{repeat(200, "a", `"op":"neighbor_pad_persistent_buffer","in":"p","dims":[1,2],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1]`)}}
	l := s.run(t, 0, 0)
	for seed := range uint64(3) {
		got := s.run(t, seed, 3000)
		require.Equal(t, l, got)
		for i := range 200 {
			require.Equal(t, got["asum0[0 0]"], got[fmt.Sprintf("asum%d[0 0]", i)], "every result is the same")
		}
	}
}

// A5: what is made late on a device is waited for before its first use.
func TestAllocationThatIsLate(t *testing.T) {
	for name, calls := range kinds() {
		s := strict{tensors: used(calls...), streams: [][]string{calls}}
		want := s.run(t, 0, 0)
		p := execute(s.text(`"faults":["device 1,3 late allocation 50ms"],`))
		require.Equal(t, 0, p.code, "%s: %s", name, p.stderr)
		require.Equal(t, want, readLog(t, p.stdout).hashes(), name)
	}
}

// B9: the report of a hang tells the classes apart.
func TestHangsByClass(t *testing.T) {
	text := `{"mesh":[1,4],"faults":[%q],"on_hazard":"continue","tensors":{"x":{"shape":[1,1,32,128],"fill":{"const":1}}},
		"calls":[{"op":"all_gather","in":"x","dim":3,"mesh_axis":1},{"op":"reduce_scatter","in":"x","dim":3,"mesh_axis":1},{"op":"fence"}]}`
	for fault, want := range map[string]string{
		"device 0,2 stop at launch 2":      `"class":"never_entered","device":[0,2]`,
		"device 0,1 swap launch 1 and 2":   `"class":"entered_other","device":[0,1]`,
		"op reduce_scatter axis 1 #1 hang": `"class":"never_left","device":[0,0]`,
	} {
		p := execute(fmt.Sprintf(text, fault))
		require.Equal(t, 5, p.code, "%s: %s", fault, p.stderr)
		require.Contains(t, p.stdout, want, fault)
		require.Contains(t, p.stdout, `"recent":[`)
		require.Contains(t, p.stdout, `"faults":["`+fault+`"]`)
	}
}
