package vae

import (
	"strconv"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/nn"
)

// TAESDClass is the name of the small decoder of taesd.py.
const TAESDClass = "taesd.Decoder"

// The decoder's shape, which its source fixes: stages of so many blocks, each of the first three with twice the rows and columns behind it; and the
// groups and the epsilon of its norms.
var taesdStages = [4]int{3, 3, 3, 1}

const (
	taesdGroups  = 4
	taesdEpsilon = 1e-5
	taesdClamp   = 3 // tanh(z/3)*3
)

// TAESD is the decoder on the host.
type TAESD struct {
	decoder
	width int
	norms bool // whether the blocks of the first stage have a branch with a group norm
}

var _ nn.Model = (*TAESD)(nil)

// LoadTAESD reads the configuration.
func LoadTAESD(c *checkpoint.Config) (*TAESD, error) {
	m := &TAESD{decoder: decoder{class: TAESDClass, rank: 4, low: 0, high: 1, growth: 8}}
	m.channels = c.Positive("latent_channels", 4)
	m.width = c.Positive("width", 64)
	m.norms = c.Bool("use_midblock_gn", false)
	return m, c.Err()
}

// Place lays the parameters over a mesh. They are named by the layers' places in the sequence.
func (m *TAESD) Place(p *nn.Placer) nn.Network {
	n := &taesdNetwork{model: m, convIn: p.Conv("1", m.width, m.channels, 3, 3)}
	layer := 3 // behind clamp, convolution and activation
	for i, blocks := range taesdStages {
		var stage taesdStage
		for range blocks {
			stage.blocks = append(stage.blocks, m.placeBlock(p, strconv.Itoa(layer), i == 0 && m.norms))
			layer++
		}
		if i < len(taesdStages)-1 {
			layer++ // upsampling
			conv := p.ConvNoBias(strconv.Itoa(layer), m.width, m.width, 3, 3)
			stage.conv = &conv
			layer++
		}
		n.stages = append(n.stages, stage)
	}
	n.convOut = p.Conv(strconv.Itoa(layer), 3, m.width, 3, 3)
	return n
}

func (m *TAESD) placeBlock(p *nn.Placer, name string, norm bool) taesdBlock {
	b := taesdBlock{name: name}
	for i := range b.conv {
		b.conv[i] = p.Conv(name+".conv."+strconv.Itoa(2*i), m.width, m.width, 3, 3)
	}
	if norm {
		wide := taesdGroups * m.width
		relu := p.GroupNorm(name+".pool.1", wide, taesdGroups, taesdEpsilon)
		relu.Activation = meshrun.ReLU
		b.pool = &taesdPool{
			in:   p.PointwiseNoBias(name+".pool.0", wide, m.width, 2),
			norm: relu,
			out:  p.PointwiseNoBias(name+".pool.3", m.width, wide, 2),
		}
	}
	return b
}

// taesdNetwork is a decoder whose parameters are on a mesh.
type taesdNetwork struct {
	model   *TAESD
	convIn  nn.Conv
	stages  []taesdStage
	convOut nn.Conv
}

type taesdStage struct {
	blocks []taesdBlock
	conv   *nn.Conv // behind twice the rows and columns; nil in the last
}

// Operations is not counted beforehand.
func (n *taesdNetwork) Operations() int { return 0 }

// Forward decodes latents.
func (n *taesdNetwork) Forward(g *nn.Graph, in checkpoint.Arrays) checkpoint.Array {
	return n.model.eachElement(g, in, func(c *nn.Canvas, z checkpoint.Array) checkpoint.Array {
		c.Enter("decoder")
		x := c.Scale(upload(c, z), 1./taesdClamp)
		x = c.Scale(c.Activate(x, meshrun.Tanh), taesdClamp)
		x = c.Activate(c.Conv(x, n.convIn, nil, false), meshrun.ReLU)
		for _, s := range n.stages {
			x = c.Cast(x, meshrun.Float32)
			for i := range s.blocks {
				x = s.blocks[i].forward(c, x)
				c.TapField("layer."+s.blocks[i].name, x)
			}
			x = c.Cast(x, c.DType())
			if s.conv != nil {
				x = c.Conv(c.Upsample(x), *s.conv, nil, false)
			}
		}
		return c.Frames(c.Conv(x, n.convOut, nil, false))
	})
}

// taesdBlock is relu(y + conv(relu(conv(relu(conv(y)))))) of y = x + pool(x). The sums stay float32 from block to block: in bfloat16 that takes
// a third off the largest error of the answer.
type taesdBlock struct {
	name string
	pool *taesdPool
	conv [3]nn.Conv
}

// taesdPool is out(relu(norm(in(x)))), whose norm sees the whole picture.
type taesdPool struct {
	in, out nn.Linear
	norm    nn.GroupNorm // with relu behind it
}

func (b *taesdBlock) forward(c *nn.Canvas, x nn.Field) nn.Field {
	c.Enter("layer " + b.name)
	if b.pool != nil {
		h := c.GroupNorm(c.Pointwise(c.Cast(x.Keep(), c.DType()), b.pool.in), b.pool.norm)
		h = c.Pointwise(h, b.pool.out)
		x = c.AddFields(x, h)
	}
	h := c.Cast(x.Keep(), c.DType())
	for i, conv := range b.conv {
		if h = c.Conv(h, conv, nil, false); i < len(b.conv)-1 {
			h = c.Activate(h, meshrun.ReLU)
		}
	}
	return c.Activate(c.AddFields(x, h), meshrun.ReLU)
}
