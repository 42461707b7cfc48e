package casefile

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/axis"
)

// Whatever the file is: a case or an error that says where, never a panic.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"../../../../tests/testdata/conformance/gathers1.scenario.json", "../../testdata/two_streams.case.json"} {
		data, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte(`{"mesh":[2,4],"tensors":{"x":{"fill":{"global":[4],"iota":true,"shard":{"0":0}}}},"calls":[{"op":"write","in":"x","fill":{"const":1}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data, machines)
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		c.HostBytes(axis.Mesh{Shape: c.Mesh, NumLinks: 1})
	})
}
