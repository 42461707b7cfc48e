package workload

import (
	"encoding/json"
	"math"

	"github.com/meshrun/meshrun/workload/checkpoint"
)

// verify holds values against what is expected.
func (t Tolerance) verify(got, want []float32, against string) *Verification {
	v := &Verification{Against: against}
	v.PCC, v.MaxError = checkpoint.Compare(got, want)
	v.OK = v.PCC >= t.PCC && v.MaxError <= t.MaxError // false for NaN
	return v
}

// MarshalJSON writes figures that are no numbers as strings, as JSON has none.
func (v Verification) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Against  string `json:"against"`
		PCC      any    `json:"pcc"`
		MaxError any    `json:"max_error"`
		OK       bool   `json:"ok"`
	}{v.Against, number(v.PCC), number(v.MaxError), v.OK})
}

func number(f float64) any {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Inf"
	case math.IsInf(f, -1):
		return "-Inf"
	}
	return f
}
