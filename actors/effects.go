package actors

import (
	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/messages"
)

// names knows what the driver's handles stand for, so that a journal can be written from the args structs of the calls alone. It
// is nil when no journal is kept.
type names map[devicecgo.Handle]object

type object struct {
	name string
	spec messages.Spec
}

// called notes a name. The emulator uses it in its reports.
func (d *device) called(h devicecgo.Handle, name string, spec messages.Spec) {
	if d.names != nil {
		d.names[h] = object{name, spec}
	}
	if e := d.dev.Emulator(); e != nil && name != messages.FreshName {
		_ = e.Name(h, name) // reports then show a number
	}
}

func field(name string, value any) messages.Field { return messages.Field{Name: name, Value: value} }

// effect adds a call to a row; rows are nil when no journal is kept.
func effect(row *messages.Row, call string, fields ...messages.Field) {
	if row != nil {
		row.Effects = append(row.Effects, messages.Effect{Call: call, Fields: fields})
	}
}

func allocation(name string, p messages.Part) []messages.Field {
	s := p.Spec
	var memory any = s.Memory.String()
	if p.ShardCols != 0 {
		memory = struct {
			Layout string `json:"layout"`
			Buffer string `json:"buffer"`
			Shard  [2]int `json:"shard"`
		}{"height_sharded", s.Memory.String(), [2]int{p.ShardRows, p.ShardCols}}
	}
	return []messages.Field{field("buf", name), field("shape", s.Shape), field("dtype", s.DType.String()), field("layout", s.Layout.String()),
		field("memory", memory), field("zeroed", p.Zeroed)}
}

// newRow starts a row outside a task; nil when no journal is kept.
func (d *device) newRow(step, stream string) *messages.Row {
	if !d.rt.cfg.Record {
		return nil
	}
	return &messages.Row{Step: step, Stream: stream}
}

// journal appends a task's row where it stands in launch order.
func (d *device) journal(t *task) {
	if t.row != nil && !t.row.Listed {
		t.row.Listed = true
		d.rt.addRow(t.row)
	}
}

// returned describes what a task hands to its caller.
func (d *device) returned(t *task) any {
	p := t.plan
	if p.Kind == messages.OpGetSemaphores {
		all := t.sems[0].names
		if len(all) == 1 && perBankIsOne(p.Op.(messages.GetSemaphores).Pool) {
			return all[0]
		}
		return all
	}
	bufferName := func(i int) string {
		if name := t.out[i].mem.buffer(t.out[i].part).name; name != "" {
			return name
		}
		return messages.FreshName
	}
	if p.Kind == messages.OpGetBuffers && p.Buffers[0].Key.Kind == messages.BufferRS && p.NumOutputs > 1 {
		all := make([]string, p.NumOutputs)
		for i := range all {
			all[i] = bufferName(i)
		}
		return all
	}
	out := make([]messages.Returned, p.NumOutputs)
	for i := range out {
		out[i] = messages.Returned{Shape: p.Outputs[i].Shape, Buffer: bufferName(i)}
	}
	if len(out) == 1 {
		return out[0]
	}
	return out
}

// perBankIsOne: the getters of these pools return one semaphore, not a list.
func perBankIsOne(p messages.Pool) bool {
	switch p {
	case messages.PoolNP, messages.PoolSR, messages.PoolBarrier, messages.PoolNPFused, messages.PoolBarrierFused:
		return true
	}
	return false
}

// describe writes the call that was made, from the struct that the driver got.
func (d *device) describe(row *messages.Row, args devicecgo.Args) {
	shape := func(h devicecgo.Handle) any {
		if h == 0 {
			return nil
		}
		return d.names[h].spec.Shape
	}
	dtype := func(h devicecgo.Handle) string { return d.names[h].spec.DType.String() }
	name := func(h devicecgo.Handle) any {
		if o := d.names[h]; h != 0 && o.name != messages.FreshName {
			return o.name
		}
		return nil
	}
	// held names memory that may be anybody's: "fresh" where no pool owns it.
	held := func(h devicecgo.Handle) any {
		if h == 0 {
			return nil
		}
		return d.names[h].name
	}
	padding := func(mode uint32) string {
		if mode == devicecgo.ABIPad(messages.PadReplicate) {
			return messages.PadReplicate.String()
		}
		return messages.PadZeros.String()
	}
	list := func(hs []devicecgo.Handle) []any {
		out := []any{}
		for _, h := range hs {
			if h != 0 {
				out = append(out, name(h))
			}
		}
		return out
	}
	hyper := func(h *devicecgo.OpHeader, chunks, workers, buffers uint32) map[string]uint32 {
		m := map[string]uint32{}
		if h.Present&devicecgo.HasChunksPerSync != 0 {
			m["chunks_per_sync"] = chunks
		}
		if h.Present&devicecgo.HasWorkers != 0 {
			m["num_workers_per_link"] = workers
		}
		if h.Present&devicecgo.HasBuffers != 0 {
			m["num_buffers_per_channel"] = buffers
		}
		return m
	}
	topology := func(n uint32) string { return devicecgo.TopologyOf(n).String() }

	switch a := args.(type) {
	case *devicecgo.AllGather:
		effect(row, "all_gather", field("input", shape(a.Input)), field("dtype", dtype(a.Input)), field("dim", a.Dim), field("axis", a.Axis),
			field("links", a.NumLinks), field("topology", topology(a.Topology)), field("semaphores", list(a.Semaphores[:])),
			field("barrier", name(a.Barrier)), field("output_buffer", name(a.Output)),
			field("hyperparams", hyper(&a.OpHeader, a.ChunksPerSync, a.NumWorkersPerLink, a.NumBuffersPerChannel)))
	case *devicecgo.ReduceScatter:
		effect(row, "reduce_scatter", field("input", shape(a.Input)), field("dtype", dtype(a.Input)), field("dim", a.Dim), field("axis", a.Axis),
			field("links", a.NumLinks), field("topology", topology(a.Topology)), field("semaphores", list(a.Semaphores[:])),
			field("barrier", name(a.Barrier)), field("intermediate_buffer", name(a.Intermediate)), field("output_buffer", name(a.Output)),
			field("memory", devicecgo.MemoryOf(a.Memory).String()),
			field("hyperparams", hyper(&a.OpHeader, a.ChunksPerSync, a.NumWorkersPerLink, a.NumBuffersPerChannel)))
	case *devicecgo.FusedDistributedNorm:
		effect(row, "fused_distributed_norm", field("input", shape(a.Input)), field("dtype", dtype(a.Input)), field("rms", a.Kind == devicecgo.ABINorm(true)),
			field("axis", a.Axis), field("links", a.NumLinks), field("topology", topology(a.Topology)), field("semaphores", list(a.Semaphores[:])),
			field("stats_buffer", name(a.Stats)), field("num_heads", a.NumHeads), field("rope", a.RopeCos != 0))
	case *devicecgo.RingJointSDPA:
		effect(row, "ring_joint_sdpa", field("q", shape(a.Q)), field("k", shape(a.K)), field("dtype", dtype(a.Q)), field("joint", shape(a.JointQ)),
			field("axis", a.Axis), field("links", a.NumLinks), field("topology", topology(a.Topology)), field("semaphores", list(a.Semaphores[:])),
			field("buffer_k", name(a.BufferK)), field("buffer_v", name(a.BufferV)), field("logical_n", optionalNumber(&a.OpHeader, devicecgo.HasLogicalN, a.LogicalN)))
	case *devicecgo.Matmul:
		effect(row, "matmul", field("input", shape(a.Input)), field("weight", shape(a.Weight)), field("bias", shape(a.Bias)), field("dtype", dtype(a.Input)))
	case *devicecgo.Norm:
		call := "layer_norm"
		if a.Kind == devicecgo.ABINorm(true) {
			call = "rms_norm"
		}
		effect(row, call, field("input", shape(a.Input)), field("weight", shape(a.Weight)), field("bias", shape(a.Bias)), field("dtype", dtype(a.Input)))
	case *devicecgo.Rope:
		effect(row, "rope", field("input", shape(a.Input)), field("dtype", dtype(a.Input)))
	case *devicecgo.SDPA:
		effect(row, "sdpa", field("q", shape(a.Q)), field("k", shape(a.K)), field("dtype", dtype(a.Q)),
			field("logical_n", optionalNumber(&a.OpHeader, devicecgo.HasLogicalN, a.LogicalN)))
	case *devicecgo.Binary:
		effect(row, messages.BinaryKind(a.Kind).String(), field("a", shape(a.A)), field("b", shape(a.B)), field("dtype", dtype(a.A)))
	case *devicecgo.Addcmul:
		effect(row, "addcmul", field("input", shape(a.Input)), field("x", shape(a.X)), field("y", shape(a.Y)), field("dtype", dtype(a.Input)))
	case *devicecgo.Activation:
		effect(row, "activation", field("input", shape(a.Input)), field("dtype", dtype(a.Input)))
	case *devicecgo.Slice:
		effect(row, "slice", field("input", shape(a.Input)), field("begin", numbers(a.Begin[:a.Rank])), field("end", numbers(a.End[:a.Rank])))
	case *devicecgo.Concat:
		all := make([]any, a.Count)
		for i := range all {
			all[i] = shape(a.Inputs[i])
		}
		effect(row, "concat", field("inputs", all), field("dim", a.Dim))
	case *devicecgo.Reshape:
		effect(row, "reshape", field("input", shape(a.Input)), field("shape", numbers(a.Dims[:a.Rank])))
	case *devicecgo.Permute:
		effect(row, "permute", field("input", shape(a.Input)), field("order", numbers(a.Order[:a.Rank])))
	case *devicecgo.NeighborPad:
		var sems []any
		var dims, axes, left, right, links []uint32
		for i := range a.Count {
			if a.Semaphores[i] != 0 {
				sems = append(sems, name(a.Semaphores[i]))
			}
			dims, axes, links = append(dims, a.Dims[i]), append(axes, a.Axes[i]), append(links, a.NumLinks[i])
			left, right = append(left, a.PadLeft[i]), append(right, a.PadRight[i])
		}
		effect(row, "neighbor_pad", field("input", shape(a.Input)), field("dtype", dtype(a.Input)), field("dims", dims), field("pad_left", left),
			field("pad_right", right), field("padding_mode", padding(a.Mode)), field("axes", axes), field("semaphores", sems), field("barrier", name(a.Barrier)),
			field("links", links), field("topology", messages.Linear.String()), field("output_buffer", name(a.Output)), field("logical_h", a.LogicalH),
			field("t_front_pad", a.TFrontPad))
	case *devicecgo.NeighborPadHalo:
		// Without a W part the reference passes the H semaphore twice and one link on axis 0.
		w, dimW, linksW := a.SemaphoreW, 0, uint32(1)
		if a.Present&devicecgo.HasW != 0 {
			dimW, linksW = d.names[a.Input].spec.Shape.Rank()-2, a.LinksW
		} else {
			w = a.SemaphoreH
		}
		effect(row, "neighbor_pad_halo", field("input", shape(a.Input)), field("dtype", dtype(a.Input)), field("halo_buffer", name(a.Halo)),
			field("pad_h", a.PadHLeft), field("pad_h_right", a.PadHRight), field("pad_w", a.PadWLeft), field("axis_h", a.AxisH), field("links_h", a.LinksH),
			field("topology", messages.Linear.String()), field("semaphore_h", name(a.SemaphoreH)), field("barrier", name(a.Barrier)),
			field("semaphore_w", name(w)), field("dim_w", dimW), field("pad_w_left", a.PadWLeft), field("pad_w_right", a.PadWRight),
			field("axis_w", a.AxisW), field("links_w", linksW), field("padding_mode", padding(a.Mode)), field("input_pad_h", a.InputPadH),
			field("input_pad_w", a.InputPadW), field("padded_output", held(a.PaddedOutput)))
	case *devicecgo.HaloScatter:
		effect(row, "halo_scatter", field("compact", held(a.Compact)), field("padded", held(a.Padded)), field("pad_h", a.PadHLeft), field("pad_w", a.PadWLeft),
			field("pad_h_right", a.PadHRight), field("pad_w_right", a.PadWRight), field("border_only", a.BorderOnly != 0))
	case *devicecgo.SliceReshard:
		effect(row, "slice_reshard", field("input", shape(a.Input)), field("dtype", dtype(a.Input)), field("dim", 0), field("output_dim_offset", a.Offset),
			field("output_dim_shape", a.Size), field("axis", a.Axis), field("links", a.NumLinks), field("topology", topology(a.Topology)),
			field("semaphore", name(a.Semaphore)), field("barrier", name(a.Barrier)))
	case *devicecgo.PointToPoint:
		effect(row, "point_to_point", field("input", shape(a.Input)), field("dtype", dtype(a.Input)), field("from", numbers(a.From[:a.Count])),
			field("to", numbers(a.To[:a.Count])), field("axis", a.Axis), field("links", a.NumLinks), field("topology", topology(a.Topology)),
			field("semaphore", name(a.Semaphore)), field("barrier", name(a.Barrier)))
	case *devicecgo.ExpRingJointSDPA:
		effect(row, "exp_ring_joint_sdpa", field("q", shape(a.Q)), field("k", shape(a.K)), field("dtype", dtype(a.Q)), field("joint", shape(a.JointQ)),
			field("axis", a.Axis), field("links", a.NumLinks), field("topology", topology(a.Topology)), field("semaphores", list(a.Semaphores[:])),
			field("buffer_k", name(a.BufferK)), field("buffer_v", name(a.BufferV)), field("logical_n", optionalNumber(&a.OpHeader, devicecgo.HasLogicalN, a.LogicalN)))
	case *devicecgo.StridedAllGatherMatmul:
		effect(row, "strided_all_gather_minimal_matmul", field("input", shape(a.Input)), field("weight", shape(a.Weight)), field("bias", shape(a.Bias)),
			field("dtype", dtype(a.Input)), field("axis", a.Axis), field("links", a.NumLinks), field("topology", topology(a.Topology)),
			field("num_workers_per_link", a.NumWorkersPerLink), field("semaphores", list(a.Semaphores[:])), field("output_buffer", name(a.Gathered)))
	case *devicecgo.MatmulStridedReduceScatter:
		effect(row, "matmul_strided_reduce_scatter", field("input", shape(a.Input)), field("weight", shape(a.Weight)), field("bias", shape(a.Bias)),
			field("dtype", dtype(a.Input)), field("axis", a.Axis), field("links", a.NumLinks), field("topology", topology(a.Topology)),
			field("semaphores", list(a.Semaphores[:])), field("barrier", name(a.Barrier)), field("progress", name(a.Progress)), field("credit", name(a.Credit)),
			field("output_buffer", name(a.Output)), field("addcmul", a.Residual != 0))
	case *devicecgo.Conv3D:
		effect(row, "conv3d", field("input", shape(a.Input)), field("weight", shape(a.Weight)), field("bias", shape(a.Bias)), field("dtype", dtype(a.Input)),
			field("kernel", a.Kernel), field("stride", a.Stride), field("padding", a.Padding), field("dilation", a.Dilation), field("groups", a.Groups),
			field("padding_mode", padding(a.Mode)), field("halo_buffer", held(a.Halo)))
	case *devicecgo.NPConv3D:
		effect(row, "np_conv3d", field("input", shape(a.Input)), field("weight", shape(a.Weight)), field("bias", shape(a.Bias)), field("dtype", dtype(a.Input)),
			field("axis_h", a.AxisH), field("axis_w", a.AxisW), field("links", a.Links), field("semaphore_h", name(a.SemaphoreH)),
			field("semaphore_w", name(a.SemaphoreW)), field("barrier", name(a.Barrier)), field("region", list(a.Region[:])), field("halo_buffer", name(a.Halo)),
			field("kernel", a.Kernel), field("stride", a.Stride), field("padding", a.Padding), field("dilation", a.Dilation), field("groups", a.Groups),
			field("padding_mode", padding(a.Mode)))
	case *devicecgo.GroupNorm:
		effect(row, "group_norm", field("input", shape(a.Input)), field("weight", shape(a.Weight)), field("bias", shape(a.Bias)), field("stats", shape(a.Stats)),
			field("dtype", dtype(a.Input)), field("num_groups", a.NumGroups))
	case *devicecgo.GroupNormStats:
		effect(row, "group_norm_stats", field("input", shape(a.Input)), field("dtype", dtype(a.Input)), field("num_groups", a.NumGroups),
			field("logical_h", optionalNumber(&a.OpHeader, devicecgo.HasLogicalH, a.LogicalH)),
			field("logical_w", optionalNumber(&a.OpHeader, devicecgo.HasLogicalW, a.LogicalW)))
	case *devicecgo.Convert:
		effect(row, "convert", field("input", shape(a.Input)), field("dtype", devicecgo.DTypeOf(a.DType).String()), field("layout", devicecgo.LayoutOf(a.Layout).String()))
	}
}

// numbers copies what the builder will overwrite.
func numbers(v []uint32) []uint32 { return append([]uint32{}, v...) }

func optionalNumber(h *devicecgo.OpHeader, bit uint32, n uint32) any {
	if h.Present&bit != 0 {
		return n
	}
	return nil
}
