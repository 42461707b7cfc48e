package messages

import (
	"errors"
	"fmt"
	"strings"
)

// The kinds of failure. A typed error wraps the one that it is; errors.Is finds it. The exit codes of the program follow them.
var (
	// ErrInvalid: a request that breaks a rule. Nothing was enqueued and no index has moved.
	ErrInvalid = errors.New("invalid")
	// ErrReleased: a tensor or lease was used after it had been released.
	ErrReleased = errors.New("released")
	// ErrClosed: the mesh or stream is closing or closed.
	ErrClosed = errors.New("closed")
	// ErrQueueFull: a stream's queue is at its limit and the caller asked not to wait.
	ErrQueueFull = errors.New("queue full")
	// ErrPoisoned: an operation that this one reads has failed.
	ErrPoisoned = errors.New("poisoned")
	// ErrOutOfMemory: a device has no room.
	ErrOutOfMemory = errors.New("out of memory")
	// ErrRejected: the driver's own validation refused a launch.
	ErrRejected = errors.New("rejected")
	// ErrTimeout: a wait did not end, or cannot.
	ErrTimeout = errors.New("timeout")
	// ErrDeviceLost: the device does not answer any more; everything fails fast.
	ErrDeviceLost = errors.New("device lost")
	// ErrHazard: an emulated mesh saw something that goes wrong on hardware, and has stopped.
	ErrHazard = errors.New("hazard")
	// ErrUnsupported: the driver cannot do it.
	ErrUnsupported = errors.New("unsupported")
	// ErrWrongThread: a driver call came from a thread that does not own the mesh.
	ErrWrongThread = errors.New("wrong thread")
	// ErrActorStopped: the actor that an operation needs is gone.
	ErrActorStopped = errors.New("actor stopped")
	// ErrBudget: the request asks for more than a limit allows.
	ErrBudget = errors.New("over budget")
	// ErrBusy: the request needs a quiet mesh.
	ErrBusy = errors.New("busy")
	// ErrInternal: a broken invariant; please report it.
	ErrInternal = errors.New("internal error")
)

// InvalidError says which rule a request breaks: the operation, the field, the value given and the rule.
type InvalidError struct {
	Op    string // operation or place; may be empty
	Field string // name of the field that is wrong; empty where the place says it
	Value string // the value given
	Rule  string // what must hold
	Hint  string // what to try; may be empty
}

func (e *InvalidError) Error() string {
	var b strings.Builder
	if e.Op != "" {
		b.WriteString(e.Op + ": ")
	}
	if e.Field != "" {
		b.WriteString(e.Field + " ")
	}
	fmt.Fprintf(&b, "%s: %s", e.Value, e.Rule)
	if e.Hint != "" {
		b.WriteString("; " + e.Hint)
	}
	return b.String()
}

// Unwrap makes errors.Is(err, ErrInvalid) true.
func (e *InvalidError) Unwrap() error { return ErrInvalid }

// Invalid makes an InvalidError whose value is printed with %v.
func Invalid(op, field string, value any, rule string, args ...any) *InvalidError {
	return &InvalidError{Op: op, Field: field, Value: fmt.Sprint(value), Rule: fmt.Sprintf(rule, args...)}
}

// PoisonedError is the failure of an operation that reads the result of a failed one, directly or through others. It is ErrPoisoned and its cause.
type PoisonedError struct {
	Input int   // slot of the input through which it came
	Cause error // the failure at the root
}

func (e *PoisonedError) Error() string {
	return fmt.Sprintf("%v: input %d comes from a failed operation: %v", ErrPoisoned, e.Input, e.Cause)
}

// Unwrap returns ErrPoisoned and the cause.
func (e *PoisonedError) Unwrap() []error { return []error{ErrPoisoned, e.Cause} }

// OutOfMemoryError is an allocation for which a device has no room. Err is the driver's account of it.
type OutOfMemoryError struct {
	Err        error
	Releasable []Releasable // the largest first
}

// Releasable is a pool of buffers that nobody uses.
type Releasable struct {
	Pool  string
	Bytes int64 // on every device
}

func (e *OutOfMemoryError) Error() string {
	const most = 5
	if len(e.Releasable) == 0 {
		return e.Err.Error() + ". No pool of buffers could be released: all are in use or there are none"
	}
	text := e.Err.Error() + ". Could be released (release_buffers): "
	for i, p := range e.Releasable {
		if i == most {
			return fmt.Sprintf("%s; and %d more", text, len(e.Releasable)-most)
		}
		if i > 0 {
			text += "; "
		}
		text += fmt.Sprintf("%s %d bytes", p.Pool, p.Bytes)
	}
	return text
}

// Unwrap returns the driver's error.
func (e *OutOfMemoryError) Unwrap() error { return e.Err }

// OpError is the failure of one submitted operation. Err is one of the kinds above or wraps one.
type OpError struct {
	Op     string
	Stream string
	Launch uint64 // 0 when the operation never reached the device
	Err    error
}

func (e *OpError) Error() string {
	if e.Launch != 0 {
		return fmt.Sprintf("%s (stream %s, launch %d): %v", e.Op, e.Stream, e.Launch, e.Err)
	}
	return fmt.Sprintf("%s (stream %s): %v", e.Op, e.Stream, e.Err)
}

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }
