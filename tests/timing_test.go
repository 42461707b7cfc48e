package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
)

var update = flag.Bool("update", false, "write the tables of docs/timing.md anew")

// timingTable is testdata/timing.json: what was measured on machines, as the sources give it.
type timingTable struct {
	Groups []struct {
		Title, About     string
		Preset, Topology string
		Links            int
		Within           float64 // the bar; 0: reported only
		Rows             []timingRow
	}
}

type timingRow struct {
	Op              string
	DType           string
	Dim, Axis       int
	Persistent      bool
	Hyperparameters bool
	In              [][]int
	End             []int   // of a slice
	MeasuredUS      float64 `json:"measured_us"`
	Within          *float64
	Note            string
}

// TestTiming runs every measured operation on the emulated machine, in timing mode, and holds its virtual time against the measured one. The
// tables of docs/timing.md must be what it finds: run it with -update to write them.
func TestTiming(t *testing.T) {
	text, err := os.ReadFile("testdata/timing.json")
	require.NoError(t, err)
	var table timingTable
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&table))

	var doc strings.Builder
	for _, g := range table.Groups {
		fmt.Fprintf(&doc, "### %s\n\n%s\n\n| operation | per device | measured us | predicted us | off by | bar | |\n|---|---|---|---|---|---|---|\n", g.Title, g.About)
		for _, row := range g.Rows {
			within := g.Within
			if row.Within != nil {
				within = *row.Within
			}
			us := predict(t, meshrun.Config{Preset: g.Preset, NumLinks: g.Links, Topology: topologyOf(g.Topology)}, row)
			off, bar := us/row.MeasuredUS-1, ""
			if within > 0 {
				bar = fmt.Sprintf("%.0f %%", within*100)
				require.LessOrEqual(t, math.Abs(off), within, "%s: %s %v: measured %g us, predicted %.1f", g.Title, row.Op, row.In, row.MeasuredUS, us)
			}
			fmt.Fprintf(&doc, "| `%s`%s | %s | %.4g | %.4g | %+.1f %% | %s | %s |\n", row.Op, along(row), shapes(row), row.MeasuredUS, us, off*100, bar, row.Note)
		}
		doc.WriteString("\n")
	}
	keepTables(t, "../docs/timing.md", doc.String())
}

func topologyOf(name string) meshrun.Topology {
	if name == "ring" {
		return meshrun.Ring
	}
	return meshrun.Linear
}

// predict is the virtual time of one operation, from the first device's start to the last one's end.
func predict(t *testing.T, c meshrun.Config, row timingRow) float64 {
	t.Helper()
	ctx := context.Background()
	c.Mode, c.Record, c.Lockstep = meshrun.Timing, true, true
	mesh, err := meshrun.Open(ctx, c)
	require.NoError(t, err)
	defer mesh.Close(ctx)
	s, err := mesh.Stream("main")
	require.NoError(t, err)
	defer s.Close()

	dtype := meshrun.BFloat16
	if row.DType == "float32" {
		dtype = meshrun.Float32
	}
	var in []*meshrun.Tensor
	for _, dims := range row.In {
		x, err := s.Zeros(ctx, meshrun.Spec{Shape: meshrun.ShapeOf(dims...), DType: dtype, Layout: meshrun.Tile})
		require.NoError(t, err)
		in = append(in, x)
	}
	y, err := launch(ctx, s, row, in)
	require.NoError(t, err)
	require.NoError(t, y.Wait(ctx))
	require.NoError(t, s.Fence(ctx))
	for _, r := range slices.Backward(mesh.Journal()) {
		if r.Timed && r.EndNS > r.StartNS {
			return float64(r.EndNS-r.StartNS) / 1000
		}
	}
	t.Fatalf("%s has no time", row.Op)
	return 0
}

func launch(ctx context.Context, s *meshrun.Stream, row timingRow, in []*meshrun.Tensor) (*meshrun.Tensor, error) {
	switch row.Op {
	case "all_gather":
		return s.AllGather(ctx, in[0], meshrun.AllGather{Dim: row.Dim, MeshAxis: row.Axis, UsePersistentBuffer: row.Persistent, UseHyperparams: row.Hyperparameters})
	case "reduce_scatter":
		return s.ReduceScatter(ctx, in[0], meshrun.ReduceScatter{Dim: row.Dim, MeshAxis: row.Axis, UsePersistentBuffer: row.Persistent, DriverHyperparams: !row.Hyperparameters})
	case "matmul":
		return s.Matmul(ctx, in[0], in[1], nil, meshrun.Matmul{})
	case "rms_norm":
		return s.Norm(ctx, in[0], nil, nil, meshrun.Norm{RMS: true, Epsilon: 1e-6})
	case "fused_rms_norm":
		return s.FusedDistributedNorm(ctx, in[0], nil, nil, nil, nil, meshrun.FusedDistributedNorm{RMS: true, Epsilon: 1e-6, MeshAxis: row.Axis})
	case "rope":
		return s.Rope(ctx, in[0], in[1], in[2], meshrun.Rope{})
	case "slice":
		return s.Slice(ctx, in[0], make([]int, len(row.End)), row.End)
	case "concat":
		return s.Concat(ctx, row.Dim, in...)
	case "permute":
		return s.Permute(ctx, in[0], 0, 2, 1, 3)
	case "ring_joint_sdpa":
		out, _, err := s.RingJointSDPA(ctx, in[0], in[0], in[0], nil, nil, nil, meshrun.RingJointSDPA{MeshAxis: row.Axis})
		return out, err
	}
	return nil, fmt.Errorf("no operation %q", row.Op)
}

func along(row timingRow) string {
	switch row.Op {
	case "all_gather", "reduce_scatter", "concat":
		return fmt.Sprintf(" dim %d", row.Dim)
	}
	return ""
}

// shapes names what goes in, without leading ones.
func shapes(row timingRow) string {
	var all []string
	for _, dims := range row.In {
		for len(dims) > 2 && dims[0] == 1 {
			dims = dims[1:]
		}
		all = append(all, strings.Trim(strings.ReplaceAll(fmt.Sprint(dims), " ", "x"), "[]"))
	}
	if row.End != nil {
		all = append(all, fmt.Sprintf("to %d", row.End[len(row.End)-1]))
	}
	if row.DType != "" {
		all = append(all, row.DType)
	}
	return strings.Join(all, ", ")
}

// keepTables holds what stands between the marks of a page against the tables, or writes them there.
func keepTables(t *testing.T, file, tables string) {
	t.Helper()
	const from, to = "<!-- tables: go test ./tests -run TestTiming -update -->\n", "<!-- end of tables -->"
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(page), from)
	require.True(t, ok, "%s has no %q", file, from)
	have, after, ok := strings.Cut(rest, to)
	require.True(t, ok, "%s has no %q", file, to)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(before+from+"\n"+tables+to+after), 0o644))
		return
	}
	require.Equal(t, "\n"+tables, have, "the tables of %s: write them anew with -update", file)
}
