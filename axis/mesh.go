package axis

import (
	"fmt"

	"github.com/meshrun/meshrun/messages"
)

// Mesh is what the rules need to know of a mesh and of the manager on it.
type Mesh struct {
	Shape    messages.MeshShape
	Grid     [2]int               // compute cores of a device, x and y
	NumLinks int                  // links that each collective uses
	Topology [2]messages.Topology // of each axis, resolved: Linear or Ring

	LinearIntermediate bool // a broken rule: reduce-scatters on a ring get the intermediate of a line
}

// Machine is what the hardware offers.
type Machine struct {
	Shape messages.MeshShape
	Grid  [2]int
	Links [2]int  // links per edge along each axis
	Wrap  [2]bool // whether the axis closes into a ring
}

// Open checks a manager's settings against the machine and resolves the topology of each axis, once.
//
// The number of links is checked on axes longer than one: an axis of length one has no edges and lowers nothing. Unset means
// Ring where the axis is longer than two and has the wrap link, else Linear; an axis of one or two always runs Linear; an
// explicit Ring on a longer axis without a wrap link is an error, since the operation would wait for ever.
func Open(m Machine, numLinks int, topology messages.Topology) (Mesh, error) {
	out := Mesh{Shape: m.Shape, Grid: m.Grid, NumLinks: numLinks}
	if err := m.Shape.Validate(); err != nil {
		return out, err
	}
	if numLinks < 1 {
		return out, messages.Invalid("open", "num_links", numLinks, "is at least 1")
	}
	if topology > messages.Ring {
		return out, messages.Invalid("open", "topology", topology, "is unset, linear or ring")
	}
	for a := range 2 {
		n := m.Shape.Axis(a)
		if n > 1 && numLinks > m.Links[a] {
			return out, messages.Invalid("open", "num_links", numLinks, "axis %d: asked %d links, %d available", a, numLinks, m.Links[a])
		}
		switch {
		case n <= 2 || topology == messages.Linear:
			out.Topology[a] = messages.Linear
		case m.Wrap[a]:
			out.Topology[a] = messages.Ring
		case topology == messages.Ring:
			return out, &messages.InvalidError{Op: "open", Field: "topology", Value: "ring",
				Rule: fmt.Sprintf("axis %d of %s has no link from its last device to its first", a, m.Shape), Hint: "use linear or leave it unset"}
		default:
			out.Topology[a] = messages.Linear
		}
	}
	return out, nil
}

// ReshapeError is the error of asking for a preset and another mesh. Devices stay where they are: the asked mesh would take them in row order, and
// needs a link wherever two of them come to be neighbours.
func ReshapeError(preset string, m Machine, asked messages.MeshShape) *messages.InvalidError {
	e := messages.Invalid("", "mesh", asked, "preset %s is %s", preset, m.Shape)
	e.Hint = "leave out mesh, or the preset for a mesh with links of its own"
	if asked.Devices() != m.Shape.Devices() {
		return e
	}
	first, missing := [2]int{}, 0
	for p := range asked.Devices() {
		for a, next := range [2]int{p + asked.Cols, p + 1} {
			there := next < asked.Devices() && (a == 0 || next%asked.Cols != 0)
			if !there || m.linked(p, next) {
				continue
			}
			if missing++; missing == 1 {
				first = [2]int{p, next}
			}
		}
	}
	if missing == 0 {
		return e
	}
	e.Rule += fmt.Sprintf(": reshaped, edge (%d,%d) is missing: no link joins devices %s and %s", first[0], first[1], m.at(first[0]), m.at(first[1]))
	if missing > 1 {
		e.Rule += fmt.Sprintf(", nor those of %d more edges", missing-1)
	}
	return e
}

// linked says whether a link joins two devices, counted row by row.
func (m Machine) linked(p, q int) bool {
	row := [2]int{p / m.Shape.Cols, q / m.Shape.Cols}
	col := [2]int{p % m.Shape.Cols, q % m.Shape.Cols}
	near := func(x [2]int, a int) bool {
		d := max(x[0], x[1]) - min(x[0], x[1])
		return d == 1 || m.Wrap[a] && d == m.Shape.Axis(a)-1
	}
	return row[0] == row[1] && near(col, 1) || col[0] == col[1] && near(row, 0)
}

func (m Machine) at(p int) string { return fmt.Sprintf("%d,%d", p/m.Shape.Cols, p%m.Shape.Cols) }

// Hyper are the hyperparameters of a collective: how many chunks go between two signals, how many workers drive a link and how
// many buffers a worker has. Set tells whether they are given at all.
type Hyper struct {
	Set                  bool
	ChunksPerSync        int
	NumWorkersPerLink    int
	NumBuffersPerChannel int
}

// AllGatherHyper are the reference's choices for a rank-4 view (get_ag_hyperparams): more rows, longer runs.
func AllGatherHyper(view messages.Shape) Hyper {
	if view.Dim(2) > 512 {
		return Hyper{Set: true, ChunksPerSync: 16, NumWorkersPerLink: 3, NumBuffersPerChannel: 2}
	}
	return Hyper{Set: true, ChunksPerSync: 10, NumWorkersPerLink: 2, NumBuffersPerChannel: 2}
}

// ReduceScatterHyper are the reference's choices (get_rs_hyperparams), the same for every shape.
func ReduceScatterHyper() Hyper {
	return Hyper{Set: true, ChunksPerSync: 2, NumWorkersPerLink: 2, NumBuffersPerChannel: 2}
}
