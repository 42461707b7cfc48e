package actors

import (
	"context"

	"github.com/meshrun/meshrun/messages"
)

// Act runs several requests of a stream as one act: in lockstep its turn ends behind the last of them, not behind each. A request that
// waits gives the turn away meanwhile, as ever. Elsewhere it just runs them.
func (s *Stream) Act(ctx context.Context, requests func() error) error {
	if s.rt.turns == nil {
		return requests()
	}
	if err := s.rt.turns.enter(ctx, s.seat); err != nil {
		return err
	}
	s.seat.acts++
	defer func() {
		s.seat.acts--
		s.rt.turns.leave(s.seat)
	}()
	return requests()
}

// Ended reports whether the operation that makes the tensor is over, and its error when it has failed. It never waits.
func (t *Tensor) Ended() (bool, error) {
	for _, made := range t.makers() {
		switch {
		case made == nil:
		case made.captured():
			return true, made.trace.notExecuted()
		case !made.done() || made.err != nil:
			return made.done(), made.failed()
		}
	}
	return true, nil
}

// AddRow puts a row of the caller's into the journal, behind those that are there.
func (r *Runtime) AddRow(row *messages.Row) { r.addRow(row) }
