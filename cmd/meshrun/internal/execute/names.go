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
	lease   *meshrun.Lease    // semaphores
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

// alive finds what a name stands for, unless it stands for nothing any more.
func (n *names) alive(stream int, op, name string) (*binding, error) {
	b := n.find(stream, name)
	switch {
	case b == nil:
		return nil, messages.Invalid(op, "tensor", fmt.Sprintf("%q", name), "has been made by the stream that makes it; use sleep to wait for that")
	case b.failed != nil:
		return nil, fmt.Errorf("%s: tensor %q: %w: %w", op, name, meshrun.ErrPoisoned, b.failed)
	case b.released:
		return nil, fmt.Errorf("%s: tensor %q: %w", op, name, meshrun.ErrReleased)
	}
	return b, nil
}

// tensor is the tensor of a name, for use as an input.
func (n *names) tensor(stream int, op, name string) (*meshrun.Tensor, error) {
	b, err := n.alive(stream, op, name)
	if err != nil {
		return nil, err
	}
	if len(b.tensors) != 1 {
		return nil, messages.Invalid(op, "tensor", fmt.Sprintf("%q", name), "is one tensor on the mesh; this name stands for %s", b.kind())
	}
	return b.tensors[0], nil
}

// semaphores are the leases of some names.
func (n *names) semaphores(stream int, op string, list []string) ([]*meshrun.Lease, error) {
	var out []*meshrun.Lease
	for _, name := range list {
		b, err := n.alive(stream, op, name)
		if err != nil {
			return nil, err
		}
		if b.lease == nil {
			return nil, messages.Invalid(op, "neighbor_sems", fmt.Sprintf("%q", name), "are semaphores of a getter; this name stands for %s", b.kind())
		}
		out = append(out, b.lease)
	}
	return out, nil
}

func (b *binding) kind() string {
	switch {
	case b.host != nil:
		return "a copy on the host"
	case b.lease != nil:
		return "semaphores"
	case len(b.tensors) == 0:
		return "nothing"
	case len(b.tensors) == 1:
		return "a tensor"
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
	b.lease.Release()
	for _, t := range b.tensors {
		t.Release()
	}
}
