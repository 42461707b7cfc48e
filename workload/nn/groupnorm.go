package nn

// GroupNorm normalises over the pixels of a picture and the channels of a group.
type GroupNorm struct {
	groups       int
	epsilon      float32
	weight, bias Value
}

// GroupNorm places name.weight and name.bias, [width] each.
func (p *Placer) GroupNorm(name string, width, groups int, epsilon float32) GroupNorm {
	return GroupNorm{groups, epsilon, p.Channels(name+".weight", width, 0), p.Channels(name+".bias", width, 0)}
}

// GroupNorm normalises each frame of a field.
func (c *Canvas) GroupNorm(x Field, n GroupNorm) Field {
	panic("todo")
}
