// Package safetensors reads and writes the safetensors format: a length, a JSON header that names each tensor's dtype, shape and place, then
// the data of the tensors, one behind the other.
//
// It is a reader of its own because a checkpoint may be larger than memory: the one Go library of the format
// (github.com/nlpodyssey/safetensors) takes a file as one slice of bytes, and its errors do not name the tensor. This one reads the header,
// checks it against the file's size, and then reads a tensor at a time through an io.ReaderAt.
//
// Errors are *messages.InvalidError: the file, the tensor, the value and the rule.
package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"

	"github.com/meshrun/meshrun/messages"
)

// DType is an element type by its name in the format.
type DType string

// The element types that can be read as numbers.
const (
	BF16 DType = "BF16"
	F16  DType = "F16"
	F32  DType = "F32"
	Bool DType = "BOOL"
)

// sizes are the bytes of an element. Types that cannot be read as numbers here stand in it, so that a file that holds them can be checked.
var sizes = map[DType]int64{
	Bool: 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1,
	"U16": 2, "I16": 2, F16: 2, BF16: 2,
	"U32": 4, "I32": 4, F32: 4,
	"U64": 8, "I64": 8, "F64": 8, "C64": 8,
}

// maxHeader bounds the header, as the format's own library does.
const maxHeader = 100_000_000

// Info says what a tensor is and where its data lie.
type Info struct {
	DType DType
	Shape []int // empty: a scalar

	begin, end int64 // in the file
}

// Elements is the number of elements.
func (i Info) Elements() int { return int((i.end - i.begin) / sizes[i.DType]) }

// File is an open file. Its methods may be called from any goroutine.
type File struct {
	name    string
	data    io.ReaderAt
	closer  io.Closer
	tensors map[string]Info
}

// Open reads and checks the header of the file at path.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, messages.Invalid(path, "file", "missing", "can be read (%v)", unwrapped(err))
	}
	stat, err := f.Stat()
	if err == nil && stat.IsDir() {
		err = fmt.Errorf("is a folder")
	}
	if err != nil {
		_ = f.Close()
		return nil, messages.Invalid(path, "file", "unreadable", "can be read (%v)", unwrapped(err))
	}
	file, err := New(path, f, stat.Size())
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	file.closer = f
	return file, nil
}

// unwrapped leaves the path out of an error that is printed behind it.
func unwrapped(err error) error {
	if pathErr, ok := err.(*os.PathError); ok {
		return pathErr.Err
	}
	return err
}

// New reads and checks the header of size bytes of data; the name stands in errors.
func New(name string, data io.ReaderAt, size int64) (*File, error) {
	f := &File{name: name, data: data}
	bad := func(field string, value any, rule string, args ...any) error {
		return messages.Invalid(name, field, value, rule, args...)
	}
	var prefix [8]byte
	if size < 8 {
		return nil, bad("size", bytesOf(size), "is at least 8 bytes; the file is truncated or no safetensors file")
	}
	if err := readFull(data, prefix[:], 0); err != nil {
		return nil, bad("header", "unreadable", "can be read (%v)", err)
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	if n > maxHeader {
		return nil, bad("header length", n, "is at most %d; the file is damaged or no safetensors file", maxHeader)
	}
	if int64(n) > size-8 {
		return nil, bad("size", bytesOf(size), "holds a header of %d bytes; the file is truncated", n)
	}
	header := make([]byte, n)
	if err := readFull(data, header, 8); err != nil {
		return nil, bad("header", "unreadable", "can be read (%v)", err)
	}
	end, err := f.parse(header, 8+int64(n))
	if err != nil {
		return nil, err
	}
	if end > size {
		return nil, bad("size", bytesOf(size), "is %d bytes, as the header says; the file is truncated", end)
	}
	if end < size {
		return nil, bad("size", bytesOf(size), "is %d bytes, as the header says; something follows the last tensor", end)
	}
	return f, nil
}

func bytesOf(n int64) string { return strconv.FormatInt(n, 10) + " bytes" }

// readFull is ReadAt of the whole slice.
func readFull(r io.ReaderAt, b []byte, at int64) error {
	n, err := r.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// parse reads the header, whose data begin at base, and returns where they end.
func (f *File) parse(header []byte, base int64) (int64, error) {
	var entries map[string]json.RawMessage
	if err := json.Unmarshal(header, &entries); err != nil {
		return 0, messages.Invalid(f.name, "header", "damaged", "is a JSON object (%v)", err)
	}
	delete(entries, "__metadata__")
	f.tensors = make(map[string]Info, len(entries))
	names := make([]string, 0, len(entries))
	for name, text := range entries {
		info, err := f.entry(name, text, base)
		if err != nil {
			return 0, err
		}
		f.tensors[name] = info
		names = append(names, name)
	}
	// The data have neither overlaps nor holes.
	slices.SortFunc(names, func(a, b string) int {
		if d := f.tensors[a].begin - f.tensors[b].begin; d != 0 {
			return int(min(max(d, -1), 1))
		}
		return int(min(max(f.tensors[a].end-f.tensors[b].end, -1), 1))
	})
	at := base
	for _, name := range names {
		if info := f.tensors[name]; info.begin != at {
			return 0, f.bad(name, fmt.Sprintf("data_offsets [%d, %d]", info.begin-base, info.end-base),
				"begins at %d, where the tensor before it ends", at-base)
		}
		at = f.tensors[name].end
	}
	return at, nil
}

// entry reads what the header says of one tensor.
func (f *File) entry(name string, text json.RawMessage, base int64) (Info, error) {
	var e struct {
		DType   *DType  `json:"dtype"`
		Shape   []int64 `json:"shape"`
		Offsets []int64 `json:"data_offsets"`
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil || e.DType == nil || e.Shape == nil || len(e.Offsets) != 2 {
		return Info{}, f.bad(name, strconv.Quote(string(text[:min(len(text), 80)])), "has dtype, shape and data_offsets [begin, end]")
	}
	size, known := sizes[*e.DType]
	if !known {
		return Info{}, f.bad(name, "dtype "+string(*e.DType), "is a dtype of the format, such as %s, %s, %s or %s", BF16, F16, F32, Bool)
	}
	want := size
	shape := make([]int, len(e.Shape))
	for i, n := range e.Shape {
		if n < 0 || n > 0 && want > math.MaxInt64/2/n {
			return Info{}, f.bad(name, fmt.Sprint("shape ", e.Shape), "has dims that are not negative and no more elements than 64 bits count")
		}
		want *= n
		shape[i] = int(n)
	}
	begin, end := e.Offsets[0], e.Offsets[1]
	if begin < 0 || end < begin || end > math.MaxInt64/2 || end-begin != want {
		return Info{}, f.bad(name, fmt.Sprintf("data_offsets [%d, %d]", begin, end), "holds %d bytes, a %s of shape %v", want, *e.DType, e.Shape)
	}
	return Info{*e.DType, shape, base + begin, base + end}, nil
}

func (f *File) bad(tensor, value, rule string, args ...any) error {
	return messages.Invalid(f.name, "tensor "+tensor, value, rule, args...)
}

// Name is the name under which the file was opened.
func (f *File) Name() string { return f.name }

// Names lists the tensors, sorted.
func (f *File) Names() []string {
	names := make([]string, 0, len(f.tensors))
	for n := range f.tensors {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Info says what a tensor is, and whether there is one of that name.
func (f *File) Info(tensor string) (Info, bool) {
	i, ok := f.tensors[tensor]
	return i, ok
}

// Bytes reads a tensor as it is stored: row major, little endian.
func (f *File) Bytes(tensor string) ([]byte, error) {
	i, ok := f.tensors[tensor]
	if !ok {
		return nil, f.bad(tensor, "missing", "is in the file")
	}
	b := make([]byte, i.end-i.begin)
	if err := readFull(f.data, b, i.begin); err != nil {
		return nil, f.bad(tensor, "unreadable", "can be read (%v)", unwrapped(err))
	}
	return b, nil
}

// Floats reads a tensor of BF16, F16, F32 or BOOL as float32, exactly; true is 1.
func (f *File) Floats(tensor string) ([]float32, error) {
	b, err := f.Bytes(tensor)
	if err != nil {
		return nil, err
	}
	i := f.tensors[tensor]
	out := make([]float32, i.Elements())
	switch i.DType {
	case BF16:
		for k := range out {
			out[k] = messages.FromBF16(binary.LittleEndian.Uint16(b[2*k:]))
		}
	case F16:
		for k := range out {
			out[k] = fromF16(binary.LittleEndian.Uint16(b[2*k:]))
		}
	case F32:
		for k := range out {
			out[k] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*k:]))
		}
	case Bool:
		for k := range out {
			if b[k] != 0 {
				out[k] = 1
			}
		}
	default:
		return nil, f.bad(tensor, "dtype "+string(i.DType), "is %s, %s, %s or %s", BF16, F16, F32, Bool)
	}
	return out, nil
}

// fromF16 widens an IEEE half, exactly.
func fromF16(h uint16) float32 {
	sign := uint32(h>>15) << 31
	exp, frac := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0: // zero or subnormal: frac * 2^-24
		v := float32(frac) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(v) | sign)
	case 0x1f:
		return math.Float32frombits(sign | 0xff<<23 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
}

// Close closes the file.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	return f.closer.Close()
}
