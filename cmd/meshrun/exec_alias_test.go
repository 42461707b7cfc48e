package main

import (
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
