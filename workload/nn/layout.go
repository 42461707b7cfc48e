package nn

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
)

// TileSize is the side of a tile: rows are padded to whole tiles on every device.
const TileSize = 32

// Factor is a degree of parallelism and the mesh axis that it lies on, written "4@1". A factor of 1 means serial; its axis means nothing.
type Factor struct {
	Size int
	Axis int
}

// Serial is no parallelism.
var Serial = Factor{Size: 1}

// ParseFactor reads "4@1": degree 4 on axis 1. "1" is serial.
func ParseFactor(text string) (Factor, error) {
	bad := messages.Invalid("", "factor", strconv.Quote(text), "is DEGREE@AXIS, such as 4@1, with axis 0 (down the rows) or 1 (along the columns)")
	size, axis, given := strings.Cut(text, "@")
	f := Factor{}
	var err error
	if f.Size, err = strconv.Atoi(size); err != nil || f.Size < 1 {
		return Factor{}, bad
	}
	if !given {
		if f.Size != 1 {
			return Factor{}, bad
		}
		return f, nil
	}
	if f.Axis, err = strconv.Atoi(axis); err != nil || f.Axis != 0 && f.Axis != 1 {
		return Factor{}, bad
	}
	return f, nil
}

func (f Factor) String() string { return fmt.Sprintf("%d@%d", f.Size, f.Axis) }

// axis is the mesh axis of the factor, or NoAxis where nothing is parallel.
func (f Factor) axis() int {
	if f.Size == 1 {
		return meshrun.NoAxis
	}
	return f.Axis
}

// Layout says how a model lies on a mesh: TP cuts its width (tensor parallel), SP its sequence (sequence parallel).
type Layout struct {
	Mesh   meshrun.MeshShape
	TP, SP Factor
}

// NewLayout checks that each factor is the length of its axis, or 1, that they lie on different axes, and that they use the whole mesh.
// A zero Factor is serial.
func NewLayout(mesh meshrun.MeshShape, tp, sp Factor) (Layout, error) {
	l := Layout{Mesh: mesh, TP: tp, SP: sp}
	if err := mesh.Validate(); err != nil {
		return l, err
	}
	for _, f := range []struct {
		name   string
		factor *Factor
	}{{"tp", &l.TP}, {"sp", &l.SP}} {
		if *f.factor == (Factor{}) {
			*f.factor = Serial
		}
		if f.factor.Size < 1 {
			return l, messages.Invalid("layout", f.name, *f.factor, "has a degree of at least 1")
		}
		if f.factor.Axis != 0 && f.factor.Axis != 1 {
			return l, messages.Invalid("layout", f.name, *f.factor, "lies on axis 0 (down the rows) or 1 (along the columns)")
		}
		if f.factor.Size != 1 && f.factor.Size != mesh.Axis(f.factor.Axis) {
			return l, messages.Invalid("layout", f.name, *f.factor, "is the length of its axis, %d on axis %d of mesh %s, or 1", mesh.Axis(f.factor.Axis), f.factor.Axis, mesh)
		}
	}
	if l.TP.Size > 1 && l.SP.Size > 1 && l.TP.Axis == l.SP.Axis {
		return l, messages.Invalid("layout", "sp", l.SP, "lies on another axis than tp, %s", l.TP)
	}
	if l.TP.Size*l.SP.Size != mesh.Devices() {
		return l, messages.Invalid("layout", "mesh", mesh, "has tp x sp devices, %d x %d", l.TP.Size, l.SP.Size)
	}
	return l, nil
}

// One is the layout of a mesh of one device.
func One() Layout {
	return Layout{Mesh: meshrun.MeshShape{Rows: 1, Cols: 1}, TP: Serial, SP: Serial}
}

// CheckDivides says whether tp cuts a count of the model, such as its heads, into equal parts.
func (l Layout) CheckDivides(what string, n int) error {
	if n%l.TP.Size != 0 {
		return messages.Invalid("layout", "tp", l.TP, "divides %s, %d", what, n)
	}
	return nil
}

// PaddedRows is a number of rows, padded to whole tiles on every device of the sequence.
func (l Layout) PaddedRows(n int) int {
	unit := TileSize * l.SP.Size
	return (n + unit - 1) / unit * unit
}

// Rows cuts rows, dim 2 of [B, 1, rows, width], over the sequence-parallel axis.
func (l Layout) Rows() meshrun.Distribution {
	d := meshrun.Replicate
	if l.SP.Size > 1 {
		d[l.SP.Axis] = 2
	}
	return d
}

// Width cuts a dim over the tensor-parallel axis.
func (l Layout) Width(dim int) meshrun.Distribution {
	d := meshrun.Replicate
	if l.TP.Size > 1 {
		d[l.TP.Axis] = dim
	}
	return d
}

// Activations cuts rows and width of [B, 1, rows, width].
func (l Layout) Activations() meshrun.Distribution {
	d := l.Rows()
	if l.TP.Size > 1 {
		d[l.TP.Axis] = 3
	}
	return d
}
