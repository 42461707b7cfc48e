// Package messages holds the values that the parts of meshrun exchange: shapes, dtypes, specs, operations, leases, effects
// and typed errors.
//
// It owns the vocabulary and nothing else: no rule of an operation (package axis), no pool (package pools), no goroutine, no
// clock. It imports the standard library only, never actors, never cgo.
package messages
