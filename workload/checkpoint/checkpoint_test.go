package checkpoint

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/workload/safetensors"
)

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
}

func tensors(t *testing.T, path string, names ...string) {
	t.Helper()
	var list []safetensors.Tensor
	for i, n := range names {
		list = append(list, safetensors.Tensor{Name: n, DType: safetensors.BF16, Shape: []int{1, 2}, Values: []float32{float32(i), 1}})
	}
	require.NoError(t, safetensors.WriteFile(path, list))
}

func oneLine(t *testing.T, err error, want string) {
	t.Helper()
	require.ErrorIs(t, err, messages.ErrInvalid)
	assert.ErrorContains(t, err, want)
	assert.NotContains(t, err.Error(), "\n")
}

func TestOneFile(t *testing.T) {
	for _, name := range []string{ownFile, diffusersFile} {
		dir := t.TempDir()
		put(t, dir, "config.json", `{"_class_name":"M"}`)
		tensors(t, filepath.Join(dir, name), "a", "b")
		c, err := Open(dir)
		require.NoError(t, err)
		assert.Equal(t, "M", c.Config.ClassName())
		require.NoError(t, c.Weights.Check("b", 1, 2))
		b, err := c.Weights.Read("b", messages.BFloat16)
		require.NoError(t, err)
		assert.Equal(t, []byte{0x80, 0x3f, 0x80, 0x3f}, b)
		b, err = c.Weights.Read("b", messages.Float32)
		require.NoError(t, err)
		assert.Equal(t, []byte{0, 0, 0x80, 0x3f, 0, 0, 0x80, 0x3f}, b)
		oneLine(t, c.Weights.Check("c", 7), name+": tensor c missing: is there, of shape [7]")
		oneLine(t, c.Weights.Check("a", 2, 1), name+": tensor a shape [1 2]: has shape [2 1], as config.json says")
		_, err = c.Weights.Read("c", messages.Float32)
		oneLine(t, err, "tensor c missing")
		require.NoError(t, c.Close())
	}
}

func TestSharded(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "config.json", `{"_class_name":"M"}`)
	tensors(t, filepath.Join(dir, "part1.safetensors"), "a")
	tensors(t, filepath.Join(dir, "part2.safetensors"), "x", "b")
	put(t, dir, indexFile, `{"metadata":{"total_size":8},"weight_map":{"a":"part1.safetensors","b":"part2.safetensors","x":"part2.safetensors"}}`)
	c, err := Open(dir)
	require.NoError(t, err)
	require.NoError(t, c.Weights.Check("a", 1, 2))
	b, err := c.Weights.Read("b", messages.Float32)
	require.NoError(t, err)
	assert.Equal(t, []byte{0, 0, 0x80, 0x3f, 0, 0, 0x80, 0x3f}, b)
	require.NoError(t, c.Close())

	for text, want := range map[string]string{
		`{"weight_map":{"a":"part3.safetensors"}}`:    "part3.safetensors: file missing",
		`{"weight_map":{"z":"part1.safetensors"}}`:    "part1.safetensors: tensor z missing: is in this file",
		`{"weight_map":{"a":"../part1.safetensors"}}`: `file of a "../part1.safetensors": lies beside the index`,
		`{}`:     "weight_map missing",
		`{"wei`:  "file damaged",
		`[1, 2]`: "file damaged",
	} {
		put(t, dir, indexFile, text)
		_, err := Open(dir)
		oneLine(t, err, want)
	}
}

func TestFolder(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(filepath.Join(dir, "none"))
	oneLine(t, err, `is a folder with a config.json`)
	_, err = Open(dir)
	oneLine(t, err, "config.json: file missing: can be read (no such file or directory)")
	put(t, dir, "config.json", `{"_class_name":"M"`)
	_, err = Open(dir)
	oneLine(t, err, "config.json: file damaged")
	put(t, dir, "config.json", `null`)
	_, err = Open(dir)
	oneLine(t, err, "config.json: file null: is a JSON object")
	put(t, dir, "config.json", `{"_class_name":"M"}`)
	_, err = Open(dir)
	oneLine(t, err, "weights missing: is weights.safetensors, diffusion_pytorch_model.safetensors or")
	tensors(t, filepath.Join(dir, ownFile), "a")
	require.NoError(t, os.Truncate(filepath.Join(dir, ownFile), 30))
	_, err = Open(dir)
	oneLine(t, err, "the file is truncated")
}

func TestInputs(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "config.json", `{"_class_name":"M"}`)
	tensors(t, filepath.Join(dir, ownFile), "a")
	c, err := Open(dir)
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Inputs()
	oneLine(t, err, "inputs.safetensors: file missing")
	_, ok, err := c.InputsOf(1)
	require.NoError(t, err)
	assert.False(t, ok)
	tensors(t, filepath.Join(dir, "inputs.1.safetensors"), "x", "y")
	in, ok, err := c.InputsOf(1)
	require.NoError(t, err)
	assert.True(t, ok)
	assert.Equal(t, Arrays{"x": {[]int{1, 2}, []float32{0, 1}}, "y": {[]int{1, 2}, []float32{1, 1}}}, in)
	put(t, dir, "outputs.safetensors", "short")
	_, _, err = c.Outputs()
	oneLine(t, err, "outputs.safetensors: size 5 bytes")
}

func TestDTypeOfWeights(t *testing.T) {
	dir := t.TempDir()
	header := `{"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}`
	put(t, dir, ownFile, string(rune(len(header)))+"\x00\x00\x00\x00\x00\x00\x00"+header+"\x00\x00\x00\x00")
	w, err := OpenWeights(dir)
	require.NoError(t, err)
	defer w.Close()
	oneLine(t, w.Check("a", 1), "tensor a dtype I32: is BF16, F16 or F32")
}

func TestConfigGetters(t *testing.T) {
	const text = `{"n":3,"zero":0,"half":1.5,"word":"x","triple":[1,2,2],"pair":[1,2],"f":1e-6,"minus":-1,"flag":false,"nil":null}`
	parse := func() *Config {
		c, err := ParseConfig("config.json", []byte(text))
		require.NoError(t, err)
		return c
	}
	c := parse()
	assert.Equal(t, 3, c.Positive("n", 7))
	assert.Equal(t, 7, c.Positive("absent", 7))
	assert.Equal(t, 9, c.PositiveOr("nil", 7, 9))
	assert.Equal(t, [3]int{1, 2, 2}, c.Triple("triple", [3]int{}))
	assert.InDelta(t, 1e-6, c.Float("f", 0), 1e-20)
	assert.False(t, c.Bool("flag", true))
	assert.True(t, c.Bool("absent", true))
	c.Is("word", "x")
	c.Is("absent", "x")
	c.Null("nil", "")
	c.Null("absent", "")
	require.NoError(t, c.Err())

	for want, call := range map[string]func(*Config){
		`config.json: zero 0: is a whole number of at least 1 and at most 16777216`:                    func(c *Config) { c.Positive("zero", 1) },
		`config.json: half 1.5: is a whole number of at least 1 and at most 16777216`:                  func(c *Config) { c.Positive("half", 1) },
		`config.json: word "x": is a whole number of at least 1 and at most 16777216`:                  func(c *Config) { c.Positive("word", 1) },
		`config.json: nil null: is a whole number of at least 1 and at most 16777216`:                  func(c *Config) { c.Positive("nil", 1) },
		`config.json: pair [1,2]: is a list of three whole numbers of at least 1 and at most 16777216`: func(c *Config) { c.Triple("pair", [3]int{}) },
		`config.json: minus -1: is a number that is not negative`:                                      func(c *Config) { c.Float("minus", 1) },
		`config.json: n 3: is true or false`:                                                           func(c *Config) { c.Bool("n", true) },
		`config.json: word "x": is "y"`:                                                                func(c *Config) { c.Is("word", "y") },
		`config.json: nil null: is "y"`:                                                                func(c *Config) { c.Is("nil", "y") },
		`config.json: n 3: is null: no images`:                                                         func(c *Config) { c.Null("n", "no images") },
		`config.json: _class_name missing: is the name of a class`:                                     func(c *Config) { c.ClassName() },
	} {
		c := parse()
		call(c)
		c.Positive("absent", 1)
		oneLine(t, c.Err(), want)
	}
}
