package suggest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNearest(t *testing.T) {
	known := []string{"streams", "steps", "seed", "mesh"}
	for word, want := range map[string]string{"stream": "streams", "Steps": "steps", "seeds": "seed", "hsem": "", "mseh": "mesh", "zebra": ""} {
		require.Equal(t, want, Nearest(word, known), word)
	}
}

func TestHint(t *testing.T) {
	require.Equal(t, `did you mean "mesh"?`, Hint("mehs", []string{"mesh", "seed"}))
	require.Equal(t, "known are mesh, seed", Hint("topology", []string{"mesh", "seed"}))
	require.Equal(t, "there are none", Hint("x", nil))
}
