package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/cmd/meshrun/internal/casefile"
)

const conformance = "../../tests/testdata/conformance"

// The recorded behaviour of the reference manager: exec does the same, call by call. The rules of the comparison: the steps are the same; launches
// are the same, in order, in every recorded field; allocations of pools are the same set with the same spec; semaphores made and reset
// are the same; what is returned is the same. Nothing is used by a launch before a synchronize behind its creation.
func TestConformance(t *testing.T) {
	scenarios, err := filepath.Glob(filepath.Join(conformance, "*.scenario.json"))
	require.NoError(t, err)
	require.NotEmpty(t, scenarios)
	covered := map[string]bool{}
	for _, scenario := range scenarios {
		name := strings.TrimSuffix(filepath.Base(scenario), ".scenario.json")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			recorded, err := os.ReadFile(filepath.Join(conformance, name+".log.json"))
			require.NoError(t, err)
			p := meshrunProgram("exec", scenario)
			require.Equal(t, 0, p.code, p.stderr)
			require.Empty(t, compare(readLog(t, string(recorded)), readLog(t, p.stdout)))
		})
		text, err := os.ReadFile(scenario)
		require.NoError(t, err)
		for _, m := range opName.FindAllStringSubmatch(string(text), -1) {
			covered[m[1]] = true
		}
	}
	for _, op := range casefile.Ops() {
		if strings.HasPrefix(op, "get_") && !strings.Contains(op, "fsdp") && !strings.Contains(op, "credit") { // the recorded reference has no such pools
			require.True(t, covered[op], "%s is in no recorded case", op)
		}
	}
}

var opName = regexp.MustCompile(`"op": *"([a-z_]+)"`)

var launches = []string{"all_gather", "reduce_scatter", "neighbor_pad", "neighbor_pad_halo", "halo_scatter"}

func call(e map[string]any) string { return e["call"].(string) }

func launched(r row) []map[string]any {
	var out []map[string]any
	for _, e := range r.Effects {
		if slices.Contains(launches, call(e)) {
			out = append(out, e)
		}
	}
	return out
}

// named collects the effects of one call by the name of what they are about; fresh memory has none.
func named(r row, of, key string) map[string]map[string]any {
	out := map[string]map[string]any{}
	for _, e := range r.Effects {
		if call(e) == of && e[key] != "fresh" {
			out[e[key].(string)] = e
		}
	}
	return out
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// compare tells the differences.
func compare(want, got *log) (diffs []string) {
	differ := func(i int, format string, args ...any) {
		diffs = append(diffs, fmt.Sprintf("row %d %s: ", i, want.Rows[i].Step)+fmt.Sprintf(format, args...))
	}
	equal := func(i int, what string, w, g any) {
		if !reflect.DeepEqual(w, g) {
			differ(i, "%s: want %v, got %v", what, w, g)
		}
	}
	if len(want.Rows) != len(got.Rows) {
		return []string{fmt.Sprintf("%d rows, got %d", len(want.Rows), len(got.Rows))}
	}
	for i, w := range want.Rows {
		g := got.Rows[i]
		equal(i, "step", w.Step, g.Step)
		equal(i, "error", "", g.Error)
		wl, gl := launched(w), launched(g)
		if len(wl) != len(gl) {
			differ(i, "%d launches, got %d", len(wl), len(gl))
			continue
		}
		for j := range wl {
			for field, value := range wl[j] {
				equal(i, call(wl[j])+"."+field, value, gl[j][field])
			}
		}
		wa, ga := named(w, "allocate", "buf"), named(g, "allocate", "buf")
		equal(i, "allocations", sorted(wa), sorted(ga))
		for name := range wa {
			for _, field := range []string{"shape", "dtype", "layout", "memory"} {
				equal(i, name+"."+field, wa[name][field], ga[name][field])
			}
			if wa[name]["zeroed"] == true {
				equal(i, name+".zeroed", true, ga[name]["zeroed"])
			}
		}
		equal(i, "create_semaphore", sorted(named(w, "create_semaphore", "sem")), sorted(named(g, "create_semaphore", "sem")))
		reset := named(g, "reset_semaphore", "sem") // the reference forgets some pools
		for name := range named(w, "reset_semaphore", "sem") {
			equal(i, name, true, reset[name] != nil)
		}
		if w.Step == "device_to_host" { // the host's copy has no buffer
			equal(i, "shape", shapeOf(w.Returns), shapeOf(g.Returns))
			continue
		}
		equal(i, "returns", w.Returns, g.Returns)
	}
	if h, _ := got.Report["hazards"].([]any); len(h) > 0 {
		diffs = append(diffs, fmt.Sprintf("hazards: %v", h))
	}
	return append(diffs, unfenced(got)...)
}

func shapeOf(returns any) any {
	r, _ := returns.(map[string]any)
	return r["shape"]
}

var poolName = regexp.MustCompile(`^[a-z_]+[\[(]`)

// unfenced tells which launches name what has been made since the last synchronize.
func unfenced(l *log) (diffs []string) {
	fresh := map[string]bool{}
	for i, r := range l.Rows {
		for _, e := range r.Effects {
			switch call(e) {
			case "create_semaphore":
				fresh[e["sem"].(string)] = true
			case "allocate":
				fresh[e["buf"].(string)] = true
			case "synchronize":
				clear(fresh)
			default:
				for _, name := range namesIn(e) {
					if fresh[name] {
						diffs = append(diffs, fmt.Sprintf("row %d: %s uses %s before a synchronize", i, call(e), name))
					}
				}
			}
		}
	}
	return diffs
}

func namesIn(v any) []string {
	var out []string
	switch v := v.(type) {
	case string:
		if poolName.MatchString(v) {
			out = append(out, v)
		}
	case []any:
		for _, e := range v {
			out = append(out, namesIn(e)...)
		}
	case map[string]any:
		for _, e := range v {
			out = append(out, namesIn(e)...)
		}
	}
	return out
}

// The comparison itself finds what is wrong.
func TestConformanceComparisonSeesDifferences(t *testing.T) {
	p := meshrunProgram("exec", filepath.Join(conformance, "gathers1.scenario.json"))
	require.Equal(t, 0, p.code, p.stderr)
	recorded, err := os.ReadFile(filepath.Join(conformance, "gathers1.log.json"))
	require.NoError(t, err)
	for what, change := range map[string]func(*log){
		"a step":      func(l *log) { l.Rows[3].Step = "read" },
		"a bank":      func(l *log) { launched(l.Rows[1])[0]["output_buffer"] = "rs(other)" },
		"an error":    func(l *log) { l.Rows[2].Error = "failed" },
		"a return":    func(l *log) { l.Rows[5].Returns = nil },
		"a semaphore": func(l *log) { l.Rows[0].Effects = l.Rows[0].Effects[1:] },
		"no fences": func(l *log) {
			for i := range l.Rows {
				l.Rows[i].Effects = slices.DeleteFunc(l.Rows[i].Effects, func(e map[string]any) bool { return call(e) == "synchronize" })
			}
		},
	} {
		got := readLog(t, p.stdout)
		change(got)
		require.NotEmpty(t, compare(readLog(t, string(recorded)), got), what)
	}
}
