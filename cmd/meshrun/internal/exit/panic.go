package exit

import (
	"fmt"
	"runtime/debug"

	"github.com/meshrun/meshrun"
)

// PanicError is a bug of ours that has been caught. It wraps meshrun.ErrInternal.
type PanicError struct {
	Value any
	Stack []byte
}

// Panic makes the error of a recovered panic. It must be called where the panic was recovered, so that the stack is there.
func Panic(value any) *PanicError { return &PanicError{Value: value, Stack: debug.Stack()} }

func (e *PanicError) Error() string {
	return fmt.Sprintf("%v: %v; please report it, with what %s=1 shows", meshrun.ErrInternal, e.Value, StackVariable)
}

// Unwrap returns the kind.
func (e *PanicError) Unwrap() error { return meshrun.ErrInternal }

// StackVariable is the environment variable that makes the program show the stack of a bug.
const StackVariable = "MESHRUN_STACK"
