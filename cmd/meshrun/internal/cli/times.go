package cli

import (
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/workload"
)

// writeTimes shows what each operation took of the virtual time, where that is all that a run is for, and what of it was waiting for somebody
// who was late.
func writeTimes(s *State, mode meshrun.Mode, r *workload.Result) {
	if mode != meshrun.Timing || len(r.Times) == 0 {
		return
	}
	t := s.table()
	t.AppendHeader(table.Row{"operation", "launches", "virtual", "waiting for peers"})
	t.SetColumnConfigs([]table.ColumnConfig{
		{Name: "launches", Align: text.AlignRight, AlignHeader: text.AlignRight},
		{Name: "virtual", Align: text.AlignRight, AlignHeader: text.AlignRight},
		{Name: "waiting for peers", Align: text.AlignRight, AlignHeader: text.AlignRight},
	})
	for _, o := range r.Times {
		row := table.Row{o.Name, o.Launches, milliseconds(o.VirtualMS), ""}
		if r.Late != nil {
			row[3] = milliseconds(o.WaitingMS)
		}
		t.AppendRow(row)
	}
	t.SuppressEmptyColumns()
	t.Render()
}
