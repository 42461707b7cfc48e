package execute

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/meshrun/meshrun/messages"
)

// WriteJSON writes the result in the format of docs/exec.md: one object, a line for each row and tensor.
func (r *Result) WriteJSON(w io.Writer) error {
	var b bytes.Buffer
	b.WriteString("{\"schema\":1,\n\"rows\":[")
	for i, row := range r.Rows {
		b.WriteString(separator(i))
		if err := writeRow(&b, row); err != nil {
			return err
		}
	}
	b.WriteString("\n],\n\"tensors\":{")
	for i := range r.Tensors {
		b.WriteString(separator(i))
		if err := writeTensor(&b, &r.Tensors[i]); err != nil {
			return err
		}
	}
	b.WriteString("\n},\n\"report\":{")
	for i, key := range reportKeys(r.Report) {
		b.WriteString(separator(i))
		if err := writeField(&b, key, r.Report[key]); err != nil {
			return err
		}
	}
	b.WriteString("\n}}\n")
	_, err := w.Write(b.Bytes())
	return err
}

func separator(i int) string {
	if i == 0 {
		return "\n"
	}
	return ",\n"
}

// reportKeys are the keys of the format in its order, then any others.
func reportKeys(report map[string]json.RawMessage) []string {
	keys := []string{"hazards", "hang", "faults", "stats", "virtual_ns"}
	for _, k := range slices.Sorted(maps.Keys(report)) {
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return keys
}

func writeField(b *bytes.Buffer, key string, value any) error {
	k, err := json.Marshal(key)
	if err != nil {
		return err
	}
	b.Write(k)
	b.WriteByte(':')
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1) // the encoder's newline
	return nil
}

func writeRow(b *bytes.Buffer, row *messages.Row) error {
	type field struct {
		key   string
		value any
	}
	fields := []field{{"step", row.Step}}
	if row.Stream != "" {
		fields = append(fields, field{"stream", row.Stream})
	}
	effects := row.Effects
	if effects == nil {
		effects = []messages.Effect{}
	}
	fields = append(fields, field{"effects", effects})
	if row.Returns != nil {
		fields = append(fields, field{"returns", row.Returns})
	}
	if row.Timed {
		fields = append(fields, field{"time", struct {
			Start   uint64                `json:"start_ns"`
			End     uint64                `json:"end_ns"`
			Devices []messages.DeviceTime `json:"devices,omitempty"`
		}{row.StartNS, row.EndNS, row.Devices}})
	}
	if row.Err != nil {
		fields = append(fields, field{"error", row.Err.Error()})
	}
	b.WriteByte('{')
	for i, f := range fields {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := writeField(b, f.key, f.value); err != nil {
			return err
		}
	}
	b.WriteByte('}')
	return nil
}

func writeTensor(b *bytes.Buffer, t *Tensor) error {
	type shard struct {
		At     messages.Coord  `json:"at"`
		Values json.RawMessage `json:"values"`
		SHA256 string          `json:"sha256,omitempty"`
	}
	devices := make([]shard, len(t.Devices))
	for i, d := range t.Devices {
		devices[i] = shard{At: d.At, SHA256: d.SHA256}
		if d.Values != nil {
			devices[i].Values = appendValues(nil, d.Values, t.Spec.DType)
		}
	}
	return writeField(b, t.Name, struct {
		Shape   messages.Shape `json:"shape"`
		DType   string         `json:"dtype"`
		Layout  string         `json:"layout"`
		Devices []shard        `json:"devices"`
	}{t.Spec.Shape, t.Spec.DType.String(), t.Spec.Layout.String(), devices})
}

// appendValues writes elements as a JSON list. Each number reads back as exactly the element's value; NaN and the infinities are strings.
func appendValues(b, data []byte, t messages.DType) []byte {
	b = append(b, '[')
	size := t.HostBytes()
	for i := 0; i+size <= len(data); i += size {
		if i > 0 {
			b = append(b, ',')
		}
		at := data[i:]
		switch t {
		case messages.BFloat16:
			b = appendFloat(b, messages.FromBF16(binary.LittleEndian.Uint16(at)))
		case messages.UInt32:
			b = strconv.AppendUint(b, uint64(binary.LittleEndian.Uint32(at)), 10)
		case messages.Int32:
			b = strconv.AppendInt(b, int64(int32(binary.LittleEndian.Uint32(at))), 10)
		case messages.UInt16:
			b = strconv.AppendUint(b, uint64(binary.LittleEndian.Uint16(at)), 10)
		case messages.UInt8:
			b = strconv.AppendUint(b, uint64(at[0]), 10)
		default:
			b = appendFloat(b, math.Float32frombits(binary.LittleEndian.Uint32(at)))
		}
	}
	return append(b, ']')
}

func appendFloat(b []byte, f float32) []byte {
	v := float64(f)
	switch {
	case math.IsNaN(v):
		return append(b, `"NaN"`...)
	case math.IsInf(v, 1):
		return append(b, `"Inf"`...)
	case math.IsInf(v, -1):
		return append(b, `"-Inf"`...)
	case v == 0 && math.Signbit(v):
		return append(b, "-0.0"...)
	}
	return strconv.AppendFloat(b, v, 'g', -1, 64)
}
