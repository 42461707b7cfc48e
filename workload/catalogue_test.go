package workload

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
)

// TestCatalogue runs the first entry of the catalogue cut to two blocks, in mode timing, on a whole galaxy: two forwards a step, and all
// launches accounted for.
func TestCatalogue(t *testing.T) {
	whole := catalogue["wan2.2-14b-720p"]
	defer func() { catalogue["wan2.2-14b-720p"] = whole }()
	catalogue["wan2.2-14b-720p"] = entry{config: shortened(whole.config, 2), inputs: whole.inputs, forwards: whole.forwards}

	c := galaxy("wan2.2-14b-720p")
	c.Streams, c.Steps = 2, 2
	r, err := Run(t.Context(), c, nil)
	require.NoError(t, err)
	require.True(t, r.OK)
	for _, s := range r.Streams {
		assert.Zero(t, s.Operations%4, "%d operations in four forwards", s.Operations)
		assert.Nil(t, s.Verify)
		assert.Greater(t, s.VirtualMS, 2*2*2*10.0, "a forward of two blocks takes tens of milliseconds")
	}
	launches := map[string]int{}
	for _, o := range r.Times {
		launches[o.Name] = o.Launches
		assert.Positive(t, o.VirtualMS)
	}
	const forwards, blocks = 2 * 2 * 2, 2
	assert.Equal(t, forwards*blocks, launches["ring_joint_sdpa"])
	assert.Equal(t, forwards*blocks, launches["sdpa"])
	assert.IsNonIncreasing(t, milliseconds(r.Times))
}

// TestTimingCostsLaunches: twice the blocks are twice the events, and a bigger mesh takes no more of them for a launch on a device.
func TestTimingCostsLaunches(t *testing.T) {
	whole := catalogue["wan2.2-14b-720p"]
	defer func() { catalogue["wan2.2-14b-720p"] = whole }()
	cost := func(blocks int, preset string, tp, sp Factor) float64 {
		catalogue["wan2.2-14b-720p"] = entry{config: shortened(whole.config, blocks), inputs: whole.inputs, forwards: 1}
		c := galaxy("wan2.2-14b-720p")
		c.Preset, c.TP, c.SP = preset, tp, sp
		r, err := Run(t.Context(), c, nil)
		require.NoError(t, err)
		return float64(eventsOf(t, r)) / float64(launchesOf(r)*tp.Size*sp.Size)
	}
	few := cost(2, "bh-galaxy-4x8", Factor{Size: 4, Axis: 0}, Factor{Size: 8, Axis: 1})
	many := cost(8, "bh-galaxy-4x8", Factor{Size: 4, Axis: 0}, Factor{Size: 8, Axis: 1})
	wide := cost(2, "bh-quad-galaxy-4x32", Factor{Size: 4, Axis: 0}, Factor{Size: 32, Axis: 1})
	t.Logf("events a launch and device: %.1f with 2 blocks, %.1f with 8, %.1f on 128 devices", few, many, wide)
	assert.InEpsilon(t, few, many, 0.15)
	assert.InEpsilon(t, few, wide, 0.5) // ring attention's slices make 31 hops instead of 7
}

func milliseconds(times []OperationTime) []float64 {
	var all []float64
	for _, o := range times {
		all = append(all, o.VirtualMS)
	}
	return all
}

func TestCatalogueRefuses(t *testing.T) {
	c := galaxy("wan2.2-14b-720p")
	c.Mode = meshrun.Functional
	_, err := Run(t.Context(), c, nil)
	require.ErrorIs(t, err, meshrun.ErrInvalid)
	assert.EqualError(t, err, `model: wan2.2-14b-720p mode "functional": is timing: models of the catalogue have no weights`)

	_, err = Run(t.Context(), galaxy("wan2.2-14b-721p"), nil)
	require.ErrorIs(t, err, meshrun.ErrInvalid)
	assert.ErrorContains(t, err, `"wan2.2-14b-721p": is a folder with a config.json and weights, or a name of the catalogue: wan2.2-14b-720p`)
	assert.NotContains(t, err.Error(), "\n")
}
