package nn

import (
	"github.com/meshrun/meshrun"
)

// Conv places a convolution on every device: name.weight [out, in, kernel...], the kernel over frames, rows and columns, or rows and columns
// alone; and name.bias [out].
func (p *Placer) Conv(name string, out, in int, kernel ...int) Conv {
	c := p.ConvNoBias(name, out, in, kernel...)
	c.bias = p.vector(name+".bias", out, nil, meshrun.Replicate)
	return c
}

// ConvNoBias is Conv without a bias.
func (p *Placer) ConvNoBias(name string, out, in int, kernel ...int) Conv {
	c := Conv{Kernel: [3]int{1, 1, 1}}
	copy(c.Kernel[3-len(kernel):], kernel)
	taps := c.Kernel[0] * c.Kernel[1] * c.Kernel[2]
	data := p.read(name+".weight", append([]int{out, in}, kernel...)...)
	c.weight = p.upload(tapsFirst(data, out, in, taps, p.dtype.HostBytes()), meshrun.Replicate, taps*in, out)
	return c
}

// Pointwise places a linear layer over channels: name.weight [out, in, ones...] and name.bias [out].
func (p *Placer) Pointwise(name string, out, in, ones int) Linear {
	l := p.PointwiseNoBias(name, out, in, ones)
	l.bias = p.vector(name+".bias", out, nil, meshrun.Replicate)
	return l
}

// PointwiseNoBias is Pointwise without a bias.
func (p *Placer) PointwiseNoBias(name string, out, in, ones int) Linear {
	return Linear{weight: p.matrix(name+".weight", out, padOnes(in, ones), nil, meshrun.Replicate)}
}

// PointwiseParts is Pointwise for a layer whose output is several parts, as a layer for each.
func (p *Placer) PointwiseParts(name string, parts, out, in, ones int) []Linear {
	weight := p.read(name+".weight", append([]int{parts * out}, padOnes(in, ones)...)...)
	bias := p.read(name+".bias", parts*out)
	part := func(data []byte, i int) []byte {
		if data == nil {
			return nil
		}
		n := len(data) / parts
		return data[i*n : (i+1)*n]
	}
	layers := make([]Linear, parts)
	for i := range layers {
		layers[i] = Linear{
			weight: p.upload(transpose(part(weight, i), out, in, p.dtype.HostBytes(), nil), meshrun.Replicate, in, out),
			bias:   p.upload(part(bias, i), meshrun.Replicate, 1, 1, 1, out),
		}
	}
	return layers
}

// Channels places a parameter of each channel, [n, ones...], as [1, 1, 1, 1, n] on every device.
func (p *Placer) Channels(name string, n, ones int) Value {
	return p.upload(p.read(name, padOnes(n, ones)...), meshrun.Replicate, 1, 1, 1, 1, n)
}

func padOnes(n, ones int) []int {
	dims := []int{n}
	for range ones {
		dims = append(dims, 1)
	}
	return dims
}

// tapsFirst makes [taps, in, out] of [out, in, taps].
func tapsFirst(data []byte, out, in, taps, size int) []byte {
	if data == nil {
		return nil
	}
	to := make([]byte, len(data))
	for o := range out {
		for i := range in {
			for t := range taps {
				from, at := ((o*in+i)*taps+t)*size, ((t*in+i)*out+o)*size
				copy(to[at:at+size], data[from:from+size])
			}
		}
	}
	return to
}
