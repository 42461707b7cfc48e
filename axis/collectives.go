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
	p.Joins[axis] = JoinsLine
	return p.Dim, added, nil
}

// barrier draws the start barrier of an operation over the lines of an axis; it answers for everything else that the operation uses on
// the axis.
func (p *Plan) barrier(axis int) { p.need(messages.PoolBarrier, axis, AfterLineJoin) }

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
	if err := checkWholeBlocks(x, dim-added); err != nil {
		return err
	}
	out := messages.Spec{Shape: view.With(dim, view.Dim(dim)*m.Shape.Axis(op.MeshAxis)), DType: x.DType, Layout: x.Layout, Memory: messages.DRAM}
	if op.UseHyperparams {
		p.Hyper = AllGatherHyper(view)
	}
	pool, kind := messages.PoolAG, messages.BufferAG
	if op.FSDP {
		pool, kind = messages.PoolFSDP, messages.BufferFSDP
	}
	if !op.UsePersistentBuffer {
		if op.Capacity != 0 {
			return fail("capacity", op.Capacity, "is of a persistent buffer; use one or leave it out")
		}
		p.barrier(op.MeshAxis)
		p.need(pool, op.MeshAxis, Guarded)
		p.output(out, out.Shape.Tail(added), Fresh, 0)
		return nil
	}
	// The pool's buffers are tiled, as the reference's are.
	if x.Layout != messages.Tile {
		return fail("input layout", x.Layout, "is tile where a persistent buffer is used")
	}
	key := messages.BufferKey{Kind: kind, Shape: view, Dim: dim, Axis: op.MeshAxis, DType: x.DType}
	if op.Capacity != 0 {
		if op.Capacity < out.Shape.Dim(dim) {
			return fail("capacity", op.Capacity, "is at least %d, the gathered length of dim %d", out.Shape.Dim(dim), dim-added)
		}
		key.Shape, key.Capacity = view.With(dim, 1), op.Capacity
	}
	key, parts, err := BufferParts(m, key)
	if err != nil {
		return err
	}
	p.buffer(key, parts, op.MeshAxis, AfterLineJoin)
	p.need(pool, op.MeshAxis, AfterLineJoin)
	p.output(out, out.Shape.Tail(added), 0, 0)
	return nil
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
	if !op.DriverHyperparams {
		p.Hyper = ReduceScatterHyper()
	}
	if op.UsePersistentBuffer {
		if x.Layout != messages.Tile {
			return fail("input layout", x.Layout, "is tile where a persistent buffer is used")
		}
		key, parts, err := BufferParts(m, messages.BufferKey{Kind: messages.BufferRS, Shape: view, Dim: dim, Axis: op.MeshAxis, DType: x.DType})
		if err != nil {
			return err
		}
		p.buffer(key, parts, op.MeshAxis, AfterLineJoin)
		p.need(messages.PoolRS, op.MeshAxis, AfterLineJoin)
		p.output(out, out.Shape.Tail(added), 0, 1)
		return nil
	}
	p.barrier(op.MeshAxis)
	p.need(messages.PoolRS, op.MeshAxis, Guarded)
	p.output(out, out.Shape.Tail(added), Fresh, 0)
	return nil
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
	if err := checkEpsilon(op.Epsilon); err != nil {
		return err
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
	p.NumLinks, p.Topology, p.Joins[op.MeshAxis] = m.NumLinks, m.Topology[op.MeshAxis], JoinsLine
	key, parts, err := BufferParts(m, StatsKey(m, x.Shape, op))
	if err != nil {
		return err
	}
	p.buffer(key, parts, op.MeshAxis, AfterLineJoin)
	p.need(messages.PoolAG, op.MeshAxis, AfterLineJoin)
	return nil
}

// ringAttention is what the two kinds of ring attention have in common.
type ringAttention struct {
	axis, logicalN int
	scale          float32
	pool           messages.Pool
}

func planRingSDPA(m Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	var op ringAttention
	switch o := operation.(type) {
	case messages.RingJointSDPA:
		op = ringAttention{o.MeshAxis, o.LogicalN, o.Scale, messages.PoolAG}
	case messages.ExpRingJointSDPA:
		op = ringAttention{o.MeshAxis, o.LogicalN, o.Scale, messages.PoolExpRing}
	}
	q, k, v, jq, jk, jv := in[0], in[1], in[2], in[3], in[4], in[5]
	if err := checkMeshAxis(op.axis); err != nil {
		return err
	}
	if op.axis == messages.NoAxis {
		return fail("mesh_axis", "none", "is 0 or 1; use sdpa where the sequence is whole")
	}
	if err := checkFloats([]string{"q", "k", "v", "joint_q", "joint_k", "joint_v"}, in); err != nil {
		return err
	}
	if err := checkAttention(q, k, v, op.scale); err != nil {
		return err
	}
	if k.Shape.Dim(2) != q.Shape.Dim(2) {
		return fail("k", k.Shape, "has as many rows as q, %s", q.Shape)
	}
	if present(jq) != present(jk) || present(jk) != present(jv) {
		return fail("joint tensors", "some", "are all three or none")
	}
	n := m.Shape.Axis(op.axis)
	total := q.Shape.Dim(2) * n
	if op.logicalN < 0 || op.logicalN > total {
		return fail("logical_n", op.logicalN, "is 0 (all) to %d, the rows of the whole sequence", total)
	}
	p.fresh(q)
	if present(jq) {
		want := q.Shape.With(2, jq.Shape.Dim(-2))
		for i, t := range []messages.Spec{jq, jk, jv} {
			if err := mustEqual([]string{"joint_q", "joint_k", "joint_v"}[i], t.Shape, want, "q's batch, heads and head dim"); err != nil {
				return err
			}
		}
		p.fresh(jq)
	}
	p.Axis = op.axis
	p.Dim = 2
	p.NumLinks, p.Topology = m.NumLinks, m.Topology[op.axis]
	if n == 1 {
		return nil // nothing travels: plain attention, nothing is drawn
	}
	p.Joins[op.axis] = JoinsLine
	for i, role := range []messages.Role{messages.RoleK, messages.RoleV} {
		t := in[1+i]
		if t.Layout != messages.Tile {
			return fail([]string{"k layout", "v layout"}[i], t.Layout, "is tile: it is gathered into a persistent buffer")
		}
		key, parts, err := BufferParts(m, messages.BufferKey{Kind: messages.BufferAG, Shape: t.Shape, Dim: 2, Axis: op.axis, DType: t.DType, Role: role})
		if err != nil {
			return err
		}
		p.buffer(key, parts, op.axis, AfterLineJoin)
	}
	p.need(op.pool, op.axis, AfterLineJoin)
	return nil
}

func planSliceReshard(m Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.SliceReshard)
	x := in[0]
	if op.MeshAxis != 0 && op.MeshAxis != 1 {
		return fail("mesh_axis", op.MeshAxis, "is 0 or 1")
	}
	if err := checkRank("input", x.Shape, 1, 5); err != nil {
		return err
	}
	if op.Dim != 0 && op.Dim != -x.Shape.Rank() {
		return fail("dim", op.Dim, "is 0")
	}
	if x.Layout != messages.RowMajor {
		return fail("input layout", x.Layout, "is row_major")
	}
	n := m.Shape.Axis(op.MeshAxis)
	if op.Offset < 0 {
		return fail("output_dim_offset", op.Offset, "is not negative")
	}
	if op.Size < 1 || op.Size%n != 0 {
		return fail("output_dim_shape", op.Size, "is positive and divides by the length %d of axis %d", n, op.MeshAxis)
	}
	out := x
	out.Shape = x.Shape.With(0, op.Size/n)
	p.fresh(out)
	p.Axis = op.MeshAxis
	p.NumLinks, p.Topology, p.Joins[op.MeshAxis] = m.NumLinks, m.Topology[op.MeshAxis], JoinsLine
	p.need(messages.PoolSR, op.MeshAxis, Guarded)
	p.barrier(op.MeshAxis)
	return nil
}

func planPointToPoint(m Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	pairs := operation.(messages.PointToPoint).Pairs()
	if len(pairs) == 0 {
		return fail("pairs", "none", "are 1 to %d", messages.MaxPairs)
	}
	axis := messages.NoAxis
	receivers, senders := map[messages.Coord]bool{}, map[messages.Coord]bool{}
	for _, pair := range pairs {
		for _, c := range []messages.Coord{pair.From, pair.To} {
			if c.Row >= m.Shape.Rows || c.Col >= m.Shape.Cols {
				return fail("pairs", c, "lie on the mesh %s", m.Shape)
			}
		}
		a := 0
		if pair.From.Row == pair.To.Row {
			a = 1
		}
		if pair.From == pair.To || pair.From.Row != pair.To.Row && pair.From.Col != pair.To.Col {
			return fail("pairs", describe("%v to %v", pair.From, pair.To), "are two devices of one line")
		}
		if axis != messages.NoAxis && axis != a {
			return fail("pairs", describe("%v to %v", pair.From, pair.To), "all cross the same axis")
		}
		if receivers[pair.To] || senders[pair.From] {
			return fail("pairs", describe("%v to %v", pair.From, pair.To), "name each sender and each receiver once")
		}
		axis, receivers[pair.To], senders[pair.From] = a, true, true
	}
	p.fresh(in[0])
	p.Axis = axis
	p.NumLinks, p.Topology, p.Joins[axis] = m.NumLinks, m.Topology[axis], JoinsLine
	p.need(messages.PoolSR, axis, Guarded)
	p.barrier(axis)
	return nil
}
