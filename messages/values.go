package messages

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// DType is the storage type of a tensor's elements. The zero value means "not given".
type DType uint8

// The dtypes of the runtime. BFloat8B is block floating point: 16 values share one exponent.
const (
	DTypeUnset DType = iota
	BFloat16
	Float32
	UInt32
	Int32
	UInt16
	UInt8
	BFloat8B
)

var dtypeNames = [...]string{"", "bfloat16", "float32", "uint32", "int32", "uint16", "uint8", "bfloat8_b"}

// DTypes lists every dtype, in the order of their values.
func DTypes() []DType { return []DType{BFloat16, Float32, UInt32, Int32, UInt16, UInt8, BFloat8B} }

func (t DType) String() string { return nameOf(dtypeNames[:], int(t), "dtype") }

// ParseDType reads a dtype by the name that tt-metal gives it, such as "bfloat16".
func ParseDType(s string) (DType, error) { return parseName[DType](dtypeNames[:], s, "dtype") }

// HostBytes is the size of one element in a host array of this dtype. A bfloat8_b array is float32 on the host.
func (t DType) HostBytes() int {
	switch t {
	case BFloat16, UInt16:
		return 2
	case UInt8:
		return 1
	default:
		return 4
	}
}

// Known reports whether the value is one of DTypes.
func (t DType) Known() bool { return t != DTypeUnset && int(t) < len(dtypeNames) }

// Float reports whether the dtype holds floating-point values.
func (t DType) Float() bool { return t == BFloat16 || t == Float32 || t == BFloat8B }

// Layout is the order of elements in device memory.
type Layout uint8

// Tile layout stores 32x32 tiles, padded in the last two dims; row major stores rows as they are.
const (
	LayoutUnset Layout = iota
	Tile
	RowMajor
)

var layoutNames = [...]string{"", "tile", "row_major"}

// Known reports whether the value is Tile or RowMajor.
func (l Layout) Known() bool { return l != LayoutUnset && int(l) < len(layoutNames) }

func (l Layout) String() string { return nameOf(layoutNames[:], int(l), "layout") }

// ParseLayout reads "tile" or "row_major".
func ParseLayout(s string) (Layout, error) { return parseName[Layout](layoutNames[:], s, "layout") }

// Memory is where a tensor lives on its device.
type Memory uint8

// DRAM is the large memory of a device; L1 the scratch memory of its cores.
const (
	MemoryUnset Memory = iota
	DRAM
	L1
)

var memoryNames = [...]string{"", "dram", "l1"}

// Known reports whether the value is DRAM or L1.
func (m Memory) Known() bool { return m != MemoryUnset && int(m) < len(memoryNames) }

func (m Memory) String() string { return nameOf(memoryNames[:], int(m), "memory") }

// Topology is the shape in which a collective goes along a mesh axis.
type Topology uint8

// TopologyUnset leaves the choice to the runtime: Ring where the axis is longer than two and has the wrap link, else Linear.
const (
	TopologyUnset Topology = iota
	Linear
	Ring
)

var topologyNames = [...]string{"unset", "linear", "ring"}

func (t Topology) String() string { return nameOf(topologyNames[:], int(t), "topology") }

// ParseTopology reads "linear", "ring" or "unset".
func ParseTopology(s string) (Topology, error) {
	return parseName[Topology](topologyNames[:], s, "topology")
}

// Policy says how long memory handed to a caller is his.
type Policy uint8

const (
	// Hold keeps a result until the caller has released it. Legal for any number of streams.
	Hold Policy = iota
	// Rotate is the reference's behaviour: the next call of a key takes the next bank. Legal for one stream on one queue.
	Rotate
)

var policyNames = [...]string{"hold", "rotate"}

func (p Policy) String() string { return nameOf(policyNames[:], int(p), "policy") }

// ParsePolicy reads "hold" or "rotate".
func ParsePolicy(s string) (Policy, error) { return parseName[Policy](policyNames[:], s, "policy") }

func nameOf(names []string, i int, kind string) string {
	if i < len(names) {
		return names[i]
	}
	return kind + "(" + strconv.Itoa(i) + ")"
}

func parseName[T ~uint8](names []string, s, kind string) (T, error) {
	var known []string
	for i, n := range names {
		if n == "" {
			continue
		}
		if n == s {
			return T(i), nil
		}
		known = append(known, n)
	}
	return 0, &InvalidError{Field: kind, Value: strconv.Quote(s), Rule: "must be one of " + strings.Join(known, ", ")}
}

// MaxRank is the largest number of dims of a tensor.
const MaxRank = 8

// Shape is the per-device shape of a tensor, outermost dim first. It is a value and can be a map key.
type Shape struct {
	rank uint8
	dims [MaxRank]int32
}

// NewShape makes a shape of at most MaxRank dims, each at least 1 and less than 2^31.
func NewShape(dims ...int) (Shape, error) {
	var s Shape
	if len(dims) > MaxRank {
		return s, &InvalidError{Field: "shape", Value: fmt.Sprint(dims), Rule: fmt.Sprintf("has at most %d dims", MaxRank)}
	}
	for i, d := range dims {
		if d < 1 || int64(d) > 1<<31-1 {
			return Shape{}, &InvalidError{Field: "shape", Value: fmt.Sprint(dims),
				Rule: fmt.Sprintf("every dim is at least 1 and less than 2^31 (dim %d is %d)", i, d)}
		}
		s.dims[i] = int32(d)
	}
	s.rank = uint8(len(dims))
	return s, nil
}

// ShapeOf is NewShape for shapes known to be right; it panics on a wrong one and is meant for constants and tests.
func ShapeOf(dims ...int) Shape {
	s, err := NewShape(dims...)
	if err != nil {
		panic(err)
	}
	return s
}

// Rank is the number of dims.
func (s Shape) Rank() int { return int(s.rank) }

// Dim is the length of dim i; a negative i counts from the end.
func (s Shape) Dim(i int) int {
	if i < 0 {
		i += int(s.rank)
	}
	return int(s.dims[i])
}

// With returns the shape with dim i set to n. A length that no shape can have becomes 0; see Valid.
func (s Shape) With(i, n int) Shape {
	if n < 1 || int64(n) > 1<<31-1 {
		n = 0
	}
	s.dims[i] = int32(n)
	return s
}

// Valid reports whether every dim is at least 1, as in a shape that NewShape has made.
func (s Shape) Valid() bool {
	for i := range int(s.rank) {
		if s.dims[i] < 1 {
			return false
		}
	}
	return true
}

// Dims returns the dims as a new slice.
func (s Shape) Dims() []int {
	d := make([]int, s.rank)
	for i := range d {
		d[i] = int(s.dims[i])
	}
	return d
}

// countless is where counts of elements and tiles end: beyond any memory, and small enough that their bytes do not wrap around.
const countless = 1 << 50

// Elements is the product of the dims; 1 for rank 0. It ends at 2^50.
func (s Shape) Elements() int64 {
	n := int64(1)
	for i := range int(s.rank) {
		n = count(n, int64(s.dims[i]))
	}
	return n
}

// count is n times d, at most countless.
func count(n, d int64) int64 {
	if d > 0 && n > countless/d {
		return countless
	}
	return n * d
}

// Rank4 is the view in which the collectives see a tensor: dims of 1 in front until there are four. A shape of rank 4 or more
// is returned as it is.
func (s Shape) Rank4() Shape {
	if s.rank >= 4 {
		return s
	}
	pad := 4 - int(s.rank)
	v := Shape{rank: 4}
	for i := range pad {
		v.dims[i] = 1
	}
	copy(v.dims[pad:4], s.dims[:s.rank])
	return v
}

// Tail drops the first n dims: the way back from Rank4.
func (s Shape) Tail(n int) Shape {
	t := Shape{rank: s.rank - uint8(n)}
	copy(t.dims[:], s.dims[n:s.rank])
	return t
}

// String prints the shape as "[1, 1, 32, 64]".
func (s Shape) String() string {
	b := make([]byte, 0, 32)
	b = append(b, '[')
	for i := range int(s.rank) {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = strconv.AppendInt(b, int64(s.dims[i]), 10)
	}
	return string(append(b, ']'))
}

// MarshalJSON writes the shape as an array of numbers.
func (s Shape) MarshalJSON() ([]byte, error) { return json.Marshal(s.Dims()) }

// UnmarshalJSON reads an array of numbers under the rules of NewShape.
func (s *Shape) UnmarshalJSON(b []byte) error {
	var d []int
	if err := json.Unmarshal(b, &d); err != nil {
		return &InvalidError{Field: "shape", Value: string(b), Rule: "is an array of whole numbers"}
	}
	v, err := NewShape(d...)
	if err != nil {
		return err
	}
	*s = v
	return nil
}

// Spec describes one shard: every device of the mesh holds one of this shape.
type Spec struct {
	Shape  Shape
	DType  DType
	Layout Layout
	Memory Memory
}

// HostBytes is the size of one shard as a host array, without padding.
func (s Spec) HostBytes() int64 { return s.Shape.Elements() * int64(s.DType.HostBytes()) }

// DeviceBytes is the size of one shard in device memory: in tile layout the last two dims are padded to tiles of 32 x 32; a tile of bfloat8_b has
// 1088 bytes, 64 of them exponents.
func (s Spec) DeviceBytes() int64 {
	if s.Layout != Tile {
		return s.HostBytes()
	}
	const side = 32
	rank, tiles := s.Shape.Rank(), int64(1)
	for i, d := range s.Shape.Dims() {
		if i >= rank-2 {
			d = (d + side - 1) / side
		}
		tiles = count(tiles, int64(d))
	}
	if s.DType == BFloat8B {
		return tiles * 1088
	}
	return tiles * side * side * int64(s.DType.HostBytes())
}

func (s Spec) String() string {
	return fmt.Sprintf("%s %s %s %s", s.Shape, s.DType, s.Layout, s.Memory)
}

// MeshShape is the number of rows (axis 0 runs down them) and columns (axis 1 runs along them).
type MeshShape struct {
	Rows, Cols int
}

// ParseMeshShape reads "2x4".
func ParseMeshShape(s string) (MeshShape, error) {
	bad := &InvalidError{Field: "mesh", Value: strconv.Quote(s), Rule: "is ROWSxCOLUMNS, such as 2x4, each from 1 to 128"}
	r, c, ok := strings.Cut(s, "x")
	if !ok {
		return MeshShape{}, bad
	}
	rows, errR := strconv.Atoi(r)
	cols, errC := strconv.Atoi(c)
	m := MeshShape{Rows: rows, Cols: cols}
	if errR != nil || errC != nil || m.Validate() != nil {
		return MeshShape{}, bad
	}
	return m, nil
}

// Validate checks that both axes have 1 to 128 devices.
func (m MeshShape) Validate() error {
	if m.Rows < 1 || m.Cols < 1 || m.Rows > 128 || m.Cols > 128 {
		return &InvalidError{Field: "mesh", Value: m.String(), Rule: "has 1 to 128 rows and 1 to 128 columns"}
	}
	return nil
}

// Axis is the length of axis 0 (rows) or 1 (columns).
func (m MeshShape) Axis(a int) int {
	if a == 0 {
		return m.Rows
	}
	return m.Cols
}

// Devices is the number of devices.
func (m MeshShape) Devices() int { return m.Rows * m.Cols }

func (m MeshShape) String() string { return fmt.Sprintf("%dx%d", m.Rows, m.Cols) }

// Coord is the place of a device on the mesh.
type Coord struct {
	Row, Col int
}

// Along is the position of the device on its line of the axis.
func (c Coord) Along(axis int) int {
	if axis == 0 {
		return c.Row
	}
	return c.Col
}

func (c Coord) String() string { return fmt.Sprintf("(%d,%d)", c.Row, c.Col) }

// MarshalJSON writes [row, col].
func (c Coord) MarshalJSON() ([]byte, error) { return json.Marshal([2]int{c.Row, c.Col}) }

// UnmarshalJSON reads [row, col].
func (c *Coord) UnmarshalJSON(b []byte) error {
	var v [2]int
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	c.Row, c.Col = v[0], v[1]
	return nil
}

// Distribution says how one host array is laid over the mesh: for each axis the dim along which it is cut, or Replicated.
type Distribution [2]int

// Replicated in a Distribution leaves the axis uncut: every device of a line gets the same.
const Replicated = -1

// Replicate is the distribution that gives every device the whole array.
var Replicate = Distribution{Replicated, Replicated}

// ShardOn cuts along dim over one axis, 0 or 1, and replicates over the other. It panics on another axis, as ShapeOf does on a wrong shape.
func ShardOn(axis, dim int) Distribution {
	d := Replicate
	d[axis] = dim
	return d
}

// Shard is the per-device shape of a global array under the distribution.
func (d Distribution) Shard(global Shape, mesh MeshShape) (Shape, error) {
	s := global
	for a, dim := range d {
		if dim == Replicated {
			continue
		}
		if dim < 0 || dim >= s.Rank() {
			return s, &InvalidError{Field: fmt.Sprintf("shard dim of axis %d", a), Value: strconv.Itoa(dim),
				Rule: fmt.Sprintf("is a dim of %s or %d (replicated)", global, Replicated)}
		}
		n := mesh.Axis(a)
		if s.Dim(dim)%n != 0 {
			return s, &InvalidError{Field: fmt.Sprintf("shape dim %d", dim), Value: strconv.Itoa(s.Dim(dim)),
				Rule: fmt.Sprintf("divides by the length %d of axis %d", n, a), Hint: "pad the array or choose another dim"}
		}
		s = s.With(dim, s.Dim(dim)/n)
	}
	return s, nil
}

// Global is the shape of the host array whose shards have the given shape.
func (d Distribution) Global(shard Shape, mesh MeshShape) Shape {
	for a, dim := range d {
		if dim != Replicated {
			shard = shard.With(dim, shard.Dim(dim)*mesh.Axis(a))
		}
	}
	return shard
}
