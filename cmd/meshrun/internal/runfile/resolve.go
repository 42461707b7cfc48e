package runfile

import (
	"errors"
	"maps"
	"strings"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/axis"
	"github.com/meshrun/meshrun/cmd/meshrun/internal/suggest"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/workload"
	"github.com/meshrun/meshrun/workload/nn"
)

// Override lays flags over the settings of a file. A mesh on the command line takes the place of a preset in the file, and the other
// way round.
func Override(file, flags Settings) (Settings, Problems) {
	out := maps.Clone(file)
	if out == nil {
		out = Settings{}
	}
	var problems Problems
	for name, s := range flags {
		switch name {
		case "mesh":
			delete(out, "preset")
		case "preset":
			delete(out, "mesh")
		case "verify":
			parts, wrong := splitVerify(s)
			problems = append(problems, wrong...)
			delete(out, "verify.pcc")
			delete(out, "verify.max_error")
			for part, v := range parts {
				out["verify."+part] = v
			}
			continue
		}
	}
	for name, s := range flags {
		if name != "verify" {
			out[name] = s
		}
	}
	return out, problems
}

// Resolve makes the run that the settings ask for. Everything that can be seen without opening a file or a mesh is checked; the problems
// are all there are.
func Resolve(settings Settings, machines []meshrun.Preset) (workload.Config, Problems) {
	r := &resolver{settings: settings, machines: machines}
	r.c = workload.Config{Streams: 1}
	for _, k := range Keys {
		if k.set != nil {
			r.set(k, k.Name)
		}
	}
	for _, k := range VerifyKeys {
		r.set(k, "verify."+k.Name)
	}
	if r.c.Verify != nil && (!r.given("verify.pcc") || !r.given("verify.max_error")) {
		r.fail("verify.pcc", "verify.max_error", "verify has both pcc and max_error")
	}
	if !r.given("model") {
		r.fail("", "", "model is missing: the folder of a model")
	}
	r.machine()
	return r.c, r.problems
}

type resolver struct {
	settings Settings
	machines []meshrun.Preset
	c        workload.Config
	problems Problems
	broken   bool // a value is wrong, so that what follows from it cannot be told
}

func (r *resolver) given(name string) bool {
	_, ok := r.settings[name]
	return ok
}

// fail adds a problem at the place of the first of two settings that was given.
func (r *resolver) fail(name, or, text string) {
	s, ok := r.settings[name]
	if !ok {
		s = r.settings[or]
	}
	r.problems = append(r.problems, Problem{s.Where, text})
	r.broken = true
}

func (r *resolver) set(k Key, name string) {
	s, ok := r.settings[name]
	if !ok {
		return
	}
	if err := k.set(&r.c, s); err != nil {
		r.fail(name, "", name+describe(err))
	}
}

// describe is an error's value and rule, behind the name of its key.
func describe(err error) string {
	var i *messages.InvalidError
	if !errors.As(err, &i) {
		return ": " + err.Error()
	}
	text := " " + i.Value + ": " + i.Rule
	if i.Hint != "" {
		text += "; " + i.Hint
	}
	return text
}

// machine checks mesh, preset, links, topology and the degrees against each other.
func (r *resolver) machine() {
	if r.given("mesh") && r.given("preset") {
		r.fail("preset", "", "preset excludes mesh: a preset has its own")
		return
	}
	m := axis.Machine{Shape: r.c.Mesh}
	links := max(r.c.NumLinks, 1)
	if r.given("preset") {
		p := r.preset()
		if p == nil {
			return
		}
		m = axis.Machine{Shape: meshrun.MeshShape{Rows: p.Mesh[0], Cols: p.Mesh[1]}, Links: p.Links, Wrap: p.Wrap}
	} else {
		if !r.given("mesh") {
			r.c.Mesh = meshrun.MeshShape{Rows: 1, Cols: 1}
		}
		m.Shape = r.c.Mesh
		for a := range 2 {
			m.Links[a], m.Wrap[a] = links, m.Shape.Axis(a) > 2
		}
	}
	if m.Shape.Devices() == 0 {
		return // it has been told
	}
	if !r.broken {
		if _, err := axis.Open(m, links, r.c.Topology); err != nil {
			r.invalid(err, "num_links")
		}
	}
	r.degrees(m.Shape)
	if r.broken {
		return
	}
	if _, err := nn.NewLayout(m.Shape, r.c.TP, r.c.SP); err != nil {
		r.invalid(err, "mesh")
	}
}

// degrees fills in what was left out: tensor parallel along axis 1, sequence parallel along axis 0, each over the whole of its axis; where
// one of the two is given, the other takes the other axis.
func (r *resolver) degrees(mesh meshrun.MeshShape) {
	whole := func(a int) workload.Factor {
		if mesh.Axis(a) == 1 {
			return workload.Factor{Size: 1}
		}
		return workload.Factor{Size: mesh.Axis(a), Axis: a}
	}
	other := func(f workload.Factor, otherwise int) workload.Factor {
		if f.Size > 1 {
			return whole(1 - f.Axis)
		}
		return whole(otherwise)
	}
	switch tp, sp := r.given("tp"), r.given("sp"); {
	case !tp && !sp:
		r.c.TP, r.c.SP = whole(1), whole(0)
	case !sp:
		r.c.SP = other(r.c.TP, 0)
	case !tp:
		r.c.TP = other(r.c.SP, 1)
	}
}

func (r *resolver) preset() *meshrun.Preset {
	var known []string
	for i := range r.machines {
		if r.machines[i].Name == r.c.Preset {
			return &r.machines[i]
		}
		known = append(known, r.machines[i].Name)
	}
	if r.c.Preset != "" {
		r.fail("preset", "", "unknown preset \""+r.c.Preset+"\": "+suggest.Hint(r.c.Preset, known))
	}
	return nil
}

// invalid adds the problem of a rule, at the place of the setting that it names.
func (r *resolver) invalid(err error, otherwise string) {
	var i *messages.InvalidError
	name := otherwise
	if errors.As(err, &i) {
		name, _, _ = strings.Cut(i.Field, " ")
	}
	if name == "mesh" && !r.given("mesh") {
		otherwise = "preset"
	}
	r.fail(name, otherwise, name+describe(err))
}
