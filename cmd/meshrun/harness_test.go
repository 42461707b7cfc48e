package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/meshrun/meshrun/cmd/meshrun/internal/cli"
	"github.com/meshrun/meshrun/workload"
)

var update = flag.Bool("update", false, "write the golden files anew")

// asProgram makes the test binary behave as meshrun itself: for tests that need a process.
const asProgram = "MESHRUN_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// program is one run of the command line, in-process.
type program struct {
	code           int
	stdout, stderr string
}

// state is what the program gets in a test: nothing but its arguments.
func state(args ...string) (*cli.State, *bytes.Buffer, *bytes.Buffer) {
	var stdout, stderr bytes.Buffer
	return &cli.State{Ctx: context.Background(), Args: args, Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr,
		Getenv: func(string) string { return "" }, ReadFile: os.ReadFile, RunModel: workload.Run}, &stdout, &stderr
}

func meshrunProgram(args ...string) program {
	s, stdout, stderr := state(args...)
	code := cli.Main(s)
	return program{code, stdout.String(), stderr.String()}
}

// execute runs a case that is given as text.
func execute(text string) program {
	s, stdout, stderr := state("exec", "-")
	s.Stdin = strings.NewReader(text)
	code := cli.Main(s)
	return program{code, stdout.String(), stderr.String()}
}

// log is the output of exec, and a recorded log.
type log struct {
	Schema  int                  `json:"schema"`
	Rows    []row                `json:"rows"`
	Tensors map[string]logTensor `json:"tensors"`
	Report  map[string]any       `json:"report"`
}

type row struct {
	Step    string           `json:"step"`
	Stream  string           `json:"stream"`
	Effects []map[string]any `json:"effects"`
	Returns any              `json:"returns"`
	Time    *struct {
		Start uint64 `json:"start_ns"`
		End   uint64 `json:"end_ns"`
	} `json:"time"`
	Error string `json:"error"`
}

type logTensor struct {
	Shape   []int  `json:"shape"`
	DType   string `json:"dtype"`
	Layout  string `json:"layout"`
	Devices []struct {
		At     [2]int `json:"at"`
		Values []any  `json:"values"`
		SHA256 string `json:"sha256"`
	} `json:"devices"`
}

func readLog(t *testing.T, text string) *log {
	t.Helper()
	var l log
	require.NoError(t, json.Unmarshal([]byte(text), &l), text)
	return &l
}

// ok runs a case that must succeed.
func ok(t *testing.T, text string) *log {
	t.Helper()
	p := execute(text)
	require.Equal(t, 0, p.code, p.stderr)
	require.Empty(t, p.stderr)
	return readLog(t, p.stdout)
}

// steps are the rows behind the first, as "stream step".
func (l *log) steps() []string {
	var out []string
	for _, r := range l.Rows[1:] {
		out = append(out, r.Stream+" "+r.Step)
	}
	return out
}

// find is the only row of a step.
func (l *log) find(t *testing.T, step string) row {
	t.Helper()
	var found []row
	for _, r := range l.Rows {
		if r.Step == step {
			found = append(found, r)
		}
	}
	require.Len(t, found, 1, step)
	return found[0]
}

// values are the elements of a tensor on a device.
func (l *log) values(t *testing.T, name string, r, c int) []float64 {
	t.Helper()
	tensor, ok := l.Tensors[name]
	require.True(t, ok, "tensor %s is not listed", name)
	for _, d := range tensor.Devices {
		if d.At == [2]int{r, c} {
			out := make([]float64, len(d.Values))
			for i, v := range d.Values {
				f, isNumber := v.(float64)
				require.True(t, isNumber, "%s[%d] is %v", name, i, v)
				out[i] = f
			}
			return out
		}
	}
	require.Fail(t, "no such device")
	return nil
}

// golden holds a text against testdata/NAME.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "run the test with -update to make it")
	require.Equal(t, string(want), got)
}
