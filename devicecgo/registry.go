package devicecgo

/*
#include "meshrun_driver.h"
*/
import "C"

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unsafe"

	"github.com/meshrun/meshrun/messages"
)

// Driver is a way to open meshes: one that is linked in, or a shared library.
type Driver struct {
	name  string
	entry unsafe.Pointer // linked in: its mr_driver_entry
	path  string         // shared library
}

// Linked makes a driver of an entry function that is linked into the program.
func Linked(name string, entry unsafe.Pointer) Driver { return Driver{name: name, entry: entry} }

// Library makes a driver of a shared library that exports meshrun_driver. It is loaded at open.
func Library(path string) Driver { return Driver{name: path, path: path} }

// Name is the driver's name, or the path of its library.
func (d Driver) Name() string { return d.name }

// Open opens a mesh. The calling thread becomes its owner, so it must be locked: call it on a Thread.
func (d Driver) Open(o Options) (*Mesh, error) {
	var table *C.mr_driver
	var err error
	if d.entry != nil {
		table, err = enter(d.name, d.entry)
	} else {
		table, err = load(d.path)
	}
	if err != nil {
		return nil, err
	}
	return open(table, o)
}

// Registry knows drivers by name. The zero value is empty.
type Registry struct {
	drivers map[string]Driver
}

// NewRegistry makes a registry of the drivers that are linked in.
func NewRegistry(linked ...Driver) *Registry {
	r := &Registry{drivers: map[string]Driver{}}
	for _, d := range linked {
		r.drivers[d.name] = d
	}
	return r
}

// Lookup returns a driver by name, or by the path of a shared library: anything with a slash or ending in ".so".
func (r *Registry) Lookup(name string) (Driver, error) {
	if d, ok := r.drivers[name]; ok {
		return d, nil
	}
	if strings.Contains(name, "/") || strings.HasSuffix(name, ".so") {
		return Library(name), nil
	}
	return Driver{}, &messages.InvalidError{Field: "driver", Value: fmt.Sprintf("%q", name),
		Rule: "is one of " + strings.Join(slices.Sorted(maps.Keys(r.drivers)), ", ") + ", or the path of a shared library"}
}
