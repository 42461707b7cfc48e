// Package nn holds what models are built from: how they are laid over a mesh (Layout), how their parameters get there (Placer), and layers
// whose forward passes are operations of one stream (Graph).
//
// # Layout
//
// Activations are [B, 1, rows, width]. Rows (tokens) are cut over the sequence-parallel axis, in order and padded to whole tiles on every
// device; the width is cut over the tensor-parallel axis. What needs the whole width gathers it (GatherWidth); a row-parallel layer leaves
// partial sums that a reduce-scatter adds up and cuts again. A degree of 1 moves nothing, by the same code.
//
// Pictures are [1, frames, rows, columns, channels] in row-major order (Field): rows are cut over the tensor-parallel axis, columns over
// the sequence-parallel one, and every device has all channels. Their layers are methods of a Canvas.
//
// # Values
//
// A Value is a tensor on the mesh that belongs to a Graph. The operation that takes a Value consumes it: its memory goes back once the
// operation has read it. Whoever needs a Value again passes v.Keep(). So model code reads like the model and holds no more memory than the
// model needs:
//
//	x = g.GatherWidth(x)
//	q := a.q.Forward(g, x.Keep())
//	k := a.k.Forward(g, x.Keep())
//	v := a.v.Forward(g, x) // the last reader
//
// A Graph remembers its first error, and everything after it does nothing; the caller looks at Err once, at the end.
package nn
