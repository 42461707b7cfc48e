package vae

import (
	"fmt"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/nn"
)

// WanClass is the name of Wan's autoencoder in diffusers.
const WanClass = "AutoencoderKLWan"

// Wan is Wan's decoder on the host.
type Wan struct {
	decoder
	// Mean and Deviation of each channel of the latents that transformers make; nil where the configuration has none.
	Mean, Deviation []float64

	widths    []int  // of the channels: in the middle, then behind each block of the way up
	resBlocks int    // beside the first, of each block of the way up
	doubles   []bool // whether a block of the way up doubles the frames
}

var _ nn.Model = (*Wan)(nil)

// LoadWan reads the configuration.
func LoadWan(c *checkpoint.Config) (*Wan, error) {
	m := &Wan{decoder: decoder{class: WanClass, rank: 5, low: -1, high: 1}}
	base := c.Positive("base_dim", 96)
	base = c.PositiveOr("decoder_base_dim", base, base)
	m.channels = c.Positive("z_dim", 16)
	mult := c.Numbers("dim_mult", []int{1, 2, 4, 4})
	m.resBlocks = c.Positive("num_res_blocks", 2)
	down := c.Bools("temperal_downsample", []bool{false, true, true}, len(mult)-1)
	m.Mean, m.Deviation = c.Floats("latents_mean", m.channels), c.Floats("latents_std", m.channels)
	c.Empty("attn_scales", "attention on the way up is not supported")
	c.IsBool("is_residual", false, "residual blocks of Wan 2.2's small model are not supported")
	c.Null("patch_size", "pictures in patches are not supported")
	checkColours(c)
	if err := c.Err(); err != nil {
		return nil, err
	}
	if len(mult) > 8 {
		c.Fail("dim_mult", "has at most 8 blocks")
		return nil, c.Err()
	}
	m.growth, m.timeGrowth = 1, 1
	m.widths = []int{base * mult[len(mult)-1]}
	for i := range mult {
		m.widths = append(m.widths, base*mult[len(mult)-1-i])
		if i == len(mult)-1 {
			break
		}
		if m.widths[i+1]%2 != 0 {
			c.Fail("base_dim", "makes even numbers of channels, which each block of the way up halves, not %d", m.widths[i+1])
		}
		double := down[len(down)-1-i]
		m.doubles = append(m.doubles, double)
		m.growth *= 2
		if double {
			m.timeGrowth *= 2
		}
	}
	for _, deviation := range m.Deviation {
		if deviation <= 0 {
			c.Fail("latents_std", "is positive")
		}
	}
	return m, c.Err()
}

// Place lays the parameters over a mesh.
func (m *Wan) Place(p *nn.Placer) nn.Network {
	n := &wanNetwork{model: m}
	width := m.widths[0]
	n.postQuant = p.Pointwise("post_quant_conv", m.channels, m.channels, 3)
	p = p.Sub("decoder.")
	n.convIn = p.Conv("conv_in", width, m.channels, 3, 3, 3)
	n.mid = [2]wanResidual{placeWanResidual(p, "mid_block.resnets.0", width, width), placeWanResidual(p, "mid_block.resnets.1", width, width)}
	const attention = "mid_block.attentions.0."
	n.attention = wanAttention{
		norm: p.Channels(attention+"norm.gamma", width, 2),
		qkv:  p.PointwiseParts(attention+"to_qkv", 3, width, width, 2),
		proj: p.Pointwise(attention+"proj", width, width, 2),
	}
	in := width
	for i, out := range m.widths[1:] {
		name := fmt.Sprintf("up_blocks.%d.", i)
		var up wanUp
		for r := range m.resBlocks + 1 {
			up.residuals = append(up.residuals, placeWanResidual(p, fmt.Sprintf("%sresnets.%d", name, r), out, in))
			in = out
		}
		if i < len(m.doubles) {
			up.grows = true
			if up.doubles = m.doubles[i]; up.doubles {
				up.time = p.Conv(name+"upsamplers.0.time_conv", 2*out, out, 3, 1, 1)
			}
			in = out / 2
			up.resample = p.Conv(name+"upsamplers.0.resample.1", in, out, 3, 3)
		}
		n.ups = append(n.ups, up)
	}
	n.normOut = p.Channels("norm_out.gamma", in, 3)
	n.convOut = p.Conv("conv_out", 3, in, 3, 3, 3)
	return n
}

// wanNetwork is a Wan decoder whose parameters are on a mesh.
type wanNetwork struct {
	model     *Wan
	postQuant nn.Linear
	convIn    nn.Conv
	mid       [2]wanResidual
	attention wanAttention
	ups       []wanUp
	normOut   nn.Value
	convOut   nn.Conv
}

// Operations is not known: it depends on the frames.
func (n *wanNetwork) Operations() int { return 0 }

// Forward decodes latents, a latent frame at a time.
func (n *wanNetwork) Forward(g *nn.Graph, in checkpoint.Arrays) checkpoint.Array {
	out := n.model.eachElement(g, in, func(c *nn.Canvas, z checkpoint.Array) checkpoint.Array {
		m := &memory{}
		defer m.release(g)
		frames := make([]nn.Field, z.Shape[1])
		for t := range frames {
			m.at = 0
			frames[t] = n.frame(c, upload(c, frame(z, t)), m, t == 0)
		}
		return c.Frames(frames...)
	})
	for i, v := range out.Values {
		out.Values[i] = min(max(v, -1), 1)
	}
	return out
}

// frame decodes one latent frame.
func (n *wanNetwork) frame(c *nn.Canvas, x nn.Field, m *memory, first bool) nn.Field {
	c.Enter("decoder.conv_in")
	x = c.Conv(c.Pointwise(x, n.postQuant), n.convIn, m.next(), false)
	c.TapField("decoder.conv_in", x)
	x = n.mid[0].forward(c, x, m)
	x = n.attention.forward(c, x)
	x = n.mid[1].forward(c, x, m)
	c.TapField("decoder.mid_block", x)
	for _, up := range n.ups {
		x = up.forward(c, x, m, first)
	}
	c.Enter("decoder.conv_out")
	x = c.Activate(wanNorm(c, x, n.normOut), meshrun.SiLU)
	return c.Conv(x, n.convOut, m.next(), false)
}

// memory is what the convolutions remember from one latent frame to the next. A frame asks for their histories in the same order as the
// one before.
type memory struct {
	of []*nn.History
	at int
}

func (m *memory) next() *nn.History {
	if m.at == len(m.of) {
		m.of = append(m.of, &nn.History{})
	}
	m.at++
	return m.of[m.at-1]
}

func (m *memory) release(g *nn.Graph) {
	for _, h := range m.of {
		h.Release(g)
	}
}

// wanNorm divides the channels of each pixel by their length, which is held above 1e-12, and multiplies them by gamma and the root of
// their number: an RMS norm, with that as its epsilon.
func wanNorm(c *nn.Canvas, x nn.Field, gamma nn.Value) nn.Field {
	return c.RMSNorm(x, gamma, 1e-26)
}

// wanResidual is x + conv2(silu(norm2(conv1(silu(norm1(x)))))).
type wanResidual struct {
	name         string
	norm1, norm2 nn.Value
	conv1, conv2 nn.Conv
	shortcut     *nn.Linear // of x, where the channels change
}

func placeWanResidual(p *nn.Placer, name string, out, in int) wanResidual {
	r := wanResidual{
		name:  name,
		norm1: p.Channels(name+".norm1.gamma", in, 3),
		conv1: p.Conv(name+".conv1", out, in, 3, 3, 3),
		norm2: p.Channels(name+".norm2.gamma", out, 3),
		conv2: p.Conv(name+".conv2", out, out, 3, 3, 3),
	}
	if in != out {
		l := p.Pointwise(name+".conv_shortcut", out, in, 3)
		r.shortcut = &l
	}
	return r
}

func (r *wanResidual) forward(c *nn.Canvas, x nn.Field, m *memory) nn.Field {
	c.Enter("decoder." + r.name)
	h := c.Activate(wanNorm(c, x.Keep(), r.norm1), meshrun.SiLU)
	h = c.Conv(h, r.conv1, m.next(), true)
	h = c.Activate(wanNorm(c, h, r.norm2), meshrun.SiLU)
	h = c.Conv(h, r.conv2, m.next(), false)
	if r.shortcut != nil {
		x = c.Pointwise(x, *r.shortcut)
	}
	return c.AddFields(h, x)
}

// wanAttention is x + proj(attention(norm(x))), within each frame.
type wanAttention struct {
	norm nn.Value
	qkv  []nn.Linear
	proj nn.Linear
}

func (a *wanAttention) forward(c *nn.Canvas, x nn.Field) nn.Field {
	c.Enter("decoder.mid_block.attentions.0")
	h := c.Attention(wanNorm(c, x.Keep(), a.norm), a.qkv[0], a.qkv[1], a.qkv[2])
	return c.AddFields(c.Pointwise(h, a.proj), x)
}

// wanUp is a block of the way up: residual blocks, then, but in the last, twice the frames, rows and columns.
type wanUp struct {
	residuals      []wanResidual
	grows, doubles bool
	time           nn.Conv // makes two frames of each
	resample       nn.Conv
}

func (u *wanUp) forward(c *nn.Canvas, x nn.Field, m *memory, first bool) nn.Field {
	for i := range u.residuals {
		x = u.residuals[i].forward(c, x, m)
	}
	if !u.grows {
		return x
	}
	if u.doubles {
		// The first frame stays one frame, and is not remembered.
		if past := m.next(); !first {
			x = c.SplitFrames(c.Conv(x, u.time, past, false))
		}
	}
	return c.Conv(c.Upsample(x), u.resample, nil, false)
}
