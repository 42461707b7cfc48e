package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// When the mesh is lost every wait ends, a sleep too: virtual time stands still from then on.
func TestASleepEndsWhenTheMeshIsLost(t *testing.T) {
	const gather, sleep = `{"op":"all_gather_persistent_buffer","shape":[1,1,32,64],"dim":3,"mesh_axis":1,"out":"%s"}`, `{"op":"sleep","us":5000}`
	a, b := fmt.Sprintf(gather, "a"), fmt.Sprintf(gather, "b")
	for name, tt := range map[string]struct {
		more string
		code int
	}{
		"a device stops":            {`"faults":["device 0,2 stop at launch 1"],`, 5},
		"a device stops, timing":    {`"mode":"timing","faults":["device 0,2 stop at launch 1"],`, 5},
		"an operation hangs":        {`"faults":["op all_gather hang"],`, 5},
		"no progress":               {`"limits":{"no_progress_us":100},"faults":["device 0,2 delay 1s"],`, 5},
		"a hazard":                  {`"break":["one_bank ag[1]"],"skew_us":200,`, 4},
		"launches in another order": {`"faults":["device 0,2 swap launch 1 and 2"],`, 4},
	} {
		for order, streams := range map[string]string{
			"behind":  fmt.Sprintf(`{"name":"s","calls":[%s,%s,%s,%s]}`, a, b, sleep, sleep),
			"between": fmt.Sprintf(`{"name":"s","calls":[%s,%s]},{"name":"z","calls":[%s,%s]}`, a, b, sleep, sleep),
			"before":  fmt.Sprintf(`{"name":"z","calls":[%s,%s]},{"name":"s","calls":[%s,%s]}`, sleep, sleep, a, b),
		} {
			p := execute(fmt.Sprintf(`{"mesh":[1,4],%s"streams":[%s]}`, tt.more, streams))
			require.Equal(t, tt.code, p.code, "%s, %s: %s", name, order, p.stderr)
		}
	}
}
