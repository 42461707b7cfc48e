package devicecgo_test

import (
	"bufio"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/tests/testdriver"
)

// everyArgs lists the args structs with their operation.
func everyArgs() map[uint32]devicecgo.Args {
	return map[uint32]devicecgo.Args{
		devicecgo.OpAllGather: &devicecgo.AllGather{}, devicecgo.OpReduceScatter: &devicecgo.ReduceScatter{}, devicecgo.OpMatmul: &devicecgo.Matmul{},
		devicecgo.OpNorm: &devicecgo.Norm{}, devicecgo.OpFusedDistributedNorm: &devicecgo.FusedDistributedNorm{}, devicecgo.OpRope: &devicecgo.Rope{},
		devicecgo.OpSDPA: &devicecgo.SDPA{}, devicecgo.OpRingJointSDPA: &devicecgo.RingJointSDPA{}, devicecgo.OpBinary: &devicecgo.Binary{},
		devicecgo.OpAddcmul: &devicecgo.Addcmul{}, devicecgo.OpActivation: &devicecgo.Activation{}, devicecgo.OpSlice: &devicecgo.Slice{},
		devicecgo.OpConcat: &devicecgo.Concat{}, devicecgo.OpReshape: &devicecgo.Reshape{}, devicecgo.OpPermute: &devicecgo.Permute{}, devicecgo.OpConvert: &devicecgo.Convert{},
		devicecgo.OpNeighborPad: &devicecgo.NeighborPad{}, devicecgo.OpNeighborPadHalo: &devicecgo.NeighborPadHalo{}, devicecgo.OpHaloScatter: &devicecgo.HaloScatter{},
		devicecgo.OpSliceReshard: &devicecgo.SliceReshard{}, devicecgo.OpPointToPoint: &devicecgo.PointToPoint{}, devicecgo.OpExpRingJointSDPA: &devicecgo.ExpRingJointSDPA{},
		devicecgo.OpStridedAllGatherMatmul: &devicecgo.StridedAllGatherMatmul{}, devicecgo.OpMatmulStridedReduceScatter: &devicecgo.MatmulStridedReduceScatter{},
		devicecgo.OpConv3D: &devicecgo.Conv3D{}, devicecgo.OpNPConv3D: &devicecgo.NPConv3D{},
		devicecgo.OpGroupNorm: &devicecgo.GroupNorm{}, devicecgo.OpGroupNormStats: &devicecgo.GroupNormStats{},
	}
}

var (
	upper  = regexp.MustCompile(`([a-z])([A-Z])`)
	runs   = regexp.MustCompile(`([A-Z])([A-Z][a-z])`)
	floats = map[string]string{"scale": "scale_milli", "scalar": "scalar_milli", "epsilon": "epsilon_micro"}
	micros = map[string]float64{"scale_milli": 1e3, "scalar_milli": 1e3, "epsilon_micro": 1e6}
)

func snake(name string) string {
	if name == "DType" {
		return "dtype"
	}
	return strings.ToLower(runs.ReplaceAllString(upper.ReplaceAllString(name, "${1}_$2"), "${1}_$2"))
}

// TestArgsMeanTheSameOnBothSides fills each struct with a different number per field, sends it through the ABI, and compares by name what C
// reads: a field that stands in another order on the two sides shows up here.
func TestArgsMeanTheSameOnBothSides(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	want := map[uint32]map[string]any{}
	onThread(t, testdriver.Build(t), []devicecgo.Setting{{Key: "log", Value: log}}, func(m *devicecgo.Mesh) {
		for op, args := range everyArgs() {
			h := args.Header()
			*h = devicecgo.OpHeader{Size: 900 + op, Op: op, Present: 7, Launch: 5, Stream: 6}
			fields := map[string]any{"size": float64(900 + op), "present": 7.0, "launch": 5.0, "stream": 6.0}
			v := reflect.ValueOf(args).Elem()
			next := 100
			for i := 1; i < v.NumField(); i++ { // 0 is the header
				f, field := v.Field(i), v.Type().Field(i)
				if field.Name == "_" {
					continue
				}
				name := snake(field.Name)
				switch f.Kind() {
				case reflect.Float32:
					next++
					name = floats[name]
					f.SetFloat(float64(next) / micros[name])
					fields[name] = float64(next)
				case reflect.Array:
					list := []any{}
					for j := range f.Len() {
						next++
						f.Index(j).SetUint(uint64(next))
						list = append(list, float64(next))
					}
					fields[name] = list
				default:
					next++
					f.SetUint(uint64(next))
					fields[name] = float64(next)
				}
			}
			want[op] = fields
			assert.NoError(t, m.Launch(args))
		}
	})
	file, err := os.Open(log)
	require.NoError(t, err)
	defer file.Close()
	seen := 0
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var got map[string]any
		require.NoError(t, json.Unmarshal(lines.Bytes(), &got))
		if got["call"] != "enqueue" {
			continue
		}
		seen++
		op := uint32(math.Round(got["op"].(float64)))
		for name, v := range want[op] {
			assert.Equal(t, v, got[name], "op %d: %s", op, name)
		}
		assert.Len(t, got, len(want[op])+2, "op %d has a field that only one side knows", op)
	}
	assert.Equal(t, len(everyArgs()), seen)
}
