package axis

import (
	"slices"

	"github.com/meshrun/meshrun/messages"
)

func planSlice(_ Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.Slice)
	x := in[0]
	r := x.Shape.Rank()
	if op.Begin.Len() != r || op.End.Len() != r {
		return fail("begin and end", op.Begin.Len(), "have a number for each of the %d dims of %s", r, x.Shape)
	}
	out := x
	for i := range r {
		b, e := op.Begin.At(i), op.End.At(i)
		if b < 0 || e > x.Shape.Dim(i) || b >= e {
			return fail(describe("range of dim %d", i), describe("[%d, %d)", b, e), "lies in [0, %d) and is not empty", x.Shape.Dim(i))
		}
		out.Shape = out.Shape.With(i, e-b)
	}
	p.fresh(out)
	return nil
}

func planConcat(_ Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.Concat)
	x := in[0]
	dim, err := checkDim("dim", op.Dim, x.Shape)
	if err != nil {
		return err
	}
	sum := 0
	for i, t := range in {
		if !present(t) {
			return fail(describe("input %d", i), "absent", "is a tensor")
		}
		if t.Shape.Rank() != x.Shape.Rank() || t.Shape.With(dim, 1) != x.Shape.With(dim, 1) {
			return fail(describe("input %d", i), t.Shape, "equals input 0, %s, in every dim but %d", x.Shape, dim)
		}
		if t.DType != x.DType || t.Layout != x.Layout {
			return fail(describe("input %d", i), describe("%s %s", t.DType, t.Layout), "has dtype and layout of input 0, %s %s", x.DType, x.Layout)
		}
		sum += t.Shape.Dim(dim)
	}
	p.Dim = dim
	out := x
	out.Shape = x.Shape.With(dim, sum)
	p.fresh(out)
	return nil
}

// planReshape makes a view where the order of elements in device memory stays as it is: always in row major; in tiles where
// only dims in front of the last two change. Anything else is a launch that moves data.
func planReshape(_ Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.Reshape)
	x := in[0]
	if op.Shape.Elements() != x.Shape.Elements() || op.Shape.Rank() == 0 {
		return fail("shape", op.Shape, "has as many elements as the input %s, %d", x.Shape, x.Shape.Elements())
	}
	to, from := op.Shape.Rank4(), x.Shape.Rank4()
	if x.Layout == messages.RowMajor || to.Dim(-1) == from.Dim(-1) && to.Dim(-2) == from.Dim(-2) {
		p.alias(x, op.Shape)
		return nil
	}
	out := x
	out.Shape = op.Shape
	p.fresh(out)
	return nil
}

func planPermute(_ Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.Permute)
	x := in[0]
	order := op.Order.Ints()
	sorted := slices.Sorted(slices.Values(order))
	for i, d := range sorted {
		if d != i {
			return fail("order", order, "names each of the %d dims once", x.Shape.Rank())
		}
	}
	if len(order) != x.Shape.Rank() {
		return fail("order", order, "names each of the %d dims once", x.Shape.Rank())
	}
	out := x
	for i, d := range order {
		out.Shape = out.Shape.With(i, x.Shape.Dim(d))
	}
	p.fresh(out)
	return nil
}

func planConvert(_ Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.Convert)
	out := in[0]
	out.Memory = messages.DRAM
	if op.DType != messages.DTypeUnset {
		out.DType = op.DType
	}
	if op.Layout != messages.LayoutUnset {
		out.Layout = op.Layout
	}
	if out.DType == in[0].DType && out.Layout == in[0].Layout {
		p.alias(in[0], in[0].Shape)
		return nil
	}
	p.fresh(out)
	return nil
}
