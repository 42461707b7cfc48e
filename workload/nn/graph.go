package nn

import (
	"context"
	"fmt"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/workload/checkpoint"
)

// Value is a tensor on the mesh, as a Graph hands it from operation to operation. The one that takes it consumes it, unless it is kept.
// The zero Value is absent: an optional operand that is not given.
type Value struct {
	tensor *meshrun.Tensor
	kept   bool
}

// Keep is the value, to be read but not consumed.
func (v Value) Keep() Value {
	v.kept = true
	return v
}

// Graph submits one forward pass on a stream. It serves one goroutine.
type Graph struct {
	// OnOperation is called after each operation with how many there have been; may be nil.
	OnOperation func(n int)
	// OnTap gets what the model lets be seen, such as the outputs of its blocks; may be nil. Looking costs reads.
	OnTap func(name string, a checkpoint.Array)

	ctx    context.Context
	stream *meshrun.Stream
	run    Run
	layout Layout
	dtype  meshrun.DType
	timing bool

	err        error
	where      string
	operations int
	live       map[*meshrun.Tensor]struct{} // what has to be released
}

// Run says how a model is run.
type Run struct {
	Layout Layout
	DType  meshrun.DType // of weights and activations, BFloat16 or Float32
	Timing bool          // no data move: only shapes and times count
	Halo   Halo          // of the convolutions of pictures; "" = HaloFull
}

// NewGraph makes a graph of operations on a stream.
func NewGraph(ctx context.Context, s *meshrun.Stream, r Run) *Graph {
	return &Graph{ctx: ctx, stream: s, run: r, layout: r.Layout, dtype: r.DType, timing: r.Timing, live: map[*meshrun.Tensor]struct{}{}}
}

// Layout is how the model lies on the mesh.
func (g *Graph) Layout() Layout { return g.layout }

// DType is the dtype of the activations.
func (g *Graph) DType() meshrun.DType { return g.dtype }

// Err is the first error.
func (g *Graph) Err() error { return g.err }

// Operations is how many operations have been submitted.
func (g *Graph) Operations() int { return g.operations }

// Live is how many values have been made and not yet consumed or released.
func (g *Graph) Live() int { return len(g.live) }

// Enter names the part of the model that follows, for errors.
func (g *Graph) Enter(part string) { g.where = part }

// Fail makes err the graph's error, unless it has one.
func (g *Graph) Fail(err error) {
	if g.err != nil || err == nil {
		return
	}
	if g.where != "" {
		err = fmt.Errorf("%s: %w", g.where, err)
	}
	g.err = err
}

// Close releases what is left and returns the graph's error.
func (g *Graph) Close() error {
	for t := range g.live {
		t.Release()
	}
	clear(g.live)
	return g.err
}

// Release gives values back that no operation consumes.
func (g *Graph) Release(values ...Value) {
	for _, v := range values {
		if v.tensor != nil {
			v.tensor.Release()
			delete(g.live, v.tensor)
		}
	}
}

func (g *Graph) own(t *meshrun.Tensor) Value {
	g.live[t] = struct{}{}
	return Value{tensor: t}
}

// apply submits an operation of one result and consumes its inputs.
func (g *Graph) apply(op messages.Operation, in ...Value) Value {
	if g.err != nil {
		return Value{}
	}
	tensors := make([]*meshrun.Tensor, len(in))
	for i, v := range in {
		tensors[i] = v.tensor
	}
	out, err := g.stream.Submit(g.ctx, meshrun.Call{Op: op, In: tensors})
	if err != nil {
		g.Fail(err)
		return Value{}
	}
	g.operations++
	for _, v := range in {
		if !v.kept {
			g.Release(v)
		}
	}
	for _, t := range out[1:] {
		t.Release()
	}
	if g.OnOperation != nil {
		g.OnOperation(g.operations)
	}
	return g.own(out[0])
}

// Upload lays a host array over the mesh. Without values, or where no data move, its content is undefined.
func (g *Graph) Upload(values []float32, dims []int, dtype meshrun.DType, d meshrun.Distribution) Value {
	return g.uploadAs(values, dims, dtype, meshrun.Tile, d)
}

func (g *Graph) uploadAs(values []float32, dims []int, dtype meshrun.DType, layout meshrun.Layout, d meshrun.Distribution) Value {
	if g.err != nil {
		return Value{}
	}
	shape, err := meshrun.NewShape(dims...)
	array := meshrun.Array{Shape: shape, DType: dtype}
	if err == nil && values != nil && !g.timing {
		array, err = meshrun.Floats(shape, dtype, values)
	}
	array.Layout = layout
	if err != nil {
		g.Fail(err)
		return Value{}
	}
	t, err := g.stream.Upload(g.ctx, array, d)
	if err != nil {
		g.Fail(err)
		return Value{}
	}
	return g.own(t)
}

// Read waits for a value, reads it from device (0,0) and consumes it. Where no data move it only waits.
func (g *Graph) Read(v Value) checkpoint.Array {
	if g.err != nil {
		return checkpoint.Array{}
	}
	a := checkpoint.Array{Shape: v.tensor.Shape().Dims()}
	var err error
	if g.timing {
		err = v.tensor.Wait(g.ctx)
	} else {
		a.Values, err = g.stream.ReadFloats(g.ctx, v.tensor, meshrun.Coord{})
	}
	if err != nil {
		g.failEarlier(err)
		return checkpoint.Array{}
	}
	if !v.kept {
		g.Release(v)
	}
	return a
}

// Tap shows a value, put together from the shards of its distribution, to whoever looks; it is not consumed.
func (g *Graph) Tap(name string, v Value, d meshrun.Distribution) {
	if g.err != nil || g.OnTap == nil || g.timing {
		return
	}
	if a := g.collect(v, d); g.err == nil {
		g.OnTap(name, a)
	}
}

// Show shows an array of the host, as Tap does a value.
func (g *Graph) Show(name string, a checkpoint.Array) {
	if g.err == nil && g.OnTap != nil && !g.timing {
		g.OnTap(name, a)
	}
}

// collect waits for a value and puts it together from the shards of its distribution; where no data move it only waits.
func (g *Graph) collect(v Value, d meshrun.Distribution) checkpoint.Array {
	mesh, shard := g.layout.Mesh, v.tensor.Shape()
	a := checkpoint.Array{Shape: d.Global(shard, mesh).Dims()}
	if g.timing {
		g.failEarlier(v.tensor.Wait(g.ctx))
		return a
	}
	a.Values = make([]float32, d.Global(shard, mesh).Elements())
	for r := range mesh.Rows {
		for c := range mesh.Cols {
			at := meshrun.Coord{Row: r, Col: c}
			if d[0] == messages.Replicated && r > 0 || d[1] == messages.Replicated && c > 0 {
				continue
			}
			values, err := g.stream.ReadFloats(g.ctx, v.tensor, at)
			if err != nil {
				g.failEarlier(err)
				return checkpoint.Array{}
			}
			var begin [messages.MaxRank]int
			for axis, dim := range d {
				if dim != messages.Replicated {
					begin[dim] += at.Along(axis) * shard.Dim(dim)
				}
			}
			put(a, values, shard.Dims(), begin[:shard.Rank()])
		}
	}
	return a
}

// failEarlier is Fail for an error of something that was submitted earlier than where the graph is.
func (g *Graph) failEarlier(err error) {
	if err != nil {
		g.where = ""
		g.Fail(err)
	}
}

// put copies a shard into its place in the whole.
func put(whole checkpoint.Array, shard []float32, dims, begin []int) {
	width := dims[len(dims)-1]
	for row := range len(shard) / width {
		at, rest := 0, row
		index := make([]int, len(dims))
		for d := len(dims) - 2; d >= 0; d-- {
			index[d] = rest % dims[d]
			rest /= dims[d]
		}
		for d := range dims {
			at = at*whole.Shape[d] + begin[d] + index[d]
		}
		copy(whole.Values[at:at+width], shard[row*width:])
	}
}
