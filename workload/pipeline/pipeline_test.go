package pipeline

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

// TestGolden compares each step, the denormalised latents and the frames with those of diffusers.
func TestGolden(t *testing.T) {
	in, err := checkpoint.ReadArrays(filepath.Join(stored, "inputs.safetensors"))
	require.NoError(t, err)
	want, err := checkpoint.ReadArrays(filepath.Join(stored, "outputs.safetensors"))
	require.NoError(t, err)
	for _, mesh := range []meshrun.MeshShape{{Rows: 1, Cols: 1}, {Rows: 1, Cols: 2}, {Rows: 2, Cols: 2}, {Rows: 2, Cols: 4}, {Rows: 4, Cols: 2}} {
		for _, dtype := range []meshrun.DType{meshrun.Float32, meshrun.BFloat16} {
			for _, topology := range []meshrun.Topology{meshrun.Linear, meshrun.Ring} {
				if topology == meshrun.Ring && mesh.Devices() <= 4 {
					continue // no axis is long enough for a ring
				}
				t.Run(fmt.Sprintf("%s/%s/%s", mesh, dtype, topology), func(t *testing.T) {
					seen := forward(t, mesh, topology, dtype, in)
					for name, w := range want {
						if name == "sigmas" || name == storedTimesteps {
							continue
						}
						require.Contains(t, seen, name)
						pcc, maxError := checkpoint.Compare(seen[name].Values, w.Values)
						if name == framesName || strings.HasPrefix(name, "step.3") {
							t.Logf("%-20s pcc %.8f max %.2e", name, pcc, maxError)
						}
						least, most := 0.9999, 1e-3
						if dtype == meshrun.BFloat16 {
							least, most = 0.9995, 0.3
						}
						assert.GreaterOrEqual(t, pcc, least, name)
						assert.LessOrEqual(t, maxError, most, name)
					}
				})
			}
		}
	}
}

// forward runs the stored pipeline and returns what it shows.
func forward(t *testing.T, shape meshrun.MeshShape, topology meshrun.Topology, dtype meshrun.DType, in checkpoint.Arrays) checkpoint.Arrays {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cp, err := checkpoint.Open(stored)
	require.NoError(t, err)
	defer cp.Close()
	model, err := LoadWan(cp.Config)
	require.NoError(t, err)
	model.(nn.Sampler).SetSteps(4)
	require.NoError(t, model.CheckInputs(in))
	layout, err := nn.NewLayout(shape, nn.Factor{Size: shape.Cols, Axis: 1}, nn.Factor{Size: shape.Rows})
	require.NoError(t, err)
	require.NoError(t, model.CheckLayout(layout))
	mesh, err := meshrun.Open(ctx, meshrun.Config{Mesh: shape, Topology: topology, Lockstep: true})
	require.NoError(t, err)
	defer func() { assert.NoError(t, mesh.Close(ctx)) }()
	stream, err := mesh.Stream("s")
	require.NoError(t, err)
	defer stream.Close()
	run := nn.Run{Layout: layout, DType: dtype}
	placer := nn.NewPlacer(ctx, stream, cp.Weights, run)
	defer placer.Release()
	network := model.Place(placer)
	require.NoError(t, placer.Err())
	g := nn.NewGraph(ctx, stream, run)
	seen := checkpoint.Arrays{}
	g.OnTap = func(name string, a checkpoint.Array) { seen[name] = a }
	seen[framesName] = network.Forward(g, in)
	assert.Zero(t, g.Live(), "every temporary is released")
	require.NoError(t, g.Close())
	require.Equal(t, model.OutputShape(in), seen[framesName].Shape)
	return seen
}

// TestBadConfigurations: one clear line each.
func TestBadConfigurations(t *testing.T) {
	const ok = `{"transformer":{"_class_name":"WanTransformer3DModel"},"vae":{"_class_name":"AutoencoderKLWan","latents_mean":[0,0],"latents_std":[1,1],"z_dim":2},"scheduler":{}}`
	for text, want := range map[string]string{
		`{}`: "transformer missing: is an object: the configuration of the transformer",
		`{"transformer":3,"vae":{},"scheduler":{}}`: "transformer 3: is an object",
		strings.Replace(ok, `"WanTr`, `"FluxTr`, 1): `c.json transformer: _class_name "FluxTransformer3DModel": is "WanTransformer3DModel"`,
		ok:                                     "in_channels missing: is z_dim of the vae, 2",
		strings.Replace(ok, `[0,0]`, `[0]`, 1): "latents_mean [0]: is a list of 2 numbers",
		strings.Replace(ok, `"scheduler":{}`, `"scheduler":{"_class_name":"DDIMScheduler"}`, 1): `c.json scheduler: _class_name "DDIMScheduler": is "FlowMatchEulerDiscreteScheduler"`,
	} {
		c, err := checkpoint.ParseConfig("c.json", []byte(text))
		require.NoError(t, err)
		_, err = LoadWan(c)
		require.ErrorContains(t, err, want, text)
	}
}
