package axis

import (
	"fmt"
	"math"

	"github.com/meshrun/meshrun/messages"
)

// Checks that several operations share. Each returns an *messages.InvalidError without the operation's name, which Make adds.

func fail(field string, value any, rule string, args ...any) error {
	return messages.Invalid("", field, value, rule, args...)
}

// checkDim turns a dim that may count from the end into one that counts from the front.
func checkDim(field string, dim int, s messages.Shape) (int, error) {
	d := dim
	if d < 0 {
		d += s.Rank()
	}
	if d < 0 || d >= s.Rank() {
		return 0, fail(field, dim, "is a dim of %s, from %d to %d", s, -s.Rank(), s.Rank()-1)
	}
	return d, nil
}

func checkMeshAxis(axis int) error {
	if axis != 0 && axis != 1 && axis != messages.NoAxis {
		return fail("mesh_axis", axis, "is 0 (down the rows), 1 (along the columns) or none")
	}
	return nil
}

func checkRank(field string, s messages.Shape, low, high int) error {
	if s.Rank() < low || s.Rank() > high {
		if low == high {
			return fail(field, s, "has rank %d", low)
		}
		return fail(field, s, "has rank %d to %d", low, high)
	}
	return nil
}

func checkFloat(field string, s messages.Spec) error {
	if !s.DType.Float() {
		return fail(field+" dtype", s.DType, "is bfloat16, float32 or bfloat8_b")
	}
	return nil
}

func checkFloats(fields []string, in []messages.Spec) error {
	for i, s := range in {
		if present(s) {
			if err := checkFloat(fields[i], s); err != nil {
				return err
			}
		}
	}
	return nil
}

// broadcast is the shape of two operands whose dims of 1 stretch, aligned at the last dim.
func broadcast(a, b messages.Shape) (messages.Shape, bool) {
	if a.Rank() < b.Rank() {
		a, b = b, a
	}
	out := a
	for i := 1; i <= b.Rank(); i++ {
		x, y := a.Dim(-i), b.Dim(-i)
		switch {
		case x == y || y == 1:
		case x == 1:
			out = out.With(a.Rank()-i, y)
		default:
			return out, false
		}
	}
	return out, true
}

// checkBroadcast says that b stretches to the shape of a.
func checkBroadcast(field string, a, b messages.Shape) error {
	if out, ok := broadcast(a, b); !ok || out != a {
		return fail(field, b, "broadcasts to %s: each dim, from the last, is equal or 1", a)
	}
	return nil
}

// CheckStorage says that a dtype, a layout and a memory exist and go together: bfloat8_b, whose exponents are shared within tiles, is in tile layout.
func CheckStorage(op string, s messages.Spec) error {
	err := checkStorage("layout", s)
	if inv, ok := err.(*messages.InvalidError); ok {
		inv.Op = op
	}
	return err
}

func checkStorage(field string, s messages.Spec) error {
	if !s.DType.Known() {
		return fail("dtype", s.DType, "is a dtype of the runtime")
	}
	if !s.Layout.Known() {
		return fail(field, s.Layout, "is tile or row_major")
	}
	if !s.Memory.Known() {
		return fail("memory", s.Memory, "is dram or l1")
	}
	if s.DType == messages.BFloat8B && s.Layout == messages.RowMajor {
		return fail(field, s.Layout, "is tile where the dtype is %s, which shares exponents within tiles", s.DType)
	}
	return nil
}

// checkWholeBlocks says that a gather along dim keeps the blocks of bfloat8_b, 16 values of a row with one exponent, as they are.
func checkWholeBlocks(s messages.Spec, dim int) error {
	if s.DType == messages.BFloat8B && dim == s.Shape.Rank()-1 && s.Shape.Dim(dim)%16 != 0 {
		return fail("input", describe("%s %s", s.Shape, s.DType), "has whole blocks of 16 along the last dim, where it is gathered")
	}
	return nil
}

// checkMatrix says that a weight is one matrix, whatever its rank.
func checkMatrix(field string, s messages.Shape) error {
	if s.Elements() != int64(s.Dim(-1))*int64(s.Dim(-2)) {
		return fail(field, s, "is one matrix [K, N]")
	}
	return nil
}

// isRow reports whether a tensor is one row of n elements, whatever dims of 1 stand in front.
func isRow(s messages.Shape, n int) bool { return s.Elements() == int64(n) && s.Dim(-1) == n }

func checkEpsilon(epsilon float32) error {
	if !(epsilon >= 0 && epsilon <= math.MaxFloat32) {
		return fail("epsilon", epsilon, "is a number that is not negative")
	}
	return nil
}

func checkActivation(fn messages.ActivationKind) error {
	if fn > messages.Tanh {
		return fail("activation", fn, "is none, gelu, gelu_tanh, silu, relu, sigmoid or tanh")
	}
	return nil
}

func checkPaddingMode(mode messages.PaddingMode) error {
	if mode > messages.PadReplicate {
		return fail("padding_mode", mode, "is zeros or replicate")
	}
	return nil
}

func mustEqual(field string, got messages.Shape, want messages.Shape, of string) error {
	if got != want {
		return fail(field, got, "is %s, %s", want, of)
	}
	return nil
}

func describe(format string, args ...any) string { return fmt.Sprintf(format, args...) }
