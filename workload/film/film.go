// Package film writes pictures to files: each frame as PNG, and several as one animated GIF.
package film

import (
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/color/palette"
	"image/draw"
	"image/gif"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/meshrun/meshrun/messages"
)

// delay of a frame of the GIF, in hundredths of a second: 16 frames a second, which is what Wan makes, as near as GIF can tell.
const delay = 6

// Film is a series of pictures, or one.
type Film struct {
	Width, Height int
	Frames        [][]float32 // red, green, blue of each pixel, row by row, each from 0 to 1
}

// Prepare makes the folder and says whether files can be written there.
func Prepare(dir string) error {
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		var probe *os.File
		if probe, err = os.CreateTemp(dir, ".meshrun-*"); err == nil {
			err = errors.Join(probe.Close(), os.Remove(probe.Name()))
		}
	}
	if err != nil {
		var pathErr *os.PathError
		if errors.As(err, &pathErr) {
			err = pathErr.Err
		}
		return messages.Invalid("run", "frames", strconv.Quote(dir), "is a folder that can be written (%v)", err)
	}
	return nil
}

// Write writes the frames as NAME-000.png, NAME-001.png and so on, and, where there are several, NAME.gif, into a folder. Either all files are
// there when it returns, or, with an error, those that were there before.
func (f Film) Write(dir, name string) (err error) {
	temporary, err := os.MkdirTemp(dir, ".meshrun-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	var files []string
	write := func(file string, encode func(io.Writer) error) {
		if err != nil {
			return
		}
		files = append(files, file)
		err = create(filepath.Join(temporary, file), encode)
	}
	animation := &gif.GIF{}
	for i, values := range f.Frames {
		picture := f.picture(values)
		write(fmt.Sprintf("%s-%03d.png", name, i), func(w io.Writer) error { return png.Encode(w, picture) })
		if len(f.Frames) > 1 {
			few := image.NewPaletted(picture.Bounds(), palette.Plan9)
			draw.FloydSteinberg.Draw(few, few.Bounds(), picture, image.Point{})
			animation.Image, animation.Delay = append(animation.Image, few), append(animation.Delay, delay)
		}
	}
	if len(f.Frames) > 1 {
		write(name+".gif", func(w io.Writer) error { return gif.EncodeAll(w, animation) })
	}
	for _, file := range files {
		if err == nil {
			err = os.Rename(filepath.Join(temporary, file), filepath.Join(dir, file))
		}
	}
	return err
}

func create(path string, encode func(io.Writer) error) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(encode(file), file.Close())
}

func (f Film) picture(values []float32) *image.RGBA {
	p := image.NewRGBA(image.Rect(0, 0, f.Width, f.Height))
	for i := range f.Width * f.Height {
		p.SetRGBA(i%f.Width, i/f.Width, color.RGBA{level(values[3*i]), level(values[3*i+1]), level(values[3*i+2]), 255})
	}
	return p
}

// level rounds a value from 0 to 1 to a byte; what is beyond is cut, and what is no number is black.
func level(v float32) uint8 {
	if !(v > 0) {
		return 0
	}
	return uint8(min(v, 1)*255 + 0.5)
}

// FromChannels makes a film of pixels [channels, frames, rows, columns] with three channels. Values from low to high become 0 to 1.
func FromChannels(values []float32, frames, height, width int, low, high float32) Film {
	f := Film{Width: width, Height: height}
	plane := height * width
	for t := range frames {
		picture := make([]float32, 3*plane)
		for c := range 3 {
			for i, v := range values[(c*frames+t)*plane:][:plane] {
				picture[3*i+c] = (v - low) / (high - low)
			}
		}
		f.Frames = append(f.Frames, picture)
	}
	return f
}
