package execute

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/cmd/meshrun/internal/exit"
)

// report is the mesh's report with the runtime's counts beside the emulator's.
func (r *execution) report(ctx context.Context) (map[string]json.RawMessage, error) {
	text, err := r.mesh.Report(ctx)
	if err != nil {
		return nil, err
	}
	var report map[string]json.RawMessage
	if err := json.Unmarshal(text, &report); err != nil {
		return nil, fmt.Errorf("%w: the emulator's report: %w", meshrun.ErrInternal, err)
	}
	stats, err := r.mesh.Stats(ctx)
	if err != nil {
		return nil, err
	}
	merged := map[string]json.RawMessage{}
	if err := json.Unmarshal(report["stats"], &merged); err != nil {
		return nil, fmt.Errorf("%w: the emulator's stats: %w", meshrun.ErrInternal, err)
	}
	if merged["runtime"], err = json.Marshal(stats); err != nil {
		return nil, err
	}
	report["stats"], err = json.Marshal(merged)
	return report, err
}

// observed are the failures that the mesh itself has seen.
func observed(report map[string]json.RawMessage) []error {
	type seen struct {
		Text string `json:"text"`
	}
	var hazards []seen
	var hang *seen
	var errs []error
	if err := json.Unmarshal(report["hazards"], &hazards); err != nil {
		errs = append(errs, fmt.Errorf("%w: hazards: %w", meshrun.ErrInternal, err))
	}
	if err := json.Unmarshal(report["hang"], &hang); err != nil {
		errs = append(errs, fmt.Errorf("%w: hang: %w", meshrun.ErrInternal, err))
	}
	for _, h := range hazards {
		errs = append(errs, &exit.Seen{Kind: exit.ErrHazard, Text: h.Text})
	}
	if hang != nil {
		errs = append(errs, &exit.Seen{Kind: exit.ErrHang, Text: hang.Text})
	}
	return errs
}
