package axis

import (
	"github.com/meshrun/meshrun/messages"
)

// collective fills in what every collective of one tensor along one dim has: axis, links, topology, and the rank-4 view, since
// the device operations take rank 4. It returns the dim in the view and how many dims the view adds.
func (p *Plan) collective(m Mesh, axis, dim int, in messages.Spec) (viewDim, added int, err error) {
	if err := checkRank("input", in.Shape, 1, 4); err != nil {
		return 0, 0, err
	}
	d, err := checkDim("dim", dim, in.Shape)
	if err != nil {
		return 0, 0, err
	}
	added = 4 - in.Shape.Rank()
	if added > 0 {
		p.Views[0] = in.Shape.Rank4()
	}
	p.Dim = d + added
	p.Axis = axis
	p.NumLinks = m.NumLinks
	p.Topology = m.Topology[axis]
	p.Joins = JoinsLine
	return p.Dim, added, nil
}

// passThrough says whether a collective has nothing to do: no axis, or one of length 1.
func passThrough(m Mesh, axis int) bool {
	return axis == messages.NoAxis || m.Shape.Axis(axis) == 1
}

func planAllGather(m Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.AllGather)
	x := in[0]
	if err := checkMeshAxis(op.MeshAxis); err != nil {
		return err
	}
	if passThrough(m, op.MeshAxis) {
		if _, err := checkDim("dim", op.Dim, x.Shape); err != nil {
			return err
		}
		p.alias(x, x.Shape)
		return nil
	}
	dim, added, err := p.collective(m, op.MeshAxis, op.Dim, x)
	if err != nil {
		return err
	}
	view := x.Shape.Rank4()
	out := messages.Spec{Shape: view.With(dim, view.Dim(dim)*m.Shape.Axis(op.MeshAxis)), DType: x.DType, Layout: x.Layout, Memory: messages.DRAM}
	if op.UseHyperparams {
		p.Hyper = AllGatherHyper(view)
	}
	if op.UsePersistentBuffer {
		key, parts := GatherBuffer(m, view, dim, op.MeshAxis, x.DType)
		// The pool's buffers are tiled, as the reference's are; a row-major input gathers into memory of its own kind.
		if x.Layout != messages.Tile {
			return fail("input layout", x.Layout, "is tile where a persistent buffer is used")
		}
		p.buffer(key, parts)
		p.output(out, out.Shape.Tail(added), 0, 0)
	} else {
		p.need(messages.PoolBarrier, op.MeshAxis)
		p.StartBarrier = true
		p.output(out, out.Shape.Tail(added), Fresh, 0)
	}
	p.need(messages.PoolAG, op.MeshAxis)
	return nil
}

// GatherBuffer is the pool of a gather along dim of a shape (the reference's get_ag_ping_pong_buffer).
func GatherBuffer(m Mesh, shape messages.Shape, dim, axis int, dtype messages.DType) (messages.BufferKey, []messages.Part) {
	key := messages.BufferKey{Kind: messages.BufferAG, Shape: shape, Dim: dim, Axis: axis, DType: dtype}
	out := messages.Spec{Shape: shape.With(dim, shape.Dim(dim)*m.Shape.Axis(axis)), DType: dtype, Layout: messages.Tile, Memory: messages.DRAM}
	return key, []messages.Part{{Spec: out}}
}

func planReduceScatter(m Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.ReduceScatter)
	x := in[0]
	if err := checkMeshAxis(op.MeshAxis); err != nil {
		return err
	}
	if passThrough(m, op.MeshAxis) {
		if _, err := checkDim("dim", op.Dim, x.Shape); err != nil {
			return err
		}
		p.alias(x, x.Shape)
		return nil
	}
	switch x.DType {
	case messages.UInt16, messages.UInt8:
		return fail("input dtype", x.DType, "is not summed; use bfloat16, float32, uint32 or int32")
	}
	dim, added, err := p.collective(m, op.MeshAxis, op.Dim, x)
	if err != nil {
		return err
	}
	view := x.Shape.Rank4()
	n := m.Shape.Axis(op.MeshAxis)
	if view.Dim(dim)%n != 0 {
		return fail("input dim "+describe("%d", dim-added), view.Dim(dim), "divides by the length %d of axis %d", n, op.MeshAxis)
	}
	out := messages.Spec{Shape: view.With(dim, view.Dim(dim)/n), DType: x.DType, Layout: x.Layout, Memory: messages.DRAM}
	p.Hyper = ReduceScatterHyper()
	if op.UsePersistentBuffer {
		if x.Layout != messages.Tile {
			return fail("input layout", x.Layout, "is tile where a persistent buffer is used")
		}
		key, parts := ScatterBuffer(m, view, dim, op.MeshAxis, x.DType, messages.Both)
		p.buffer(key, parts)
		p.output(out, out.Shape.Tail(added), 0, len(parts)-1)
	} else {
		p.need(messages.PoolBarrier, op.MeshAxis)
		p.StartBarrier = true
		p.output(out, out.Shape.Tail(added), Fresh, 0)
	}
	p.need(messages.PoolRS, op.MeshAxis)
	return nil
}

// ScatterBuffer is the pool of a reduce-scatter along dim of a shape (get_rs_ping_pong_buffer). The intermediate has the input's
// shape on a ring; on a line it stages both directions: the rank-4 view of the input with dim 0 doubled.
func ScatterBuffer(m Mesh, shape messages.Shape, dim, axis int, dtype messages.DType, which messages.Parts) (messages.BufferKey, []messages.Part) {
	key := messages.BufferKey{Kind: messages.BufferRS, Shape: shape, Dim: dim, Axis: axis, DType: dtype, Parts: which}
	spec := messages.Spec{DType: dtype, Layout: messages.Tile, Memory: messages.DRAM}
	var parts []messages.Part
	if which != messages.OutputOnly {
		spec.Shape = shape
		if m.Topology[axis] == messages.Linear {
			r4 := shape.Rank4()
			spec.Shape = r4.With(0, r4.Dim(0)*2)
		}
		parts = append(parts, messages.Part{Name: "intermediate", Spec: spec})
	}
	if which != messages.IntermediateOnly {
		spec.Shape = shape.With(dim, shape.Dim(dim)/m.Shape.Axis(axis))
		parts = append(parts, messages.Part{Name: "output", Spec: spec})
	}
	return key, parts
}

func planFusedNorm(m Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.FusedDistributedNorm)
	x, weight, bias, cos, sin := in[0], in[1], in[2], in[3], in[4]
	if err := checkMeshAxis(op.MeshAxis); err != nil {
		return err
	}
	if err := checkFloats([]string{"input", "weight", "bias", "rope_cos", "rope_sin"}, in); err != nil {
		return err
	}
	if err := checkRank("input", x.Shape, 4, 4); err != nil {
		return err
	}
	if x.Shape.Dim(1) != 1 {
		return fail("input", x.Shape, "is [B, 1, N, W]")
	}
	if op.Epsilon < 0 {
		return fail("epsilon", op.Epsilon, "is not negative")
	}
	if err := checkAffine(x, weight, bias); err != nil {
		return err
	}
	heads := max(op.NumHeads, 1)
	width := x.Shape.Dim(3)
	if op.NumHeads < 0 || width%heads != 0 {
		return fail("num_heads", op.NumHeads, "is positive and divides the width %d", width)
	}
	out := x
	out.Memory = messages.DRAM
	out.Shape = messages.ShapeOf(x.Shape.Dim(0), heads, x.Shape.Dim(2), width/heads)
	if present(cos) != present(sin) {
		return fail("rope", "one of cos and sin", "is both or none")
	}
	if present(cos) {
		for i, t := range []messages.Spec{cos, sin} {
			field := []string{"rope_cos", "rope_sin"}[i]
			if err := checkRopeTable(field, out.Shape, t.Shape); err != nil {
				return err
			}
		}
	}
	p.fresh(out)
	p.Axis = op.MeshAxis
	if passThrough(m, op.MeshAxis) {
		p.Axis = messages.NoAxis
		return nil
	}
	p.NumLinks, p.Topology, p.Joins = m.NumLinks, m.Topology[op.MeshAxis], JoinsLine
	key, parts := StatsBuffer(m, x.Shape, op.RMS, op.MeshAxis)
	p.buffer(key, parts)
	p.need(messages.PoolAG, op.MeshAxis)
	return nil
}

// StatsBuffer is the pool of the gathered statistics of a norm over a sharded width: per row and device of the line the sum of
// squares (RMS), or mean and sum of squared deviations (layer norm), in float32.
func StatsBuffer(m Mesh, input messages.Shape, rms bool, axis int) (messages.BufferKey, []messages.Part) {
	kind, values := "ln", 2
	if rms {
		kind, values = "rms", 1
	}
	rows := int(input.Elements()) / input.Dim(-1)
	spec := messages.Spec{Shape: messages.ShapeOf(1, 1, rows, values*m.Shape.Axis(axis)), DType: messages.Float32, Layout: messages.RowMajor, Memory: messages.DRAM}
	key := messages.BufferKey{Kind: messages.BufferNormStats, Axis: axis, Shape: spec.Shape, DType: spec.DType, Text: describe("%s,rows=%d,axis=%d", kind, rows, axis)}
	return key, []messages.Part{{Spec: spec}}
}

func planRingSDPA(m Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.RingJointSDPA)
	q, k, v, jq, jk, jv := in[0], in[1], in[2], in[3], in[4], in[5]
	if err := checkMeshAxis(op.MeshAxis); err != nil {
		return err
	}
	if op.MeshAxis == messages.NoAxis {
		return fail("mesh_axis", "none", "is 0 or 1; use sdpa where the sequence is whole")
	}
	if err := checkFloats([]string{"q", "k", "v", "joint_q", "joint_k", "joint_v"}, in); err != nil {
		return err
	}
	if err := checkAttention(q, k, v); err != nil {
		return err
	}
	if k.Shape.Dim(2) != q.Shape.Dim(2) {
		return fail("k", k.Shape, "has as many rows as q, %s", q.Shape)
	}
	if present(jq) != present(jk) || present(jk) != present(jv) {
		return fail("joint tensors", "some", "are all three or none")
	}
	n := m.Shape.Axis(op.MeshAxis)
	total := q.Shape.Dim(2) * n
	if op.LogicalN < 0 || op.LogicalN > total {
		return fail("logical_n", op.LogicalN, "is 0 (all) to %d, the rows of the whole sequence", total)
	}
	out := q
	out.Memory = messages.DRAM
	p.fresh(out)
	if present(jq) {
		want := q.Shape.With(2, jq.Shape.Dim(-2))
		for i, t := range []messages.Spec{jq, jk, jv} {
			if err := mustEqual([]string{"joint_q", "joint_k", "joint_v"}[i], t.Shape, want, "q's batch, heads and head dim"); err != nil {
				return err
			}
		}
		jout := jq
		jout.Memory = messages.DRAM
		p.fresh(jout)
	}
	p.Axis = op.MeshAxis
	p.Dim = 2
	p.NumLinks, p.Topology = m.NumLinks, m.Topology[op.MeshAxis]
	if n == 1 {
		return nil // nothing travels: plain attention, nothing is drawn
	}
	p.Joins = JoinsLine
	for _, role := range []messages.Role{messages.RoleK, messages.RoleV} {
		t := k
		if role == messages.RoleV {
			t = v
		}
		key, parts := GatherBuffer(m, t.Shape, 2, op.MeshAxis, t.DType)
		key.Role = role
		p.buffer(key, parts)
	}
	p.need(messages.PoolAG, op.MeshAxis)
	return nil
}

func planGetSemaphores(_ Mesh, operation messages.Operation, _ []messages.Spec, p *Plan) error {
	op := operation.(messages.GetSemaphores)
	if op.MeshAxis != 0 && op.MeshAxis != 1 {
		return fail("mesh_axis", op.MeshAxis, "is 0 or 1")
	}
	p.Axis = op.MeshAxis
	p.need(op.Pool, op.MeshAxis)
	return nil
}

func planGetBuffers(m Mesh, operation messages.Operation, _ []messages.Spec, p *Plan) error {
	key := operation.(messages.GetBuffers).Key
	if key.Axis != 0 && key.Axis != 1 {
		return fail("mesh_axis", key.Axis, "is 0 or 1")
	}
	dim, err := checkDim("dim", key.Dim, key.Shape)
	if err != nil {
		return err
	}
	if key.DType == messages.DTypeUnset {
		key.DType = messages.BFloat16
	}
	var parts []messages.Part
	switch key.Kind {
	case messages.BufferAG:
		key, parts = GatherBuffer(m, key.Shape, dim, key.Axis, key.DType)
	case messages.BufferRS:
		if n := m.Shape.Axis(key.Axis); key.Shape.Dim(dim)%n != 0 {
			return fail(describe("shape dim %d", dim), key.Shape.Dim(dim), "divides by the length %d of axis %d", n, key.Axis)
		}
		key, parts = ScatterBuffer(m, key.Shape, dim, key.Axis, key.DType, key.Parts)
	default:
		return fail("buffer", key, "is a gather or reduce-scatter buffer")
	}
	p.Axis = key.Axis
	p.buffer(key, parts)
	for i, part := range parts {
		p.output(part.Spec, part.Spec.Shape, 0, i)
	}
	return nil
}
