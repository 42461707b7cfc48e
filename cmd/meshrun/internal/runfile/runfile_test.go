package runfile

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/workload"
)

var machines = []meshrun.Preset{
	{Name: "wh-t3000-2x4", Mesh: [2]int{2, 4}, Links: [2]int{1, 1}},
	{Name: "bh-galaxy-4x8", Mesh: [2]int{4, 8}, Links: [2]int{2, 2}, Wrap: [2]bool{true, true}},
}

const whole = `# a run
model: models/tiny
mesh: 2x4
tp: 4@1
sp: 2@0
topology: ring
num_links: 2
dtype: float32
mode: timing
streams: 4
inputs: same
steps: 3
queues: 1
seed: 18446744073709551615
halo: compact
frames: pictures
verify: {pcc: 0.9999, max_error: 0.05}
`

func resolve(t *testing.T, yaml string, flags ...string) (workload.Config, Problems) {
	t.Helper()
	settings, problems := Read("dir/run.yaml", []byte(yaml))
	given := Settings{}
	for i := 0; i < len(flags); i += 2 {
		given[flags[i]] = Setting{Text: flags[i+1], Where: "--" + flags[i]}
	}
	all, wrong := Override(settings, given)
	problems = append(problems, wrong...)
	c, wrong := Resolve(all, machines)
	return c, append(problems, wrong...)
}

func TestAWholeFile(t *testing.T) {
	c, problems := resolve(t, whole)
	require.Empty(t, problems)
	require.Equal(t, workload.Config{Model: "dir/models/tiny", Mesh: meshrun.MeshShape{Rows: 2, Cols: 4}, TP: workload.Factor{Size: 4, Axis: 1},
		SP: workload.Factor{Size: 2}, Topology: meshrun.Ring, NumLinks: 2, DType: meshrun.Float32, Mode: meshrun.Timing, Streams: 4, Inputs: "same", Steps: 3,
		Queues: 1, Seed: 1<<64 - 1, Halo: "compact", Frames: "dir/pictures", Verify: &workload.Tolerance{PCC: 0.9999, MaxError: 0.05}}, c)
}

func TestFlagsOverrideTheFile(t *testing.T) {
	c, problems := resolve(t, whole, "model", "other", "streams", "1", "verify", "pcc=0.5,max_error=2", "preset", "wh-t3000-2x4", "num_links", "1", "topology", "linear")
	require.Empty(t, problems)
	require.Equal(t, "other", c.Model, "a path on the command line is relative to the working directory")
	require.Equal(t, 1, c.Streams)
	require.Equal(t, &workload.Tolerance{PCC: 0.5, MaxError: 2}, c.Verify)
	require.Equal(t, "wh-t3000-2x4", c.Preset, "takes the place of the file's mesh")
	require.Equal(t, meshrun.MeshShape{}, c.Mesh)
}

func TestDefaults(t *testing.T) {
	factor := func(size, axis int) workload.Factor { return workload.Factor{Size: size, Axis: axis} }
	for yaml, want := range map[string][2]workload.Factor{
		"model: m":                                {{Size: 1}, {Size: 1}},
		"model: m\nmesh: 2x4":                     {factor(4, 1), factor(2, 0)},
		"model: m\nmesh: 1x4":                     {factor(4, 1), {Size: 1}},
		"model: m\nmesh: 2x4\ntp: 2@0":            {factor(2, 0), factor(4, 1)},
		"model: m\nmesh: 1x4\nsp: 4@1":            {{Size: 1}, factor(4, 1)},
		"model: m\npreset: bh-galaxy-4x8":         {factor(8, 1), factor(4, 0)},
		"model: m\nmesh: 1x8\ntp: 1\nsp: \"8@1\"": {{Size: 1}, factor(8, 1)},
	} {
		c, problems := resolve(t, yaml)
		require.Empty(t, problems, yaml)
		require.Equal(t, want, [2]workload.Factor{c.TP, c.SP}, yaml)
		require.Equal(t, 1, c.Streams)
		require.Nil(t, c.Verify)
	}
}

// Each problem says where, which key, the value, and the rule.
func TestProblems(t *testing.T) {
	const m = "model: m\n"
	for yaml, want := range map[string]string{
		m + "stream: 3":                            `dir/run.yaml:2:1: unknown key "stream" of a run file: did you mean "streams"?`,
		m + "  \nzebra: 3":                         `dir/run.yaml:3:1: unknown key "zebra" of a run file: known are model, mesh`,
		m + "streams: 0":                           "dir/run.yaml:2:10: streams 0: is at least 1",
		m + "streams: -2":                          "dir/run.yaml:2:10: streams -2: is at least 1",
		m + "streams: many":                        `dir/run.yaml:2:10: streams "many": is a whole number`,
		m + "steps: 0":                             "dir/run.yaml:2:8: steps 0: is at least 1",
		m + "num_links: 0":                         "dir/run.yaml:2:12: num_links 0: is at least 1",
		m + "num_links: -1":                        "num_links -1: is at least 1",
		m + "queues: 2":                            "queues 2: is 1: more queues are not supported yet",
		m + "mesh: 2by4":                           `dir/run.yaml:2:7: mesh "2by4": is ROWSxCOLUMNS`,
		m + "mesh: 0x4":                            `mesh "0x4": is ROWSxCOLUMNS`,
		m + "preset: wh-t3000":                     `unknown preset "wh-t3000"`,
		m + "mesh: 2x4\npreset: bh-galaxy-4x8":     "dir/run.yaml:3:9: preset excludes mesh",
		m + "mesh: 2x4\ntp: 3@1":                   "dir/run.yaml:3:5: tp 3@1: is the length of its axis, 4 on axis 1",
		m + "mesh: 2x4\ntp: 4@2":                   `tp "4@2": is DEGREE@AXIS`,
		m + "mesh: 4x4\ntp: 4@1\nsp: 4@1":          "dir/run.yaml:4:5: sp 4@1: lies on another axis than tp",
		m + "mesh: 2x4\ntp: 4@1\nsp: 1":            "dir/run.yaml:2:7: mesh 2x4: has tp x sp devices, 4 x 1",
		m + "preset: wh-t3000-2x4\nnum_links: 2":   "dir/run.yaml:3:12: num_links 2: axis 0: asked 2 links, 1 available",
		m + "preset: wh-t3000-2x4\ntopology: ring": "dir/run.yaml:3:11: topology ring: axis 1 of 2x4 has no link",
		m + "preset: wh-t3000-2x4\ntp: 1\nsp: 1":   "dir/run.yaml:2:9: mesh 2x4: has tp x sp devices, 1 x 1",
		m + "topology: star":                       `topology "star": is linear, ring or unset`,
		m + "dtype: uint8":                         `dtype "uint8": is bfloat16 or float32`,
		m + "mode: quick":                          `mode "quick": is functional or timing`,
		m + "halo: none":                           `halo "none": is full or compact`,
		m + "inputs: other":                        `inputs "other": is varied or same`,
		m + "seed: -1":                             `seed "-1": is a whole number`,
		m + "verify: 0.9":                          "verify is a list of keys and values",
		m + "verify: {pcc: 0.9}":                   "verify has both pcc and max_error",
		m + "verify: {pcc: 2, max_error: 1}":       `dir/run.yaml:2:15: verify.pcc "2": is a number from -1 to 1`,
		m + "verify: {pcc: 1, max_error: -1}":      `verify.max_error "-1": is a number that is not negative`,
		m + "verify: {psnr: 30}":                   `unknown key "psnr" of verify`,
		m + "mesh: [2, 4]":                         "dir/run.yaml:2:7: mesh is one value",
		m + "mesh: !!str 2x4":                      "dir/run.yaml:2:7: mesh is a plain value, without anchors, aliases and tags",
		m + "mesh: &a 2x4":                         "mesh is a plain value",
		"model: &a m\nmesh: *a":                    "dir/run.yaml:2:7: mesh is a plain value",
		m + "mesh:":                                "mesh is one value",
		"mesh: 2x4":                                "model is missing",
		"- a":                                      "a run file is a list of keys and values",
		"model: m\nmodel: n":                       "dir/run.yaml:2:1: not YAML: ",
		"model: m\n\tmesh: 2x4":                    "dir/run.yaml:2:1: not YAML: ",
		m + "---\nmodel: n":                        "one document",
	} {
		_, problems := resolve(t, yaml)
		require.NotEmpty(t, problems, yaml)
		require.ErrorContains(t, problems, want, yaml)
		require.ErrorIs(t, problems, meshrun.ErrInvalid)
	}
}

func TestProblemsOfFlags(t *testing.T) {
	for _, tt := range []struct{ flag, value, want string }{
		{"streams", "0", "--streams: streams 0: is at least 1"},
		{"tp", "5@1", "--tp: tp 5@1: is the length of its axis"},
		{"verify", "pcc", `--verify: verify "pcc": is pcc=P,max_error=E`},
		{"verify", "psnr=3", `--verify: unknown key "psnr" of verify`},
		{"verify", "pcc=0.9", "verify has both pcc and max_error"},
		{"model", "", `--model: model "": names a folder`},
	} {
		_, problems := resolve(t, whole, tt.flag, tt.value)
		require.ErrorContains(t, problems, tt.want)
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	_, problems := resolve(t, "mesh: 2x4\ntp: 3@1\nstreams: 0\nsteps: 0\nnope: 1\nverify: {pcc: x}", "dtype", "bf16")
	require.Len(t, problems, 7, problems.Error())
}

func FuzzRead(f *testing.F) {
	f.Add(whole)
	f.Add("verify: {pcc: [1]}\n&a model: *a")
	f.Fuzz(func(t *testing.T, text string) {
		settings, problems := Read("x", []byte(text))
		if len(problems) == 0 {
			_, _ = Resolve(settings, machines)
		}
	})
}
