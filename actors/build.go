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

func (t *task) barrier() devicecgo.Handle {
	var h [1]devicecgo.Handle
	t.semaphores(messages.PoolBarrier, h[:])
	return h[0]
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
		*a = devicecgo.AllGather{OpHeader: header(devicecgo.OpAllGather, unsafe.Sizeof(*a)), Input: in.at(0), Output: t.buffer(0, 0),
			Barrier: t.barrier(), Dim: uint32(p.Dim), Axis: uint32(p.Axis), NumLinks: uint32(p.NumLinks), Topology: topology}
		t.semaphores(messages.PoolAG, a.Semaphores[:])
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
		return nil, fmt.Errorf("%w: no launch for %s", messages.ErrInternal, p.Kind)
	}
	return args, in.err
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
	}
	return 0
}
