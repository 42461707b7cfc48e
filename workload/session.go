package workload

import (
	"context"
	"errors"
	"time"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/nn"
)

// Closing a mesh waits so long for launches in flight: briefly where the run was called off.
const (
	closeTime = 10 * time.Second
	calledOff = 500 * time.Millisecond
)

// session is an open mesh that holds a model. Any number of streams may run it at once.
type session struct {
	mesh    *meshrun.Mesh
	run     nn.Run
	placer  *nn.Placer
	network nn.Network
}

// openSession opens a mesh and lays the model's parameters over it, once, for all streams.
func (j *job) openSession(ctx context.Context, mesh meshrun.Config, layout nn.Layout, onTensor func(int)) (*session, error) {
	m, err := meshrun.Open(ctx, mesh)
	if err != nil {
		return nil, err
	}
	if onTensor != nil { // who follows the weights is told of the mesh; that of the reference is one device
		info := m.Info()
		j.progress(Progress{Phase: phaseOpen, Mesh: &info, Ended: true})
	}
	s := &session{mesh: m, run: nn.Run{Layout: layout, DType: j.cfg.DType, Timing: j.cfg.Mode == meshrun.Timing, Halo: j.cfg.Halo}}
	if err := s.place(ctx, j, onTensor); err != nil {
		return nil, errors.Join(err, s.close(ctx, false))
	}
	return s, nil
}

func (s *session) place(ctx context.Context, j *job, onTensor func(int)) error {
	setup, err := s.mesh.Stream("setup")
	if err != nil {
		return err
	}
	defer setup.Close()
	s.placer = nn.NewPlacer(ctx, setup, j.checkpoint.Weights, s.run)
	s.placer.OnTensor = onTensor
	s.network = j.model.Place(s.placer)
	if err := s.placer.Err(); err != nil {
		return err
	}
	return setup.Fence(ctx)
}

// forward runs the model once on a stream. It returns the answer and how many operations it took.
func (s *session) forward(ctx context.Context, stream *meshrun.Stream, in checkpoint.Arrays, onOperation func(int)) (checkpoint.Array, int, error) {
	g := nn.NewGraph(ctx, stream, s.run)
	g.OnOperation = onOperation
	out := s.network.Forward(g, in)
	return out, g.Operations(), g.Close()
}

// close gives the parameters back and closes the mesh, in bounded time also when ctx has ended. Where the run has not ended well, what is in
// flight may never end and is not waited for long.
func (s *session) close(ctx context.Context, well bool) error {
	if s.placer != nil {
		s.placer.Release()
	}
	limit := closeTime
	if !well || ctx.Err() != nil {
		limit = calledOff
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	return s.mesh.Close(ctx)
}
