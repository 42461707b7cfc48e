package nn

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/workload/checkpoint"
)

// Placer lays the parameters of a checkpoint over a mesh, one at a time. Every method checks that the parameter is there and has the shape
// that the model's configuration gives it; a Placer without a stream does only that.
type Placer struct {
	// OnTensor is called after each parameter with how many there have been; may be nil.
	OnTensor func(n int)

	ctx     context.Context
	stream  *meshrun.Stream
	weights *checkpoint.Weights
	run     Run
	dtype   meshrun.DType
	state   *placing
}

// placing is what a placer and its variants share.
type placing struct {
	err     error
	count   int
	tensors []*meshrun.Tensor
}

// NewChecker makes a placer that only checks.
func NewChecker(w *checkpoint.Weights) *Placer {
	return &Placer{weights: w, run: Run{Layout: One()}, state: &placing{}}
}

// NewPlacer makes a placer that uploads through a stream.
func NewPlacer(ctx context.Context, s *meshrun.Stream, w *checkpoint.Weights, r Run) *Placer {
	return &Placer{ctx: ctx, stream: s, weights: w, run: r, dtype: r.DType, state: &placing{}}
}

// Float32 is the placer for parameters that stay float32 in every run.
func (p *Placer) Float32() *Placer {
	q := *p
	q.dtype = meshrun.Float32
	return &q
}

// Sub is the placer for a part of a model, whose parameters' names begin with the prefix.
func (p *Placer) Sub(prefix string) *Placer {
	q := *p
	q.weights = p.weights.Sub(prefix)
	return &q
}

// Err is the first error.
func (p *Placer) Err() error { return p.state.err }

// Count is how many parameters there have been.
func (p *Placer) Count() int { return p.state.count }

// Release gives the parameters back; the network made of them must not be used any more.
func (p *Placer) Release() {
	for _, t := range p.state.tensors {
		t.Release()
	}
	p.state.tensors = nil
}

// Column places a linear layer whose output features are cut over the tensor-parallel axis; name.weight is [out, in...] and
// name.bias [out].
func (p *Placer) Column(name string, out int, in ...int) Linear {
	return p.ColumnParts(name, 1, out, in...)
}

// ColumnParts is Column for a layer whose output is several parts side by side: every device gets its slice of each part, so that
// Graph.Chunk finds the parts in its output.
func (p *Placer) ColumnParts(name string, parts, out int, in ...int) Linear {
	tp := p.run.Layout.TP.Size
	order := func(i int) int { // where output feature i goes
		part, rest := i/(out/parts), i%(out/parts)
		width := out / parts / tp
		return rest/width*width*parts + part*width + rest%width
	}
	if parts == 1 || tp == 1 {
		order = nil
	}
	return Linear{
		weight: p.matrix(name+".weight", out, in, order, p.run.Layout.Width(1)),
		bias:   p.vector(name+".bias", out, order, p.run.Layout.Width(3)),
	}
}

// Replicated places a linear layer that every device computes whole.
func (p *Placer) Replicated(name string, out int, in ...int) Linear {
	return Linear{
		weight: p.matrix(name+".weight", out, in, nil, meshrun.Replicate),
		bias:   p.vector(name+".bias", out, nil, meshrun.Replicate),
	}
}

// Row places a linear layer whose input features are cut over the tensor-parallel axis.
func (p *Placer) Row(name string, out, in int) RowLinear {
	return RowLinear{
		weight: p.matrix(name+".weight", out, []int{in}, nil, p.run.Layout.Width(0)),
		bias:   p.vector(name+".bias", out, nil, p.run.Layout.Width(3)),
		parts:  p.run.Layout.TP.Size,
	}
}

// Vector places a parameter [n] as [1, 1, 1, n], cut over the tensor-parallel axis.
func (p *Placer) Vector(name string, n int) Value {
	return p.vector(name, n, nil, p.run.Layout.Width(3))
}

// Table places a parameter [1, parts, n] as parts values [1, 1, 1, n], each cut over the tensor-parallel axis. One is added to the parts
// in plusOne: scales, which the model stores as their distance from one.
func (p *Placer) Table(name string, parts, n int, plusOne ...int) []Value {
	values := make([]Value, parts)
	data := p.read(name, 1, parts, n)
	size := p.dtype.HostBytes()
	for i := range values {
		var part []byte
		if data != nil {
			part = data[i*n*size : (i+1)*n*size]
			for _, j := range plusOne {
				if i == j {
					p.addOne(part)
				}
			}
		}
		values[i] = p.upload(part, p.run.Layout.Width(3), 1, 1, 1, n)
	}
	return values
}

// addOne adds one to each element.
func (p *Placer) addOne(data []byte) {
	if p.dtype != meshrun.Float32 {
		panic("nn: a table with scales is placed by Placer.Float32")
	}
	for ; len(data) > 0; data = data[4:] {
		v := math.Float32frombits(binary.LittleEndian.Uint32(data))
		binary.LittleEndian.PutUint32(data, math.Float32bits(v+1))
	}
}

// matrix places a weight [out, in...] as [in, out].
func (p *Placer) matrix(name string, out int, in []int, order func(int) int, d meshrun.Distribution) Value {
	columns := 1
	for _, n := range in {
		columns *= n
	}
	data := p.read(name, append([]int{out}, in...)...)
	return p.upload(transpose(data, out, columns, p.dtype.HostBytes(), order), d, columns, out)
}

// vector places a parameter [n] as [1, 1, 1, n].
func (p *Placer) vector(name string, n int, order func(int) int, d meshrun.Distribution) Value {
	data := p.read(name, n)
	return p.upload(transpose(data, n, 1, p.dtype.HostBytes(), order), d, 1, 1, 1, n)
}

// transpose makes [columns, rows] of [rows, columns]; row r becomes column order(r), or r without an order. Blocks keep both sides of the
// copy in the cache.
func transpose(data []byte, rows, columns, size int, order func(int) int) []byte {
	if data == nil || columns == 1 && order == nil {
		return data
	}
	out := make([]byte, len(data))
	const block = 64
	to := make([]int, rows)
	for r := range to {
		if to[r] = r; order != nil {
			to[r] = order(r)
		}
	}
	for r0 := 0; r0 < rows; r0 += block {
		for c0 := 0; c0 < columns; c0 += block {
			for r := r0; r < min(r0+block, rows); r++ {
				for c := c0; c < min(c0+block, columns); c++ {
					from, at := (r*columns+c)*size, (c*rows+to[r])*size
					if size == 2 {
						out[at], out[at+1] = data[from], data[from+1]
					} else {
						copy(out[at:at+size], data[from:from+size])
					}
				}
			}
		}
	}
	return out
}

// read checks a parameter and reads it in the placer's dtype; nil where no data move.
func (p *Placer) read(name string, shape ...int) []byte {
	if p.state.err != nil {
		return nil
	}
	if p.ctx != nil && p.ctx.Err() != nil {
		p.state.err = p.ctx.Err()
		return nil
	}
	if p.state.err = p.weights.Check(name, shape...); p.state.err != nil {
		return nil
	}
	p.state.count++
	if p.OnTensor != nil {
		p.OnTensor(p.state.count)
	}
	if p.stream == nil || p.run.Timing {
		return nil
	}
	var data []byte
	data, p.state.err = p.weights.Read(name, p.dtype)
	return data
}

// upload lays data over the mesh.
func (p *Placer) upload(data []byte, d meshrun.Distribution, dims ...int) Value {
	if p.stream == nil || p.state.err != nil {
		return Value{}
	}
	shape, err := meshrun.NewShape(dims...)
	if err != nil {
		p.state.err = err
		return Value{}
	}
	t, err := p.stream.Upload(p.ctx, meshrun.Array{Shape: shape, DType: p.dtype, Data: data}, d)
	if err != nil {
		p.state.err = err
		return Value{}
	}
	p.state.tensors = append(p.state.tensors, t)
	return Value{tensor: t}.Keep()
}
