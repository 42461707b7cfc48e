package axis

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/messages"
)

func rows(dims ...int) messages.Spec {
	s := bf16(dims...)
	s.Layout = messages.RowMajor
	return s
}

func idx(t *testing.T, v ...int) messages.Index {
	t.Helper()
	i, err := messages.IndexOf(v...)
	require.NoError(t, err)
	return i
}

// TestHaloDraws: the neighbour semaphores of each axis with a pad, in order, then the barrier of the first of them; what its own barrier and
// handshake answer for (design 6 and rule 4).
func TestHaloDraws(t *testing.T) {
	m := mesh(t, 2, 4, 2, messages.Ring)
	pad := func(axes, left, right []int, persistent bool) *Plan {
		t.Helper()
		p, err := Make(m, messages.NeighborPad{Dims: idx(t, 2, 3), Axes: idx(t, axes...), PadLeft: idx(t, left...), PadRight: idx(t, right...), UsePersistentBuffer: persistent}, []messages.Spec{rows(1, 3, 8, 6, 16)})
		require.NoError(t, err)
		return p
	}
	p := pad([]int{1, 0}, []int{1, 2}, []int{1, 0}, true)
	assert.Equal(t, []SemaphoreNeed{
		{Pool: messages.PoolNP, Axis: 1, Reuse: Guarded},
		{Pool: messages.PoolNP, Axis: 0, Reuse: AfterNeighbourJoin},
		{Pool: messages.PoolBarrier, Axis: 1, Reuse: AfterLineJoin},
	}, p.Semaphores[:p.NumSemaphores])
	assert.Equal(t, [2]Scope{JoinsNeighbours, JoinsLine}, p.Joins)
	assert.Equal(t, messages.Linear, p.Topology, "a halo exchange always runs along lines")
	assert.Equal(t, messages.ShapeOf(1, 3, 10, 8, 16), p.Outputs[0].Shape)
	assert.Equal(t, "np(shape=[1, 3, 10, 8, 16],dtype=bfloat16)", p.Buffers[0].Key.String())
	assert.Equal(t, Guarded, p.Buffers[0].Reuse)
	assert.True(t, p.Buffers[0].Parts[0].Zeroed)

	p = pad([]int{0, 1}, []int{0, 1}, []int{0, 0}, false)
	assert.Equal(t, []SemaphoreNeed{{Pool: messages.PoolNP, Axis: 1, Reuse: Guarded}, {Pool: messages.PoolBarrier, Axis: 1, Reuse: AfterLineJoin}},
		p.Semaphores[:p.NumSemaphores], "an axis where both pads are 0 draws nothing, and the barrier is that of the first with a pad")
	assert.Equal(t, [2]int{-1, 0}, p.Halo.Neighbor)
}

// TestHaloRefusals: everything that breaks a rule says which.
func TestHaloRefusals(t *testing.T) {
	m := mesh(t, 2, 4, 2, messages.Ring)
	x := rows(2, 3, 8, 6, 16)
	for _, c := range []struct {
		dims, axes, left, right, links []int
		logicalH, front                int
		in                             messages.Spec
		want                           string
	}{
		{dims: []int{2}, axes: []int{0}, left: []int{9}, right: []int{1}, in: x, want: "pad_left 9: is at most 8"},
		{dims: []int{2}, axes: []int{0}, left: []int{-1}, right: []int{1}, in: x, want: "pad_left -1"},
		{dims: []int{2}, axes: []int{0}, left: []int{0}, right: []int{0}, in: x, want: "pad on some side"},
		{dims: []int{5}, axes: []int{0}, left: []int{1}, right: []int{1}, in: x, want: "dims 5: is a dim of"},
		{dims: []int{2}, axes: []int{2}, left: []int{1}, right: []int{1}, in: x, want: "axes 2"},
		{dims: []int{2, 2}, axes: []int{0, 1}, left: []int{1, 1}, right: []int{1, 1}, in: x, want: "two different dims"},
		{dims: []int{2, 3}, axes: []int{0, 0}, left: []int{1, 1}, right: []int{1, 1}, in: x, want: "two different axes"},
		{dims: []int{2, 3}, axes: []int{0}, left: []int{1, 1}, right: []int{1, 1}, in: x, want: "axes [0]: has a number for each"},
		{dims: []int{1, 2, 3}, axes: []int{0, 1, 0}, left: []int{1, 1, 1}, right: []int{1, 1, 1}, in: x, want: "are one or two"},
		{dims: []int{2}, axes: []int{0}, left: []int{1}, right: []int{1}, links: []int{3}, in: x, want: "num_links 3: is 1 to 2"},
		{dims: []int{0}, axes: []int{0}, left: []int{1}, right: []int{1}, links: []int{2}, in: x, want: "num_links 2: is at most 1, the product of the dims before"},
		{dims: []int{2}, axes: []int{0}, left: []int{1}, right: []int{1}, logicalH: 17, in: x, want: "logical_h 17: is 0 (all rows are real) to 16"},
		{dims: []int{0}, axes: []int{0}, left: []int{1}, right: []int{1}, front: 1, in: x, want: "t_front_pad 1"},
		{dims: []int{2}, axes: []int{0}, left: []int{1}, right: []int{1}, in: bf16(2, 3, 8, 6, 16), want: "input layout tile: is row_major"},
	} {
		op := messages.NeighborPad{Dims: idx(t, c.dims...), Axes: idx(t, c.axes...), PadLeft: idx(t, c.left...), PadRight: idx(t, c.right...), NumLinks: idx(t, c.links...), LogicalH: c.logicalH, TFrontPad: c.front}
		_, err := Make(m, op, []messages.Spec{c.in})
		require.ErrorIs(t, err, messages.ErrInvalid, c.want)
		require.ErrorContains(t, err, c.want)
	}
}

// TestCompactHalo: sticks of the compact buffer, left and right pads counted separately, from the interior of a padded input too.
func TestCompactHalo(t *testing.T) {
	m := mesh(t, 2, 4, 1, messages.TopologyUnset)
	halo := func(op messages.NeighborPadHalo, x messages.Spec) *Plan {
		t.Helper()
		p, err := Make(m, op, []messages.Spec{x})
		require.NoError(t, err)
		return p
	}
	both := messages.NeighborPadHalo{Dims: idx(t, 2, 3), Axes: idx(t, 0, 1), PadLeft: idx(t, 1, 1), PadRight: idx(t, 1, 1)}
	p := halo(both, rows(1, 1, 16, 16, 16))
	assert.Equal(t, messages.ShapeOf(68, 16), p.Outputs[0].Shape, "2·16 + 2·18 sticks, as recorded")
	assert.Equal(t, "np_halo(shape=[1, 1, 16, 16, 16],dim=2,pad=1,dim2=3,pad2=1,dtype=bfloat16)", p.Buffers[0].Key.String())

	both.InputPadH, both.InputPadW = 1, 1
	assert.Equal(t, p.Buffers[0].Key, halo(both, rows(1, 1, 18, 18, 16)).Buffers[0].Key, "sized by the interior")

	one := messages.NeighborPadHalo{Dims: idx(t, 2), Axes: idx(t, 1), PadLeft: idx(t, 2), PadRight: idx(t, 0)}
	p = halo(one, rows(1, 3, 8, 6, 16))
	assert.Equal(t, messages.ShapeOf(3*2*6, 16), p.Outputs[0].Shape)
	assert.Equal(t, "np_halo(shape=[1, 3, 8, 6, 16],dim=2,pad=[2,0],dim2=None,pad2=0,dtype=bfloat16)", p.Buffers[0].Key.String())

	into := both
	into.InputPadH, into.InputPadW, into.IntoPadded = 0, 0, true
	p = halo(into, rows(1, 1, 16, 16, 16))
	assert.Equal(t, messages.ShapeOf(1, 1, 18, 18, 16), p.Outputs[1].Shape)
	assert.Equal(t, 2, p.NumBuffers)

	for want, op := range map[string]messages.NeighborPadHalo{
		"are H, or H and W": {Dims: idx(t, 1, 2), Axes: idx(t, 0, 1), PadLeft: idx(t, 1, 1), PadRight: idx(t, 1, 1)},
		"input_pad_h":       {Dims: idx(t, 2), Axes: idx(t, 0), PadLeft: idx(t, 1), PadRight: idx(t, 1), InputPadH: 8},
		"input_pad_w":       {Dims: idx(t, 2), Axes: idx(t, 0), PadLeft: idx(t, 1), PadRight: idx(t, 1), InputPadW: 1},
	} {
		_, err := Make(m, op, []messages.Spec{rows(1, 1, 16, 16, 16)})
		require.ErrorContains(t, err, want)
	}

	scatter := messages.HaloScatter{PadH: idx(t, 1, 1), PadW: idx(t, 1, 1), BorderOnly: true}
	p, err := Make(m, scatter, []messages.Spec{rows(68, 16), rows(1, 1, 18, 18, 16)})
	require.NoError(t, err)
	assert.True(t, p.InPlace)
	scatter.BorderOnly = false
	p, err = Make(m, scatter, []messages.Spec{rows(68, 16), rows(1, 1, 16, 16, 16)})
	require.NoError(t, err)
	assert.Equal(t, messages.ShapeOf(1, 1, 18, 18, 16), p.Outputs[0].Shape)
	_, err = Make(m, scatter, []messages.Spec{rows(67, 16), rows(1, 1, 16, 16, 16)})
	require.ErrorContains(t, err, "compact [67, 16]: is [68, 16]")
}

// TestSliceReshard: field case A26.
func TestSliceReshard(t *testing.T) {
	m := mesh(t, 1, 4, 1, messages.TopologyUnset)
	x := rows(3, 2, 3, 4)
	p, err := Make(m, messages.SliceReshard{Offset: 2, Size: 8, MeshAxis: 1}, []messages.Spec{x})
	require.NoError(t, err)
	assert.Equal(t, messages.ShapeOf(2, 2, 3, 4), p.Outputs[0].Shape)
	assert.Equal(t, messages.PoolSR, p.Semaphores[0].Pool)
	for want, c := range map[string]struct {
		op messages.SliceReshard
		in messages.Spec
	}{
		"output_dim_shape 10": {messages.SliceReshard{Offset: 2, Size: 10, MeshAxis: 1}, x},
		"output_dim_shape 0":  {messages.SliceReshard{Offset: 2, MeshAxis: 1}, x},
		"output_dim_offset":   {messages.SliceReshard{Offset: -1, Size: 8, MeshAxis: 1}, x},
		"dim 1":               {messages.SliceReshard{Dim: 1, Size: 8, MeshAxis: 1}, x},
		"is row_major":        {messages.SliceReshard{Size: 8, MeshAxis: 1}, bf16(3, 2, 3, 4)},
		"mesh_axis":           {messages.SliceReshard{Size: 8, MeshAxis: messages.NoAxis}, x},
	} {
		_, err := Make(m, c.op, []messages.Spec{c.in})
		require.ErrorContains(t, err, want)
	}
}

// TestPointToPoint: pairs of one line each, all across one axis.
func TestPointToPoint(t *testing.T) {
	m := mesh(t, 2, 4, 1, messages.TopologyUnset)
	pair := func(a, b, c, d int) messages.Pair {
		return messages.Pair{From: messages.Coord{Row: a, Col: b}, To: messages.Coord{Row: c, Col: d}}
	}
	make := func(pairs ...messages.Pair) (*Plan, error) {
		op, err := messages.NewPointToPoint(pairs...)
		require.NoError(t, err)
		return Make(m, op, []messages.Spec{bf16(1, 1, 32, 64)})
	}
	p, err := make(pair(0, 0, 0, 2), pair(1, 3, 1, 1))
	require.NoError(t, err)
	assert.Equal(t, 1, p.Axis)
	assert.Equal(t, JoinsLine, p.Joins[1])
	for want, pairs := range map[string][]messages.Pair{
		"two devices of one line": {pair(0, 0, 1, 1)},
		"cross the same axis":     {pair(0, 0, 0, 1), pair(0, 2, 1, 2)},
		"once":                    {pair(0, 0, 0, 1), pair(0, 0, 0, 2)},
		"lie on the mesh":         {pair(0, 0, 0, 4)},
	} {
		_, err := make(pairs...)
		require.ErrorContains(t, err, want)
	}
	_, err = messages.NewPointToPoint()
	require.ErrorIs(t, err, messages.ErrInvalid)
}

// TestFusedRules: what the fused operations draw and refuse.
func TestFusedRules(t *testing.T) {
	ring, line := mesh(t, 1, 4, 2, messages.Ring), mesh(t, 1, 4, 2, messages.Linear)
	ring.Grid, line.Grid = [2]int{8, 7}, [2]int{8, 7}
	p, err := Make(ring, messages.StridedAllGatherMatmul{MeshAxis: 1, NumWorkersPerLink: 3}, []messages.Spec{bf16(1, 1, 64, 32), bf16(128, 96)})
	require.NoError(t, err)
	assert.Equal(t, SemaphoreNeed{Pool: messages.PoolStridedAGMM, Axis: 1, Workers: 3, Reuse: AfterLineJoin}, p.Semaphores[0])
	assert.Equal(t, messages.ShapeOf(1, 1, 64, 96), p.Outputs[0].Shape)
	assert.Equal(t, "ag(shape=[1, 1, 64, 32],dim=3,axis=1,dtype=bfloat16)", p.Buffers[0].Key.String())

	scatter := messages.MatmulStridedReduceScatter{MeshAxis: 1, UsePersistentBuffer: true, Credits: true}
	in := []messages.Spec{bf16(1, 1, 64, 32), bf16(32, 96), bf16(24), bf16(1, 1, 64, 24), bf16(1, 1, 1, 24)}
	p, err = Make(ring, scatter, in)
	require.NoError(t, err)
	assert.Equal(t, messages.ShapeOf(1, 1, 64, 24), p.Outputs[0].Shape)
	assert.Equal(t, []string{"mm_progress", "mm_credit", "rs(shape=[1, 1, 64, 96],dim=3,axis=1,parts=output)"},
		[]string{p.Buffers[0].Key.String(), p.Buffers[1].Key.String(), p.Buffers[2].Key.String()})
	assert.Equal(t, []Reuse{AfterRetirement, AfterRetirement, AfterLineJoin}, []Reuse{p.Buffers[0].Reuse, p.Buffers[1].Reuse, p.Buffers[2].Reuse})
	assert.Equal(t, messages.ShapeOf(56, 56), p.Buffers[0].Parts[0].Spec.Shape, "one row of slots per core")
	assert.Equal(t, messages.L1, p.Buffers[0].Parts[0].Spec.Memory)
	_, err = Make(line, scatter, in)
	require.ErrorContains(t, err, "runs on rings only")
	_, err = Make(ring, scatter, in[:4])
	require.ErrorContains(t, err, "both or none")

	p, err = Make(ring, messages.ExpRingJointSDPA{MeshAxis: 1}, []messages.Spec{bf16(1, 2, 32, 8), bf16(1, 2, 32, 8), bf16(1, 2, 32, 8)})
	require.NoError(t, err)
	assert.Equal(t, messages.PoolExpRing, p.Semaphores[0].Pool)
	assert.Equal(t, "ag(shape=[1, 2, 32, 8],dim=2,axis=1,dtype=bfloat16,role=k)", p.Buffers[0].Key.String())

	conv := messages.Conv3D{Kernel: [3]int{3, 3, 3}, Padding: [3]int{0, 1, 1}}
	p, err = Make(ring, conv, []messages.Spec{rows(1, 5, 8, 6, 4), bf16(27*4, 16), bf16(1, 16)})
	require.NoError(t, err)
	assert.Equal(t, messages.ShapeOf(1, 3, 8, 6, 16), p.Outputs[0].Shape)
	_, err = Make(ring, conv, []messages.Spec{rows(1, 2, 8, 6, 4), bf16(27*4, 16)})
	require.ErrorContains(t, err, "kernel of T 3: fits into the padded extent 2")
	_, err = Make(ring, conv, []messages.Spec{rows(1, 5, 8, 6, 4), bf16(27*5, 16)})
	require.ErrorContains(t, err, "weight [135, 16]: is [27 taps x 4 channels")
	_, err = Make(ring, conv, []messages.Spec{rows(1, 5, 8, 6, 4), bf16(27*4, 16), {}, rows(3, 4)})
	require.ErrorContains(t, err, "halo [3, 4]")

	p, err = Make(mesh(t, 2, 4, 2, messages.Ring), messages.NPConv3D{Axes: [2]int{0, 1}, Kernel: [3]int{1, 3, 3}, Padding: [3]int{0, 1, 1}}, []messages.Spec{rows(1, 3, 8, 6, 4), bf16(9*4, 16)})
	require.NoError(t, err)
	assert.Equal(t, []SemaphoreNeed{
		{Pool: messages.PoolNPFused, Axis: 0, Reuse: Guarded}, {Pool: messages.PoolNPFused, Axis: 1, Reuse: AfterNeighbourJoin},
		{Pool: messages.PoolBarrierFused, Axis: 0, Reuse: AfterLineJoin}, {Pool: messages.PoolNPRegion, Axis: 0, Reuse: AfterRetirement},
	}, p.Semaphores[:p.NumSemaphores])
}

// TestCapacity: one persistent buffer serves every shape up to its capacity; it is keyed by what it holds, not by who asks.
func TestCapacity(t *testing.T) {
	m := mesh(t, 1, 4, 1, messages.Ring)
	op := messages.AllGather{Dim: 2, MeshAxis: 1, UsePersistentBuffer: true, Capacity: 512}
	var keys []messages.BufferKey
	for _, rows := range []int{32, 96, 128} {
		p, err := Make(m, op, []messages.Spec{bf16(1, 1, rows, 64)})
		require.NoError(t, err)
		keys = append(keys, p.Buffers[0].Key)
		assert.Equal(t, messages.ShapeOf(1, 1, 512, 64), p.Buffers[0].Parts[0].Spec.Shape)
		assert.Equal(t, messages.ShapeOf(1, 1, rows*4, 64), p.Outputs[0].Shape)
	}
	assert.Equal(t, keys[0], keys[1])
	assert.Equal(t, keys[0], keys[2])
	_, err := Make(m, op, []messages.Spec{bf16(1, 1, 129, 64)})
	require.ErrorContains(t, err, "capacity 512: is at least 516")
	op.UsePersistentBuffer = false
	_, err = Make(m, op, []messages.Spec{bf16(1, 1, 32, 64)})
	require.ErrorContains(t, err, "persistent buffer")
	op = messages.AllGather{Dim: 2, MeshAxis: 1, UsePersistentBuffer: true, FSDP: true}
	p, err := Make(m, op, []messages.Spec{bf16(1, 1, 32, 64)})
	require.NoError(t, err)
	assert.Equal(t, messages.PoolFSDP, p.Semaphores[0].Pool)
	assert.Equal(t, "fsdp(shape=[1, 1, 32, 64],dim=2,axis=1,dtype=bfloat16)", p.Buffers[0].Key.String())
}
