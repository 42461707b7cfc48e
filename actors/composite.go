package actors

import (
	"context"
	"fmt"

	"github.com/meshrun/meshrun/axis"
	"github.com/meshrun/meshrun/messages"
)

// steps submits the operations of one call: they share a row of the journal, and in lockstep they are one act.
type steps struct {
	s    *Stream
	row  *messages.Row
	step string
}

func (s *Stream) steps(step string) *steps {
	c := &steps{s: s, step: step}
	if s.rt.cfg.Record {
		c.row = &messages.Row{}
	}
	return c
}

func (c *steps) submit(ctx context.Context, op messages.Operation, out []*Tensor, in ...*Tensor) error {
	return c.submitWith(ctx, op, nil, out, in...)
}

func (c *steps) submitWith(ctx context.Context, op messages.Operation, semaphores []*Lease, out []*Tensor, in ...*Tensor) error {
	_, err := c.s.Submit(ctx, Call{Op: op, In: in, Step: c.step, Row: c.row, Semaphores: semaphores}, out)
	return err
}

// DeviceToHost gathers a tensor along a dim per mesh axis (NoAxis: not along that one) and returns what one device then holds, with its shape
// (the reference's device_to_host): tiles first, hyperparameters on.
func (s *Stream) DeviceToHost(ctx context.Context, x *Tensor, meshDims [2]int, persistent bool, step string) (data []byte, spec messages.Spec, err error) {
	err = s.Act(ctx, func() error {
		if err := s.mayWait("device_to_host"); err != nil {
			return s.fail(Call{Step: step}, err)
		}
		if err := s.checkGathers(x, meshDims, persistent); err != nil {
			return s.fail(Call{Step: step}, fmt.Errorf("device_to_host: %w", err))
		}
		c := s.steps(step)
		t := &Tensor{}
		if err := c.submit(ctx, messages.Convert{Layout: messages.Tile}, []*Tensor{t}, x); err != nil {
			return err
		}
		for axis, dim := range meshDims {
			if dim == messages.NoAxis {
				continue
			}
			next := &Tensor{}
			op := messages.AllGather{Dim: dim, MeshAxis: axis, UseHyperparams: true, UsePersistentBuffer: persistent}
			err := c.submit(ctx, op, []*Tensor{next}, t)
			t.Release()
			if err != nil {
				return err
			}
			t = next
		}
		defer t.Release()
		spec = t.spec
		data, err = s.read(ctx, t, messages.Coord{}, c.row)
		return err
	})
	return data, spec, err
}

// absent refuses a tensor that is none.
func absent(x *Tensor) error {
	if x == nil || x.mem == nil {
		return messages.Invalid("", "input", "absent", "is a tensor")
	}
	return nil
}

// checkGathers works all the gathers out before the first is submitted, so that a wrong one changes nothing.
func (s *Stream) checkGathers(x *Tensor, meshDims [2]int, persistent bool) error {
	if err := absent(x); err != nil {
		return err
	}
	spec := x.spec
	spec.Layout = messages.Tile
	for a, dim := range meshDims {
		if dim == messages.NoAxis {
			continue
		}
		plan, err := axis.Make(s.rt.mesh, messages.AllGather{Dim: dim, MeshAxis: a, UsePersistentBuffer: persistent}, []messages.Spec{spec})
		if err != nil {
			return err
		}
		spec.Shape = plan.Outputs[0].Shape
	}
	return nil
}

// HaloScatterCall is the halo exchange with its scatter (the reference's neighbor_pad_halo_scatter).
type HaloScatterCall struct {
	Halo       messages.NeighborPadHalo // IntoPadded is set by BorderOnly
	BorderOnly bool                     // the tensor is padded already: only its border is written, in its memory
	Semaphores []*Lease                 // neighbour semaphores of the caller's; empty: drawn
	Step       string
}

// NeighborPadHaloScatter exchanges halos into a compact buffer and writes them round the interior: in place, or into a persistent padded
// buffer that gets the interior beside the exchange.
func (s *Stream) NeighborPadHaloScatter(ctx context.Context, x *Tensor, c HaloScatterCall, out *Tensor) error {
	return s.Act(ctx, func() error {
		op, scatter := c.Halo, messages.HaloScatter{BorderOnly: true}
		op.IntoPadded = !c.BorderOnly
		for i, pads := range []*messages.Index{&scatter.PadH, &scatter.PadW} {
			if i < op.PadLeft.Len() && i < op.PadRight.Len() {
				*pads, _ = messages.IndexOf(op.PadLeft.At(i), op.PadRight.At(i))
			}
		}
		if err := s.checkHaloScatter(x, op, scatter); err != nil {
			return s.fail(Call{Step: c.Step}, fmt.Errorf("neighbor_pad_halo_scatter: %w", err))
		}
		st := s.steps(c.Step)
		compact, padded := &Tensor{}, &Tensor{}
		if err := st.submitWith(ctx, op, c.Semaphores, []*Tensor{compact, padded}, x); err != nil {
			return err
		}
		defer compact.Release()
		target := x
		if !c.BorderOnly {
			target = padded
			defer padded.Release()
		}
		return st.submit(ctx, scatter, []*Tensor{out}, compact, target)
	})
}

// checkHaloScatter works both launches out before the first is submitted, so that a wrong one changes nothing.
func (s *Stream) checkHaloScatter(x *Tensor, op messages.NeighborPadHalo, scatter messages.HaloScatter) error {
	if err := absent(x); err != nil {
		return err
	}
	plan, err := axis.Make(s.rt.mesh, op, []messages.Spec{x.spec})
	if err != nil {
		return err
	}
	target := x.spec
	if op.IntoPadded {
		target = plan.Outputs[1].Driver
	}
	_, err = axis.Make(s.rt.mesh, scatter, []messages.Spec{plan.Outputs[0].Driver, target})
	return err
}
