package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/cmd/meshrun/internal/cli"
	"github.com/meshrun/meshrun/workload"
)

// interrupted runs the program, sends it signals, and returns how long it took to end from the first on.
func interrupted(t *testing.T, s *cli.State, stderr *bytes.Buffer, begun <-chan struct{}, signals int) time.Duration {
	t.Helper()
	c := make(chan os.Signal, 2)
	s.Signals = c
	code := make(chan int)
	go func() { code <- cli.Main(s) }()
	<-begun
	first := time.Now()
	for range signals {
		c <- os.Interrupt
	}
	require.Equal(t, 130, <-code)
	require.Equal(t, "meshrun: interrupted\n", stderr.String())
	return time.Since(first)
}

func TestInterruptEndsARun(t *testing.T) {
	s, stdout, stderr := state("run", "--model", "m", "--quiet")
	begun := make(chan struct{})
	s.RunModel = func(ctx context.Context, _ workload.Config, _ func(workload.Progress)) (*workload.Result, error) {
		close(begun)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	require.Less(t, interrupted(t, s, stderr, begun, 1), 500*time.Millisecond)
	require.Empty(t, stdout.String())
}

// What does not listen is left behind within a second; a second signal ends at once.
func TestInterruptOfWhatDoesNotListen(t *testing.T) {
	for signals, within := range map[int]time.Duration{1: time.Second, 2: 300 * time.Millisecond} {
		s, _, stderr := state("run", "--model", "m", "--quiet")
		begun, release := make(chan struct{}), make(chan struct{})
		s.RunModel = func(context.Context, workload.Config, func(workload.Progress)) (*workload.Result, error) {
			close(begun)
			<-release
			return nil, nil
		}
		require.Less(t, interrupted(t, s, stderr, begun, signals), within)
		close(release)
	}
}

// long is a case that would run for minutes.
func long() string {
	call := `{"op":"all_gather","in":"x","dim":3,"mesh_axis":1},`
	return `{"mesh":[2,4],"tensors":{"x":{"shape":[1,1,512,512],"fill":{"const":1}}},"calls":[` + strings.TrimSuffix(strings.Repeat(call, 20000), ",") + `]}`
}

// signalling tells when all has been read.
type signalling struct {
	io.Reader
	read func()
}

func (r signalling) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err == io.EOF {
		r.read()
	}
	return n, err
}

func TestInterruptEndsACase(t *testing.T) {
	s, stdout, stderr := state("exec", "-")
	begun := make(chan struct{})
	s.Stdin = signalling{strings.NewReader(long()), sync.OnceFunc(func() { close(begun) })}
	require.Less(t, interrupted(t, s, stderr, begun, 1), time.Second)
	require.Empty(t, stdout.String())
}

// The process itself: SIGINT and SIGTERM end it within a second, with 130. That it has taken a case many times larger than a pipe says that it
// runs.
func TestSignalsEndTheProcess(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		c := exec.Command(os.Args[0], "exec", "-")
		c.Env = append(os.Environ(), asProgram+"=1")
		stdin, err := c.StdinPipe()
		require.NoError(t, err)
		var stderr bytes.Buffer
		c.Stderr = &stderr
		require.NoError(t, c.Start())
		_, err = io.WriteString(stdin, long())
		require.NoError(t, err)
		require.NoError(t, stdin.Close())
		begin := time.Now()
		require.NoError(t, c.Process.Signal(signal))
		require.Error(t, c.Wait())
		require.Equal(t, 130, c.ProcessState.ExitCode(), stderr.String())
		require.Less(t, time.Since(begin), 2*time.Second) // one for the program, one for a busy machine
		require.Equal(t, "meshrun: interrupted\n", stderr.String())
	}
}
