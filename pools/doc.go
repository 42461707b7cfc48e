// Package pools holds the pure ping-pong pools: banks of semaphores and keyed banks of buffers, who has them, and the test of
// when one may be used again.
//
// A pool decides and reports; it never allocates, fences or waits. What must be done (make banks) leaves as data. It imports
// package messages only, and must never import actors, axis or use cgo; it has no goroutine and no clock.
package pools
