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

// stream is the peak of what a stream's own tensors take.
func (n *need) stream(s Stream, shared map[string]messages.Spec) int64 {
	type holding struct {
		spec  messages.Spec
		bytes int64 // 0 where the memory is counted elsewhere
	}
	held := map[string]holding{}
	var now, peak int64
	drop := func(name string) {
		now -= held[name].bytes
		delete(held, name)
	}
	for i := range s.Calls {
		c := &s.Calls[i]
		var during int64
		var results []holding
		switch a := c.Action.(type) {
		case Write:
			results = append(results, holding{a.Spec, n.of(a.Spec)})
		case Release:
			for _, name := range a.Names {
				drop(name)
			}
		case Submit:
			specs := make([]messages.Spec, len(c.In))
			for i, name := range c.In {
				specs[i] = shared[name]
				if h, ok := held[name]; ok {
					specs[i] = h.spec
				}
			}
			if c.Anonymous != nil {
				specs[0] = *c.Anonymous
				during = n.of(*c.Anonymous)
			}
			plan, err := axis.Make(n.mesh, a.Op, specs)
			if err != nil {
				break
			}
			for _, b := range plan.Buffers[:plan.NumBuffers] {
				n.pool(b)
			}
			for i, o := range plan.Outputs[:plan.NumOutputs] {
				h := holding{spec: o.Driver}
				h.spec.Shape = o.Shape
				if o.Buffer == axis.Fresh && !plan.Alias {
					h.bytes = n.of(h.spec)
				}
				if i < len(c.Out) {
					results = append(results, h)
				} else {
					during = plus(during, h.bytes)
				}
			}
		}
		for i, name := range c.Makes() {
			if i < len(results) {
				drop(name)
				held[name] = results[i]
				now = plus(now, results[i].bytes)
			}
		}
		peak = max(peak, plus(now, during))
	}
	return peak
}

// pool counts the two banks that a buffer pool begins with.
func (n *need) pool(b axis.BufferNeed) {
	if n.pools[b.Key] {
		return
	}
	n.pools[b.Key] = true
	for _, p := range b.Parts {
		n.fixed = plus(n.fixed, times(2, n.of(p.Spec)))
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
