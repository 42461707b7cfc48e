package actors

import "iter"

// deque is a queue that reuses its memory.
type deque[T any] struct {
	items []*T
	head  int
}

func (q *deque[T]) len() int { return len(q.items) - q.head }

func (q *deque[T]) push(v *T) { q.items = append(q.items, v) }

func (q *deque[T]) front() *T {
	if q.len() == 0 {
		return nil
	}
	return q.items[q.head]
}

// at is item i from the front.
func (q *deque[T]) at(i int) *T { return q.items[q.head+i] }

func (q *deque[T]) pop() *T {
	v := q.front()
	if v == nil {
		return nil
	}
	q.items[q.head] = nil
	q.head++
	switch {
	case q.head == len(q.items):
		q.items, q.head = q.items[:0], 0
	case q.head > 1024 && q.head > len(q.items)/2:
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	return v
}

func (q *deque[T]) all() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for _, v := range q.items[q.head:] {
			if !yield(v) {
				return
			}
		}
	}
}
