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
	case describe:
		out := &granted{pool: a.index}
		if !a.pool.Kind.PerWorkers() {
			out.made = a.pool.Make(0)
		}
		ctx.Send(a.device, out)
	case *take:
		out := &granted{pool: a.index, leases: m.leases}
		for i := range m.leases {
			l := &m.leases[i]
			workers := int(l.workers)
			out.made = append(out.made, a.pool.Make(workers)...)
			slot, err := 0, error(nil)
			if l.keep {
				slot, err = a.pool.Lease(l.id(), workers)
			} else {
				slot, err = a.pool.Grant(workers)
			}
			if err != nil {
				slot, out.err = noBank, err
			}
			l.slot = int32(slot)
		}
		ctx.Send(a.device, out)
	case *back:
		for _, l := range m.leases {
			a.pool.Return(l.id())
		}
	case rewind:
		a.pool.Reset()
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
			switch {
			case b.release != nil:
				if len(out.leases) > 0 { // what was granted before comes first
					ctx.Send(a.device, out)
				}
				out = &granted{pool: a.index, leases: []lease{b.lease}}
				out.leases[0].slot = noBank
				out.gone, out.err = a.pools.Release(b.release)
				ctx.Send(a.device, out)
				out = &granted{pool: a.index}
				continue
			case b.prewarm:
				b.slot = noBank
				out.made = append(out.made, a.pools.Prewarm(b.want.Key, b.want.Parts)...)
				out.leases = append(out.leases, b.lease)
				continue
			case b.want == nil:
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
	case whatIsIdle:
		ctx.Send(a.device, &idlePools{a.pools.Idle()})
	case rewind:
		a.pools.Reset()
	}
}
