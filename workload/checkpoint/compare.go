package checkpoint

import "math"

// Compare measures how far values are from what is expected: their Pearson correlation and the largest absolute difference, in standard
// deviations of what is expected. It is NaN where a value is no number or the lengths differ.
func Compare(got, want []float32) (pcc, maxError float64) {
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
