package wan

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/nn"
	"github.com/meshrun/meshrun/workload/safetensors"
)

func narrow(v []float64) []float32 {
	out := make([]float32, len(v))
	for i, x := range v {
		out[i] = float32(x)
	}
	return out
}

// writeRandom makes a checkpoint with seeded weights of a config, stored as BF16: linear layers keep the scale of what passes them, norms
// are near one.
func writeRandom(t testing.TB, seed uint64, config map[string]any) string {
	t.Helper()
	dir := t.TempDir()
	config["_class_name"] = ClassName
	text, err := json.Marshal(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o644))
	c, err := checkpoint.ReadConfig(filepath.Join(dir, "config.json"))
	require.NoError(t, err)
	cfg, err := readConfig(c)
	require.NoError(t, err)

	rng := rand.New(rand.NewPCG(seed, 0))
	var list []safetensors.Tensor
	add := func(name string, mean, deviation float64, shape ...int) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		values := make([]float32, n)
		for i := range values {
			values[i] = float32(mean + deviation*rng.NormFloat64())
		}
		list = append(list, safetensors.Tensor{Name: name, DType: safetensors.BF16, Shape: shape, Values: values})
	}
	linear := func(name string, out int, in ...int) {
		fan := 1
		for _, n := range in {
			fan *= n
		}
		add(name+".weight", 0, 1/math.Sqrt(float64(fan)), append([]int{out}, in...)...)
		add(name+".bias", 0, 0.1, out)
	}
	width := cfg.Width()
	linear("patch_embedding", width, cfg.InChannels, cfg.Patch[0], cfg.Patch[1], cfg.Patch[2])
	linear("condition_embedder.time_embedder.linear_1", width, cfg.FreqDim)
	linear("condition_embedder.time_embedder.linear_2", width, width)
	linear("condition_embedder.time_proj", 6*width, width)
	linear("condition_embedder.text_embedder.linear_1", width, cfg.TextDim)
	linear("condition_embedder.text_embedder.linear_2", width, width)
	for i := range cfg.Layers {
		b := fmt.Sprintf("blocks.%d.", i)
		add(b+"scale_shift_table", 0, 0.3, 1, 6, width)
		for _, a := range []string{"attn1.", "attn2."} {
			for _, l := range []string{"to_q", "to_k", "to_v", "to_out.0"} {
				linear(b+a+l, width, width)
			}
			add(b+a+"norm_q.weight", 1, 0.1, width)
			add(b+a+"norm_k.weight", 1, 0.1, width)
		}
		if cfg.CrossAttnNorm {
			add(b+"norm2.weight", 1, 0.1, width)
			add(b+"norm2.bias", 0, 0.1, width)
		}
		linear(b+"ffn.net.0.proj", cfg.FFNDim, width)
		linear(b+"ffn.net.2", width, cfg.FFNDim)
	}
	add("scale_shift_table", 0, 0.3, 1, 2, width)
	linear("proj_out", cfg.OutChannels*cfg.patchSize(), width)
	require.NoError(t, safetensors.WriteFile(filepath.Join(dir, "weights.safetensors"), list))
	return dir
}

// randomInputs makes the arguments of a forward pass; perToken gives every token a time step of its own.
func randomInputs(seed uint64, latent []int, text []int, perToken int) checkpoint.Arrays {
	rng := rand.New(rand.NewPCG(seed, 1))
	normal := func(shape []int) checkpoint.Array {
		n := 1
		for _, d := range shape {
			n *= d
		}
		a := checkpoint.Array{Shape: shape, Values: make([]float32, n)}
		for i := range a.Values {
			a.Values[i] = float32(rng.NormFloat64())
		}
		return a
	}
	steps := checkpoint.Array{Shape: []int{latent[0]}}
	if perToken > 0 {
		steps.Shape = append(steps.Shape, perToken)
	}
	for range latent[0] * max(perToken, 1) {
		steps.Values = append(steps.Values, float32(rng.IntN(1000)))
	}
	return checkpoint.Arrays{hiddenStates: normal(latent), encoderHiddenStates: normal(text), timestep: steps}
}

// TestOtherShapes holds other models than the stored ones against the reference: head counts, depths, batches, odd token counts, text that is
// no multiple of a tile, time steps per token, patches and channels.
func TestOtherShapes(t *testing.T) {
	tp := func(n, axis int) nn.Factor { return nn.Factor{Size: n, Axis: axis} }
	for name, c := range map[string]struct {
		config       map[string]any
		latent, text []int
		perToken     int
		placements   []placement
	}{
		"2 heads, depth 1, 35 tokens, text 7": {
			map[string]any{"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1, "ffn_dim": 96, "freq_dim": 32, "text_dim": 24},
			[]int{1, 16, 1, 10, 14}, []int{1, 7, 24}, 0,
			[]placement{one, {2, 2, tp(2, 1), tp(2, 0), 0}, {1, 3, nn.Serial, tp(3, 1), meshrun.Ring}},
		},
		"3 heads, depth 3, batch 2, 63 tokens, text 45": {
			map[string]any{"num_attention_heads": 3, "attention_head_dim": 24, "num_layers": 3, "ffn_dim": 48, "freq_dim": 20, "text_dim": 40},
			[]int{2, 16, 3, 6, 14}, []int{2, 45, 40}, 0,
			[]placement{one, {2, 3, tp(3, 1), tp(2, 0), meshrun.Ring}, {3, 2, tp(3, 0), tp(2, 1), meshrun.Linear}},
		},
		"8 heads, no cross norm, channels 36 to 16, eps": {
			map[string]any{"num_attention_heads": 8, "attention_head_dim": 12, "num_layers": 2, "ffn_dim": 64, "freq_dim": 64, "text_dim": 32,
				"cross_attn_norm": false, "in_channels": 36, "out_channels": 16, "eps": 1e-2},
			[]int{1, 36, 2, 8, 10}, []int{1, 33, 32}, 0,
			[]placement{one, {8, 1, tp(8, 0), nn.Serial, meshrun.Ring}, {2, 4, tp(2, 0), tp(4, 1), meshrun.Ring}},
		},
		"time steps per token, batch 2, patch 2x2x1": {
			map[string]any{"num_attention_heads": 4, "attention_head_dim": 8, "num_layers": 2, "ffn_dim": 64, "freq_dim": 32, "text_dim": 32, "patch_size": []int{2, 2, 1}, "out_channels": nil, "in_channels": 3},
			[]int{2, 3, 4, 6, 7}, []int{2, 32, 32}, 42,
			[]placement{one, {2, 4, tp(4, 1), tp(2, 0), meshrun.Ring}, {2, 4, tp(2, 0), tp(4, 1), meshrun.Linear}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := writeRandom(t, 7, c.config)
			in := randomInputs(7, c.latent, c.text, c.perToken)
			want := narrow(newReference(t, dir).forwardAll(in))
			for _, p := range c.placements {
				for dtype, tol := range tolerances {
					a := forward(t, dir, p, dtype, in, nil)
					pcc, maxError := checkpoint.Compare(a.sample.Values, want)
					t.Logf("%-28s %-8s pcc %.8f max %.2e", p, dtype, pcc, maxError)
					assert.GreaterOrEqual(t, pcc, tol.pcc)
					assert.LessOrEqual(t, maxError, tol.maxError)
					assert.Equal(t, a.announced, a.operations, "operations")
				}
			}
		})
	}
}
