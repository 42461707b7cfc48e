package pools

import (
	"fmt"

	"github.com/meshrun/meshrun/messages"
)

// Semaphores is one pool of semaphore banks on one axis. On one in-order queue a bank may be lent to several queued launches in
// their order, so a grant to a launch never waits: it turns the index. Whether the launch may follow the bank's last user at once is
// asked just before the launch (Joins).
//
// A caller may lease a bank for operations of his own; then grants pass it by until it comes back. One bank always stays for the launches,
// except where the pool has only one.
type Semaphores struct {
	Kind  Kind
	Axis  int
	Links int

	sets   map[int]*semaphoreSet // by workers; 0 where the kind has none
	slots  []bankOf              // by slot
	leases map[Lease]int         // slots leased by callers
}

type semaphoreSet struct {
	slots []int
	next  int
}

type bankOf struct {
	set    *semaphoreSet
	leased bool
}

// NewSemaphores makes the pool; no bank exists yet.
func NewSemaphores(kind Kind, axis, links int) *Semaphores {
	return &Semaphores{Kind: kind, Axis: axis, Links: links, sets: map[int]*semaphoreSet{}, leases: map[Lease]int{}}
}

// Make says which banks must be made before the first grant for a number of workers (0 where the kind has none); nil once they have been
// named.
func (s *Semaphores) Make(workers int) []NewBank {
	if s.sets[workers] != nil {
		return nil
	}
	set := &semaphoreSet{}
	s.sets[workers] = set
	banks := make([]NewBank, s.Kind.Banks)
	n := s.Kind.PerBank(s.Links, workers)
	for b := range banks {
		banks[b].Slot = len(s.slots)
		set.slots = append(set.slots, len(s.slots))
		s.slots = append(s.slots, bankOf{set: set})
		for i := range n {
			banks[b].Semaphores = append(banks[b].Semaphores, messages.SemaphoreName(s.Kind.Pool, s.Axis, workers, b, i, n, s.Kind.Banks))
		}
	}
	return banks
}

// Grant lends the current bank to a launch and turns the index, passing by what callers have leased. It fails only where they hold every
// bank.
func (s *Semaphores) Grant(workers int) (slot int, err error) {
	set := s.sets[workers]
	for i := range set.slots {
		at := (set.next + i) % len(set.slots)
		if !s.slots[set.slots[at]].leased {
			set.next = (at + 1) % len(set.slots)
			return set.slots[at], nil
		}
	}
	return 0, fmt.Errorf("%w: callers hold every bank of %s[%d]", messages.ErrBudget, s.Kind.Pool, s.Axis)
}

// Lease lends the current bank to a caller until Return. It fails where that would leave no bank for launches.
func (s *Semaphores) Lease(lease Lease, workers int) (slot int, err error) {
	set := s.sets[workers]
	free := 0
	for _, b := range set.slots {
		if !s.slots[b].leased {
			free++
		}
	}
	if free == 0 || free == 1 && len(set.slots) > 1 {
		return 0, fmt.Errorf("%w: callers hold every bank of %s[%d] but the one kept for operations", messages.ErrBudget, s.Kind.Pool, s.Axis)
	}
	slot, err = s.Grant(workers)
	if err == nil {
		s.slots[slot].leased = true
		s.leases[lease] = slot
	}
	return slot, err
}

// Return gives a leased bank back. Returning what is not leased changes nothing and is reported as false.
func (s *Semaphores) Return(lease Lease) bool {
	slot, ok := s.leases[lease]
	if ok {
		delete(s.leases, lease)
		s.slots[slot].leased = false
	}
	return ok
}

// Leased is how many banks callers hold.
func (s *Semaphores) Leased() int { return len(s.leases) }

// Reset rewinds every index to bank 0.
func (s *Semaphores) Reset() {
	for _, set := range s.sets {
		set.next = 0
	}
}

// NewBank is a bank that must be made before it is used, and fenced.
type NewBank struct {
	Slot       int             // the pool's number for it, from 0
	Semaphores []string        // names; or
	Parts      []messages.Part // buffers
	Names      []string        // of the buffers
}
