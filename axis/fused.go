package axis

import (
	"github.com/meshrun/meshrun/messages"
)

// maxWorkers bounds num_workers_per_link; with four links it fills the ABI's list of semaphores.
const maxWorkers = 8

func planStridedAllGatherMatmul(m Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.StridedAllGatherMatmul)
	x, weight := in[0], in[1]
	if op.MeshAxis != 0 && op.MeshAxis != 1 {
		return fail("mesh_axis", op.MeshAxis, "is 0 or 1")
	}
	n := m.Shape.Axis(op.MeshAxis)
	if n == 1 {
		return fail("mesh_axis", op.MeshAxis, "is longer than 1; use matmul where nothing is gathered")
	}
	workers := op.NumWorkersPerLink
	if workers == 0 {
		workers = 2
	}
	if workers < 1 || workers > maxWorkers || m.NumLinks > 4 {
		return fail("num_workers_per_link", op.NumWorkersPerLink, "is 1 to %d, on at most 4 links", maxWorkers)
	}
	if op.NumBuffersPerChannel < 0 {
		return fail("num_buffers_per_channel", op.NumBuffersPerChannel, "is positive, or 0 for the driver's choice")
	}
	if err := checkRank("input", x.Shape, 4, 4); err != nil {
		return err
	}
	if x.Layout != messages.Tile {
		return fail("input layout", x.Layout, "is tile: it is gathered into a persistent buffer")
	}
	gathered := x
	gathered.Shape = x.Shape.With(3, x.Shape.Dim(3)*n)
	if err := planMatmul(m, messages.Matmul{Activation: op.Activation}, []messages.Spec{gathered, weight, in[2]}, p); err != nil {
		return err
	}
	if err := checkMatrix("weight", weight.Shape); err != nil {
		return err
	}
	if err := checkWholeBlocks(x, 3); err != nil {
		return err
	}
	key, parts, err := BufferParts(m, messages.BufferKey{Kind: messages.BufferAG, Shape: x.Shape, Dim: 3, Axis: op.MeshAxis, DType: x.DType})
	if err != nil {
		return err
	}
	p.buffer(key, parts, op.MeshAxis, AfterLineJoin)
	p.need(messages.PoolStridedAGMM, op.MeshAxis, AfterLineJoin)
	p.Semaphores[0].Workers = workers
	p.Axis, p.Dim = op.MeshAxis, 3
	p.NumLinks, p.Topology, p.Joins[op.MeshAxis] = m.NumLinks, m.Topology[op.MeshAxis], JoinsLine
	p.Hyper = Hyper{NumWorkersPerLink: workers, NumBuffersPerChannel: op.NumBuffersPerChannel}
	return nil
}

func planMatmulStridedReduceScatter(m Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.MatmulStridedReduceScatter)
	x, weight, bias, residual, gate := in[0], in[1], in[2], in[3], in[4]
	if op.MeshAxis != 0 && op.MeshAxis != 1 {
		return fail("mesh_axis", op.MeshAxis, "is 0 or 1")
	}
	n := m.Shape.Axis(op.MeshAxis)
	if m.Topology[op.MeshAxis] != messages.Ring {
		return &messages.InvalidError{Field: "topology", Value: m.Topology[op.MeshAxis].String(), Rule: describe("is ring on axis %d: the fused scatter runs on rings only", op.MeshAxis),
			Hint: "use matmul, then reduce_scatter"}
	}
	if op.UsePersistentBuffer && x.Layout != messages.Tile {
		return fail("input layout", x.Layout, "is tile where a persistent buffer is used")
	}
	if err := checkRank("input", x.Shape, 4, 4); err != nil {
		return err
	}
	if err := planMatmul(m, messages.Matmul{}, []messages.Spec{x, weight, {}}, p); err != nil {
		return err
	}
	if err := checkMatrix("weight", weight.Shape); err != nil {
		return err
	}
	product := p.Outputs[0].Driver
	p.NumOutputs = 0
	if product.Shape.Dim(3)%n != 0 {
		return fail("weight", weight.Shape, "has a last dim that divides by the length %d of axis %d", n, op.MeshAxis)
	}
	out := product
	out.Shape = product.Shape.With(3, product.Shape.Dim(3)/n)
	if present(bias) && !isRow(bias.Shape, out.Shape.Dim(3)) {
		return fail("bias", bias.Shape, "is [.., 1, %d], the owner's part", out.Shape.Dim(3))
	}
	if present(residual) != present(gate) {
		return fail("residual and gate", "one", "are both or none")
	}
	if !present(residual) && op.Scalar != 0 {
		return fail("scalar", op.Scalar, "belongs to residual and gate")
	}
	for i, t := range []messages.Spec{residual, gate} {
		if present(t) {
			if err := checkBroadcast([]string{"residual", "gate"}[i], out.Shape, t.Shape); err != nil {
				return err
			}
		}
	}
	if err := checkFloats([]string{"input", "weight", "bias", "residual", "gate"}, in[:5]); err != nil {
		return err
	}
	p.Axis, p.Dim = op.MeshAxis, 3
	p.NumLinks, p.Topology, p.Joins[op.MeshAxis] = m.NumLinks, m.Topology[op.MeshAxis], JoinsLine
	pool := messages.PoolRS
	if op.FusedSemaphores {
		pool = messages.PoolRSFused
	}
	kinds := []messages.BufferKind{messages.BufferMMProgress}
	if op.Credits {
		kinds = append(kinds, messages.BufferMMCredit)
	}
	for _, kind := range kinds {
		key, parts, err := BufferParts(m, messages.BufferKey{Kind: kind})
		if err != nil {
			return err
		}
		p.buffer(key, parts, op.MeshAxis, AfterRetirement)
	}
	if !op.UsePersistentBuffer {
		p.barrier(op.MeshAxis)
		p.need(pool, op.MeshAxis, Guarded)
		p.fresh(out)
		return nil
	}
	key, parts, err := BufferParts(m, messages.BufferKey{Kind: messages.BufferRS, Shape: product.Shape, Dim: 3, Axis: op.MeshAxis, DType: product.DType, Parts: messages.OutputOnly})
	if err != nil {
		return err
	}
	p.buffer(key, parts, op.MeshAxis, AfterLineJoin)
	p.need(pool, op.MeshAxis, AfterLineJoin)
	p.output(out, out.Shape, p.NumBuffers-1, 0)
	return nil
}

// convolution checks what both convolutions have in common and returns the result's spec. pads are the padding that each spatial side gets.
func convolution(x, weight, bias messages.Spec, kernel, stride, dilation [3]int, groups int, pads [3]int) (messages.Spec, error) {
	out := x
	if err := checkFloats([]string{"input", "weight", "bias"}, []messages.Spec{x, weight, bias}); err != nil {
		return out, err
	}
	if err := checkRank("input", x.Shape, 5, 5); err != nil {
		return out, err
	}
	if x.Layout != messages.RowMajor {
		return out, fail("input layout", x.Layout, "is row_major")
	}
	channels := x.Shape.Dim(4)
	if groups < 1 || channels%groups != 0 {
		return out, fail("groups", groups, "is positive and divides the %d channels", channels)
	}
	taps := 1
	for i, axis := range []string{"T", "H", "W"} {
		if kernel[i] < 1 || stride[i] < 1 || dilation[i] < 1 || pads[i] < 0 {
			return out, fail("kernel, stride, dilation, padding of "+axis, describe("%d, %d, %d, %d", kernel[i], stride[i], dilation[i], pads[i]), "are positive, padding not negative")
		}
		taps *= kernel[i]
		room := x.Shape.Dim(i+1) + 2*pads[i] - dilation[i]*(kernel[i]-1) - 1
		if room < 0 {
			return out, fail("kernel of "+axis, kernel[i], "fits into the padded extent %d", x.Shape.Dim(i+1)+2*pads[i])
		}
		out.Shape = out.Shape.With(i+1, room/stride[i]+1)
	}
	if err := checkRank("weight", weight.Shape, 2, 2); err != nil {
		return out, err
	}
	if weight.Shape.Dim(0) != taps*channels/groups || weight.Shape.Dim(1)%groups != 0 {
		return out, fail("weight", weight.Shape, "is [%d taps x %d channels of a group, out channels that divide by %d groups]", taps, channels/groups, groups)
	}
	outChannels := weight.Shape.Dim(1)
	if present(bias) && !isRow(bias.Shape, outChannels) {
		return out, fail("bias", bias.Shape, "is [1, %d]", outChannels)
	}
	out.Shape = out.Shape.With(4, outChannels)
	return out, nil
}

// ones fills in the default of a stride or dilation.
func ones(v [3]int) [3]int {
	if v == [3]int{} {
		return [3]int{1, 1, 1}
	}
	return v
}

func planConv3D(_ Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.Conv3D)
	if err := checkPaddingMode(op.Mode); err != nil {
		return err
	}
	x, weight, bias, halo := in[0], in[1], in[2], in[3]
	out, err := convolution(x, weight, bias, op.Kernel, ones(op.Stride), ones(op.Dilation), max(op.Groups, 1), op.Padding)
	if err != nil {
		return err
	}
	if present(halo) {
		_, parts, err := haloParts(messages.BufferKey{Shape: x.Shape, Dim: 2, Pad: [2]int{op.Padding[1], op.Padding[1]}, HasW: true, Dim2: 3, Pad2: [2]int{op.Padding[2], op.Padding[2]}, DType: x.DType})
		if err != nil {
			return err
		}
		if halo.Shape != parts[0].Spec.Shape || halo.DType != x.DType {
			return fail("halo", describe("%s %s", halo.Shape, halo.DType), "is %s %s, the sticks round %s with pads %d and %d", parts[0].Spec.Shape, x.DType, x.Shape, op.Padding[1], op.Padding[2])
		}
	}
	p.fresh(out)
	return nil
}

func planNPConv3D(m Mesh, operation messages.Operation, in []messages.Spec, p *Plan) error {
	op := operation.(messages.NPConv3D)
	if err := checkPaddingMode(op.Mode); err != nil {
		return err
	}
	x, weight, bias := in[0], in[1], in[2]
	out, err := convolution(x, weight, bias, op.Kernel, ones(op.Stride), ones(op.Dilation), max(op.Groups, 1), op.Padding)
	if err != nil {
		return err
	}
	links := op.NumLinks
	if links == 0 {
		links = min(m.NumLinks, x.Shape.Dim(0)*x.Shape.Dim(1))
	}
	index := func(v ...int) messages.Index { i, _ := messages.IndexOf(v...); return i }
	pads := index(op.Padding[1], op.Padding[2])
	if err := p.halo(m, x, index(2, 3), index(op.Axes[0], op.Axes[1]), pads, pads, index(links, links), messages.PoolNPFused, messages.PoolBarrierFused); err != nil {
		return err
	}
	p.need(messages.PoolNPRegion, p.Axis, AfterRetirement)
	p.NumLinks = links
	key, err := haloKey(x, &p.Halo, [2]int{})
	if err != nil {
		return err
	}
	key, parts, err := BufferParts(m, key)
	if err != nil {
		return err
	}
	p.buffer(key, parts, p.Axis, Guarded)
	p.fresh(out)
	return nil
}
