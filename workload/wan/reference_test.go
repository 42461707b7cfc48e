package wan

import (
	"math"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/workload/checkpoint"
)

// The Wan transformer in plain float64 Go, written straight from the formulas of diffusers' WanTransformer3DModel: unsharded, unpadded,
// one loop after the other. It shares no code with the model under test.

// matrix is rows x cols, row major.
type matrix struct {
	rows, cols int
	v          []float64
}

func newMatrix(rows, cols int) matrix { return matrix{rows, cols, make([]float64, rows*cols)} }

func (m matrix) row(i int) []float64 { return m.v[i*m.cols : (i+1)*m.cols] }

type reference struct {
	cfg Config
	w   map[string][]float64
	out map[string][]float64 // block outputs by the names of the golden files
}

func newReference(t testing.TB, dir string) *reference {
	t.Helper()
	file := filepath.Join(dir, "weights.safetensors")
	arrays, err := checkpoint.ReadArrays(file)
	require.NoError(t, err)
	config, err := checkpoint.ReadConfig(filepath.Join(dir, "config.json"))
	require.NoError(t, err)
	cfg, err := readConfig(config)
	require.NoError(t, err)
	r := &reference{cfg: cfg, w: map[string][]float64{}}
	for name, a := range arrays {
		r.w[name] = widen(a.Values)
	}
	return r
}

func widen(v []float32) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = float64(x)
	}
	return out
}

func (r *reference) linear(x matrix, name string) matrix {
	w, b := r.w[name+".weight"], r.w[name+".bias"]
	out := newMatrix(x.rows, len(b))
	for i := range x.rows {
		for j := range out.cols {
			sum := b[j]
			for k, v := range x.row(i) {
				sum += v * w[j*x.cols+k]
			}
			out.v[i*out.cols+j] = sum
		}
	}
	return out
}

func each(x matrix, f func(float64) float64) matrix {
	out := newMatrix(x.rows, x.cols)
	for i, v := range x.v {
		out.v[i] = f(v)
	}
	return out
}

func silu(x float64) float64 { return x / (1 + math.Exp(-x)) }
func geluTanh(x float64) float64 {
	return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
}

func layerNorm(x matrix, eps float64) matrix {
	out := newMatrix(x.rows, x.cols)
	for i := range x.rows {
		mean, variance := 0.0, 0.0
		for _, v := range x.row(i) {
			mean += v / float64(x.cols)
		}
		for _, v := range x.row(i) {
			variance += (v - mean) * (v - mean) / float64(x.cols)
		}
		for j, v := range x.row(i) {
			out.row(i)[j] = (v - mean) / math.Sqrt(variance+eps)
		}
	}
	return out
}

func (r *reference) rmsNorm(x matrix, name string) matrix {
	w, out := r.w[name+".weight"], newMatrix(x.rows, x.cols)
	for i := range x.rows {
		squares := 0.0
		for _, v := range x.row(i) {
			squares += v * v / float64(x.cols)
		}
		for j, v := range x.row(i) {
			out.row(i)[j] = v / math.Sqrt(squares+r.cfg.Epsilon) * w[j]
		}
	}
	return out
}

// attend is softmax(q k^T / sqrt(d)) v for each head, whose columns lie side by side.
func (r *reference) attend(q, k, v matrix) matrix {
	d, out := r.cfg.HeadDim, newMatrix(q.rows, q.cols)
	scores := make([]float64, k.rows)
	for h := range r.cfg.Heads {
		for i := range q.rows {
			largest := math.Inf(-1)
			for j := range k.rows {
				s := 0.0
				for c := h * d; c < (h+1)*d; c++ {
					s += q.row(i)[c] * k.row(j)[c]
				}
				scores[j] = s / math.Sqrt(float64(d))
				largest = math.Max(largest, scores[j])
			}
			sum := 0.0
			for j := range scores {
				scores[j] = math.Exp(scores[j] - largest)
				sum += scores[j]
			}
			for j := range scores {
				for c := h * d; c < (h+1)*d; c++ {
					out.row(i)[c] += scores[j] / sum * v.row(j)[c]
				}
			}
		}
	}
	return out
}

// rotate turns the pairs (2i, 2i+1) of every head by the angle of the token's frame, row or column.
func (r *reference) rotate(x matrix, grid [3]int) matrix {
	d := r.cfg.HeadDim
	third := 2 * (d / 6)
	parts := [3]int{d - 2*third, third, third}
	out := newMatrix(x.rows, x.cols)
	for i := range x.rows {
		position := [3]int{i / (grid[1] * grid[2]), i / grid[2] % grid[1], i % grid[2]}
		for h := range r.cfg.Heads {
			at := h * d
			for a, n := range parts {
				for p := 0; p < n; p += 2 {
					angle := float64(position[a]) / math.Pow(10000, float64(p)/float64(n))
					even, odd := x.row(i)[at+p], x.row(i)[at+p+1]
					out.row(i)[at+p] = even*math.Cos(angle) - odd*math.Sin(angle)
					out.row(i)[at+p+1] = even*math.Sin(angle) + odd*math.Cos(angle)
				}
				at += n
			}
		}
	}
	return out
}

func (r *reference) attention(name string, x, context matrix, grid *[3]int) matrix {
	q := r.rmsNorm(r.linear(x, name+".to_q"), name+".norm_q")
	k := r.rmsNorm(r.linear(context, name+".to_k"), name+".norm_k")
	v := r.linear(context, name+".to_v")
	if grid != nil {
		q, k = r.rotate(q, *grid), r.rotate(k, *grid)
	}
	return r.linear(r.attend(q, k, v), name+".to_out.0")
}

// modulation gives shift, scale and gate of a token: row i mod its rows, so that one row serves all tokens.
type modulation [6]matrix

func (m modulation) at(part, token int) []float64 { return m[part].row(token % m[part].rows) }

func modulate(x matrix, m modulation, shift, scale int) matrix {
	out := newMatrix(x.rows, x.cols)
	for i := range x.rows {
		for j, v := range x.row(i) {
			out.row(i)[j] = v*(1+m.at(scale, i)[j]) + m.at(shift, i)[j]
		}
	}
	return out
}

func addGated(x, y matrix, m modulation, gate int) matrix {
	out := newMatrix(x.rows, x.cols)
	for i := range x.rows {
		for j, v := range x.row(i) {
			g := 1.0
			if gate >= 0 {
				g = m.at(gate, i)[j]
			}
			out.row(i)[j] = v + y.row(i)[j]*g
		}
	}
	return out
}

// split cuts columns into parts and adds a row of the table to each.
func split(x matrix, table []float64, parts int) modulation {
	var m modulation
	width := len(table) / parts
	for p := range parts {
		m[p] = newMatrix(x.rows, width)
		for i := range x.rows {
			for j := range width {
				m[p].row(i)[j] = x.row(i)[p*width%x.cols+j] + table[p*width+j]
			}
		}
	}
	return m
}

// forward computes one batch element: latent [C, F, H, W], one timestep or one per token, text [L, text_dim].
func (r *reference) forward(latent []float64, shape [4]int, timesteps []float64, text matrix) []float64 {
	cfg, p := r.cfg, r.cfg.Patch
	width := cfg.Heads * cfg.HeadDim
	grid := [3]int{shape[1] / p[0], shape[2] / p[1], shape[3] / p[2]}
	tokens := grid[0] * grid[1] * grid[2]
	pixel := func(c, f, h, w int) int { return ((c*shape[1]+f)*shape[2]+h)*shape[3] + w }

	// patch_embedding: Conv3d with kernel = stride = patch.
	x := newMatrix(tokens, width)
	kernel, bias := r.w["patch_embedding.weight"], r.w["patch_embedding.bias"]
	for i := range tokens {
		f, h, w := i/(grid[1]*grid[2]), i/grid[2]%grid[1], i%grid[2]
		for o := range width {
			sum, at := bias[o], o*cfg.InChannels*p[0]*p[1]*p[2]
			for c := range cfg.InChannels {
				for a := range p[0] {
					for b := range p[1] {
						for d := range p[2] {
							sum += kernel[at] * latent[pixel(c, f*p[0]+a, h*p[1]+b, w*p[2]+d)]
							at++
						}
					}
				}
			}
			x.row(i)[o] = sum
		}
	}

	// condition_embedder
	sinusoid := newMatrix(len(timesteps), cfg.FreqDim)
	half := cfg.FreqDim / 2
	for i, t := range timesteps {
		for k := range half {
			// diffusers computes frequency and angle in float32, also when the rest is float64.
			frequency := float32(math.Exp(float64(float32(-math.Log(10000)) * float32(k) / float32(half))))
			angle := float64(float32(t) * frequency)
			sinusoid.row(i)[k], sinusoid.row(i)[half+k] = math.Cos(angle), math.Sin(angle)
		}
	}
	const ce = "condition_embedder."
	temb := r.linear(each(r.linear(sinusoid, ce+"time_embedder.linear_1"), silu), ce+"time_embedder.linear_2")
	projected := r.linear(each(temb, silu), ce+"time_proj")
	text = r.linear(each(r.linear(text, ce+"text_embedder.linear_1"), geluTanh), ce+"text_embedder.linear_2")
	r.out = map[string][]float64{ce + "temb": temb.v, ce + "timestep_proj": projected.v, ce + "encoder_hidden_states": text.v}

	for b := range cfg.Layers {
		name := "blocks." + strconv.Itoa(b)
		m := split(projected, r.w[name+".scale_shift_table"], 6)
		h := modulate(layerNorm(x, cfg.Epsilon), m, 0, 1)
		x = addGated(x, r.attention(name+".attn1", h, h, &grid), m, 2)
		h = x
		if cfg.CrossAttnNorm {
			h = layerNorm(x, cfg.Epsilon)
			for i := range h.v {
				h.v[i] = h.v[i]*r.w[name+".norm2.weight"][i%width] + r.w[name+".norm2.bias"][i%width]
			}
		}
		x = addGated(x, r.attention(name+".attn2", h, text, nil), m, -1)
		h = modulate(layerNorm(x, cfg.Epsilon), m, 3, 4)
		x = addGated(x, r.linear(each(r.linear(h, name+".ffn.net.0.proj"), geluTanh), name+".ffn.net.2"), m, 5)
		r.out[name] = x.v
	}

	m := split(temb, r.w["scale_shift_table"], 2)
	y := r.linear(modulate(layerNorm(x, cfg.Epsilon), m, 0, 1), "proj_out")
	sample := make([]float64, cfg.OutChannels*shape[1]*shape[2]*shape[3])
	for i := range tokens {
		f, h, w := i/(grid[1]*grid[2]), i/grid[2]%grid[1], i%grid[2]
		for j, v := range y.row(i) {
			c := j % cfg.OutChannels
			k := j / cfg.OutChannels
			sample[pixel(c, f*p[0]+k/(p[1]*p[2]), h*p[1]+k/p[2]%p[1], w*p[2]+k%p[2])] = v
		}
	}
	r.out["sample"] = sample
	return sample
}

// forwardAll computes a whole batch.
func (r *reference) forwardAll(in checkpoint.Arrays) []float64 {
	latent, time, text := in["hidden_states"], in["timestep"], in["encoder_hidden_states"]
	batch := latent.Shape[0]
	part := func(a checkpoint.Array, b int) []float64 {
		n := len(a.Values) / batch
		return widen(a.Values[b*n : (b+1)*n])
	}
	var out []float64
	for b := range batch {
		t := matrix{text.Shape[1], text.Shape[2], part(text, b)}
		out = append(out, r.forward(part(latent, b), [4]int(latent.Shape[1:]), part(time, b), t)...)
	}
	return out
}

// TestReference holds the reference itself against diffusers' outputs: it must agree to the noise of their float32.
func TestReference(t *testing.T) {
	for _, c := range goldenCases {
		t.Run(c, func(t *testing.T) {
			dir := golden(c)
			r := newReference(t, dir)
			in, err := checkpoint.ReadArrays(filepath.Join(dir, "inputs.safetensors"))
			require.NoError(t, err)
			want, err := checkpoint.ReadArrays(filepath.Join(dir, "outputs.safetensors"))
			require.NoError(t, err)
			r.forwardAll(in)
			for name, a := range want {
				got := r.out[name]
				require.Len(t, got, len(a.Values), name)
				std := deviation(a.Values)
				for i := range got {
					require.InDelta(t, a.Values[i], got[i], 5e-6*std, "%s[%d]", name, i)
				}
			}
		})
	}
}

func deviation(v []float32) float64 {
	mean, squares := 0.0, 0.0
	for _, x := range v {
		mean += float64(x) / float64(len(v))
	}
	for _, x := range v {
		squares += (float64(x) - mean) * (float64(x) - mean) / float64(len(v))
	}
	return math.Sqrt(squares)
}

var goldenCases = []string{"wan-t2v-120", "wan-t2v-256"}

func golden(name string) string {
	return filepath.Join("..", "..", "tests", "testdata", "golden", name)
}
