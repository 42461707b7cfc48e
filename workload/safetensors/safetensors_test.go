package safetensors

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/messages"
)

// file makes a file of a header and so many bytes of data.
func file(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

func TestRoundTrip(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, Write(&b, []Tensor{
		{Name: "w", DType: BF16, Shape: []int{2, 3}, Values: []float32{1, -2, 0.5, 3, 1.0078125, 0}},
		{Name: "scalar", DType: F32, Values: []float32{math.Pi}},
		{Name: "empty", DType: F32, Shape: []int{0, 4}},
	}))
	f, err := New("x", bytes.NewReader(b.Bytes()), int64(b.Len()))
	require.NoError(t, err)
	assert.Equal(t, []string{"empty", "scalar", "w"}, f.Names())
	info, ok := f.Info("w")
	assert.True(t, ok)
	assert.Equal(t, []int{2, 3}, info.Shape)
	assert.Equal(t, BF16, info.DType)
	v, err := f.Floats("w")
	require.NoError(t, err)
	assert.Equal(t, []float32{1, -2, 0.5, 3, 1.0078125, 0}, v)
	v, err = f.Floats("scalar")
	require.NoError(t, err)
	assert.Equal(t, []float32{math.Pi}, v)
	raw, err := f.Bytes("w")
	require.NoError(t, err)
	assert.Len(t, raw, 12)
	_, err = f.Floats("nothing")
	assert.ErrorContains(t, err, "x: tensor nothing missing")
}

func TestDTypes(t *testing.T) {
	b := file(`{"h":{"dtype":"F16","shape":[6],"data_offsets":[0,12]},"m":{"dtype":"BOOL","shape":[2],"data_offsets":[12,14]},
"i":{"dtype":"I64","shape":[1],"data_offsets":[14,22]},"__metadata__":{"format":"pt"}}`, 22)
	data := b[len(b)-22:]
	for i, h := range []uint16{0x3c00, 0xc000, 0x0001, 0x8000, 0x7bff, 0xfc00} {
		binary.LittleEndian.PutUint16(data[2*i:], h)
	}
	data[13] = 1
	f, err := New("x", bytes.NewReader(b), int64(len(b)))
	require.NoError(t, err)
	v, err := f.Floats("h")
	require.NoError(t, err)
	assert.Equal(t, []float32{1, -2, float32(math.Pow(2, -24)), 0, 65504, float32(math.Inf(-1))}, v)
	assert.True(t, math.Signbit(float64(v[3])))
	v, err = f.Floats("m")
	require.NoError(t, err)
	assert.Equal(t, []float32{0, 1}, v)
	_, err = f.Floats("i")
	assert.ErrorContains(t, err, "x: tensor i dtype I64: is BF16, F16, F32 or BOOL")
}

func TestBadFiles(t *testing.T) {
	const ok = `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}`
	long := file(ok, 12)
	binary.LittleEndian.PutUint64(long, 1<<40)
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"empty":             {nil, "size 0 bytes: is at least 8 bytes"},
		"truncated header":  {file(ok, 12)[:40], "holds a header of"},
		"truncated data":    {file(ok, 11), "the file is truncated"},
		"too long":          {file(ok, 13), "something follows the last tensor"},
		"header length":     {long, "header length 1099511627776: is at most"},
		"not JSON":          {file(`{"a":`, 0), "header damaged: is a JSON object"},
		"overlap":           {file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8), "tensor b data_offsets [4, 8]: begins at 8"},
		"hole":              {file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}`, 12), "tensor a data_offsets [4, 12]: begins at 0"},
		"wrong size":        {file(`{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}`, 8), "tensor a data_offsets [0, 8]: holds 12 bytes, a F32 of shape [3]"},
		"unknown dtype":     {file(`{"a":{"dtype":"Q4","shape":[2],"data_offsets":[0,8]}}`, 8), "tensor a dtype Q4: is a dtype of the format"},
		"negative dim":      {file(`{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}`, 8), "tensor a shape [-2]"},
		"overflow":          {file(`{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, 0), "tensor a shape [4294967296 4294967296]"},
		"begin after end":   {file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}`, 8), "tensor a data_offsets [8, 0]"},
		"three offsets":     {file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}}`, 8), "has dtype, shape and data_offsets"},
		"no shape":          {file(`{"a":{"dtype":"F32","data_offsets":[0,8]}}`, 8), "has dtype, shape and data_offsets"},
		"shape of a string": {file(`{"a":{"dtype":"F32","shape":"2","data_offsets":[0,8]}}`, 8), "has dtype, shape and data_offsets"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New("w.safetensors", bytes.NewReader(c.data), int64(len(c.data)))
			require.ErrorIs(t, err, messages.ErrInvalid)
			assert.ErrorContains(t, err, c.want)
			assert.ErrorContains(t, err, "w.safetensors: ")
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}

func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	_, err := Open(path)
	require.ErrorIs(t, err, messages.ErrInvalid)
	assert.Equal(t, path+": file missing: can be read (no such file or directory)", err.Error())
	_, err = Open(t.TempDir())
	require.ErrorIs(t, err, messages.ErrInvalid)
	assert.ErrorContains(t, err, "is a folder")

	require.NoError(t, WriteFile(path, []Tensor{{Name: "a", DType: F32, Shape: []int{2}, Values: []float32{1, 2}}}))
	f, err := Open(path)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, 10)) // behind our back
	_, err = f.Floats("a")
	require.ErrorIs(t, err, messages.ErrInvalid)
	assert.ErrorContains(t, err, "tensor a unreadable")
	require.NoError(t, f.Close())
}

// FuzzHeader checks that no header makes the reader panic or name data outside the file.
func FuzzHeader(f *testing.F) {
	f.Add([]byte(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`), 8)
	f.Add([]byte(`{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`), 0)
	f.Fuzz(func(t *testing.T, header []byte, data int) {
		if data < 0 || data > 1<<16 {
			return
		}
		b := file(string(header), data)
		file, err := New("x", bytes.NewReader(b), int64(len(b)))
		if err != nil {
			require.ErrorIs(t, err, messages.ErrInvalid)
			return
		}
		for _, name := range file.Names() {
			_, err := file.Bytes(name)
			require.NoError(t, err)
		}
	})
}
