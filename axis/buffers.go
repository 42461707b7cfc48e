package axis

import (
	"github.com/meshrun/meshrun/messages"
)

// BufferParts completes the key of a buffer pool and says what its banks hold. The key alone decides: equal keys hold the same.
func BufferParts(m Mesh, key messages.BufferKey) (messages.BufferKey, []messages.Part, error) {
	key, parts, err := bufferParts(m, key)
	if err == nil {
		err = checkParts(parts)
	}
	for i := 0; err == nil && i < len(parts); i++ {
		err = checkStorage("buffer layout", parts[i].Spec)
	}
	return key, parts, err
}

func bufferParts(m Mesh, key messages.BufferKey) (messages.BufferKey, []messages.Part, error) {
	if key.DType == messages.DTypeUnset {
		key.DType = messages.BFloat16
	}
	switch key.Kind {
	case messages.BufferMMProgress, messages.BufferMMCredit:
		// One uint32 row of slots per core, height sharded over the whole grid (get_mm_progress_counters_buffer).
		key = messages.BufferKey{Kind: key.Kind, Axis: messages.NoAxis, DType: messages.UInt32}
		slots := m.Grid[0] * m.Grid[1]
		return key, []messages.Part{{Zeroed: key.Kind == messages.BufferMMCredit, ShardRows: 1, ShardCols: slots,
			Spec: messages.Spec{Shape: messages.ShapeOf(slots, slots), DType: messages.UInt32, Layout: messages.RowMajor, Memory: messages.L1}}}, nil
	case messages.BufferNP:
		key = messages.BufferKey{Kind: messages.BufferNP, Shape: key.Shape, Axis: messages.NoAxis, DType: key.DType}
		return key, []messages.Part{{Zeroed: true, Spec: messages.Spec{Shape: key.Shape, DType: key.DType, Layout: messages.RowMajor, Memory: messages.DRAM}}}, nil
	case messages.BufferNPHalo:
		return haloParts(key)
	case messages.BufferNormStats:
		if key.Text == "" || key.Shape.Rank() == 0 {
			return key, nil, fail("key", describe("%q", key.Text), "names the stats buffer, with its shape")
		}
		layout := messages.Tile
		if key.Axis == 0 || key.Axis == 1 {
			layout = messages.RowMajor // the runtime's own
		}
		return key, []messages.Part{{Spec: messages.Spec{Shape: key.Shape, DType: key.DType, Layout: layout, Memory: messages.DRAM}}}, nil
	}

	if key.Axis != 0 && key.Axis != 1 {
		return key, nil, fail("mesh_axis", key.Axis, "is 0 or 1")
	}
	dim, err := checkDim("dim", key.Dim, key.Shape)
	if err != nil {
		return key, nil, err
	}
	key.Dim = dim
	n := m.Shape.Axis(key.Axis)
	spec := messages.Spec{Shape: key.Shape, DType: key.DType, Layout: messages.Tile, Memory: messages.DRAM}
	switch key.Kind {
	case messages.BufferAG, messages.BufferFSDP:
		spec.Shape = key.Shape.With(dim, key.Shape.Dim(dim)*n)
		if key.Capacity != 0 {
			if key.Capacity < 1 || key.Capacity > 1<<30 {
				return key, nil, fail("capacity", key.Capacity, "is positive")
			}
			key.Shape = key.Shape.With(dim, 1)
			spec.Shape = key.Shape.With(dim, key.Capacity)
		}
		return key, []messages.Part{{Spec: spec}}, nil
	case messages.BufferRS:
		// The intermediate has the input's shape on a ring; on a line it stages both directions: the rank-4 view with dim 0 doubled.
		if key.Shape.Dim(dim)%n != 0 {
			return key, nil, fail(describe("shape dim %d", dim), key.Shape.Dim(dim), "divides by the length %d of axis %d", n, key.Axis)
		}
		var parts []messages.Part
		if key.Parts != messages.OutputOnly {
			if m.Topology[key.Axis] == messages.Linear || m.LinearIntermediate {
				r4 := key.Shape.Rank4()
				spec.Shape = r4.With(0, r4.Dim(0)*2)
			}
			parts = append(parts, messages.Part{Name: "intermediate", Spec: spec})
		}
		if key.Parts != messages.IntermediateOnly {
			spec.Shape = key.Shape.With(dim, key.Shape.Dim(dim)/n)
			parts = append(parts, messages.Part{Name: "output", Spec: spec})
		}
		return key, parts, nil
	}
	return key, nil, fail("buffer", key, "is a kind of buffer that this runtime has")
}

// haloParts sizes a compact halo of sticks [sticks, C] (get_np_halo_buffer): the H parts are outer x pads x what lies behind the dim in a row,
// the W parts outer x pads x the H-padded rows. Left and right pads count separately.
func haloParts(key messages.BufferKey) (messages.BufferKey, []messages.Part, error) {
	s := key.Shape
	if err := checkRank("shape", s, 3, messages.MaxRank); err != nil {
		return key, nil, err
	}
	dim, err := checkDim("dim", key.Dim, s)
	if err != nil {
		return key, nil, err
	}
	if dim == s.Rank()-1 {
		return key, nil, fail("dim", key.Dim, "lies before the channels, the last dim of %s", s)
	}
	key.Dim, key.Axis = dim, messages.NoAxis
	for _, pad := range []int{key.Pad[0], key.Pad[1], key.Pad2[0], key.Pad2[1]} {
		if pad < 0 {
			return key, nil, fail("padding", pad, "is not negative")
		}
	}
	outer, behind := 1, 1
	for i := range dim {
		outer = product(outer, s.Dim(i))
	}
	for i := dim + 1; i < s.Rank()-1; i++ {
		behind = product(behind, s.Dim(i))
	}
	pads := key.Pad[0] + key.Pad[1]
	sticks := product(product(outer, pads), behind)
	if key.HasW {
		if key.Dim2, err = checkDim("dim2", key.Dim2, s); err != nil {
			return key, nil, err
		}
		sticks += product(product(outer, key.Pad2[0]+key.Pad2[1]), s.Dim(dim)+pads)
	} else {
		key.Dim2, key.Pad2 = 0, [2]int{}
	}
	if sticks == 0 {
		return key, nil, fail("padding", "none", "is positive on some side")
	}
	spec := messages.Spec{Shape: messages.ShapeOf(1, s.Dim(-1)).With(0, sticks), DType: key.DType, Layout: messages.RowMajor, Memory: messages.DRAM}
	return key, []messages.Part{{Spec: spec, Zeroed: true}}, nil
}

// product stops at a number that no dim can have, instead of running over.
func product(a, b int) int {
	const tooMany = 1 << 31
	if a != 0 && b > tooMany/a {
		return tooMany
	}
	return a * b
}

// StatsKey is the pool of the gathered statistics of a norm over a sharded width: per row and device of the line the sum of
// squares (RMS), or mean and sum of squared deviations (layer norm), in float32.
func StatsKey(m Mesh, input messages.Shape, op messages.FusedDistributedNorm) messages.BufferKey {
	kind, values := "ln", 2
	if op.RMS {
		kind, values = "rms", 1
	}
	rows := int(input.Elements()) / input.Dim(-1)
	text := op.Key
	if text == "" {
		text = describe("%s,rows=%d,axis=%d", kind, rows, op.MeshAxis)
	}
	return messages.BufferKey{Kind: messages.BufferNormStats, Axis: op.MeshAxis, Text: text, DType: messages.Float32,
		Shape: messages.ShapeOf(1, 1, rows, values*m.Shape.Axis(op.MeshAxis))}
}

func planGetSemaphores(_ Mesh, operation messages.Operation, _ []messages.Spec, p *Plan) error {
	op := operation.(messages.GetSemaphores)
	if op.MeshAxis != 0 && op.MeshAxis != 1 {
		return fail("mesh_axis", op.MeshAxis, "is 0 or 1")
	}
	if op.Pool >= messages.PoolCount {
		return fail("pool", op.Pool, "is a pool of this runtime")
	}
	if op.Pool == messages.PoolStridedAGMM && (op.Workers < 1 || op.Workers > maxWorkers) {
		return fail("num_workers_per_link", op.Workers, "is 1 to %d", maxWorkers)
	}
	if op.Pool != messages.PoolStridedAGMM && op.Workers != 0 {
		return fail("num_workers_per_link", op.Workers, "belongs to strided_ag_mm alone")
	}
	p.Axis = op.MeshAxis
	p.need(op.Pool, op.MeshAxis, Guarded)
	p.Semaphores[0].Workers = op.Workers
	return nil
}

func planGetBuffers(m Mesh, operation messages.Operation, _ []messages.Spec, p *Plan) error {
	key, parts, err := BufferParts(m, operation.(messages.GetBuffers).Key)
	if err != nil {
		return err
	}
	p.Axis = key.Axis
	p.buffer(key, parts, 0, Guarded)
	for i, part := range parts {
		p.output(part.Spec, part.Spec.Shape, 0, i)
	}
	return nil
}
