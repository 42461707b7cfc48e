package workload

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/meshrun/meshrun/messages"
)

// considerable is the part of the virtual time from which on waiting for one device is worth a word.
const considerable = 0.05

// operationTimes finds the times of operations in an emulated mesh's stats, the longest first, and the device that others waited for most, if
// that was a considerable part of the virtual time; none where there are none.
func operationTimes(stats json.RawMessage, virtualNS uint64) ([]OperationTime, *LateDevice) {
	var s struct {
		Operations []struct {
			Name      string `json:"name"`
			Launches  int    `json:"launches"`
			SpanNS    uint64 `json:"span_ns"`
			WaitingNS uint64 `json:"waiting_for_peers_ns"`
			Late      []struct {
				At       messages.Coord `json:"at"`
				Launches int            `json:"launches"`
				NS       uint64         `json:"ns"`
			} `json:"late"`
		} `json:"operations"`
	}
	if len(stats) == 0 || json.Unmarshal(stats, &s) != nil {
		return nil, nil
	}
	times := make([]OperationTime, len(s.Operations))
	var late []LateDevice
	for i, o := range s.Operations {
		times[i] = OperationTime{o.Name, o.Launches, float64(o.SpanNS) / 1e6, float64(o.WaitingNS) / 1e6}
		for _, l := range o.Late {
			at := slices.IndexFunc(late, func(d LateDevice) bool { return d.At == l.At })
			if at < 0 {
				at = len(late)
				late = append(late, LateDevice{At: l.At})
			}
			late[at].Launches += l.Launches
			late[at].WaitingMS += float64(l.NS) / 1e6
		}
	}
	slices.SortStableFunc(times, func(a, b OperationTime) int { return cmp.Compare(b.VirtualMS, a.VirtualMS) })
	if len(late) == 0 || virtualNS == 0 {
		return times, nil
	}
	worst := slices.MaxFunc(late, func(a, b LateDevice) int {
		return cmp.Or(cmp.Compare(a.WaitingMS, b.WaitingMS), cmp.Compare(b.At.Row, a.At.Row), cmp.Compare(b.At.Col, a.At.Col))
	})
	if worst.Share = worst.WaitingMS * 1e6 / float64(virtualNS); worst.Share < considerable {
		return times, nil
	}
	return times, &worst
}
