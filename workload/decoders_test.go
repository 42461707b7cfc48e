package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/nn"
)

func stored(name string) string { return filepath.Join(filepath.Dir(golden), name) }

// picture is a run of a decoder or a pipeline on 2x4 devices.
func picture(name string, streams int) Config {
	c := sharded(streams)
	c.Model = stored(name)
	return c
}

// TestDecodersInStreams: three at once, each with its own latent, verified, and the bytes over links those of three decodes.
func TestDecodersInStreams(t *testing.T) {
	for _, name := range []string{"vae-wan-8x12", "vae-kl-12x16"} {
		var alone int64
		for _, halo := range []nn.Halo{nn.HaloFull, nn.HaloCompact} {
			c := picture(name, 1)
			c.Halo, c.DType = halo, meshrun.Float32
			r := run(t, c)
			assert.True(t, r.OK)
			assert.Positive(t, r.LinkBytes)
			if alone != 0 {
				assert.Equal(t, alone, r.LinkBytes, "the halo's path")
			}
			alone = r.LinkBytes
			c.Streams = 3
			three := run(t, c)
			assert.True(t, three.OK)
			assert.Equal(t, 3*alone, three.LinkBytes)
			assert.Equal(t, 3, three.Forwards)
			assert.Equal(t, r.Streams[0].Output, three.Streams[0].Output, "alone and among three")
			assert.NotEqual(t, three.Streams[1].Output, three.Streams[2].Output)
		}
	}
}

// TestUnevenDecodersInStreams: on a mesh that divides neither rows nor columns.
func TestUnevenDecodersInStreams(t *testing.T) {
	for i, name := range []string{"vae-wan-8x12", "vae-kl-12x16", "pipeline-wan-4step"} {
		c := Config{Model: stored(name), Mesh: meshrun.MeshShape{Rows: 5, Cols: 3}, TP: Factor{Size: 3, Axis: 1}, SP: Factor{Size: 5}, Streams: 3}
		if name == "pipeline-wan-4step" { // its transformer has heads for four
			c.Mesh, c.TP, c.SP = meshrun.MeshShape{Rows: 5, Cols: 2}, Factor{Size: 2, Axis: 1}, Factor{Size: 5}
		}
		c.Halo = []nn.Halo{nn.HaloFull, nn.HaloCompact}[i%2]
		assert.True(t, run(t, c).OK, name)
	}
}

// TestPipelineInStreams: every request comes to the frames that it comes to alone.
func TestPipelineInStreams(t *testing.T) {
	c := picture("pipeline-wan-4step", 2)
	c.Frames = t.TempDir()
	r := run(t, c)
	assert.True(t, r.OK)
	assert.Equal(t, "stored", r.Streams[0].Verify.Against)
	assert.Equal(t, run(t, picture("pipeline-wan-4step", 1)).Streams[0].Output, r.Streams[0].Output)
	files, err := filepath.Glob(filepath.Join(c.Frames, "*"))
	require.NoError(t, err)
	assert.Len(t, files, 2*10)
	text, err := json.Marshal(r)
	require.NoError(t, err)
	assert.Contains(t, string(text), fmt.Sprintf(`"link_bytes":%d`, r.LinkBytes))
}

// TestStepsOfAPipeline: another number than the stored answer took.
func TestStepsOfAPipeline(t *testing.T) {
	c := picture("pipeline-wan-4step", 1)
	c.Steps = 2
	r := run(t, c)
	assert.True(t, r.OK)
	assert.Equal(t, "1x1", r.Streams[0].Verify.Against)
	c.Steps = 4
	assert.Equal(t, "stored", run(t, c).Streams[0].Verify.Against)
}

// TestTimingOfDecoders: the same operations where no data move, also on a large machine.
func TestTimingOfDecoders(t *testing.T) {
	for _, name := range []string{"vae-wan-8x12", "vae-kl-12x16", "pipeline-wan-4step"} {
		c := picture(name, 1)
		functional := run(t, c)
		c.Mode = meshrun.Timing
		timing := run(t, c)
		assert.Equal(t, functional.Streams[0].Operations, timing.Streams[0].Operations)
		assert.Positive(t, timing.Streams[0].VirtualMS)
	}
	c := Config{Model: stored("vae-wan-8x12"), Preset: "bh-galaxy-4x8", TP: Factor{Size: 4}, SP: Factor{Size: 8, Axis: 1}, Streams: 1, Mode: meshrun.Timing}
	assert.True(t, run(t, c).OK)
}

// TestCancelOfDecoders: whatever a decoder is at, the run ends within a second, and no picture is written.
func TestCancelOfDecoders(t *testing.T) {
	for i, name := range []string{"vae-wan-8x12", "vae-kl-12x16", "pipeline-wan-4step"} {
		for _, after := range []time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond} {
			c := picture(name, 2)
			c.Model, c.Halo = stored(name), []nn.Halo{nn.HaloFull, nn.HaloCompact}[i%2]
			c.Frames = t.TempDir()
			ctx, cancel := context.WithCancel(context.Background())
			timer := time.AfterFunc(after, cancel)
			began := time.Now()
			_, err := Run(ctx, c, nil)
			timer.Stop()
			cancel()
			if err == nil {
				continue // it was done before
			}
			require.ErrorIs(t, err, context.Canceled, "%s after %v", name, after)
			assert.Less(t, time.Since(began)-after, time.Second)
			entries, err := os.ReadDir(c.Frames)
			require.NoError(t, err)
			assert.Empty(t, entries)
		}
	}
}

// TestFailuresOfDecoders: an operation that fails ends its stream with its error, wherever it is.
func TestFailuresOfDecoders(t *testing.T) {
	for _, name := range []string{"vae-wan-8x12", "vae-kl-12x16"} {
		c := picture(name, 1)
		require.NoError(t, c.normalize())
		j, err := newJob(c, nil)
		require.NoError(t, err)
		defer j.checkpoint.Close()
		ctx := context.Background()
		s, err := j.openSession(ctx, j.meshConfig(), j.layout, nil)
		require.NoError(t, err)
		stream, err := s.mesh.Stream("s")
		require.NoError(t, err)
		for n := 1; n < 150; n += 13 {
			ended, end := context.WithCancel(ctx)
			g := nn.NewGraph(ended, stream, s.run)
			g.OnOperation = func(done int) {
				if done == n {
					end()
				}
			}
			s.network.Forward(g, j.inputs[0])
			assert.ErrorIs(t, g.Close(), context.Canceled, "%s, operation %d", name, n)
			assert.Zero(t, g.Live())
			end()
		}
		g := nn.NewGraph(ctx, stream, s.run)
		out := s.network.Forward(g, j.inputs[0])
		require.NoError(t, g.Close())
		v := j.tolerance.verify(out.Values, j.stored, "stored")
		assert.True(t, v.OK, "and the next decode is right")
		stream.Close()
		require.NoError(t, s.close(ctx, true))
	}
}

// TestFramesOfOthers: a transformer makes no pictures.
func TestFramesOfOthers(t *testing.T) {
	c := small()
	c.Frames = filepath.Join(t.TempDir(), "frames")
	_, err := Run(context.Background(), c, nil)
	require.ErrorIs(t, err, messages.ErrInvalid)
	require.ErrorContains(t, err, "this model makes no pictures")
	require.NoDirExists(t, c.Frames)
	c = picture("vae-kl-12x16", 1)
	c.Halo = "none"
	_, err = Run(context.Background(), c, nil)
	require.ErrorContains(t, err, `halo "none": is full or compact`)
}

// TestPipelineOfFolders: each part in a folder of its own, as diffusers has it.
func TestPipelineOfFolders(t *testing.T) {
	from, dir := stored("pipeline-wan-4step"), t.TempDir()
	text, err := os.ReadFile(filepath.Join(from, "config.json"))
	require.NoError(t, err)
	var parts map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(text, &parts))
	weights, err := checkpoint.ReadArrays(filepath.Join(from, "weights.safetensors"))
	require.NoError(t, err)
	for part, config := range map[string]string{"transformer": "config.json", "vae": "config.json", "scheduler": "scheduler_config.json"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, part), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, part, config), parts[part], 0o644))
		own := checkpoint.Arrays{}
		for name, a := range weights {
			if rest, ok := strings.CutPrefix(name, part+"."); ok {
				own[rest] = a
			}
		}
		if len(own) > 0 {
			writeArrays(t, filepath.Join(dir, part, "diffusion_pytorch_model.safetensors"), own)
		}
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model_index.json"), []byte(`{"_class_name":"WanPipeline"}`), 0o644))
	for _, file := range []string{"inputs.safetensors", "outputs.safetensors"} {
		require.NoError(t, os.Symlink(filepath.Join(must(filepath.Abs(from)), file), filepath.Join(dir, file)))
	}
	c := picture("", 1)
	c.Model = dir
	assert.Equal(t, run(t, picture("pipeline-wan-4step", 1)).Streams[0].Output, run(t, c).Streams[0].Output)
}

func must(path string, err error) string {
	if err != nil {
		panic(err)
	}
	return path
}
