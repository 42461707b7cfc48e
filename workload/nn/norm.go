package nn

import (
	"github.com/meshrun/meshrun/messages"
)

// LayerNorm normalises over the whole width, which is cut over the tensor-parallel axis: the statistics are gathered. Then it is
// times weight, plus bias (each optional): [1, 1, 1, width] for affine parameters, [B, 1, 1 or rows, width] for a modulation, whose
// weight is 1 + scale and whose bias is the shift.
func (g *Graph) LayerNorm(x, weight, bias Value, epsilon float64) Value {
	return g.apply(messages.FusedDistributedNorm{Epsilon: float32(epsilon), MeshAxis: g.layout.TP.axis()}, x, weight, bias)
}

// RMSNormHeads is the RMS norm across all heads of queries or keys [B, 1, rows, width]: one mean square over the whole width, times
// weight. The result is split into heads [B, heads of the device, rows, head dim] and rotated where rope is given.
func (g *Graph) RMSNormHeads(x, weight Value, epsilon float64, heads int, rope RopeTables) Value {
	op := messages.FusedDistributedNorm{RMS: true, Epsilon: float32(epsilon), MeshAxis: g.layout.TP.axis(), NumHeads: heads / g.layout.TP.Size}
	return g.apply(op, x, weight, Value{}, rope.Cos.Keep(), rope.Sin.Keep())
}
