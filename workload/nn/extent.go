package nn

import (
	"github.com/meshrun/meshrun"
)

// Extent is the size of a picture that is cut over the mesh: its rows over the tensor-parallel axis, its columns over the
// sequence-parallel one. Where an axis does not divide, every shard is as large as the largest, and what lies past the picture is padding
// that must reach nothing.
type Extent struct {
	H, W int // of the whole picture
	h, w int // of every shard
}

// Extent cuts a picture of h rows and w columns.
func (l Layout) Extent(h, w int) Extent {
	return Extent{H: h, W: w, h: (h + l.TP.Size - 1) / l.TP.Size, w: (w + l.SP.Size - 1) / l.SP.Size}
}

// Double is the picture with each pixel doubled both ways; so is each shard, so that every device keeps its own pixels.
func (e Extent) Double() Extent { return Extent{2 * e.H, 2 * e.W, 2 * e.h, 2 * e.w} }

// padded says whether shards hold more than the picture.
func (l Layout) padded(e Extent) bool { return e.h*l.TP.Size > e.H || e.w*l.SP.Size > e.W }

// Picture cuts dims row and row+1 of a tensor as rows and columns of a picture.
func (l Layout) Picture(row int) meshrun.Distribution {
	d := meshrun.Replicate
	if l.TP.Size > 1 {
		d[l.TP.Axis] = row
	}
	if l.SP.Size > 1 {
		d[l.SP.Axis] = row + 1
	}
	return d
}

// pictureAxes are the mesh axes of rows and columns. An axis of one carries the one that is not cut.
func (l Layout) pictureAxes() (rows, columns int) {
	switch {
	case l.TP.Size > 1:
		return l.TP.Axis, 1 - l.TP.Axis
	case l.SP.Size > 1:
		return 1 - l.SP.Axis, l.SP.Axis
	}
	return 0, 1
}
