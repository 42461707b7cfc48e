package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/cmd/meshrun/internal/cli"
)

// What exec prints for small cases, whole but for what the emulator's cost model and counters decide.
func TestExecGolden(t *testing.T) {
	cases, err := filepath.Glob("testdata/*.case.json")
	require.NoError(t, err)
	require.NotEmpty(t, cases)
	for _, c := range cases {
		t.Run(filepath.Base(c), func(t *testing.T) {
			p := meshrunProgram("exec", c)
			out := virtual.ReplaceAllString(p.stdout, `"$1":0`)
			out = counters.ReplaceAllString(out, `"stats":{...}`)
			golden(t, strings.TrimSuffix(filepath.Base(c), ".case.json")+".out", fmt.Sprintf("exit %d\n%s%s", p.code, p.stderr, out))
		})
	}
}

var (
	virtual  = regexp.MustCompile(`"(start_ns|end_ns|virtual_ns)":\d+`)
	counters = regexp.MustCompile(`(?m)"stats":\{.*\}`)
)

const many = `{"mesh":[2,4],"seed":7,"tensors":{"x":{"shape":[1,1,64,128],"fill":{"random":3}}},"streams":[%s]}`

// Several streams, with waits, sleeps, shared pools: the output is a function of the case, byte for byte.
func TestTheSameCaseGivesTheSameBytes(t *testing.T) {
	var streams []string
	for i := range 5 {
		calls := []string{
			`{"op":"all_gather_persistent_buffer","in":"x","dim":3,"mesh_axis":1,"out":"a"}`,
			`{"op":"reduce_scatter","in":"a","dim":2,"mesh_axis":0,"out":"b"}`,
			`{"op":"get_ag_hyperparams","shape":[1,1,32,32]}`,
			fmt.Sprintf(`{"op":"sleep","us":%d}`, 37*i),
			`{"op":"read","in":"b"}`,
			`{"op":"all_gather","shape":[1,1,32,64],"dim":2,"mesh_axis":0}`,
			`{"op":"all_gather_persistent_buffer","in":"b","dim":3,"mesh_axis":1,"out":"a"}`,
			`{"op":"fence"}`,
			`{"op":"reduce_scatter_persistent_buffer","in":"a","dim":3,"mesh_axis":1,"out":"d"}`,
		}
		streams = append(streams, fmt.Sprintf(`{"name":"s%d","calls":[%s]}`, i, strings.Join(calls, ",")))
	}
	text := fmt.Sprintf(many, strings.Join(streams, ","))
	first := execute(text)
	require.Equal(t, 0, first.code, first.stderr)
	for range 3 {
		require.Equal(t, first.stdout, execute(text).stdout)
	}
	l := readLog(t, first.stdout)
	require.Len(t, l.Rows, 1+5*9)
	launchOrder := uint64(0)
	for _, r := range l.Rows {
		if r.Time != nil {
			require.GreaterOrEqual(t, r.Time.End, r.Time.Start)
			launchOrder++
		}
	}
	require.EqualValues(t, 5*5, launchOrder)
}

// Ready streams are served round robin, in the order of the file; rows of a stream stand in call order.
func TestStreamsTakeTurnsInTheOrderOfTheFile(t *testing.T) {
	one := `{"name":%q,"calls":[{"op":"all_gather","shape":[1,1,32,32],"dim":2,"mesh_axis":0},{"op":"get_rs_hyperparams","shape":[1]},{"op":"reduce_scatter","in":"x","dim":3,"mesh_axis":1}]}`
	l := ok(t, fmt.Sprintf(many, fmt.Sprintf(one, "b")+","+fmt.Sprintf(one, "a")))
	require.Equal(t, []string{"b all_gather", "a all_gather", "b get_rs_hyperparams", "a get_rs_hyperparams", "b reduce_scatter", "a reduce_scatter"}, l.steps())
}

func TestCallsAloneAreOneStreamThatRotates(t *testing.T) {
	call := `{"op":"all_gather_persistent_buffer","in":"x","dim":3,"mesh_axis":1,"out":"y%d"}`
	calls := fmt.Sprintf(call, 0) + "," + fmt.Sprintf(call, 1) + "," + fmt.Sprintf(call, 2)
	x := `"tensors":{"x":{"shape":[1,1,32,32],"fill":{"const":1}}}`
	l := ok(t, `{"mesh":[1,4],`+x+`,"calls":[`+calls+`]}`)
	var banks []string
	for _, r := range l.Rows[1:] {
		require.Equal(t, "main", r.Stream)
		name := r.Returns.(map[string]any)["buffer"].(string)
		banks = append(banks, name[strings.LastIndex(name, "."):])
	}
	require.Equal(t, []string{".bank0", ".bank1", ".bank0"}, banks, "the next call takes the next bank")
	require.NotContains(t, l.Tensors, "y0", "its bank has been written again")
	require.Contains(t, l.Tensors, "y1")
	require.Contains(t, l.Tensors, "y2")

	// Under hold nothing that has a name is written again.
	l = ok(t, `{"mesh":[1,4],"policy":"hold",`+x+`,"calls":[`+calls+`]}`)
	for _, name := range []string{"y0", "y1", "y2"} {
		require.Contains(t, l.Tensors, name)
	}
}

// What a stream made can be read at the end although the stream has given it back when it ended.
func TestTensorsAtTheEnd(t *testing.T) {
	l := ok(t, `{"mesh":[1,2],"tensors":{"x":{"shape":[1,1,32,32],"fill":{"const":1}},"big":{"shape":[1,1,128,64],"fill":{"iota":true}}},"streams":[
		{"name":"a","calls":[{"op":"add","in":["x","x"],"out":"y"},{"op":"add","in":["y","y"],"out":"gone"},{"op":"release","tensors":["gone"]},
			{"op":"add","in":["x","y"],"out":"same"},{"op":"add","in":["x","x"]}]},
		{"name":"b","calls":[{"op":"mul","in":"x","scalar":3,"out":"same"},{"op":"sleep","us":1000},{"op":"release","tensors":["big"]}]}]}`)
	require.Equal(t, []string{"a/same", "b/same", "x", "y"}, sorted(l.Tensors))
	require.Equal(t, 2.0, l.values(t, "y", 0, 1)[0])
	require.Equal(t, 3.0, l.values(t, "a/same", 0, 0)[0])
	require.Equal(t, 3.0, l.values(t, "b/same", 0, 0)[0])
}

func TestBigTensorsHaveASumAndNoValues(t *testing.T) {
	l := ok(t, `{"mesh":[1,1],"tensors":{"x":{"shape":[1,1,64,64],"fill":{"const":0}},"y":{"shape":[1,1,64,65],"fill":{"const":0}}},"calls":[]}`)
	require.Len(t, l.Tensors["x"].Devices[0].Values, 4096)
	require.Nil(t, l.Tensors["y"].Devices[0].Values)
	for name, elements := range map[string]int{"x": 64 * 64, "y": 64 * 65} {
		sum := sha256.Sum256(make([]byte, 2*elements))
		require.Equal(t, hex.EncodeToString(sum[:]), l.Tensors[name].Devices[0].SHA256)
	}
}

// A name may stand for something new; what it stood for is given back.
func TestANameCanBeGivenAgain(t *testing.T) {
	l := ok(t, `{"mesh":[1,1],"tensors":{"x":{"shape":[1,1,32,32],"fill":{"const":1}}},"streams":[{"calls":[
		{"op":"add","in":["x","x"],"out":"x"},{"op":"add","in":["x","x"],"out":"x"},{"op":"add","in":["x","x"],"out":"x"},{"op":"fence"}]}]}`)
	require.Equal(t, 8.0, l.values(t, "x", 0, 0)[0])
}

func TestReadKeepsACopy(t *testing.T) {
	l := ok(t, `{"mesh":[1,2],"tensors":{"x":{"shape":[1,1,32,32],"fill":{"per_device":[1,2]}}},"streams":[{"name":"s","calls":[
		{"op":"add","in":["x","x"],"out":"y"},{"op":"read","in":"y","out":"all"},{"op":"read","in":"y","at":[0,1],"out":"one"},{"op":"release","tensors":["y"]}]}]}`)
	require.Len(t, l.Tensors["all"].Devices, 2)
	require.Len(t, l.Tensors["one"].Devices, 1)
	require.Equal(t, 4.0, l.values(t, "one", 0, 1)[7])
	returns := l.Rows[2].Returns.(map[string]any)
	require.Equal(t, []any{1.0, 1.0, 32.0, 32.0}, returns["shape"])
	require.Len(t, returns["devices"], 2)
}

func TestWrites(t *testing.T) {
	l := ok(t, `{"mesh":[1,2],"tensors":{"x":{"shape":[1,1,32,32],"fill":{"const":1}}},"streams":[{"name":"s","calls":[
		{"op":"write","shape":[1,1,32,32],"fill":{"const":5},"out":"y"},{"op":"add","in":["x","y"],"out":"z"},
		{"op":"write","in":"y","fill":{"per_device":[7,8]}},{"op":"add","in":["x","y"],"out":"w"},{"op":"fence"}]}]}`)
	require.Equal(t, 6.0, l.values(t, "z", 0, 0)[0])
	require.Equal(t, 9.0, l.values(t, "w", 0, 1)[0])
	require.Equal(t, 8.0, l.values(t, "y", 0, 1)[0])
}

// What was written can be read at once: the read waits for it.
func TestReadBehindAWrite(t *testing.T) {
	l := ok(t, `{"mesh":[1,2],"streams":[{"name":"s","calls":[{"op":"write","shape":[1,1,32,32],"fill":{"const":5},"out":"y"},{"op":"read","in":"y","out":"z"}]}]}`)
	require.Equal(t, 5.0, l.values(t, "y", 0, 1)[0])
	require.Equal(t, 5.0, l.values(t, "z", 0, 1)[0])
}

func TestTensorsThatDoNotFit(t *testing.T) {
	p := execute(`{"mesh":[1,2],"limits":{"dram_bytes":1000},"tensors":{"x":{"shape":[1,1,64,64],"fill":{"const":1}}},"calls":[{"op":"fence"}]}`)
	require.Equal(t, 6, p.code, p.stderr)
	require.Contains(t, p.stderr, "tensors.x")
	require.Len(t, readLog(t, p.stdout).Rows, 1, "no call was reached")
}

// The error of each call, its exit code, and that the stream ends there while others go on.
func TestInvalidCalls(t *testing.T) {
	for name, tt := range map[string]struct{ call, want string }{
		"dim out of range":       {`"op":"all_gather","in":"x","dim":4,"mesh_axis":1`, "dim 4"},
		"mesh axis out of range": {`"op":"all_gather","in":"x","dim":3,"mesh_axis":2`, "mesh_axis 2"},
		"mesh axis -1":           {`"op":"all_gather","in":"x","dim":3,"mesh_axis":-1`, "mesh_axis -1"},
		"does not divide":        {`"op":"reduce_scatter","in":"odd","dim":3,"mesh_axis":1`, "divides by the length 4"},
		"buffer does not divide": {`"op":"get_rs_ping_pong_buffer","shape":[1,1,32,33],"dim":3,"mesh_axis":1`, "divides by the length 4"},
		"shapes do not fit":      {`"op":"matmul","in":["odd","x"]`, "weight [1, 1, 32, 32]"},
		"unknown dim":            {`"op":"concat","in":["x","odd"],"dim":2`, "input 1"},
		"a dtype of others":      {`"op":"all_gather","in":"x","dtype":"float32","dim":3,"mesh_axis":1`, `dtype float32: is that of the input "x", bfloat16`},
		"an empty shape":         {`"op":"all_gather","shape":[0],"dim":0,"mesh_axis":1`, "shape [0]"},
		"no device there":        {`"op":"read","in":"x","at":[2,0]`, "device (2,0)"},
		"released":               {`"op":"read","in":"y"`, `tensor "y": released`},
		"a lease of two":         {`"op":"read","in":"pair"`, `tensor "pair": is one tensor on the mesh; this name stands for 2 buffers`},
		"semaphores":             {`"op":"read","in":"sems"`, `tensor "sems": is one tensor on the mesh; this name stands for semaphores`},
		"a copy on the host":     {`"op":"add","in":["x","copy"]`, `this name stands for a copy on the host`},
		"released twice":         {`"op":"release","tensors":["x","y"]`, `release: tensor "y": released`},
		"not made yet":           {`"op":"release","tensors":["late"]`, `tensor "late": has been made by the stream that makes it`},
		"too few values":         {`"op":"write","in":"x","fill":{"values":[1,2]}`, "fill.values 2: are 1024"},
		"another shape":          {`"op":"write","in":"x","fill":{"global":[1,1,32,64],"iota":true}`, "fill.global [1, 1, 32, 64]: gives shards of the tensor's shape"},
		"a layout of others":     {`"op":"all_gather","in":"x","layout":"row_major","dim":3,"mesh_axis":1`, `layout row_major: is that of the input "x", tile`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := `{"mesh":[2,4],"tensors":{"x":{"shape":[1,1,32,32]},"odd":{"shape":[1,1,32,33]}},"streams":[
				{"name":"bad","calls":[{"op":"add","in":["x","x"],"out":"y"},{"op":"release","tensors":["y"]},
					{"op":"get_rs_ping_pong_buffer","shape":[1,1,32,32],"dim":3,"mesh_axis":1,"out":"pair"},
					{"op":"get_ag_ping_pong_semaphore","mesh_axis":0,"out":"sems"},{"op":"read","in":"x","out":"copy"},{%s%s},{"op":"fence"}]},
				{"name":"good","calls":[{"op":"add","in":["x","x"]},{"op":"add","in":["x","x"]},{"op":"fence"},{"op":"sleep","us":90000},{"op":"add","in":["x","x"],"out":"late"}]}]}`
			p := execute(fmt.Sprintf(text, tt.call, ""))
			require.Equal(t, 2, p.code, p.stderr)
			require.Contains(t, p.stderr, "meshrun: standard input: streams[0].calls[5] (stream bad): ")
			require.Contains(t, p.stderr, tt.want)
			require.Equal(t, 1, strings.Count(p.stderr, "\n"), "one line: %s", p.stderr)
			l := readLog(t, p.stdout)
			bad, good := 0, 0
			for _, r := range l.Rows {
				switch r.Stream {
				case "bad":
					bad++
					if bad == 6 {
						require.Contains(t, r.Error, tt.want)
						require.Empty(t, r.Effects)
					}
				case "good":
					good++
					require.Empty(t, r.Error)
				}
			}
			require.Equal(t, []int{6, 5}, []int{bad, good}, "a call that was not reached has no row; the other stream goes on")

			// The same error, expected: a success, and the stream goes on.
			expected := fmt.Sprintf(text, tt.call, fmt.Sprintf(`,"expect":{"error":%q}`, strings.ToUpper(tt.want)))
			p = execute(expected)
			require.Equal(t, 0, p.code, p.stderr)
			require.Len(t, readLog(t, p.stdout).Rows, 1+7+5)
		})
	}
}

func TestExpectationsThatAreMissed(t *testing.T) {
	call := `{"mesh":[1,2],"streams":[{"name":"s","calls":[{"op":"all_gather","shape":[1,1,32,32],"dim":%d,"mesh_axis":1,"expect":{"error":"dim 7"}},{"op":"fence"}]}]}`
	p := execute(fmt.Sprintf(call, 7))
	require.Equal(t, 0, p.code, p.stderr)
	p = execute(fmt.Sprintf(call, 3))
	require.Equal(t, 1, p.code)
	require.Contains(t, p.stderr, `expect.error "dim 7": the call has not failed`)
	require.Len(t, readLog(t, p.stdout).Rows, 3, "the stream goes on")
	p = execute(fmt.Sprintf(call, 9))
	require.Equal(t, 1, p.code, "not 2: the expectation was missed")
	require.Contains(t, p.stderr, `expect.error "dim 7": the error is: all_gather: dim 9`)
	require.Len(t, readLog(t, p.stdout).Rows, 2, "the stream ends")
}

// What was never made poisons what reads it.
func TestAFailedCallsNameIsPoisoned(t *testing.T) {
	p := execute(`{"mesh":[1,2],"calls":[{"op":"all_gather","shape":[1,1,32,32],"dim":7,"mesh_axis":1,"out":"y","expect":{"error":"dim 7"}},
		{"op":"add","in":["y","y"],"expect":{"error":"poisoned"}},{"op":"read","in":"y"}]}`)
	require.Equal(t, 2, p.code, "the code of the cause: %s", p.stderr)
	require.Contains(t, p.stderr, `read: tensor "y": poisoned: all_gather: dim 7`)
}

// A result that does not fit into the device's memory fails where it is launched; what reads it fails as well, and the stream ends before the
// next call that has not been submitted.
func TestOutOfMemory(t *testing.T) {
	text := `{"mesh":[1,2],"limits":{"dram_bytes":20000},"tensors":{"x":{"shape":[1,1,64,64],"fill":{"const":1}}},"streams":[
		{"name":"s","calls":[{"op":"add","in":["x","x"],"out":"y"},{"op":"add","in":["y","y"],"out":"z"%s},{"op":"add","in":["z","x"],"out":"w"%s},{"op":"read","in":"y"}%s]}]}`
	p := execute(fmt.Sprintf(text, "", "", ""))
	require.Equal(t, 6, p.code, p.stderr)
	require.Contains(t, p.stderr, "streams[0].calls[1] (stream s): add")
	require.Contains(t, p.stderr, "out of memory")
	l := readLog(t, p.stdout)
	require.Equal(t, []string{"s add", "s add"}, l.steps())
	require.Contains(t, l.Rows[2].Error, "out of memory")
	require.Equal(t, []string{"x", "y"}, sorted(l.Tensors))

	p = execute(fmt.Sprintf(text, `,"expect":{"error":"out of memory"}`, `,"expect":{"error":"poisoned"}`, `,{"op":"read","in":"w","expect":{"error":"poisoned"}}`))
	require.Equal(t, 0, p.code, p.stderr)
	l = readLog(t, p.stdout)
	require.Equal(t, []string{"s add", "s add", "s add", "s read", "s read"}, l.steps())
	require.Contains(t, l.Rows[5].Error, "out of memory", "the cause is told as well")
}

// A tensor of another stream can be used from the call on that makes it.
func TestTensorsOfOtherStreams(t *testing.T) {
	text := `{"mesh":[1,2],"streams":[{"name":"maker","calls":[{"op":"sleep","us":%d},{"op":"write","shape":[1,1,32,32],"fill":{"const":2},"out":"x"},{"op":"sleep","us":5000}]},
		{"name":"user","calls":[{"op":"sleep","us":1000},{"op":"add","in":["x","x"],"out":"y"}]}]}`
	l := ok(t, fmt.Sprintf(text, 10))
	require.Equal(t, 4.0, l.values(t, "y", 0, 1)[5])
	p := execute(fmt.Sprintf(text, 2000))
	require.Equal(t, 2, p.code)
	require.Contains(t, p.stderr, `tensor "x": has been made by the stream that makes it`)
}

func TestTimingModeMovesNoData(t *testing.T) {
	l := ok(t, `{"preset":"bh-galaxy-4x8","num_links":2,"mode":"timing","tensors":{"x":{"shape":[1,1,8192,8192],"fill":{"random":1}}},
		"calls":[{"op":"all_gather_persistent_buffer","in":"x","dim":3,"mesh_axis":1,"out":"y"},{"op":"fence"}]}`)
	require.Equal(t, []int{1, 1, 8192, 65536}, l.Tensors["y"].Shape)
	require.Len(t, l.Tensors["y"].Devices, 32)
	require.Nil(t, l.Tensors["y"].Devices[0].Values)
	require.Empty(t, l.Tensors["y"].Devices[0].SHA256)
	require.NotZero(t, l.find(t, "all_gather_persistent_buffer").Time.End)
}

func TestRefusedBeforeAnythingRuns(t *testing.T) {
	for text, want := range map[string]string{
		`{"mesh":[2,4],"calls":[{"op":"all_gather","in":"nope","dim":0,"mesh_axis":0}]}`: `standard input:1:24: calls[0]: unknown tensor "nope"`,
		`{"mesh":[2,4],"managers":2,"calls":[]}`:                                         `"managers" is not supported yet`,
		`{"mesh":[2,4],"calls":[{"op":"lend"}]}`:                                         `operation "lend" is not supported yet`,
		`{"mesh":[2,4],"faults":["link 0,0-0,1 down"],"calls":[]}`:                       "not supported yet",
		`{"mesh":[2,4],"faults":["devise 1,1 stop at launch 2"],"calls":[]}`:             "devise",
		`{"mesh":[2,4],"faults":["device 5,5 stop at launch 2"],"calls":[]}`:             "5,5",
	} {
		p := execute(text)
		require.Equal(t, 2, p.code, "%s: %s", text, p.stderr)
		require.Empty(t, p.stdout, text)
		require.Contains(t, p.stderr, want)
	}
}

func TestMoreHostMemoryThanAllowed(t *testing.T) {
	p := execute(`{"mesh":[4,32],"tensors":{"x":{"shape":[1,1,65536,65536]}},"calls":[]}`)
	require.Equal(t, 6, p.code, p.stderr)
	require.Empty(t, p.stdout)
	require.Contains(t, p.stderr, "limits.host_bytes 4294967296")
	p = execute(`{"mesh":[1,1],"limits":{"host_bytes":2047},"tensors":{"x":{"shape":[32,32]}},"calls":[]}`)
	require.Equal(t, 6, p.code, p.stderr)
	p = execute(`{"mesh":[1,1],"limits":{"host_bytes":2048},"tensors":{"x":{"shape":[32,32]}},"calls":[]}`)
	require.Equal(t, 0, p.code, p.stderr)
}

// A mesh that cannot be opened leaves one row that says why.
func TestAMeshThatCannotBeOpened(t *testing.T) {
	for text, want := range map[string]string{
		`{"preset":"wh-t3000-2x4","num_links":2,"calls":[]}`:              "num_links 2: axis 0: asked 2 links, 1 available",
		`{"preset":"wh-t3000-2x4","topology":"ring","calls":[]}`:          "topology ring",
		`{"mesh":[2,4],"grid":[99,1],"calls":[{"op":"fence"}]}`:           "grid_x",
		`{"mesh":[2,4],"num_links":99,"calls":[]}`:                        "num_links",
		`{"preset":"wh-t3000-2x4","grid":[7,7],"calls":[],"num_links":1}`: "grid",
		`{"mesh":[2,4],"limits":{"l1_bytes":1},"calls":[{"op":"fence"}]}`: "memory",
	} {
		p := execute(text)
		require.Equal(t, 2, p.code, "%s: %s", text, p.stderr)
		require.Contains(t, p.stderr, want, text)
		l := readLog(t, p.stdout)
		require.Len(t, l.Rows, 1)
		require.Equal(t, "open", l.Rows[0].Step)
		require.Contains(t, l.Rows[0].Error, want)
		require.Empty(t, l.Tensors)
		require.Equal(t, []any{}, l.Report["hazards"])
	}
}

// A device that stops makes its line hang: exit 5, with the emulator's account of it.
func TestAHang(t *testing.T) {
	p := execute(`{"mesh":[2,4],"faults":["device 1,2 stop at launch 2"],"tensors":{"x":{"shape":[1,1,32,32],"fill":{"const":1}}},"calls":[
		{"op":"all_gather","in":"x","dim":3,"mesh_axis":1,"out":"y"},{"op":"read","in":"y"},{"op":"all_gather","in":"x","dim":3,"mesh_axis":1,"out":"z"},{"op":"read","in":"z"}]}`)
	require.Equal(t, 5, p.code, p.stderr)
	l := readLog(t, p.stdout)
	hang := l.Report["hang"].(map[string]any)
	require.Equal(t, "never_entered", hang["class"])
	require.Equal(t, []any{1.0, 2.0}, hang["device"])
	require.Contains(t, p.stderr, "hang")
	require.Equal(t, []any{"device 1,2 stop at launch 2"}, l.Report["faults"])
	require.NotContains(t, l.Tensors, "z", "what cannot be read any more is absent")
	require.Contains(t, l.Rows[3].Error, "timeout")
}

func TestLimits(t *testing.T) {
	calls := strings.Repeat(`{"op":"all_gather","shape":[1,1,32,32],"dim":3,"mesh_axis":1},`, 30)
	text := `{"mesh":[1,4],"limits":{"inflight":2,"queue":3},%s"streams":[{"name":"s","calls":[` + strings.TrimSuffix(calls, ",") + `]}]}`
	l := ok(t, fmt.Sprintf(text, ""))
	require.Len(t, l.Rows, 31)
	p := execute(fmt.Sprintf(text, `"on_full":"refuse",`))
	require.Equal(t, 6, p.code, p.stderr)
	require.Contains(t, p.stderr, "queue full")
}

func TestReport(t *testing.T) {
	l := ok(t, `{"mesh":[2,4],"calls":[{"op":"all_gather","shape":[1,1,32,32],"dim":3,"mesh_axis":1}]}`)
	require.Equal(t, 1, l.Schema)
	require.Equal(t, []string{"faults", "hang", "hazards", "stats", "virtual_ns"}, sorted(l.Report))
	require.NotZero(t, l.Report["virtual_ns"])
	runtime := l.Report["stats"].(map[string]any)["runtime"].(map[string]any)
	require.Equal(t, 1.0, runtime["launches"])
	require.Equal(t, 48.0, runtime["semaphores"])
}

func TestExecUsage(t *testing.T) {
	for _, args := range [][]string{{"exec"}, {"exec", "a", "b"}, {"exec", "/does/not/exist.json"}, {"exec", "--wrong", "x"}, {"nothing"}, {"exec", t.TempDir()}} {
		p := meshrunProgram(args...)
		require.Equal(t, 2, p.code, "%v: %s", args, p.stderr)
		require.Empty(t, p.stdout)
		require.Equal(t, 1, strings.Count(p.stderr, "\n"), p.stderr)
	}
}

// Output goes to standard output only, and is one JSON object.
func TestExecWritesOneObject(t *testing.T) {
	p := meshrunProgram("exec", filepath.Join(conformance, "gathers2.scenario.json"))
	d := json.NewDecoder(strings.NewReader(p.stdout))
	var v map[string]any
	require.NoError(t, d.Decode(&v))
	require.Equal(t, []string{"report", "rows", "schema", "tensors"}, sorted(v))
	require.False(t, d.More())
}

func TestExecWhenStandardOutputIsGone(t *testing.T) {
	s, _, stderr := state("exec", filepath.Join(conformance, "gathers2.scenario.json"))
	s.Stdout = broken{}
	require.Equal(t, 1, cli.Main(s))
	require.Contains(t, stderr.String(), "standard output")
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, os.ErrClosed }
