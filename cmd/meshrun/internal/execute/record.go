package execute

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/cmd/meshrun/internal/casefile"
	"github.com/meshrun/meshrun/cmd/meshrun/internal/exit"
	"github.com/meshrun/meshrun/messages"
)

// record is one call and what became of it.
type record struct {
	call   *casefile.Call
	stream string
	index  int  // in its stream
	begun  bool // it was reached
	row    *messages.Row

	results []*meshrun.Tensor // what tells whether it has failed
	err     error             // how it ended, as far as is known
}

// step is the call's name in the journal: with its place, so that its row is found again.
func (r *record) step() string { return fmt.Sprintf("%d %s", r.index, r.call.Name) }

// ended reports whether the call is over as far as the mesh goes, and how: the error is nil also while it is not over.
func (r *record) ended() (bool, error) {
	over := true
	for _, t := range r.results {
		done, err := t.Ended()
		if err != nil && r.err == nil {
			r.err = err
		}
		over = over && done
	}
	return over, r.err
}

// expected reports whether an error is the one that the case expects of the call.
func (r *record) expected(err error) bool {
	return r.call.Expect != "" && strings.Contains(strings.ToLower(err.Error()), strings.ToLower(r.call.Expect))
}

// judge returns what is wrong with the way in which the call ended; nil when it is as it should be.
func (r *record) judge() error {
	if !r.begun {
		return nil
	}
	err := r.err
	if err == nil && r.row != nil {
		err = r.row.Err
	}
	where := fmt.Sprintf("%s (stream %s)", r.call.Where, r.stream)
	switch {
	case r.call.Expect == "" && err == nil:
		return nil
	case r.call.Expect == "":
		return &CallError{Where: where, Op: r.call.Name, Err: err}
	case err == nil:
		return fmt.Errorf("%s: %s: %w: expect.error %q: the call has not failed", where, r.call.Name, exit.ErrExpected, r.call.Expect)
	case !r.expected(err):
		// Not %w: a missed expectation is one, whatever the error is.
		return fmt.Errorf("%s: %s: %w: expect.error %q: the error is: %v", where, r.call.Name, exit.ErrExpected, r.call.Expect, err)
	}
	return nil
}

// CallError is a call of a case that failed.
type CallError struct {
	Where string
	Op    string
	Err   error
}

func (e *CallError) Error() string {
	text := e.Err.Error()
	if strings.HasPrefix(text, e.Op) {
		return e.Where + ": " + text
	}
	return e.Where + ": " + e.Op + ": " + text
}

// Unwrap returns the cause.
func (e *CallError) Unwrap() error { return e.Err }

// endedError is the calls that a hazard or a hang has ended, which is told apart: one line for all of them.
type endedError struct {
	calls []*CallError
}

// endedBy says whether a call has failed only since the mesh has seen this.
func endedBy(seen []error, err error) bool {
	hung := func(e error) bool { return errors.Is(e, exit.ErrHang) }
	// To wait for what a hang keeps from coming is a timeout; others have another cause.
	return len(seen) > 0 && (errors.Is(err, meshrun.ErrHazard) || errors.Is(err, meshrun.ErrDeviceLost)) ||
		slices.ContainsFunc(seen, hung) && errors.Is(err, meshrun.ErrTimeout)
}

func (e *endedError) Error() string {
	const most = 3
	var b strings.Builder
	b.WriteString("calls that this ended: ")
	for i, c := range e.calls {
		switch {
		case i == most:
			fmt.Fprintf(&b, " and %d more", len(e.calls)-most)
			return b.String()
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString(c.Where + " " + c.Op)
	}
	return b.String()
}

// Unwrap returns the calls.
func (e *endedError) Unwrap() []error {
	all := make([]error, len(e.calls))
	for i, c := range e.calls {
		all[i] = c
	}
	return all
}

// ends reports whether a call that ended with this error ends its stream.
func (r *record) ends(err error) bool { return err != nil && !r.expected(err) }

var errNotReached = errors.New("not reached")
