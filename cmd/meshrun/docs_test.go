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
	for _, name := range []string{"exec.md", "faults.md"} {
		blocks := caseBlock.FindAllStringSubmatch(doc(t, name), -1)
		require.NotEmpty(t, blocks)
		for _, b := range blocks {
			code, _ := strconv.Atoi(b[1])
			p := execute(b[2])
			require.Equal(t, code, p.code, "%s: %s\n%s", name, b[2], p.stderr)
		}
	}
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
