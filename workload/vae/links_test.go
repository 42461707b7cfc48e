package vae

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
)

// linkBytes is what has crossed the links of a mesh.
func linkBytes(t testing.TB, mesh *meshrun.Mesh) int64 {
	t.Helper()
	text, err := mesh.Report(context.Background())
	require.NoError(t, err)
	var report struct {
		Stats struct {
			Bytes int64 `json:"bytes_over_links"`
		}
	}
	require.NoError(t, json.Unmarshal(text, &report))
	return report.Stats.Bytes
}
