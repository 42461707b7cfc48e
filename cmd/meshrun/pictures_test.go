package main

import (
	"bytes"
	"fmt"
	"image/gif"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	wanVAE   = "../../tests/testdata/golden/vae-wan-8x12"
	klVAE    = "../../tests/testdata/golden/vae-kl-12x16"
	pipeline = "../../tests/testdata/golden/pipeline-wan-4step"
)

// From prompt embeddings to frames in a folder, several requests at once.
func TestRunPipelineToFrames(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "frames")
	p := meshrunProgram("run", "../../examples/pipeline-wan.yaml", "--quiet", "--frames", dir)
	require.Equal(t, 0, p.code, p.stderr)
	require.Contains(t, p.stdout, "ok: pipeline-wan-4step on 2x2, 2 streams\n")
	require.Contains(t, p.stdout, " bytes over links per forward pass\n")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2*(9+1))
	for _, stream := range []string{"s0", "s1"} {
		picture, err := os.Open(filepath.Join(dir, stream+"-008.png"))
		require.NoError(t, err)
		img, err := png.Decode(picture)
		require.NoError(t, err)
		require.NoError(t, picture.Close())
		require.Equal(t, "96x64", fmt.Sprintf("%dx%d", img.Bounds().Dx(), img.Bounds().Dy()))
		text, err := os.ReadFile(filepath.Join(dir, stream+".gif"))
		require.NoError(t, err)
		animation, err := gif.DecodeAll(bytes.NewReader(text))
		require.NoError(t, err)
		require.Len(t, animation.Image, 9)
	}
}

// The decoders, on both paths of the halo: the same bytes over links.
func TestRunDecoders(t *testing.T) {
	for _, model := range []string{wanVAE, klVAE} {
		var bytes []string
		for _, halo := range []string{"full", "compact"} {
			p := meshrunProgram("run", "--model", model, "--mesh", "2x4", "--streams", "3", "--halo", halo, "--quiet")
			require.Equal(t, 0, p.code, p.stderr)
			require.Contains(t, p.stdout, "s2")
			lines := strings.Split(strings.TrimSpace(p.stdout), "\n")
			bytes = append(bytes, lines[len(lines)-1])
		}
		require.Contains(t, bytes[0], "bytes over links")
		require.Equal(t, bytes[0], bytes[1])
	}
}

// Another number of steps than the stored answer took: held against one device.
func TestRunPipelineWithOtherSteps(t *testing.T) {
	p := meshrunProgram("run", "--model", pipeline, "--steps", "1", "--mesh", "1x2", "--json", "--quiet")
	require.Equal(t, 0, p.code, p.stderr)
	r := runJSON(t, p)
	require.Equal(t, "1x1", r.Streams[0].Verify.Against)
}

// Bad input: one clear line each, exit code 2, nothing on standard output, and no picture.
func TestRunBadPictures(t *testing.T) {
	replaced := func(model, file, old, new string) string {
		dir := filepath.Join(t.TempDir(), filepath.Base(model))
		require.NoError(t, os.CopyFS(dir, os.DirFS(model)))
		path := filepath.Join(dir, file)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Contains(t, string(text), old)
		require.NoError(t, os.WriteFile(path, bytes.Replace(text, []byte(old), []byte(new), 1), 0o644))
		return dir
	}
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	frames := filepath.Join(t.TempDir(), "frames")
	for want, args := range map[string][]string{
		"norm_num_groups 7":                     {"--model", replaced(klVAE, "config.json", `"norm_num_groups": 8`, `"norm_num_groups": 7`)},
		"has a row and a column":                {"--model", wanVAE, "--mesh", "1x9"},
		"tensor decoder.conv_in.weight missing": {"--model", replaced(wanVAE, "weights.safetensors", `"decoder.conv_in.weight"`, `"decoder.conv_on.weight"`)},
		"tensor decoder.conv_in.weight shape [32 16 3 3 3]: has shape [64 16 3 3 3]":     {"--model", replaced(wanVAE, "config.json", `"base_dim": 8`, `"base_dim": 16`)},
		`_class_name "UniPCMultistepScheduler": is "FlowMatchEulerDiscreteScheduler"`:    {"--model", replaced(pipeline, "config.json", "FlowMatchEulerDiscreteScheduler", "UniPCMultistepScheduler")},
		"frames \"" + file + "/sub\": is a folder that can be written (not a directory)": {"--model", wanVAE, "--frames", file + "/sub"},
		"this model makes no pictures":                   {"--model", model, "--frames", frames},
		"is for runs that move data, not in mode timing": {"--model", wanVAE, "--mode", "timing", "--frames", frames},
		`--halo: halo "none": is full or compact`:        {"--model", wanVAE, "--halo", "none"},
	} {
		p := meshrunProgram(append([]string{"run", "--quiet"}, args...)...)
		require.Equal(t, 2, p.code, "%v: %s", args, p.stderr)
		require.Contains(t, p.stderr, want)
		require.Equal(t, 1, strings.Count(p.stderr, "\n"), p.stderr)
		require.Empty(t, p.stdout)
		require.NoDirExists(t, frames)
	}
}
