// Package axis holds the pure rules of the operations on a mesh: what is valid, in which view the driver sees a tensor, the
// shapes of the results, the hyperparameters, the topology of each axis, and what an operation must lease.
//
// It owns the table of design section 6. A Plan is data: the runtime carries it out. The package has no goroutine, no clock
// and no state beyond its arguments, and must never import package actors or use cgo.
package axis
