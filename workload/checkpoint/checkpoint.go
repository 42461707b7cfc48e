// Package checkpoint reads the folder of a model in the diffusers layout:
//
//	config.json                            the arguments of the model's class, which _class_name names
//	weights.safetensors                    its parameters, by their state_dict names; or, as diffusers has it,
//	diffusion_pytorch_model.safetensors    one file, or several that
//	diffusion_pytorch_model.safetensors.index.json lists
//	model_index.json                       instead of both, a pipeline: each part has its config.json and weights in a folder of its name
//	inputs.safetensors                     arguments of a forward pass, by keyword
//	inputs.K.safetensors                   those of stream K, where they are not to be made from the first
//	outputs.safetensors                    what the forward pass shall give
//
// Errors are *messages.InvalidError: one line with the file, the tensor or key, the value and the rule.
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/workload/safetensors"
)

// Checkpoint is an open folder.
type Checkpoint struct {
	Dir     string
	Config  *Config
	Weights *Weights

	inputs Arrays // instead of a file
}

// Open reads the configuration and the headers of the weights.
func Open(dir string) (*Checkpoint, error) {
	if stat, err := os.Stat(dir); err != nil || !stat.IsDir() {
		return nil, messages.Invalid("model", "folder", strconv.Quote(dir), "is a folder with a config.json and weights")
	}
	if _, err := os.Stat(filepath.Join(dir, pipelineFile)); err == nil {
		return openPipeline(dir)
	}
	config, err := ReadConfig(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	weights, err := OpenWeights(dir)
	if err != nil {
		return nil, err
	}
	return &Checkpoint{Dir: dir, Config: config, Weights: weights}, nil
}

// Imagine makes a checkpoint of a config.json and shapes of arguments alone, for runs that move no data: every parameter that is asked for
// is there, and nothing can be read. The name stands in errors.
func Imagine(name string, config []byte, inputs Arrays) (*Checkpoint, error) {
	c, err := ParseConfig(name, config)
	if err != nil {
		return nil, err
	}
	return &Checkpoint{Config: c, Weights: &Weights{where: name, imagined: true}, inputs: inputs}, nil
}

// Close closes the weights' files.
func (c *Checkpoint) Close() error { return c.Weights.Close() }

// Arrays are host arrays by name.
type Arrays map[string]Array

// Array is a host array of float32, row major. Values is nil where only the shape matters.
type Array struct {
	Shape  []int
	Values []float32
}

// Inputs reads the stored arguments of a forward pass.
func (c *Checkpoint) Inputs() (Arrays, error) {
	if c.inputs != nil {
		return c.inputs, nil
	}
	return ReadArrays(filepath.Join(c.Dir, "inputs.safetensors"))
}

// InputsOf reads the arguments of stream k, and says whether there are any of its own.
func (c *Checkpoint) InputsOf(k int) (Arrays, bool, error) {
	return c.optional(fmt.Sprintf("inputs.%d.safetensors", k))
}

// Outputs reads what a forward pass of Inputs shall give, and says whether the folder holds it.
func (c *Checkpoint) Outputs() (Arrays, bool, error) { return c.optional("outputs.safetensors") }

func (c *Checkpoint) optional(file string) (Arrays, bool, error) {
	if c.inputs != nil {
		return nil, false, nil
	}
	path := filepath.Join(c.Dir, file)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	a, err := ReadArrays(path)
	return a, err == nil, err
}

// ReadArrays reads every tensor of a safetensors file, widened to float32.
func ReadArrays(path string) (Arrays, error) {
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	arrays := Arrays{}
	for _, name := range f.Names() {
		info, _ := f.Info(name)
		values, err := f.Floats(name)
		if err != nil {
			return nil, err
		}
		arrays[name] = Array{Shape: info.Shape, Values: values}
	}
	return arrays, nil
}

// Weights are the parameters of a checkpoint, in one file or several.
type Weights struct {
	where  string // for errors about a tensor that is nowhere
	prefix string // of all names
	files  []*safetensors.File
	of     map[string]place

	imagined bool // see Imagine
}

// place is where a tensor lies.
type place struct {
	file *safetensors.File
	name string // there
}

// Sub are the parameters whose names begin with the prefix, by what follows it: those of a part of a model. They share the files, which only
// the whole closes.
func (w *Weights) Sub(prefix string) *Weights {
	sub := *w
	sub.prefix += prefix
	return &sub
}

const (
	ownFile       = "weights.safetensors"
	diffusersFile = "diffusion_pytorch_model.safetensors"
	indexFile     = diffusersFile + ".index.json"
)

// weightFiles are the files that may hold parameters, the first that is there counts.
var weightFiles = []string{ownFile, indexFile, diffusersFile}

// OpenWeights opens the weights of a folder.
func OpenWeights(dir string) (*Weights, error) {
	for _, name := range weightFiles {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		w := &Weights{where: path, of: map[string]place{}}
		open := w.openFile
		if name == indexFile {
			open = w.openIndex
		}
		if err := open(path); err != nil {
			return nil, errors.Join(err, w.Close())
		}
		return w, nil
	}
	return nil, messages.Invalid(dir, "weights", "missing", "is %s, %s or %s", ownFile, diffusersFile, indexFile)
}

func (w *Weights) openFile(path string) error {
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	w.files = append(w.files, f)
	for _, name := range f.Names() {
		w.of[name] = place{f, name}
	}
	return nil
}

// openIndex opens the files that an index names and holds them to it.
func (w *Weights) openIndex(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return messages.Invalid(path, "file", "unreadable", "can be read (%v)", reason(err))
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(text, &index); err != nil {
		return messages.Invalid(path, "file", "damaged", "is a JSON object whose weight_map gives each tensor its file (%v)", err)
	}
	if len(index.WeightMap) == 0 {
		return messages.Invalid(path, "weight_map", "missing", "gives each tensor its file")
	}
	files := map[string]*safetensors.File{}
	names := make([]string, 0, len(index.WeightMap))
	for name := range index.WeightMap {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		file := index.WeightMap[name]
		f := files[file]
		if f == nil {
			if filepath.Base(file) != file || strings.HasPrefix(file, ".") {
				return messages.Invalid(path, "file of "+name, strconv.Quote(file), "lies beside the index")
			}
			if f, err = safetensors.Open(filepath.Join(filepath.Dir(path), file)); err != nil {
				return err
			}
			files[file] = f
			w.files = append(w.files, f)
		}
		if _, ok := f.Info(name); !ok {
			return messages.Invalid(f.Name(), "tensor "+name, "missing", "is in this file, as %s says", filepath.Base(path))
		}
		w.of[name] = place{f, name}
	}
	return nil
}

// Check says whether there is a tensor of that name and shape that holds floating-point numbers.
func (w *Weights) Check(name string, shape ...int) error {
	if w.imagined {
		return nil
	}
	f, name, err := w.find(name)
	if err != nil {
		return messages.Invalid(w.where, "tensor "+name, "missing", "is there, of shape %v", shape)
	}
	info, _ := f.Info(name)
	if !slices.Equal(info.Shape, shape) {
		return messages.Invalid(f.Name(), "tensor "+name, fmt.Sprint("shape ", info.Shape), "has shape %v, as config.json says", shape)
	}
	switch info.DType {
	case safetensors.BF16, safetensors.F16, safetensors.F32:
		return nil
	}
	return messages.Invalid(f.Name(), "tensor "+name, "dtype "+string(info.DType), "is %s, %s or %s", safetensors.BF16, safetensors.F16, safetensors.F32)
}

// Read reads a tensor in the given dtype, row major and little endian: as it is stored where the dtypes are the same, else by way
// of float32, which holds each of them.
func (w *Weights) Read(name string, dtype messages.DType) ([]byte, error) {
	f, name, err := w.find(name)
	if err != nil {
		return nil, err
	}
	info, _ := f.Info(name)
	if info.DType == safetensors.BF16 && dtype == messages.BFloat16 || info.DType == safetensors.F32 && dtype == messages.Float32 {
		return f.Bytes(name)
	}
	values, err := f.Floats(name)
	if err != nil {
		return nil, err
	}
	return messages.EncodeFloats(values, dtype)
}

// find is the file of a tensor and its name there.
func (w *Weights) find(name string) (*safetensors.File, string, error) {
	name = w.prefix + name
	if p, ok := w.of[name]; ok {
		return p.file, p.name, nil
	}
	return nil, name, messages.Invalid(w.where, "tensor "+name, "missing", "is there")
}

// Close closes the files.
func (w *Weights) Close() error {
	var errs []error
	for _, f := range w.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// reason leaves the path out of an error that is printed behind it.
func reason(err error) error {
	var pathErr *os.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}
