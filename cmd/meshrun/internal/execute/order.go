package execute

import (
	"strconv"
	"strings"

	"github.com/meshrun/meshrun/messages"
)

// order puts the journal's rows into the order of the output: launches in launch order, a call that never launches where it was submitted,
// the rows of a stream in the order of its calls. A call that was reached but has no row, since it was dropped before it got
// anywhere, gets one.
func (r *execution) order(journal []*messages.Row) []*messages.Row {
	streams := map[string]*stream{}
	for _, s := range r.streams {
		streams[s.s.Name()] = s
	}
	owner := make([]*record, len(journal))
	fences := map[*stream]int{}
	for i, row := range journal {
		s := streams[row.Stream]
		if s == nil {
			continue
		}
		owner[i] = s.find(row, fences)
		if owner[i] != nil {
			owner[i].row = row
			row.Step = owner[i].call.Name
		}
	}
	seen := map[*record]bool{}
	next := map[*stream]int{}
	var out []*messages.Row
	advance := func(s *stream, all bool) {
		for ; next[s] < len(s.records); next[s]++ {
			rec := s.records[next[s]]
			if !rec.begun {
				continue
			}
			if rec.row == nil {
				rec.row = &messages.Row{Step: rec.call.Name, Stream: s.s.Name(), Err: rec.err}
			} else if !seen[rec] && !all {
				return
			}
			out = append(out, rec.row)
		}
	}
	for i, row := range journal {
		switch rec := owner[i]; {
		case rec != nil:
			seen[rec] = true
			advance(streams[row.Stream], false)
		case row.Stream == "":
			out = append(out, row)
		}
	}
	for _, s := range r.streams {
		advance(s, true)
	}
	return out
}

// find is the record of a row: by the place in front of its step, or, for a fence, by its turn among the fences.
func (s *stream) find(row *messages.Row, fences map[*stream]int) *record {
	place, _, ok := strings.Cut(row.Step, " ")
	if ok {
		if i, err := strconv.Atoi(place); err == nil && i < len(s.records) {
			return s.records[i]
		}
		return nil
	}
	for i := fences[s]; i < len(s.records); i++ {
		if rec := s.records[i]; rec.begun && rec.call.Name == row.Step {
			fences[s] = i + 1
			return rec
		}
	}
	return nil
}
