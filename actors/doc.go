// Package actors carries the runtime: the actor system of one mesh with its device actor, one actor per mesh axis, one per
// semaphore pool of each axis, one for the buffers and one per stream.
//
// It owns concurrency, supervision and the life of a mesh. The decisions are made elsewhere: what an operation needs in
// package axis, which bank it gets in package pools. It is the only package that may import protoactor-go; it calls the driver
// through devicecgo.Device and must never use cgo itself.
//
// # The way of one operation
//
// A caller's goroutine works the operation out (axis.Make), makes the handles of its results and puts a task into the outbox of
// its stream. From there on messages carry slices of tasks:
//
//	stream actor ──► device actor: admits fairly, stamps the ticket
//	device actor ──► axis actors ──► pool actors ──► device actor: banks, in ticket order
//	device actor ──► buffers actor ──► device actor: persistent buffers, in ticket order
//	device actor ──► driver, in ticket order; events tell what has retired
//	device actor ──► stream actor ──► waiting callers
//
// # Contract
//
//  1. All actors of a mesh run on one OS thread (devicecgo.Thread), which is the thread that owns the mesh. No actor ever blocks:
//     none waits on another or on a future inside its receive.
//  2. Messages of one stream keep their order. Tickets are given in the order of admission: round robin over the streams that
//     have an operation whose inputs have been admitted.
//  3. Pools grant in ticket order; launches reach the driver in ticket order. The launch number counts launches that the driver
//     accepted.
//  4. A bank that is made is fenced before the launch that uses it first (rule 3 of the design), and a bank whose last user was
//     not followed by a join is fenced before its next (rule 4).
//  5. Every task gets exactly one answer: its stream's actor marks it done, with an error or without.
//  6. Submitting never waits for the device. A caller waits only for data, for a fence, or where his stream's queue is full.
//  7. When an actor ends, the tasks that need it fail with ErrActorStopped; the others go on.
//  8. While a stream captures a trace nobody else gets a ticket. A replay is one task of many launches; rule 4 is asked for all of them before the
//     call that makes them.
package actors
