package casefile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/axis"
	"github.com/meshrun/meshrun/messages"
)

var machines = map[string]axis.Machine{"wh-t3000-2x4": {Shape: messages.MeshShape{Rows: 2, Cols: 4}},
	"bh-p150-1x1": {Shape: messages.MeshShape{Rows: 1, Cols: 1}}}

func TestTheRecordedCasesParse(t *testing.T) {
	files, err := filepath.Glob("../../../../tests/testdata/conformance/*.scenario.json")
	require.NoError(t, err)
	require.Len(t, files, 9)
	for _, f := range files {
		data, err := os.ReadFile(f)
		require.NoError(t, err)
		c, err := Parse(data, machines)
		require.NoError(t, err, f)
		require.Len(t, c.Streams, 1)
		require.Equal(t, MainStream, c.Streams[0].Name)
		require.Equal(t, messages.Rotate, c.Policy, "calls alone behave as the reference does")
	}
}

// Each of these is refused before anything runs; the error names what is wrong and where.
func TestRefused(t *testing.T) {
	call := func(c string) string {
		return `{"mesh":[2,4],"tensors":{"x":{"shape":[1,1,32,32]}},"calls":[` + c + `]}`
	}
	for name, tt := range map[string]struct {
		text string
		want []string
	}{
		"not JSON":            {`{"mesh":[2,4],}`, []string{"1:", "not JSON"}},
		"cut short":           {`{"mesh":[2,4]`, []string{"1:14", "ends too early"}},
		"empty":               {``, []string{"1:1", "ends too early"}},
		"two values":          {"{\"mesh\":[2,4],\"calls\":[]}\n{}", []string{"2:1", "behind the end"}},
		"not an object":       {`[]`, []string{"a case is an object"}},
		"a key twice":         {`{"mesh":[2,4],"mesh":[2,4],"calls":[]}`, []string{"1:15", `"mesh" stands twice`}},
		"too deep":            {strings.Repeat("[", 100) + strings.Repeat("]", 100), []string{"nested deeper than 64"}},
		"unknown key":         {"{\"mesh\":[2,4],\n \"callz\":[]}", []string{"2:2", `unknown key "callz" of a case`, `did you mean "calls"?`}},
		"no mesh":             {`{"calls":[]}`, []string{`needs "mesh" or "preset"`}},
		"no calls":            {`{"mesh":[2,4]}`, []string{`needs "calls" or "streams"`}},
		"both":                {`{"mesh":[2,4],"calls":[],"streams":[{"calls":[]}]}`, []string{"not both"}},
		"no streams":          {`{"mesh":[2,4],"streams":[]}`, []string{"at least one stream"}},
		"a wrong mesh":        {`{"mesh":[2,0],"calls":[]}`, []string{"1:12: mesh[1]", "0: is at least 1"}},
		"a wrong pair":        {`{"mesh":[2],"calls":[]}`, []string{"a list of 1: is [rows, columns]"}},
		"a big mesh":          {`{"mesh":[2,999],"calls":[]}`, []string{"mesh 2x999", "128"}},
		"unknown preset":      {`{"preset":"wh-t3000-4x2","calls":[]}`, []string{`unknown preset "wh-t3000-4x2"`, `did you mean "wh-t3000-2x4"?`}},
		"another mesh":        {`{"preset":"wh-t3000-2x4","mesh":[4,2],"calls":[]}`, []string{"4x2: preset wh-t3000-2x4 is 2x4"}},
		"no links":            {`{"mesh":[2,4],"num_links":0,"calls":[]}`, []string{"num_links", "0: is at least 1"}},
		"a word for a number": {`{"mesh":[2,4],"num_links":"two","calls":[]}`, []string{"num_links", `"two": is a whole number`}},
		"half a link":         {`{"mesh":[2,4],"num_links":1.5,"calls":[]}`, []string{"1.5: is a whole number"}},
		"topology":            {`{"mesh":[2,4],"topology":"star","calls":[]}`, []string{`topology "star"`, "linear, ring"}},
		"mode":                {`{"mesh":[2,4],"mode":"fast","calls":[]}`, []string{`"fast": is functional or timing`}},
		"rotate":              {`{"mesh":[2,4],"policy":"rotate","streams":[{"calls":[]},{"calls":[]}]}`, []string{"policy", "rotate: is for one stream"}},
		"a name twice":        {`{"mesh":[2,4],"streams":[{"name":"a","calls":[]},{"name":"a","calls":[]}]}`, []string{"streams[1]", `"a" is used twice`}},
		"unknown limit":       {`{"mesh":[2,4],"limits":{"ram":1},"calls":[]}`, []string{`unknown key "ram" of limits`}},
		"unknown operation":   {call(`{"op":"all_gathr","in":"x"}`), []string{"calls[0].op", `unknown operation "all_gathr"`, `did you mean "all_gather"?`}},
		"unknown argument":    {call(`{"op":"all_gather","in":"x","dim":0,"axis":1,"mesh_axis":0}`), []string{"calls[0]", `unknown argument "axis" of all_gather`}},
		"an argument missing": {call(`{"op":"all_gather","in":"x","dim":0}`), []string{"calls[0]", `all_gather needs "mesh_axis"`}},
		"unknown tensor":      {call(`{"op":"read","in":"xx"}`), []string{"calls[0]", `unknown tensor "xx"`, `did you mean "x"?`}},
		"too early":           {call(`{"op":"read","in":"y"},{"op":"read","in":"x","out":"y"}`), []string{"calls[0]", `tensor "y" is used before`}},
		"unknown dtype":       {call(`{"op":"typecast","in":"x","dtype":"bf16"}`), []string{"calls[0].dtype", `dtype "bf16"`, "bfloat16"}},
		"unknown tensor key":  {`{"mesh":[1,1],"tensors":{"x":{"shape":[1],"typ":"a"}},"calls":[]}`, []string{"tensors.x", `unknown key "typ"`}},
		"no input":            {call(`{"op":"add"}`), []string{"calls[0]", "add needs a: a tensor"}},
		"a sum of one":        {call(`{"op":"mul","in":"x"}`), []string{"calls[0]", `mul needs b, or a "scalar"`}},
		"no second":           {call(`{"op":"add","in":["x",null]}`), []string{"calls[0]", `add needs b, or a "scalar"`}},
		"too many inputs":     {call(`{"op":"all_gather","in":["x","x"],"dim":0,"mesh_axis":0}`), []string{"2 tensors: all_gather takes at most 1"}},
		"an input twice":      {call(`{"op":"add","in":["x","x"],"b":"x"}`), []string{"b is given twice"}},
		"input and shape":     {call(`{"op":"rms_norm","in":"x","shape":[1,1,32,32]}`), []string{`"shape" stands for one of zeros`}},
		"too many names":      {call(`{"op":"add","in":["x","x"],"out":["y","z"]}`), []string{"2 names: add has 1"}},
		"an odd expectation":  {call(`{"op":"fence","expect":{"text":"x"}}`), []string{"calls[0].expect", `unknown key "text"`}},
		"two ways to fill":    {`{"mesh":[1,1],"tensors":{"x":{"shape":[1],"fill":{"iota":true,"const":1}}},"calls":[]}`, []string{"filled in one way"}},
		"too few values":      {`{"mesh":[1,1],"tensors":{"x":{"shape":[3],"fill":{"values":[1,2]}}},"calls":[]}`, []string{"2 values: [3] has 3 elements"}},
		"too few devices":     {`{"mesh":[2,4],"tensors":{"x":{"shape":[3],"fill":{"per_device":[1,2]}}},"calls":[]}`, []string{"2 values: one for each of the 8 devices"}},
		"no shape":            {`{"mesh":[1,1],"tensors":{"x":{}},"calls":[]}`, []string{`tensors.x: a tensor needs "shape"`}},
		"not whole":           {`{"mesh":[1,1],"tensors":{"x":{"shape":[1],"dtype":"uint8","fill":{"const":300}}},"calls":[]}`, []string{"300: uint8 holds whole numbers from 0 to 255"}},
		"does not divide":     {`{"mesh":[2,4],"tensors":{"x":{"fill":{"global":[6,6],"iota":true,"shard":{"1":1}}}},"calls":[]}`, []string{"divides by the length 4 of axis 1"}},
		"a wrong shard":       {`{"mesh":[2,4],"tensors":{"x":{"fill":{"global":[6,6],"iota":true,"shard":{"0":2}}}},"calls":[]}`, []string{"2: is a dim of [6, 6]"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(tt.text), machines)
			require.ErrorIs(t, err, meshrun.ErrInvalid)
			for _, want := range tt.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestWhatIsNotThereYetIsRefusedByName(t *testing.T) {
	for _, key := range []string{`"queues":2`, `"managers":2`, `"managers":[{"submesh":{}}]`,
		`"limits":{"depth":4}`} {
		_, err := Parse([]byte(`{"mesh":[2,4],"calls":[],`+key+`}`), machines)
		require.ErrorContains(t, err, "is not supported yet", key)
	}
	for _, arg := range []string{"timeout_us", "queue_timeout_us", "cancel_after_us", "queue", "manager"} {
		_, err := Parse([]byte(`{"mesh":[2,4],"calls":[{"op":"fence","`+arg+`":1}]}`), machines)
		require.ErrorContains(t, err, `"`+arg+`" is not supported yet`)
	}
	for _, op := range later {
		_, err := Parse([]byte(`{"mesh":[2,4],"calls":[{"op":"`+op+`"}]}`), machines)
		require.ErrorContains(t, err, `"`+op+`" is not supported yet`)
	}
}

func TestDefaultsMayBeSaid(t *testing.T) {
	_, err := Parse([]byte(`{"mesh":[2,4],"queues":1,"managers":1,"skew_us":0,"break":[],"faults":[],"on_full":"wait","mode":"functional",
		"calls":[{"op":"fence","queue":0,"manager":0}]}`), machines)
	require.NoError(t, err)
}

func TestAllProblemsAtOnceInTheOrderOfTheFile(t *testing.T) {
	_, err := Parse([]byte("{\"mesh\":[2,4],\n\"nam\":\"x\",\n\"num_links\":0,\n\"calls\":[{\"op\":\"nope\"}]}"), machines)
	var all Errors
	require.True(t, errors.As(err, &all))
	require.Len(t, all, 3)
	require.Equal(t, []int{2, 3, 4}, []int{all[0].Line, all[1].Line, all[2].Line})
}

// A value that breaks a rule is no error of the file: the call is refused when its turn comes, so that a case can expect it.
func TestValuesThatBreakARuleAreTheCallsAffair(t *testing.T) {
	for _, call := range []string{
		`{"op":"all_gather","shape":[1,1,32,32],"dim":9,"mesh_axis":7}`,
		`{"op":"all_gather","shape":[1,1,32,32],"dim":0,"mesh_axis":-1}`,
		`{"op":"all_gather","shape":[0,1],"dim":0,"mesh_axis":0}`,
		`{"op":"get_ag_hyperparams","shape":[4]}`,
		`{"op":"get_rs_ping_pong_buffer","shape":[1,2,3,4,5,6,7,8,9],"dim":0,"mesh_axis":0}`,
		`{"op":"sleep","us":-5}`,
	} {
		c, err := Parse([]byte(`{"mesh":[2,4],"calls":[`+call+`]}`), machines)
		require.NoError(t, err, call)
		require.NotNil(t, c.Streams[0].Calls[0].Action, call)
	}
}

func TestHostBytes(t *testing.T) {
	parse := func(text string) *Case {
		c, err := Parse([]byte(text), machines)
		require.NoError(t, err)
		return c
	}
	mesh := axis.Mesh{Shape: messages.MeshShape{Rows: 2, Cols: 4}, NumLinks: 1, Topology: [2]messages.Topology{messages.Linear, messages.Ring}}
	const shard = 32 * 32 * 2
	for text, want := range map[string]int64{
		`{"mesh":[2,4],"tensors":{"x":{"shape":[32,32]}},"calls":[]}`: 8 * shard,
		// input and result, during the call
		`{"mesh":[2,4],"calls":[{"op":"all_gather","shape":[32,32],"dim":0,"mesh_axis":1}]}`: 8 * 5 * shard,
		// two banks of the gathered shape, and the input
		`{"mesh":[2,4],"calls":[{"op":"all_gather_persistent_buffer","shape":[32,32],"dim":0,"mesh_axis":1}]}`: 8 * 9 * shard,
		// what is held, what is given back
		`{"mesh":[2,4],"calls":[{"op":"write","shape":[32,32],"fill":{"const":1},"out":"x"},{"op":"add","in":["x","x"],"out":"y"},
			{"op":"release","tensors":["x","y"]},{"op":"write","shape":[32,32],"fill":{"const":1},"out":"x"}]}`: 8 * 2 * shard,
		// more than can be counted
		`{"mesh":[2,4],"tensors":{"x":{"shape":[2000000000,2000000000,2000000000]}},"calls":[]}`: 1<<63 - 1,
		// refused calls take nothing
		`{"mesh":[2,4],"calls":[{"op":"all_gather","shape":[32,32],"dim":7,"mesh_axis":1}]}`: 8 * shard,
	} {
		require.Equal(t, want, parse(text).HostBytes(mesh), text)
	}
}
