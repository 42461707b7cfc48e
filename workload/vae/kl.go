package vae

import (
	"fmt"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/nn"
)

// KLClass is the name of the autoencoder of Flux and Stable Diffusion 3 in diffusers.
const KLClass = "AutoencoderKL"

// klEpsilon of all its group norms.
const klEpsilon = 1e-6

// KL is the decoder on the host.
type KL struct {
	decoder
	widths    []int // of the channels, of each block of the way up
	layers    int   // residual blocks of each, beside the first
	groups    int
	attention bool
	postQuant bool
}

var _ nn.Model = (*KL)(nil)

// LoadKL reads the configuration.
func LoadKL(c *checkpoint.Config) (*KL, error) {
	m := &KL{decoder: decoder{class: KLClass, rank: 4, low: -1, high: 1}}
	m.channels = c.Positive("latent_channels", 4)
	widths := c.Numbers("block_out_channels", []int{64})
	m.layers = c.Positive("layers_per_block", 1)
	m.groups = c.Positive("norm_num_groups", 32)
	m.attention = c.Bool("mid_block_add_attention", true)
	m.postQuant = c.Bool("use_post_quant_conv", true)
	c.Is("act_fn", "silu")
	blocks := c.Strings("up_block_types", []string{"UpDecoderBlock2D"})
	checkColours(c)
	if err := c.Err(); err != nil {
		return nil, err
	}
	if len(widths) > 8 {
		c.Fail("block_out_channels", "has at most 8 blocks")
		return nil, c.Err()
	}
	if len(blocks) != len(widths) {
		c.Fail("up_block_types", "names a block for each of the %d block_out_channels", len(widths))
	}
	for _, b := range blocks {
		if b != "UpDecoderBlock2D" {
			c.Fail("up_block_types", `names "UpDecoderBlock2D" alone: other blocks are not supported`)
		}
	}
	m.growth = 1
	for i := range widths {
		w := widths[len(widths)-1-i]
		if w%m.groups != 0 {
			c.Fail("block_out_channels", "divide by norm_num_groups %d", m.groups)
		}
		if i > 0 {
			m.growth *= 2
		}
		m.widths = append(m.widths, w)
	}
	return m, c.Err()
}

// Place lays the parameters over a mesh.
func (m *KL) Place(p *nn.Placer) nn.Network {
	n := &klNetwork{model: m}
	if m.postQuant {
		l := p.Pointwise("post_quant_conv", m.channels, m.channels, 2)
		n.postQuant = &l
	}
	p = p.Sub("decoder.")
	width := m.widths[0]
	n.convIn = p.Conv("conv_in", width, m.channels, 3, 3)
	n.mid = [2]klResidual{m.placeResidual(p, "mid_block.resnets.0", width, width), m.placeResidual(p, "mid_block.resnets.1", width, width)}
	if m.attention {
		const name = "mid_block.attentions.0."
		n.attention = &klAttention{
			norm: p.GroupNorm(name+"group_norm", width, m.groups, klEpsilon),
			q:    p.Replicated(name+"to_q", width, width),
			k:    p.Replicated(name+"to_k", width, width),
			v:    p.Replicated(name+"to_v", width, width),
			out:  p.Replicated(name+"to_out.0", width, width),
		}
	}
	in := width
	for i, out := range m.widths {
		var up klUp
		for r := range m.layers + 1 {
			up.residuals = append(up.residuals, m.placeResidual(p, fmt.Sprintf("up_blocks.%d.resnets.%d", i, r), out, in))
			in = out
		}
		if i < len(m.widths)-1 {
			conv := p.Conv(fmt.Sprintf("up_blocks.%d.upsamplers.0.conv", i), out, out, 3, 3)
			up.upsample = &conv
		}
		n.ups = append(n.ups, up)
	}
	n.normOut = m.placeNorm(p, "conv_norm_out", in)
	n.convOut = p.Conv("conv_out", 3, in, 3, 3)
	return n
}

// placeNorm places a norm that silu follows.
func (m *KL) placeNorm(p *nn.Placer, name string, width int) nn.GroupNorm {
	n := p.GroupNorm(name, width, m.groups, klEpsilon)
	n.Activation = meshrun.SiLU
	return n
}

func (m *KL) placeResidual(p *nn.Placer, name string, out, in int) klResidual {
	r := klResidual{
		name:  name,
		norm1: m.placeNorm(p, name+".norm1", in),
		conv1: p.Conv(name+".conv1", out, in, 3, 3),
		norm2: m.placeNorm(p, name+".norm2", out),
		conv2: p.Conv(name+".conv2", out, out, 3, 3),
	}
	if in != out {
		l := p.Pointwise(name+".conv_shortcut", out, in, 2)
		r.shortcut = &l
	}
	return r
}

// klNetwork is a decoder whose parameters are on a mesh.
type klNetwork struct {
	model     *KL
	postQuant *nn.Linear
	convIn    nn.Conv
	mid       [2]klResidual
	attention *klAttention
	ups       []klUp
	normOut   nn.GroupNorm
	convOut   nn.Conv
}

// Operations is not counted beforehand.
func (n *klNetwork) Operations() int { return 0 }

// Forward decodes latents.
func (n *klNetwork) Forward(g *nn.Graph, in checkpoint.Arrays) checkpoint.Array {
	return n.model.eachElement(g, in, func(c *nn.Canvas, z checkpoint.Array) checkpoint.Array {
		c.Enter("decoder.conv_in")
		x := upload(c, z)
		if n.postQuant != nil {
			x = c.Pointwise(x, *n.postQuant)
		}
		x = c.Conv(x, n.convIn, nil, false)
		c.TapField("decoder.conv_in", x)
		x = n.mid[0].forward(c, x)
		if n.attention != nil {
			x = n.attention.forward(c, x)
		}
		x = n.mid[1].forward(c, x)
		c.TapField("decoder.mid_block", x)
		for _, up := range n.ups {
			for i := range up.residuals {
				x = up.residuals[i].forward(c, x)
			}
			if up.upsample != nil {
				x = c.Conv(c.Upsample(x), *up.upsample, nil, false)
			}
		}
		c.Enter("decoder.conv_out")
		return c.Frames(c.Conv(c.GroupNorm(x, n.normOut), n.convOut, nil, false))
	})
}

// klResidual is x + conv2(silu(norm2(conv1(silu(norm1(x)))))).
type klResidual struct {
	name         string
	norm1, norm2 nn.GroupNorm
	conv1, conv2 nn.Conv
	shortcut     *nn.Linear // of x, where the channels change
}

func (r *klResidual) forward(c *nn.Canvas, x nn.Field) nn.Field {
	c.Enter("decoder." + r.name)
	h := c.Conv(c.GroupNorm(x.Keep(), r.norm1), r.conv1, nil, false)
	h = c.Conv(c.GroupNorm(h, r.norm2), r.conv2, nil, false)
	if r.shortcut != nil {
		x = c.Pointwise(x, *r.shortcut)
	}
	return c.AddFields(h, x)
}

// klAttention is x + out(attention(norm(x))).
type klAttention struct {
	norm         nn.GroupNorm
	q, k, v, out nn.Linear
}

func (a *klAttention) forward(c *nn.Canvas, x nn.Field) nn.Field {
	c.Enter("decoder.mid_block.attentions.0")
	h := c.Attention(c.GroupNorm(x.Keep(), a.norm), a.q, a.k, a.v)
	return c.AddFields(c.Pointwise(h, a.out), x)
}

// klUp is a block of the way up.
type klUp struct {
	residuals []klResidual
	upsample  *nn.Conv // behind twice the rows and columns; nil in the last
}
