package main

import "math"

// The operations once more, on plain arrays, as simply as can be: what exec computes is held against them.

type array struct {
	shape  []int
	values []float64
}

func size(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

func zeros(shape ...int) array { return array{shape, make([]float64, size(shape))} }

// random is the fill of the same name: splitmix64 from state seed XOR i, its upper 24 bits.
func random(seed uint64, shape ...int) array {
	a := zeros(shape...)
	for i := range a.values {
		z := (seed ^ uint64(i)) + 0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
		a.values[i] = float64(z>>40)/(1<<23) - 1
	}
	return a
}

// index turns a flat index into one per dim.
func (a array) index(flat int) []int {
	x := make([]int, len(a.shape))
	for i := len(x) - 1; i >= 0; i-- {
		x[i] = flat % a.shape[i]
		flat /= a.shape[i]
	}
	return x
}

// at is the element at an index; dims of 1 stretch, and missing dims in front count as such.
func (a array) at(x ...int) float64 {
	x = x[len(x)-len(a.shape):]
	flat := 0
	for i, d := range a.shape {
		j := x[i]
		if d == 1 {
			j = 0
		}
		flat = flat*d + j
	}
	return a.values[flat]
}

// build makes an array from a function of the index.
func build(f func(x []int) float64, shape ...int) array {
	a := zeros(shape...)
	for i := range a.values {
		a.values[i] = f(a.index(i))
	}
	return a
}

func (a array) slice(begin, end []int) array {
	shape := make([]int, len(begin))
	for i := range shape {
		shape[i] = end[i] - begin[i]
	}
	return build(func(x []int) float64 {
		y := make([]int, len(x))
		for i := range y {
			y[i] = x[i] + begin[i]
		}
		return a.at(y...)
	}, shape...)
}

// shard is part i of n along a dim.
func (a array) shard(dim, i, n int) array {
	begin, end := make([]int, len(a.shape)), append([]int{}, a.shape...)
	begin[dim], end[dim] = a.shape[dim]/n*i, a.shape[dim]/n*(i+1)
	return a.slice(begin, end)
}

func matmul(a, w, bias array, act func(float64) float64) array {
	shape := append([]int{}, a.shape...)
	n := len(shape)
	shape[n-1] = w.shape[len(w.shape)-1]
	return build(func(x []int) float64 {
		sum := 0.0
		for k := range a.shape[n-1] {
			y := append([]int{}, x...)
			y[n-1] = k
			z := append([]int{}, x...)
			z[n-2] = k
			sum += a.at(y...) * w.at(z...)
		}
		if bias.values != nil {
			sum += bias.at(x...)
		}
		return act(sum)
	}, shape...)
}

func same(v float64) float64 { return v }

func gelu(v float64) float64 { return v / 2 * (1 + math.Erf(v/math.Sqrt2)) }

func silu(v float64) float64 { return v / (1 + math.Exp(-v)) }

// norm normalises rows of the last dim.
func norm(a array, rms bool, eps float64) array {
	out := zeros(a.shape...)
	w := a.shape[len(a.shape)-1]
	for r := 0; r < len(a.values); r += w {
		mean, square := 0.0, 0.0
		if !rms {
			for _, v := range a.values[r : r+w] {
				mean += v / float64(w)
			}
		}
		for _, v := range a.values[r : r+w] {
			square += (v - mean) * (v - mean) / float64(w)
		}
		for i, v := range a.values[r : r+w] {
			out.values[r+i] = (v - mean) / math.Sqrt(square+eps)
		}
	}
	return out
}

func zip(a, b array, f func(x, y float64) float64) array {
	return build(func(x []int) float64 { return f(a.at(x...), b.at(x...)) }, a.shape...)
}

// attention is softmax(q k^T / sqrt(D)) v over the first n keys.
func attention(q, k, v array, n int) array {
	d := q.shape[3]
	return build(func(x []int) float64 {
		scores := make([]float64, n)
		highest := math.Inf(-1)
		for j := range scores {
			for i := range d {
				scores[j] += q.at(x[0], x[1], x[2], i) * k.at(x[0], x[1], j, i)
			}
			scores[j] /= math.Sqrt(float64(d))
			highest = max(highest, scores[j])
		}
		sum, out := 0.0, 0.0
		for j, s := range scores {
			e := math.Exp(s - highest)
			sum += e
			out += e * v.at(x[0], x[1], j, x[3])
		}
		return out / sum
	}, q.shape...)
}

// rope rotates pairs of the last dim: neighbours, or halves.
func rope(a, cos, sin array, half bool) array {
	d := a.shape[3]
	return build(func(x []int) float64 {
		i := x[3]
		pair, sign := i^1, 1.0
		if i%2 == 0 {
			sign = -1
		}
		if half {
			pair, sign = (i+d/2)%d, 1.0
			if i < d/2 {
				sign = -1
			}
		}
		return a.at(x...)*cos.at(x...) + sign*a.at(x[0], x[1], x[2], pair)*sin.at(x...)
	}, a.shape...)
}
