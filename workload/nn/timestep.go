package nn

import (
	"math"
)

// Sinusoids are the features of timesteps (diffusers: Timesteps with flip_sin_to_cos=True and downscale_freq_shift=0), width values each: the
// first half cosines, the second half sines, of t * 10000^(-i/half). Frequency and angle are computed in float32, as diffusers does: at
// t near 1000 that shows in the fifth digit.
func Sinusoids(timesteps []float32, width int) []float32 {
	half := width / 2
	out := make([]float32, len(timesteps)*width)
	for k := range half {
		frequency := float32(math.Exp(float64(float32(-math.Log(10000)) * float32(k) / float32(half))))
		for i, t := range timesteps {
			sin, cos := math.Sincos(float64(t * frequency))
			out[i*width+k], out[i*width+half+k] = float32(cos), float32(sin)
		}
	}
	return out
}
