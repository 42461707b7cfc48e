package axis

import (
	"math"

	"github.com/meshrun/meshrun/messages"
)

func planMatmul(_ Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.Matmul)
	a, w, bias := in[0], in[1], in[2]
	if err := checkActivation(op.Activation); err != nil {
		return err
	}
	if err := checkFloats([]string{"input", "weight", "bias"}, in); err != nil {
		return err
	}
	for i, t := range in[:2] {
		if err := checkRank([]string{"input", "weight"}[i], t.Shape, 2, messages.MaxRank); err != nil {
			return err
		}
	}
	k, n := w.Shape.Dim(-2), w.Shape.Dim(-1)
	if op.TransposeB {
		k, n = n, k
	}
	if a.Shape.Dim(-1) != k {
		return fail("weight", w.Shape, "has %d rows, the last dim of the input %s", a.Shape.Dim(-1), a.Shape)
	}
	lead := a.Shape.With(a.Shape.Rank()-1, 1).With(a.Shape.Rank()-2, 1)
	if err := checkBroadcast("weight", lead, w.Shape.With(w.Shape.Rank()-1, 1).With(w.Shape.Rank()-2, 1)); err != nil {
		return fail("weight", w.Shape, "has leading dims that broadcast to those of the input %s", a.Shape)
	}
	out := a
	out.Shape = a.Shape.With(a.Shape.Rank()-1, n)
	if op.DType != messages.DTypeUnset {
		out.DType = op.DType
	}
	if err := checkFloat("result", out); err != nil {
		return err
	}
	if present(bias) {
		if !isRow(bias.Shape, n) {
			return fail("bias", bias.Shape, "is [.., 1, %d]", n)
		}
	}
	p.fresh(out)
	return nil
}

// checkAffine checks the weight and bias of a norm over the last dim.
func checkAffine(x, weight, bias messages.Spec) error {
	for i, t := range []messages.Spec{weight, bias} {
		if !present(t) {
			continue
		}
		field := []string{"weight", "bias"}[i]
		if err := checkBroadcast(field, x.Shape, t.Shape); err != nil {
			return err
		}
		if t.Shape.Dim(-1) != x.Shape.Dim(-1) {
			return fail(field, t.Shape, "has %d as its last dim, as the input %s", x.Shape.Dim(-1), x.Shape)
		}
	}
	return nil
}

func planNorm(_ Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.Norm)
	x, weight, bias := in[0], in[1], in[2]
	if err := checkFloats([]string{"input", "weight", "bias"}, in); err != nil {
		return err
	}
	if err := checkRank("input", x.Shape, 1, messages.MaxRank); err != nil {
		return err
	}
	if err := checkEpsilon(op.Epsilon); err != nil {
		return err
	}
	if err := checkAffine(x, weight, bias); err != nil {
		return err
	}
	p.fresh(x)
	return nil
}

// checkRopeTable checks a table against x [B,H,N,D]: [1,1,N,D] or [1,H,N,D], D even.
func checkRopeTable(field string, x, table messages.Shape) error {
	if x.Dim(3)%2 != 0 {
		return fail("head dim", x.Dim(3), "is even")
	}
	one := x.With(0, 1)
	if table != one && table != one.With(1, 1) {
		return fail(field, table, "is %s or %s", one.With(1, 1), one)
	}
	return nil
}

func planRope(_ Mesh, _ messages.Operation, in []messages.Spec, p *Plan) error {
	x := in[0]
	if err := checkFloats([]string{"input", "cos", "sin"}, in); err != nil {
		return err
	}
	if err := checkRank("input", x.Shape, 4, 4); err != nil {
		return err
	}
	for i, t := range in[1:3] {
		if err := checkRopeTable([]string{"cos", "sin"}[i], x.Shape, t.Shape); err != nil {
			return err
		}
	}
	p.fresh(x)
	return nil
}

func checkAttention(q, k, v messages.Spec, scale float32) error {
	if !(scale >= -math.MaxFloat32 && scale <= math.MaxFloat32) {
		return fail("scale", scale, "is a finite number; 0 stands for 1/sqrt(head dim)")
	}
	for i, t := range []messages.Spec{q, k, v} {
		if err := checkRank([]string{"q", "k", "v"}[i], t.Shape, 4, 4); err != nil {
			return err
		}
	}
	if k.Shape.With(2, 1) != q.Shape.With(2, 1) {
		return fail("k", k.Shape, "has the batch, heads and head dim of q, %s", q.Shape)
	}
	return mustEqual("v", v.Shape, k.Shape, "the shape of k")
}

func planSDPA(_ Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.SDPA)
	q, k, v := in[0], in[1], in[2]
	if err := checkFloats([]string{"q", "k", "v"}, in); err != nil {
		return err
	}
	if err := checkAttention(q, k, v, op.Scale); err != nil {
		return err
	}
	if op.LogicalN < 0 || op.LogicalN > k.Shape.Dim(2) {
		return fail("logical_n", op.LogicalN, "is 0 (all) to %d, the rows of k", k.Shape.Dim(2))
	}
	p.fresh(q)
	return nil
}

func planBinary(_ Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.Binary)
	a, b := in[0], in[1]
	if op.Fn < messages.Add || op.Fn > messages.Mul {
		return fail("op", op.Fn, "is add, sub or mul")
	}
	if err := checkFloats([]string{"a", "b"}, in); err != nil {
		return err
	}
	out := a
	if present(b) {
		if op.Scalar != 0 {
			return fail("scalar", op.Scalar, "stands where there is no b")
		}
		shape, ok := broadcast(a.Shape, b.Shape)
		if !ok {
			return fail("b", b.Shape, "broadcasts with a, %s: each dim, from the last, is equal or 1", a.Shape)
		}
		out.Shape = shape
	}
	p.fresh(out)
	return nil
}

func planAddcmul(_ Mesh, _ messages.Operation, in []messages.Spec, p *Plan) error {
	if err := checkFloats([]string{"input", "x", "y"}, in); err != nil {
		return err
	}
	for i, t := range in[1:3] {
		if err := checkBroadcast([]string{"x", "y"}[i], in[0].Shape, t.Shape); err != nil {
			return err
		}
	}
	p.fresh(in[0])
	return nil
}

func planActivation(_ Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.Activation)
	if op.Fn == messages.NoActivation || op.Fn > messages.Tanh {
		return fail("activation", op.Fn, "is gelu, gelu_tanh, silu, relu, sigmoid or tanh")
	}
	if err := checkFloat("input", in[0]); err != nil {
		return err
	}
	p.fresh(in[0])
	return nil
}
