package axis

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/meshrun/meshrun/messages"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func bf16(dims ...int) messages.Spec {
	return messages.Spec{Shape: messages.ShapeOf(dims...), DType: messages.BFloat16, Layout: messages.Tile, Memory: messages.DRAM}
}

func mesh(t *testing.T, rows, cols, links int, topology messages.Topology) Mesh {
	t.Helper()
	m, err := Open(machine(rows, cols, links), links, topology)
	require.NoError(t, err)
	return m
}

func machine(rows, cols, links int) Machine {
	return Machine{Shape: messages.MeshShape{Rows: rows, Cols: cols}, Links: [2]int{links, links}, Wrap: [2]bool{rows > 2, cols > 2}}
}

// TestTopologyIsResolvedOncePerAxis (design 6): unset is ring where the axis is longer than two and wraps; one or two is always linear.
func TestTopologyIsResolvedOncePerAxis(t *testing.T) {
	for _, c := range []struct {
		rows, cols int
		wrap       [2]bool
		asked      messages.Topology
		want       [2]messages.Topology
		err        string
	}{
		{2, 4, [2]bool{false, true}, messages.TopologyUnset, [2]messages.Topology{messages.Linear, messages.Ring}, ""},
		{2, 4, [2]bool{false, true}, messages.Ring, [2]messages.Topology{messages.Linear, messages.Ring}, ""},
		{2, 4, [2]bool{false, true}, messages.Linear, [2]messages.Topology{messages.Linear, messages.Linear}, ""},
		{2, 4, [2]bool{false, false}, messages.TopologyUnset, [2]messages.Topology{messages.Linear, messages.Linear}, ""},
		{2, 4, [2]bool{false, false}, messages.Ring, [2]messages.Topology{}, "axis 1 of 2x4 has no link from its last device to its first"},
		{1, 1, [2]bool{}, messages.Ring, [2]messages.Topology{messages.Linear, messages.Linear}, ""},
		{8, 3, [2]bool{true, true}, messages.Ring, [2]messages.Topology{messages.Ring, messages.Ring}, ""},
	} {
		m := machine(c.rows, c.cols, 1)
		m.Wrap = c.wrap
		got, err := Open(m, 1, c.asked)
		if c.err != "" {
			require.ErrorContains(t, err, c.err)
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, c.want, got.Topology, "%dx%d asked %s", c.rows, c.cols, c.asked)
	}
}

// TestLinksAreChecked against the wiring; an axis of one lowers nothing (field case A19).
func TestLinksAreChecked(t *testing.T) {
	_, err := Open(machine(2, 4, 1), 2, messages.TopologyUnset)
	require.ErrorContains(t, err, "axis 0: asked 2 links, 1 available")
	one := machine(1, 8, 4)
	one.Links[0] = 0
	_, err = Open(one, 4, messages.TopologyUnset)
	require.NoError(t, err)
	for _, n := range []int{0, -1} {
		_, err = Open(machine(2, 4, 1), n, messages.TopologyUnset)
		require.ErrorIs(t, err, messages.ErrInvalid)
		assert.ErrorContains(t, err, "num_links")
	}
}

// TestCollectiveShapes: the field's cases A11, A13, A14, A17 and the rank-4 view.
func TestCollectiveShapes(t *testing.T) {
	for _, c := range []struct {
		rows, cols, axis int
		in               []int
		op               string
		dim              int
		want             []int
		err              string
	}{
		{1, 2, 1, []int{1, 1, 1, 33}, "ag", 3, []int{1, 1, 1, 66}, ""},
		{1, 4, 1, []int{1, 1, 8, 128}, "ag", 2, []int{1, 1, 32, 128}, ""},
		{1, 8, 1, []int{1, 1, 13, 24}, "ag", 2, []int{1, 1, 104, 24}, ""},
		{1, 8, 1, []int{64, 128}, "ag", 0, []int{512, 128}, ""},
		{1, 8, 1, []int{64, 128}, "ag", -1, []int{64, 1024}, ""},
		{1, 2, 1, []int{1, 48, 32}, "ag", -1, []int{1, 48, 64}, ""},
		{3, 1, 0, []int{7}, "ag", 0, []int{21}, ""},
		{1, 2, 1, []int{1, 1, 1, 1, 2}, "ag", 0, nil, "has rank 1 to 4"},
		{1, 2, 1, []int{2, 2}, "ag", 2, nil, "dim 2: is a dim of [2, 2], from -2 to 1"},
		{1, 2, 1, []int{2, 2}, "ag", -3, nil, "dim -3"},
		{1, 2, 2, []int{2, 2}, "ag", 0, nil, "mesh_axis 2"},
		{1, 2, 1, []int{1, 1, 64, 130}, "rs", 3, []int{1, 1, 64, 65}, ""},
		{1, 8, 1, []int{1, 1, 256, 128}, "rs", 3, []int{1, 1, 256, 16}, ""},
		{1, 2, 1, []int{1, 1, 64, 131}, "rs", 3, nil, "131: divides by the length 2 of axis 1"},
		{1, 2, 1, []int{8, 64, 64, 64}, "rs", 0, []int{4, 64, 64, 64}, ""},
		{4, 1, 0, []int{1, 7168}, "rs", 1, []int{1, 1792}, ""},
		{1, 2, 0, []int{5, 5}, "rs", 9, nil, "dim 9"},
	} {
		m := mesh(t, c.rows, c.cols, 1, messages.TopologyUnset)
		var op messages.Operation = messages.AllGather{Dim: c.dim, MeshAxis: c.axis}
		if c.op == "rs" {
			op = messages.ReduceScatter{Dim: c.dim, MeshAxis: c.axis}
		}
		for _, persistent := range []bool{false, true} {
			if persistent {
				switch o := op.(type) {
				case messages.AllGather:
					o.UsePersistentBuffer = true
					op = o
				case messages.ReduceScatter:
					o.UsePersistentBuffer = true
					op = o
				}
			}
			p, err := Make(m, op, []messages.Spec{bf16(c.in...)})
			if c.err != "" {
				require.ErrorIs(t, err, messages.ErrInvalid)
				require.ErrorContains(t, err, c.err)
				assert.True(t, strings.HasPrefix(err.Error(), op.Kind().String()+": "), err)
				continue
			}
			require.NoError(t, err)
			assert.Equal(t, messages.ShapeOf(c.want...), p.Outputs[0].Shape, "%v", c)
			assert.Equal(t, p.Outputs[0].Driver.Shape.Tail(p.Outputs[0].Driver.Shape.Rank()-len(c.in)), p.Outputs[0].Shape)
			assert.Equal(t, persistent, p.Outputs[0].Buffer != Fresh)
			assert.Equal(t, !persistent, p.Semaphores[0].Pool == messages.PoolBarrier, "a barrier is taken exactly where the memory is not persistent (field case A1)")
		}
	}
}

// TestReduceScatterIntermediate: input-shaped on a ring; on a line the rank-4 view with dim 0 doubled, also from the getter (A8, design 6).
func TestReduceScatterIntermediate(t *testing.T) {
	line, ring := mesh(t, 1, 4, 1, messages.Linear), mesh(t, 1, 4, 1, messages.Ring)
	op := messages.ReduceScatter{Dim: 3, MeshAxis: 1, UsePersistentBuffer: true}
	for _, c := range []struct {
		m    Mesh
		want messages.Shape
	}{{ring, messages.ShapeOf(1, 1, 64, 256)}, {line, messages.ShapeOf(2, 1, 64, 256)}} {
		p, err := Make(c.m, op, []messages.Spec{bf16(1, 1, 64, 256)})
		require.NoError(t, err)
		assert.Equal(t, c.want, p.Buffers[0].Parts[0].Spec.Shape)
		assert.Equal(t, messages.ShapeOf(1, 1, 64, 64), p.Buffers[0].Parts[1].Spec.Shape)
		assert.Equal(t, "rs(shape=[1, 1, 64, 256],dim=3,axis=1)", p.Buffers[0].Key.String())
	}
	get := messages.GetBuffers{Key: messages.BufferKey{Kind: messages.BufferRS, Shape: messages.ShapeOf(1, 7168), Dim: 1, Axis: 1}}
	p, err := Make(line, get, nil)
	require.NoError(t, err)
	assert.Equal(t, messages.ShapeOf(2, 1, 1, 7168), p.Buffers[0].Parts[0].Spec.Shape)
	assert.Equal(t, messages.ShapeOf(1, 1792), p.Buffers[0].Parts[1].Spec.Shape)
	get.Key.Shape = messages.ShapeOf(1, 7167)
	_, err = Make(line, get, nil)
	require.ErrorContains(t, err, "divides by the length 4")
}

// TestBufferKeysNeverServeWhatDoesNotFit: dtype, parts and role are part of the key (design 6).
func TestBufferKeysNeverServeWhatDoesNotFit(t *testing.T) {
	m := mesh(t, 1, 4, 1, messages.Ring)
	seen := map[messages.BufferKey]string{}
	names := map[string]bool{}
	for _, dtype := range []messages.DType{messages.BFloat16, messages.Float32} {
		for _, parts := range []messages.Parts{messages.Both, messages.IntermediateOnly, messages.OutputOnly} {
			key, list, err := BufferParts(m, messages.BufferKey{Kind: messages.BufferRS, Shape: messages.ShapeOf(1, 1, 32, 64), Dim: 3, Axis: 1, DType: dtype, Parts: parts})
			require.NoError(t, err)
			assert.NotContains(t, seen, key)
			seen[key] = key.String()
			assert.False(t, names[key.String()], "two pools of one name: %s", key)
			names[key.String()] = true
			assert.Len(t, list, map[messages.Parts]int{messages.Both: 2, messages.IntermediateOnly: 1, messages.OutputOnly: 1}[parts])
		}
		for _, role := range []messages.Role{messages.NoRole, messages.RoleK, messages.RoleV} {
			key, _, err := BufferParts(m, messages.BufferKey{Kind: messages.BufferAG, Shape: messages.ShapeOf(1, 1, 32, 64), Dim: 2, Axis: 1, DType: dtype, Role: role})
			require.NoError(t, err)
			assert.False(t, names[key.String()])
			names[key.String()] = true
		}
	}
	assert.True(t, names["rs(shape=[1, 1, 32, 64],dim=3,axis=1,dtype=float32,parts=output)"])
	assert.True(t, names["ag(shape=[1, 1, 32, 64],dim=2,axis=1,dtype=bfloat16,role=k)"])
}

// TestHyperparameters are the reference's choices.
func TestHyperparameters(t *testing.T) {
	assert.Equal(t, Hyper{true, 10, 2, 2}, AllGatherHyper(messages.ShapeOf(1, 1, 512, 64)))
	assert.Equal(t, Hyper{true, 16, 3, 2}, AllGatherHyper(messages.ShapeOf(1, 1, 513, 64)))
	assert.Equal(t, Hyper{true, 2, 2, 2}, ReduceScatterHyper())
}

// TestPassThrough: an axis of one, or none, hands the input through and draws nothing.
func TestPassThrough(t *testing.T) {
	m := mesh(t, 1, 4, 1, messages.Ring)
	for _, op := range []messages.Operation{messages.AllGather{MeshAxis: 0}, messages.AllGather{MeshAxis: messages.NoAxis, UsePersistentBuffer: true},
		messages.ReduceScatter{MeshAxis: 0}, messages.ReduceScatter{MeshAxis: messages.NoAxis}} {
		p, err := Make(m, op, []messages.Spec{bf16(3, 5)})
		require.NoError(t, err)
		assert.True(t, p.Alias)
		assert.Zero(t, p.NumSemaphores+p.NumBuffers)
		assert.Equal(t, messages.ShapeOf(3, 5), p.Outputs[0].Shape)
	}
}

// TestComputeRules: shapes of results and what is refused.
func TestComputeRules(t *testing.T) {
	m := mesh(t, 2, 4, 1, messages.Ring)
	f32 := func(dims ...int) messages.Spec { s := bf16(dims...); s.DType = messages.Float32; return s }
	bf8 := func(dims ...int) messages.Spec { s := bf16(dims...); s.DType = messages.BFloat8B; return s }
	u8 := bf16(1, 1, 2, 2)
	u8.DType = messages.UInt8
	idx := func(v ...int) messages.Index { x, err := messages.IndexOf(v...); require.NoError(t, err); return x }
	none := messages.Spec{}
	for _, c := range []struct {
		op   messages.Operation
		in   []messages.Spec
		want []int
		err  string
	}{
		{messages.Matmul{}, []messages.Spec{bf16(1, 1, 32, 64), bf16(64, 96), bf16(96)}, []int{1, 1, 32, 96}, ""},
		{messages.Matmul{TransposeB: true}, []messages.Spec{bf16(2, 3, 64), bf16(1, 5, 64)}, []int{2, 3, 5}, ""},
		{messages.Matmul{}, []messages.Spec{bf16(1, 1, 32, 64), bf16(63, 96)}, nil, "weight [63, 96]: has 64 rows"},
		{messages.Matmul{}, []messages.Spec{bf16(2, 1, 32, 64), bf16(3, 1, 64, 96)}, nil, "leading dims"},
		{messages.Matmul{}, []messages.Spec{bf16(32, 64), bf16(64, 96), bf16(95)}, nil, "bias [95]"},
		{messages.Matmul{}, []messages.Spec{bf16(32, 64)}, nil, "weight absent"},
		{messages.Matmul{}, []messages.Spec{u8, bf16(2, 2)}, nil, "input dtype uint8"},
		{messages.Norm{RMS: true}, []messages.Spec{bf16(4, 8), f32(8)}, []int{4, 8}, ""},
		{messages.Norm{}, []messages.Spec{bf16(4, 8), f32(7)}, nil, "weight [7]"},
		{messages.Norm{Epsilon: -1}, []messages.Spec{bf16(4, 8)}, nil, "epsilon"},
		{messages.FusedDistributedNorm{MeshAxis: 1, NumHeads: 2}, []messages.Spec{bf16(1, 1, 32, 64)}, []int{1, 2, 32, 32}, ""},
		{messages.FusedDistributedNorm{MeshAxis: 1, NumHeads: 3}, []messages.Spec{bf16(1, 1, 32, 64)}, nil, "num_heads 3"},
		{messages.FusedDistributedNorm{MeshAxis: 1}, []messages.Spec{bf16(1, 2, 32, 64)}, nil, "is [B, 1, N, W]"},
		{messages.FusedDistributedNorm{MeshAxis: 1}, []messages.Spec{bf16(1, 1, 32, 64), none, none, f32(1, 1, 32, 64)}, nil, "both or none"},
		{messages.Rope{}, []messages.Spec{bf16(1, 2, 32, 64), f32(1, 1, 32, 64), f32(1, 2, 32, 64)}, []int{1, 2, 32, 64}, ""},
		{messages.Rope{}, []messages.Spec{bf16(1, 2, 32, 64), f32(1, 1, 31, 64), f32(1, 2, 32, 64)}, nil, "cos [1, 1, 31, 64]"},
		{messages.Rope{}, []messages.Spec{bf16(1, 2, 32, 63), f32(1, 1, 32, 63), f32(1, 1, 32, 63)}, nil, "is even"},
		{messages.SDPA{LogicalN: 7}, []messages.Spec{bf16(1, 2, 5, 8), bf16(1, 2, 7, 8), bf16(1, 2, 7, 8)}, []int{1, 2, 5, 8}, ""},
		{messages.SDPA{LogicalN: 8}, []messages.Spec{bf16(1, 2, 5, 8), bf16(1, 2, 7, 8), bf16(1, 2, 7, 8)}, nil, "logical_n 8"},
		{messages.SDPA{}, []messages.Spec{bf16(1, 2, 5, 8), bf16(1, 3, 7, 8), bf16(1, 3, 7, 8)}, nil, "k [1, 3, 7, 8]"},
		{messages.RingJointSDPA{MeshAxis: 1, LogicalN: 120}, []messages.Spec{bf16(1, 2, 32, 8), bf16(1, 2, 32, 8), bf16(1, 2, 32, 8)}, []int{1, 2, 32, 8}, ""},
		{messages.RingJointSDPA{MeshAxis: 1, LogicalN: 129}, []messages.Spec{bf16(1, 2, 32, 8), bf16(1, 2, 32, 8), bf16(1, 2, 32, 8)}, nil, "logical_n 129"},
		{messages.RingJointSDPA{MeshAxis: messages.NoAxis}, []messages.Spec{bf16(1, 2, 32, 8), bf16(1, 2, 32, 8), bf16(1, 2, 32, 8)}, nil, "mesh_axis"},
		{messages.Binary{Fn: messages.Add}, []messages.Spec{bf16(1, 1, 4, 1), bf16(3, 1, 5)}, []int{1, 3, 4, 5}, ""},
		{messages.Binary{Fn: messages.Mul, Scalar: 2}, []messages.Spec{bf16(4)}, []int{4}, ""},
		{messages.Binary{Fn: messages.Add}, []messages.Spec{bf16(4), bf16(5)}, nil, "add: b [5]"},
		{messages.Addcmul{}, []messages.Spec{bf16(2, 4), bf16(2, 4), bf16(1, 4)}, []int{2, 4}, ""},
		{messages.Addcmul{}, []messages.Spec{bf16(2, 1), bf16(2, 4), bf16(1, 4)}, nil, "x [2, 4]"},
		{messages.Slice{Begin: idx(0, 1), End: idx(2, 3)}, []messages.Spec{bf16(2, 4)}, []int{2, 2}, ""},
		{messages.Slice{Begin: idx(0, 3), End: idx(2, 3)}, []messages.Spec{bf16(2, 4)}, nil, "range of dim 1"},
		{messages.Slice{Begin: idx(0), End: idx(2)}, []messages.Spec{bf16(2, 4)}, nil, "a number for each"},
		{messages.Concat{Dim: -1}, []messages.Spec{bf16(2, 4), bf16(2, 3), bf16(2, 1)}, []int{2, 8}, ""},
		{messages.Concat{Dim: 0}, []messages.Spec{bf16(2, 4), bf16(2, 3)}, nil, "input 1"},
		{messages.Concat{Dim: 0}, []messages.Spec{bf16(2, 4), f32(2, 4)}, nil, "float32 tile"},
		{messages.Reshape{Shape: messages.ShapeOf(8)}, []messages.Spec{bf16(2, 4)}, []int{8}, ""},
		{messages.Reshape{Shape: messages.ShapeOf(9)}, []messages.Spec{bf16(2, 4)}, nil, "as many elements"},
		{messages.Permute{Order: idx(2, 0, 1)}, []messages.Spec{bf16(2, 3, 4)}, []int{4, 2, 3}, ""},
		{messages.Permute{Order: idx(0, 0, 1)}, []messages.Spec{bf16(2, 3, 4)}, nil, "names each"},
		{messages.Permute{Order: idx(1, 0)}, []messages.Spec{bf16(2, 3, 4)}, nil, "names each"},
		{messages.Convert{DType: messages.Float32}, []messages.Spec{bf16(2, 3)}, []int{2, 3}, ""},
		{messages.Convert{DType: messages.BFloat8B}, []messages.Spec{bf16(2, 3)}, []int{2, 3}, ""},
		{messages.Convert{DType: messages.BFloat8B, Layout: messages.RowMajor}, []messages.Spec{bf16(2, 3)}, nil, "layout row_major: is tile where the dtype is bfloat8_b"},
		{messages.Convert{Layout: messages.RowMajor}, []messages.Spec{bf8(2, 3)}, nil, "layout row_major"},
		{messages.Convert{DType: messages.BFloat16, Layout: messages.RowMajor}, []messages.Spec{bf8(2, 3)}, []int{2, 3}, ""},
		{messages.Matmul{DType: messages.BFloat8B}, []messages.Spec{bf16(2, 4), bf8(4, 3)}, []int{2, 3}, ""},
		{messages.AllGather{Dim: 1, MeshAxis: 1}, []messages.Spec{bf8(2, 32)}, []int{2, 128}, ""},
		{messages.AllGather{Dim: 1, MeshAxis: 1}, []messages.Spec{bf8(2, 40)}, nil, "whole blocks of 16"},
		{messages.AllGather{Dim: 0, MeshAxis: 1}, []messages.Spec{bf8(2, 40)}, []int{8, 40}, ""},
		{messages.ReduceScatter{Dim: 1, MeshAxis: 1}, []messages.Spec{bf8(2, 32)}, []int{2, 8}, ""},
		{messages.StridedAllGatherMatmul{MeshAxis: 1}, []messages.Spec{bf16(1, 1, 2, 4), bf16(1, 2, 16, 3)}, nil, "weight"},
		{messages.Activation{Fn: messages.GELU}, []messages.Spec{bf16(2, 3)}, []int{2, 3}, ""},
		{messages.Activation{}, []messages.Spec{bf16(2, 3)}, nil, "activation none"},
		{messages.Activation{Fn: messages.GELU}, []messages.Spec{bf16(2, 3), bf16(2, 3)}, nil, "takes at most 1"},
	} {
		p, err := Make(m, c.op, c.in)
		if c.err != "" {
			require.ErrorIs(t, err, messages.ErrInvalid, "%#v", c.op)
			require.ErrorContains(t, err, c.err)
			continue
		}
		require.NoError(t, err, "%#v", c.op)
		assert.Equal(t, messages.ShapeOf(c.want...), p.Outputs[0].Shape, "%#v", c.op)
	}
}

// TestReshapeIsAViewWhereMemoryStays: row major always; tiles only where the last two dims stay.
func TestReshapeIsAViewWhereMemoryStays(t *testing.T) {
	m := mesh(t, 1, 1, 1, messages.Linear)
	rm := bf16(2, 4, 6)
	rm.Layout = messages.RowMajor
	for _, c := range []struct {
		in   messages.Spec
		to   []int
		view bool
	}{{bf16(2, 4, 6), []int{1, 2, 4, 6}, true}, {bf16(6, 4, 6), []int{2, 3, 4, 6}, true}, {bf16(2, 4, 6), []int{8, 6}, false},
		{bf16(4, 6), []int{1, 1, 4, 6}, true}, {bf16(4, 6), []int{24}, false}, {rm, []int{48}, true}} {
		p, err := Make(m, messages.Reshape{Shape: messages.ShapeOf(c.to...)}, []messages.Spec{c.in})
		require.NoError(t, err)
		assert.Equal(t, c.view, p.Alias, "%v -> %v", c.in, c.to)
	}
}

// TestMakeNeverPanics and refuses or accepts consistently whatever it is given.
func TestMakeNeverPanics(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 1))
	specs := func() messages.Spec {
		dims := make([]int, 1+rng.IntN(6))
		for i := range dims {
			dims[i] = 1 + rng.IntN(5)
		}
		s := bf16(dims...)
		s.DType = messages.DType(rng.IntN(8))
		s.Layout = messages.Layout(1 + rng.IntN(2))
		return s
	}
	for i := range 20000 {
		a, d := rng.IntN(5)-2, rng.IntN(14)-7
		x, _ := messages.IndexOf(d, a, 0)
		ops := []messages.Operation{messages.AllGather{Dim: d, MeshAxis: a, UsePersistentBuffer: d > 0}, messages.ReduceScatter{Dim: d, MeshAxis: a, UsePersistentBuffer: d > 0},
			messages.Matmul{TransposeB: d > 0}, messages.Norm{}, messages.FusedDistributedNorm{MeshAxis: a, NumHeads: d}, messages.Rope{}, messages.SDPA{LogicalN: d},
			messages.RingJointSDPA{MeshAxis: a, LogicalN: d}, messages.Binary{Fn: messages.BinaryKind(rng.IntN(6))}, messages.Addcmul{}, messages.Activation{Fn: messages.ActivationKind(rng.IntN(9))},
			messages.Slice{Begin: x, End: x}, messages.Concat{Dim: d}, messages.Reshape{}, messages.Permute{Order: x}, messages.Convert{}, messages.GetSemaphores{MeshAxis: a}, messages.GetBuffers{Key: messages.BufferKey{Kind: messages.BufferKind(rng.IntN(5)), Axis: a, Dim: d, Shape: specs().Shape}}}
		op := ops[rng.IntN(len(ops))]
		in := make([]messages.Spec, rng.IntN(9))
		for j := range in {
			in[j] = specs()
		}
		m := mesh(t, 1+rng.IntN(4), 1+rng.IntN(4), 1, messages.TopologyUnset)
		func() {
			defer func() {
				if r := recover(); r != nil {
					t.Fatalf("seed %d, round %d: %#v of %v: panic %v", seed, i, op, in, r)
				}
			}()
			if _, err := Make(m, op, in); err != nil {
				require.ErrorIs(t, err, messages.ErrInvalid, fmt.Sprint(seed))
			}
		}()
	}
}

// A dim that no shape can hold is refused where it would arise, in results and in buffers; the lengths do not wrap around.
func TestDimsThatNoShapeCanHold(t *testing.T) {
	m := Mesh{Shape: messages.MeshShape{Rows: 2, Cols: 4}, Grid: [2]int{8, 8}, NumLinks: 1, Topology: [2]messages.Topology{messages.Linear, messages.Ring}}
	spec := func(layout messages.Layout, dims ...int) messages.Spec {
		return messages.Spec{Shape: messages.ShapeOf(dims...), DType: messages.BFloat16, Layout: layout}
	}
	index := func(v ...int) messages.Index { i, _ := messages.IndexOf(v...); return i }
	for _, tt := range []struct {
		op messages.Operation
		in messages.Spec
	}{
		{messages.AllGather{Dim: 3, MeshAxis: 1}, spec(messages.Tile, 1, 1, 1, 1<<30)}, // 2^32 would wrap to 0
		{messages.AllGather{Dim: 0, MeshAxis: 1, UsePersistentBuffer: true}, spec(messages.Tile, 1<<29+1, 32)},
		{messages.ReduceScatter{Dim: 3, MeshAxis: 0, UsePersistentBuffer: true}, spec(messages.Tile, 1<<30, 1, 1, 2)},
		{messages.NeighborPad{Dims: index(0), Axes: index(0), PadLeft: index(1 << 30), PadRight: index(1 << 30)}, spec(messages.RowMajor, 1<<30)},
		{messages.NeighborPadHalo{Dims: index(2), Axes: index(0), PadLeft: index(1), PadRight: index(1)}, spec(messages.RowMajor, 1, 1<<30, 4, 4, 4)},
	} {
		_, err := Make(m, tt.op, []messages.Spec{tt.in})
		if !errors.Is(err, messages.ErrInvalid) {
			t.Errorf("%v of %v: %v", tt.op.Kind(), tt.in.Shape, err)
		}
	}
	_, _, err := BufferParts(m, messages.BufferKey{Kind: messages.BufferNPHalo, Shape: messages.ShapeOf(1<<30, 1<<30, 1<<30, 2, 2), Dim: 3, Pad: [2]int{1, 1}})
	if !errors.Is(err, messages.ErrInvalid) {
		t.Errorf("sticks beyond 2^63: %v", err)
	}
	if _, _, err := BufferParts(m, messages.BufferKey{Kind: messages.BufferAG, Shape: messages.ShapeOf(1, 1<<29-1), Dim: 1, Axis: 1}); err != nil {
		t.Errorf("2^31-4 is a length: %v", err)
	}
}

// TestReshapesNameTheMissingEdge: devices in row order on the asked mesh; a wrap link counts where two devices that it joins become neighbours.
func TestReshapesNameTheMissingEdge(t *testing.T) {
	for _, c := range []struct {
		rows, cols int
		wrap       bool
		asked      messages.MeshShape
		want       string
	}{
		{2, 2, false, messages.MeshShape{Rows: 1, Cols: 4}, "edge (1,2) is missing: no link joins devices 0,1 and 1,0"},
		{2, 4, false, messages.MeshShape{Rows: 1, Cols: 8}, "edge (3,4) is missing: no link joins devices 0,3 and 1,0"},
		{2, 4, true, messages.MeshShape{Rows: 1, Cols: 8}, "edge (3,4) is missing: no link joins devices 0,3 and 1,0"},
		{2, 4, true, messages.MeshShape{Rows: 4, Cols: 2}, "edge (0,2) is missing: no link joins devices 0,0 and 0,2, nor those of 5 more edges"},
		{1, 8, true, messages.MeshShape{Rows: 2, Cols: 4}, "edge (0,4) is missing: no link joins devices 0,0 and 0,4, nor those of 3 more edges"},
		{3, 4, false, messages.MeshShape{Rows: 4, Cols: 3}, "edge (0,3) is missing: no link joins devices 0,0 and 0,3"},
		{3, 4, true, messages.MeshShape{Rows: 4, Cols: 3}, "edge (1,4) is missing: no link joins devices 0,1 and 1,0"},
		{2, 2, false, messages.MeshShape{Rows: 4, Cols: 1}, "edge (1,2) is missing: no link joins devices 0,1 and 1,0"},
		{8, 1, false, messages.MeshShape{Rows: 1, Cols: 8}, ""},
		{2, 2, false, messages.MeshShape{Rows: 2, Cols: 3}, ""},
	} {
		m := machine(c.rows, c.cols, 1)
		m.Wrap = [2]bool{c.wrap && c.rows > 2, c.wrap && c.cols > 2}
		err := ReshapeError("machine", m, c.asked)
		require.ErrorIs(t, err, messages.ErrInvalid)
		require.ErrorContains(t, err, "mesh "+c.asked.String()+": preset machine is "+m.Shape.String())
		if c.want == "" {
			require.NotContains(t, err.Error(), "edge")
			continue
		}
		require.ErrorContains(t, err, c.want)
	}
}
