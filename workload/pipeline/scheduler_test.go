package pipeline

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/workload/checkpoint"
)

var stored = filepath.Join("..", "..", "tests", "testdata", "golden", "pipeline-wan-4step")

// TestSchedule compares with what diffusers' scheduler chose.
func TestSchedule(t *testing.T) {
	want, err := checkpoint.ReadArrays(filepath.Join(stored, "outputs.safetensors"))
	require.NoError(t, err)
	sigmas, timesteps := Scheduler{train: 1000, shift: 3}.Schedule(4)
	for i, w := range want["sigmas"].Values {
		assert.InDelta(t, w, sigmas[i], 1e-7, "sigma %d", i)
	}
	for i, w := range want["timesteps"].Values {
		assert.InDelta(t, w, timesteps[i], 1e-4, "timestep %d", i)
	}
	require.Len(t, sigmas, 5)
	require.Len(t, timesteps, 4)

	// Without a shift noise goes down evenly.
	sigmas, timesteps = Scheduler{train: 1000, shift: 1}.Schedule(3)
	assert.InDeltaSlice(t, []float64{1, 0.5005, 0.001, 0}, widened(sigmas), 1e-6)
	assert.InDeltaSlice(t, []float64{1000, 500.5, 1}, widened(timesteps), 1e-3)
	sigmas, _ = Scheduler{train: 1000, shift: 3}.Schedule(1)
	assert.Equal(t, []float32{1, 0}, sigmas)
}

func widened(v []float32) []float64 {
	out := make([]float64, len(v))
	for i := range v {
		out[i] = float64(v[i])
	}
	return out
}

// TestSteps takes the stored predictions through guidance and the scheduler.
func TestSteps(t *testing.T) {
	in, err := checkpoint.ReadArrays(filepath.Join(stored, "inputs.safetensors"))
	require.NoError(t, err)
	out, err := checkpoint.ReadArrays(filepath.Join(stored, "outputs.safetensors"))
	require.NoError(t, err)
	sigmas, _ := Scheduler{train: 1000, shift: 3}.Schedule(4)
	x := in[latents].Values
	for i, name := range []string{"step.0.", "step.1.", "step.2.", "step.3."} {
		noise := guided(out[name+"noise_cond"].Values, out[name+"noise_uncond"].Values, 5)
		x = step(x, noise, sigmas[i], sigmas[i+1])
		for j, w := range out[name+latents].Values {
			require.InDelta(t, w, x[j], 1e-5, "%s element %d", name, j)
		}
	}
	cfg, err := checkpoint.ReadConfig(filepath.Join(stored, "config.json"))
	require.NoError(t, err)
	m, err := LoadWan(cfg)
	require.NoError(t, err)
	z := m.(*Wan).denormalised(checkpoint.Array{Shape: in[latents].Shape, Values: x})
	for j, w := range out["vae_input"].Values {
		require.InDelta(t, w, z.Values[j], 4e-5, "element %d", j)
	}
}

// TestUnsupportedSchedulers: one clear line each.
func TestUnsupportedSchedulers(t *testing.T) {
	for text, want := range map[string]string{
		`{"_class_name":"UniPCMultistepScheduler"}`: `c.json: _class_name "UniPCMultistepScheduler": is "FlowMatchEulerDiscreteScheduler"`,
		`{"use_karras_sigmas":true}`:                "use_karras_sigmas true: is false: another schedule is not supported",
		`{"use_dynamic_shifting":true}`:             "use_dynamic_shifting true: is false",
		`{"shift_terminal":0.1}`:                    "shift_terminal 0.1: is null",
		`{"shift":0}`:                               "shift 0: is positive",
		`{"num_train_timesteps":"many"}`:            `num_train_timesteps "many": is a whole number`,
	} {
		c, err := checkpoint.ParseConfig("c.json", []byte(text))
		require.NoError(t, err)
		_, err = loadScheduler(c)
		require.ErrorContains(t, err, want)
	}
}
