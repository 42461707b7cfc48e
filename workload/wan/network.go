package wan

import (
	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/nn"
)

// network is a Wan transformer whose parameters are on a mesh.
type network struct {
	cfg            Config
	patchEmbedding nn.Linear
	condition      conditionEmbedder
	blocks         []block
	table          []nn.Value // shift and 1 + scale of the output norm
	projOut        nn.Linear
}

// Forward computes the sample of a latent, time steps and text.
func (n *network) Forward(g *nn.Graph, in checkpoint.Arrays) checkpoint.Array {
	s := n.cfg.shape(in)
	return n.forward(g, in, s, s.tokens)
}

// forward attends to the first keys rows of the sequence, which is padded behind its tokens.
func (n *network) forward(g *nn.Graph, in checkpoint.Arrays, s shape, keys int) checkpoint.Array {
	rows := g.Layout().PaddedRows(s.tokens)
	patches := s.patchify(in[hiddenStates], rows)
	x := n.patchEmbedding.Forward(g, g.Upload(patches.Values, patches.Shape, g.DType(), g.Layout().Rows()))
	c := n.condition.forward(g, in, s, rows)
	c.keys, c.rope = keys, n.rope(g, s, rows)
	for i := range n.blocks {
		x = n.blocks[i].forward(g, x, c)
		g.Tap(n.blocks[i].name, x, g.Layout().Activations())
	}
	g.Enter("norm_out")
	shift, scale := g.Add(c.temb.Keep(), n.table[0]), g.Add(c.temb, n.table[1])
	c.release(g)
	x = g.LayerNorm(g.Typecast(x, meshrun.Float32), scale, shift, n.cfg.Epsilon)
	g.Enter("proj_out")
	x = n.projOut.Forward(g, g.GatherWidth(x))
	return s.unpatchify(g.Read(g.GatherRows(x)))
}

// rope uploads the tables of the token grid: a third of each head, in pairs, turns by row, a third by column, and the rest by frame
// (diffusers: WanRotaryPosEmbed).
func (n *network) rope(g *nn.Graph, s shape, rows int) nn.RopeTables {
	third := 2 * (n.cfg.HeadDim / 6)
	r := nn.Rope{Dims: []int{n.cfg.HeadDim - 2*third, third, third}, Theta: 10000}
	return g.UploadRope(r, s.tokens, rows, s.position)
}

// Operations is how many operations Forward submits.
func (n *network) Operations() int {
	const (
		attention = 3 + 2 + 2 + 1 + 2 + 2 // q, k, v; norms; heads of v; attention; heads joined; gather and output
		output    = 1 + 2 + 1 + 2 + 1     // float32; modulation; norm; gather and projection; rows
	)
	conditions := 1 + n.condition.time2.Operations() + 3 + 6 + 1 + n.condition.text2.Operations() + 1
	block := 6 + (2 + attention + 1) + (1 + attention + 1) + (3 + n.blocks[0].ffn2.Operations() + 1)
	if n.cfg.CrossAttnNorm {
		block++
	}
	return 1 + conditions + len(n.blocks)*block + output
}
