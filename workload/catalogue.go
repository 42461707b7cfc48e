package workload

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/workload/checkpoint"
)

// entry is a model of the catalogue: its configuration and the shapes of its arguments. It has no weights, so that it runs in mode timing
// only.
type entry struct {
	config   string // a config.json
	inputs   checkpoint.Arrays
	forwards int // of a denoising step
}

// catalogue holds the models that can be run by name.
var catalogue = map[string]entry{
	// Wan2.2-T2V-A14B, one of its two experts, at 1280x720 and 81 frames: a latent of 21 frames of 90x160, 75600 tokens. Each step runs
	// with the prompt and without.
	"wan2.2-14b-720p": {
		config: `{"_class_name": "WanTransformer3DModel", "patch_size": [1, 2, 2], "num_attention_heads": 40, "attention_head_dim": 128, "in_channels": 16,
			"out_channels": 16, "text_dim": 4096, "freq_dim": 256, "ffn_dim": 13824, "num_layers": 40, "cross_attn_norm": true, "eps": 1e-6, "rope_max_seq_len": 1024}`,
		inputs: checkpoint.Arrays{
			"hidden_states":         {Shape: []int{1, 16, 21, 90, 160}},
			"timestep":              {Shape: []int{1}},
			"encoder_hidden_states": {Shape: []int{1, 512, 4096}},
		},
		forwards: 2,
	},
}

// Catalogue lists the models that can be run by name.
func Catalogue() []string { return slices.Sorted(maps.Keys(catalogue)) }

// InCatalogue says whether a text names a model of the catalogue. A folder of such a name is written ./NAME.
func InCatalogue(name string) bool {
	_, ok := catalogue[name]
	return ok
}

// openModel opens the model that a run names, and says how many forward passes one of its steps has.
func openModel(c Config) (*checkpoint.Checkpoint, int, error) {
	if e, ok := catalogue[c.Model]; ok {
		if c.Mode != meshrun.Timing {
			return nil, 0, messages.Invalid("model", c.Model, "mode "+strconv.Quote(string(c.Mode)), "is timing: models of the catalogue have no weights")
		}
		cp, err := checkpoint.Imagine(c.Model, []byte(e.config), e.inputs)
		return cp, e.forwards, err
	}
	if stat, err := os.Stat(c.Model); err != nil || !stat.IsDir() {
		return nil, 0, messages.Invalid("model", "folder", strconv.Quote(c.Model), "is a folder with a config.json and weights, or a name of the catalogue: %s", strings.Join(Catalogue(), ", "))
	}
	cp, err := checkpoint.Open(c.Model)
	return cp, 1, err
}
