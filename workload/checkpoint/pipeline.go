package checkpoint

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// pipelineFile names a pipeline's class and its parts, each of which has a folder of its own.
const pipelineFile = "model_index.json"

// partFiles are the names that the configuration of a part may have.
var partFiles = []string{"config.json", "scheduler_config.json"}

// openPipeline opens the folder of a pipeline as diffusers has it. It is then like one folder whose config.json has an object for each part and
// whose parameters begin with the names of their parts. Parts without a configuration, such as tokenizers, are left out.
func openPipeline(dir string) (*Checkpoint, error) {
	config, err := ReadConfig(filepath.Join(dir, pipelineFile))
	if err != nil {
		return nil, err
	}
	config.parts = map[string]*Config{}
	all := &Weights{where: dir, of: map[string]place{}}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if err == nil && e.IsDir() {
			err = all.addPart(config, dir, e.Name())
		}
	}
	if err != nil {
		return nil, errors.Join(err, all.Close())
	}
	return &Checkpoint{Dir: dir, Config: config, Weights: all}, nil
}

// addPart adds the configuration of a part and its parameters, where it has any.
func (w *Weights) addPart(config *Config, dir, part string) error {
	for _, file := range partFiles {
		path := filepath.Join(dir, part, file)
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		c, err := ReadConfig(path)
		if err != nil {
			return err
		}
		config.parts[part] = c
	}
	if config.parts[part] == nil || !hasWeights(filepath.Join(dir, part)) {
		return nil
	}
	weights, err := OpenWeights(filepath.Join(dir, part))
	if err != nil {
		return err
	}
	w.files = append(w.files, weights.files...)
	for name, at := range weights.of {
		w.of[part+"."+name] = at
	}
	return nil
}

// hasWeights says whether a folder holds parameters that can be read: text encoders, which nobody asks for, may come in other formats.
func hasWeights(dir string) bool {
	for _, name := range weightFiles {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}
