package main

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/cmd/meshrun/internal/casefile"
	"github.com/meshrun/meshrun/cmd/meshrun/internal/runfile"
	"github.com/meshrun/meshrun/messages"
)

const docs = "../../docs/"

func doc(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(docs + name)
	require.NoError(t, err)
	return string(text)
}

var (
	caseBlock    = regexp.MustCompile("(?s)```json case(?: exit (\\d+))?\n(.*?)```")
	consoleBlock = regexp.MustCompile("(?s)```console\n(.*?)```")
	yamlBlock    = regexp.MustCompile("(?s)```yaml\n(.*?)```")
)

// The cases in the documentation run, and end as it says.
func TestCasesInTheDocs(t *testing.T) {
	for _, name := range []string{"exec.md", "faults.md", "operations.md"} {
		blocks := caseBlock.FindAllStringSubmatch(doc(t, name), -1)
		require.NotEmpty(t, blocks)
		for _, b := range blocks {
			code, _ := strconv.Atoi(b[1])
			p := execute(b[2])
			require.Equal(t, code, p.code, "%s: %s\n%s", name, b[2], p.stderr)
		}
	}
}

// The example of a broken rule: the program ends with 4 and tells each hazard once, then the calls that it ended.
func TestExampleOfAHazard(t *testing.T) {
	p := meshrunProgram("exec", "../../examples/one-bank.json")
	require.Equal(t, 4, p.code, p.stderr)
	lines := strings.Split(strings.TrimSpace(p.stderr), "\n")
	last := len(lines) - 1
	require.Contains(t, lines[last], "calls that this ended: streams[0].calls[0] (stream main) all_gather_persistent_buffer")
	for _, line := range lines[:last] {
		require.Contains(t, line, "one-bank.json: hazard (semaphore_in_use) at ")
		require.Equal(t, 1, strings.Count(p.stderr, line))
	}
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	var quoted []string
	for line := range strings.Lines(string(readme)) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "> "); ok {
			quoted = append(quoted, text)
		}
	}
	_, text, _ := strings.Cut(lines[0], "one-bank.json: ")
	require.Equal(t, text, strings.Join(quoted, " "), "the README shows the first line")
}

// The command lines in the documentation run.
func TestCommandsInTheDocs(t *testing.T) {
	t.Chdir("../..")
	text, err := os.ReadFile("docs/run.md")
	require.NoError(t, err)
	for _, b := range consoleBlock.FindAllStringSubmatch(string(text), -1) {
		for _, line := range strings.Split(strings.TrimSpace(b[1]), "\n") {
			args, ok := strings.CutPrefix(line, "$ meshrun ")
			require.True(t, ok, line)
			p := meshrunProgram(strings.Fields(args)...)
			require.Equal(t, 0, p.code, "%s\n%s", line, p.stderr)
		}
	}
}

func TestRunFilesInTheDocs(t *testing.T) {
	blocks := yamlBlock.FindAllStringSubmatch(doc(t, "run.md"), -1)
	require.NotEmpty(t, blocks)
	presets, err := meshrun.Presets()
	require.NoError(t, err)
	for _, b := range blocks {
		settings, problems := runfile.Read("docs/example.yaml", []byte(b[1]))
		require.Empty(t, problems)
		_, problems = runfile.Resolve(settings, presets)
		require.Empty(t, problems)
	}
}

// Each operation over a mesh has a section that says what it draws and refuses, and a case of it.
func TestTheDocsDescribeEveryOperation(t *testing.T) {
	sections := regexp.MustCompile(`(?m)^## `).Split(doc(t, "operations.md"), -1)[1:]
	described := map[string]bool{}
	for _, s := range sections {
		name, _, _ := strings.Cut(s, "\n")
		described[name] = true
		for _, part := range []string{"\n- Draws: ", "\n- Refuses: ", "```json case"} {
			require.Contains(t, s, part, name)
		}
		blocks := caseBlock.FindAllStringSubmatch(s, -1)
		require.Contains(t, blocks[0][2], `"`+name, "the case is one of %s", name)
	}
	for _, kind := range []messages.OpKind{messages.OpAllGather, messages.OpReduceScatter, messages.OpNeighborPad, messages.OpNeighborPadHalo, messages.OpHaloScatter,
		messages.OpSliceReshard, messages.OpRingJointSDPA, messages.OpExpRingJointSDPA, messages.OpStridedAllGatherMatmul, messages.OpMatmulStridedReduceScatter,
		messages.OpFusedDistributedNorm, messages.OpNPConv3D, messages.OpPointToPoint} {
		require.True(t, described[kind.String()], kind)
	}
	require.True(t, described["device_to_host"] && described["reset_global_semaphores"])
}

// Whatever can be said is described.
func TestTheDocsNameEverything(t *testing.T) {
	exec, run := doc(t, "exec.md"), doc(t, "run.md")
	for _, op := range casefile.Ops() {
		require.Contains(t, exec, "`"+op+"`")
	}
	for _, k := range runfile.Keys {
		require.Contains(t, run, "| `"+k.Name+"` |")
	}
	help := meshrunProgram("run", "--help").stdout
	for _, k := range runfile.Keys {
		require.Contains(t, help, "--"+k.Name+" ")
	}
}
