package pools

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/meshrun/meshrun/messages"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestEagerCount: 44 + 4·links semaphores on two axes, by pool as the reference makes them.
func TestEagerCount(t *testing.T) {
	for links := 1; links <= 4; links++ {
		n := 0
		names := map[string]bool{}
		for _, kind := range Kinds() {
			if !kind.Eager {
				continue
			}
			for axis := range 2 {
				p := NewSemaphores(kind, axis, links)
				for _, b := range p.Make(0) {
					n += len(b.Semaphores)
					for _, s := range b.Semaphores {
						assert.False(t, names[s], "two semaphores of one name: %s", s)
						names[s] = true
					}
				}
				assert.Nil(t, p.Make(0), "banks are made once")
			}
		}
		assert.Equal(t, 44+4*links, n)
		assert.True(t, names["rs[0].bank1.2"])
		assert.True(t, names["barrier[1].bank0"])
		assert.Equal(t, links > 1, names["exp_ring[0].bank1.1"])
	}
}

// TestPinnedBanks: a bank that traces name is nobody else's under hold, lent or not, as often as it is pinned; its pool stays. Under rotate it goes round.
func TestPinnedBanks(t *testing.T) {
	key := messages.BufferKey{Kind: messages.BufferAG, Shape: messages.ShapeOf(1, 1, 32, 64), DType: messages.BFloat16}
	for _, policy := range []messages.Policy{messages.Hold, messages.Rotate} {
		b := NewBuffers(policy)
		var seen []int
		acquire := func(n int) int {
			slot, _ := b.Acquire(Lease(n), key, nil)
			seen = append(seen, slot)
			return slot
		}
		slots, made := b.Prewarm(key, nil)
		require.Len(t, made, Depth)
		b.Pin(slots[:1])
		b.Pin(slots[:1])
		for n := 1; n <= 3; n++ {
			acquire(n)
			b.Return(Lease(n))
		}
		everything := func(messages.BufferKey) bool { return true }
		if policy == messages.Rotate {
			assert.Contains(t, seen, slots[0])
		} else {
			assert.NotContains(t, seen, slots[0])
		}
		for range 2 {
			_, err := b.Release(everything)
			require.ErrorContains(t, err, "bank 0 is named by a trace")
			assert.Empty(t, b.Idle())
			b.Unpin(slots[:1])
		}
		assert.Len(t, b.Idle(), 1)
		seen = nil
		for n := 4; n <= 6; n++ {
			acquire(n)
			b.Return(Lease(n))
		}
		assert.Contains(t, seen, slots[0])
		gone, err := b.Release(everything)
		require.NoError(t, err)
		assert.ElementsMatch(t, slots, gone)
	}
}

// TestSemaphoresTurn: grants take the banks in turn; reset rewinds.
func TestSemaphoresTurn(t *testing.T) {
	p := NewSemaphores(Kinds()[0], 0, 1)
	p.Make(0)
	grant := func(want int) {
		t.Helper()
		slot, err := p.Grant(0)
		require.NoError(t, err)
		assert.Equal(t, want, slot)
	}
	for _, want := range []int{0, 1, 0} {
		grant(want)
	}
	p.Reset()
	grant(0)

	// A caller leases bank 1: the launches keep bank 0, and nobody gets that one.
	slot, err := p.Lease(1, 0)
	require.NoError(t, err)
	assert.Equal(t, 1, slot)
	grant(0)
	grant(0)
	_, err = p.Lease(2, 0)
	require.ErrorIs(t, err, messages.ErrBudget)
	assert.False(t, p.Return(2))
	assert.True(t, p.Return(1))
	assert.False(t, p.Return(1))
	grant(1)
	assert.Zero(t, p.Leased())
}

func key(n int) (messages.BufferKey, []messages.Part) {
	k := messages.BufferKey{Kind: messages.BufferAG, Shape: messages.ShapeOf(1, 1, 32, 32*n), Dim: 3, Axis: 1, DType: messages.BFloat16}
	return k, []messages.Part{{Spec: messages.Spec{Shape: k.Shape}}}
}

// TestBuffersModel drives the pools with random requests and returns and compares with a slow model: no bank is lent twice, the pool grows
// only when all are lent, and a bank belongs to one key for ever.
func TestBuffersModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 0))
	b := NewBuffers(messages.Hold)
	lent := map[Lease]int{}
	byLease := map[Lease]messages.BufferKey{}
	slotKey := map[int]messages.BufferKey{}
	size := map[messages.BufferKey]int{}
	for i := range Lease(5000) {
		if rng.IntN(2) == 0 {
			k, parts := key(1 + rng.IntN(4))
			out := 0
			for l := range lent {
				if byLease[l] == k {
					out++
				}
			}
			slot, made := b.Acquire(i, k, parts)
			wantNew := 0
			if size[k] == 0 {
				wantNew = Depth
			} else if out == size[k] {
				wantNew = 1
			}
			require.Len(t, made, wantNew, "seed %d", seed)
			for _, m := range made {
				require.NotContains(t, slotKey, m.Slot)
				slotKey[m.Slot] = k
				require.Equal(t, k.BankName(size[k], ""), m.Names[0])
				size[k]++
			}
			for _, other := range lent {
				require.NotEqual(t, other, slot, "seed %d: a bank lent twice", seed)
			}
			require.Equal(t, k, slotKey[slot])
			lent[i], byLease[i] = slot, k
		} else {
			l := Lease(rng.IntN(int(i) + 1))
			_, ok := lent[l]
			require.Equal(t, ok, b.Return(l), "seed %d: a return of what is not lent changes nothing", seed)
			delete(lent, l)
		}
		require.Equal(t, len(lent), b.Lent())
	}
}

// TestBuffersAlternate: with one result at a time the banks take turns, so that steady use needs no fence.
func TestBuffersAlternate(t *testing.T) {
	b := NewBuffers(messages.Hold)
	k, parts := key(1)
	var got []int
	for i := range Lease(4) {
		slot, _ := b.Acquire(i, k, parts)
		got = append(got, slot)
		b.Return(i)
	}
	assert.Equal(t, []int{0, 1, 0, 1}, got)
}

// A release that is refused names the first pool that is lent, whatever the order of the table.
func TestRefusedReleaseNamesTheFirstPool(t *testing.T) {
	b := NewBuffers(messages.Hold)
	for i := range 20 {
		k, parts := key(i + 1)
		b.Acquire(Lease(i), k, parts)
	}
	first, _ := key(1)
	for range 20 {
		slots, err := b.Release(func(messages.BufferKey) bool { return true })
		require.Empty(t, slots)
		require.ErrorContains(t, err, first.String()+": is not in use")
	}
}

// TestRotate: nothing is lent, the index turns.
func TestRotate(t *testing.T) {
	b := NewBuffers(messages.Rotate)
	k, parts := key(1)
	for i := range Lease(6) {
		slot, made := b.Acquire(i, k, parts)
		assert.Equal(t, int(i)%2, slot)
		assert.Len(t, made, map[bool]int{true: 2}[i == 0])
	}
	assert.Zero(t, b.Lent())
}

// TestJoins: rule 4 for banks on the lines of an axis.
func TestJoins(t *testing.T) {
	var j Joins
	assert.True(t, j.SafeOnLine(0, 0), "never used")
	assert.False(t, j.SafeOnLine(0, 5))
	j.Line(1, 6)
	assert.False(t, j.SafeOnLine(0, 5), "a join of the other axis says nothing")
	assert.True(t, j.SafeOnLine(1, 5))
	assert.False(t, j.SafeOnLine(1, 6), "the last user itself does not count")
	j.Fence(6)
	for a := range 2 {
		assert.True(t, j.SafeOnLine(a, 6), fmt.Sprint(a))
	}
	j.Fence(3)
	assert.True(t, j.SafeOnLine(0, 6), "a fence is never taken back")
}
