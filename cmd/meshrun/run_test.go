package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	mesh "github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/cmd/meshrun/internal/cli"
	"github.com/meshrun/meshrun/workload"
)

const (
	example = "../../examples/wan-tiny.yaml"
	model   = "../../tests/testdata/golden/wan-t2v-120"
)

// The main job: a real checkpoint, streams at once, every output held against what is expected.
func TestRunExample(t *testing.T) {
	p := meshrunProgram("run", example, "--quiet")
	require.Equal(t, 0, p.code, p.stderr)
	require.Empty(t, p.stderr)
	lines := strings.Split(p.stdout, "\n")
	require.Equal(t, "ok: wan-t2v-120 on 2x4, 4 streams", lines[0])
	for _, word := range []string{"stream", "virtual", "operations", "pcc", "max error", "s0", "stored", "s3", "1x1", "yes"} {
		require.Contains(t, p.stdout, word)
	}
}

type runResult struct {
	Schema  int
	OK      bool
	Model   string
	Mesh    string
	Streams []struct {
		Name       string
		OK         bool
		WallMS     float64 `json:"wall_ms"`
		VirtualMS  float64 `json:"virtual_ms"`
		Operations int
		Verify     *struct {
			Against  string
			PCC      any
			MaxError any `json:"max_error"`
			OK       bool
		}
		Error string
	}
	Hazards []any
	Stats   map[string]any
	Error   *string
}

func runJSON(t *testing.T, p program) (r runResult) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(p.stdout), &r), p.stdout+p.stderr)
	require.Equal(t, 1, r.Schema)
	require.NotNil(t, r.Hazards, "a list, also when it is empty")
	return r
}

func TestRunJSON(t *testing.T) {
	p := meshrunProgram("run", "--model", model, "--mesh", "1x2", "--streams", "2", "--json", "--quiet")
	require.Equal(t, 0, p.code, p.stderr)
	r := runJSON(t, p)
	require.True(t, r.OK)
	require.Nil(t, r.Error)
	require.Equal(t, "1x2", r.Mesh)
	require.Equal(t, model, r.Model)
	require.NotEmpty(t, r.Stats)
	require.Len(t, r.Streams, 2)
	for i, s := range r.Streams {
		require.True(t, s.OK)
		require.Positive(t, s.Operations)
		require.Positive(t, s.VirtualMS)
		require.Equal(t, []string{"stored", "1x1"}[i], s.Verify.Against)
		require.Greater(t, s.Verify.PCC, 0.9999)
	}
}

func TestRunFailsToVerify(t *testing.T) {
	p := meshrunProgram("run", "--model", model, "--json", "--quiet", "--verify", "pcc=0.9999,max_error=0.000001")
	require.Equal(t, 3, p.code, p.stderr)
	require.Contains(t, p.stderr, "stream s0: verification failed against stored: pcc 0.99")
	r := runJSON(t, p)
	require.False(t, r.OK)
	require.Contains(t, *r.Error, "verification failed")
	require.False(t, r.Streams[0].Verify.OK)

	p = meshrunProgram("run", "--model", model, "--quiet", "--verify", "pcc=1,max_error=100")
	require.Equal(t, 3, p.code)
	require.True(t, strings.HasPrefix(p.stdout, "failed: wan-t2v-120 on 1x1, 1 stream\n"), p.stdout)
	require.Contains(t, p.stdout, "NO")
}

func TestRunInTimingMode(t *testing.T) {
	p := meshrunProgram("run", "--model", model, "--mesh", "2x2", "--mode", "timing", "--json", "--quiet")
	require.Equal(t, 0, p.code, p.stderr)
	r := runJSON(t, p)
	require.Nil(t, r.Streams[0].Verify, "nothing moves, so nothing is held against anything")
	require.Positive(t, r.Streams[0].VirtualMS)
}

// Bad input: one clear line each, exit code 2, nothing on standard output.
func TestRunBadInput(t *testing.T) {
	dir := t.TempDir()
	file := func(text string) string {
		path := filepath.Join(dir, "run.yaml")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	abs, err := filepath.Abs(model)
	require.NoError(t, err)
	path := file("model: " + abs + "\nstreems: 4\n")
	for want, args := range map[string][]string{
		path + `:2:1: unknown key "streems" of a run file: did you mean "streams"?`: {"run", path},
		"run needs a file, or --model":                                              {"run", "--mesh", "2x4"},
		"accepts at most 1 arg":                                                     {"run", "a", "b"},
		"no-such.yaml: no such file":                                                {"run", "no-such.yaml"},
		"unknown flag: --strems":                                                    {"run", "--strems", "4"},
		"--streams: streams 0: is at least 1":                                       {"run", "--model", model, "--streams", "0"},
		"--steps: steps -1: is at least 1":                                          {"run", "--model", model, "--steps", "-1"},
		"--num_links: num_links 0: is at least 1":                                   {"run", "--model", model, "--num-links", "0"},
		"--num_links: num_links 3: axis 0: asked 3 links, 1 available":              {"run", "--model", model, "--preset", "wh-t3000-2x4", "--num_links", "3"},
		"--tp: tp 3@1: is the length of its axis":                                   {"run", "--model", model, "--mesh", "2x4", "--tp", "3@1"},
		`--tp: tp "4@2": is DEGREE@AXIS`:                                            {"run", "--model", model, "--mesh", "2x4", "--tp", "4@2"},
		"--mesh: mesh 2x4: has tp x sp devices, 4 x 1":                              {"run", "--model", model, "--mesh", "2x4", "--tp", "4@1", "--sp", "1"},
		"--preset: preset excludes mesh":                                            {"run", "--model", model, "--mesh", "2x4", "--preset", "wh-t3000-2x4"},
		"--topology: topology ring: axis 1 of 2x4 has no link from its last":        {"run", "--model", model, "--preset", "wh-t3000-2x4", "--topology", "ring"},
		filepath.Join(dir, "nothing"):                                               {"run", "--model", filepath.Join(dir, "nothing")},
		"tp 8@1: divides":                                                           {"run", "--model", model, "--mesh", "1x8"},
	} {
		p := meshrunProgram(args...)
		require.Equal(t, 2, p.code, "%v: %s", args, p.stderr)
		require.Contains(t, p.stderr, want)
		require.Equal(t, 1, strings.Count(p.stderr, "\n"), p.stderr)
		require.Empty(t, p.stdout)
	}
}

// What is wrong with a checkpoint is found by package workload; here it has to come out as one line and 2.
func TestRunBadCheckpoint(t *testing.T) {
	for what, spoil := range map[string]func(dir string) error{
		"config.json":         func(d string) error { return os.Remove(filepath.Join(d, "config.json")) },
		"weights.safetensors": func(d string) error { return os.Truncate(filepath.Join(d, "weights.safetensors"), 100_000) },
		"inputs.safetensors":  func(d string) error { return os.Remove(filepath.Join(d, "inputs.safetensors")) },
		"UNetModel": func(d string) error {
			return os.WriteFile(filepath.Join(d, "config.json"), []byte(`{"_class_name":"UNetModel"}`), 0o644)
		},
	} {
		dir := t.TempDir()
		require.NoError(t, os.CopyFS(dir, os.DirFS(model)))
		require.NoError(t, spoil(dir))
		p := meshrunProgram("run", "--model", dir, "--quiet")
		require.Equal(t, 2, p.code, "%s: %s", what, p.stderr)
		require.Contains(t, p.stderr, what)
		require.Equal(t, 1, strings.Count(p.stderr, "\n"), p.stderr)
		require.Empty(t, p.stdout)
	}
}

// Several problems are told at once, in the order of the keys.
func TestRunTellsAllProblems(t *testing.T) {
	p := meshrunProgram("run", "--model", model, "--streams", "0", "--steps", "0", "--dtype", "int4")
	require.Equal(t, 2, p.code)
	require.Equal(t, 3, strings.Count(p.stderr, "\n"), p.stderr)
}

// stub runs the command line with a model that gives a ready result.
func stub(run cli.ModelRunner, args ...string) program {
	s, stdout, stderr := state(append([]string{"run", "--model", "m"}, args...)...)
	s.RunModel = run
	code := cli.Main(s)
	return program{code, stdout.String(), stderr.String()}
}

func given(r *workload.Result, err error) cli.ModelRunner {
	return func(context.Context, workload.Config, func(workload.Progress)) (*workload.Result, error) {
		return r, err
	}
}

func TestRunExitCodes(t *testing.T) {
	stream := workload.StreamResult{Name: "s0", OK: true}
	differs := workload.StreamResult{Name: "s1", Verify: &workload.Verification{Against: "stored", PCC: math.NaN(), MaxError: math.Inf(1)}}
	for name, tt := range map[string]struct {
		result *workload.Result
		err    error
		code   int
		want   string
	}{
		"ok":      {&workload.Result{OK: true, Streams: []workload.StreamResult{stream}}, nil, 0, ""},
		"differs": {&workload.Result{Streams: []workload.StreamResult{stream, differs}}, nil, 3, "verification failed"},
		"hazard":  {&workload.Result{Hazards: []any{map[string]any{"text": "a race"}}, Streams: []workload.StreamResult{differs}}, nil, 4, "a race"},
		"hang":    {&workload.Result{Hang: map[string]any{"text": "all stuck"}}, fmt.Errorf("stream s0: %w", mesh.ErrTimeout), 5, "all stuck"},
		"lost":    {nil, mesh.ErrDeviceLost, 5, "device lost"},
		"budget":  {nil, mesh.ErrBudget, 6, "over budget"},
		"invalid": {nil, mesh.ErrInvalid, 2, "invalid"},
		"other":   {nil, errors.New("disk"), 1, "disk"},
		"not ok":  {&workload.Result{}, nil, 1, "does not say why"},
		"a panic": {nil, nil, 1, "internal error: ouch"},
	} {
		run := given(tt.result, tt.err)
		if name == "a panic" {
			run = func(context.Context, workload.Config, func(workload.Progress)) (*workload.Result, error) {
				panic("ouch")
			}
		}
		p := stub(run, "--json")
		require.Equal(t, tt.code, p.code, "%s: %s", name, p.stderr)
		require.Contains(t, p.stderr, tt.want, name)
		if name != "a panic" {
			r := runJSON(t, p)
			require.Equal(t, tt.code == 0, r.OK, name)
			require.Equal(t, tt.code == 0, r.Error == nil, name)
		}
	}
}

// A correlation that is no number is written as a string: JSON has no numeral for it.
func TestRunJSONOfNumbersThatAreNone(t *testing.T) {
	p := stub(given(&workload.Result{Streams: []workload.StreamResult{{Name: "s0", Verify: &workload.Verification{PCC: math.NaN(), MaxError: math.Inf(1)}}}}, nil), "--json")
	v := runJSON(t, p).Streams[0].Verify
	require.Equal(t, "NaN", v.PCC)
	require.Equal(t, "Inf", v.MaxError)
}

// Every key of the file is a flag and reaches the run.
func TestRunFlags(t *testing.T) {
	var got workload.Config
	run := func(_ context.Context, c workload.Config, _ func(workload.Progress)) (*workload.Result, error) {
		got = c
		return &workload.Result{OK: true}, nil
	}
	p := stub(run, "--mesh", "2x4", "--tp", "4@1", "--sp", "2@0", "--topology", "ring", "--num_links", "2", "--dtype", "float32", "--mode", "timing",
		"--streams", "3", "--inputs", "same", "--steps", "5", "--queues", "1", "--seed", "9", "--verify", "pcc=0.9,max_error=0.1")
	require.Equal(t, 0, p.code, p.stderr)
	require.Equal(t, workload.Config{Model: "m", Mesh: mesh.MeshShape{Rows: 2, Cols: 4}, TP: workload.Factor{Size: 4, Axis: 1}, SP: workload.Factor{Size: 2},
		Topology: mesh.Ring, NumLinks: 2, DType: mesh.Float32, Mode: mesh.Timing, Streams: 3, Inputs: "same", Steps: 5, Queues: 1, Seed: 9,
		Verify: &workload.Tolerance{PCC: 0.9, MaxError: 0.1}}, got)
}

func report(_ context.Context, _ workload.Config, progress func(workload.Progress)) (*workload.Result, error) {
	progress(workload.Progress{Phase: "load", Done: 3})
	progress(workload.Progress{Phase: "load", Done: 7, Total: 7, Ended: true})
	for i := range 5 {
		progress(workload.Progress{Phase: "run", Stream: "s0", Done: i + 1, Total: 5, Ended: i == 4})
	}
	progress(workload.Progress{Phase: "run", Stream: "s1", Done: 1, Total: 5}) // never ends
	progress(workload.Progress{Phase: "verify", Stream: "s0"})
	return &workload.Result{OK: true, Streams: []workload.StreamResult{{Name: "s0", OK: true}}}, nil
}

func TestProgress(t *testing.T) {
	require.Equal(t, "load model: done\nstream s0: done\n", stub(report).stderr, "lines where there is no terminal")
	require.Empty(t, stub(report, "--quiet").stderr)

	terminal := func(env string) string {
		s, _, stderr := state("run", "--model", "m")
		s.RunModel, s.StderrTTY = report, true
		s.Getenv = func(key string) string { return map[bool]string{true: "dumb"}[key == env] }
		require.Equal(t, 0, cli.Main(s))
		return stderr.String()
	}
	drawn := terminal("")
	require.Contains(t, drawn, "stream s0")
	require.Contains(t, drawn, "5 / 5")
	require.NotContains(t, drawn, "done")
	for _, env := range []string{"TERM", "NO_COLOR"} {
		require.Equal(t, "load model: done\nstream s0: done\n", terminal(env), "nothing is drawn with %s", env)
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"run", "--help"}, {"exec", "--help"}, {"info", "--help"}} {
		p := meshrunProgram(args...)
		require.Equal(t, 0, p.code)
		require.Contains(t, p.stdout, "Usage:")
		require.Empty(t, p.stderr)
	}
}
