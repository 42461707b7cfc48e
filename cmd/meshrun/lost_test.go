package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// When the mesh is lost every wait ends, a sleep too: virtual time stands still from then on.
func TestASleepEndsWhenTheMeshIsLost(t *testing.T) {
	const gather, sleep = `{"op":"all_gather_persistent_buffer","shape":[1,1,32,64],"dim":3,"mesh_axis":1,"out":"%s"}`, `{"op":"sleep","us":5000}`
	a, b := fmt.Sprintf(gather, "a"), fmt.Sprintf(gather, "b")
	for name, tt := range map[string]struct {
		more string
		code int
	}{
		"a device stops":            {`"faults":["device 0,2 stop at launch 1"],`, 5},
		"a device stops, timing":    {`"mode":"timing","faults":["device 0,2 stop at launch 1"],`, 5},
		"an operation hangs":        {`"faults":["op all_gather hang"],`, 5},
		"no progress":               {`"limits":{"no_progress_us":100},"faults":["device 0,2 delay 1s"],`, 5},
		"a hazard":                  {`"break":["one_bank ag[1]"],"skew_us":200,`, 4},
		"launches in another order": {`"faults":["device 0,2 swap launch 1 and 2"],`, 4},
	} {
		for order, streams := range map[string]string{
			"behind":  fmt.Sprintf(`{"name":"s","calls":[%s,%s,%s,%s]}`, a, b, sleep, sleep),
			"between": fmt.Sprintf(`{"name":"s","calls":[%s,%s]},{"name":"z","calls":[%s,%s]}`, a, b, sleep, sleep),
			"before":  fmt.Sprintf(`{"name":"z","calls":[%s,%s]},{"name":"s","calls":[%s,%s]}`, sleep, sleep, a, b),
		} {
			p := execute(fmt.Sprintf(`{"mesh":[1,4],%s"streams":[%s]}`, tt.more, streams))
			require.Equal(t, tt.code, p.code, "%s, %s: %s", name, order, p.stderr)
		}
	}
}

// Under hold a stream's results are listed as they were when it ended, whoever has got their memory since.
func TestResultsOfAStreamThatEndedFirst(t *testing.T) {
	for _, call := range []string{
		`"op":"all_gather_persistent_buffer","shape":[1,1,32,64],"dim":3,"mesh_axis":1`,
		`"op":"reduce_scatter_persistent_buffer","shape":[1,1,32,128],"dim":3,"mesh_axis":1`,
		`"op":"neighbor_pad_persistent_buffer","shape":[1,4,4,8],"layout":"row_major","dims":[2],"axes":[1],"pad_left":[1],"pad_right":[1]`,
	} {
		for _, wait := range []string{`{"op":"fence"}`, `{"op":"sleep","us":300}`} {
			p := execute(fmt.Sprintf(`{"mesh":[1,4],"streams":[{"name":"first","calls":[{%[1]s,"out":"a"}]},{"name":"then","calls":[%[2]s,{%[1]s,"out":"b"},{%[1]s,"out":"c"}]}]}`, call, wait))
			require.Equal(t, 0, p.code, p.stderr)
			l := readLog(t, p.stdout)
			for _, name := range []string{"a", "b", "c"} {
				require.Contains(t, l.Tensors, name, call)
			}
		}
	}
}

// What was over when the hazard came is over: its rows have their times and no error.
func TestRowsBeforeAHazard(t *testing.T) {
	const gather = `{"op":"all_gather","in":"x","dim":3,"mesh_axis":1}`
	p := execute(fmt.Sprintf(`{"mesh":[1,4],"faults":["device 0,3 swap launch 7 and 8"],"tensors":{"x":{"shape":[1,1,32,128],"fill":{"const":1}}},"calls":[%s{"op":"reduce_scatter","in":"x","dim":3,"mesh_axis":1}]}`,
		strings.Repeat(gather+",", 7)))
	require.Equal(t, 4, p.code, p.stderr)
	for i, row := range readLog(t, p.stdout).Rows[1:] {
		require.Equal(t, i >= 6, row.Error != "", "row %d: %s", i, row.Error)
		require.Equal(t, i < 6, row.Time != nil, "row %d", i)
	}
	require.Contains(t, p.stderr, "calls that this ended: calls[6] (stream main) all_gather, calls[7] (stream main) reduce_scatter")
}

// A5: a device that is late with the pools which the mesh makes when it opens is waited for too; without the fence behind them that is named.
func TestPoolsThatAreMadeLate(t *testing.T) {
	const text = `{"mesh":[2,4],%s"faults":["device 1,3 late allocation 50ms"],"calls":[{"op":"all_gather","shape":[1,1,32,64],"dim":3,"mesh_axis":1,"out":"y"}]}`
	p := execute(fmt.Sprintf(text, ""))
	require.Equal(t, 0, p.code, p.stderr)
	require.GreaterOrEqual(t, readLog(t, p.stdout).Rows[1].Time.Start, uint64(50_000_000))
	p = execute(fmt.Sprintf(text, `"break":["no_creation_fence"],`))
	require.Equal(t, 4, p.code, p.stderr)
	require.Contains(t, p.stderr, "hazard (not_fenced) at 0 ns: launch 1 (all_gather, stream main): names ag[1].bank0.0")
}

// A swap with a launch that never comes is no fault that came to nothing: it is why the device waits.
func TestASwapWithALaunchThatNeverComes(t *testing.T) {
	const text = `{"mesh":[1,4],"faults":[%q],"calls":[{"op":"all_gather","shape":[1,1,32,64],"dim":3,"mesh_axis":1},{"op":"all_gather","shape":[1,1,32,64],"dim":3,"mesh_axis":1}]}`
	p := execute(fmt.Sprintf(text, "device 0,2 swap launch 1 and 9"))
	require.Equal(t, 5, p.code, p.stderr)
	require.Contains(t, p.stderr, "device 0,2 never entered launch 1 (all_gather): a fault has it swap that with launch 9")
	require.NotContains(t, p.stdout, "idle_faults")
	p = execute(fmt.Sprintf(text, "op add hang"))
	require.Equal(t, 2, p.code, p.stderr)
	require.Contains(t, p.stderr, `"add" is no operation: its name is that of the calls in a row's effects`)
}
