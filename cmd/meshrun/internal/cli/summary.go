package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/meshrun/meshrun/workload"
)

// writeSummary answers in one line whether the run is right, and shows each stream.
func writeSummary(s *State, r *workload.Result, err error) error {
	word := "ok"
	if err != nil {
		word = "failed"
	}
	if _, err := fmt.Fprintf(s.Stdout, "%s: %s on %s, %s\n", word, filepath.Base(r.Model), r.Mesh, plural(len(r.Streams), "stream")); err != nil {
		return err
	}
	t := s.table()
	t.AppendHeader(table.Row{"stream", "ok", "wall", "virtual", "operations", "against", "pcc", "max error", ""})
	var right []table.ColumnConfig
	for _, name := range []string{"wall", "virtual", "operations", "pcc", "max error"} {
		right = append(right, table.ColumnConfig{Name: name, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(right)
	for _, stream := range r.Streams {
		row := table.Row{stream.Name, yesNo(stream.OK), milliseconds(stream.WallMS), milliseconds(stream.VirtualMS), stream.Operations, "", "", "", stream.Error}
		if v := stream.Verify; v != nil {
			row[5], row[6], row[7] = v.Against, fmt.Sprintf("%.7f", v.PCC), fmt.Sprintf("%.3g", v.MaxError)
		}
		t.AppendRow(row)
	}
	t.SuppressEmptyColumns()
	t.Render()
	if r.LinkBytes > 0 && r.Forwards > 0 {
		if _, err := fmt.Fprintf(s.Stdout, "%d bytes over links per forward pass\n", r.LinkBytes/int64(r.Forwards)); err != nil {
			return err
		}
	}
	if l := r.Late; l != nil {
		if _, err := fmt.Fprintf(s.Stdout, "device %d,%d was late: others waited %s for it to begin, %.0f %% of the virtual time\n", l.At.Row, l.At.Col,
			milliseconds(l.WaitingMS), 100*l.Share); err != nil {
			return err
		}
	}
	return nil
}

// table is a table on standard output, drawn as the terminal allows.
func (s *State) table() table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(s.Stdout)
	style := table.StyleDefault
	if s.StdoutTTY && !s.plain() {
		style = table.StyleLight
	}
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)
	return t
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "NO"
}

func milliseconds(ms float64) string {
	switch {
	case ms >= 10_000:
		return fmt.Sprintf("%.1f s", ms/1000)
	case ms >= 10:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.2f ms", ms)
}

// writeResultJSON prints the object of docs/run.md.
func writeResultJSON(w io.Writer, r *workload.Result, err error) error {
	type verification struct {
		Against  string `json:"against"`
		PCC      number `json:"pcc"`
		MaxError number `json:"max_error"`
		OK       bool   `json:"ok"`
	}
	type stream struct {
		Name       string        `json:"name"`
		OK         bool          `json:"ok"`
		WallMS     number        `json:"wall_ms"`
		VirtualMS  number        `json:"virtual_ms"`
		Operations int           `json:"operations"`
		Verify     *verification `json:"verify"`
		Error      string        `json:"error,omitempty"`
	}
	out := struct {
		Schema  int      `json:"schema"`
		OK      bool     `json:"ok"`
		Model   string   `json:"model"`
		Mesh    string   `json:"mesh"`
		Streams []stream `json:"streams"`
		Hazards []any    `json:"hazards"`
		Hang    any      `json:"hang"`
		Links   int64    `json:"link_bytes"`
		Passes  int      `json:"forwards"`
		Stats   any      `json:"stats"`
		Error   *string  `json:"error"`
	}{Schema: 1, OK: r.OK && err == nil, Model: r.Model, Mesh: r.Mesh, Streams: []stream{}, Hazards: r.Hazards, Hang: r.Hang, Links: r.LinkBytes,
		Passes: r.Forwards, Stats: r.Stats}
	if out.Hazards == nil {
		out.Hazards = []any{}
	}
	if err != nil {
		text := strings.TrimSpace(err.Error())
		out.Error = &text
	}
	for _, s := range r.Streams {
		one := stream{Name: s.Name, OK: s.OK, WallMS: number(s.WallMS), VirtualMS: number(s.VirtualMS), Operations: s.Operations, Error: s.Error}
		if v := s.Verify; v != nil {
			one.Verify = &verification{v.Against, number(v.PCC), number(v.MaxError), v.OK}
		}
		out.Streams = append(out.Streams, one)
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(out)
}

// number is a float that JSON may have no numeral for: NaN and the infinities become strings.
type number float64

// MarshalJSON implements json.Marshaler.
func (n number) MarshalJSON() ([]byte, error) {
	switch v := float64(n); {
	case math.IsNaN(v):
		return []byte(`"NaN"`), nil
	case math.IsInf(v, 1):
		return []byte(`"Inf"`), nil
	case math.IsInf(v, -1):
		return []byte(`"-Inf"`), nil
	default:
		return json.Marshal(v)
	}
}
