package casefile

import (
	"github.com/meshrun/meshrun/messages"
)

// paddingMode is "zeros", which is also the default, or "replicate".
func (a *args) paddingMode() messages.PaddingMode {
	return word(a.decoder, a.take("padding_mode"), messages.ParsePaddingMode, messages.PadZeros)
}

// list reads a number for each of the dims that a halo exchange pads. How many there are is for the operation's rules to say.
func (a *args) list(n *node, field string) messages.Index {
	if n == nil {
		return messages.Index{}
	}
	v := a.ints(n)
	x, err := messages.IndexOf(v...)
	if err != nil {
		a.refuse(field, v, "has at most %d numbers", messages.MaxRank)
	}
	return x
}

func (a *args) requiredList(field string) messages.Index { return a.list(a.required(field), field) }

func neighborPad(persistent bool) func(*args) Action {
	return func(a *args) Action {
		op := messages.NeighborPad{Dims: a.requiredList("dims"), Axes: a.requiredList("axes"), PadLeft: a.requiredList("pad_left"),
			PadRight: a.requiredList("pad_right"), NumLinks: a.list(a.take("num_links"), "num_links"), Mode: a.paddingMode(),
			UsePersistentBuffer: persistent, LogicalH: a.anyInt(a.take("logical_h")), TFrontPad: a.anyInt(a.take("t_front_pad"))}
		if !persistent {
			op.UsePersistentBuffer = a.boolean(a.take("use_persistent_buffer"), false)
		}
		return Submit{Op: op}
	}
}

func (a *args) halo() messages.NeighborPadHalo {
	return messages.NeighborPadHalo{Dims: a.requiredList("dims"), Axes: a.requiredList("axes"), PadLeft: a.requiredList("pad_left"),
		PadRight: a.requiredList("pad_right"), NumLinks: a.list(a.take("num_links"), "num_links"), Mode: a.paddingMode(),
		InputPadH: a.anyInt(a.take("input_pad_h")), InputPadW: a.anyInt(a.take("input_pad_w"))}
}

func haloOnly(a *args) Action { return Submit{Op: a.halo()} }

// deviceHalo is the device operation behind neighbor_pad_halo_only, with that one's arguments or its own: H is the third dim from the end, W, where
// np_pad_dim2 is given, the second.
func deviceHalo(a *args) Action {
	if a.present("dims") != nil {
		return haloOnly(a)
	}
	h := a.pads(a.required("np_padding_h"), "np_padding_h")
	w := [2]int{a.anyInt(a.take("np_pad2_left")), a.anyInt(a.take("np_pad2_right"))}
	if n := a.take("np_padding_w"); n != nil && a.anyInt(n) != w[0] {
		a.refuse("np_padding_w", n, "is np_pad2_left, %d", w[0])
	}
	dims, axes, left, right := []int{-3}, []int{a.anyInt(a.take("np_cluster_axis"))}, []int{h[0]}, []int{h[1]}
	links := []int{a.one(a.take("np_num_links"))}
	dim2 := a.anyInt(a.take("np_pad_dim2"))
	axis2, links2 := a.anyInt(a.take("np_pad2_cluster_axis")), a.one(a.take("np_pad2_num_links"))
	switch {
	case dim2 != 0:
		dims, axes, left, right, links = append(dims, dim2), append(axes, axis2), append(left, w[0]), append(right, w[1]), append(links, links2)
	case w != [2]int{}:
		a.refuse("np_pad2_left and np_pad2_right", w, "need np_pad_dim2, the dim of W")
	}
	index := func(v []int) messages.Index { x, _ := messages.IndexOf(v...); return x }
	return Submit{Op: messages.NeighborPadHalo{Dims: index(dims), Axes: index(axes), PadLeft: index(left), PadRight: index(right), NumLinks: index(links),
		Mode: a.paddingMode(), InputPadH: a.anyInt(a.take("input_pad_h")), InputPadW: a.anyInt(a.take("input_pad_w"))}}
}

// one is a count that is 1 when absent.
func (a *args) one(n *node) int {
	if n == nil {
		return 1
	}
	return a.anyInt(n)
}

func haloAndScatter(a *args) Action {
	return HaloScatter{Halo: a.halo(), BorderOnly: a.boolean(a.take("border_only"), false)}
}

// pads are a left and a right pad: a list of both, or one number for both.
func (a *args) pads(n *node, field string) [2]int {
	if n == nil {
		return [2]int{}
	}
	if n.kind != list {
		p := a.anyInt(n)
		return [2]int{p, p}
	}
	v := a.ints(n)
	if len(v) != 2 {
		a.refuse(field, v, "is a number, or a left and a right one")
		return [2]int{}
	}
	return [2]int{v[0], v[1]}
}

func haloScatter(a *args) Action {
	index := func(p [2]int) messages.Index { x, _ := messages.IndexOf(p[:]...); return x }
	op := messages.HaloScatter{PadH: index(a.pads(a.required("np_padding_h"), "np_padding_h")), BorderOnly: a.boolean(a.take("border_only"), false)}
	if n := a.take("np_padding_w"); n != nil {
		op.PadW = index(a.pads(n, "np_padding_w"))
	}
	return Submit{Op: op}
}

// triple is a number for each of T, H and W.
func (a *args) triple(n *node, field string) [3]int {
	if n == nil {
		return [3]int{}
	}
	v := a.ints(n)
	if len(v) != 3 {
		a.refuse(field, v, "is [T, H, W]")
		return [3]int{}
	}
	return [3]int{v[0], v[1], v[2]}
}

func conv3D(a *args) Action {
	return Submit{Check: a.outChannels(), Op: messages.Conv3D{Kernel: a.kernel(), Stride: a.triple(a.take("stride"), "stride"),
		Padding: a.triple(a.take("padding"), "padding"), Dilation: a.triple(a.take("dilation"), "dilation"), Groups: a.positive("groups"), Mode: a.paddingMode()}}
}

func npConv3D(a *args) Action {
	op := messages.NPConv3D{NumLinks: a.positive("num_links"), Kernel: a.kernel(), Stride: a.triple(a.take("stride"), "stride"),
		Padding: a.triple(a.take("padding"), "padding"), Dilation: a.triple(a.take("dilation"), "dilation"), Groups: a.positive("groups"), Mode: a.paddingMode()}
	axes := a.ints(a.required("axes"))
	if len(axes) != 2 {
		a.refuse("axes", axes, "are the mesh axes of H and of W")
	} else {
		op.Axes = [2]int{axes[0], axes[1]}
	}
	return Submit{Op: op, Check: a.outChannels()}
}

func (a *args) kernel() [3]int { return a.triple(a.required("kernel", "kernel_size"), "kernel") }

// outChannels holds the weight against out_channels, which says nothing that the weight does not.
func (a *args) outChannels() func([]messages.Spec) error {
	n := a.take("out_channels")
	if n == nil {
		return nil
	}
	want := a.anyInt(n)
	return func(in []messages.Spec) error {
		if w := in[1].Shape; w.Rank() == 2 && w.Dim(1) != want {
			return messages.Invalid(a.what, "out_channels", want, "are those of the weight %s, %d", w, w.Dim(1))
		}
		return nil
	}
}

func groupNorm(a *args) Action {
	return Submit{Op: messages.GroupNorm{Groups: a.anyInt(a.required("groups", "num_groups")), Epsilon: a.epsilon(1e-5),
		Activation: word(a.decoder, a.take("activation"), messages.ParseActivation, messages.NoActivation)}}
}

func groupNormStats(a *args) Action {
	return Submit{Op: messages.GroupNormStats{Groups: a.anyInt(a.required("groups", "num_groups")), LogicalH: a.anyInt(a.take("logical_h")),
		AxisH: a.anyInt(a.take("axis_h")), LogicalW: a.anyInt(a.take("logical_w")), AxisW: a.anyInt(a.take("axis_w"))}}
}
