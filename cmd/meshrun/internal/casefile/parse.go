package casefile

import (
	"math"
	"slices"
	"strconv"

	"github.com/meshrun/meshrun/axis"
	"github.com/meshrun/meshrun/cmd/meshrun/internal/suggest"
	"github.com/meshrun/meshrun/messages"
)

// Parse reads a case. Machines are the presets that there are. The error is Errors: all that is wrong.
func Parse(data []byte, machines map[string]axis.Machine) (*Case, error) {
	n, err := parse(data)
	if err != nil {
		return nil, Errors{err}
	}
	d := &decoder{data: data}
	c := d.decodeCase(n, machines)
	if len(d.errs) == 0 {
		d.checkNames(c)
	}
	if len(d.errs) > 0 {
		slices.SortStableFunc(d.errs, func(a, b *Error) int {
			if a.Line != b.Line {
				return a.Line - b.Line
			}
			return a.Col - b.Col
		})
		return nil, d.errs
	}
	return c, nil
}

func (d *decoder) decodeCase(n *node, machines map[string]axis.Machine) *Case {
	f := d.object(n, "a case", "key")
	c := &Case{
		Name:     d.text(f.take("name")),
		NumLinks: d.whole(f.take("num_links"), math.MinInt32, math.MaxInt32),
		Topology: word(d, f.take("topology"), messages.ParseTopology, messages.TopologyUnset),
		Queues:   1,
		Timing:   d.oneOf(f.take("mode"), "functional", "functional", "timing") == "timing",
		Seed:     d.seed(f.take("seed")),
		Rounding: d.oneOf(f.take("rounding"), "", "once", "per_hop"),
		Refuse:   d.oneOf(f.take("on_full"), "wait", "wait", "refuse") == "refuse",
		Faults:   d.names(f.take("faults")),
	}
	if links := f.take("num_links"); links != nil && c.NumLinks < 1 {
		d.fail(links, "%d: is at least 1", c.NumLinks)
	}
	grid := d.pair(f.take("grid"), "[x, y], the compute cores of a device")
	c.GridX, c.GridY = grid[0], grid[1]
	d.machine(f, c, machines)
	f.notYet("queues", "1")
	c.SkewUS = d.whole(f.take("skew_us"), 0, 1_000_000_000)
	c.Break = d.names(f.take("break"))
	c.GoOn = d.oneOf(f.take("on_hazard"), "stop", "stop", "continue") == "continue"
	f.notYet("managers", "1")
	c.Limits = d.limits(f.take("limits"))
	policy := f.take("policy")
	d.tensors(f.take("tensors"), c)
	calls, streams := f.take("calls"), f.take("streams")
	f.end()

	switch {
	case calls != nil && streams != nil:
		d.fail(streams, "a case has \"calls\" or \"streams\", not both")
	case calls != nil:
		c.Policy = messages.Rotate
		c.Streams = []Stream{{Name: MainStream, Calls: d.calls(calls, c)}}
	case streams != nil:
		c.Policy = messages.Hold
		d.streams(streams, c)
	default:
		d.fail(n, "a case needs \"calls\" or \"streams\"")
	}
	c.Policy = word(d, policy, messages.ParsePolicy, c.Policy)
	if c.Policy == messages.Rotate && len(c.Streams) > 1 {
		d.fail(policy, "rotate: is for one stream; with %d streams use hold", len(c.Streams))
	}
	return c
}

// machine reads mesh and preset.
func (d *decoder) machine(f *fields, c *Case, machines map[string]axis.Machine) {
	n := f.take("mesh")
	if rc := d.pair(n, "[rows, columns]"); n != nil && rc[0] > 0 && rc[1] > 0 {
		c.Mesh = messages.MeshShape{Rows: rc[0], Cols: rc[1]}
		if err := c.Mesh.Validate(); err != nil {
			d.fail(n, "%v", err)
		}
	}
	preset := f.take("preset")
	if preset == nil {
		if n == nil {
			d.fail(f.n, "a case needs \"mesh\" or \"preset\"")
		}
		return
	}
	c.Preset = d.name(preset)
	machine, ok := machines[c.Preset]
	switch {
	case !ok:
		var names []string
		for name := range machines {
			names = append(names, name)
		}
		slices.Sort(names)
		d.fail(preset, "unknown preset %q: %s", c.Preset, suggest.Hint(c.Preset, names))
	case n == nil:
		c.Mesh = machine.Shape
	case c.Mesh.Devices() > 0 && c.Mesh != machine.Shape:
		e := axis.ReshapeError(c.Preset, machine, c.Mesh)
		e.Field = "" // the place says it
		d.fail(n, "%v", e)
	}
}

func (d *decoder) limits(n *node) Limits {
	l := Limits{HostBytes: DefaultHostBytes}
	if n == nil {
		return l
	}
	f := d.object(n, "limits", "key")
	bytes := func(key string, otherwise int64) int64 {
		if v := f.take(key); v != nil {
			return int64(d.whole(v, 1, math.MaxInt64))
		}
		return otherwise
	}
	l.HostBytes = bytes("host_bytes", l.HostBytes)
	l.DRAMBytes = bytes("dram_bytes", 0)
	l.L1Bytes = bytes("l1_bytes", 0)
	l.Queue = d.count(f.take("queue"))
	l.Inflight = d.count(f.take("inflight"))
	l.NoProgress = d.noProgress(f.take("no_progress_us"))
	f.notYet("depth")
	f.end()
	return l
}

// waiting are the operations in which devices wait for each other.
var waiting = []messages.OpKind{messages.OpAllGather, messages.OpReduceScatter, messages.OpFusedDistributedNorm, messages.OpRingJointSDPA,
	messages.OpExpRingJointSDPA, messages.OpNeighborPad, messages.OpNeighborPadHalo, messages.OpNPConv3D, messages.OpSliceReshard,
	messages.OpPointToPoint, messages.OpStridedAllGatherMatmul, messages.OpMatmulStridedReduceScatter}

// noProgress reads one limit for all operations, or one for each, with that of all others as "default".
func (d *decoder) noProgress(n *node) map[string]int {
	const most = 1_000_000_000_000
	if n == nil {
		return nil
	}
	if n.kind != object {
		return map[string]int{"": d.whole(n, 0, most)}
	}
	f := d.object(n, "no_progress_us", "operation")
	limits := map[string]int{}
	if v := f.take("default"); v != nil {
		limits[""] = d.whole(v, 0, most)
	}
	for _, kind := range waiting {
		if v := f.take(kind.String()); v != nil {
			limits[kind.String()] = d.whole(v, 0, most)
		}
	}
	f.end()
	return limits
}

func (d *decoder) tensors(n *node, c *Case) {
	if n == nil {
		return
	}
	if n.kind != object {
		d.fail(n, "%s: tensors is an object, from names to tensors", n)
	}
	for _, m := range n.members {
		if m.key == "" {
			d.fail(m.value, "a tensor needs a name")
		}
		f := d.object(m.value, "a tensor", "key")
		shape := f.take("shape")
		t := Tensor{Name: m.key, Spec: messages.Spec{Shape: d.shape(shape), Memory: messages.DRAM,
			DType:  word(d, f.take("dtype"), messages.ParseDType, messages.BFloat16),
			Layout: word(d, f.take("layout"), messages.ParseLayout, messages.Tile)}}
		fill := f.take("fill")
		f.end()
		before := len(d.errs)
		t.Fill = d.fill(fill, &t.Spec, c.Mesh)
		if shape == nil && t.Fill.Global.Rank() == 0 && len(d.errs) == before {
			d.fail(m.value, "a tensor needs \"shape\", or a \"fill\" with \"global\"")
		}
		c.Tensors = append(c.Tensors, t)
	}
}

func (d *decoder) streams(n *node, c *Case) {
	used := map[string]bool{}
	for i, s := range d.elements(n, "streams") {
		f := d.object(s, "a stream", "key")
		name := d.name(f.take("name"))
		if name == "" {
			name = "s" + strconv.Itoa(i)
		}
		if used[name] {
			d.fail(s, "stream name %q is used twice", name)
		}
		used[name] = true
		calls := f.required("calls")
		f.end()
		stream := Stream{Name: name}
		if calls != nil {
			stream.Calls = d.calls(calls, c)
		}
		c.Streams = append(c.Streams, stream)
	}
	if n.kind == list && len(n.list) == 0 {
		d.fail(n, "a case has at least one stream")
	}
}

func (d *decoder) calls(n *node, c *Case) []Call {
	var out []Call
	for _, e := range d.elements(n, "calls") {
		out = append(out, d.call(e, c))
	}
	return out
}

func (d *decoder) call(n *node, c *Case) Call {
	f := d.object(n, "a call", "argument")
	call := Call{Where: n.where, offset: n.offset}
	named := f.required("op")
	if named == nil || f.n != n {
		return call
	}
	call.Name = d.name(named)
	entry, ok := ops[call.Name]
	if !ok {
		d.unknownOp(named, call.Name)
		return call
	}
	f.what = call.Name
	a := &args{fields: f, file: c}
	call.Action = entry.decode(a)
	d.inputs(a, entry, &call)
	if entry.leases {
		call.Semaphores = d.names(f.take("neighbor_sems"))
	}
	call.Out = d.outputs(f, entry)
	f.notYet("queue", "0")
	f.notYet("manager", "0")
	f.notYet("timeout_us")
	f.notYet("queue_timeout_us")
	f.notYet("cancel_after_us")
	call.Expect = d.expect(f.take("expect"))
	f.end()
	if a.refused != nil {
		call.Action = Refuse{a.refused}
	}
	return call
}

func (d *decoder) unknownOp(n *node, name string) {
	if slices.Contains(later, name) {
		d.fail(n, "operation %q is not supported yet", name)
		return
	}
	d.fail(n, "unknown operation %q: %s", name, suggest.Hint(name, append(Ops(), later...)))
}

// inputs reads the tensors of a call: "in", the slots by name, or "shape" for an input of zeros.
func (d *decoder) inputs(a *args, entry op, call *Call) {
	if len(entry.slots) == 0 {
		return
	}
	in := a.take("in")
	switch {
	case in == nil:
	case in.kind == list:
		most := len(entry.slots)
		if entry.variadic {
			most = messages.MaxInputs
		}
		if len(in.list) > most {
			d.fail(in, "%d tensors: %s takes at most %d", len(in.list), call.Name, most)
			return
		}
		for _, e := range in.list {
			name := ""
			if e.kind != null {
				name = d.name(e)
			}
			call.In = append(call.In, name)
		}
	default:
		call.In = []string{d.name(in)}
	}
	for i, s := range entry.slots {
		v := a.take(s.names...)
		if v == nil {
			continue
		}
		for len(call.In) <= i {
			call.In = append(call.In, "")
		}
		if call.In[i] != "" {
			d.fail(v, "%s is given twice: in \"in\" and by name", s.names[0])
		}
		call.In[i] = d.name(v)
	}
	d.anonymous(a, entry, call)
	for i, s := range entry.slots {
		given := i < len(call.In) && call.In[i] != "" || i == 0 && call.Anonymous != nil
		if !given && !s.optional {
			d.fail(a.n, "%s needs %s: a tensor, in \"in\"%s", call.Name, s.names[0], orShape(i, a))
		}
	}
}

func orShape(slot int, a *args) string {
	if slot == 0 && !a.claims("shape") {
		return ", or a \"shape\""
	}
	return " or by name"
}

// anonymous reads shape, dtype and layout where they describe an input of zeros, or what an input must be.
func (d *decoder) anonymous(a *args, entry op, call *Call) {
	given := messages.Spec{}
	if !a.claims("dtype") {
		given.DType = word(d, a.take("dtype"), messages.ParseDType, messages.DTypeUnset)
	}
	if !a.claims("layout") {
		given.Layout = word(d, a.take("layout"), messages.ParseLayout, messages.LayoutUnset)
	}
	if a.claims("shape") {
		call.Given = given
		return
	}
	shape := a.take("shape")
	if shape == nil {
		call.Given = given
		return
	}
	if len(call.In) > 0 && call.In[0] != "" {
		d.fail(shape, "%s has an input: \"shape\" stands for one of zeros", call.Name)
		return
	}
	spec := messages.Spec{Shape: a.callShape(shape), DType: given.DType, Layout: given.Layout, Memory: messages.DRAM}
	if m, ok := call.Action.(Submit); ok && spec.DType == messages.DTypeUnset {
		if mm, ok := m.Op.(messages.Matmul); ok {
			spec.DType = mm.DType
		}
	}
	if spec.DType == messages.DTypeUnset {
		spec.DType = messages.BFloat16
	}
	if spec.Layout == messages.LayoutUnset {
		spec.Layout = messages.Tile
	}
	call.Anonymous = &spec
	if len(call.In) == 0 {
		call.In = []string{""}
	}
}

func (d *decoder) outputs(f *fields, entry op) []string {
	if entry.outputs == 0 {
		return nil
	}
	n := f.take("out")
	if n == nil {
		return nil
	}
	var names []string
	if n.kind == list {
		names = d.names(n)
	} else {
		names = []string{d.name(n)}
	}
	if len(names) > entry.outputs {
		d.fail(n, "%d names: %s has %d at most", len(names), f.what, entry.outputs)
	}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			d.fail(n, "the name %q stands twice", name)
		}
	}
	return names
}

func (d *decoder) expect(n *node) string {
	if n == nil {
		return ""
	}
	f := d.object(n, "expect", "key")
	text := d.name(f.required("error"))
	f.end()
	return text
}
