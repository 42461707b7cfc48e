package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Another name of a tensor whose data are still to come is read when they are there.
func TestAnotherNameIsReadWhenTheDataAreThere(t *testing.T) {
	const head = `{"mesh":[2,1],"tensors":{"x":{"shape":[2],"dtype":"float32","fill":{"per_device":[1,2]}}},"calls":[`
	for name, calls := range map[string]string{
		"a gather along an axis of one": `{"op":"all_gather","in":"x","dim":0,"mesh_axis":0,"out":"g"},{"op":"all_gather","in":"g","dim":0,"mesh_axis":1,"out":"h"},{"op":"read","in":"h","out":"y"}`,
		"no axis":                       `{"op":"all_gather","in":"x","dim":0,"mesh_axis":0,"out":"g"},{"op":"all_gather","in":"g","dim":0,"mesh_axis":null,"out":"h"},{"op":"read","in":"h","out":"y"}`,
		"twice":                         `{"op":"all_gather","in":"x","dim":0,"mesh_axis":0,"out":"g"},{"op":"typecast","in":"g","dtype":"float32","out":"h"},{"op":"to_layout","in":"h","layout":"tile","out":"i"},{"op":"read","in":"i","out":"y"}`,
		"persistent":                    `{"op":"all_gather_persistent_buffer","in":"x","dim":0,"mesh_axis":0,"out":"g"},{"op":"all_gather_persistent_buffer","in":"g","dim":0,"mesh_axis":1,"out":"h"},{"op":"read","in":"h","out":"y"}`,
		"device_to_host":                `{"op":"device_to_host","in":"x","mesh_dims":[0,0],"out":"y"}`,
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, []float64{1, 1, 2, 2}, ok(t, head+calls+`]}`).values(t, "y", 0, 0))
		})
	}
}

// A stream that waits for what another makes waits in its own turn: the other goes on meanwhile, and the output is always the same.
func TestStreamsReadEachOther(t *testing.T) {
	const gather = `{"op":"all_gather","in":"x","dim":0,"mesh_axis":1,"out":"y"}`
	for name, streams := range map[string]string{
		"while it sleeps": `[` + gather + `,{"op":"sleep","us":1000}],[{"op":"sleep","us":1},{"op":"read","in":"y","out":"v"}]`,
		"under way":       `[` + gather + `,{"op":"add","in":["y","y"],"out":"z"},{"op":"fence"}],[{"op":"read","in":"y","out":"v"},{"op":"fence"}]`,
		"to the host":     `[` + gather + `,{"op":"fence"}],[{"op":"device_to_host","in":"y","mesh_dims":[null,null],"out":"v"}]`,
	} {
		t.Run(name, func(t *testing.T) {
			calls := strings.SplitN(streams, "],[", 2)
			text := `{"mesh":[1,2],"tensors":{"x":{"shape":[2],"fill":{"per_device":[1,2]}}},"streams":[{"name":"s0","calls":` + calls[0] + `]},{"name":"s1","calls":[` + calls[1] + `}]}`
			first := execute(text)
			require.Equal(t, []float64{1, 1, 2, 2}, ok(t, text).values(t, "v", 0, 0))
			for range 5 {
				require.Equal(t, first.stdout, execute(text).stdout)
			}
		})
	}
}
