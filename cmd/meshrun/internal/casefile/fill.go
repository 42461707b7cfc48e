package casefile

import (
	"math"

	"github.com/meshrun/meshrun/messages"
)

// FillKind is a way to fill a tensor.
type FillKind uint8

// The ways to fill a tensor.
const (
	FillZeros FillKind = iota
	FillConst
	FillPerDevice
	FillIota
	FillRandom
	FillValues
)

// Fill says what a tensor holds at first.
type Fill struct {
	Kind   FillKind
	Const  float64
	Values []float64 // of FillValues, or one per device
	Seed   uint64

	Global messages.Shape // of the array that is laid over the mesh; rank 0: every device gets the same
	Shard  messages.Distribution
}

// Layout is how the fill's host array lies on a mesh: its shape and its distribution.
func (f Fill) Layout(shard messages.Shape, mesh messages.MeshShape) (messages.Shape, messages.Distribution) {
	switch {
	case f.Kind == FillPerDevice: // dim 0 is cut by rows, then by columns: device after device
		d := messages.Distribution{0, 0}
		return d.Global(shard, mesh), d
	case f.Global.Rank() > 0:
		return f.Global, f.Shard
	}
	return shard, messages.Replicate
}

// Bytes are the host array's elements in a dtype, in the shape that Layout tells.
func (f Fill) Bytes(shape messages.Shape, t messages.DType) []byte {
	n := int(shape.Elements())
	out := make([]byte, 0, n*t.HostBytes())
	perDevice := n / max(len(f.Values), 1)
	for i := range n {
		v := f.Const
		switch f.Kind {
		case FillZeros:
			v = 0
		case FillIota:
			v = float64(i)
		case FillRandom:
			v = random(f.Seed, uint64(i))
		case FillValues:
			v = f.Values[i]
		case FillPerDevice:
			v = f.Values[i/perDevice]
		}
		out = appendElement(out, v, t)
	}
	return out
}

// random is element i of a seeded tensor, in [-1, 1): the first splitmix64 output from state seed XOR i, its upper 24 bits.
func random(seed, i uint64) float64 {
	z := (seed ^ i) + 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	return float64(z>>40)/(1<<23) - 1
}

// fill reads {"const": ...} and the like, and whether the tensor's own shape is known already.
func (d *decoder) fill(n *node, spec *messages.Spec, mesh messages.MeshShape) Fill {
	if n == nil {
		return Fill{}
	}
	f := d.object(n, "a fill", "key")
	out := Fill{Shard: messages.Replicate}
	ways := 0
	way := func(key string, kind FillKind) *node {
		v := f.take(key)
		if v != nil {
			ways++
			out.Kind = kind
		}
		return v
	}
	if v := way("const", FillConst); v != nil {
		out.Const = d.element(v, spec.DType)
	}
	if v := way("per_device", FillPerDevice); v != nil {
		out.Values = d.fillValues(v, spec.DType)
		if n := mesh.Devices(); n > 0 && len(out.Values) != n {
			d.fail(v, "%d values: one for each of the %d devices of %s", len(out.Values), n, mesh)
		}
	}
	if v := way("iota", FillIota); v != nil && !d.boolean(v, true) {
		d.fail(v, "false: is true, or absent")
	}
	if v := way("random", FillRandom); v != nil {
		out.Seed = d.seed(v)
	}
	values := way("values", FillValues)
	if values != nil {
		out.Values = d.fillValues(values, spec.DType)
	}
	global := f.take("global")
	shard := f.take("shard")
	f.end()
	if ways > 1 {
		d.fail(n, "a tensor is filled in one way: const, per_device, iota, random or values")
	}
	switch {
	case global != nil && spec.Shape.Rank() > 0:
		d.fail(global, "leave out the tensor's shape: it follows from the global one")
	case global != nil && out.Kind == FillPerDevice:
		d.fail(global, "per_device fills shards: give the tensor's shape instead")
	case global != nil:
		out.Global = d.shape(global)
		d.shard(shard, &out, spec, mesh)
	case shard != nil:
		d.fail(shard, "only a global tensor is cut")
	}
	shape := out.Global
	if shape.Rank() == 0 {
		shape = spec.Shape
	}
	if values != nil && shape.Rank() > 0 && int64(len(out.Values)) != shape.Elements() {
		d.fail(values, "%d values: %s has %d elements", len(out.Values), shape, shape.Elements())
	}
	return out
}

// shard reads {"0": dim, "1": dim} and works out the shape of the shards.
func (d *decoder) shard(n *node, out *Fill, spec *messages.Spec, mesh messages.MeshShape) {
	if n != nil {
		f := d.object(n, "a shard", "mesh axis")
		for axis, key := range []string{"0", "1"} {
			if v := f.take(key); v != nil {
				dim := d.anyInt(v)
				if r := out.Global.Rank(); dim < -r || dim >= r {
					d.fail(v, "%d: is a dim of %s", dim, out.Global)
					continue
				} else if dim < 0 {
					dim += r
				}
				out.Shard[axis] = dim
			}
		}
		f.end()
	}
	if out.Global.Rank() == 0 || mesh.Devices() == 0 {
		return
	}
	s, err := out.Shard.Shard(out.Global, mesh)
	if err != nil {
		at := n
		if at == nil {
			return
		}
		d.fail(at, "%v", err)
		return
	}
	spec.Shape = s
}

func (d *decoder) fillValues(n *node, t messages.DType) []float64 {
	items := d.elements(n, "numbers")
	out := make([]float64, len(items))
	for i, e := range items {
		out[i] = d.element(e, t)
	}
	return out
}

// element is a number that a dtype can hold: integer dtypes take whole numbers of their range only.
func (d *decoder) element(n *node, t messages.DType) float64 {
	v := d.number(n)
	if low, high, ok := integerRange(t); ok && (v != math.Trunc(v) || v < low || v > high) {
		d.fail(n, "%s: %s holds whole numbers from %.0f to %.0f", n, t, low, high)
	}
	return v
}
