// Package tests holds the tests that look at the project as a whole; unit tests stand beside their code.
package tests

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/meshrun/meshrun"

// imports lists what the Go files of the project import, by the folder of the package.
func imports(t *testing.T) map[string]map[string][]string {
	t.Helper()
	all := map[string]map[string][]string{} // folder -> import -> files
	root := ".."
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); name != ".." && (strings.HasPrefix(name, ".") || name == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		folder := filepath.ToSlash(strings.TrimPrefix(filepath.Dir(path), root+string(filepath.Separator)))
		if folder == root {
			folder = "."
		}
		if all[folder] == nil {
			all[folder] = map[string][]string{}
		}
		for _, i := range file.Imports {
			p, _ := strconv.Unquote(i.Path.Value)
			all[folder][p] = append(all[folder][p], path)
		}
		return nil
	}))
	return all
}

// TestWalls: who may import what (design section 3). A wall that stands in the wrong place is moved here, in the open.
func TestWalls(t *testing.T) {
	all := imports(t)
	require.Contains(t, all, "messages")
	product := func(files []string) bool {
		for _, f := range files {
			if !strings.HasSuffix(f, "_test.go") {
				return true
			}
		}
		return false
	}
	ours := func(path string) (string, bool) {
		if path == module {
			return ".", true
		}
		return strings.CutPrefix(path, module+"/")
	}
	mayUse := map[string][]string{
		"messages": {},
		"pools":    {"messages"},
		"axis":     {"messages"},
		"actors":   {"messages", "pools", "axis", "devicecgo"},

		"workload":             {".", "messages", "workload/checkpoint", "workload/film", "workload/nn", "workload/pipeline", "workload/vae", "workload/wan"},
		"workload/safetensors": {"messages"},
		"workload/checkpoint":  {"messages", "workload/safetensors"},
		"workload/film":        {"messages"},
		"workload/nn":          {".", "messages", "workload/checkpoint", "workload/film"},
		"workload/wan":         {".", "messages", "workload/checkpoint", "workload/nn"},
		"workload/vae":         {".", "messages", "workload/checkpoint", "workload/film", "workload/nn"},
		"workload/pipeline":    {"messages", "workload/checkpoint", "workload/film", "workload/nn", "workload/vae", "workload/wan"},
	}
	for folder, by := range all {
		for path, files := range by {
			if !product(files) {
				continue
			}
			if strings.Contains(path, "asynkron/protoactor-go") {
				assert.Equal(t, "actors", folder, "protoactor stays inside actors: %v", files)
			}
			if path == "C" {
				assert.True(t, folder == "devicecgo" || strings.HasPrefix(folder, "devicecgo/"), "cgo stays inside devicecgo: %v", files)
			}
			allowed, walled := mayUse[folder]
			if our, is := ours(path); is && walled {
				assert.Contains(t, allowed, our, "%s may not import %s: %v", folder, path, files)
			}
			if (folder == "messages" || folder == "pools" || folder == "axis") && strings.Contains(path, ".") {
				if _, is := ours(path); !is {
					t.Errorf("%s imports the standard library and our values only, not %s: %v", folder, path, files)
				}
			}
		}
	}
	// The pure packages have no goroutine and no clock either.
	for _, folder := range []string{"messages", "pools", "axis"} {
		for _, path := range []string{"time", "sync", "sync/atomic", "os", "context"} {
			assert.False(t, product(all[folder][path]), "%s is pure: it does not import %s", folder, path)
		}
	}
}
