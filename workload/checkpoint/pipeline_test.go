package checkpoint

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPipelineFolder: a folder for each part is like one folder with prefixes.
func TestPipelineFolder(t *testing.T) {
	dir := t.TempDir()
	for _, part := range []string{"transformer", "vae", "scheduler", "tokenizer"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, part), 0o755))
	}
	put(t, dir, pipelineFile, `{"_class_name":"P","transformer":["diffusers","T"],"guidance_scale":3}`)
	put(t, dir, "transformer/config.json", `{"n":1}`)
	tensors(t, filepath.Join(dir, "transformer", diffusersFile), "x", "y")
	put(t, dir, "vae/config.json", `{"n":"many"}`)
	tensors(t, filepath.Join(dir, "vae", ownFile), "x")
	put(t, dir, "scheduler/scheduler_config.json", `{"n":3}`)

	c, err := Open(dir)
	require.NoError(t, err)
	defer c.Close()
	assert.Equal(t, "P", c.Config.ClassName())
	assert.Equal(t, 1, c.Config.Sub("transformer").Positive("n", 7))
	assert.Equal(t, 3, c.Config.Sub("scheduler").Positive("n", 7))
	part := c.Config.Sub("vae")
	part.Positive("n", 7)
	oneLine(t, part.Err(), filepath.Join(dir, "vae", "config.json")+`: n "many": is a whole number`)
	require.NoError(t, c.Config.Err())
	c.Config.Sub("tokenizer")
	oneLine(t, c.Config.Err(), "tokenizer missing: is an object")

	for _, name := range []string{"transformer.x", "transformer.y", "vae.x"} {
		require.NoError(t, c.Weights.Check(name, 1, 2))
	}
	sub := c.Weights.Sub("transformer.")
	require.NoError(t, sub.Check("y", 1, 2))
	oneLine(t, c.Weights.Sub("vae.").Check("y", 1), "tensor vae.y missing: is there, of shape [1]")

	put(t, dir, "vae/"+ownFile, "short")
	_, err = Open(dir)
	oneLine(t, err, "size 5 bytes")
}

func TestListsInAConfig(t *testing.T) {
	const text = `{"f":[1,2.5],"n":[4,8],"b":[true,false],"s":["x"],"sub":{"n":2},"none":[],"nil":null,"word":"x"}`
	parse := func() *Config {
		c, err := ParseConfig("config.json", []byte(text))
		require.NoError(t, err)
		return c
	}
	c := parse()
	assert.Equal(t, []float64{1, 2.5}, c.Floats("f", 2))
	assert.Nil(t, c.Floats("nil", 2))
	assert.Nil(t, c.Floats("absent", 2))
	assert.Equal(t, []int{4, 8}, c.Numbers("n", nil))
	assert.Equal(t, []int{3}, c.Numbers("absent", []int{3}))
	assert.Equal(t, []bool{true, false}, c.Bools("b", nil, 2))
	assert.Equal(t, []string{"x"}, c.Strings("s", nil))
	assert.Equal(t, 2, c.Sub("sub").Positive("n", 1))
	c.Empty("none", "")
	c.Empty("nil", "")
	c.Empty("absent", "")
	c.IsBool("absent", true, "")
	require.NoError(t, c.Err())
	for want, call := range map[string]func(*Config){
		"f [1,2.5]: is a list of 3 numbers":                  func(c *Config) { c.Floats("f", 3) },
		"none []: is a list of whole numbers of at least 1":  func(c *Config) { c.Numbers("none", nil) },
		"b [true,false]: is a list of 3 times true or false": func(c *Config) { c.Bools("b", nil, 3) },
		`word "x": is a list of names`:                       func(c *Config) { c.Strings("word", nil) },
		`word "x": is an object: the configuration of the`:   func(c *Config) { c.Sub("word") },
		"n [4,8]: is empty: no scales":                       func(c *Config) { c.Empty("n", "no scales") },
		`word "x": is true or false`:                         func(c *Config) { c.IsBool("word", true, "") },
	} {
		c := parse()
		call(c)
		oneLine(t, c.Err(), want)
	}
}
