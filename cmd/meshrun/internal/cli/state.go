package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/meshrun/meshrun/workload"
)

// State is all that the program gets from its surroundings.
type State struct {
	Ctx    context.Context
	Args   []string // without the program's name
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer

	Getenv   func(string) string
	ReadFile func(string) ([]byte, error)

	StderrTTY bool // progress bars may be drawn
	StdoutTTY bool // tables may be drawn with lines

	Signals <-chan os.Signal // the first interrupts, the second ends at once; nil = none come

	RunModel ModelRunner

	HookWithin time.Duration // bounds the command of --on-hang; 0 = 10 s
}

// ModelRunner is the signature of workload.Run.
type ModelRunner func(context.Context, workload.Config, func(workload.Progress)) (*workload.Result, error)

// FromProcess is the State of the running process, and a function that lets its signals go.
func FromProcess() (*State, func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	s := &State{
		Ctx: context.Background(), Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Getenv: os.Getenv, ReadFile: os.ReadFile,
		StderrTTY: term.IsTerminal(int(os.Stderr.Fd())), StdoutTTY: term.IsTerminal(int(os.Stdout.Fd())),
		Signals: signals, RunModel: workload.Run,
	}
	return s, func() { signal.Stop(signals) }
}

// plain reports whether the user asked for no colours and no drawing.
func (s *State) plain() bool { return s.Getenv("NO_COLOR") != "" || s.Getenv("TERM") == "dumb" }
