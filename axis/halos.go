package axis

import (
	"github.com/meshrun/meshrun/messages"
)

// Halo is a halo exchange worked out, dim by dim in the order of the request.
type Halo struct {
	Count    int // of dims
	Dims     [2]int
	Axes     [2]int
	Pad      [2][2]int // left and right
	NumLinks [2]int
	Neighbor [2]int // index of the dim's semaphore need, or -1 where both its pads are 0
	Barrier  int    // index of the barrier's need
}

// halo works out what all halo exchanges have in common: dims, axes, pads and links; the semaphores that it draws, and whom it joins.
//
// The start barrier joins the lines of the first axis that has a pad, and answers for that axis. On the other axis a receiver first tells the
// neighbour that will write to it that it has entered, on that axis's own bank: that handshake answers for memory, but not for the
// bank that carries it.
func (p *Plan) halo(m Mesh, x messages.Spec, dims, axes, left, right, links messages.Index, neighbor, barrier messages.Pool) error {
	h := &p.Halo
	n := dims.Len()
	if n < 1 || n > 2 {
		return fail("dims", dims.Ints(), "are one or two")
	}
	for _, list := range []struct {
		name string
		of   messages.Index
	}{{"axes", axes}, {"pad_left", left}, {"pad_right", right}, {"num_links", links}} {
		if list.of.Len() != n && !(list.name == "num_links" && list.of.Len() == 0) {
			return fail(list.name, list.of.Ints(), "has a number for each of the dims %v", dims.Ints())
		}
	}
	if x.Layout != messages.RowMajor {
		return fail("input layout", x.Layout, "is row_major")
	}
	h.Count = n
	active := -1
	for i := range n {
		dim, err := checkDim("dims", dims.At(i), x.Shape)
		if err != nil {
			return err
		}
		axis := axes.At(i)
		if axis != 0 && axis != 1 {
			return fail("axes", axis, "are 0 or 1")
		}
		if i == 1 && (dim == h.Dims[0] || axis == h.Axes[0]) {
			return fail("dims and axes", describe("%v and %v", dims.Ints(), axes.Ints()), "are two different dims on two different axes")
		}
		h.Dims[i], h.Axes[i] = dim, axis
		for side, pad := range []int{left.At(i), right.At(i)} {
			field := []string{"pad_left", "pad_right"}[side]
			if pad < 0 {
				return fail(field, pad, "is not negative")
			}
			if pad > x.Shape.Dim(dim) {
				return fail(field, pad, "is at most %d, the local extent of dim %d", x.Shape.Dim(dim), dim)
			}
			h.Pad[i][side] = pad
		}
		if active < 0 && h.Pad[i] != [2]int{} {
			active = i
		}
	}
	if active < 0 {
		return fail("pad_left and pad_right", describe("%v and %v", left.Ints(), right.Ints()), "pad on some side")
	}
	before := 1
	for i := range h.Dims[active] {
		before *= x.Shape.Dim(i)
	}
	for i := range n {
		h.NumLinks[i] = 1
		if links.Len() > 0 {
			h.NumLinks[i] = links.At(i)
		}
		if h.Pad[i] == [2]int{} {
			continue
		}
		if l := h.NumLinks[i]; l < 1 || l > m.NumLinks {
			return fail("num_links", l, "is 1 to %d, the links of this manager", m.NumLinks)
		}
		if l := h.NumLinks[i]; l > before {
			return fail("num_links", l, "is at most %d, the product of the dims before the first padded one", before)
		}
	}
	p.Axis, p.Topology = h.Axes[active], messages.Linear
	for i := range n {
		h.Neighbor[i] = -1
		if h.Pad[i] == [2]int{} {
			continue
		}
		h.Neighbor[i] = p.NumSemaphores
		if i == active {
			p.need(neighbor, h.Axes[i], Guarded)
			p.Joins[h.Axes[i]] = JoinsLine
		} else {
			p.need(neighbor, h.Axes[i], AfterNeighbourJoin)
			p.Joins[h.Axes[i]] = JoinsNeighbours
		}
	}
	h.Barrier = p.NumSemaphores
	p.need(barrier, p.Axis, AfterLineJoin)
	return nil
}

func planNeighborPad(m Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.NeighborPad)
	if err := checkPaddingMode(op.Mode); err != nil {
		return err
	}
	x := in[0]
	if err := p.halo(m, x, op.Dims, op.Axes, op.PadLeft, op.PadRight, op.NumLinks, messages.PoolNP, messages.PoolBarrier); err != nil {
		return err
	}
	h := &p.Halo
	rows := x.Shape.Dim(h.Dims[0]) * m.Shape.Axis(h.Axes[0])
	if op.LogicalH < 0 || op.LogicalH > rows {
		return fail("logical_h", op.LogicalH, "is 0 (all rows are real) to %d, the rows of the whole dim %d", rows, h.Dims[0])
	}
	out := x
	out.Memory = messages.DRAM
	for i := range h.Count {
		out.Shape = out.Shape.With(h.Dims[i], out.Shape.Dim(h.Dims[i])+h.Pad[i][0]+h.Pad[i][1])
	}
	if op.TFrontPad < 0 || op.TFrontPad > 0 && h.Dims[0] == 0 {
		return fail("t_front_pad", op.TFrontPad, "is not negative, and needs a dim in front of dim %d", h.Dims[0])
	}
	if op.TFrontPad > 0 {
		t := h.Dims[0] - 1
		if h.Count == 2 && h.Dims[1] == t {
			return fail("t_front_pad", op.TFrontPad, "pads dim %d, which is padded by its neighbours already", t)
		}
		out.Shape = out.Shape.With(t, out.Shape.Dim(t)+op.TFrontPad)
	}
	if !op.UsePersistentBuffer {
		p.fresh(out)
		return nil
	}
	key, parts, err := BufferParts(m, messages.BufferKey{Kind: messages.BufferNP, Shape: out.Shape, DType: x.DType})
	if err != nil {
		return err
	}
	p.buffer(key, parts, p.Axis, Guarded)
	p.output(out, out.Shape, 0, 0)
	return nil
}

// interior is the shape of a halo exchange's interior, and its key.
func haloKey(x messages.Spec, h *Halo, inputPad [2]int) (messages.BufferKey, error) {
	s := x.Shape
	key := messages.BufferKey{Kind: messages.BufferNPHalo, DType: x.DType, Dim: h.Dims[0], Pad: h.Pad[0]}
	for i, pad := range inputPad {
		if pad == 0 {
			continue
		}
		if pad < 0 || i >= h.Count {
			return key, fail([]string{"input_pad_h", "input_pad_w"}[i], pad, "is the input's own padding of a dim that is exchanged")
		}
		left := s.Dim(h.Dims[i]) - 2*pad
		if left < max(1, h.Pad[i][0], h.Pad[i][1]) {
			return key, fail([]string{"input_pad_h", "input_pad_w"}[i], pad, "leaves an interior of dim %d, %d long, that holds the halo", h.Dims[i], s.Dim(h.Dims[i]))
		}
		s = s.With(h.Dims[i], left)
	}
	key.Shape = s
	if h.Count == 2 {
		key.HasW, key.Dim2, key.Pad2 = true, h.Dims[1], h.Pad[1]
	}
	return key, nil
}

// checkHW: compact halos lie round the two dims in front of the channels.
func checkHW(x messages.Shape, h *Halo) error {
	if err := checkRank("input", x, 3, 5); err != nil {
		return err
	}
	if h.Count == 1 && h.Dims[0] == x.Rank()-3 || h.Count == 2 && h.Dims[0] == x.Rank()-3 && h.Dims[1] == x.Rank()-2 {
		return nil
	}
	return fail("dims", h.Dims[:h.Count], "are H, or H and W, of [.., H, W, C]: %d, or %d and %d", x.Rank()-3, x.Rank()-3, x.Rank()-2)
}

func planNeighborPadHalo(m Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.NeighborPadHalo)
	if err := checkPaddingMode(op.Mode); err != nil {
		return err
	}
	x, padded := in[0], in[1]
	if err := p.halo(m, x, op.Dims, op.Axes, op.PadLeft, op.PadRight, op.NumLinks, messages.PoolNP, messages.PoolBarrier); err != nil {
		return err
	}
	h := &p.Halo
	if err := checkHW(x.Shape, h); err != nil {
		return err
	}
	key, err := haloKey(x, h, [2]int{op.InputPadH, op.InputPadW})
	if err != nil {
		return err
	}
	interior := key.Shape
	key, parts, err := BufferParts(m, key)
	if err != nil {
		return err
	}
	full := interior
	for i := range h.Count {
		full = full.With(h.Dims[i], full.Dim(h.Dims[i])+h.Pad[i][0]+h.Pad[i][1])
	}
	if op.IntoPadded {
		if present(padded) {
			return fail("padded_output", padded.Shape, "is given or drawn, not both")
		}
		npKey, npParts, err := BufferParts(m, messages.BufferKey{Kind: messages.BufferNP, Shape: full, DType: x.DType})
		if err != nil {
			return err
		}
		p.buffer(npKey, npParts, p.Axis, Guarded)
	}
	if present(padded) && (padded.Shape != full || padded.DType != x.DType || padded.Layout != messages.RowMajor) {
		return fail("padded_output", padded, "is %s %s row_major", full, x.DType)
	}
	p.buffer(key, parts, p.Axis, Guarded)
	p.output(parts[0].Spec, parts[0].Spec.Shape, p.NumBuffers-1, 0)
	if op.IntoPadded {
		p.output(p.Buffers[0].Parts[0].Spec, full, 0, 0)
	}
	return nil
}

func planHaloScatter(_ Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.HaloScatter)
	compact, x := in[0], in[1]
	for _, t := range in[:2] {
		if t.Layout != messages.RowMajor {
			return fail("layout", t.Layout, "is row_major")
		}
	}
	if compact.DType != x.DType {
		return fail("compact dtype", compact.DType, "is that of the tensor, %s", x.DType)
	}
	if err := checkRank("tensor", x.Shape, 3, 5); err != nil {
		return err
	}
	pads := [2][2]int{}
	for i, index := range []messages.Index{op.PadH, op.PadW} {
		if index.Len() != 2 && !(i == 1 && index.Len() == 0) {
			return fail([]string{"pad_h", "pad_w"}[i], index.Ints(), "is a left and a right pad")
		}
		for j := range index.Len() {
			if index.At(j) < 0 {
				return fail([]string{"pad_h", "pad_w"}[i], index.Ints(), "is not negative")
			}
			pads[i][j] = index.At(j)
		}
	}
	h, w := x.Shape.Rank()-3, x.Shape.Rank()-2
	inner, full := x.Shape, x.Shape
	for i, dim := range []int{h, w} {
		sum := pads[i][0] + pads[i][1]
		if op.BorderOnly {
			if inner.Dim(dim) <= sum {
				return fail("tensor", x.Shape, "has an interior within its pads %v and %v", pads[0], pads[1])
			}
			inner = inner.With(dim, inner.Dim(dim)-sum)
		} else {
			full = full.With(dim, full.Dim(dim)+sum)
		}
	}
	_, parts, err := haloParts(messages.BufferKey{Shape: inner, Dim: h, Pad: pads[0], HasW: true, Dim2: w, Pad2: pads[1], DType: x.DType})
	if err != nil {
		return err
	}
	if compact.Shape != parts[0].Spec.Shape {
		return fail("compact", compact.Shape, "is %s, the sticks round %s with pads %v and %v", parts[0].Spec.Shape, inner, pads[0], pads[1])
	}
	p.Halo.Pad = pads
	out := x
	out.Shape = full
	p.fresh(out)
	p.InPlace = op.BorderOnly
	return nil
}
