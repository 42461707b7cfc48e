package wan

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/nn"
)

// TestPatches: tokens are numbered columns first; in a row the channels come first on the way in, last on the way out.
func TestPatches(t *testing.T) {
	s := Config{Patch: [3]int{1, 2, 2}, OutChannels: 2}.shape(checkpoint.Arrays{hiddenStates: {Shape: []int{1, 2, 2, 2, 4}}})
	assert.Equal(t, [3]int{2, 1, 2}, s.grid)
	assert.Equal(t, 4, s.tokens)
	assert.Equal(t, []int{1, 0, 1}, []int{s.position(3, 0), s.position(3, 1), s.position(3, 2)})
	latent := checkpoint.Array{Shape: []int{1, 2, 2, 2, 4}, Values: make([]float32, 32)}
	for i := range latent.Values {
		latent.Values[i] = float32(i)
	}
	x := s.patchify(latent, 5)
	assert.Equal(t, []int{1, 1, 5, 8}, x.Shape)
	assert.Equal(t, []float32{0, 1, 4, 5, 16, 17, 20, 21}, x.Values[:8])      // frame 0, columns 0 and 1, both channels
	assert.Equal(t, []float32{2, 3, 6, 7, 18, 19, 22, 23}, x.Values[8:16])    // columns 2 and 3
	assert.Equal(t, []float32{8, 9, 12, 13, 24, 25, 28, 29}, x.Values[16:24]) // frame 1
	assert.Equal(t, make([]float32, 8), x.Values[32:])

	y := checkpoint.Array{Shape: []int{1, 1, 5, 8}, Values: make([]float32, 40)}
	for token := range 4 {
		for k := range 4 {
			for c := range 2 {
				y.Values[token*8+k*2+c] = x.Values[token*8+c*4+k]
			}
		}
	}
	assert.Equal(t, latent, s.unpatchify(y))
	assert.Nil(t, s.unpatchify(checkpoint.Array{Shape: y.Shape}).Values)
	assert.Nil(t, s.patchify(checkpoint.Array{Shape: latent.Shape}, 5).Values)
}

func TestPadRows(t *testing.T) {
	a := padRows(checkpoint.Array{Shape: []int{2, 1, 2}, Values: []float32{1, 2, 3, 4}}, 2, 2)
	assert.Equal(t, checkpoint.Array{Shape: []int{2, 2, 2}, Values: []float32{1, 2, 0, 0, 3, 4, 0, 0}}, a)
}

func load(t *testing.T, config string) (nn.Model, error) {
	t.Helper()
	c, err := checkpoint.ParseConfig("config.json", []byte(config))
	require.NoError(t, err)
	return Load(c)
}

func TestConfig(t *testing.T) {
	m, err := load(t, `{"_class_name":"WanTransformer3DModel","_golden":{},"out_channels":null,"in_channels":36,"unknown":[1]}`)
	require.NoError(t, err)
	assert.Equal(t, Config{Patch: [3]int{1, 2, 2}, Heads: 40, HeadDim: 128, InChannels: 36, OutChannels: 36, TextDim: 4096, FreqDim: 256, FFNDim: 13824,
		Layers: 40, CrossAttnNorm: true, Epsilon: 1e-6, RopeMax: 1024}, m.(*Model).cfg)
	for text, want := range map[string]string{
		`{"num_layers":"2"}`:                          `config.json: num_layers "2": is a whole number of at least 1 and at most 16777216`,
		`{"num_layers":null}`:                         `config.json: num_layers null: is a whole number of at least 1 and at most 16777216`,
		`{"num_attention_heads":0}`:                   `config.json: num_attention_heads 0: is a whole number of at least 1 and at most 16777216`,
		`{"patch_size":[1,2]}`:                        `config.json: patch_size [1,2]: is a list of three whole numbers of at least 1 and at most 16777216`,
		`{"attention_head_dim":27}`:                   `config.json: attention_head_dim 27: is even and at least 6`,
		`{"freq_dim":33}`:                             `config.json: freq_dim 33: is even`,
		`{"qk_norm":"rms_norm"}`:                      `config.json: qk_norm "rms_norm": is "rms_norm_across_heads"`,
		`{"image_dim":1280}`:                          `config.json: image_dim 1280: is null: models with an image embedder`,
		`{"added_kv_proj_dim":5120}`:                  `config.json: added_kv_proj_dim 5120: is null: models with image keys`,
		`{"cross_attn_norm":"yes"}`:                   `config.json: cross_attn_norm "yes": is true or false`,
		`{"eps":-1}`:                                  `config.json: eps -1: is a number that is not negative`,
		`{"rope_max_seq_len":1.5}`:                    `config.json: rope_max_seq_len 1.5: is a whole number`,
		`{"num_layers":[2], "eps":"small"}`:           `config.json: num_layers [2]: is a whole number`,
		`{"out_channels":-4}`:                         `config.json: out_channels -4: is a whole number of at least 1 and at most 16777216`,
		`{"num_attention_heads":9007199254740993000}`: `config.json: num_attention_heads 9007199254740993000`,
	} {
		_, err := load(t, text)
		require.ErrorIs(t, err, messages.ErrInvalid, text)
		assert.ErrorContains(t, err, want)
		assert.NotContains(t, err.Error(), "\n")
	}
}

func TestCheckInputs(t *testing.T) {
	m, err := load(t, `{"in_channels":4,"text_dim":8,"rope_max_seq_len":6}`)
	require.NoError(t, err)
	shapes := func(latent, step, text []int) checkpoint.Arrays {
		return checkpoint.Arrays{hiddenStates: {Shape: latent}, timestep: {Shape: step}, encoderHiddenStates: {Shape: text}}
	}
	require.NoError(t, m.CheckInputs(shapes([]int{2, 4, 3, 4, 6}, []int{2}, []int{2, 5, 8})))
	require.NoError(t, m.CheckInputs(shapes([]int{2, 4, 3, 4, 6}, []int{2, 18}, []int{2, 5, 8})))
	for want, in := range map[string]checkpoint.Arrays{
		"inputs: tensor timestep missing: is an argument of WanTransformer3DModel":               {hiddenStates: {}},
		"tensor hidden_states shape [4 3 4 6]: is [batch, in_channels 4, frames, height, width]": shapes([]int{4, 3, 4, 6}, []int{1}, []int{1, 5, 8}),
		"tensor hidden_states shape [1 5 3 4 6]: is [batch, in_channels 4,":                      shapes([]int{1, 5, 3, 4, 6}, []int{1}, []int{1, 5, 8}),
		"tensor hidden_states shape [1 4 3 5 6]: has whole patches [1 2 2]":                      shapes([]int{1, 4, 3, 5, 6}, []int{1}, []int{1, 5, 8}),
		"tensor hidden_states shape [1 4 3 4 14]: has at most rope_max_seq_len 6 patches":        shapes([]int{1, 4, 3, 4, 14}, []int{1}, []int{1, 5, 8}),
		"tensor timestep shape [2]: is [1], the batch, or [1, 18]":                               shapes([]int{1, 4, 3, 4, 6}, []int{2}, []int{1, 5, 8}),
		"tensor timestep shape [1 17]: is [1], the batch, or [1, 18]":                            shapes([]int{1, 4, 3, 4, 6}, []int{1, 17}, []int{1, 5, 8}),
		"tensor timestep shape []: is [1]":                                                       shapes([]int{1, 4, 3, 4, 6}, nil, []int{1, 5, 8}),
		"tensor encoder_hidden_states shape [1 5 9]: is [1, text tokens, text_dim 8]":            shapes([]int{1, 4, 3, 4, 6}, []int{1}, []int{1, 5, 9}),
		"tensor encoder_hidden_states shape [2 5 8]: is [1, text tokens, text_dim 8]":            shapes([]int{1, 4, 3, 4, 6}, []int{1}, []int{2, 5, 8}),
	} {
		err := m.CheckInputs(in)
		require.ErrorIs(t, err, messages.ErrInvalid, want)
		assert.ErrorContains(t, err, want)
	}
}

func TestCheckLayout(t *testing.T) {
	m, err := load(t, `{"num_attention_heads":6,"ffn_dim":8}`)
	require.NoError(t, err)
	layout := func(tp int) nn.Layout {
		l, err := nn.NewLayout(meshrun.MeshShape{Rows: 1, Cols: tp}, nn.Factor{Size: tp, Axis: 1}, nn.Serial)
		require.NoError(t, err)
		return l
	}
	require.NoError(t, m.CheckLayout(layout(2)))
	assert.EqualError(t, m.CheckLayout(layout(4)), "layout: tp 4@1: divides num_attention_heads, 6")
	assert.EqualError(t, m.CheckLayout(layout(3)), "layout: tp 3@1: divides ffn_dim, 8")
}
