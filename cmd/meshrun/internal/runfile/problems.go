package runfile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/cmd/meshrun/internal/suggest"
)

// Problem is one thing that is wrong with what a run was told.
type Problem struct {
	Where string // file, line and column, or the flag
	Text  string
}

func (p Problem) String() string {
	if p.Where == "" {
		return p.Text
	}
	return p.Where + ": " + p.Text
}

// Problems are all of them. They wrap meshrun.ErrInvalid.
type Problems []Problem

func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return strings.Join(lines, "\n")
}

// Unwrap makes errors.Is(err, meshrun.ErrInvalid) true.
func (p Problems) Unwrap() error { return meshrun.ErrInvalid }

// unknown is the problem of a key that there is not; nil for one that there is.
func unknown(where, of, name string, keys []Key) *Problem {
	known := names(keys)
	if slices.Contains(known, name) {
		return nil
	}
	return &Problem{where, fmt.Sprintf("unknown key %q of %s: %s", name, of, suggest.Hint(name, known))}
}
