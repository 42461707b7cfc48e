package workload

import (
	"encoding/json"
	"math"
)

// compare measures how far values are from what is expected: their Pearson correlation and the largest absolute difference, in standard
// deviations of what is expected. It is NaN where a value is no number or the lengths differ.
func compare(got, want []float32) (pcc, maxError float64) {
	if len(got) != len(want) || len(want) == 0 {
		return math.NaN(), math.NaN()
	}
	n := float64(len(want))
	var meanG, meanW float64
	for i := range want {
		meanG += float64(got[i]) / n
		meanW += float64(want[i]) / n
	}
	var gg, ww, gw, largest float64
	for i := range want {
		g, w := float64(got[i])-meanG, float64(want[i])-meanW
		gg, ww, gw = gg+g*g, ww+w*w, gw+g*w
		largest = math.Max(largest, math.Abs(float64(got[i])-float64(want[i]))) // NaN stays NaN
	}
	if largest == 0 {
		return 1, 0 // also where all are equal and nothing correlates
	}
	return gw / math.Sqrt(gg*ww), largest / math.Sqrt(ww/n)
}

// verify holds values against what is expected.
func (t Tolerance) verify(got, want []float32, against string) *Verification {
	v := &Verification{Against: against}
	v.PCC, v.MaxError = compare(got, want)
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
