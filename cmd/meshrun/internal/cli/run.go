package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/cmd/meshrun/internal/exit"
	"github.com/meshrun/meshrun/cmd/meshrun/internal/runfile"
	"github.com/meshrun/meshrun/workload"
)

func newRun(s *State) *cobra.Command {
	var asJSON, quiet bool
	var hook string
	c := &cobra.Command{
		Use:   "run [FILE.yaml]",
		Short: "Runs a model on a mesh, many streams at once, and checks what they give",
		Long: `Runs a model on an emulated mesh, many streams at once, each with its own input, and holds every output against what is expected: the
stored answer, or the same model on one device. Exits with 3 when one differs.

A run is told by a YAML file, by flags, or by both: every key of a file is a flag of the same name, which overrides it. Keys and defaults
are described in docs/run.md.`,
		Example: `  meshrun run examples/wan-tiny.yaml
  meshrun run examples/wan-tiny.yaml --mesh 2x2 --tp 2@1 --sp 2@0 --streams 8
  meshrun run --model DIR --json`,
		Args: cobra.MaximumNArgs(1),
	}
	flags := c.Flags()
	flags.SortFlags = false
	for _, k := range runfile.Keys {
		flags.Var(&setting{kind: k.Value}, k.Name, k.Usage)
	}
	flags.BoolVar(&asJSON, "json", false, "print the result as one JSON object")
	flags.BoolVar(&quiet, "quiet", false, "show no progress")
	hookFlag(flags, &hook)
	flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "-", "_"))
	})
	c.RunE = func(c *cobra.Command, args []string) error {
		cfg, err := s.runConfig(flags, args)
		if err != nil {
			return err
		}
		return s.runModel(c.Context(), cfg, asJSON, quiet, hook)
	}
	return c
}

// setting is a flag that keeps its text; package runfile reads it.
type setting struct{ text, kind string }

func (s *setting) String() string     { return s.text }
func (s *setting) Set(v string) error { s.text = v; return nil }
func (s *setting) Type() string       { return s.kind }

// runConfig reads the file and the flags.
func (s *State) runConfig(flags *pflag.FlagSet, args []string) (workload.Config, error) {
	var file runfile.Settings
	var problems runfile.Problems
	switch {
	case len(args) == 1:
		name, data, err := s.input(args[0])
		if err != nil {
			return workload.Config{}, err
		}
		file, problems = runfile.Read(name, data)
		if file == nil {
			return workload.Config{}, problems
		}
	case !flags.Changed("model"):
		return workload.Config{}, usage(fmt.Errorf("run needs a file, or --model"))
	}
	given := runfile.Settings{}
	flags.Visit(func(f *pflag.Flag) {
		if v, ok := f.Value.(*setting); ok {
			given[f.Name] = runfile.Setting{Text: v.text, Where: "--" + f.Name}
		}
	})
	all, wrong := runfile.Override(file, given)
	problems = append(problems, wrong...)
	presets, err := meshrun.Presets()
	if err != nil {
		return workload.Config{}, err
	}
	cfg, wrong := runfile.Resolve(all, presets)
	if problems = append(problems, wrong...); len(problems) > 0 {
		return cfg, problems
	}
	return cfg, nil
}

// runModel runs the model and shows how it went.
func (s *State) runModel(ctx context.Context, cfg workload.Config, asJSON, quiet bool, hook string) error {
	progress := s.newProgress(quiet)
	result, err := s.RunModel(ctx, cfg, progress.update)
	progress.end()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err = verdict(result, err)
	if result == nil {
		result = &workload.Result{Model: cfg.Model, Mesh: meshName(cfg)}
	}
	var shown error
	if asJSON {
		shown = writeResultJSON(s.Stdout, result, err)
	} else if len(result.Streams) > 0 {
		shown = writeSummary(s, result, err)
		writeTimes(s, cfg.Mode, result)
	}
	s.onHang(ctx, hook, map[string]any{"hazards": result.Hazards, "hang": result.Hang, "stats": result.Stats}, err)
	if shown != nil {
		return fmt.Errorf("standard output: %w", shown)
	}
	return err
}

func meshName(cfg workload.Config) string {
	if cfg.Preset != "" {
		return cfg.Preset
	}
	return cfg.Mesh.String()
}

// verdict adds to a run's error what its result says: hazards, a hang, outputs that differ.
func verdict(r *workload.Result, err error) error {
	if r == nil {
		return err
	}
	all := failures{}
	if err != nil {
		all = append(all, err)
	}
	if r.Hang != nil {
		all = append(all, &exit.Seen{Kind: exit.ErrHang, Text: textOf(r.Hang)})
	}
	for _, h := range r.Hazards {
		all = append(all, &exit.Seen{Kind: exit.ErrHazard, Text: textOf(h)})
	}
	for _, stream := range r.Streams {
		if v := stream.Verify; v != nil && !v.OK {
			all = append(all, fmt.Errorf("stream %s: %w against %s: pcc %.6f, max error %.4f", stream.Name, exit.ErrVerification, v.Against, v.PCC, v.MaxError))
		}
	}
	if len(all) == 0 && !r.OK {
		all = append(all, fmt.Errorf("%w: the run is not ok and does not say why", meshrun.ErrInternal))
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// failures are several errors, a line each.
type failures []error

func (f failures) Error() string {
	lines := make([]string, len(f))
	for i, err := range f {
		lines[i] = err.Error()
	}
	return strings.Join(lines, "\n")
}

func (f failures) Unwrap() []error { return f }

// textOf is the text of a hazard or a hang of the emulator's report.
func textOf(v any) string {
	if m, ok := v.(map[string]any); ok {
		if t, ok := m["text"].(string); ok {
			return t
		}
	}
	return fmt.Sprint(v)
}
