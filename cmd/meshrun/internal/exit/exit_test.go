package exit

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
)

func TestCode(t *testing.T) {
	require.Equal(t, OK, Code(nil))
	require.Equal(t, Failure, Code(errors.New("?")))
	require.Equal(t, Failure, Code(ErrExpected))
	for kind, code := range map[error]int{
		meshrun.ErrInvalid: Usage, meshrun.ErrBusy: Usage, meshrun.ErrDeviceLost: Lost, meshrun.ErrTimeout: Limit, meshrun.ErrBudget: Limit, meshrun.ErrQueueFull: Limit,
		meshrun.ErrInternal: Failure, ErrVerification: Verification, ErrHazard: Hazard, ErrHang: Lost,
	} {
		require.Equal(t, code, Code(fmt.Errorf("some op: %w", kind)), kind)
	}
}

func TestTheWorstKindWins(t *testing.T) {
	join := func(e ...error) int { return Code(errors.Join(e...)) }
	require.Equal(t, Lost, join(ErrHazard, meshrun.ErrTimeout, ErrHang))
	require.Equal(t, Hazard, join(meshrun.ErrTimeout, ErrHazard))
	require.Equal(t, Limit, join(ErrVerification, meshrun.ErrBudget))
	require.Equal(t, Verification, join(meshrun.ErrInvalid, ErrVerification))
	require.Equal(t, Usage, join(meshrun.ErrInternal, meshrun.ErrInvalid))
	require.Equal(t, Lost, Code(fmt.Errorf("%w: %w", meshrun.ErrPoisoned, meshrun.ErrDeviceLost)), "a poisoned operation has the code of its cause")
}
