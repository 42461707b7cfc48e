package actors

import (
	"github.com/asynkron/protoactor-go/actor"

	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/pools"
)

// axisActor stands for one mesh axis: it knows its pools and hands what a batch wants to each of them.
type axisActor struct {
	rt    *Runtime
	axis  int
	pools map[messages.Pool]*actor.PID
}

// Receive implements actor.Actor.
func (a *axisActor) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *acquire:
		var byPool [messages.PoolCount][]lease
		for i, p := range m.pools {
			byPool[p] = append(byPool[p], m.leases[i])
		}
		for p, leases := range byPool {
			if len(leases) > 0 {
				ctx.Send(a.pools[messages.Pool(p)], &take{leases})
			}
		}
	}
}

// semaphoreActor owns the index of one semaphore pool on one axis.
type semaphoreActor struct {
	device *actor.PID
	index  int
	pool   *pools.Semaphores
}

// Receive implements actor.Actor.
func (a *semaphoreActor) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case makeEager:
		ctx.Send(a.device, &granted{pool: a.index, made: a.pool.Make()})
	case *take:
		made := a.pool.Make()
		for i := range m.leases {
			m.leases[i].slot = int32(a.pool.Grant())
		}
		ctx.Send(a.device, &granted{pool: a.index, leases: m.leases, made: made})
	}
}

// buffersActor owns the pools of persistent buffers of the mesh. It stands beside the axes, not below one, since a bank that is
// given back and the next request for it must keep their order whatever axis they belong to.
type buffersActor struct {
	device *actor.PID
	index  int
	pools  *pools.Buffers
}

// Receive implements actor.Actor.
func (a *buffersActor) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *takeBuffers:
		out := &granted{pool: a.index}
		for i := range m.actions {
			b := &m.actions[i]
			if b.want == nil {
				a.pools.Return(b.id())
				continue
			}
			slot, made := a.pools.Acquire(b.id(), b.want.Key, b.want.Parts)
			b.slot = int32(slot)
			out.leases = append(out.leases, b.lease)
			out.made = append(out.made, made...)
		}
		if len(out.leases) > 0 {
			ctx.Send(a.device, out)
		}
	}
}
