package devicecgo

/*
#include "meshrun_driver.h"
*/
import "C"

import (
	"fmt"

	"github.com/meshrun/meshrun/messages"
)

// CallError is a driver call that failed. It wraps the kind of package messages that its code stands for.
type CallError struct {
	Call string // function of the ABI
	Kind error
	Text string // the driver's own words
}

func (e *CallError) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("driver %s: %v", e.Call, e.Kind)
	}
	return fmt.Sprintf("driver %s: %v: %s", e.Call, e.Kind, e.Text)
}

// Unwrap returns the kind.
func (e *CallError) Unwrap() error { return e.Kind }

// DriverError is a driver that cannot be used at all.
type DriverError struct {
	Name string
	Err  error
}

func (e *DriverError) Error() string { return fmt.Sprintf("driver %s: %v", e.Name, e.Err) }

// Unwrap returns the cause.
func (e *DriverError) Unwrap() error { return e.Err }

// toError makes the typed error of a code; every call of the ABI ends here.
func toError(call string, code int, text string) error {
	kind := messages.ErrInternal
	switch code {
	case C.MR_INVALID_ARGUMENT:
		kind = messages.ErrInvalid
	case C.MR_STALE_HANDLE:
		kind = messages.ErrReleased
	case C.MR_WRONG_THREAD:
		kind = messages.ErrWrongThread
		if text == "" {
			text = "the mesh belongs to the thread that opened it"
		}
	case C.MR_OUT_OF_MEMORY:
		kind = messages.ErrOutOfMemory
	case C.MR_REJECTED:
		kind = messages.ErrRejected
	case C.MR_TIMEOUT:
		kind = messages.ErrTimeout
	case C.MR_DEVICE_LOST:
		kind = messages.ErrDeviceLost
	case C.MR_HAZARD:
		kind = messages.ErrHazard
	case C.MR_UNSUPPORTED:
		kind = messages.ErrUnsupported
	}
	return &CallError{Call: call, Kind: kind, Text: text}
}
