package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/cmd/meshrun/internal/suggest"
	"github.com/meshrun/meshrun/messages"
)

func newInfo(s *State) *cobra.Command {
	var preset, mesh, topology, driver string
	var links int
	var asJSON bool
	c := &cobra.Command{
		Use:   "info",
		Short: "Describes a mesh, or lists the machines that the emulator knows",
		Long: `Opens a mesh and describes it: devices, links and topology of each axis, pools and semaphores, memory. Without a mesh or a preset it lists
the machines that the emulator knows.`,
		Example: `  meshrun info
  meshrun info --preset wh-galaxy-4x8 --num_links 4
  meshrun info --mesh 2x4 --topology linear --json`,
		Args: cobra.NoArgs,
	}
	flags := c.Flags()
	flags.SortFlags = false
	flags.StringVar(&preset, "preset", "", "a named machine")
	flags.StringVar(&mesh, "mesh", "", "rows and columns, such as 2x4")
	flags.IntVar(&links, "num_links", 1, "links per edge that collectives use")
	flags.StringVar(&topology, "topology", "unset", "linear, ring or unset")
	flags.StringVar(&driver, "driver", "", "a shared library to open the mesh with, instead of the emulator")
	flags.BoolVar(&asJSON, "json", false, "print one JSON object")
	flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "-", "_"))
	})
	c.RunE = func(c *cobra.Command, _ []string) error {
		if preset == "" && mesh == "" {
			if c.Flags().NFlag() > 1 || c.Flags().NFlag() == 1 && !asJSON {
				return usage(fmt.Errorf("info needs --mesh or --preset"))
			}
			return s.listPresets(asJSON)
		}
		cfg := meshrun.Config{Preset: preset, NumLinks: links, Driver: driver}
		if err := checkInfo(&cfg, mesh, topology); err != nil {
			return err
		}
		return s.describeMesh(c.Context(), cfg, asJSON)
	}
	return c
}

func checkInfo(cfg *meshrun.Config, mesh, topology string) error {
	var err error
	if mesh != "" && cfg.Preset != "" {
		return usage(fmt.Errorf("--preset excludes --mesh: a preset has its own"))
	}
	if mesh != "" {
		if cfg.Mesh, err = messages.ParseMeshShape(mesh); err != nil {
			return err
		}
	}
	if cfg.NumLinks < 1 {
		return messages.Invalid("", "--num_links", cfg.NumLinks, "is at least 1")
	}
	if cfg.Topology, err = messages.ParseTopology(topology); err != nil {
		return err
	}
	if cfg.Preset != "" {
		known, err := machines()
		if err != nil {
			return err
		}
		if _, ok := known[cfg.Preset]; !ok {
			return messages.Invalid("", "--preset", fmt.Sprintf("%q", cfg.Preset), "is unknown: %s", suggest.Hint(cfg.Preset, slices.Sorted(maps.Keys(known))))
		}
	}
	return nil
}

func (s *State) listPresets(asJSON bool) error {
	presets, err := meshrun.Presets()
	if err != nil {
		return err
	}
	if asJSON {
		return s.writeJSON(struct {
			Schema  int              `json:"schema"`
			Presets []meshrun.Preset `json:"presets"`
		}{1, presets})
	}
	t := s.table()
	t.AppendHeader(table.Row{"preset", "arch", "mesh", "links", "ring axes", "grid", "dram", "l1 per core"})
	for _, p := range presets {
		var rings []string
		for a, wrap := range p.Wrap {
			if wrap {
				rings = append(rings, fmt.Sprint(a))
			}
		}
		t.AppendRow(table.Row{p.Name, p.Arch, fmt.Sprintf("%dx%d", p.Mesh[0], p.Mesh[1]), fmt.Sprintf("%d, %d", p.Links[0], p.Links[1]),
			strings.Join(rings, ", "), fmt.Sprintf("%dx%d", p.Grid[0], p.Grid[1]), bytes(p.DRAM), bytes(p.L1)})
	}
	t.Render()
	return nil
}

// meshInfo is what info tells of a mesh.
type meshInfo struct {
	Schema     int            `json:"schema"`
	Driver     string         `json:"driver"`
	Name       string         `json:"name"`
	Arch       string         `json:"arch"`
	Mesh       [2]int         `json:"mesh"`
	Devices    int            `json:"devices"`
	Grid       [2]int         `json:"grid"`
	Queues     int            `json:"queues"`
	NumLinks   int            `json:"num_links"`
	Axes       []axisInfo     `json:"axes"`
	Pools      map[string]int `json:"pools"`        // semaphores by pool and axis
	Lazy       []string       `json:"on_first_use"` // pools that have none yet
	Semaphores int            `json:"semaphores"`
	Buffers    int            `json:"buffers"`
	DRAM       int64          `json:"dram_bytes"`
	L1         int64          `json:"l1_bytes"`
}

type axisInfo struct {
	Axis     int    `json:"axis"`
	Length   int    `json:"length"`
	Links    int    `json:"links"`
	Wrap     bool   `json:"wrap"`
	Topology string `json:"topology"`
}

func (s *State) describeMesh(ctx context.Context, cfg meshrun.Config, asJSON bool) (err error) {
	mesh, err := meshrun.Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() {
		if closing := mesh.Close(ctx); err == nil {
			err = closing
		}
	}()
	stats, err := mesh.Stats(ctx)
	if err != nil {
		return err
	}
	i := mesh.Info()
	out := meshInfo{Schema: 1, Driver: i.Driver, Name: i.Name, Arch: i.Arch, Mesh: [2]int{i.Mesh.Rows, i.Mesh.Cols}, Devices: i.Mesh.Devices(),
		Grid: [2]int{i.GridX, i.GridY}, Queues: i.Queues, NumLinks: i.NumLinks, Pools: map[string]int{}, Semaphores: stats.Semaphores, Buffers: stats.Buffers,
		DRAM: i.DRAM, L1: i.L1}
	for pool := range messages.PoolCount {
		made := 0
		for a := range 2 {
			name := fmt.Sprintf("%s[%d]", pool, a)
			if n := stats.Pools[name]; n > 0 {
				out.Pools[name] = n
				made += n
			}
		}
		if made == 0 {
			out.Lazy = append(out.Lazy, pool.String())
		}
	}
	slices.Sort(out.Lazy)
	for a := range 2 {
		out.Axes = append(out.Axes, axisInfo{a, i.Mesh.Axis(a), i.Links[a], i.Wrap[a], i.Topology[a].String()})
	}
	if asJSON {
		return s.writeJSON(out)
	}
	return s.writeMesh(out)
}

func (s *State) writeMesh(m meshInfo) error {
	t := s.table()
	t.AppendRows([]table.Row{
		{"machine", m.Name}, {"architecture", m.Arch}, {"driver", m.Driver},
		{"mesh", fmt.Sprintf("%dx%d, %s", m.Mesh[0], m.Mesh[1], plural(m.Devices, "device"))},
		{"cores per device", fmt.Sprintf("%dx%d", m.Grid[0], m.Grid[1])},
		{"memory", fmt.Sprintf("%s DRAM per device, %s L1 per core", bytes(m.DRAM), bytes(m.L1))},
		{"command queues", m.Queues},
		{"links in use", m.NumLinks},
		{"semaphores", m.Semaphores},
	})
	t.Render()
	t = s.table()
	t.AppendHeader(table.Row{"axis", "length", "links per edge", "wrap link", "topology"})
	for _, a := range m.Axes {
		t.AppendRow(table.Row{a.Axis, a.Length, a.Links, strconv.FormatBool(a.Wrap), a.Topology})
	}
	t.Render()
	t = s.table()
	t.AppendHeader(table.Row{"pool", "semaphores on axis 0", "on axis 1"})
	for _, name := range poolNames(m.Pools) {
		t.AppendRow(table.Row{name, m.Pools[name+"[0]"], m.Pools[name+"[1]"]})
	}
	for _, name := range m.Lazy {
		t.AppendRow(table.Row{name, "on first use", "on first use"})
	}
	t.Render()
	return nil
}

// poolNames are the pools without their axes, sorted.
func poolNames(pools map[string]int) []string {
	names := map[string]bool{}
	for p := range pools {
		name, _, _ := strings.Cut(p, "[")
		names[name] = true
	}
	return slices.Sorted(maps.Keys(names))
}

func (s *State) writeJSON(v any) error {
	e := json.NewEncoder(s.Stdout)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func bytes(n int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size && n%u.size == 0 {
			return fmt.Sprintf("%d %s", n/u.size, u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}
