package workload

import (
	"cmp"
	"encoding/json"
	"slices"
)

// operationTimes finds the times of operations in an emulated mesh's stats, the longest first; none where there are none.
func operationTimes(stats json.RawMessage) []OperationTime {
	var s struct {
		Operations []struct {
			Name     string `json:"name"`
			Launches int    `json:"launches"`
			SpanNS   uint64 `json:"span_ns"`
		} `json:"operations"`
	}
	if len(stats) == 0 || json.Unmarshal(stats, &s) != nil {
		return nil
	}
	times := make([]OperationTime, len(s.Operations))
	for i, o := range s.Operations {
		times[i] = OperationTime{o.Name, o.Launches, float64(o.SpanNS) / 1e6}
	}
	slices.SortStableFunc(times, func(a, b OperationTime) int { return cmp.Compare(b.VirtualMS, a.VirtualMS) })
	return times
}
