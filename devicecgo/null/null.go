// Package null is a mesh driver that does nothing: every launch is done when it is enqueued and results hold no data. It measures
// what the runtime costs by itself. It imports package devicecgo only.
package null

/*
#cgo CFLAGS: -std=c11 -O2 -Wall -Wextra -I${SRCDIR}/..
#include "driver.h"
*/
import "C"

import (
	"unsafe"

	"github.com/meshrun/meshrun/devicecgo"
)

// Drivers returns the two drivers: "null", whose calls must come from one thread, and "null-unpinned", which takes any.
func Drivers() []devicecgo.Driver {
	return []devicecgo.Driver{
		devicecgo.Linked("null", unsafe.Pointer(C.meshrun_null_driver)),
		devicecgo.Linked("null-unpinned", unsafe.Pointer(C.meshrun_null_unpinned_driver)),
	}
}
