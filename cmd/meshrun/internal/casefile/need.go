package casefile

import (
	"math"

	"github.com/meshrun/meshrun/axis"
	"github.com/meshrun/meshrun/messages"
)

// HostBytes is the least host memory that the emulation of a functional case needs for its data: every tensor on every device, as long as
// the case keeps it, the streams at their peaks together, and the pools that their calls make. Calls that break a rule count nothing.
func (c *Case) HostBytes(m axis.Mesh) int64 {
	n := need{mesh: m, pools: map[messages.BufferKey]bool{}}
	shared := map[string]messages.Spec{}
	for _, t := range c.Tensors {
		shared[t.Name] = t.Spec
		n.fixed = plus(n.fixed, n.of(t.Spec))
	}
	total := int64(0)
	for _, s := range c.Streams {
		total = plus(total, n.stream(s, shared))
	}
	return plus(total, n.fixed)
}

type need struct {
	mesh  axis.Mesh
	pools map[messages.BufferKey]bool
	fixed int64 // of the case's tensors and of the pools
}

// of is what a tensor takes on all devices together.
func (n *need) of(s messages.Spec) int64 {
	bytes := int64(s.DType.HostBytes())
	for _, d := range s.Shape.Dims() {
		bytes = times(bytes, int64(d))
	}
	return times(bytes, int64(n.mesh.Shape.Devices()))
}

// holding is a tensor that a stream has.
type holding struct {
	spec  messages.Spec
	bytes int64 // 0 where the memory is counted elsewhere
}

// results are what an operation makes; its pools are counted. An operation that breaks a rule makes nothing.
func (n *need) results(op messages.Operation, in []messages.Spec) []holding {
	plan, err := axis.Make(n.mesh, op, in)
	if err != nil {
		return nil
	}
	for _, b := range plan.Buffers[:plan.NumBuffers] {
		n.pool(b)
	}
	var out []holding
	for _, o := range plan.Outputs[:plan.NumOutputs] {
		h := holding{spec: o.Driver}
		h.spec.Shape = o.Shape
		if o.Buffer == axis.Fresh && !plan.Alias && !plan.InPlace {
			h.bytes = n.of(h.spec)
		}
		out = append(out, h)
	}
	return out
}

// stream is the peak of what a stream's own tensors take.
func (n *need) stream(s Stream, shared map[string]messages.Spec) int64 {
	held := map[string]holding{}
	var now, peak int64
	drop := func(name string) {
		now -= held[name].bytes
		delete(held, name)
	}
	inputs := func(c *Call) []messages.Spec {
		specs := make([]messages.Spec, max(len(c.In), 1))
		for i, name := range c.In {
			specs[i] = shared[name]
			if h, ok := held[name]; ok {
				specs[i] = h.spec
			}
		}
		if c.Anonymous != nil {
			specs[0] = *c.Anonymous
		}
		return specs[:len(c.In)]
	}
	for i := range s.Calls {
		c := &s.Calls[i]
		if r, ok := c.Action.(Release); ok {
			for _, name := range r.Names {
				drop(name)
			}
		}
		made, during := n.call(c, inputs(c))
		names := c.Makes()
		for i, h := range made {
			if i >= len(names) {
				during = plus(during, h.bytes) // given back at once
				continue
			}
			drop(names[i])
			held[names[i]] = h
			now = plus(now, h.bytes)
		}
		peak = max(peak, plus(now, during))
	}
	return peak
}

// call is what a call makes, and what it takes beside that while it lasts.
func (n *need) call(c *Call, in []messages.Spec) (made []holding, during int64) {
	if c.Anonymous != nil {
		during = n.of(*c.Anonymous)
	}
	switch a := c.Action.(type) {
	case Write:
		made = []holding{{a.Spec, n.of(a.Spec)}}
	case Submit:
		made = n.results(a.Op, in)
	case HaloScatter:
		op := a.Halo
		op.IntoPadded = !a.BorderOnly
		made = n.results(op, in)
		switch {
		case a.BorderOnly: // another name of its input
			made, during = []holding{{in[0], during}}, 0
		case len(made) > 1:
			made = made[1:] // behind the compact halo
		}
	case DeviceToHost:
		for axis, dim := range a.Dims {
			if dim == nil {
				continue
			}
			op := messages.AllGather{Dim: *dim, MeshAxis: axis, UsePersistentBuffer: a.Persistent}
			for _, h := range n.results(op, in) {
				in[0] = h.spec
				during = plus(during, h.bytes)
			}
		}
	case Prewarm:
		for _, k := range a.Keys {
			n.results(messages.GetBuffers{Key: k}, nil)
		}
	}
	return made, during
}

// pool counts the banks that a buffer pool begins with.
func (n *need) pool(b axis.BufferNeed) {
	if n.pools[b.Key] {
		return
	}
	n.pools[b.Key] = true
	banks := int64(2)
	if b.Key.Kind.SingleBank() {
		banks = 1
	}
	for _, p := range b.Parts {
		n.fixed = plus(n.fixed, times(banks, n.of(p.Spec)))
	}
}

// plus and times stop at the largest number instead of running over.

func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func times(a, b int64) int64 {
	if b != 0 && a > math.MaxInt64/b {
		return math.MaxInt64
	}
	return a * b
}
