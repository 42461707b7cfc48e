package casefile

import (
	"github.com/meshrun/meshrun/messages"
)

// keyReader reads the arguments of a getter of buffers; false: nothing is to be had.
type keyReader func(*args) (messages.BufferKey, bool)

func getBuffer(read keyReader) func(*args) Action {
	return func(a *args) Action {
		key, some := read(a)
		fenced := a.boolean(a.take("device_synchronize"), true)
		if !some {
			return Answer{}
		}
		return Submit{Op: messages.GetBuffers{Key: key, Unfenced: !fenced}, Wait: true}
	}
}

func gatherKey(kind messages.BufferKind) keyReader {
	return func(a *args) (messages.BufferKey, bool) {
		return messages.BufferKey{Kind: kind, Shape: a.ownShape("shape"), Dim: a.dim(), Axis: a.lineAxis(), DType: a.ownDType(messages.BFloat16),
			Capacity: a.capacity()}, true
	}
}

func scatterKey(a *args) (messages.BufferKey, bool) {
	key := messages.BufferKey{Kind: messages.BufferRS, Shape: a.ownShape("shape"), Dim: a.dim(), Axis: a.lineAxis(), DType: a.ownDType(messages.BFloat16)}
	output, intermediate := a.boolean(a.take("return_output_buffer"), true), a.boolean(a.take("return_intermediate"), true)
	switch {
	case !output && !intermediate:
		a.refuse("return_output_buffer and return_intermediate", "false", "are not both false: a buffer has at least one part")
	case !output:
		key.Parts = messages.IntermediateOnly
	case !intermediate:
		key.Parts = messages.OutputOnly
	}
	return key, true
}

// paddedKey reads what get_np_ping_pong_buffer takes: the shape before its padding, and the pads.
func paddedKey(a *args) (messages.BufferKey, bool) {
	shape := a.ownShape("shape", "input_shape")
	dims, left, right := a.requiredList("dims"), a.requiredList("pad_left"), a.requiredList("pad_right")
	front := a.anyInt(a.take("t_front_pad"))
	key := messages.BufferKey{Kind: messages.BufferNP, Axis: messages.NoAxis, DType: a.ownDType(messages.BFloat16)}
	if left.Len() != dims.Len() || right.Len() != dims.Len() || dims.Len() == 0 {
		a.refuse("pad_left and pad_right", []any{left.Ints(), right.Ints()}, "have a number for each of the dims %v", dims.Ints())
		return key, true
	}
	padded := shape.Dims()
	dim := func(i int) int {
		d := dims.At(i)
		if d < 0 {
			d += len(padded)
		}
		if d < 0 || d >= len(padded) {
			a.refuse("dims", dims.At(i), "is a dim of %s", shape)
			return -1
		}
		return d
	}
	for i := range dims.Len() {
		if left.At(i) < 0 || right.At(i) < 0 {
			a.refuse("pad_left and pad_right", []int{left.At(i), right.At(i)}, "are not negative")
		}
		if d := dim(i); d >= 0 {
			padded[d] += left.At(i) + right.At(i)
		}
	}
	switch d := dim(0); {
	case front < 0 || front > 0 && d == 0:
		a.refuse("t_front_pad", front, "is not negative, and needs a dim in front of dim %d", dims.At(0))
	case front > 0 && d > 0:
		padded[d-1] += front
	}
	if a.refused == nil {
		var err error
		if key.Shape, err = messages.NewShape(padded...); err != nil {
			a.refuse("shape", padded, "has at most %d dims, each at least 1 and less than 2^31", messages.MaxRank)
		}
	}
	return key, true
}

func haloKey(a *args) (messages.BufferKey, bool) {
	key := messages.BufferKey{Kind: messages.BufferNPHalo, Shape: a.ownShape("shape", "input_shape"), Dim: a.dim(),
		Pad: a.pads(a.required("padding"), "padding"), DType: a.ownDType(messages.BFloat16)}
	if n := a.take("dim2"); n != nil {
		key.HasW, key.Dim2 = true, a.anyInt(n)
	}
	key.Pad2 = a.pads(a.take("padding2"), "padding2")
	return key, true
}

// statsKey: without a shape the caller's factory makes no buffer, since nothing is gathered.
func statsKey(a *args) (messages.BufferKey, bool) {
	key := messages.BufferKey{Kind: messages.BufferNormStats, Axis: messages.NoAxis, Text: a.name(a.required("key")), DType: a.ownDType(messages.Float32)}
	a.own("shape")
	n := a.take("shape")
	key.Shape = a.callShape(n)
	return key, n != nil
}

func countersKey(kind messages.BufferKind) keyReader {
	return func(*args) (messages.BufferKey, bool) {
		return messages.BufferKey{Kind: kind, Axis: messages.NoAxis}, true
	}
}

func getSemaphore(pool messages.Pool) func(*args) Action {
	return func(a *args) Action {
		op := messages.GetSemaphores{Pool: pool, MeshAxis: a.lineAxis()}
		if pool == messages.PoolStridedAGMM {
			op.Workers = a.anyInt(a.required("num_workers_per_link"))
			if op.Workers < 1 {
				a.refuse("num_workers_per_link", op.Workers, "is at least 1")
			}
		}
		return Lease{op}
	}
}

// keys reads a list of getters of buffers, each as it would stand as a call.
func (a *args) keys(n *node) []messages.BufferKey {
	var keys []messages.BufferKey
	for _, e := range a.elements(n, "getters of buffers") {
		f := a.object(e, "a key", "argument")
		inner := &args{fields: f, file: a.file}
		named := f.required("op")
		if named == nil || f.n != e {
			continue
		}
		name := a.name(named)
		entry, ok := ops[name]
		if !ok {
			a.unknownOp(named, name)
			continue
		}
		f.what = name
		if len(entry.slots) > 0 { // not a getter; its arguments are of no interest
			a.fail(named, "%q: is a getter of buffers, such as get_ag_ping_pong_buffer", name)
			continue
		}
		action := entry.decode(inner)
		submit, ok := action.(Submit)
		get, isGetter := submit.Op.(messages.GetBuffers)
		switch {
		case !ok || !isGetter:
			a.fail(named, "%q: is a getter that has a buffer to lend, such as get_ag_ping_pong_buffer", name)
			continue
		case inner.refused != nil && a.refused == nil:
			a.refused = inner.refused
		}
		f.end()
		keys = append(keys, get.Key)
	}
	return keys
}

func prewarm(a *args) Action {
	n := a.required("keys")
	keys := a.keys(n)
	return Prewarm{keys}
}

func releaseBuffers(a *args) Action {
	n := a.take("keys")
	return ReleaseBuffers{Keys: a.keys(n), All: n == nil}
}
