package axis

import (
	"github.com/meshrun/meshrun/messages"
)

// statsOfGroup is how many numbers a group has in the statistics: count, mean, sum of squared distances.
const statsOfGroup = 3

// grouped checks what both group norms have in common.
func grouped(x messages.Spec, groups int) error {
	if err := checkFloat("input", x); err != nil {
		return err
	}
	if err := checkRank("input", x.Shape, 2, messages.MaxRank); err != nil {
		return err
	}
	if x.Layout != messages.RowMajor {
		return fail("input layout", x.Layout, "is row_major")
	}
	if channels := x.Shape.Dim(-1); groups < 1 || channels%groups != 0 {
		return fail("groups", groups, "is positive and divides the %d channels", channels)
	}
	return nil
}

func planGroupNorm(_ Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.GroupNorm)
	x, weight, bias, stats := in[0], in[1], in[2], in[3]
	if err := grouped(x, op.Groups); err != nil {
		return err
	}
	if err := checkEpsilon(op.Epsilon); err != nil {
		return err
	}
	if err := checkActivation(op.Activation); err != nil {
		return err
	}
	if err := checkFloats([]string{"weight", "bias"}, in[1:3]); err != nil {
		return err
	}
	for i, t := range []messages.Spec{weight, bias} {
		if channels := x.Shape.Dim(-1); present(t) && !isRow(t.Shape, channels) {
			return fail([]string{"weight", "bias"}[i], t.Shape, "is [.., %d]", channels)
		}
	}
	if present(stats) {
		n, values := x.Shape.Dim(0), statsOfGroup*op.Groups
		if stats.DType != messages.Float32 || stats.Shape.Rank() != 4 || stats.Shape != messages.ShapeOf(stats.Shape.Dim(0), 1, n, values) {
			return fail("stats", describe("%s %s", stats.Shape, stats.DType), "is [parts, 1, %d, %d] float32", n, values)
		}
	}
	p.fresh(x)
	return nil
}

func planGroupNormStats(m Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.GroupNormStats)
	x := in[0]
	if err := grouped(x, op.Groups); err != nil {
		return err
	}
	for _, side := range []struct {
		name          string
		logical, axis int
		back          int
	}{{"h", op.LogicalH, op.AxisH, 3}, {"w", op.LogicalW, op.AxisW, 2}} {
		if side.logical == 0 {
			continue
		}
		if side.axis != 0 && side.axis != 1 {
			return fail("axis_"+side.name, side.axis, "is 0 or 1")
		}
		dim := x.Shape.Rank() - side.back
		if dim < 1 {
			return fail("logical_"+side.name, side.logical, "needs an input [N, .., H, W, C], not %s", x.Shape)
		}
		if most := x.Shape.Dim(dim) * m.Shape.Axis(side.axis); side.logical < 0 || side.logical > most {
			return fail("logical_"+side.name, side.logical, "is 0 (all count) to %d, the whole of dim %d", most, dim)
		}
	}
	if op.LogicalH != 0 && op.LogicalW != 0 && op.AxisH == op.AxisW {
		return fail("axis_h and axis_w", op.AxisH, "are two different axes")
	}
	p.fresh(messages.Spec{Shape: messages.ShapeOf(1, 1, x.Shape.Dim(0), statsOfGroup*op.Groups), DType: messages.Float32, Layout: messages.RowMajor})
	return nil
}
