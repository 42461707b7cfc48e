package casefile

import (
	"encoding/binary"
	"math"

	"github.com/meshrun/meshrun/messages"
)

// appendElement adds one element in the storage of a dtype, little endian: rounded to nearest even, integers saturated.
func appendElement(b []byte, v float64, t messages.DType) []byte {
	switch t {
	case messages.BFloat16:
		return binary.LittleEndian.AppendUint16(b, messages.ToBF16(roundToOdd(v)))
	case messages.Float32, messages.BFloat8B:
		return binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v)))
	}
	low, high, _ := integerRange(t)
	v = math.RoundToEven(min(max(v, low), high))
	switch t {
	case messages.UInt32:
		return binary.LittleEndian.AppendUint32(b, uint32(v))
	case messages.Int32:
		return binary.LittleEndian.AppendUint32(b, uint32(int32(v)))
	case messages.UInt16:
		return binary.LittleEndian.AppendUint16(b, uint16(v))
	}
	return append(b, uint8(v))
}

// integerRange is the range of an integer dtype.
func integerRange(t messages.DType) (low, high float64, ok bool) {
	switch t {
	case messages.UInt32:
		return 0, math.MaxUint32, true
	case messages.Int32:
		return math.MinInt32, math.MaxInt32, true
	case messages.UInt16:
		return 0, math.MaxUint16, true
	case messages.UInt8:
		return 0, math.MaxUint8, true
	}
	return 0, 0, false
}

// roundToOdd narrows to float32 so that a later rounding to fewer bits gives what one rounding of the whole value would.
func roundToOdd(v float64) float32 {
	f := float32(v)
	if float64(f) == v || math.IsNaN(v) || math.IsInf(float64(f), 0) {
		return f
	}
	bits := math.Float32bits(f)
	if math.Abs(float64(f)) > math.Abs(v) {
		bits-- // toward zero
	}
	return math.Float32frombits(bits | 1)
}
