package vae

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/workload/checkpoint"
	"github.com/meshrun/meshrun/workload/nn"
)

// random is a latent of seeded noise.
func random(seed uint64, shape ...int) checkpoint.Arrays {
	noise := rand.New(rand.NewPCG(seed, 0))
	n := 1
	for _, d := range shape {
		n *= d
	}
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(noise.NormFloat64())
	}
	return checkpoint.Arrays{latent: {Shape: shape, Values: values}}
}

// TestSizes: latents that no axis divides, of one to five frames, give what one device gives; and both ways of halos give the same to the
// bit.
func TestSizes(t *testing.T) {
	for i, c := range []struct {
		name       string
		shape      []int
		rows, cols int
	}{
		{"vae-wan-8x12", []int{1, 16, 1, 10, 14}, 2, 4},
		{"vae-wan-8x12", []int{1, 16, 2, 7, 9}, 2, 4},
		{"vae-wan-8x12", []int{1, 16, 3, 7, 9}, 4, 2},
		{"vae-wan-8x12", []int{2, 16, 1, 5, 4}, 2, 4}, // a device without a row of its own, and a batch
		{"vae-wan-8x12", []int{1, 16, 5, 4, 6}, 1, 3},
		{"vae-kl-12x16", []int{1, 16, 10, 14}, 2, 4},
		{"vae-kl-12x16", []int{2, 16, 7, 9}, 4, 2},
		{"vae-kl-12x16", []int{1, 16, 5, 5}, 1, 4},
		{"taef2-real", []int{1, 32, 7, 9}, 2, 4},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			in := random(uint64(i), c.shape...)
			want := decode(t, c.name, one, meshrun.Float32, in)
			full := decode(t, c.name, on(c.rows, c.cols, meshrun.TopologyUnset, nn.HaloFull, false), meshrun.Float32, in)
			compact := decode(t, c.name, on(c.rows, c.cols, meshrun.TopologyUnset, nn.HaloCompact, false), meshrun.Float32, in)
			assert.Equal(t, full.sample.Values, compact.sample.Values, "full and compact halos")
			pcc, maxError := checkpoint.Compare(full.sample.Values, want.sample.Values)
			t.Logf("pcc %.8f max %.2e", pcc, maxError)
			least, most := tolerance(c.name, meshrun.Float32)
			assert.GreaterOrEqual(t, pcc, least)
			assert.LessOrEqual(t, maxError, most)
		})
	}
}

// TestHalosAreEqual, to the bit, in bfloat16 too.
func TestHalosAreEqual(t *testing.T) {
	for name := range cases {
		in, _ := read(t, name)
		for _, topology := range []meshrun.Topology{meshrun.Ring, meshrun.Linear} {
			full := decode(t, name, on(2, 4, topology, nn.HaloFull, false), meshrun.BFloat16, in)
			compact := decode(t, name, on(2, 4, topology, nn.HaloCompact, false), meshrun.BFloat16, in)
			assert.Equal(t, full.sample.Values, compact.sample.Values, "%s %s", name, topology)
			assert.Equal(t, full.linkBytes, compact.linkBytes, "%s %s", name, topology)
		}
	}
}

// borders is the largest difference within two pixels of a border between shards, and of the rest, of pictures [.., rows, columns].
func borders(got, want checkpoint.Array, tp, sp int) (near, rest float64) {
	n := len(want.Shape)
	rows, columns := want.Shape[n-2], want.Shape[n-1]
	close := func(x, size, parts int) bool {
		for k := 1; k < parts; k++ {
			if border := k * size / parts; x >= border-2 && x < border+2 {
				return true
			}
		}
		return false
	}
	for i, w := range want.Values {
		d := math.Abs(float64(got.Values[i]) - float64(w))
		if close(i/columns%rows, rows, tp) || close(i%columns, columns, sp) {
			near = max(near, d)
		} else {
			rest = max(rest, d)
		}
	}
	return near, rest
}

// TestSeamsAreSeen proves that the numbers above can fail: two pixels on each side of the border from halves that were decoded each for
// itself, in a picture that is right elsewhere.
func TestSeamsAreSeen(t *testing.T) {
	for _, name := range []string{"vae-wan-8x12", "vae-kl-12x16"} {
		in, want := read(t, name)
		seam := checkpoint.Array{Shape: want[sample].Shape, Values: decode(t, name, one, meshrun.Float32, in).sample.Values}
		columns, w := in[latent].Shape[len(in[latent].Shape)-1], seam.Shape[len(seam.Shape)-1]
		left := decode(t, name, one, meshrun.Float32, checkpoint.Arrays{latent: columnsOf(in[latent], 0, columns/2)}).sample
		right := decode(t, name, one, meshrun.Float32, checkpoint.Arrays{latent: columnsOf(in[latent], columns/2, columns)}).sample
		for row := range len(seam.Values) / w {
			at := row*w + w/2
			copy(seam.Values[at-2:at], left.Values[(row+1)*w/2-2:])
			copy(seam.Values[at:at+2], right.Values[row*w/2:])
		}
		near, rest := borders(seam, want[sample], 1, 2)
		t.Logf("%s: %.2e at the border, %.2e elsewhere", name, near, rest)
		assert.Greater(t, near, 1.2*rest)
	}
}

// columnsOf cuts columns of [.., rows, columns].
func columnsOf(a checkpoint.Array, begin, end int) checkpoint.Array {
	n := len(a.Shape)
	out := checkpoint.Array{Shape: append(append([]int{}, a.Shape[:n-1]...), end-begin)}
	for row := range len(a.Values) / a.Shape[n-1] {
		out.Values = append(out.Values, a.Values[row*a.Shape[n-1]+begin:row*a.Shape[n-1]+end]...)
	}
	return out
}

// TestUnmaskedPaddingIsSeen: what lies past the picture, computed on and seen by its neighbours, spoils the answer. That is what a picture is
// without masks: one that is larger by columns of zeros, cut at the end.
func TestUnmaskedPaddingIsSeen(t *testing.T) {
	for _, name := range []string{"vae-wan-8x12", "vae-kl-12x16"} {
		in, want := read(t, name)
		z := in[latent]
		n := len(z.Shape)
		w := z.Shape[n-1]
		wide := checkpoint.Array{Shape: append(append([]int{}, z.Shape[:n-1]...), w+1)}
		for row := range len(z.Values) / w {
			wide.Values = append(append(wide.Values, z.Values[row*w:][:w]...), 0)
		}
		a := decode(t, name, one, meshrun.Float32, checkpoint.Arrays{latent: wide}).sample
		cut := columnsOf(a, 0, want[sample].Shape[len(want[sample].Shape)-1])
		_, maxError := checkpoint.Compare(cut.Values, want[sample].Values)
		_, most := tolerance(name, meshrun.BFloat16)
		t.Logf("%s: max %.2e", name, maxError)
		assert.Greater(t, maxError, most)
	}
}

// TestFits: every device needs a row and a column.
func TestFits(t *testing.T) {
	m := &decoder{class: KLClass, channels: 16, rank: 4, growth: 4}
	layout := func(rows, cols int) nn.Layout {
		l, err := nn.NewLayout(meshrun.MeshShape{Rows: rows, Cols: cols}, nn.Factor{Size: cols, Axis: 1}, nn.Factor{Size: rows})
		require.NoError(t, err)
		return l
	}
	in := checkpoint.Arrays{latent: {Shape: []int{1, 16, 4, 2}}}
	require.NoError(t, m.CheckFit(layout(2, 4), in))
	require.ErrorContains(t, m.CheckFit(layout(3, 4), in), "tensor z shape [1 16 4 2]: has a row and a column for each of the 4 x 3 devices")
	require.ErrorContains(t, m.CheckFit(layout(2, 5), in), "5 x 2 devices")
}
