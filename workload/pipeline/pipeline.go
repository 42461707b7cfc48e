// Package pipeline is the way from prompt embeddings and noise to frames: a loop of denoising steps with classifier-free guidance, then the
// decoder.
package pipeline

import (
	"fmt"

	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/film"
	"github.com/meshrun/meshrun/workload/nn"
	"github.com/meshrun/meshrun/workload/vae"
	"github.com/meshrun/meshrun/workload/wan"
)

// WanClass is the name of Wan's pipeline in diffusers.
const WanClass = "WanPipeline"

// What diffusers' WanPipeline does unless it is told otherwise.
const (
	defaultSteps    = 50
	defaultGuidance = 5
)

// Names of arguments and answer.
const (
	latents         = "latents"                // noise [B, channels, frames, rows, columns]
	promptEmbeds    = "prompt_embeds"          // what is wanted [B, tokens, width]
	negativeEmbeds  = "negative_prompt_embeds" // what is not, likewise
	framesName      = "frames"                 // [B, frames, 3, rows, columns] from 0 to 1
	storedTimesteps = "timesteps"
	transformerPart = "transformer"
	vaePart         = "vae"
	schedulerPart   = "scheduler"
	hiddenStates    = "hidden_states"
	timestep        = "timestep"
	textStates      = "encoder_hidden_states"
)

// Wan is Wan's pipeline on the host.
type Wan struct {
	transformer nn.Model
	vae         *vae.Wan
	scheduler   Scheduler
	guidance    float32
	steps       int
	channels    int // of the latents
}

var (
	_ nn.Model   = (*Wan)(nil)
	_ nn.Sampler = (*Wan)(nil)
)

// LoadWan reads the configuration: an object for each part.
func LoadWan(c *checkpoint.Config) (nn.Model, error) {
	m := &Wan{steps: defaultSteps, guidance: float32(c.Float("guidance_scale", defaultGuidance))}
	parts := map[string]*checkpoint.Config{}
	for _, part := range []struct{ name, class string }{{transformerPart, wan.ClassName}, {vaePart, vae.WanClass}, {schedulerPart, schedulerClass}} {
		sub := c.Sub(part.name)
		sub.Is("_class_name", part.class)
		parts[part.name] = sub
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	var err error
	if m.scheduler, err = loadScheduler(parts[schedulerPart]); err != nil {
		return nil, err
	}
	if m.transformer, err = wan.Load(parts[transformerPart]); err != nil {
		return nil, err
	}
	if m.vae, err = vae.LoadWan(parts[vaePart]); err != nil {
		return nil, err
	}
	m.channels = parts[vaePart].Positive("z_dim", 16)
	for _, key := range []string{"in_channels", "out_channels"} {
		if n := parts[transformerPart].PositiveOr(key, 16, m.channels); n != m.channels {
			parts[transformerPart].Fail(key, "is z_dim of the vae, %d", m.channels)
		}
	}
	if m.vae.Mean == nil || m.vae.Deviation == nil {
		parts[vaePart].Fail("latents_mean", "is given, and latents_std: what the transformer makes is denormalised by them")
	}
	if err := parts[transformerPart].Err(); err != nil {
		return nil, err
	}
	return m, parts[vaePart].Err()
}

// Inputs names the arguments.
func (m *Wan) Inputs() []string { return []string{latents, promptEmbeds, negativeEmbeds} }

// Output names the answer.
func (m *Wan) Output() string { return framesName }

// StoredSteps counts the stored timesteps.
func (m *Wan) StoredSteps(outputs checkpoint.Arrays) int {
	if t := outputs[storedTimesteps].Shape; len(t) == 1 {
		return t[0]
	}
	return 0
}

// SetSteps sets the number of denoising steps.
func (m *Wan) SetSteps(n int) {
	if m.steps = n; n == 0 {
		m.steps = defaultSteps
	}
}

func (m *Wan) decoded(in checkpoint.Arrays) checkpoint.Arrays {
	return checkpoint.Arrays{m.vae.Inputs()[0]: in[latents]}
}

// denoised are the arguments of the transformer at a time, for one of the two prompts.
func (m *Wan) denoised(in checkpoint.Arrays, prompt string, t float32) checkpoint.Arrays {
	times := make([]float32, in[latents].Shape[0])
	for i := range times {
		times[i] = t
	}
	return checkpoint.Arrays{hiddenStates: in[latents], textStates: in[prompt], timestep: {Shape: []int{len(times)}, Values: times}}
}

// OutputShape is the shape of the frames.
func (m *Wan) OutputShape(in checkpoint.Arrays) []int {
	s := m.vae.OutputShape(m.decoded(in))
	s[1], s[2] = s[2], s[1]
	return s
}

// CheckLayout says whether the transformer can lie on the mesh so.
func (m *Wan) CheckLayout(l nn.Layout) error { return m.transformer.CheckLayout(l) }

// CheckInputs says whether there is noise and two prompts.
func (m *Wan) CheckInputs(in checkpoint.Arrays) error {
	for _, name := range m.Inputs() {
		if _, ok := in[name]; !ok {
			return messages.Invalid("inputs", "tensor "+name, "missing", "is an argument of %s", WanClass)
		}
	}
	if s := in[latents].Shape; len(s) != 5 || s[1] != m.channels {
		return messages.Invalid("inputs", "tensor "+latents, fmt.Sprint("shape ", s), "is [batch, channels %d, frames, rows, columns]", m.channels)
	}
	if err := m.vae.CheckInputs(m.decoded(in)); err != nil {
		return err
	}
	for _, prompt := range []string{promptEmbeds, negativeEmbeds} {
		if err := m.transformer.CheckInputs(m.denoised(in, prompt, 0)); err != nil {
			return fmt.Errorf("%s: %w", prompt, err)
		}
	}
	return nil
}

// CheckFit says whether the latents can be cut over the mesh.
func (m *Wan) CheckFit(l nn.Layout, in checkpoint.Arrays) error {
	return m.vae.CheckFit(l, m.decoded(in))
}

// Films are the frames of an answer.
func (m *Wan) Films(a checkpoint.Array) []film.Film {
	frames, h, w := a.Shape[1], a.Shape[3], a.Shape[4]
	films := make([]film.Film, a.Shape[0])
	for b := range films {
		films[b] = film.FromChannels(swapped(a, b), frames, h, w, 0, 1)
	}
	return films
}

// swapped is element b of [B, p, q, rows, columns] with p and q swapped.
func swapped(a checkpoint.Array, b int) []float32 {
	p, q, plane := a.Shape[1], a.Shape[2], a.Shape[3]*a.Shape[4]
	out := make([]float32, p*q*plane)
	for i := range p {
		for j := range q {
			copy(out[(j*p+i)*plane:][:plane], a.Values[((b*p+i)*q+j)*plane:][:plane])
		}
	}
	return out
}

// Place lays the parameters of transformer and decoder over a mesh.
func (m *Wan) Place(p *nn.Placer) nn.Network {
	return &network{
		model:       m,
		transformer: m.transformer.Place(p.Sub(transformerPart + ".")),
		decoder:     m.vae.Place(p.Sub(vaePart + ".")),
		steps:       m.steps,
	}
}

// network is a pipeline whose parameters are on a mesh.
type network struct {
	model                *Wan
	transformer, decoder nn.Network
	steps                int
}

// Operations is not known: those of the decoder depend on the frames.
func (n *network) Operations() int { return 0 }

// Forward makes frames of noise and prompts.
func (n *network) Forward(g *nn.Graph, in checkpoint.Arrays) checkpoint.Array {
	m := n.model
	sigmas, timesteps := m.scheduler.Schedule(n.steps)
	x := checkpoint.Arrays{latents: in[latents], promptEmbeds: in[promptEmbeds], negativeEmbeds: in[negativeEmbeds]}
	for i, t := range timesteps {
		show := func(what string, a checkpoint.Array) { g.Show(fmt.Sprintf("step.%d.%s", i, what), a) }
		wanted := n.transformer.Forward(g, m.denoised(x, promptEmbeds, t))
		show("noise_cond", wanted)
		unwanted := n.transformer.Forward(g, m.denoised(x, negativeEmbeds, t))
		show("noise_uncond", unwanted)
		if g.Err() != nil {
			return checkpoint.Array{}
		}
		if wanted.Values != nil {
			noise := guided(wanted.Values, unwanted.Values, m.guidance)
			x[latents] = checkpoint.Array{Shape: x[latents].Shape, Values: step(x[latents].Values, noise, sigmas[i], sigmas[i+1])}
		}
		show(latents, x[latents])
	}
	z := m.denormalised(x[latents])
	g.Show("vae_input", z)
	decoded := n.decoder.Forward(g, m.decoded(checkpoint.Arrays{latents: z}))
	out := checkpoint.Array{Shape: m.OutputShape(in)}
	if decoded.Values != nil {
		for b := range decoded.Shape[0] {
			out.Values = append(out.Values, swapped(decoded, b)...)
		}
		for i, v := range out.Values {
			out.Values[i] = min(max(v/2+0.5, 0), 1)
		}
	}
	return out
}

// guided goes from what is not wanted towards what is, and beyond.
func guided(wanted, unwanted []float32, scale float32) []float32 {
	out := make([]float32, len(wanted))
	for i := range out {
		out[i] = unwanted[i] + scale*(wanted[i]-unwanted[i])
	}
	return out
}

// denormalised gives each channel the mean and the deviation that the decoder expects.
func (m *Wan) denormalised(a checkpoint.Array) checkpoint.Array {
	out := checkpoint.Array{Shape: a.Shape}
	if a.Values == nil {
		return out
	}
	out.Values = make([]float32, len(a.Values))
	channels := len(m.vae.Mean)
	size := len(a.Values) / a.Shape[0] / channels
	for i, v := range a.Values {
		c := i / size % channels
		out.Values[i] = v*float32(m.vae.Deviation[c]) + float32(m.vae.Mean[c])
	}
	return out
}
