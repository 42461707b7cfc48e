package vae

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/workload/nn"
)

// linkBytes is what has crossed the links of a mesh.
func linkBytes(t testing.TB, mesh *meshrun.Mesh) int64 {
	t.Helper()
	text, err := mesh.Report(context.Background())
	require.NoError(t, err)
	var report struct {
		Stats struct {
			Bytes int64 `json:"bytes_over_links"`
		}
	}
	require.NoError(t, json.Unmarshal(text, &report))
	return report.Stats.Bytes
}

// exchanged are the inputs of a decoder's 3x3 convolutions: so many, of so many channels, at so many times the latent's resolution, in so many
// frames.
type exchanged struct{ count, channels, scale, frames int }

// sent is what a decoder has to send, worked out from its configuration by hand.
type sent struct {
	convs   []exchanged
	norms   int // group norms
	groups  int // of each
	gathers int // of the picture for attention, at the latent's resolution
	width   int // of what is gathered
}

// wanFrame is one latent frame of vae-wan-8x12, which becomes one frame, or later 2 and then 4.
func wanFrame(first bool) []exchanged {
	two, four := 2, 4
	if first {
		two, four = 1, 1
	}
	return []exchanged{
		{1, 16, 1, 1}, {4, 32, 1, 1}, // in, middle
		{4, 32, 1, 1}, {1, 32, 2, two},
		{1, 16, 2, two}, {3, 32, 2, two}, {1, 32, 4, four},
		{4, 16, 4, four}, {1, 16, 8, four},
		{4, 8, 8, four}, {1, 8, 8, four}, // and out
	}
}

var traffic = map[string]sent{
	"vae-wan-8x12": {convs: append(append(wanFrame(true), wanFrame(false)...), wanFrame(false)...), gathers: 3, width: 32},
	"vae-kl-12x16": {convs: []exchanged{{1, 16, 1, 1}, {8, 64, 1, 1}, {5, 64, 2, 1}, {2, 64, 4, 1}, {3, 32, 4, 1}, {1, 32, 4, 1}}, norms: 18, groups: 8, gathers: 1, width: 64},
	"taef2-real":   {convs: []exchanged{{1, 32, 1, 1}, {9, 64, 1, 1}, {10, 64, 2, 1}, {10, 64, 4, 1}, {5, 64, 8, 1}}, norms: 3, groups: 4},
}

// increment is what raising a semaphore over one link takes.
const increment = 32

// bytes is what crosses the links of a mesh that cuts a latent of so many rows and columns over tp x sp devices.
func (s sent) bytes(rows, columns, tp, sp, size int) int64 {
	h, w := (rows+tp-1)/tp, (columns+sp-1)/sp
	barrier := func(lines, n int) int { return lines * n * (n - 1) * increment } // everybody tells everybody on the line
	n := 0
	for _, c := range s.convs {
		each := c.channels * c.frames * size
		rows := sp * 2 * (tp - 1) * w * c.scale * each        // a row each way between neighbours
		columns := tp * 2 * (sp - 1) * (h*c.scale + 2) * each // a column each way, with what came from above and below
		ready := tp * 2 * (sp - 1) * increment                // neighbours tell each other that they may
		n += c.count * (rows + columns + barrier(sp, tp) + ready)
	}
	// Everybody's slice goes to everybody else on the line; what the second axis gathers is what the first has gathered.
	gather := func(bytes int) int {
		return sp*tp*(tp-1)*bytes + tp*sp*(sp-1)*tp*bytes + barrier(sp, tp) + barrier(tp, sp)
	}
	n += s.norms * gather(3*4*s.groups)
	n += s.gathers * gather(h*w*s.width*size)
	return int64(n)
}

// TestLinkBytes: halos, sums and the picture that attention needs cross links, and nothing else.
func TestLinkBytes(t *testing.T) {
	for name := range cases {
		t.Run(name, func(t *testing.T) {
			in, _ := read(t, name)
			z := in[latent].Shape
			rows, columns := z[len(z)-2], z[len(z)-1]
			assert.Zero(t, decode(t, name, one, meshrun.BFloat16, in).linkBytes, "on one device")
			for _, p := range []place{
				on(1, 2, meshrun.TopologyUnset, nn.HaloCompact, false),
				on(2, 2, meshrun.TopologyUnset, nn.HaloFull, false),
				on(2, 4, meshrun.Ring, nn.HaloCompact, false),
				on(4, 2, meshrun.Linear, nn.HaloFull, true),
			} {
				want := traffic[name].bytes(rows, columns, p.tp.Size, p.sp.Size, 2)
				got := decode(t, name, p, meshrun.BFloat16, in).linkBytes
				t.Logf("%s: %d bytes", p, got)
				assert.Equal(t, want, got, p.String())
			}
		})
	}
}
