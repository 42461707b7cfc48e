package execute

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
)

// mostValues is how many elements a shard may have for its values to be listed.
const mostValues = 4096

// Tensor is a tensor that a name stood for at the end.
type Tensor struct {
	Name    string
	Spec    messages.Spec
	Devices []Shard

	stream string // "" = the case's
	rec    *record
	result int
}

// Shard is what one device holds of a tensor.
type Shard struct {
	At     messages.Coord
	Values []byte // the elements in the storage dtype; nil above mostValues, and in mode timing
	SHA256 string // of the same elements; "" in mode timing
}

func (r *execution) everyDevice() []messages.Coord {
	var all []messages.Coord
	for row := range r.shape.Rows {
		for col := range r.shape.Cols {
			all = append(all, messages.Coord{Row: row, Col: col})
		}
	}
	return all
}

// snapshot reads the tensors that names stand for. What cannot be read is left out.
func (r *execution) snapshot(ctx context.Context, s *meshrun.Stream, bound map[string]*binding) []Tensor {
	var out []Tensor
	for _, name := range slices.Sorted(maps.Keys(bound)) {
		b := bound[name]
		switch {
		case b.released || b.failed != nil:
		case b.host != nil:
			out = append(out, *b.host)
		case len(b.tensors) == 1:
			if t, err := r.fetch(ctx, s, b.tensors[0], r.everyDevice()); err == nil {
				t.Name, t.rec, t.result = name, b.rec, b.result
				out = append(out, *t)
			}
		}
	}
	return out
}

// fetch waits for a tensor and copies shards of it to the host.
func (r *execution) fetch(ctx context.Context, s *meshrun.Stream, t *meshrun.Tensor, devices []messages.Coord) (*Tensor, error) {
	if err := s.Wait(ctx, t); err != nil {
		if _, failed := t.Ended(); failed != nil {
			err = fmt.Errorf("%w: %w", meshrun.ErrPoisoned, failed)
		}
		return nil, err
	}
	out := &Tensor{Spec: t.Spec()}
	for _, at := range devices {
		var data []byte
		if !r.c.Timing {
			var err error
			if data, err = s.Read(ctx, t, at); err != nil {
				return nil, err
			}
		}
		out.Devices = append(out.Devices, r.shard(at, data, out.Spec.Shape))
	}
	return out, nil
}

func (r *execution) shard(at messages.Coord, data []byte, shape messages.Shape) Shard {
	out := Shard{At: at}
	if r.c.Timing {
		return out
	}
	sum := sha256.Sum256(data)
	out.SHA256 = hex.EncodeToString(sum[:])
	if shape.Elements() <= mostValues {
		out.Values = data
	}
	return out
}

// listed picks the tensors that are shown and sorts them by name. A name of a stream hides the same name of the case; where several
// streams use one name, each is shown as STREAM/NAME. Under rotate a result whose memory a later launch has written again is left out; under hold it was
// read before it was given back.
func listed(all []Tensor, policy messages.Policy, rows []*messages.Row) []Tensor {
	users := map[string]int{}
	for _, t := range all {
		if t.stream != "" {
			users[t.Name]++
		}
	}
	var out []Tensor
	for _, t := range all {
		if t.stream == "" && users[t.Name] > 0 || policy == messages.Rotate && t.overwritten(rows) {
			continue
		}
		if users[t.Name] > 1 {
			t.Name = t.stream + "/" + t.Name
		}
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b Tensor) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return out
}

// overwritten reports whether a launch behind the one that made the tensor wrote the buffer that held it: policy rotate lets that happen.
func (t *Tensor) overwritten(rows []*messages.Row) bool {
	if t.rec == nil || t.rec.row == nil {
		return false
	}
	buffer := bufferOf(t.rec.row.Returns, t.result)
	if buffer == "" || buffer == messages.FreshName {
		return false
	}
	behind := rows[slices.Index(rows, t.rec.row)+1:]
	return slices.ContainsFunc(behind, func(row *messages.Row) bool {
		return slices.ContainsFunc(row.Effects, func(e messages.Effect) bool { return writes(e, buffer) })
	})
}

// writes reports whether an effect is a launch that writes the buffer. What a scatter writes in place stays its caller's.
func writes(e messages.Effect, buffer string) bool {
	if e.Call == "conv3d" { // its halo is an input
		return false
	}
	for _, field := range []string{"output_buffer", "intermediate_buffer", "stats_buffer", "buffer_k", "buffer_v", "halo_buffer", "padded_output"} {
		if e.Get(field) == any(buffer) {
			return true
		}
	}
	return false
}

// bufferOf is the name of the buffer that holds a result, by what the row says of it.
func bufferOf(returns any, result int) string {
	switch v := returns.(type) {
	case messages.Returned:
		return v.Buffer
	case []messages.Returned:
		if result < len(v) {
			return v[result].Buffer
		}
	case []string:
		if result < len(v) {
			return v[result]
		}
	}
	return ""
}
