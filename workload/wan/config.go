package wan

import (
	"github.com/meshrun/meshrun/workload/checkpoint"
)

// Config are the arguments of diffusers' WanTransformer3DModel that this model supports: text to video, and image to video by way of
// more input channels.
type Config struct {
	Patch         [3]int // frames, rows and columns of a patch
	Heads         int
	HeadDim       int
	InChannels    int
	OutChannels   int
	TextDim       int // width of the text encoder's states
	FreqDim       int // width of the sinusoids of a timestep
	FFNDim        int
	Layers        int
	CrossAttnNorm bool
	Epsilon       float64
	RopeMax       int // the most positions along each side of the token grid
}

// Width is the model's width, num_attention_heads x attention_head_dim.
func (c Config) Width() int { return c.Heads * c.HeadDim }

// patchSize is how many latent pixels of one channel a token stands for.
func (c Config) patchSize() int { return c.Patch[0] * c.Patch[1] * c.Patch[2] }

// readConfig reads the arguments, with the defaults of the class.
func readConfig(c *checkpoint.Config) (Config, error) {
	cfg := Config{
		Patch:         c.Triple("patch_size", [3]int{1, 2, 2}),
		Heads:         c.Positive("num_attention_heads", 40),
		HeadDim:       c.Positive("attention_head_dim", 128),
		InChannels:    c.Positive("in_channels", 16),
		TextDim:       c.Positive("text_dim", 4096),
		FreqDim:       c.Positive("freq_dim", 256),
		FFNDim:        c.Positive("ffn_dim", 13824),
		Layers:        c.Positive("num_layers", 40),
		CrossAttnNorm: c.Bool("cross_attn_norm", true),
		Epsilon:       c.Float("eps", 1e-6),
		RopeMax:       c.Positive("rope_max_seq_len", 1024),
	}
	cfg.OutChannels = c.PositiveOr("out_channels", 16, cfg.InChannels)
	c.Is("qk_norm", "rms_norm_across_heads")
	c.Null("image_dim", "models with an image embedder are not supported")
	c.Null("added_kv_proj_dim", "models with image keys and values are not supported")
	c.Null("pos_embed_seq_len", "models with an image embedder are not supported")
	if cfg.HeadDim%2 != 0 || cfg.HeadDim < 6 {
		c.Fail("attention_head_dim", "is even and at least 6, so that each of frame, row and column turns a pair")
	}
	if cfg.FreqDim%2 != 0 {
		c.Fail("freq_dim", "is even: half cosines, half sines")
	}
	return cfg, c.Err()
}
