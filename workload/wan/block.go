package wan

import (
	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/workload/nn"
)

// block is one transformer block (diffusers: WanTransformerBlock).
type block struct {
	name    string
	epsilon float64

	table         []nn.Value // added to the modulation; the scales are 1 + scale
	attn1, attn2  attention
	crossAttnNorm bool
	norm2         struct{ weight, bias nn.Value }
	ffn1          nn.Linear
	ffn2          nn.RowLinear
}

func placeBlock(p *nn.Placer, name string, cfg Config) block {
	width, f32 := cfg.Width(), p.Float32()
	b := block{
		name:          name,
		epsilon:       cfg.Epsilon,
		table:         f32.Table(name+".scale_shift_table", 6, width, 1, 4),
		attn1:         placeAttention(p, name+".attn1", cfg),
		attn2:         placeAttention(p, name+".attn2", cfg),
		crossAttnNorm: cfg.CrossAttnNorm,
		ffn1:          p.Column(name+".ffn.net.0.proj", cfg.FFNDim, width),
		ffn2:          p.Row(name+".ffn.net.2", width, cfg.FFNDim),
	}
	b.ffn1.Activation = meshrun.GELUTanh
	if cfg.CrossAttnNorm {
		b.norm2.weight = f32.Vector(name+".norm2.weight", width)
		b.norm2.bias = f32.Vector(name+".norm2.bias", width)
	}
	return b
}

func (b *block) forward(g *nn.Graph, x nn.Value, c conditions) nn.Value {
	g.Enter(b.name)
	modulation := func(i int) nn.Value { return g.Add(c.modulation[i].Keep(), b.table[i]) }

	shift, scale, gate := modulation(0), modulation(1), modulation(2)
	h := g.GatherWidth(g.LayerNorm(x.Keep(), scale, shift, b.epsilon))
	x = g.Addcmul(x, b.attn1.self(g, h, c), gate)

	h = x.Keep()
	if b.crossAttnNorm {
		h = g.LayerNorm(h, b.norm2.weight, b.norm2.bias, b.epsilon)
	}
	x = g.Add(x, b.attn2.cross(g, g.GatherWidth(h), c))

	shift, scale, gate = modulation(3), modulation(4), modulation(5)
	h = g.GatherWidth(g.LayerNorm(x.Keep(), scale, shift, b.epsilon))
	return g.Addcmul(x, b.ffn2.Forward(g, b.ffn1.Forward(g, h)), gate)
}

// attention is one attention layer (diffusers: WanAttention). Queries and keys are normed across all heads.
type attention struct {
	heads        int
	epsilon      float64
	q, k, v, out nn.Linear
	normQ, normK nn.Value
}

func placeAttention(p *nn.Placer, name string, cfg Config) attention {
	width, f32 := cfg.Width(), p.Float32()
	return attention{
		heads:   cfg.Heads,
		epsilon: cfg.Epsilon,
		q:       p.Column(name+".to_q", width, width),
		k:       p.Column(name+".to_k", width, width),
		v:       p.Column(name+".to_v", width, width),
		normQ:   f32.Vector(name+".norm_q.weight", width),
		normK:   f32.Vector(name+".norm_k.weight", width),
		out:     p.Column(name+".to_out.0", width, width),
	}
}

// self attends within the sequence; x has the whole width.
func (a *attention) self(g *nn.Graph, x nn.Value, c conditions) nn.Value {
	q := g.RMSNormHeads(a.q.Forward(g, x.Keep()), a.normQ, a.epsilon, a.heads, c.rope)
	k := g.RMSNormHeads(a.k.Forward(g, x.Keep()), a.normK, a.epsilon, a.heads, c.rope)
	v := g.SplitHeads(a.v.Forward(g, x), a.heads)
	return a.project(g, g.SelfAttention(q, k, v, c.keys))
}

// cross attends to the text; x has the whole width.
func (a *attention) cross(g *nn.Graph, x nn.Value, c conditions) nn.Value {
	q := g.RMSNormHeads(a.q.Forward(g, x), a.normQ, a.epsilon, a.heads, nn.RopeTables{})
	k := g.RMSNormHeads(a.k.Forward(g, c.text.Keep()), a.normK, a.epsilon, a.heads, nn.RopeTables{})
	v := g.SplitHeads(a.v.Forward(g, c.text.Keep()), a.heads)
	return a.project(g, g.CrossAttention(q, k, v, c.textTokens))
}

// project joins the heads and applies the output layer.
func (a *attention) project(g *nn.Graph, x nn.Value) nn.Value {
	return a.out.Forward(g, g.GatherWidth(g.MergeHeads(x)))
}
