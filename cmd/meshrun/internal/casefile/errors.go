package casefile

import (
	"fmt"
	"strings"

	"github.com/meshrun/meshrun"
)

// Error is one thing that is wrong with a case, and where.
type Error struct {
	Line, Col int
	Where     string // such as "calls[3].dim"; "" = the whole file
	Text      string
}

func (e *Error) Error() string {
	if e.Where == "" {
		return fmt.Sprintf("%d:%d: %s", e.Line, e.Col, e.Text)
	}
	return fmt.Sprintf("%d:%d: %s: %s", e.Line, e.Col, e.Where, e.Text)
}

// Unwrap makes errors.Is(err, meshrun.ErrInvalid) true.
func (e *Error) Unwrap() error { return meshrun.ErrInvalid }

// Errors is all that is wrong with a case, in the order of the file.
type Errors []*Error

func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, one := range e {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap makes errors.Is(err, meshrun.ErrInvalid) true.
func (e Errors) Unwrap() error { return meshrun.ErrInvalid }
