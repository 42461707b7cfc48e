package actors

// admission holds what the streams have submitted and picks the next task fairly: round robin over the streams that have one.
type admission struct {
	queues []*streamQueue
	next   int // where the search begins
}

// streamQueue is the device actor's side of a stream.
type streamQueue struct {
	stream *Stream
	tasks  deque[task]
	closed bool
	dead   bool // the stream's actor has ended

	open     int     // tasks not yet answered
	answered []*task // since the last flush
	left     int     // tasks launched or answered since the last flush
}

func (q *streamQueue) add(tasks []*task) {
	for _, t := range tasks {
		q.tasks.push(t)
	}
	q.open += len(tasks)
}

func (a *admission) add(s *Stream) {
	s.queue = &streamQueue{stream: s}
	a.queues = append(a.queues, s.queue)
}

// take returns the next task that is ready, one per stream and round, or nil.
func (a *admission) take(ready func(*task) bool) *task {
	n := len(a.queues)
	for i := range n {
		at := a.next + i
		if at >= n {
			at -= n
		}
		if t := a.queues[at].tasks.front(); t != nil && ready(t) {
			a.next = at + 1
			return a.queues[at].tasks.pop()
		}
	}
	return nil
}

// remove forgets the queues that are closed and have nothing left.
func (a *admission) remove(gone func(*streamQueue)) {
	kept := a.queues[:0]
	next := a.next
	for i, q := range a.queues {
		if q.closed && q.open == 0 {
			gone(q)
			if i < next {
				a.next--
			}
		} else {
			kept = append(kept, q)
		}
	}
	clear(a.queues[len(kept):])
	a.queues = kept
}

// takeAll empties every queue.
func (a *admission) takeAll() []*task {
	var all []*task
	for _, q := range a.queues {
		for q.tasks.len() > 0 {
			all = append(all, q.tasks.pop())
		}
	}
	return all
}
