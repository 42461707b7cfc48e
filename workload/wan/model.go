package wan

import (
	"fmt"

	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/nn"
)

// ClassName is the model's class in diffusers.
const ClassName = "WanTransformer3DModel"

// Names of arguments and answer.
const (
	hiddenStates        = "hidden_states"         // the latent [B, in_channels, F, H, W]
	timestep            = "timestep"              // [B], or [B, tokens]: one for every token
	encoderHiddenStates = "encoder_hidden_states" // the text [B, text tokens, text_dim]
	sample              = "sample"                // [B, out_channels, F, H, W]
)

// Model is a Wan transformer on the host.
type Model struct {
	cfg Config
}

var _ nn.Model = (*Model)(nil)

// Load reads the configuration.
func Load(c *checkpoint.Config) (nn.Model, error) {
	cfg, err := readConfig(c)
	if err != nil {
		return nil, err
	}
	return &Model{cfg}, nil
}

// Inputs names the arguments of a forward pass.
func (m *Model) Inputs() []string { return []string{hiddenStates, timestep, encoderHiddenStates} }

// Output names the answer.
func (m *Model) Output() string { return sample }

// OutputShape is the shape of the answer.
func (m *Model) OutputShape(in checkpoint.Arrays) []int { return m.cfg.shape(in).answer() }

// CheckLayout says whether tp cuts heads and feed-forward into equal parts. Any sp will do.
func (m *Model) CheckLayout(l nn.Layout) error {
	if err := l.CheckDivides("num_attention_heads", m.cfg.Heads); err != nil {
		return err
	}
	return l.CheckDivides("ffn_dim", m.cfg.FFNDim)
}

// CheckInputs says whether the arrays are a latent of whole patches, time steps and text.
func (m *Model) CheckInputs(in checkpoint.Arrays) error {
	for _, name := range m.Inputs() {
		if _, ok := in[name]; !ok {
			return messages.Invalid("inputs", "tensor "+name, "missing", "is an argument of %s", ClassName)
		}
	}
	bad := func(name, rule string, args ...any) error {
		return messages.Invalid("inputs", "tensor "+name, fmt.Sprint("shape ", in[name].Shape), rule, args...)
	}
	latent := in[hiddenStates].Shape
	if len(latent) != 5 || latent[0] < 1 || latent[1] != m.cfg.InChannels {
		return bad(hiddenStates, "is [batch, in_channels %d, frames, height, width]", m.cfg.InChannels)
	}
	for i, p := range m.cfg.Patch {
		n := latent[2+i]
		if n < 1 || n%p != 0 {
			return bad(hiddenStates, "has whole patches %v in its last three dims", m.cfg.Patch)
		}
		if n/p > m.cfg.RopeMax {
			return bad(hiddenStates, "has at most rope_max_seq_len %d patches along each of its last three dims", m.cfg.RopeMax)
		}
	}
	s := m.cfg.shape(in)
	if t := in[timestep].Shape; len(t) < 1 || len(t) > 2 || t[0] != s.batch || len(t) == 2 && t[1] != s.tokens {
		return bad(timestep, "is [%d], the batch, or [%d, %d], one for every token", s.batch, s.batch, s.tokens)
	}
	if t := in[encoderHiddenStates].Shape; len(t) != 3 || t[0] != s.batch || t[1] < 1 || t[2] != m.cfg.TextDim {
		return bad(encoderHiddenStates, "is [%d, text tokens, text_dim %d]", s.batch, m.cfg.TextDim)
	}
	return nil
}

// Place lays the parameters over a mesh.
func (m *Model) Place(p *nn.Placer) nn.Network {
	cfg, width := m.cfg, m.cfg.Width()
	f32 := p.Float32()
	n := &network{
		cfg:            cfg,
		patchEmbedding: p.Column("patch_embedding", width, cfg.InChannels, cfg.Patch[0], cfg.Patch[1], cfg.Patch[2]),
		condition:      placeConditionEmbedder(p, cfg),
		table:          f32.Table("scale_shift_table", 2, width, 1),
		projOut:        f32.Replicated("proj_out", cfg.OutChannels*cfg.patchSize(), width),
	}
	for i := 0; i < cfg.Layers && p.Err() == nil; i++ {
		n.blocks = append(n.blocks, placeBlock(p, fmt.Sprintf("blocks.%d", i), cfg))
	}
	return n
}
