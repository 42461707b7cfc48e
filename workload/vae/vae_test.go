package vae

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

// golden is the folder of a stored case; that of other people's weights lies beside the project, where it does.
func golden(t testing.TB, name string) string {
	t.Helper()
	for _, dir := range []string{filepath.Join("..", "..", "tests", "testdata", "golden", name), filepath.Join("..", "..", "..", "shared", "golden", name), filepath.Join("..", "..", "..", "..", "shared", "golden", name)} {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			return dir
		}
	}
	t.Skipf("%s is not here", name)
	return ""
}

// place is a mesh and how pictures lie on it: rows on tp, columns on sp.
type place struct {
	rows, cols int
	tp, sp     nn.Factor
	topology   meshrun.Topology
	halo       nn.Halo
}

func (p place) String() string {
	return fmt.Sprintf("%dx%d,tp=%s,sp=%s,%s,%s", p.rows, p.cols, p.tp, p.sp, p.topology, p.halo)
}

// on is a mesh with tp along axis 1 and sp down axis 0; swapped the other way round.
func on(rows, cols int, topology meshrun.Topology, halo nn.Halo, swapped bool) place {
	p := place{rows: rows, cols: cols, tp: nn.Factor{Size: cols, Axis: 1}, sp: nn.Factor{Size: rows}, topology: topology, halo: halo}
	if swapped {
		p.tp, p.sp = p.sp, p.tp
	}
	return p
}

var (
	one  = on(1, 1, meshrun.TopologyUnset, nn.HaloFull, false)
	many = []place{
		on(1, 2, meshrun.TopologyUnset, nn.HaloFull, false),
		on(1, 2, meshrun.TopologyUnset, nn.HaloCompact, true),
		on(2, 2, meshrun.TopologyUnset, nn.HaloFull, false),
		on(2, 2, meshrun.TopologyUnset, nn.HaloCompact, false),
		on(2, 4, meshrun.Linear, nn.HaloFull, false),
		on(2, 4, meshrun.Ring, nn.HaloCompact, false),
		on(2, 4, meshrun.Ring, nn.HaloFull, true),
		on(4, 2, meshrun.Linear, nn.HaloCompact, false),
		on(4, 2, meshrun.Ring, nn.HaloFull, false),
	}
)

type loader func(*checkpoint.Config) (nn.Model, error)

// cases are the stored decoders.
var cases = map[string]loader{
	"vae-wan-8x12": func(c *checkpoint.Config) (nn.Model, error) { return LoadWan(c) },
	"vae-kl-12x16": func(c *checkpoint.Config) (nn.Model, error) { return LoadKL(c) },
	"taef2-real":   func(c *checkpoint.Config) (nn.Model, error) { return LoadTAESD(c) },
}

// answer is what a decoder gave.
type answer struct {
	sample    checkpoint.Array
	taps      map[string][]checkpoint.Array
	linkBytes int64
}

// decode runs a stored decoder.
func decode(t testing.TB, name string, p place, dtype meshrun.DType, in checkpoint.Arrays) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cp, err := checkpoint.Open(golden(t, name))
	require.NoError(t, err)
	defer cp.Close()
	model, err := cases[name](cp.Config)
	require.NoError(t, err)
	require.NoError(t, model.CheckInputs(in))
	layout, err := nn.NewLayout(meshrun.MeshShape{Rows: p.rows, Cols: p.cols}, p.tp, p.sp)
	require.NoError(t, err)
	require.NoError(t, model.CheckLayout(layout))
	require.NoError(t, model.(nn.Fitter).CheckFit(layout, in))

	mesh, err := meshrun.Open(ctx, meshrun.Config{Mesh: layout.Mesh, Topology: p.topology, Lockstep: true})
	require.NoError(t, err)
	defer func() { assert.NoError(t, mesh.Close(ctx)) }()
	stream, err := mesh.Stream("s")
	require.NoError(t, err)
	defer stream.Close()
	run := nn.Run{Layout: layout, DType: dtype, Halo: p.halo}
	placer := nn.NewPlacer(ctx, stream, cp.Weights, run)
	defer placer.Release()
	network := model.Place(placer)
	require.NoError(t, placer.Err())

	a := answer{taps: map[string][]checkpoint.Array{}}
	before := linkBytes(t, mesh)
	g := nn.NewGraph(ctx, stream, run)
	g.OnTap = func(name string, x checkpoint.Array) { a.taps[name] = append(a.taps[name], x) }
	a.sample = network.Forward(g, in)
	left := g.Live()
	require.NoError(t, g.Close())
	assert.Zero(t, left, "every temporary is released")
	require.Equal(t, model.OutputShape(in), a.sample.Shape)
	a.linkBytes = linkBytes(t, mesh) - before
	return a
}

// tolerances: those of the trained decoder and of KL, whose activations are tamer, are narrower in bfloat16.
func tolerance(name string, dtype meshrun.DType) (pcc, maxError float64) {
	switch {
	case dtype == meshrun.Float32:
		return 0.99999, 1e-3
	case name == "vae-wan-8x12":
		return 0.9995, 0.25
	}
	return 0.9998, 0.12
}

func read(t testing.TB, name string) (in, want checkpoint.Arrays) {
	t.Helper()
	dir := golden(t, name)
	in, err := checkpoint.ReadArrays(filepath.Join(dir, "inputs.safetensors"))
	require.NoError(t, err)
	want, err = checkpoint.ReadArrays(filepath.Join(dir, "outputs.safetensors"))
	require.NoError(t, err)
	return in, want
}

// joined puts taps [channels, frames, rows, columns] behind each other in time.
func joined(taps []checkpoint.Array) []float32 {
	if len(taps) == 1 {
		return taps[0].Values
	}
	var out []float32
	channels := taps[0].Shape[0]
	for c := range channels {
		for _, a := range taps {
			n := len(a.Values) / channels
			out = append(out, a.Values[c*n:][:n]...)
		}
	}
	return out
}

// TestGolden compares with what the classes themselves gave; pixels at the borders of shards must be as right as the others.
func TestGolden(t *testing.T) {
	for name := range cases {
		in, want := read(t, name)
		for _, p := range append([]place{one}, many...) {
			for _, dtype := range []meshrun.DType{meshrun.Float32, meshrun.BFloat16} {
				t.Run(fmt.Sprintf("%s/%s/%s", name, p, dtype), func(t *testing.T) {
					a := decode(t, name, p, dtype, in)
					leastPCC, most := tolerance(name, dtype)
					for part, w := range want {
						got := a.sample.Values
						if part != sample {
							require.NotEmpty(t, a.taps[part], part)
							got = joined(a.taps[part])
						}
						pcc, maxError := checkpoint.Compare(got, w.Values)
						t.Logf("%-20s pcc %.8f max %.2e", part, pcc, maxError)
						assert.GreaterOrEqual(t, pcc, leastPCC, part)
						assert.LessOrEqual(t, maxError, most, part)
					}
					near, rest := borders(a.sample, want[sample], p.tp.Size, p.sp.Size)
					t.Logf("%.2e at borders, %.2e elsewhere", near, rest)
					assert.LessOrEqual(t, near, 1.2*rest)
				})
			}
		}
	}
}
