package workload

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
)

func galaxy(model string) Config {
	return Config{Model: model, Preset: "bh-galaxy-4x8", TP: Factor{Size: 4, Axis: 0}, SP: Factor{Size: 8, Axis: 1}, Topology: meshrun.Ring, NumLinks: 2,
		Mode: meshrun.Timing, Streams: 1, Steps: 1}
}

// shortened is a config.json of so many blocks instead of forty.
func shortened(config string, blocks int) string {
	return strings.Replace(config, `"num_layers": 40`, fmt.Sprintf(`"num_layers": %d`, blocks), 1)
}

func launchesOf(r *Result) int {
	n := 0
	for _, o := range r.Times {
		n += o.Launches
	}
	return n
}

// eventsOf is how many events the emulator has taken for a run: what its cost is made of, free of the host's noise.
func eventsOf(t testing.TB, r *Result) int {
	var counts struct{ Events int }
	require.NoError(t, json.Unmarshal(r.Stats.(map[string]any)["mesh"].(json.RawMessage), &counts))
	return counts.Events
}

// cpuTime is what the process has used of all cores.
func cpuTime(t testing.TB) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkTiming simulates a denoising step of Wan2.2 14B at 720p, of more and more blocks and on more and more devices. The cost is that of
// launches times devices: what a launch takes on a device does not grow with either.
func BenchmarkTiming(b *testing.B) {
	whole := catalogue["wan2.2-14b-720p"]
	defer func() { catalogue["wan2.2-14b-720p"] = whole }()
	for _, m := range []struct {
		preset string
		tp, sp Factor
		links  int
	}{
		{"bh-quietbox-2x2", Factor{Size: 2, Axis: 0}, Factor{Size: 2, Axis: 1}, 2},
		{"bh-8xp150-2x4", Factor{Size: 2, Axis: 0}, Factor{Size: 4, Axis: 1}, 2},
		{"bh-galaxy-4x8", Factor{Size: 4, Axis: 0}, Factor{Size: 8, Axis: 1}, 2},
		{"bh-quad-galaxy-4x32", Factor{Size: 4, Axis: 0}, Factor{Size: 32, Axis: 1}, 2},
	} {
		for _, blocks := range []int{10, 20, 40} {
			b.Run(fmt.Sprintf("%s/blocks=%d", m.preset, blocks), func(b *testing.B) {
				catalogue["wan2.2-14b-720p"] = entry{config: shortened(whole.config, blocks), inputs: whole.inputs, forwards: whole.forwards}
				c := galaxy("wan2.2-14b-720p")
				c.Preset, c.TP, c.SP, c.NumLinks, c.Topology = m.preset, m.tp, m.sp, m.links, meshrun.TopologyUnset
				for b.Loop() {
					before := cpuTime(b)
					r, err := Run(b.Context(), c, nil)
					cpu := cpuTime(b) - before
					require.NoError(b, err)
					programs := float64(launchesOf(r) * m.tp.Size * m.sp.Size)
					b.ReportMetric(float64(cpu.Nanoseconds())/1000/programs, "cpu-us/launch/device")
					b.ReportMetric(float64(eventsOf(b, r))/programs, "events/launch/device")
					b.ReportMetric(float64(cpu.Milliseconds()), "cpu-ms")
					b.ReportMetric(r.Streams[0].VirtualMS, "virtual-ms")
				}
			})
		}
	}
}
