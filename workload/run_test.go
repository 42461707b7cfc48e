package workload

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/safetensors"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var golden = filepath.Join("..", "tests", "testdata", "golden", "wan-t2v-120")

// small is a run on one device.
func small() Config {
	return Config{Model: golden, Mesh: meshrun.MeshShape{Rows: 1, Cols: 1}, Streams: 1}
}

// sharded is a run on 2x4 devices.
func sharded(streams int) Config {
	return Config{Model: golden, Mesh: meshrun.MeshShape{Rows: 2, Cols: 4}, TP: Factor{Size: 4, Axis: 1}, SP: Factor{Size: 2, Axis: 0}, Topology: meshrun.Ring, Streams: streams}
}

func run(t *testing.T, c Config) *Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	r, err := Run(ctx, c, nil)
	require.NoError(t, err)
	for _, s := range r.Streams {
		require.NoError(t, s.Err)
		if s.Verify != nil {
			t.Logf("%s %s: pcc %.8f max %.2e against %s, %d operations, %.2f ms virtual, %.0f ms", r.Mesh, s.Name, s.Verify.PCC, s.Verify.MaxError, s.Verify.Against, s.Operations, s.VirtualMS, s.WallMS)
		}
	}
	return r
}

func TestRunOnOneDevice(t *testing.T) {
	c := small()
	c.Streams = 3
	c.Steps = 2
	r := run(t, c)
	assert.True(t, r.OK)
	require.Len(t, r.Streams, 3)
	for k, s := range r.Streams {
		assert.True(t, s.OK)
		assert.Equal(t, []string{"s0", "s1", "s2"}[k], s.Name)
		assert.Equal(t, []string{"stored", "1x1", "1x1"}[k], s.Verify.Against)
		assert.Equal(t, 208, s.Operations)
		assert.Positive(t, s.VirtualMS)
		assert.Positive(t, s.WallMS)
	}
	assert.Equal(t, 1.0, r.Streams[1].Verify.PCC) // the same computation
	assert.Equal(t, "1x1", r.Mesh)
	assert.Empty(t, r.Hazards)
	assert.Nil(t, r.Hang)
	text, err := json.Marshal(r)
	require.NoError(t, err)
	for _, key := range []string{`"ok":true`, `"virtual_ms":`, `"against":"stored"`, `"stats":{`} {
		assert.Contains(t, string(text), key)
	}
}

// TestRunManyStreams is the main job: several streams at once, each verified.
func TestRunManyStreams(t *testing.T) {
	for _, topology := range []meshrun.Topology{meshrun.Ring, meshrun.Linear} {
		c := sharded(4)
		c.Topology = topology
		r := run(t, c)
		assert.True(t, r.OK)
		assert.NotEqual(t, r.Streams[1].Output, r.Streams[2].Output, "inputs are varied")
	}
}

func TestSameInputs(t *testing.T) {
	c := small()
	c.Streams = 2
	c.Inputs = "same"
	c.DType = meshrun.Float32
	r := run(t, c)
	assert.True(t, r.OK)
	assert.Equal(t, r.Streams[0].Output, r.Streams[1].Output)
}

// TestStoredInputsOfAStream: inputs.1.safetensors goes before noise.
func TestStoredInputsOfAStream(t *testing.T) {
	dir := copyOf(t, golden)
	in, err := checkpoint.ReadArrays(filepath.Join(dir, "inputs.safetensors"))
	require.NoError(t, err)
	for i := range in["hidden_states"].Values {
		in["hidden_states"].Values[i] *= -1
	}
	writeArrays(t, filepath.Join(dir, "inputs.1.safetensors"), in)
	c := small()
	c.Model, c.Streams = dir, 2
	two := run(t, c)
	require.NoError(t, os.Rename(filepath.Join(dir, "inputs.1.safetensors"), filepath.Join(dir, "inputs.safetensors")))
	c.Streams = 1
	alone, err := Run(context.Background(), c, nil)
	require.NoError(t, err)
	assert.Equal(t, two.Streams[1].Output, alone.Streams[0].Output)
	assert.False(t, alone.OK, "the stored answer is that of other inputs")
	assert.False(t, alone.Streams[0].Verify.OK)
}

// TestNoStoredAnswer: then stream 0 too is held against one device.
func TestNoStoredAnswer(t *testing.T) {
	dir := copyOf(t, golden)
	require.NoError(t, os.Remove(filepath.Join(dir, "outputs.safetensors")))
	c := small()
	c.Model = dir
	r := run(t, c)
	assert.True(t, r.OK)
	assert.Equal(t, "1x1", r.Streams[0].Verify.Against)
}

// TestStreamsDoNotTouchEachOther: a stream's answer is the same bit for bit alone and among eight, and whatever GOMAXPROCS is; times too.
func TestStreamsDoNotTouchEachOther(t *testing.T) {
	eight := run(t, sharded(8))
	assert.True(t, eight.OK)
	alone := run(t, sharded(1))
	assert.Equal(t, alone.Streams[0].Output, eight.Streams[0].Output)

	// Stream 5 alone: its inputs stored as those of a run of one.
	dir := copyOf(t, golden)
	in, err := checkpoint.ReadArrays(filepath.Join(dir, "inputs.safetensors"))
	require.NoError(t, err)
	writeArrays(t, filepath.Join(dir, "inputs.safetensors"), noisy(in, "hidden_states", 0, 5))
	c := sharded(1)
	c.Model = dir
	c.Verify = &Tolerance{PCC: -1, MaxError: 1e9}
	assert.Equal(t, run(t, c).Streams[0].Output, eight.Streams[5].Output)

	for _, n := range []int{1, 2, 4} {
		before := runtime.GOMAXPROCS(n)
		r := run(t, sharded(8))
		runtime.GOMAXPROCS(before)
		for k := range r.Streams {
			assert.Equal(t, eight.Streams[k].Output, r.Streams[k].Output, "stream %d, GOMAXPROCS %d", k, n)
			assert.Equal(t, eight.Streams[k].VirtualMS, r.Streams[k].VirtualMS, "stream %d, GOMAXPROCS %d", k, n)
		}
	}
}

// TestFreeRunningStreams: the values do not depend on turns being taken.
func TestFreeRunningStreams(t *testing.T) {
	want := run(t, sharded(4))
	j, err := newJob(func() Config { c := sharded(4); c.Inputs = inputsVaried; return c }(), nil)
	require.NoError(t, err)
	defer j.checkpoint.Close()
	ctx := context.Background()
	config := j.meshConfig()
	config.Lockstep = false
	s, err := j.openSession(ctx, config, j.layout, nil)
	require.NoError(t, err)
	got := j.runStreams(ctx, s, make([]*expectation, 4))
	require.NoError(t, s.close(ctx, true))
	for k := range got {
		require.NoError(t, got[k].Err)
		assert.Equal(t, want.Streams[k].Output, got[k].Output, "stream %d", k)
	}
}

func TestTimingMode(t *testing.T) {
	c := sharded(2)
	c.Mode = meshrun.Timing
	r := run(t, c)
	assert.True(t, r.OK)
	for _, s := range r.Streams {
		assert.Nil(t, s.Verify)
		assert.Nil(t, s.Output)
		assert.Positive(t, s.VirtualMS)
	}
	functional := run(t, sharded(2))
	assert.Equal(t, functional.Streams[0].Operations, r.Streams[0].Operations)
}

// TestPreset runs on a machine by its name.
func TestPreset(t *testing.T) {
	c := sharded(1)
	c.Mesh = meshrun.MeshShape{}
	c.Preset = "wh-t3000-2x4"
	c.Topology = meshrun.TopologyUnset
	r := run(t, c)
	assert.True(t, r.OK)
	assert.Equal(t, "2x4", r.Mesh)
}

// TestFailedVerification is no error but a result that is not OK.
func TestFailedVerification(t *testing.T) {
	c := small()
	c.Verify = &Tolerance{PCC: 0.9999, MaxError: 1e-5}
	r := run(t, c)
	assert.False(t, r.OK)
	assert.False(t, r.Streams[0].OK)
	assert.False(t, r.Streams[0].Verify.OK)
}

func TestProgress(t *testing.T) {
	c := small()
	c.Streams, c.Steps = 2, 2
	last := map[string]Progress{}
	_, err := Run(context.Background(), c, func(p Progress) {
		key := strings.TrimSpace(p.Phase + " " + p.Stream)
		before := last[key]
		assert.False(t, before.Ended, "%s goes on after its end", key)
		assert.GreaterOrEqual(t, p.Done, before.Done, key)
		if p.Total > 0 {
			assert.LessOrEqual(t, p.Done, p.Total, key)
		}
		last[key] = p
	})
	require.NoError(t, err)
	assert.Equal(t, Progress{Phase: "load", Done: 69, Total: 69, Ended: true}, last["load"])
	assert.Equal(t, Progress{Phase: "place", Done: 69, Total: 69, Ended: true}, last["place"])
	assert.Equal(t, Progress{Phase: "reference", Done: 104, Total: 104, Ended: true}, last["reference"])
	for _, name := range []string{"s0", "s1"} {
		assert.Equal(t, Progress{Phase: "run", Stream: name, Done: 208, Total: 208, Ended: true}, last["run "+name])
		assert.True(t, last["verify "+name].Ended)
	}
}

// TestCancel: whatever the run is at, it ends within a second.
func TestCancel(t *testing.T) {
	for _, after := range []time.Duration{0, 5 * time.Millisecond, 30 * time.Millisecond, 200 * time.Millisecond, time.Second} {
		c := sharded(4)
		c.Steps = 1000
		ctx, cancel := context.WithCancel(context.Background())
		var called time.Time
		timer := time.AfterFunc(after, func() { called = time.Now(); cancel() })
		_, err := Run(ctx, c, nil)
		took := time.Since(called)
		timer.Stop()
		cancel()
		require.ErrorIs(t, err, context.Canceled, after)
		assert.Less(t, took, time.Second, "called off after %v", after)
	}
}

// TestBadInput: one clear line, and no result.
func TestBadInput(t *testing.T) {
	change := func(edit func(dir string)) string {
		dir := copyOf(t, golden)
		edit(dir)
		return dir
	}
	config := func(from, to string) string {
		return change(func(dir string) {
			path := filepath.Join(dir, "config.json")
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Contains(t, string(b), from)
			require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(b), from, to, 1)), 0o644))
		})
	}
	without := func(file string) string {
		return change(func(dir string) { require.NoError(t, os.Remove(filepath.Join(dir, file))) })
	}
	truncated := func(file string, size int64) string {
		return change(func(dir string) { require.NoError(t, os.Truncate(filepath.Join(dir, file), size)) })
	}
	arrays := func(file string, edit func(checkpoint.Arrays)) string {
		return change(func(dir string) {
			path := filepath.Join(dir, file)
			a, err := checkpoint.ReadArrays(path)
			require.NoError(t, err)
			edit(a)
			writeArrays(t, path, a)
		})
	}
	model := func(dir string) func(*Config) { return func(c *Config) { c.Model = dir } }
	for name, c := range map[string]struct {
		edit func(*Config)
		want string
	}{
		"no folder":         {model("nowhere"), `model: folder "nowhere": is a folder with a config.json and weights`},
		"no config":         {model(without("config.json")), "config.json: file missing"},
		"damaged config":    {model(truncated("config.json", 100)), "config.json: file damaged"},
		"class":             {model(config("WanTransformer3DModel", "UNet2DModel")), `_class_name "UNet2DModel": is a model class that is supported: AutoencoderKL, AutoencoderKLWan, WanPipeline, WanTransformer3DModel`},
		"config value":      {model(config(`"num_layers": 2`, `"num_layers": "2"`)), `config.json: num_layers "2": is a whole number`},
		"no weights":        {model(without("weights.safetensors")), "weights missing"},
		"truncated weights": {model(truncated("weights.safetensors", 1000000)), "weights.safetensors: size 1000000 bytes: is 1135872 bytes, as the header says; the file is truncated"},
		"truncated header":  {model(truncated("weights.safetensors", 100)), "the file is truncated"},
		"tensor missing":    {model(config(`"num_layers": 2`, `"num_layers": 3`)), "weights.safetensors: tensor blocks.2.scale_shift_table missing: is there, of shape [1 6 128]"},
		"tensor shape":      {model(config(`"ffn_dim": 256`, `"ffn_dim": 512`)), "tensor blocks.0.ffn.net.0.proj.weight shape [256 128]: has shape [512 128]"},
		"tensor dtype":      {model(change(retype)), "tensor blocks.0.attn1.norm_k.weight dtype I16: is BF16, F16 or F32"},
		"no inputs":         {model(without("inputs.safetensors")), "inputs.safetensors: file missing"},
		"truncated inputs":  {model(truncated("inputs.safetensors", 3000)), "inputs.safetensors: size 3000 bytes"},
		"input missing":     {model(arrays("inputs.safetensors", func(a checkpoint.Arrays) { delete(a, "timestep") })), "inputs: tensor timestep missing"},
		"input shape":       {model(arrays("inputs.safetensors", func(a checkpoint.Arrays) { a["timestep"] = checkpoint.Array{Shape: []int{2}, Values: []float32{1, 2}} })), "inputs: tensor timestep shape [2]"},
		"no sample":         {model(arrays("outputs.safetensors", func(a checkpoint.Arrays) { delete(a, "sample") })), "outputs.safetensors: tensor sample missing"},
		"shape of sample":   {model(arrays("outputs.safetensors", func(a checkpoint.Arrays) { a["sample"] = checkpoint.Array{Shape: []int{2}, Values: []float32{1, 2}} })), "outputs.safetensors: tensor sample shape [2]: is [1 16 5 8 12]"},
		"tp and heads":      {func(c *Config) { c.Mesh.Cols, c.TP = 3, Factor{Size: 3, Axis: 1} }, "layout: tp 3@1: divides num_attention_heads, 4"},
		"tp and axis":       {func(c *Config) { c.Mesh.Cols, c.TP = 4, Factor{Size: 2, Axis: 1} }, "layout: tp 2@1: is the length of its axis, 4 on axis 1 of mesh 1x4, or 1"},
		"mesh and tp x sp":  {func(c *Config) { c.Mesh.Cols = 4 }, "layout: mesh 1x4: has tp x sp devices, 1 x 1"},
		"axis out of range": {func(c *Config) { c.TP = Factor{Size: 1, Axis: 2} }, "layout: tp 1@2: lies on axis 0 (down the rows) or 1"},
		"no mesh":           {func(c *Config) { c.Mesh = meshrun.MeshShape{} }, "mesh 0x0"},
		"mesh and preset":   {func(c *Config) { c.Preset = "wh-n150-1x1" }, "run: mesh 1x1: is not given beside a preset, wh-n150-1x1"},
		"unknown preset":    {func(c *Config) { c.Mesh, c.Preset = meshrun.MeshShape{}, "wh" }, `run: preset "wh": is one of wh-n150-1x1, `},
		"too many links": {func(c *Config) {
			c.Mesh, c.Preset, c.TP, c.NumLinks = meshrun.MeshShape{}, "wh-t3000-2x4", Factor{Size: 4, Axis: 1}, 9
			c.SP = Factor{Size: 2, Axis: 0}
		}, "num_links 9"},
		"negative links":     {func(c *Config) { c.NumLinks = -1 }, "run: num_links -1: is at least 1"},
		"no streams":         {func(c *Config) { c.Streams = 0 }, "run: streams 0: is at least 1"},
		"negative steps":     {func(c *Config) { c.Steps = -1 }, "run: steps -1: is at least 1"},
		"inputs":             {func(c *Config) { c.Inputs = "other" }, `run: inputs "other": is varied or same`},
		"dtype":              {func(c *Config) { c.DType = meshrun.UInt8 }, "run: dtype uint8: is bfloat16 or float32"},
		"mode":               {func(c *Config) { c.Mode = "fast" }, `run: mode "fast": is functional or timing`},
		"tolerance pcc":      {func(c *Config) { c.Verify = &Tolerance{PCC: math.NaN()} }, "run: verify pcc NaN: is from -1 to 1"},
		"tolerance of error": {func(c *Config) { c.Verify = &Tolerance{MaxError: -1} }, "run: verify max_error -1: is a number that is not negative"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := small()
			c.edit(&cfg)
			r, err := Run(context.Background(), cfg, nil)
			assert.Nil(t, r)
			require.ErrorIs(t, err, meshrun.ErrInvalid)
			assert.ErrorContains(t, err, c.want)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}

// retype makes one tensor of weights.safetensors whole numbers.
func retype(dir string) {
	path := filepath.Join(dir, "weights.safetensors")
	b, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	const name = `"blocks.0.attn1.norm_k.weight":{"dtype":"`
	at := strings.Index(string(b), name) + len(name)
	copy(b[at:], `I16" `)
	if err := os.WriteFile(path, b, 0o644); err != nil {
		panic(err)
	}
}

// TestFailedStream: the error of a launch is that of its stream and of the run, and the result stands.
func TestFailedStream(t *testing.T) {
	j, err := newJob(small(), nil)
	require.NoError(t, err)
	defer j.checkpoint.Close()
	ctx := context.Background()
	s, err := j.openSession(ctx, j.meshConfig(), j.layout, nil)
	require.NoError(t, err)
	s.placer.Release() // the network's parameters are gone
	results := j.runStreams(ctx, s, make([]*expectation, 1))
	r := Result{Streams: results}
	err = r.finish(ctx, s.mesh)
	require.ErrorIs(t, err, meshrun.ErrReleased)
	assert.ErrorContains(t, err, "stream s0: ")
	assert.False(t, r.OK)
	assert.Equal(t, results[0].Err.Error(), results[0].Error)
	require.NoError(t, s.close(ctx, false))
}

// TestHang: a device that stops makes its line hang, which ends the run at once, with the report.
func TestHang(t *testing.T) {
	j, err := newJob(sharded(2), nil)
	require.NoError(t, err)
	defer j.checkpoint.Close()
	ctx := context.Background()
	s, err := j.openSession(ctx, j.meshConfig(), j.layout, nil)
	require.NoError(t, err)
	require.NoError(t, s.mesh.Inject(ctx, "device 0,1 stop at launch 120"))
	begin := time.Now()
	r := Result{Streams: j.runStreams(ctx, s, make([]*expectation, 2))}
	err = r.finish(ctx, s.mesh)
	require.ErrorIs(t, err, meshrun.ErrTimeout)
	assert.ErrorContains(t, err, "hang")
	assert.False(t, r.OK)
	hang, ok := r.Hang.(map[string]any)
	require.True(t, ok, "%v", r.Hang)
	assert.NotEmpty(t, hang["waiting"])
	assert.NoError(t, s.close(ctx, false))
	assert.Less(t, time.Since(begin), 10*time.Second)
}

func TestCompare(t *testing.T) {
	pcc, maxError := checkpoint.Compare([]float32{1, 2, 3, 4}, []float32{1, 2, 3, 4})
	assert.Equal(t, [2]float64{1, 0}, [2]float64{pcc, maxError})
	pcc, maxError = checkpoint.Compare([]float32{2, 2, 3, 3}, []float32{1, 2, 3, 4})
	assert.InDelta(t, 2/math.Sqrt(5), pcc, 1e-12)
	assert.InDelta(t, 1/math.Sqrt(1.25), maxError, 1e-12)
	pcc, _ = checkpoint.Compare([]float32{-1, -2}, []float32{1, 2})
	assert.InDelta(t, -1, pcc, 1e-12)
	pcc, maxError = checkpoint.Compare([]float32{5, 5}, []float32{5, 5})
	assert.Equal(t, [2]float64{1, 0}, [2]float64{pcc, maxError})

	loose := Tolerance{PCC: -1, MaxError: 1e9}
	for _, bad := range [][]float32{{float32(math.NaN()), 2}, {1}, nil, {float32(math.Inf(1)), 2}} {
		v := loose.verify(bad, []float32{1, 2}, "stored")
		assert.False(t, v.OK, "%v", bad)
		text, err := json.Marshal(v)
		require.NoError(t, err)
		assert.Contains(t, string(text), `"NaN"`)
	}
	v := loose.verify([]float32{1, 2}, []float32{5, 5}, "stored") // nothing to correlate with
	assert.False(t, v.OK)
}

func TestNoise(t *testing.T) {
	in := checkpoint.Arrays{"x": {Shape: []int{20000}, Values: make([]float32, 20000)}, "y": {Shape: []int{1}, Values: []float32{3}}}
	a, b := noisy(in, "x", 1, 1), noisy(in, "x", 1, 1)
	assert.Equal(t, a, b)
	assert.NotEqual(t, a["x"], noisy(in, "x", 1, 2)["x"])
	assert.NotEqual(t, a["x"], noisy(in, "x", 2, 1)["x"])
	assert.Equal(t, in["y"], a["y"])
	assert.Zero(t, in["x"].Values[7])
	sum, squares := 0.0, 0.0
	for _, v := range a["x"].Values {
		sum, squares = sum+float64(v)/20000, squares+float64(v)*float64(v)/20000
	}
	assert.InDelta(t, 0, sum, 0.003)
	assert.InDelta(t, 0.1, math.Sqrt(squares), 0.002)
}

// copyOf copies a folder of files.
func copyOf(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	require.NoError(t, os.CopyFS(to, os.DirFS(dir)))
	return to
}

func writeArrays(t *testing.T, path string, arrays checkpoint.Arrays) {
	t.Helper()
	var list []safetensors.Tensor
	for name, a := range arrays {
		list = append(list, safetensors.Tensor{Name: name, DType: safetensors.F32, Shape: a.Shape, Values: a.Values})
	}
	require.NoError(t, safetensors.WriteFile(path, list))
}
