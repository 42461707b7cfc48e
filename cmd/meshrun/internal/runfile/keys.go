package runfile

import (
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/workload"
	"github.com/meshrun/meshrun/workload/nn"
)

// Key is one setting of a run. In a file it is a key, on the command line a flag of the same name.
type Key struct {
	Name  string
	Value string // what stands for the value in the help
	Usage string
	set   func(c *workload.Config, s Setting) error // nil: read by Resolve
}

// Setting is a value as it was given.
type Setting struct {
	Text  string
	Where string // "run.yaml:3:8" or "--streams"
	Dir   string // that a path is relative to
}

// Keys are all settings of a run, in the order of the help.
var Keys = []Key{
	{"model", "DIR", "folder of the model: config.json, weights, inputs, outputs; or a name of the catalogue", setModel},
	{"mesh", "RxC", "rows and columns of the mesh (default 1x1)", setMesh},
	{"preset", "NAME", "a named machine instead of a mesh; `meshrun info` lists them", setPreset},
	{"tp", "N@AXIS", "tensor parallel degree and axis (default: the whole of axis 1)", factor(func(c *workload.Config) *workload.Factor { return &c.TP })},
	{"sp", "N@AXIS", "sequence parallel degree and axis (default: the whole of axis 0)", factor(func(c *workload.Config) *workload.Factor { return &c.SP })},
	{"topology", "T", "linear, ring or unset (default: ring where the axis allows it)", setTopology},
	{"num_links", "N", "links per edge that collectives use (default 1)", count(1, math.MaxInt32, func(c *workload.Config) *int { return &c.NumLinks })},
	{"dtype", "T", "bfloat16 or float32 (default bfloat16)", setDType},
	{"mode", "M", "functional, or timing, which moves no data (default functional)", setMode},
	{"streams", "N", "how many run at once (default 1)", count(1, 4096, func(c *workload.Config) *int { return &c.Streams })},
	{"inputs", "I", "varied: noise on the input of each stream but the first; or same (default varied)", setInputs},
	{"steps", "N", "denoising steps, or repeated forwards (default: the model's)", count(1, math.MaxInt32, func(c *workload.Config) *int { return &c.Steps })},
	{"queues", "N", "command queues (default 1)", setQueues},
	{"seed", "N", "of the noise and the emulation (default 0)", setSeed},
	{"halo", "H", "full or compact: how convolutions get their neighbours' pixels (default full)", setHalo},
	{"frames", "DIR", "folder for the pictures of decoders and pipelines, as PNG and GIF", setFrames},
	{"skew_us", "N", "seeded delays of devices and links, up to so many microseconds (default 0)", count(0, 1_000_000_000, func(c *workload.Config) *int { return &c.SkewUS })},
	{"no_progress_us", "N", "an operation that waits, and of which nothing moves for so many microseconds, is a hang (default 0: none)", count(0, 1_000_000_000_000, func(c *workload.Config) *int { return &c.NoProgressUS })},
	{"verify", "pcc=P,max_error=E", "smallest correlation and largest error, in standard deviations (default: by model and dtype)", nil},
}

// VerifyKeys are the two parts of verify, which a file gives as a mapping.
var VerifyKeys = []Key{
	{"pcc", "P", "", func(c *workload.Config, s Setting) error { return tolerance(c, s, -1, 1, &verify(c).PCC) }},
	{"max_error", "E", "", func(c *workload.Config, s Setting) error {
		return tolerance(c, s, 0, math.MaxFloat64, &verify(c).MaxError)
	}},
}

func names(keys []Key) []string {
	out := make([]string, len(keys))
	for i, k := range keys {
		out[i] = k.Name
	}
	return out
}

// wrong is a value that breaks its rule; where it stands is added later.
func wrong(s Setting, rule string, args ...any) error {
	return messages.Invalid("", "", strconv.Quote(s.Text), rule, args...)
}

func setModel(c *workload.Config, s Setting) error {
	if s.Text == "" {
		return wrong(s, "names a folder")
	}
	if c.Model = s.Text; !workload.InCatalogue(s.Text) {
		c.Model = relative(s)
	}
	return nil
}

func setFrames(c *workload.Config, s Setting) error {
	if s.Text == "" {
		return wrong(s, "names a folder")
	}
	c.Frames = relative(s)
	return nil
}

// relative is the path of a setting: those in a file are relative to the file.
func relative(s Setting) string {
	if s.Dir != "" && !filepath.IsAbs(s.Text) {
		return filepath.Join(s.Dir, s.Text)
	}
	return s.Text
}

func setHalo(c *workload.Config, s Setting) error {
	if c.Halo = nn.Halo(s.Text); c.Halo != nn.HaloFull && c.Halo != nn.HaloCompact {
		return wrong(s, "is full or compact")
	}
	return nil
}

func setMesh(c *workload.Config, s Setting) (err error) {
	if c.Mesh, err = messages.ParseMeshShape(s.Text); err != nil {
		return wrong(s, "is ROWSxCOLUMNS, such as 2x4, each from 1 to 128")
	}
	return nil
}

func setPreset(c *workload.Config, s Setting) error {
	c.Preset = s.Text
	if s.Text == "" {
		return wrong(s, "names a machine")
	}
	return nil
}

func factor(field func(*workload.Config) *workload.Factor) func(*workload.Config, Setting) error {
	return func(c *workload.Config, s Setting) error {
		f, err := workload.ParseFactor(s.Text)
		if err != nil {
			return wrong(s, "is DEGREE@AXIS, such as 4@1, with axis 0 (down the rows) or 1 (along the columns)")
		}
		*field(c) = f
		return nil
	}
}

func count(least, most int, field func(*workload.Config) *int) func(*workload.Config, Setting) error {
	return func(c *workload.Config, s Setting) error {
		n, err := strconv.Atoi(s.Text)
		switch {
		case err != nil:
			return wrong(s, "is a whole number")
		case n < least:
			return messages.Invalid("", "", n, "is at least %d", least)
		case n > most:
			return messages.Invalid("", "", n, "is at most %d", most)
		}
		*field(c) = n
		return nil
	}
}

func setTopology(c *workload.Config, s Setting) (err error) {
	if c.Topology, err = messages.ParseTopology(s.Text); err != nil {
		return wrong(s, "is linear, ring or unset")
	}
	return nil
}

func setDType(c *workload.Config, s Setting) error {
	t, err := messages.ParseDType(s.Text)
	if err != nil || t != meshrun.BFloat16 && t != meshrun.Float32 {
		return wrong(s, "is bfloat16 or float32")
	}
	c.DType = t
	return nil
}

func setMode(c *workload.Config, s Setting) error {
	c.Mode = meshrun.Mode(s.Text)
	if c.Mode != meshrun.Functional && c.Mode != meshrun.Timing {
		return wrong(s, "is functional or timing")
	}
	return nil
}

func setInputs(c *workload.Config, s Setting) error {
	c.Inputs = s.Text
	if s.Text != "varied" && s.Text != "same" {
		return wrong(s, "is varied or same")
	}
	return nil
}

func setQueues(c *workload.Config, s Setting) error {
	if err := count(1, math.MaxInt32, func(c *workload.Config) *int { return &c.Queues })(c, s); err != nil {
		return err
	}
	if c.Queues > 1 {
		return messages.Invalid("", "", c.Queues, "is 1: more queues are not supported yet")
	}
	return nil
}

func setSeed(c *workload.Config, s Setting) (err error) {
	if c.Seed, err = strconv.ParseUint(s.Text, 10, 64); err != nil {
		return wrong(s, "is a whole number from 0 to 2^64-1")
	}
	return nil
}

func verify(c *workload.Config) *workload.Tolerance {
	if c.Verify == nil {
		c.Verify = &workload.Tolerance{}
	}
	return c.Verify
}

func tolerance(_ *workload.Config, s Setting, low, high float64, field *float64) error {
	v, err := strconv.ParseFloat(s.Text, 64)
	if err != nil || !(v >= low && v <= high) {
		if high == 1 {
			return wrong(s, "is a number from %g to %g", low, high)
		}
		return wrong(s, "is a number that is not negative")
	}
	*field = v
	return nil
}

// splitVerify reads "pcc=0.9999,max_error=0.05".
func splitVerify(s Setting) (map[string]Setting, []Problem) {
	out := map[string]Setting{}
	var problems []Problem
	for _, part := range strings.Split(s.Text, ",") {
		name, text, ok := strings.Cut(strings.TrimSpace(part), "=")
		one := s
		one.Text = strings.TrimSpace(text)
		if !ok {
			problems = append(problems, Problem{s.Where, "verify " + strconv.Quote(part) + ": is pcc=P,max_error=E"})
			continue
		}
		if p := unknown(one.Where, "verify", name, VerifyKeys); p != nil {
			problems = append(problems, *p)
			continue
		}
		out[name] = one
	}
	return out, problems
}
