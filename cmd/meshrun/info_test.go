package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestInfo(t *testing.T) {
	golden(t, "info_2x4.out", meshrunProgram("info", "--mesh", "2x4", "--num_links", "2").stdout)
	golden(t, "info_presets.out", meshrunProgram("info").stdout)
}

func TestInfoJSON(t *testing.T) {
	p := meshrunProgram("info", "--preset", "wh-galaxy-4x8", "--num-links", "4", "--json")
	require.Equal(t, 0, p.code, p.stderr)
	var m struct {
		Schema, Devices, Queues, Semaphores int
		NumLinks                            int `json:"num_links"`
		Name, Arch, Driver                  string
		Mesh, Grid                          [2]int
		Axes                                []struct {
			Axis, Length, Links int
			Wrap                bool
			Topology            string
		}
		Pools map[string]int
		Lazy  []string `json:"on_first_use"`
		DRAM  int64    `json:"dram_bytes"`
		L1    int64    `json:"l1_bytes"`
	}
	require.NoError(t, json.Unmarshal([]byte(p.stdout), &m))
	require.Equal(t, 1, m.Schema)
	require.Equal(t, 32, m.Devices)
	require.Equal(t, [2]int{4, 8}, m.Mesh)
	require.Equal(t, [2]int{8, 9}, m.Grid)
	require.Equal(t, "wh-galaxy-4x8", m.Name)
	require.Equal(t, 44+4*4, m.Semaphores, "design: 44 + 4 for each link")
	require.Equal(t, 2*4, m.Pools["exp_ring[1]"])
	require.Equal(t, []string{"barrier_fused", "fsdp", "np_fused", "np_region", "strided_ag_mm"}, m.Lazy)
	require.Len(t, m.Pools, 2*7)
	require.Len(t, m.Axes, 2)
	require.Equal(t, "ring", m.Axes[0].Topology)
	require.Equal(t, 4, m.Axes[0].Links)
	require.Positive(t, m.DRAM)
	require.Positive(t, m.L1)

	p = meshrunProgram("info", "--json")
	var list struct{ Presets []struct{ Name string } }
	require.NoError(t, json.Unmarshal([]byte(p.stdout), &list))
	require.Len(t, list.Presets, 11)
}

// The topology that is used, axis by axis: what was asked for, what the axis allows.
func TestInfoTopology(t *testing.T) {
	for args, want := range map[string][2]string{
		"--mesh 2x4":                                 {"linear", "ring"},
		"--mesh 2x4 --topology linear":               {"linear", "linear"},
		"--mesh 4x4 --topology ring":                 {"ring", "ring"},
		"--preset wh-t3000-2x4":                      {"linear", "linear"},
		"--preset wh-t3000-1x8 --topology ring":      {"linear", "ring"},
		"--mesh 2x4 --driver null --topology linear": {"linear", "linear"},
	} {
		p := meshrunProgram(append([]string{"info", "--json"}, strings.Fields(args)...)...)
		require.Equal(t, 0, p.code, "%s: %s", args, p.stderr)
		var m struct{ Axes []struct{ Topology string } }
		require.NoError(t, json.Unmarshal([]byte(p.stdout), &m))
		require.Equal(t, want, [2]string{m.Axes[0].Topology, m.Axes[1].Topology}, args)
	}
}

func TestInfoBadInput(t *testing.T) {
	for args, want := range map[string]string{
		"--mesh 2x4 --preset wh-t3000-2x4":       "--preset excludes --mesh",
		"--mesh 4":                               `mesh "4": is ROWSxCOLUMNS`,
		"--preset wh-t3000":                      `--preset "wh-t3000": is unknown`,
		"--preset wh-t3000-2x4 --num_links 2":    "num_links 2: axis 0: asked 2 links, 1 available",
		"--mesh 2x4 --num_links 0":               "--num_links 0: is at least 1",
		"--mesh 2x4 --topology star":             `topology "star"`,
		"--preset wh-t3000-2x4 --topology ring":  "no link from its last device",
		"--num_links 2":                          "info needs --mesh or --preset",
		"--mesh 2x4 --driver /no/such/driver.so": "/no/such/driver.so",
		"extra":                                  "unknown command",
	} {
		p := meshrunProgram(append([]string{"info"}, strings.Fields(args)...)...)
		require.Equal(t, 2, p.code, "%s: %s", args, p.stderr)
		require.Contains(t, p.stderr, want)
		require.Equal(t, 1, strings.Count(p.stderr, "\n"), p.stderr)
		require.Empty(t, p.stdout)
	}
}
