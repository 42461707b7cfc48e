package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/workload"
)

// progress shows how far a run is, on standard error.
type progress interface {
	update(workload.Progress) // called by one goroutine at a time
	end()
}

// newProgress draws bars on a terminal and writes lines now and then elsewhere.
func (s *State) newProgress(quiet bool) progress {
	switch {
	case quiet:
		return silent{}
	case s.StderrTTY && !s.plain():
		return newBars(s.Stderr)
	}
	return &lines{w: s.Stderr, every: 2 * time.Second, now: time.Now, last: map[string]time.Time{}}
}

type silent struct{}

func (silent) update(workload.Progress) {}
func (silent) end()                     {}

// title is what a progress is of: a stream, or a phase of the whole run.
func title(p workload.Progress) string {
	switch p.Phase {
	case "run", "verify":
		if p.Stream != "" {
			return "stream " + p.Stream
		}
	case "load":
		return "load model"
	case "open":
		return meshLine(p.Mesh)
	case "place":
		return "place weights"
	case "reference":
		return "run on 1x1"
	}
	return p.Phase
}

// meshLine says what collectives have on each axis of a mesh.
func meshLine(m *meshrun.Info) string {
	var b strings.Builder
	fmt.Fprintf(&b, "mesh %s (%s)", m.Mesh, m.Name)
	for a := range 2 {
		if n := m.Mesh.Axis(a); n == 1 {
			fmt.Fprintf(&b, ", axis %d: one device, no links", a)
		} else {
			fmt.Fprintf(&b, ", axis %d: %s of %d, %d of %s per edge", a, m.Topology[a], n, m.NumLinks, plural(m.Links[a], "link"))
		}
	}
	return b.String()
}

// lines writes a line when something ends, and else not more often than `every` for the same thing.
type lines struct {
	w     io.Writer
	every time.Duration
	now   func() time.Time
	last  map[string]time.Time
}

func (l *lines) update(p workload.Progress) {
	if p.Phase == "verify" {
		return // the summary tells
	}
	what := title(p)
	if p.Phase == "open" {
		fmt.Fprintln(l.w, what)
		return
	}
	now := l.now()
	last, seen := l.last[what]
	if !seen {
		l.last[what] = now // the first line comes when it takes long
		last = now
	}
	switch {
	case p.Ended:
		fmt.Fprintf(l.w, "%s: done\n", what)
	case now.Sub(last) < l.every:
		return
	case p.Total > 0:
		fmt.Fprintf(l.w, "%s: %d of %d\n", what, p.Done, p.Total)
	default:
		fmt.Fprintf(l.w, "%s: %d\n", what, p.Done)
	}
	l.last[what] = now
}

func (l *lines) end() {}

// bars draws a bar for each phase and stream.
type bars struct {
	pool *mpb.Progress
	of   map[string]*mpb.Bar
}

func newBars(w io.Writer) *bars {
	return &bars{pool: mpb.New(mpb.WithOutput(w), mpb.WithWidth(40), mpb.WithAutoRefresh(), mpb.WithRefreshRate(100*time.Millisecond)), of: map[string]*mpb.Bar{}}
}

func (b *bars) update(p workload.Progress) {
	if p.Phase == "verify" {
		return
	}
	what := title(p)
	if p.Phase == "open" {
		fmt.Fprintln(b.pool, what) // above the bars
		return
	}
	bar := b.of[what]
	if bar == nil {
		bar = b.pool.AddBar(0,
			mpb.PrependDecorators(decor.Name(what, decor.WCSyncSpaceR)),
			mpb.AppendDecorators(decor.CountersNoUnit("%d / %d", decor.WCSyncSpace), decor.Elapsed(decor.ET_STYLE_MMSS, decor.WCSyncSpace)))
		b.of[what] = bar
	}
	total := int64(p.Total)
	if total == 0 {
		total = int64(p.Done) + 1
	}
	if p.Ended && total < int64(p.Done) {
		total = int64(p.Done)
	}
	bar.SetCurrent(int64(p.Done))
	bar.SetTotal(total, p.Ended)
}

func (b *bars) end() {
	for _, bar := range b.of {
		if !bar.Completed() {
			bar.Abort(false)
		}
	}
	b.pool.Wait()
}
