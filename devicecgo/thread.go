package devicecgo

import (
	"runtime"
	"sync"
	"time"
)

// Thread is a goroutine that stays on one OS thread for its life and runs the functions given to it, one at a time and in
// order. It owns a mesh: whatever opens, uses and closes it runs here.
//
// When the thread stops it ends without being unlocked, so that no thread-local state of a driver reaches other goroutines.
type Thread struct {
	mu      sync.Mutex
	queue   []func()
	idle    []func() // run once each when the queue is empty
	stopped bool
	parked  bool
	wake    chan struct{}
	timer   func() (time.Duration, func()) // asked when the queue is empty: run fn after d; d < 0: nothing is due
	done    chan struct{}
}

// NewThread starts the owner goroutine. Stop ends it.
func NewThread() *Thread {
	t := &Thread{wake: make(chan struct{}, 1), done: make(chan struct{})}
	go t.run()
	return t
}

// Schedule queues fn. It never blocks. After Stop it does nothing and returns false.
func (t *Thread) Schedule(fn func()) bool {
	t.mu.Lock()
	if t.stopped {
		t.mu.Unlock()
		return false
	}
	t.queue = append(t.queue, fn)
	wake := t.parked
	t.parked = false
	t.mu.Unlock()
	if wake {
		t.wake <- struct{}{}
	}
	return true
}

// WhenIdle runs fn on the thread once nothing else is queued: everything scheduled before, and all that it scheduled in turn,
// has run. After Stop it returns false.
func (t *Thread) WhenIdle(fn func()) bool {
	t.mu.Lock()
	if t.stopped {
		t.mu.Unlock()
		return false
	}
	t.idle = append(t.idle, fn)
	wake := t.parked
	t.parked = false
	t.mu.Unlock()
	if wake {
		t.wake <- struct{}{}
	}
	return true
}

// Do runs fn on the thread and waits for it. It returns false, without running fn, when the thread has been stopped. It must not
// be called on the thread itself.
func (t *Thread) Do(fn func()) bool {
	ran := make(chan struct{})
	if !t.Schedule(func() { defer close(ran); fn() }) {
		return false
	}
	<-ran
	return true
}

// SetTimer installs what the thread asks when it has nothing to do: how long to sleep at the most, and what to run then. A
// negative duration means until something is scheduled. It must be called on the thread.
func (t *Thread) SetTimer(due func() (time.Duration, func())) { t.timer = due }

// Stop lets what is queued run, then ends the thread. It returns when the goroutine has ended; calling it again is harmless. It
// must not be called on the thread itself.
func (t *Thread) Stop() {
	t.mu.Lock()
	t.stopped = true
	wake := t.parked
	t.parked = false
	t.mu.Unlock()
	if wake {
		t.wake <- struct{}{}
	}
	<-t.done
}

// Done is closed when the thread has ended.
func (t *Thread) Done() <-chan struct{} { return t.done }

func (t *Thread) run() {
	runtime.LockOSThread() // and never unlocked: the thread dies with the goroutine
	defer close(t.done)
	var batch []func()
	for {
		t.mu.Lock()
		batch, t.queue = t.queue, batch[:0]
		if len(batch) == 0 && len(t.idle) > 0 {
			batch = append(batch, t.idle[0])
			t.idle = t.idle[1:]
		}
		if len(batch) == 0 {
			if t.stopped {
				t.mu.Unlock()
				return
			}
			t.mu.Unlock()
			t.park()
			continue
		}
		t.mu.Unlock()
		for i, fn := range batch {
			fn()
			batch[i] = nil
		}
	}
}

// park waits until something is scheduled or the timer is due.
func (t *Thread) park() {
	after, due := time.Duration(-1), func() {}
	if t.timer != nil {
		after, due = t.timer()
	}
	if after == 0 {
		due()
		return
	}
	t.mu.Lock()
	if len(t.queue) > 0 || len(t.idle) > 0 || t.stopped {
		t.mu.Unlock()
		return
	}
	t.parked = true
	t.mu.Unlock()
	if after < 0 {
		<-t.wake
		return
	}
	timer := time.NewTimer(after)
	defer timer.Stop()
	select {
	case <-t.wake:
	case <-timer.C:
		t.mu.Lock()
		woken := !t.parked // someone is about to send, or has sent
		t.parked = false
		t.mu.Unlock()
		if woken {
			<-t.wake
		}
		due()
	}
}
