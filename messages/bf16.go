package messages

import (
	"encoding/binary"
	"fmt"
	"math"
)

// ToBF16 rounds a float32 to bfloat16, to nearest even; a NaN stays a NaN.
func ToBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// FromBF16 widens a bfloat16, exactly.
func FromBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// EncodeFloats lays float32 values out in the bytes of a dtype, little endian: rounded for bfloat16, truncated toward zero and saturated
// for integers.
func EncodeFloats(values []float32, t DType) ([]byte, error) {
	n := t.HostBytes()
	b := make([]byte, len(values)*n)
	for i, v := range values {
		at := b[i*n:]
		switch t {
		case BFloat16:
			binary.LittleEndian.PutUint16(at, ToBF16(v))
		case Float32, BFloat8B:
			binary.LittleEndian.PutUint32(at, math.Float32bits(v))
		case UInt32:
			binary.LittleEndian.PutUint32(at, uint32(saturate(v, 0, math.MaxUint32)))
		case Int32:
			binary.LittleEndian.PutUint32(at, uint32(int32(saturate(v, math.MinInt32, math.MaxInt32))))
		case UInt16:
			binary.LittleEndian.PutUint16(at, uint16(saturate(v, 0, math.MaxUint16)))
		case UInt8:
			at[0] = uint8(saturate(v, 0, math.MaxUint8))
		default:
			return nil, &InvalidError{Field: "dtype", Value: t.String(), Rule: "is a dtype of the runtime"}
		}
	}
	return b, nil
}

func saturate(v float32, low, high float64) float64 {
	f := math.Trunc(float64(v))
	switch {
	case f != f:
		return 0
	case f < low:
		return low
	case f > high:
		return high
	}
	return f
}

// DecodeFloats widens the bytes of a dtype to float32. Integers beyond 2^24 lose their last bits.
func DecodeFloats(b []byte, t DType) ([]float32, error) {
	n := t.HostBytes()
	if len(b)%n != 0 {
		return nil, &InvalidError{Field: "data", Value: fmt.Sprintf("%d bytes", len(b)), Rule: fmt.Sprintf("is whole elements of %d bytes", n)}
	}
	out := make([]float32, len(b)/n)
	for i := range out {
		at := b[i*n:]
		switch t {
		case BFloat16:
			out[i] = FromBF16(binary.LittleEndian.Uint16(at))
		case Float32, BFloat8B:
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(at))
		case UInt32:
			out[i] = float32(binary.LittleEndian.Uint32(at))
		case Int32:
			out[i] = float32(int32(binary.LittleEndian.Uint32(at)))
		case UInt16:
			out[i] = float32(binary.LittleEndian.Uint16(at))
		case UInt8:
			out[i] = float32(at[0])
		}
	}
	return out, nil
}
