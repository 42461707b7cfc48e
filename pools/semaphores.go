package pools

import "github.com/meshrun/meshrun/messages"

// Semaphores is one pool of semaphore banks on one axis. On one in-order queue a bank may be lent to several queued launches in
// their order, so a grant never waits: it turns the index. Whether the launch may follow the bank's last user at once is
// asked just before the launch (Joins).
type Semaphores struct {
	Kind  Kind
	Axis  int
	Links int

	made bool
	next int
}

// NewSemaphores makes the pool; no bank exists yet.
func NewSemaphores(kind Kind, axis, links int) *Semaphores {
	return &Semaphores{Kind: kind, Axis: axis, Links: links}
}

// Make says which banks must be made now; nil once they are. Slots are the bank numbers.
func (s *Semaphores) Make() []NewBank {
	if s.made {
		return nil
	}
	s.made = true
	banks := make([]NewBank, s.Kind.Banks)
	for b := range banks {
		n := s.Kind.PerBank(s.Links)
		banks[b].Slot = b
		for i := range n {
			banks[b].Semaphores = append(banks[b].Semaphores, messages.SemaphoreName(s.Kind.Pool, s.Axis, b, i, n, s.Kind.Banks))
		}
	}
	return banks
}

// Grant lends the current bank and turns the index.
func (s *Semaphores) Grant() (slot int) {
	slot = s.next
	s.next = (s.next + 1) % s.Kind.Banks
	return slot
}

// Reset rewinds the index to bank 0.
func (s *Semaphores) Reset() { s.next = 0 }

// NewBank is a bank that must be made before it is used, and fenced.
type NewBank struct {
	Slot       int             // the pool's number for it, from 0
	Semaphores []string        // names; or
	Parts      []messages.Part // buffers
	Names      []string        // of the buffers
}
