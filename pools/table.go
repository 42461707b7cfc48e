package pools

import "github.com/meshrun/meshrun/messages"

// Kind describes one kind of semaphore pool. Every axis has a pool of each kind.
type Kind struct {
	Pool    messages.Pool
	Banks   int
	PerBank func(links, workers int) int // semaphores in a bank
	Eager   bool                         // made when the mesh is opened; otherwise on first use, on both axes at once
}

// PerWorkers reports whether the pool has a set of banks for each number of workers per link; such sets are made one by one.
func (k Kind) PerWorkers() bool { return k.Pool == messages.PoolStridedAGMM }

func count(n int) func(int, int) int { return func(int, int) int { return n } }

// Table lists the pools of the reference manager in the order in which it creates them. Eager: 3·2·2 + 3·2·2 + 2·2·2 + links·2·2 + 2·2
// + 2·2 + 2·2 = 44 + 4·links semaphores.
var table = [...]Kind{
	{messages.PoolRS, 2, count(3), true},
	{messages.PoolRSFused, 2, count(3), true},
	{messages.PoolAG, 2, count(2), true},
	{messages.PoolExpRing, 2, func(links, _ int) int { return links }, true},
	{messages.PoolNP, 2, count(1), true},
	{messages.PoolSR, 2, count(1), true},
	{messages.PoolBarrier, 2, count(1), true},

	{messages.PoolNPFused, 2, count(1), false},
	{messages.PoolBarrierFused, 2, count(1), false},
	{messages.PoolNPRegion, 1, func(links, _ int) int { return 4 * links }, false},
	{messages.PoolStridedAGMM, 2, func(links, workers int) int { return 2 + 2*links*workers }, false},
	{messages.PoolFSDP, 2, count(2), false},
}

// Kinds returns the table.
func Kinds() []Kind { return table[:] }
