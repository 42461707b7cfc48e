package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshrun/meshrun/cmd/meshrun/internal/exit"
)

// endWithin bounds how long an interrupted program may take to end.
const endWithin = 900 * time.Millisecond

// errInterrupted is the cause of a context that a signal has ended.
var errInterrupted = errors.New("interrupted")

// Main runs the program and returns its exit code.
func Main(s *State) int {
	ctx, cancel := context.WithCancelCause(s.Ctx)
	defer cancel(nil)
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, s) }()
	select {
	case err := <-ended:
		return report(s, err)
	case <-s.Signals:
	}
	cancel(errInterrupted)
	select {
	case <-ended:
	case <-s.Signals:
	case <-time.After(endWithin):
	}
	fmt.Fprintln(s.Stderr, "meshrun: interrupted")
	return exit.Interrupted
}

// run carries out the command line. A panic is a bug of ours: the user gets one line that says so.
func run(ctx context.Context, s *State) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = exit.Panic(p)
		}
	}()
	root := newRoot(s)
	root.SetArgs(s.Args)
	root.SetIn(s.Stdin)
	root.SetOut(s.Stdout)
	root.SetErr(s.Stderr)
	return root.ExecuteContext(ctx)
}

// report writes what went wrong to standard error, a line each, and returns the exit code.
func report(s *State, err error) int {
	if err == nil {
		return exit.OK
	}
	for _, line := range strings.Split(strings.TrimSpace(err.Error()), "\n") {
		fmt.Fprintln(s.Stderr, "meshrun: "+line)
	}
	var bug *exit.PanicError
	if errors.As(err, &bug) && s.Getenv(exit.StackVariable) != "" {
		_, _ = s.Stderr.Write(bug.Stack)
	}
	return exit.Code(err)
}

func newRoot(s *State) *cobra.Command {
	root := &cobra.Command{
		Use:   "meshrun",
		Short: "Runs diffusion transformers on a two-axis mesh of devices, emulated or real",
		Long: `Runs diffusion transformers on a two-axis mesh of devices, emulated or real.

Exit codes: 0 ok, 1 unexpected failure, 2 usage or invalid input, 3 verification failed, 4 hazard, 5 hang or device lost,
6 budget, queue or time limit, 130 interrupted.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newExec(s), newRun(s), newInfo(s))
	for _, c := range append(root.Commands(), root) {
		c.Args = checked(c.Args)
	}
	return root
}

// usage marks an error as one of the command line.
func usage(err error) error { return fmt.Errorf("%w: %w", exit.ErrUsage, err) }

// checked makes a mistake in the arguments one of usage.
func checked(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return usage(err)
		}
		return nil
	}
}
