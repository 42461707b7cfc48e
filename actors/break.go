package actors

import (
	"slices"

	"github.com/meshrun/meshrun/axis"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/pools"
)

// Break switches rules of the runtime off, to prove that they matter.
type Break struct {
	OneBank            []PoolOnAxis // these pools have one bank, and nobody asks whether it is free
	NoCreationFence    bool         // what is made is used at once
	LinearIntermediate bool         // the intermediate of a reduce-scatter on a ring is sized for a line
}

// PoolOnAxis names a semaphore pool.
type PoolOnAxis struct {
	Pool messages.Pool
	Axis int
}

func (b *Break) oneBank(p messages.Pool, axis int) bool {
	return slices.Contains(b.OneBank, PoolOnAxis{p, axis})
}

// kind is a kind of pool as it is on one axis.
func (b *Break) kind(k pools.Kind, axis int) pools.Kind {
	if b.oneBank(k.Pool, axis) {
		k.Banks = 1
	}
	return k
}

func (b *Break) mesh(m axis.Mesh) axis.Mesh {
	m.LinearIntermediate = b.LinearIntermediate
	return m
}
