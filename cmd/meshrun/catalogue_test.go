package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A denoising step of a model with real dimensions on a galaxy of 32, with nothing but its name.
func TestRunCatalogue(t *testing.T) {
	args := []string{"run", "--quiet", "--model", "wan2.2-14b-720p", "--preset", "bh-galaxy-4x8", "--tp", "4@0", "--sp", "8@1", "--topology", "ring",
		"--mode", "timing", "--steps", "1"}
	p := meshrunProgram(append(args, "--json")...)
	require.Equal(t, 0, p.code, p.stderr)
	var r runResult
	require.NoError(t, json.Unmarshal([]byte(p.stdout), &r))
	require.True(t, r.OK)
	require.Len(t, r.Streams, 1)
	s := r.Streams[0]
	t.Logf("%d operations, %.0f ms virtual, %.0f ms", s.Operations, s.VirtualMS, s.WallMS)
	require.Less(t, s.WallMS, 10_000.0)
	// Published: 142 s for 40 steps, 3.6 s each, on this machine. The model runs unfused here and on one link of two.
	require.InDelta(t, 3560, s.VirtualMS, 1000)

	p = meshrunProgram(args...)
	require.Equal(t, 0, p.code, p.stderr)
	for _, word := range []string{"ok: wan2.2-14b-720p on 4x8, 1 stream", "operation", "ring_joint_sdpa", "all_gather"} {
		require.Contains(t, p.stdout, word)
	}
}

func TestRunUnknownModel(t *testing.T) {
	for args, want := range map[string]string{
		"--model wan2.2-14b --mode timing": `model: folder "wan2.2-14b": is a folder with a config.json and weights, or a name of the catalogue: wan2.2-14b-720p`,
		"--model wan2.2-14b-720p":          `model: wan2.2-14b-720p mode "functional": is timing: models of the catalogue have no weights`,
	} {
		p := meshrunProgram(append([]string{"run", "--quiet"}, strings.Fields(args)...)...)
		require.Equal(t, 2, p.code)
		require.Empty(t, p.stdout)
		require.Equal(t, 1, strings.Count(strings.TrimSpace(p.stderr), "\n")+1, p.stderr)
		require.Contains(t, p.stderr, want)
	}
}
