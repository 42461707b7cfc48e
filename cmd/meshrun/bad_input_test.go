package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What is wrong with a call is told in one line: where it stands, the field, the value, the rule. Nothing is enqueued for it.
func TestBadCalls(t *testing.T) {
	const tensors = `{"x":{"shape":[1,2,4,4,8],"layout":"row_major"},"t":{"shape":[1,2,4,4,8]},"y":{"shape":[1,1,32,32]},"w":{"shape":[32,32]},"r":{"shape":[6,2,3],"layout":"row_major"}}`
	position := regexp.MustCompile(`^meshrun: standard input:(\d+:\d+:)? calls\[0\]`)
	for bad, want := range map[string]string{
		`{"op":"neighbor_pad","in":"x","dims":[2],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1]}`:                                           `neighbor_pad: axes [0 1]: has a number for each of the dims [2]`,
		`{"op":"neighbor_pad","in":"x","dims":[2,2],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1]}`:                                         `neighbor_pad: dims and axes [2 2] and [0 1]: are two different dims on two different axes`,
		`{"op":"neighbor_pad","in":"x","dims":[2,3],"axes":[0,0],"pad_left":[1,1],"pad_right":[1,1]}`:                                         `neighbor_pad: dims and axes [2 3] and [0 0]: are two different dims on two different axes`,
		`{"op":"neighbor_pad","in":"x","dims":[2,3],"axes":[0,2],"pad_left":[1,1],"pad_right":[1,1]}`:                                         `neighbor_pad: axes 2: are 0 or 1`,
		`{"op":"neighbor_pad","in":"x","dims":[2,3],"axes":[0,1],"pad_left":[5,1],"pad_right":[1,1]}`:                                         `neighbor_pad: pad_left 5: is at most 4, the local extent of dim 2`,
		`{"op":"neighbor_pad","in":"x","dims":[2,3],"axes":[0,1],"pad_left":[-1,1],"pad_right":[1,1]}`:                                        `neighbor_pad: pad_left -1: is not negative`,
		`{"op":"neighbor_pad","in":"x","dims":[2,3],"axes":[0,1],"pad_left":[0,0],"pad_right":[0,0]}`:                                         `neighbor_pad: pad_left and pad_right [0 0] and [0 0]: pad on some side`,
		`{"op":"neighbor_pad","in":"x","dims":[2,3],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1],"num_links":[2,1]}`:                       `neighbor_pad: num_links 2: is 1 to 1, the links of this manager`,
		`{"op":"neighbor_pad","in":"x","dims":[2,3],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1],"num_links":[1]}`:                         `neighbor_pad: num_links [1]: has a number for each of the dims [2 3]`,
		`{"op":"neighbor_pad","in":"x","dims":[2,3],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1],"padding_mode":"circular"}`:               `calls[0].padding_mode: padding_mode "circular": must be one of zeros, replicate`,
		`{"op":"neighbor_pad","in":"x","dims":[2,3],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1],"logical_h":9}`:                           `neighbor_pad: logical_h 9: is 0 (all rows are real) to 8, the rows of the whole dim 2`,
		`{"op":"neighbor_pad","in":"x","dims":[2,3],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1],"logical_h":-1}`:                          `neighbor_pad: logical_h -1: is 0 (all rows are real) to 8, the rows of the whole dim 2`,
		`{"op":"neighbor_pad","in":"x","dims":[2,3],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1],"t_front_pad":-1}`:                        `neighbor_pad: t_front_pad -1: is not negative, and needs a dim in front of dim 2`,
		`{"op":"neighbor_pad","in":"x","dims":[5,3],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1]}`:                                         `neighbor_pad: dims 5: is a dim of [1, 2, 4, 4, 8], from -5 to 4`,
		`{"op":"neighbor_pad","in":"x","dims":[1,2,3],"axes":[0,1,0],"pad_left":[1,1,1],"pad_right":[1,1,1]}`:                                 `neighbor_pad: dims [1 2 3]: are one or two`,
		`{"op":"neighbor_pad","in":"t","dims":[2,3],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1]}`:                                         `neighbor_pad: input layout tile: is row_major`,
		`{"op":"neighbor_pad","in":"x","dims":[0,3],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1],"t_front_pad":1}`:                         `neighbor_pad: t_front_pad 1: is not negative, and needs a dim in front of dim 0`,
		`{"op":"neighbor_pad","in":"x","dims":[2,3],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1],"neighbor_sems":["y"]}`:                   `neighbor_pad: neighbor_sems "y": are semaphores of a getter; this name stands for a tensor`,
		`{"op":"neighbor_pad","in":"x","dims":[2,3],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1],"neighbor_sems":["nope"]}`:                `calls[0]: unknown tensor "nope": known are r, t, w, x, y`,
		`{"op":"neighbor_pad","in":"x","dims":"2","axes":[0,1],"pad_left":[1,1],"pad_right":[1,1]}`:                                           `calls[0].dims: "2": is a list of whole numbers`,
		`{"op":"neighbor_pad","in":"x","dims":[2.5,3],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1]}`:                                       `calls[0].dims[0]: 2.5: is a whole number`,
		`{"op":"neighbor_pad","in":"x","dims":[1,2,3,4,5,6,7,8,9],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1]}`:                           `neighbor_pad: dims [1 2 3 4 5 6 7 8 9]: has at most 8 numbers`,
		`{"op":"neighbor_pad_halo_only","in":"x","dims":[1,2],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1]}`:                               `neighbor_pad_halo_only: neighbor_pad_halo: dims [1 2]: are H, or H and W, of [.., H, W, C]: 2, or 2 and 3`,
		`{"op":"neighbor_pad_halo_only","in":"x","dims":[2,3],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1],"input_pad_h":2}`:               `neighbor_pad_halo_only: neighbor_pad_halo: input_pad_h 2: leaves an interior of dim 2, 4 long, that holds the halo`,
		`{"op":"neighbor_pad_halo_only","in":"x","dims":[2,3],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1],"input_pad_h":-1}`:              `neighbor_pad_halo_only: neighbor_pad_halo: input_pad_h -1: is the input's own padding of a dim that is exchanged`,
		`{"op":"neighbor_pad_halo_only","in":["x","x"],"dims":[2,3],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1]}`:                         `neighbor_pad_halo_only: neighbor_pad_halo: padded_output [1, 2, 4, 4, 8] bfloat16 row_major dram: is [1, 2, 6, 6, 8] bfloat16 row_major`,
		`{"op":"neighbor_pad_halo","in":"x","np_padding_h":1,"np_pad2_left":1}`:                                                               `neighbor_pad_halo: np_pad2_left and np_pad2_right [1 0]: need np_pad_dim2, the dim of W`,
		`{"op":"neighbor_pad_halo","in":"x","np_padding_h":[1,1,1]}`:                                                                          `neighbor_pad_halo: np_padding_h [1 1 1]: is a number, or a left and a right one`,
		`{"op":"neighbor_pad_halo_scatter","in":"x","dims":[2,3],"axes":[0,1],"pad_left":[1,1],"pad_right":[1,1],"border_only":true}`:         `neighbor_pad_halo_scatter: halo_scatter: compact [40, 8]: is [24, 8], the sticks round [1, 2, 2, 2, 8] with pads [1 1] and [1 1]`,
		`{"op":"halo_scatter","in":["x","x"],"np_padding_h":1}`:                                                                               `halo_scatter: compact [1, 2, 4, 4, 8]: is [16, 8], the sticks round [1, 2, 4, 4, 8] with pads [1 1] and [0 0]`,
		`{"op":"halo_scatter","in":["w","x"],"np_padding_h":1}`:                                                                               `halo_scatter: layout tile: is row_major`,
		`{"op":"slice_reshard","in":"r","output_dim_offset":0,"output_dim_shape":10,"mesh_axis":1}`:                                           `slice_reshard: output_dim_shape 10: is positive and divides by the length 4 of axis 1`,
		`{"op":"slice_reshard","in":"r","output_dim_offset":-1,"output_dim_shape":8,"mesh_axis":1}`:                                           `slice_reshard: output_dim_offset -1: is not negative`,
		`{"op":"slice_reshard","in":"r","output_dim_offset":0,"output_dim_shape":8,"mesh_axis":1,"dim":1}`:                                    `slice_reshard: dim 1: is 0`,
		`{"op":"slice_reshard","in":"y","output_dim_offset":0,"output_dim_shape":8,"mesh_axis":1}`:                                            `slice_reshard: input layout tile: is row_major`,
		`{"op":"slice_reshard","in":"r","output_dim_offset":0,"output_dim_shape":8,"mesh_axis":null}`:                                         `slice_reshard: mesh_axis null: is 0 or 1`,
		`{"op":"slice_reshard","in":"r","output_dim_offset":0,"output_dim_shape":8,"mesh_axis":3}`:                                            `slice_reshard: mesh_axis 3: is 0 or 1`,
		`{"op":"rms_norm","in":"y","epsilon":"NaN"}`:                                                                                          `rms_norm: epsilon NaN: is a number that is not negative`,
		`{"op":"layer_norm","in":"y","epsilon":"Inf"}`:                                                                                        `layer_norm: epsilon +Inf: is a number that is not negative`,
		`{"op":"fused_distributed_norm","in":"y","mesh_axis":1,"epsilon":"NaN"}`:                                                              `fused_distributed_norm: epsilon NaN: is a number that is not negative`,
		`{"op":"add","in":["y","y"],"scalar":2}`:                                                                                              `add: scalar 2: stands where there is no b`,
		`{"op":"point_to_point","in":"y","pairs":[]}`:                                                                                         `point_to_point: pairs 0: are 1 to 128`,
		`{"op":"point_to_point","in":"y","pairs":[[[0,0],[1,1]]]}`:                                                                            `point_to_point: pairs (0,0) to (1,1): are two devices of one line`,
		`{"op":"point_to_point","in":"y","pairs":[[[0,0],[0,9]]]}`:                                                                            `point_to_point: pairs (0,9): lie on the mesh 2x4`,
		`{"op":"point_to_point","in":"y","pairs":[[[0,0],[0,-1]]]}`:                                                                           `point_to_point: device (0,-1): lies on a mesh`,
		`{"op":"point_to_point","in":"y","pairs":[[[0,0]]]}`:                                                                                  `calls[0].pairs[0]: a list of 1: is a pair of devices, [from, to]`,
		`{"op":"point_to_point","in":"y","pairs":[[[0,0],[0,1]],[[0,2],[0,1]]]}`:                                                              `point_to_point: pairs (0,2) to (0,1): name each sender and each receiver once`,
		`{"op":"strided_all_gather_minimal_matmul","in":["y","w"],"mesh_axis":1}`:                                                             `strided_all_gather_minimal_matmul: weight [32, 32]: has 128 rows, the last dim of the input [1, 1, 32, 128]`,
		`{"op":"strided_all_gather_minimal_matmul","in":["y","w"],"mesh_axis":1,"dim":2}`:                                                     `strided_all_gather_minimal_matmul: dim 2: is 3, the last`,
		`{"op":"strided_all_gather_minimal_matmul","in":["y","w"],"mesh_axis":1,"num_workers_per_link":99}`:                                   `strided_all_gather_minimal_matmul: num_workers_per_link 99: is 1 to 8, on at most 4 links`,
		`{"op":"matmul_strided_reduce_scatter","in":["y","w"],"mesh_axis":0}`:                                                                 `matmul_strided_reduce_scatter: topology linear: is ring on axis 0: the fused scatter runs on rings only; use matmul, then reduce_scatter`,
		`{"op":"matmul_strided_reduce_scatter","in":["y","w",null,"y"],"mesh_axis":1}`:                                                        `matmul_strided_reduce_scatter: residual and gate one: are both or none`,
		`{"op":"conv3d","in":["x","w"],"kernel":[3,3,3]}`:                                                                                     `conv3d: kernel of T 3: fits into the padded extent 2`,
		`{"op":"conv3d","in":["x","w"],"kernel":[3,3]}`:                                                                                       `conv3d: kernel [3 3]: is [T, H, W]`,
		`{"op":"np_conv3d","in":["x","w"],"kernel":[3,3,3],"axes":[0]}`:                                                                       `np_conv3d: axes [0]: are the mesh axes of H and of W`,
		`{"op":"device_to_host","in":"y","mesh_dims":[2]}`:                                                                                    `calls[0].mesh_dims: a list of 1: is a dim for each of the two mesh axes; null: not along that one`,
		`{"op":"device_to_host","in":"y","mesh_dims":[2,4]}`:                                                                                  `device_to_host: mesh_dims 4: is a dim of [1, 1, 32, 32]`,
		`{"op":"device_to_host","in":"y","mesh_dims":[-5,null]}`:                                                                              `device_to_host: mesh_dims -5: is a dim of [1, 1, 32, 32]`,
		`{"op":"get_rs_ping_pong_buffer","shape":[1,1,32,32],"dim":3,"mesh_axis":1,"return_output_buffer":false,"return_intermediate":false}`: `get_rs_ping_pong_buffer: return_output_buffer and return_intermediate false: are not both false: a buffer has at least one part`,
		`{"op":"get_np_ping_pong_buffer","input_shape":[1,2,3],"dims":[3],"pad_left":[1],"pad_right":[1]}`:                                    `get_np_ping_pong_buffer: dims 3: is a dim of [1, 2, 3]`,
		`{"op":"get_np_halo_buffer","input_shape":[1,2,4,4,8],"dim":4,"padding":1}`:                                                           `get_np_halo_buffer: get_buffers: dim 4: lies before the channels, the last dim of [1, 2, 4, 4, 8]`,
		`{"op":"get_np_halo_buffer","input_shape":[1,2,4,4,8],"dim":2,"padding":-1}`:                                                          `get_np_halo_buffer: get_buffers: padding -1: is not negative`,
		`{"op":"get_strided_ag_mm_semaphore","mesh_axis":0,"num_workers_per_link":0}`:                                                         `get_strided_ag_mm_semaphore: num_workers_per_link 0: is at least 1`,
		`{"op":"get_ag_ping_pong_semaphore","mesh_axis":null}`:                                                                                `get_ag_ping_pong_semaphore: mesh_axis null: is 0 or 1`,
		`{"op":"get_ag_ping_pong_semaphore","mesh_axis":2}`:                                                                                   `get_ag_ping_pong_semaphore: get_semaphores: mesh_axis 2: is 0 or 1`,
		`{"op":"get_fused_norm_stats_buffer","key":"","shape":[1]}`:                                                                           `calls[0].key: is not empty`,
		`{"op":"all_gather_persistent_buffer","in":"y","dim":3,"mesh_axis":1,"capacity":100}`:                                                 `all_gather_persistent_buffer: all_gather: capacity 100: is at least 128, the gathered length of dim 3`,
		`{"op":"all_gather","in":"y","dim":3,"mesh_axis":1,"capacity":128}`:                                                                   `all_gather: capacity 128: is of a persistent buffer; use one or leave it out`,
		`{"op":"all_gather_persistent_buffer","in":"y","dim":3,"mesh_axis":1,"capacity":-1}`:                                                  `all_gather_persistent_buffer: capacity -1: is at least 1`,
		`{"op":"prewarm","keys":[{"op":"add"}]}`:                                                                                              `calls[0].keys[0].op: "add": is a getter of buffers, such as get_ag_ping_pong_buffer`,
		`{"op":"prewarm","keys":[{"op":"get_ag_hyperparams","shape":[1,1,1]}]}`:                                                               `calls[0].keys[0].op: "get_ag_hyperparams": is a getter that has a buffer to lend, such as get_ag_ping_pong_buffer`,
		`{"op":"prewarm"}`:                                                           `calls[0]: prewarm needs "keys"`,
		`{"op":"release_buffers","keys":"all"}`:                                      `calls[0].keys: "all": is a list of getters of buffers`,
		`{"op":"get_ag_hyperparams","shape":[1]}`:                                    `get_ag_hyperparams: shape [1]: has rank 3 at least: the rows are dim 2`,
		`{"op":"ring_joint_sdpa","in":["y","y","y"],"mesh_axis":1,"logical_n":1000}`: `ring_joint_sdpa: logical_n 1000: is 0 (all) to 128, the rows of the whole sequence`,
		`{"op":"reset","x":1}`:                                                       `calls[0]: unknown argument "x" of reset: known are op, expect`,
		`{"op":"get_ag_ping_pong_buffer","shape":[1,1,1000000000,1000000000],"dim":3,"mesh_axis":1}`:              `get_ag_ping_pong_buffer: get_buffers: buffer [1, 1, 1000000000, 0]: has dims of at least 1 and less than 2^31; one that is not shows as 0`,
		`{"op":"get_np_ping_pong_buffer","input_shape":[1,2147483647],"dims":[1],"pad_left":[1],"pad_right":[1]}`: `get_np_ping_pong_buffer: shape [1 2147483649]: has at most 8 dims, each at least 1 and less than 2^31`,
		`{"op":"get_np_halo_buffer","input_shape":[2000000000,200000,4,4,8],"dim":2,"padding":1}`:                 `get_np_halo_buffer: get_buffers: buffer [0, 8]: has dims of at least 1 and less than 2^31; one that is not shows as 0`,
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			p := execute(fmt.Sprintf(`{"mesh":[2,4],"tensors":%s,"calls":[%s]}`, tensors, bad))
			require.Equal(t, 2, p.code, "%s: %s", bad, p.stderr)
			require.Equal(t, 1, strings.Count(p.stderr, "\n"), p.stderr)
			require.Regexp(t, position, p.stderr)
			require.Contains(t, p.stderr, want)
			if p.stdout == "" {
				return // refused before anything ran
			}
			l := readLog(t, p.stdout)
			require.Len(t, l.Rows, 2)
			require.Empty(t, l.Rows[1].Effects)
			require.Contains(t, p.stderr, l.Rows[1].Error)
		})
	}
}
