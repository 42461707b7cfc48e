package workload

import (
	"maps"
	"math/rand/v2"

	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/nn"
)

// noiseDeviation is the standard deviation of the noise that makes a stream's input its own.
const noiseDeviation = 0.1

// streamInputs reads or makes the arguments of every stream: stream 0 gets the stored ones. Streams that get the same share them.
func streamInputs(cp *checkpoint.Checkpoint, m nn.Model, c *Config) ([]checkpoint.Arrays, error) {
	stored, err := cp.Inputs()
	if err != nil {
		return nil, err
	}
	if err := m.CheckInputs(stored); err != nil {
		return nil, err
	}
	all := []checkpoint.Arrays{stored}
	for k := 1; k < c.Streams; k++ {
		in := stored
		if c.Inputs != inputsSame {
			own, ok, err := cp.InputsOf(k)
			if err == nil && ok {
				err = m.CheckInputs(own)
			}
			if err != nil {
				return nil, err
			}
			if in = own; !ok {
				in = noisy(stored, m.Inputs()[0], c.Seed, k)
			}
		}
		all = append(all, in)
	}
	return all, nil
}

// noisy adds seeded noise to one of the arrays, unless it is only a shape.
func noisy(arrays checkpoint.Arrays, name string, seed uint64, stream int) checkpoint.Arrays {
	noise := rand.New(rand.NewPCG(seed, uint64(stream)))
	a := arrays[name]
	if a.Values == nil {
		return arrays
	}
	values := make([]float32, len(a.Values))
	for i, v := range a.Values {
		values[i] = v + float32(noiseDeviation*noise.NormFloat64())
	}
	out := maps.Clone(arrays)
	out[name] = checkpoint.Array{Shape: a.Shape, Values: values}
	return out
}
