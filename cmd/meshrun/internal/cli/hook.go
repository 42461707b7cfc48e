package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/meshrun/meshrun/cmd/meshrun/internal/exit"
)

// hookWithin bounds how long the command of --on-hang may take.
const hookWithin = 10 * time.Second

func hookFlag(flags *pflag.FlagSet, command *string) {
	flags.StringVar(command, "on-hang", "", "a command for sh that is run once when the mesh hangs or a device is lost, with the report as JSON on its standard input")
}

// onHang runs the command if the error is a hang or a lost device. Whatever it does, the exit code stays that of the error.
func (s *State) onHang(ctx context.Context, command string, report any, err error) {
	if command == "" || exit.Code(err) != exit.Lost {
		return
	}
	if failure := s.runHook(ctx, command, report); failure != nil {
		fmt.Fprintf(s.Stderr, "meshrun: --on-hang %q: %v\n", command, failure)
	}
}

func (s *State) runHook(ctx context.Context, command string, report any) error {
	text, err := json.Marshal(report)
	if err != nil {
		return err
	}
	within := s.HookWithin
	if within == 0 {
		within = hookWithin
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	c := exec.CommandContext(ctx, "sh", "-c", command)
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(string(text)+"\n"), s.Stderr, s.Stderr
	// What the shell has started ends with it, also what it has left in the background.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	end := func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.Cancel = end
	c.WaitDelay = 100 * time.Millisecond
	if err = c.Start(); err != nil {
		return err
	}
	err = c.Wait()
	_ = end() // there may be nothing left
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("ended: it took longer than %v", within)
	case errors.Is(err, exec.ErrWaitDelay):
		return errors.New("what it left in the background was ended")
	case errors.Is(err, syscall.EPIPE):
		return nil // it did not read the report
	}
	return err
}
