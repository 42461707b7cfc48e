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
	rows := g.Layout().PaddedRows(s.tokens)

	patches := s.patchify(in[hiddenStates], rows)
	x := n.patchEmbedding.Forward(g, g.Upload(patches.Values, patches.Shape, g.DType(), g.Layout().Rows()))
	c := n.condition.forward(g, in, s, rows)
	c.rope = n.rope(g, s, rows)
	for i := range n.blocks {
		x = n.blocks[i].forward(g, x, c)
		g.Tap(n.blocks[i].name, x, g.Layout().Activations())
	}
	g.Enter("norm_out")
	x = g.Typecast(x, meshrun.Float32)
	shift, scale := g.Add(c.temb.Keep(), n.table[0]), g.Add(c.temb.Keep(), n.table[1])
	x = g.LayerNorm(x, scale, shift, n.cfg.Epsilon)
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
	return 0
}
