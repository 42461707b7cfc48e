package actors

import (
	"fmt"
	"unsafe"

	"github.com/meshrun/meshrun/axis"
	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/messages"
)

// builder makes the args struct of a launch in memory that it reuses.
type builder struct {
	allGather     devicecgo.AllGather
	reduceScatter devicecgo.ReduceScatter
	matmul        devicecgo.Matmul
	norm          devicecgo.Norm
	fusedNorm     devicecgo.FusedDistributedNorm
	rope          devicecgo.Rope
	sdpa          devicecgo.SDPA
	ringSDPA      devicecgo.RingJointSDPA
	binary        devicecgo.Binary
	addcmul       devicecgo.Addcmul
	activation    devicecgo.Activation
	slice         devicecgo.Slice
	concat        devicecgo.Concat
	reshape       devicecgo.Reshape
	permute       devicecgo.Permute
	convert       devicecgo.Convert

	neighborPad  devicecgo.NeighborPad
	padHalo      devicecgo.NeighborPadHalo
	haloScatter  devicecgo.HaloScatter
	sliceReshard devicecgo.SliceReshard
	pointToPoint devicecgo.PointToPoint
	expRingSDPA  devicecgo.ExpRingJointSDPA
	stridedAGMM  devicecgo.StridedAllGatherMatmul
	matmulRS     devicecgo.MatmulStridedReduceScatter
	conv3D       devicecgo.Conv3D
	npConv3D     devicecgo.NPConv3D
	groupNorm    devicecgo.GroupNorm
	groupStats   devicecgo.GroupNormStats
}

func header(op uint32, size uintptr) devicecgo.OpHeader {
	return devicecgo.OpHeader{Op: op, Size: uint32(size)}
}

// inputs resolves the driver's handles of a task's inputs; the first error stays.
type inputs struct {
	d   *device
	t   *task
	err error
}

func (in *inputs) at(i int) devicecgo.Handle {
	t := in.t.in[i]
	if t == nil || in.err != nil {
		return 0
	}
	h, err := in.d.handle(t, in.t.plan.Views[i])
	if err != nil {
		in.err = err
	}
	return h
}

// output is the driver's tensor that result i goes into: a pool's buffer under the result's shape, or 0 where the driver allocates it.
func (in *inputs) output(i int) devicecgo.Handle {
	o := &in.t.plan.Outputs[i]
	if o.Buffer == axis.Fresh || in.err != nil {
		return 0
	}
	h, err := in.d.as(&in.t.bufs[o.Buffer].buffers[o.Part], o.Driver.Shape)
	if err != nil {
		in.err = err
	}
	return h
}

// buffer is the handle of one buffer that the task got, 0 where it got none.
func (t *task) buffer(i, part int) devicecgo.Handle {
	if b := t.bufs[i]; b != nil {
		return b.buffers[part].base
	}
	return 0
}

// semaphores finds the bank that the task got of a pool.
func (t *task) semaphores(pool messages.Pool, out []devicecgo.Handle) {
	for i, n := range t.plan.Semaphores[:t.plan.NumSemaphores] {
		if n.Pool == pool {
			copy(out, t.sems[i].semaphores)
		}
	}
}

func (t *task) barrier() devicecgo.Handle { return t.semaphore(messages.PoolBarrier) }

// semaphore is the one semaphore of the bank that the task got of a pool; 0 where it draws none.
func (t *task) semaphore(pool messages.Pool) devicecgo.Handle {
	var h [1]devicecgo.Handle
	t.semaphores(pool, h[:])
	return h[0]
}

// neighbor is the semaphore of a dim of a halo exchange; 0 where that dim is not padded.
func (t *task) neighbor(dim int) devicecgo.Handle {
	if h := &t.plan.Halo; dim < h.Count && h.Neighbor[dim] >= 0 {
		return t.sems[h.Neighbor[dim]].semaphores[0]
	}
	return 0
}

func hyper(h axis.Hyper, present, chunks, workers, buffers *uint32) {
	if h.Set {
		*present |= devicecgo.HasChunksPerSync | devicecgo.HasWorkers | devicecgo.HasBuffers
		*chunks, *workers, *buffers = uint32(h.ChunksPerSync), uint32(h.NumWorkersPerLink), uint32(h.NumBuffersPerChannel)
	}
}

// args fills the struct that the driver gets for a task. The result is valid until the next call.
func (b *builder) args(d *device, t *task) (devicecgo.Args, error) {
	in := inputs{d: d, t: t}
	p := t.plan
	topology := devicecgo.ABITopology(max(p.Topology, messages.Linear))
	var args devicecgo.Args
	switch op := p.Op.(type) {
	case messages.AllGather:
		a := &b.allGather
		*a = devicecgo.AllGather{OpHeader: header(devicecgo.OpAllGather, unsafe.Sizeof(*a)), Input: in.at(0), Output: in.output(0),
			Barrier: t.barrier(), Dim: uint32(p.Dim), Axis: uint32(p.Axis), NumLinks: uint32(p.NumLinks), Topology: topology}
		t.semaphores(p.Semaphores[p.NumSemaphores-1].Pool, a.Semaphores[:]) // ag or fsdp
		hyper(p.Hyper, &a.Present, &a.ChunksPerSync, &a.NumWorkersPerLink, &a.NumBuffersPerChannel)
		args = a
	case messages.ReduceScatter:
		a := &b.reduceScatter
		*a = devicecgo.ReduceScatter{OpHeader: header(devicecgo.OpReduceScatter, unsafe.Sizeof(*a)), Input: in.at(0),
			Barrier: t.barrier(), Dim: uint32(p.Dim), Axis: uint32(p.Axis), NumLinks: uint32(p.NumLinks), Topology: topology,
			Memory: devicecgo.ABIMemory(messages.DRAM)}
		if t.bufs[0] != nil {
			a.Intermediate, a.Output = t.buffer(0, 0), t.buffer(0, 1)
		}
		t.semaphores(messages.PoolRS, a.Semaphores[:])
		hyper(p.Hyper, &a.Present, &a.ChunksPerSync, &a.NumWorkersPerLink, &a.NumBuffersPerChannel)
		args = a
	case messages.Matmul:
		a := &b.matmul
		*a = devicecgo.Matmul{OpHeader: header(devicecgo.OpMatmul, unsafe.Sizeof(*a)), Input: in.at(0), Weight: in.at(1), Bias: in.at(2),
			Activation: devicecgo.ABIActivation(op.Activation), TransposeB: flag(op.TransposeB), DType: devicecgo.ABIDType(p.Outputs[0].Driver.DType)}
		args = a
	case messages.Norm:
		a := &b.norm
		*a = devicecgo.Norm{OpHeader: header(devicecgo.OpNorm, unsafe.Sizeof(*a)), Input: in.at(0), Weight: in.at(1), Bias: in.at(2),
			Kind: devicecgo.ABINorm(op.RMS), Epsilon: op.Epsilon}
		args = a
	case messages.FusedDistributedNorm:
		a := &b.fusedNorm
		*a = devicecgo.FusedDistributedNorm{OpHeader: header(devicecgo.OpFusedDistributedNorm, unsafe.Sizeof(*a)), Input: in.at(0),
			Weight: in.at(1), Bias: in.at(2), RopeCos: in.at(3), RopeSin: in.at(4), Stats: t.buffer(0, 0),
			Kind: devicecgo.ABINorm(op.RMS), Epsilon: op.Epsilon, NumLinks: uint32(d.rt.mesh.NumLinks), Topology: topology,
			NumHeads: uint32(max(op.NumHeads, 1))}
		if p.Axis != messages.NoAxis {
			a.Present |= devicecgo.HasAxis
			a.Axis = uint32(p.Axis)
		}
		t.semaphores(messages.PoolAG, a.Semaphores[:])
		args = a
	case messages.Rope:
		a := &b.rope
		*a = devicecgo.Rope{OpHeader: header(devicecgo.OpRope, unsafe.Sizeof(*a)), Input: in.at(0), Cos: in.at(1), Sin: in.at(2), Mode: devicecgo.ABIRope(op.Half)}
		args = a
	case messages.SDPA:
		a := &b.sdpa
		*a = devicecgo.SDPA{OpHeader: header(devicecgo.OpSDPA, unsafe.Sizeof(*a)), Q: in.at(0), K: in.at(1), V: in.at(2)}
		attention(&a.OpHeader, &a.Scale, &a.LogicalN, op.Scale, op.LogicalN)
		args = a
	case messages.RingJointSDPA:
		a := &b.ringSDPA
		*a = devicecgo.RingJointSDPA{OpHeader: header(devicecgo.OpRingJointSDPA, unsafe.Sizeof(*a)), Q: in.at(0), K: in.at(1), V: in.at(2),
			JointQ: in.at(3), JointK: in.at(4), JointV: in.at(5), BufferK: t.buffer(0, 0), BufferV: t.buffer(1, 0),
			Axis: uint32(op.MeshAxis), NumLinks: uint32(d.rt.mesh.NumLinks), Topology: topology}
		attention(&a.OpHeader, &a.Scale, &a.LogicalN, op.Scale, op.LogicalN)
		t.semaphores(messages.PoolAG, a.Semaphores[:])
		args = a
	case messages.Binary:
		a := &b.binary
		*a = devicecgo.Binary{OpHeader: header(devicecgo.OpBinary, unsafe.Sizeof(*a)), A: in.at(0), B: in.at(1), Kind: devicecgo.ABIBinary(op.Fn), Scalar: op.Scalar}
		if a.B == 0 {
			a.Present |= devicecgo.HasScalar
		}
		args = a
	case messages.Addcmul:
		a := &b.addcmul
		*a = devicecgo.Addcmul{OpHeader: header(devicecgo.OpAddcmul, unsafe.Sizeof(*a)), Input: in.at(0), X: in.at(1), Y: in.at(2)}
		args = a
	case messages.Activation:
		a := &b.activation
		*a = devicecgo.Activation{OpHeader: header(devicecgo.OpActivation, unsafe.Sizeof(*a)), Input: in.at(0), Kind: devicecgo.ABIActivation(op.Fn)}
		args = a
	case messages.Slice:
		a := &b.slice
		*a = devicecgo.Slice{OpHeader: header(devicecgo.OpSlice, unsafe.Sizeof(*a)), Input: in.at(0), Rank: uint32(op.Begin.Len())}
		for i := range op.Begin.Len() {
			a.Begin[i], a.End[i] = uint32(op.Begin.At(i)), uint32(op.End.At(i))
		}
		args = a
	case messages.Concat:
		a := &b.concat
		*a = devicecgo.Concat{OpHeader: header(devicecgo.OpConcat, unsafe.Sizeof(*a)), Dim: uint32(p.Dim)}
		for i, x := range t.in {
			if x != nil {
				a.Inputs[i] = in.at(i)
				a.Count++
			}
		}
		args = a
	case messages.Reshape:
		a := &b.reshape
		*a = devicecgo.Reshape{OpHeader: header(devicecgo.OpReshape, unsafe.Sizeof(*a)), Input: in.at(0), Rank: uint32(op.Shape.Rank())}
		for i := range op.Shape.Rank() {
			a.Dims[i] = uint32(op.Shape.Dim(i))
		}
		args = a
	case messages.Permute:
		a := &b.permute
		*a = devicecgo.Permute{OpHeader: header(devicecgo.OpPermute, unsafe.Sizeof(*a)), Input: in.at(0), Rank: uint32(op.Order.Len())}
		for i := range op.Order.Len() {
			a.Order[i] = uint32(op.Order.At(i))
		}
		args = a
	case messages.Convert:
		a := &b.convert
		out := p.Outputs[0].Driver
		*a = devicecgo.Convert{OpHeader: header(devicecgo.OpConvert, unsafe.Sizeof(*a)), Input: in.at(0), DType: devicecgo.ABIDType(out.DType), Layout: devicecgo.ABILayout(out.Layout)}
		args = a
	default:
		args = b.more(d, t, &in, topology)
		if args == nil {
			return nil, fmt.Errorf("%w: no launch for %s", messages.ErrInternal, p.Kind)
		}
	}
	return args, in.err
}

// more builds the halo exchanges and the fused operations; nil for anything else.
func (b *builder) more(d *device, t *task, in *inputs, topology uint32) devicecgo.Args {
	p, h := t.plan, &t.plan.Halo
	switch op := p.Op.(type) {
	case messages.NeighborPad:
		a := &b.neighborPad
		*a = devicecgo.NeighborPad{OpHeader: header(devicecgo.OpNeighborPad, unsafe.Sizeof(*a)), Input: in.at(0), Output: in.output(0),
			Semaphores: [2]devicecgo.Handle{t.neighbor(0), t.neighbor(1)}, Barrier: t.barrier(), Count: uint32(h.Count),
			Mode: devicecgo.ABIPad(op.Mode), TFrontPad: uint32(op.TFrontPad)}
		for i := range h.Count {
			a.Dims[i], a.Axes[i], a.NumLinks[i] = uint32(h.Dims[i]), uint32(h.Axes[i]), uint32(h.NumLinks[i])
			a.PadLeft[i], a.PadRight[i] = uint32(h.Pad[i][0]), uint32(h.Pad[i][1])
		}
		if op.LogicalH > 0 {
			a.Present |= devicecgo.HasLogicalH
			a.LogicalH = uint32(op.LogicalH)
		}
		return a
	case messages.NeighborPadHalo:
		a := &b.padHalo
		halo := p.NumBuffers - 1
		*a = devicecgo.NeighborPadHalo{OpHeader: header(devicecgo.OpNeighborPadHalo, unsafe.Sizeof(*a)), Input: in.at(0), Halo: t.buffer(halo, 0),
			PaddedOutput: in.at(1), SemaphoreH: t.neighbor(0), SemaphoreW: t.neighbor(1), Barrier: t.barrier(),
			AxisH: uint32(h.Axes[0]), PadHLeft: uint32(h.Pad[0][0]), PadHRight: uint32(h.Pad[0][1]), LinksH: uint32(h.NumLinks[0]),
			Mode: devicecgo.ABIPad(op.Mode), InputPadH: uint32(op.InputPadH), InputPadW: uint32(op.InputPadW)}
		if op.IntoPadded {
			a.PaddedOutput = t.buffer(0, 0)
		}
		if h.Count == 2 {
			a.Present |= devicecgo.HasW
			a.AxisW, a.PadWLeft, a.PadWRight, a.LinksW = uint32(h.Axes[1]), uint32(h.Pad[1][0]), uint32(h.Pad[1][1]), uint32(h.NumLinks[1])
		}
		return a
	case messages.HaloScatter:
		a := &b.haloScatter
		*a = devicecgo.HaloScatter{OpHeader: header(devicecgo.OpHaloScatter, unsafe.Sizeof(*a)), Compact: in.at(0), Padded: in.at(1),
			PadHLeft: uint32(h.Pad[0][0]), PadHRight: uint32(h.Pad[0][1]), PadWLeft: uint32(h.Pad[1][0]), PadWRight: uint32(h.Pad[1][1]),
			BorderOnly: flag(op.BorderOnly)}
		return a
	case messages.SliceReshard:
		a := &b.sliceReshard
		*a = devicecgo.SliceReshard{OpHeader: header(devicecgo.OpSliceReshard, unsafe.Sizeof(*a)), Input: in.at(0), Semaphore: t.semaphore(messages.PoolSR),
			Barrier: t.barrier(), Offset: uint32(op.Offset), Size: uint32(op.Size), Axis: uint32(p.Axis), NumLinks: uint32(p.NumLinks), Topology: topology}
		return a
	case messages.PointToPoint:
		a := &b.pointToPoint
		*a = devicecgo.PointToPoint{OpHeader: header(devicecgo.OpPointToPoint, unsafe.Sizeof(*a)), Input: in.at(0), Semaphore: t.semaphore(messages.PoolSR),
			Barrier: t.barrier(), Axis: uint32(p.Axis), NumLinks: uint32(p.NumLinks), Topology: topology}
		for i, pair := range op.Pairs() {
			number := func(c messages.Coord) uint32 { return uint32(c.Row*d.rt.mesh.Shape.Cols + c.Col) }
			a.From[i], a.To[i] = number(pair.From), number(pair.To)
			a.Count++
		}
		return a
	case messages.ExpRingJointSDPA:
		a := &b.expRingSDPA
		*a = devicecgo.ExpRingJointSDPA{OpHeader: header(devicecgo.OpExpRingJointSDPA, unsafe.Sizeof(*a)), Q: in.at(0), K: in.at(1), V: in.at(2),
			JointQ: in.at(3), JointK: in.at(4), JointV: in.at(5), BufferK: t.buffer(0, 0), BufferV: t.buffer(1, 0),
			Axis: uint32(op.MeshAxis), NumLinks: uint32(p.NumLinks), Topology: topology}
		attention(&a.OpHeader, &a.Scale, &a.LogicalN, op.Scale, op.LogicalN)
		t.semaphores(messages.PoolExpRing, a.Semaphores[:])
		return a
	case messages.StridedAllGatherMatmul:
		a := &b.stridedAGMM
		*a = devicecgo.StridedAllGatherMatmul{OpHeader: header(devicecgo.OpStridedAllGatherMatmul, unsafe.Sizeof(*a)), Input: in.at(0), Weight: in.at(1),
			Bias: in.at(2), Gathered: t.buffer(0, 0), SemaphoreCount: uint32(len(t.sems[0].semaphores)), Axis: uint32(p.Axis), NumLinks: uint32(p.NumLinks),
			Topology: topology, NumWorkersPerLink: uint32(p.Hyper.NumWorkersPerLink), Activation: devicecgo.ABIActivation(op.Activation)}
		if n := p.Hyper.NumBuffersPerChannel; n > 0 {
			a.Present |= devicecgo.HasBuffers
			a.NumBuffersPerChannel = uint32(n)
		}
		copy(a.Semaphores[:], t.sems[0].semaphores)
		return a
	case messages.MatmulStridedReduceScatter:
		a := &b.matmulRS
		*a = devicecgo.MatmulStridedReduceScatter{OpHeader: header(devicecgo.OpMatmulStridedReduceScatter, unsafe.Sizeof(*a)), Input: in.at(0),
			Weight: in.at(1), Bias: in.at(2), Residual: in.at(3), Gate: in.at(4), Progress: t.buffer(0, 0), Output: in.output(0),
			Barrier: t.barrier(), Axis: uint32(p.Axis), NumLinks: uint32(p.NumLinks), Topology: topology}
		if op.Credits {
			a.Credit = t.buffer(1, 0)
		}
		if op.Scalar != 0 {
			a.Present |= devicecgo.HasScalar
			a.Scalar = op.Scalar
		}
		pool := messages.PoolRS
		if op.FusedSemaphores {
			pool = messages.PoolRSFused
		}
		t.semaphores(pool, a.Semaphores[:])
		return a
	case messages.Conv3D:
		a := &b.conv3D
		*a = devicecgo.Conv3D{OpHeader: header(devicecgo.OpConv3D, unsafe.Sizeof(*a)), Input: in.at(0), Weight: in.at(1), Bias: in.at(2), Halo: in.at(3),
			Kernel: triple(op.Kernel, 0), Stride: triple(op.Stride, 1), Padding: triple(op.Padding, 0), Dilation: triple(op.Dilation, 1),
			Groups: uint32(max(op.Groups, 1)), Mode: devicecgo.ABIPad(op.Mode)}
		return a
	case messages.NPConv3D:
		a := &b.npConv3D
		*a = devicecgo.NPConv3D{OpHeader: header(devicecgo.OpNPConv3D, unsafe.Sizeof(*a)), Input: in.at(0), Weight: in.at(1), Bias: in.at(2),
			Halo: t.buffer(0, 0), SemaphoreH: t.neighbor(0), SemaphoreW: t.neighbor(1), Barrier: t.semaphore(messages.PoolBarrierFused),
			AxisH: uint32(op.Axes[0]), AxisW: uint32(op.Axes[1]), Links: uint32(p.NumLinks), Mode: devicecgo.ABIPad(op.Mode),
			Kernel: triple(op.Kernel, 0), Stride: triple(op.Stride, 1), Padding: triple(op.Padding, 0), Dilation: triple(op.Dilation, 1),
			Groups: uint32(max(op.Groups, 1))}
		a.Present |= devicecgo.HasW
		t.semaphores(messages.PoolNPRegion, a.Region[:])
		return a
	case messages.GroupNorm:
		a := &b.groupNorm
		*a = devicecgo.GroupNorm{OpHeader: header(devicecgo.OpGroupNorm, unsafe.Sizeof(*a)), Input: in.at(0), Weight: in.at(1), Bias: in.at(2), Stats: in.at(3),
			NumGroups: uint32(op.Groups), Activation: devicecgo.ABIActivation(op.Activation), Epsilon: op.Epsilon}
		return a
	case messages.GroupNormStats:
		a := &b.groupStats
		*a = devicecgo.GroupNormStats{OpHeader: header(devicecgo.OpGroupNormStats, unsafe.Sizeof(*a)), Input: in.at(0), NumGroups: uint32(op.Groups)}
		if op.LogicalH > 0 {
			a.Present |= devicecgo.HasLogicalH
			a.LogicalH, a.AxisH = uint32(op.LogicalH), uint32(op.AxisH)
		}
		if op.LogicalW > 0 {
			a.Present |= devicecgo.HasLogicalW
			a.LogicalW, a.AxisW = uint32(op.LogicalW), uint32(op.AxisW)
		}
		return a
	}
	return nil
}

// triple is a T, H, W of the ABI; all zeros stand for the default.
func triple(v [3]int, def uint32) [3]uint32 {
	if v == [3]int{} {
		return [3]uint32{def, def, def}
	}
	return [3]uint32{uint32(v[0]), uint32(v[1]), uint32(v[2])}
}

func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

func attention(h *devicecgo.OpHeader, scaleOut *float32, nOut *uint32, scale float32, n int) {
	if scale != 0 {
		h.Present |= devicecgo.HasScale
		*scaleOut = scale
	}
	if n != 0 {
		h.Present |= devicecgo.HasLogicalN
		*nOut = uint32(n)
	}
}

// outputOf is result i of a launch that the driver has accepted.
func outputOf(args devicecgo.Args, i int) devicecgo.Handle {
	switch a := args.(type) {
	case *devicecgo.AllGather:
		return a.Output
	case *devicecgo.ReduceScatter:
		return a.Output
	case *devicecgo.Matmul:
		return a.Output
	case *devicecgo.Norm:
		return a.Output
	case *devicecgo.FusedDistributedNorm:
		return a.Output
	case *devicecgo.Rope:
		return a.Output
	case *devicecgo.SDPA:
		return a.Output
	case *devicecgo.RingJointSDPA:
		return [2]devicecgo.Handle{a.Output, a.JointOutput}[i]
	case *devicecgo.Binary:
		return a.Output
	case *devicecgo.Addcmul:
		return a.Output
	case *devicecgo.Activation:
		return a.Output
	case *devicecgo.Slice:
		return a.Output
	case *devicecgo.Concat:
		return a.Output
	case *devicecgo.Reshape:
		return a.Output
	case *devicecgo.Permute:
		return a.Output
	case *devicecgo.Convert:
		return a.Output
	case *devicecgo.NeighborPad:
		return a.Output
	case *devicecgo.SliceReshard:
		return a.Output
	case *devicecgo.PointToPoint:
		return a.Output
	case *devicecgo.HaloScatter:
		return a.Output
	case *devicecgo.ExpRingJointSDPA:
		return [2]devicecgo.Handle{a.Output, a.JointOutput}[i]
	case *devicecgo.StridedAllGatherMatmul:
		return a.Output
	case *devicecgo.MatmulStridedReduceScatter:
		return a.Output
	case *devicecgo.Conv3D:
		return a.Output
	case *devicecgo.NPConv3D:
		return a.Output
	case *devicecgo.GroupNorm:
		return a.Output
	case *devicecgo.GroupNormStats:
		return a.Output
	}
	return 0
}
