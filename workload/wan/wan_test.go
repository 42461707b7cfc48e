package wan

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/nn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// placement is a mesh and how the model lies on it.
type placement struct {
	rows, cols int
	tp, sp     nn.Factor
	topology   meshrun.Topology
}

func (p placement) String() string {
	return fmt.Sprintf("%dx%d,tp=%s,sp=%s,%s", p.rows, p.cols, p.tp, p.sp, p.topology)
}

var (
	one        = placement{1, 1, nn.Serial, nn.Serial, meshrun.TopologyUnset}
	placements = []placement{
		one,
		{1, 2, nn.Factor{Size: 2, Axis: 1}, nn.Serial, meshrun.TopologyUnset},
		{1, 2, nn.Serial, nn.Factor{Size: 2, Axis: 1}, meshrun.TopologyUnset},
		{2, 1, nn.Factor{Size: 2, Axis: 0}, nn.Serial, meshrun.TopologyUnset},
		{2, 1, nn.Serial, nn.Factor{Size: 2, Axis: 0}, meshrun.TopologyUnset},
		{2, 2, nn.Factor{Size: 2, Axis: 1}, nn.Factor{Size: 2, Axis: 0}, meshrun.TopologyUnset},
		{2, 4, nn.Factor{Size: 4, Axis: 1}, nn.Factor{Size: 2, Axis: 0}, meshrun.Ring},
		{2, 4, nn.Factor{Size: 4, Axis: 1}, nn.Factor{Size: 2, Axis: 0}, meshrun.Linear},
		{2, 4, nn.Factor{Size: 2, Axis: 0}, nn.Factor{Size: 4, Axis: 1}, meshrun.Ring},
		{2, 4, nn.Factor{Size: 2, Axis: 0}, nn.Factor{Size: 4, Axis: 1}, meshrun.Linear},
	}
)

// answer is what a forward pass gave.
type answer struct {
	sample     checkpoint.Array
	taps       checkpoint.Arrays
	operations int // that were submitted
	announced  int // that Operations said
}

// forward runs the checkpoint of a folder once. keys changes how many rows of the sequence are attended to; nil: as many as there are
// tokens.
func forward(t testing.TB, dir string, p placement, dtype meshrun.DType, in checkpoint.Arrays, keys func(rows int) int) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cp, err := checkpoint.Open(dir)
	require.NoError(t, err)
	defer cp.Close()
	model, err := Load(cp.Config)
	require.NoError(t, err)
	require.NoError(t, model.CheckInputs(in))
	layout, err := nn.NewLayout(meshrun.MeshShape{Rows: p.rows, Cols: p.cols}, p.tp, p.sp)
	require.NoError(t, err)
	require.NoError(t, model.CheckLayout(layout))

	mesh, err := meshrun.Open(ctx, meshrun.Config{Mesh: layout.Mesh, Topology: p.topology, Lockstep: true})
	require.NoError(t, err)
	defer func() { assert.NoError(t, mesh.Close(ctx)) }()
	stream, err := mesh.Stream("s")
	require.NoError(t, err)
	defer stream.Close()
	run := nn.Run{Layout: layout, DType: dtype}
	placer := nn.NewPlacer(ctx, stream, cp.Weights, run)
	defer placer.Release()
	network := model.Place(placer).(*network)
	require.NoError(t, placer.Err())

	a := answer{taps: checkpoint.Arrays{}, announced: network.Operations()}
	g := nn.NewGraph(ctx, stream, run)
	live := map[int]bool{}
	g.OnTap = func(name string, x checkpoint.Array) {
		a.taps[name] = x
		if strings.HasPrefix(name, "blocks.") {
			live[g.Live()] = true
		}
	}
	if keys == nil {
		a.sample = network.Forward(g, in)
	} else {
		s := network.cfg.shape(in)
		a.sample = network.forward(g, in, s, keys(layout.PaddedRows(s.tokens)))
	}
	a.operations = g.Operations()
	left := g.Live()
	require.NoError(t, g.Close())
	assert.Len(t, live, 1, "every block leaves as much memory as the one before")
	assert.Zero(t, left, "every temporary is released")
	require.Equal(t, model.OutputShape(in), a.sample.Shape)
	return a
}

// tolerances of a right implementation (design.md 7.2).
type tolerance struct{ pcc, maxError float64 }

var tolerances = map[meshrun.DType]tolerance{
	meshrun.Float32:  {0.999999, 1e-4},
	meshrun.BFloat16: {0.9999, 0.05},
}

func TestGolden(t *testing.T) {
	for _, c := range goldenCases {
		dir := golden(c)
		in, err := checkpoint.ReadArrays(filepath.Join(dir, "inputs.safetensors"))
		require.NoError(t, err)
		want, err := checkpoint.ReadArrays(filepath.Join(dir, "outputs.safetensors"))
		require.NoError(t, err)
		for _, p := range placements {
			for _, dtype := range []meshrun.DType{meshrun.Float32, meshrun.BFloat16} {
				t.Run(fmt.Sprintf("%s/%s/%s", c, p, dtype), func(t *testing.T) {
					a := forward(t, dir, p, dtype, in, nil)
					assert.Equal(t, a.announced, a.operations, "operations")
					seen := 0
					for name, w := range want {
						got := a.taps[name]
						if name == sample {
							got = a.sample
						} else if strings.HasPrefix(name, "blocks.") {
							got = cutRows(got, w.Shape[1])
						} else if name == "condition_embedder.timestep_proj" {
							continue // not seen as one
						}
						seen++
						pcc, maxError := checkpoint.Compare(got.Values, w.Values)
						t.Logf("%-42s pcc %.8f max %.2e", name, pcc, maxError)
						assert.GreaterOrEqual(t, pcc, tolerances[dtype].pcc, name)
						assert.LessOrEqual(t, maxError, tolerances[dtype].maxError, name)
					}
					assert.Equal(t, 5, seen)
				})
			}
		}
	}
}

// cutRows drops the padding of [1, 1, rows, width].
func cutRows(a checkpoint.Array, rows int) checkpoint.Array {
	if len(a.Shape) != 4 {
		return a
	}
	return checkpoint.Array{Shape: []int{1, rows, a.Shape[3]}, Values: a.Values[:rows*a.Shape[3]]}
}

// TestUnmaskedPaddingIsSeen proves that the numbers above can fail: padded keys that are attended to exceed the tolerance.
func TestUnmaskedPaddingIsSeen(t *testing.T) {
	dir := golden("wan-t2v-120")
	in, err := checkpoint.ReadArrays(filepath.Join(dir, "inputs.safetensors"))
	require.NoError(t, err)
	want, err := checkpoint.ReadArrays(filepath.Join(dir, "outputs.safetensors"))
	require.NoError(t, err)
	for _, p := range []placement{one, placements[6]} {
		for dtype, tol := range tolerances {
			a := forward(t, dir, p, dtype, in, func(rows int) int { return rows })
			pcc, maxError := checkpoint.Compare(a.sample.Values, want[sample].Values)
			t.Logf("%s %s: pcc %.6f max %.3f", p, dtype, pcc, maxError)
			assert.Greater(t, maxError, tol.maxError)
		}
	}
}
