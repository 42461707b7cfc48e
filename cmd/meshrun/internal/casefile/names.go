package casefile

import (
	"slices"

	"github.com/meshrun/meshrun/cmd/meshrun/internal/suggest"
)

// checkNames refuses the use of a tensor that nobody makes, or that only the same stream makes, later.
func (d *decoder) checkNames(c *Case) {
	everywhere := map[string][]int{} // name -> streams that make it
	shared := map[string]bool{}
	for _, t := range c.Tensors {
		shared[t.Name] = true
	}
	for i, s := range c.Streams {
		for _, call := range s.Calls {
			for _, name := range call.Makes() {
				everywhere[name] = append(everywhere[name], i)
			}
		}
	}
	for i, s := range c.Streams {
		mine := map[string]bool{}
		for _, call := range s.Calls {
			for _, name := range call.Uses() {
				fromOther := slices.ContainsFunc(everywhere[name], func(j int) bool { return j != i })
				switch {
				case shared[name] || mine[name] || fromOther:
				case len(everywhere[name]) > 0:
					d.failAt(call.offset, call.Where, "tensor %q is used before the call that makes it", name)
				default:
					d.failAt(call.offset, call.Where, "unknown tensor %q: %s", name, suggest.Hint(name, known(shared, everywhere)))
				}
				mine[name] = true // once is enough
			}
			for _, name := range call.Makes() {
				mine[name] = true
			}
		}
	}
}

// Uses are the names that the call needs.
func (c *Call) Uses() []string {
	var names []string
	for _, name := range c.In {
		if name != "" {
			names = append(names, name)
		}
	}
	names = append(names, c.Semaphores...)
	if r, ok := c.Action.(Release); ok {
		names = append(names, r.Names...)
	}
	return names
}

// Makes are the names that stand for something once the call has been made.
func (c *Call) Makes() []string {
	if _, ok := c.Action.(Write); ok && len(c.Out) == 0 {
		return c.In
	}
	return c.Out
}

func known(shared map[string]bool, made map[string][]int) []string {
	var names []string
	for name := range shared {
		names = append(names, name)
	}
	for name := range made {
		if !shared[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
