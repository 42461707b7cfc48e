package workload

import (
	"context"
	"fmt"
	"strconv"

	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/film"
	"github.com/meshrun/meshrun/workload/nn"
)

// prepareFrames says, before anything runs, whether there will be pictures and whether they can be written.
func (j *job) prepareFrames() error {
	if j.cfg.Frames == "" {
		return nil
	}
	if _, ok := j.model.(nn.Painter); !ok {
		return messages.Invalid("run", "frames", strconv.Quote(j.cfg.Frames), "is for decoders and pipelines: this model makes no pictures")
	}
	return film.Prepare(j.cfg.Frames)
}

// writeFrames writes the pictures of every stream that has come to its end, by its name; those of the further elements of a batch with their
// number behind it.
func (j *job) writeFrames(ctx context.Context, r *Result) error {
	if j.cfg.Frames == "" || ctx.Err() != nil {
		return nil
	}
	for _, s := range r.Streams {
		if s.Err != nil || s.Output == nil {
			continue
		}
		for b, f := range j.model.(nn.Painter).Films(checkpoint.Array{Shape: s.shape, Values: s.Output}) {
			name := s.Name
			if b > 0 {
				name = fmt.Sprintf("%s.%d", s.Name, b)
			}
			if err := f.Write(j.cfg.Frames, name); err != nil {
				return fmt.Errorf("frames of stream %s: %w", s.Name, err)
			}
		}
	}
	return nil
}
