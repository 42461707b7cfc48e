package cli

import (
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/workload"
)

// writeTimes shows what each operation took of the virtual time, where that is all that a run is for.
func writeTimes(s *State, mode meshrun.Mode, times []workload.OperationTime) {
	if mode != meshrun.Timing || len(times) == 0 {
		return
	}
	t := s.table()
	t.AppendHeader(table.Row{"operation", "launches", "virtual"})
	t.SetColumnConfigs([]table.ColumnConfig{
		{Name: "launches", Align: text.AlignRight, AlignHeader: text.AlignRight},
		{Name: "virtual", Align: text.AlignRight, AlignHeader: text.AlignRight},
	})
	for _, o := range times {
		t.AppendRow(table.Row{o.Name, o.Launches, milliseconds(o.VirtualMS)})
	}
	t.Render()
}
