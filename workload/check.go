package workload

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/workload/nn"
)

// normalize fills in defaults and checks the values that no other part checks.
func (c *Config) normalize() error {
	if c.DType == 0 {
		c.DType = meshrun.BFloat16
	}
	if c.Mode == "" {
		c.Mode = meshrun.Functional
	}
	if c.Inputs == "" {
		c.Inputs = inputsVaried
	}
	if c.Halo == "" {
		c.Halo = nn.HaloFull
	}
	switch {
	case c.DType != meshrun.BFloat16 && c.DType != meshrun.Float32:
		return messages.Invalid("run", "dtype", c.DType, "is bfloat16 or float32")
	case c.Mode != meshrun.Functional && c.Mode != meshrun.Timing:
		return messages.Invalid("run", "mode", strconv.Quote(string(c.Mode)), "is functional or timing")
	case c.Inputs != inputsVaried && c.Inputs != inputsSame:
		return messages.Invalid("run", "inputs", strconv.Quote(c.Inputs), "is varied or same")
	case c.Streams < 1:
		return messages.Invalid("run", "streams", c.Streams, "is at least 1")
	case c.Steps < 0:
		return messages.Invalid("run", "steps", c.Steps, "is at least 1")
	case c.Halo != nn.HaloFull && c.Halo != nn.HaloCompact:
		return messages.Invalid("run", "halo", strconv.Quote(string(c.Halo)), "is full or compact")
	case c.Frames != "" && c.Mode == meshrun.Timing:
		return messages.Invalid("run", "frames", strconv.Quote(c.Frames), "is for runs that move data, not in mode timing")
	case c.NumLinks < 0:
		return messages.Invalid("run", "num_links", c.NumLinks, "is at least 1")
	case c.Queues < 0:
		return messages.Invalid("run", "queues", c.Queues, "is at least 1")
	}
	if v := c.Verify; v != nil {
		if !(v.PCC >= -1 && v.PCC <= 1) {
			return messages.Invalid("run", "verify pcc", v.PCC, "is from -1 to 1")
		}
		if !(v.MaxError >= 0) || math.IsInf(v.MaxError, 1) {
			return messages.Invalid("run", "verify max_error", v.MaxError, "is a number that is not negative")
		}
	}
	return nil
}

// meshShape is the shape of the mesh, or of the preset.
func (c *Config) meshShape() (meshrun.MeshShape, error) {
	if c.Preset == "" {
		return c.Mesh, c.Mesh.Validate()
	}
	if c.Mesh != (meshrun.MeshShape{}) {
		return c.Mesh, messages.Invalid("run", "mesh", c.Mesh, "is not given beside a preset, %s", c.Preset)
	}
	presets, err := meshrun.Presets()
	if err != nil {
		return meshrun.MeshShape{}, err
	}
	names := make([]string, len(presets))
	for i, p := range presets {
		if names[i] = p.Name; p.Name == c.Preset {
			return meshrun.MeshShape{Rows: p.Mesh[0], Cols: p.Mesh[1]}, nil
		}
	}
	return meshrun.MeshShape{}, messages.Invalid("run", "preset", strconv.Quote(c.Preset), "is one of %s", strings.Join(names, ", "))
}

func (j *job) meshConfig() meshrun.Config {
	c := meshrun.Config{Preset: j.cfg.Preset, NumLinks: j.cfg.NumLinks, Topology: j.cfg.Topology, Queues: j.cfg.Queues, Mode: j.cfg.Mode, Seed: j.cfg.Seed, Lockstep: true,
		Skew: time.Duration(j.cfg.SkewUS) * time.Microsecond}
	if us := j.cfg.NoProgressUS; us > 0 {
		c.NoProgress = map[string]time.Duration{"": time.Duration(us) * time.Microsecond}
	}
	if c.Preset == "" {
		c.Mesh = j.cfg.Mesh
	}
	return c
}
