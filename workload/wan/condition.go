package wan

import (
	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/nn"
)

// conditionEmbedder embeds time steps and text (diffusers: WanTimeTextImageEmbedding).
type conditionEmbedder struct {
	freqDim, textDim int

	time1    nn.Linear
	time2    nn.RowLinear
	timeProj nn.Linear // six parts side by side
	text1    nn.Linear
	text2    nn.RowLinear
}

func placeConditionEmbedder(p *nn.Placer, cfg Config) conditionEmbedder {
	const name = "condition_embedder."
	width, f32 := cfg.Width(), p.Float32()
	e := conditionEmbedder{
		freqDim:  cfg.FreqDim,
		textDim:  cfg.TextDim,
		time1:    f32.Column(name+"time_embedder.linear_1", width, cfg.FreqDim),
		time2:    f32.Row(name+"time_embedder.linear_2", width, width),
		timeProj: f32.ColumnParts(name+"time_proj", 6, 6*width, width),
		text1:    p.Column(name+"text_embedder.linear_1", width, cfg.TextDim),
		text2:    p.Row(name+"text_embedder.linear_2", width, width),
	}
	e.time1.Activation = meshrun.SiLU
	e.text1.Activation = meshrun.GELUTanh
	return e
}

// conditions are what every block is told.
type conditions struct {
	keys       int // rows of the sequence that self-attention attends to
	rope       nn.RopeTables
	temb       nn.Value   // the embedded time, width cut over tp: [B, 1, 1, width], or a row for every token
	modulation []nn.Value // its projection: shift, scale, gate of self-attention, then of the feed-forward
	text       nn.Value   // the embedded text [B, 1, rows, width], whole on every device
	textTokens int
}

// release gives back what the blocks have read; temb is consumed by the output norm.
func (c *conditions) release(g *nn.Graph) {
	g.Release(c.modulation...)
	g.Release(c.text, c.rope.Cos, c.rope.Sin)
}

func (e *conditionEmbedder) forward(g *nn.Graph, in checkpoint.Arrays, s shape, rows int) conditions {
	g.Enter("condition_embedder")
	var c conditions

	steps, n, cut := in[timestep], 1, meshrun.Replicate
	if len(steps.Shape) == 2 { // a time step for every token
		steps, n, cut = padRows(steps, 1, rows), rows, g.Layout().Rows()
	}
	features := nn.Sinusoids(steps.Values, e.freqDim)
	t := g.Upload(features, []int{s.batch, 1, n, e.freqDim}, meshrun.Float32, cut)
	c.temb = e.time2.Forward(g, e.time1.Forward(g, t))
	t = g.Activation(c.temb.Keep(), meshrun.SiLU)
	c.modulation = g.Chunk(e.timeProj.Forward(g, g.GatherWidth(t)), 6)

	text := in[encoderHiddenStates]
	c.textTokens = text.Shape[1]
	text = padRows(text, e.textDim, (c.textTokens+nn.TileSize-1)/nn.TileSize*nn.TileSize)
	x := g.Upload(text.Values, []int{s.batch, 1, text.Shape[1], e.textDim}, g.DType(), meshrun.Replicate)
	c.text = g.GatherWidth(e.text2.Forward(g, e.text1.Forward(g, x)))
	g.Tap("condition_embedder.encoder_hidden_states", c.text, meshrun.Replicate)
	if n == 1 {
		g.Tap("condition_embedder.temb", c.temb, g.Layout().Width(3))
	}
	return c
}
