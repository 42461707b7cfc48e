package film

import (
	"image/color"
	"image/gif"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/messages"
)

// small is two frames of two by one pixels: red and half grey, then what lies beyond the range and what is no number.
func small() Film {
	nan := float32(math.NaN())
	return FromChannels([]float32{
		1, 0, 7, nan, // red: frame 0, frame 1
		-1, 0, -7, nan,
		-1, 0, -7, nan,
	}, 2, 1, 2, -1, 1)
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "s0-000.png"), []byte("old"), 0o644))
	require.NoError(t, small().Write(dir, "s0"))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.Equal(t, []string{"s0-000.png", "s0-001.png", "s0.gif"}, names, "and nothing else is left")

	want := [][]color.RGBA{{{255, 0, 0, 255}, {128, 128, 128, 255}}, {{255, 0, 0, 255}, {0, 0, 0, 255}}}
	for i, name := range names[:2] {
		file, err := os.Open(filepath.Join(dir, name))
		require.NoError(t, err)
		picture, err := png.Decode(file)
		require.NoError(t, err)
		require.NoError(t, file.Close())
		require.Equal(t, 2, picture.Bounds().Dx())
		require.Equal(t, 1, picture.Bounds().Dy())
		for x := range 2 {
			assert.Equal(t, want[i][x], color.RGBAModel.Convert(picture.At(x, 0)), "%s pixel %d", name, x)
		}
	}
	file, err := os.Open(filepath.Join(dir, "s0.gif"))
	require.NoError(t, err)
	animation, err := gif.DecodeAll(file)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	assert.Len(t, animation.Image, 2)
	assert.Equal(t, []int{6, 6}, animation.Delay)
}

func TestOnePictureIsNoAnimation(t *testing.T) {
	dir := t.TempDir()
	f := small()
	f.Frames = f.Frames[:1]
	require.NoError(t, f.Write(dir, "s1"))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// TestNothingHalfWritten: a frame that cannot be encoded leaves the folder as it was.
func TestNothingHalfWritten(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "s0-000.png"), []byte("old"), 0o644))
	f := Film{Frames: [][]float32{nil, nil}} // PNG knows no picture without pixels
	require.Error(t, f.Write(dir, "s0"))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	text, err := os.ReadFile(filepath.Join(dir, "s0-000.png"))
	require.NoError(t, err)
	assert.Equal(t, "old", string(text))
}

func TestPrepare(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	require.NoError(t, Prepare(dir))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	err = Prepare(filepath.Join(file, "sub"))
	require.ErrorIs(t, err, messages.ErrInvalid)
	require.ErrorContains(t, err, "is a folder that can be written (not a directory)")
}
