package safetensors

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"os"

	"github.com/meshrun/meshrun/messages"
)

// Tensor is one tensor to write: BF16 (rounded to nearest even) or F32.
type Tensor struct {
	Name   string
	DType  DType
	Shape  []int
	Values []float32
}

// Write writes tensors as one file, in the order given.
func Write(w io.Writer, tensors []Tensor) error {
	header := make(map[string]any, len(tensors))
	at := int64(0)
	for _, t := range tensors {
		want := 1
		for _, n := range t.Shape {
			want *= n
		}
		if t.DType != BF16 && t.DType != F32 {
			return messages.Invalid("write", "tensor "+t.Name, "dtype "+string(t.DType), "is %s or %s", BF16, F32)
		}
		if want != len(t.Values) {
			return messages.Invalid("write", "tensor "+t.Name, len(t.Values), "has %d values, the elements of %v", want, t.Shape)
		}
		shape := t.Shape
		if shape == nil {
			shape = []int{}
		}
		end := at + int64(want)*sizes[t.DType]
		header[t.Name] = map[string]any{"dtype": t.DType, "shape": shape, "data_offsets": [2]int64{at, end}}
		at = end
	}
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	if _, err := w.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)); err != nil {
		return err
	}
	for _, t := range tensors {
		var b []byte
		for _, v := range t.Values {
			if t.DType == BF16 {
				b = binary.LittleEndian.AppendUint16(b, messages.ToBF16(v))
			} else {
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
			}
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// WriteFile writes tensors to the file at path.
func WriteFile(path string, tensors []Tensor) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := Write(f, tensors); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}
