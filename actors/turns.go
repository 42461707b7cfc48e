package actors

import (
	"context"
	"fmt"
	"sync"

	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/messages"
)

// turns is the lockstep of an emulated mesh and its streams: one stream acts at a time, in the order of their seats; after each
// act the actors come to rest; virtual time moves only when every stream waits, sleeps or has ended. So what is submitted, and when
// in virtual time, is a function of the streams' programs.
//
// A seat serves one goroutine. Streams outside Together are not held to turns; while no seat is taken, a wait of theirs moves
// the clock itself.
type turns struct {
	rt *Runtime

	mu      sync.Mutex
	seats   []*seat
	current int // index of the seat that acts; -1: none
	moving  bool
	stopped bool
}

type seatState uint8

const (
	seatFree    seatState = iota // not taking part
	seatActive                   // acts, or wants to
	seatBlocked                  // waits for the mesh
)

type seat struct {
	state  seatState
	acts   int           // inside Act: the turn is kept between requests; only the seat's goroutine looks at it
	turn   chan struct{} // closed when the turn comes; nil when nobody waits for it
	wakeAt uint64        // virtual time at which a sleeper goes on; 0 = not asleep
	awake  chan struct{}
	stuck  chan struct{} // closed when what it waits for cannot come
}

func newTurns(r *Runtime) *turns { return &turns{rt: r, current: -1} }

func (t *turns) seat() *seat { return &seat{} }

// Together makes the given streams take turns, in this order, until each is closed. It is for a Runtime in lockstep; elsewhere it
// does nothing. Each of the streams must be used by one goroutine.
func (r *Runtime) Together(streams ...*Stream) {
	t := r.turns
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range streams {
		s.seat.state = seatActive
		t.seats = append(t.seats, s.seat)
	}
	if t.current < 0 && !t.moving {
		t.pass()
	}
}

// enter waits for the seat's turn.
func (t *turns) enter(ctx context.Context, s *seat) error {
	t.mu.Lock()
	if t.stopped {
		t.mu.Unlock()
		return messages.ErrClosed
	}
	if s.state == seatFree || t.current >= 0 && t.seats[t.current] == s {
		t.mu.Unlock()
		return nil
	}
	if s.turn == nil {
		s.turn = make(chan struct{})
	}
	turn := s.turn
	t.mu.Unlock()
	select {
	case <-turn:
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.stopped {
			return messages.ErrClosed
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leave lets the actors come to rest and passes the turn on.
func (t *turns) leave(s *seat) {
	t.settle()
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.acts == 0 && s.state != seatFree && t.current >= 0 && t.seats[t.current] == s {
		t.pass()
	}
}

// settle waits until nothing is left to do on the mesh's thread.
func (t *turns) settle() {
	rest := make(chan struct{})
	if t.rt.thread.WhenIdle(func() { close(rest) }) {
		<-rest
	}
}

// pass gives the turn to the next active seat, or lets time run when all wait. The lock is held.
func (t *turns) pass() {
	n := len(t.seats)
	for i := 1; i <= n; i++ {
		next := (t.current + i + n) % n
		if s := t.seats[next]; s.state == seatActive {
			t.current = next
			if s.turn != nil {
				close(s.turn)
				s.turn = nil
			}
			return
		}
	}
	t.current = -1
	if n > 0 && !t.moving && !t.stopped {
		t.move()
	}
}

// move asks the device actor to let virtual time run until something happens, or the next sleeper is due. The lock is held.
func (t *turns) move() {
	t.moving = true
	until := ^uint64(0)
	for _, s := range t.seats {
		if s.wakeAt != 0 {
			until = min(until, s.wakeAt)
		}
	}
	t.rt.root.Send(t.rt.device, &advance{until: until})
}

// moved is called on the mesh's thread when time has run and its consequences have settled; with an error when it never will again.
func (t *turns) moved(state devicecgo.ClockState, now uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.moving = false
	if t.stopped {
		return
	}
	active := false
	for _, s := range t.seats {
		if s.wakeAt != 0 && s.wakeAt <= now {
			s.wakeAt = 0
			s.state = seatActive
			close(s.awake)
		}
		active = active || s.state == seatActive
	}
	switch {
	case active:
		t.pass()
	case len(t.seats) == 0:
	case err != nil, state == devicecgo.ClockIdle && !t.asleep():
		// Nothing can happen any more, so no wait can end, and no sleep.
		for _, s := range t.seats {
			if s.state == seatBlocked {
				s.state, s.wakeAt = seatActive, 0
				close(s.stuck)
				s.stuck = nil
			}
		}
		t.pass()
	default:
		t.move()
	}
}

func (t *turns) asleep() bool {
	for _, s := range t.seats {
		if s.wakeAt != 0 {
			return true
		}
	}
	return false
}

// block gives the turn away until the signal comes, then waits for the turn again.
func (t *turns) block(ctx context.Context, s *seat, signal <-chan struct{}) error {
	t.settle() // the signal may be about to come
	t.mu.Lock()
	select {
	case <-signal:
		s.unblock()
		t.mu.Unlock()
		return nil
	default:
	}
	if s.state == seatFree {
		alone := len(t.seats) == 0
		t.mu.Unlock()
		return t.drive(ctx, signal, alone)
	}
	s.state = seatBlocked
	s.stuck = make(chan struct{})
	stuck := s.stuck
	t.pass()
	t.mu.Unlock()
	var err error
	select {
	case <-signal:
	case <-stuck:
		err = t.stuckError()
	case <-ctx.Done():
		err = ctx.Err()
	}
	t.mu.Lock()
	s.unblock()
	t.mu.Unlock()
	if err != nil {
		return err
	}
	return t.enter(ctx, s)
}

// stuckError is why what a stream waits for cannot come.
func (t *turns) stuckError() error {
	if why := t.rt.broken.Load(); why != nil {
		return *why
	}
	return fmt.Errorf("%w: nothing is left to run, and what this stream waits for has not come", messages.ErrTimeout)
}

func (s *seat) unblock() {
	if s.state == seatBlocked {
		s.state = seatActive
	}
}

// drive moves the clock for a wait outside Together, as long as nobody else does.
func (t *turns) drive(ctx context.Context, signal <-chan struct{}, alone bool) error {
	for alone {
		select {
		case <-signal:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
		state, err := ask(ctx, t.rt, func(reply chan<- answer[devicecgo.ClockState]) any { return &advance{until: ^uint64(0), reply: reply} })
		if err != nil {
			return err
		}
		t.settle()
		if state == devicecgo.ClockIdle {
			select {
			case <-signal:
				return nil
			default:
				return fmt.Errorf("%w: nothing is left to run, and what is waited for has not come", messages.ErrTimeout)
			}
		}
	}
	select {
	case <-signal:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ready tells that the seat's goroutine has been signalled. It runs before the signal can be acted upon.
func (t *turns) ready(s *seat) {
	t.mu.Lock()
	s.unblock()
	t.mu.Unlock()
}

// sleep lets ns of virtual time pass.
func (t *turns) sleep(ctx context.Context, s *seat, ns uint64) error {
	if err := t.enter(ctx, s); err != nil {
		return err
	}
	now, err := t.rt.Now(ctx)
	if err != nil || ns == 0 {
		t.leave(s)
		return err
	}
	if s.state == seatFree {
		return messages.Invalid("sleep", "stream", "not in lockstep", "takes turns with others (Together)")
	}
	t.mu.Lock()
	s.wakeAt = now + ns
	s.awake = make(chan struct{})
	awake := s.awake
	t.mu.Unlock()
	if err := t.block(ctx, s, awake); err != nil {
		return err
	}
	t.leave(s)
	return nil
}

// end gives a seat up.
func (t *turns) end(s *seat) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.seats {
		if t.seats[i] != s {
			continue
		}
		t.seats = append(t.seats[:i], t.seats[i+1:]...)
		s.state = seatFree
		switch {
		case i < t.current:
			t.current--
		case i == t.current:
			t.current-- // so that pass looks at the seat that follows
			t.pass()
		}
		return
	}
}

// stop lets everybody go, with ErrClosed.
func (t *turns) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	for _, s := range t.seats {
		if s.turn != nil {
			close(s.turn)
			s.turn = nil
		}
		if s.stuck != nil && s.state == seatBlocked {
			close(s.stuck)
			s.stuck = nil
		}
	}
}
