package tests

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/tests/testdriver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestEffectsAreWhatTheDriverSees: the journal's effects and the list of a recording driver on the other side of the ABI are the same calls, in the
// same order, with the same numbers; only the names differ, and those map one to one onto handles.
func TestEffectsAreWhatTheDriverSees(t *testing.T) {
	ctx := context.Background()
	log := filepath.Join(t.TempDir(), "log")
	mesh, err := meshrun.Open(ctx, meshrun.Config{Driver: testdriver.Build(t), Mesh: meshrun.MeshShape{Rows: 2, Cols: 4}, NumLinks: 2, Policy: meshrun.Rotate,
		Record: true, Settings: []meshrun.Option{{Key: "log", Value: log}}})
	require.NoError(t, err)
	s, err := mesh.Stream("main")
	require.NoError(t, err)
	x, err := s.Zeros(ctx, meshrun.Spec{Shape: meshrun.ShapeOf(1, 640, 128), DType: meshrun.BFloat16})
	require.NoError(t, err)
	y, err := s.AllGather(ctx, x, meshrun.AllGather{Dim: -2, MeshAxis: 1, UsePersistentBuffer: true, UseHyperparams: true})
	require.NoError(t, err)
	_, err = s.Submit(ctx, meshrun.Call{Op: messages.GetSemaphores{Pool: messages.PoolAG, MeshAxis: 1}})
	require.NoError(t, err)
	_, err = s.AllGather(ctx, x, meshrun.AllGather{Dim: 2, MeshAxis: 0})
	require.NoError(t, err)
	_, err = s.ReduceScatter(ctx, y, meshrun.ReduceScatter{Dim: 1, MeshAxis: 1, UsePersistentBuffer: true})
	require.NoError(t, err)
	z, err := s.ReduceScatter(ctx, x, meshrun.ReduceScatter{Dim: 2, MeshAxis: 0})
	require.NoError(t, err)
	_, err = s.Add(ctx, z, z)
	require.NoError(t, err)
	require.NoError(t, s.Fence(ctx))
	journal := mesh.Journal()
	require.NoError(t, mesh.Close(ctx))

	var effects []messages.Effect
	for _, row := range journal {
		require.NoError(t, row.Err)
		effects = append(effects, row.Effects...)
	}
	names := map[uint64]string{} // handle -> name
	handle := func(h any, name any) {
		if h == 0.0 {
			assert.Nil(t, name)
			return
		}
		n, ok := name.(string)
		if !ok {
			return // fresh memory has no name
		}
		key := uint64(h.(float64))
		if known := names[key]; known != "" {
			assert.Equal(t, known, n)
		}
		names[key] = n
	}
	next := func(calls ...string) messages.Effect {
		for len(effects) > 0 {
			e := effects[0]
			effects = effects[1:]
			for _, c := range calls {
				if e.Call == c {
					return e
				}
			}
		}
		t.Fatalf("the journal ends before %v", calls)
		return messages.Effect{}
	}
	file, err := os.Open(log)
	require.NoError(t, err)
	defer file.Close()
	launches := 0
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var got map[string]any
		require.NoError(t, json.Unmarshal(lines.Bytes(), &got))
		switch got["call"] {
		case "semaphores_create":
			for _, h := range got["semaphores"].([]any) {
				handle(h, next("create_semaphore").Get("sem"))
			}
		case "tensor_alloc":
			if launches > 0 || len(names) == 60 && got["flags"] == 0.0 { // not the input, which no pool owns
				e := next("allocate")
				handle(got["handle"], e.Get("buf"))
				shape := e.Get("shape").(messages.Shape)
				assert.EqualValues(t, shape.Rank(), got["rank"])
				for i := range shape.Rank() {
					assert.EqualValues(t, shape.Dim(i), got["dims"].([]any)[i])
				}
			}
		case "enqueue":
			launches++
			assert.EqualValues(t, launches, got["launch"])
			e := next("all_gather", "reduce_scatter", "add")
			if e.Call == "add" {
				continue
			}
			for i, name := range e.Get("semaphores").([]any) {
				handle(got["semaphores"].([]any)[i], name)
			}
			handle(got["barrier"], e.Get("barrier"))
			if e.Get("output_buffer") != nil {
				handle(got["output"], e.Get("output_buffer"))
			}
			assert.EqualValues(t, e.Get("dim"), got["dim"])
			assert.EqualValues(t, e.Get("axis"), got["axis"])
			assert.EqualValues(t, e.Get("links"), got["num_links"])
			hyper := e.Get("hyperparams").(map[string]uint32)
			if len(hyper) > 0 {
				assert.EqualValues(t, 7, got["present"])
				for k, v := range hyper {
					assert.EqualValues(t, v, got[k])
				}
			}
		}
	}
	assert.Equal(t, 5, launches)
	seen := map[string]bool{}
	for _, n := range names {
		assert.False(t, seen[n], "two handles of one name %s", n)
		seen[n] = true
	}
	assert.Greater(t, len(names), 52)
}
