// Package exit holds the exit codes of the program, which are part of its interface, and the one function that chooses between them.
package exit

import (
	"errors"

	"github.com/meshrun/meshrun"
)

// The exit codes.
const (
	OK           = 0   // everything asked for was done
	Failure      = 1   // an unexpected failure, or an expectation of a case that was missed
	Usage        = 2   // usage or invalid input; nothing was changed
	Verification = 3   // a result differs from what was expected
	Hazard       = 4   // the emulated mesh saw something that goes wrong on hardware
	Lost         = 5   // a hang, or a device that is lost
	Limit        = 6   // a budget, a queue or a time limit, or a wait that would deadlock
	Interrupted  = 130 // SIGINT or SIGTERM
)

// Kinds of failure that only the program knows; package meshrun has the others.
var (
	ErrUsage        = errors.New("usage")
	ErrNotOpened    = errors.New("the mesh cannot be opened")
	ErrVerification = errors.New("verification failed")
	ErrHazard       = errors.New("hazard")
	ErrHang         = errors.New("hang")
	ErrExpected     = errors.New("expectation missed")
)

// Seen is what the emulated mesh itself has reported: of a kind, in its own words, which begin with the kind.
type Seen struct {
	Kind error // ErrHazard or ErrHang
	Text string
}

func (e *Seen) Error() string { return e.Text }

// Unwrap returns the kind.
func (e *Seen) Unwrap() error { return e.Kind }

// kinds in the order in which they win when several apply.
var kinds = []struct {
	code int
	is   []error
}{
	{Lost, []error{ErrHang, meshrun.ErrDeviceLost}},
	{Hazard, []error{ErrHazard, meshrun.ErrHazard}},
	{Limit, []error{meshrun.ErrBudget, meshrun.ErrQueueFull, meshrun.ErrTimeout, meshrun.ErrOutOfMemory}},
	{Verification, []error{ErrVerification}},
	{Usage, []error{ErrUsage, ErrNotOpened, meshrun.ErrInvalid, meshrun.ErrReleased, meshrun.ErrBusy, meshrun.ErrUnsupported}},
}

// Code is the exit code of an error: that of the first kind, in the order 5, 4, 6, 3, 2, that it wraps anywhere; 1 for any other.
func Code(err error) int {
	if err == nil {
		return OK
	}
	for _, k := range kinds {
		for _, kind := range k.is {
			if errors.Is(err, kind) {
				return k.code
			}
		}
	}
	return Failure
}
