package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/axis"
	"github.com/meshrun/meshrun/cmd/meshrun/internal/casefile"
	"github.com/meshrun/meshrun/cmd/meshrun/internal/execute"
)

func newExec(s *State) *cobra.Command {
	var options execute.Options
	var hook string
	c := &cobra.Command{
		Use:   "exec CASE.json",
		Short: "Carries out a case file on an emulated mesh and prints what happened as JSON",
		Long: `Carries out a case file on an emulated mesh, in virtual time, and prints what happened as JSON: a row for each call with what it
did, the tensors at the end, the mesh's report. The same case prints the same bytes. "-" reads the case from standard input.

The format is described in docs/exec.md.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			name, data, err := s.input(args[0])
			if err != nil {
				return err
			}
			machines, err := machines()
			if err != nil {
				return err
			}
			parsed, err := casefile.Parse(data, machines)
			if err != nil {
				return inFile(name, err)
			}
			result, err := execute.Run(c.Context(), parsed, options)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if err := result.WriteJSON(s.Stdout); err != nil {
				return fmt.Errorf("standard output: %w", err)
			}
			if err := result.Err(); err != nil {
				s.onHang(c.Context(), hook, result.Report, err)
				return inFile(name, err)
			}
			return nil
		},
	}
	flags := c.Flags()
	flags.BoolVar(&options.Devices, "devices", false, "rows tell the times of each device")
	hookFlag(flags, &hook)
	return c
}

// input reads a file, or standard input for "-".
func (s *State) input(path string) (name string, data []byte, err error) {
	if path == "-" {
		data, err = io.ReadAll(s.Stdin)
		return "standard input", data, err
	}
	data, err = s.ReadFile(path)
	var p *fs.PathError
	if errors.As(err, &p) {
		err = usage(fmt.Errorf("%s: %w", path, p.Err))
	}
	return path, data, err
}

// machines are the presets.
func machines() (map[string]axis.Machine, error) {
	presets, err := meshrun.Presets()
	if err != nil {
		return nil, err
	}
	m := map[string]axis.Machine{}
	for _, p := range presets {
		m[p.Name] = p.Machine()
	}
	return m, nil
}

// inFile puts the name of the file in front of each line of an error.
func inFile(name string, err error) error { return &fileError{name, err} }

type fileError struct {
	name string
	err  error
}

func (e *fileError) Error() string {
	lines := strings.Split(e.err.Error(), "\n")
	for i, l := range lines {
		sep := ": "
		if l != "" && l[0] >= '0' && l[0] <= '9' {
			sep = ":" // a line and column follow
		}
		lines[i] = e.name + sep + l
	}
	return strings.Join(lines, "\n")
}

func (e *fileError) Unwrap() error { return e.err }
