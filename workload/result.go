package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
)

// finish takes what the mesh has to report into the result and returns the run's error: that of ctx, else the first of the streams'.
func (r *Result) finish(ctx context.Context, mesh *meshrun.Mesh) error {
	r.OK = true
	var err error
	for _, s := range r.Streams {
		r.OK = r.OK && s.OK
		if err == nil && s.Err != nil {
			err = fmt.Errorf("stream %s: %w", s.Name, s.Err)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// A mesh that has gone down may not answer any more; what it says is of use all the same.
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if reportErr := r.take(ctx, mesh); err == nil {
		err = reportErr
	}
	r.OK = r.OK && len(r.Hazards) == 0 && r.Hang == nil
	return err
}

// take reads the mesh's own report and counts.
func (r *Result) take(ctx context.Context, mesh *meshrun.Mesh) error {
	stats := map[string]any{}
	r.Stats, r.Hazards = stats, []any{}
	runtime, err := mesh.Stats(ctx)
	if err == nil {
		stats["runtime"] = runtime
	}
	text, reportErr := mesh.Report(ctx)
	switch {
	case errors.Is(reportErr, messages.ErrUnsupported): // no emulated mesh
		return err
	case reportErr != nil:
		return reportErr
	}
	var report struct {
		Hazards []any           `json:"hazards"`
		Hang    any             `json:"hang"`
		Stats   json.RawMessage `json:"stats"`
		Virtual uint64          `json:"virtual_ns"`
	}
	if err := json.Unmarshal(text, &report); err != nil {
		return fmt.Errorf("%w: the mesh's report: %w", messages.ErrInternal, err)
	}
	r.Hazards, r.Hang = append(r.Hazards, report.Hazards...), report.Hang
	r.Times, r.Late = operationTimes(report.Stats, report.Virtual)
	if r.Late != nil {
		stats["late"] = r.Late
	}
	if len(report.Stats) > 0 {
		stats["mesh"] = report.Stats
		var counts struct {
			Bytes int64 `json:"bytes_over_links"`
		}
		if err := json.Unmarshal(report.Stats, &counts); err != nil {
			return fmt.Errorf("%w: the mesh's counts: %w", messages.ErrInternal, err)
		}
		r.LinkBytes = counts.Bytes
	}
	return err
}
