package pools

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/meshrun/meshrun/messages"
)

// Depth is how many banks a pool of buffers starts with.
const Depth = 2

// Buffers holds the pools of persistent buffers of one mesh, by key.
//
// Under Hold a bank is lent until Return; the pool grows when all are lent. Under Rotate nothing is lent: the index turns.
//
// Requests and returns come in the order of the launches that they belong to, not when those launches run: a bank that launch i gives back
// may be granted to launch j > i at once, since j runs behind i; whether j may touch it without a fence is for Joins to say.
type Buffers struct {
	policy messages.Policy
	pools  map[messages.BufferKey]*bufferPool
	slots  []slotInfo    // by slot
	leases map[Lease]int // slots by lease
}

// Lease names one grant: the caller's choice, unique while the grant lasts.
type Lease uint64

type bufferPool struct {
	key   messages.BufferKey
	parts []messages.Part
	slots []int // by bank
	next  int   // where the search for a free bank begins
}

type slotInfo struct {
	pool *bufferPool
	bank int
	lent bool
	pins int // traces that name it
}

func (s *slotInfo) used() bool { return s.lent || s.pins > 0 }

// NewBuffers makes an empty set of pools.
func NewBuffers(policy messages.Policy) *Buffers {
	return &Buffers{policy: policy, pools: map[messages.BufferKey]*bufferPool{}, leases: map[Lease]int{}}
}

// Acquire lends a bank of the key's pool and says which banks must be made first: two on the first request for the key, one more
// whenever all are lent.
func (b *Buffers) Acquire(lease Lease, key messages.BufferKey, parts []messages.Part) (slot int, made []NewBank) {
	p, made := b.pool(key, parts)
	bank := p.next
	if b.policy == messages.Hold && !key.Kind.SingleBank() {
		bank = b.free(p)
		if bank < 0 {
			bank = len(p.slots)
			made = append(made, b.grow(p))
		}
	}
	p.next = (bank + 1) % len(p.slots)
	slot = p.slots[bank]
	if b.policy == messages.Hold && !key.Kind.SingleBank() {
		b.slots[slot].lent = true
		b.leases[lease] = slot
	}
	return slot, made
}

// Prewarm makes sure that the key's pool exists. It returns the slots of its banks, which must be made unless they have been, and those of them that are
// new.
func (b *Buffers) Prewarm(key messages.BufferKey, parts []messages.Part) (slots []int, made []NewBank) {
	p, made := b.pool(key, parts)
	return p.slots, made
}

// pool finds the key's pool or starts it with its first banks.
func (b *Buffers) pool(key messages.BufferKey, parts []messages.Part) (p *bufferPool, made []NewBank) {
	if p = b.pools[key]; p != nil {
		return p, nil
	}
	p = &bufferPool{key: key, parts: parts}
	b.pools[key] = p
	depth := Depth
	if key.Kind.SingleBank() {
		depth = 1
	}
	for range depth {
		made = append(made, b.grow(p))
	}
	return p, made
}

// Release forgets the pools that match and returns the slots of their banks. If a bank of one is lent nothing is forgotten, and the error names
// the first such pool.
func (b *Buffers) Release(match func(messages.BufferKey) bool) (slots []int, err error) {
	var gone []*bufferPool
	for key, p := range b.pools {
		if match(key) {
			gone = append(gone, p)
		}
	}
	slices.SortFunc(gone, func(x, y *bufferPool) int { return cmp.Compare(x.slots[0], y.slots[0]) })
	for _, p := range gone {
		for bank, slot := range p.slots {
			if s := &b.slots[slot]; s.used() {
				how, hint := "lent", "release the tensor that holds it first"
				if !s.lent {
					how, hint = "named by a trace", "release the trace first"
				}
				return nil, &messages.InvalidError{Op: "release_buffers", Field: "pool", Value: p.key.String(), Rule: fmt.Sprintf("is not in use: bank %d is %s", bank, how),
					Hint: hint}
			}
		}
	}
	for _, p := range gone {
		slots = append(slots, p.slots...)
		delete(b.pools, p.key)
	}
	slices.Sort(slots)
	return slots, nil
}

// Idle is a pool of which no bank is lent or pinned: Release would free it.
type Idle struct {
	Key   messages.BufferKey
	Slots []int // of its banks
}

// Idle lists the pools of which no bank is lent, in the order of their first banks.
func (b *Buffers) Idle() []Idle {
	var all []Idle
	for key, p := range b.pools {
		if !slices.ContainsFunc(p.slots, func(slot int) bool { return b.slots[slot].used() }) {
			all = append(all, Idle{key, slices.Clone(p.slots)})
		}
	}
	slices.SortFunc(all, func(x, y Idle) int { return cmp.Compare(x.Slots[0], y.Slots[0]) })
	return all
}

// Reset rewinds every index to bank 0.
func (b *Buffers) Reset() {
	for _, p := range b.pools {
		p.next = 0
	}
}

// free finds a bank that nobody has, beginning behind the one lent last, so that banks alternate.
func (b *Buffers) free(p *bufferPool) int {
	for i := range p.slots {
		bank := (p.next + i) % len(p.slots)
		if !b.slots[p.slots[bank]].used() {
			return bank
		}
	}
	return -1
}

func (b *Buffers) grow(p *bufferPool) NewBank {
	bank, slot := len(p.slots), len(b.slots)
	p.slots = append(p.slots, slot)
	b.slots = append(b.slots, slotInfo{pool: p, bank: bank})
	n := NewBank{Slot: slot, Parts: p.parts}
	for _, part := range p.parts {
		n.Names = append(n.Names, p.key.BankName(bank, part.Name))
	}
	return n
}

// Return gives a bank back. Returning what is not lent changes nothing and is reported as false.
func (b *Buffers) Return(lease Lease) bool {
	slot, ok := b.leases[lease]
	if ok {
		delete(b.leases, lease)
		b.slots[slot].lent = false
	}
	return ok
}

// Pin keeps banks for a trace that names them: under Hold nobody else gets one, lent or not, until Unpin.
func (b *Buffers) Pin(slots []int) {
	for _, slot := range slots {
		b.slots[slot].pins++
	}
}

// Unpin ends one Pin.
func (b *Buffers) Unpin(slots []int) {
	for _, slot := range slots {
		b.slots[slot].pins--
	}
}

// Lent is how many banks are lent.
func (b *Buffers) Lent() int { return len(b.leases) }
