package pipeline

import (
	"github.com/meshrun/meshrun/workload/checkpoint"
)

// Scheduler is the flow-matching Euler scheduler (diffusers: FlowMatchEulerDiscreteScheduler): how much noise there is at each step, and
// how a step takes some of it away.
type Scheduler struct {
	train int     // steps of the training
	shift float64 // towards noise
}

const schedulerClass = "FlowMatchEulerDiscreteScheduler"

// loadScheduler reads the configuration.
func loadScheduler(c *checkpoint.Config) (Scheduler, error) {
	c.Is("_class_name", schedulerClass)
	s := Scheduler{train: c.Positive("num_train_timesteps", 1000), shift: c.Float("shift", 1)}
	if s.shift == 0 {
		c.Fail("shift", "is positive")
	}
	const other = "another schedule is not supported"
	for _, key := range []string{"use_dynamic_shifting", "invert_sigmas", "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "stochastic_sampling"} {
		c.IsBool(key, false, other)
	}
	c.Null("shift_terminal", other)
	return s, c.Err()
}

// shifted moves a share of noise.
func (s Scheduler) shifted(sigma float64) float64 { return s.shift * sigma / (1 + (s.shift-1)*sigma) }

// Schedule is the share of noise before each step and after the last, and what the model is told about it. As in diffusers the range is that
// of the training, shifted already, and what lies in it is shifted again; the values are float32 from where diffusers makes them so.
func (s Scheduler) Schedule(steps int) (sigmas, timesteps []float32) {
	first, last := s.bounds()
	for i := range steps {
		t := first
		if steps > 1 {
			t += (last - first) * float64(i) / float64(steps-1)
		}
		sigma := float32(s.shifted(t / float64(s.train)))
		sigmas, timesteps = append(sigmas, sigma), append(timesteps, sigma*float32(s.train))
	}
	return append(sigmas, 0), timesteps
}

// bounds are the first and the last step of the training, shifted.
func (s Scheduler) bounds() (first, last float64) {
	n := float64(s.train)
	shifted := func(t float64) float64 { return float64(float32(s.shifted(float64(float32(t/n))))) * n }
	return shifted(n), shifted(1)
}

// step moves latents to the next share of noise, along what the model predicts.
func step(latents, noise []float32, sigma, next float32) []float32 {
	out := make([]float32, len(latents))
	for i, v := range latents {
		out[i] = v + (next-sigma)*noise[i]
	}
	return out
}
