package execute

import (
	"fmt"
	"sync"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
)

// names are what tensors are called. A stream sees its own names first, then those of the case, then those of other streams.
type names struct {
	mu      sync.Mutex
	shared  map[string]*binding
	streams []map[string]*binding
}

// binding is what a name stands for.
type binding struct {
	tensors []*meshrun.Tensor // several: a lease of several buffers; none: no tensor, or host
	host    *Tensor           // a copy that has been read
	rec     *record           // the call that made it; nil: the case
	result  int               // which result of the call

	released bool
	failed   error // why there is nothing behind the name
}

func newNames(streams int) *names {
	n := &names{shared: map[string]*binding{}, streams: make([]map[string]*binding, streams)}
	for i := range n.streams {
		n.streams[i] = map[string]*binding{}
	}
	return n
}

func (n *names) find(stream int, name string) *binding {
	n.mu.Lock()
	defer n.mu.Unlock()
	if b := n.streams[stream][name]; b != nil {
		return b
	}
	if b := n.shared[name]; b != nil {
		return b
	}
	for _, s := range n.streams {
		if b := s[name]; b != nil {
			return b
		}
	}
	return nil
}

// tensor is the tensor of a name, for use as an input.
func (n *names) tensor(stream int, op, name string) (*meshrun.Tensor, error) {
	b := n.find(stream, name)
	switch {
	case b == nil:
		return nil, messages.Invalid(op, "tensor", fmt.Sprintf("%q", name), "has been made by the stream that makes it; use sleep to wait for that")
	case b.failed != nil:
		return nil, fmt.Errorf("%s: tensor %q: %w: %w", op, name, meshrun.ErrPoisoned, b.failed)
	case b.released:
		return nil, fmt.Errorf("%s: tensor %q: %w", op, name, meshrun.ErrReleased)
	case len(b.tensors) != 1:
		return nil, messages.Invalid(op, "tensor", fmt.Sprintf("%q", name), "is one tensor on the mesh; this name stands for %s", b.kind())
	}
	return b.tensors[0], nil
}

func (b *binding) kind() string {
	switch {
	case b.host != nil:
		return "a copy on the host"
	case len(b.tensors) == 0:
		return "semaphores"
	}
	return fmt.Sprintf("%d buffers: give \"out\" as many names", len(b.tensors))
}

// bind lets a name of the stream stand for something; what it stood for before is given back.
func (n *names) bind(stream int, name string, b *binding) {
	n.mu.Lock()
	old := n.streams[stream][name]
	n.streams[stream][name] = b
	n.mu.Unlock()
	if old != nil {
		old.release()
	}
}

func (b *binding) release() {
	b.released = true
	for _, t := range b.tensors {
		t.Release()
	}
}
