// Package emulator is the embedded default driver: an emulated mesh, in C++, behind the same C ABI as any other driver. See docs/emulator.md.
//
// It owns the emulation: virtual time, devices, links, semaphores, memory and the arithmetic. It imports package devicecgo only.
package emulator

/*
#cgo CXXFLAGS: -std=c++20 -O3 -Wall -Wextra -I${SRCDIR}/..
#cgo CFLAGS: -I${SRCDIR}/..
#cgo LDFLAGS: -lpthread
#include <stdlib.h>
#include "meshrun_driver.h"

const mr_driver* meshrun_emulator_driver(uint32_t abi_version);

static int32_t presets(char* json, uint64_t capacity, uint64_t* needed, mr_error* error) {
  const mr_emulator_ext* ext = (const mr_emulator_ext*)meshrun_emulator_driver(MR_ABI_VERSION)->extension("meshrun.emulator.1");
  return ext->presets(json, capacity, needed, error);
}
*/
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/meshrun/meshrun/devicecgo"
)

// Name is the driver's name in the registry.
const Name = "emulator"

// Driver returns the emulated mesh as a driver.
func Driver() devicecgo.Driver {
	return devicecgo.Linked(Name, unsafe.Pointer(C.meshrun_emulator_driver))
}

// Presets lists the machines that the emulator knows, as a JSON array.
func Presets() ([]byte, error) {
	e := C.mr_error{size: C.sizeof_mr_error}
	for size := 16 << 10; ; {
		buf := make([]byte, size)
		var needed C.uint64_t
		if code := C.presets((*C.char)(unsafe.Pointer(&buf[0])), C.uint64_t(size), &needed, &e); code != C.MR_OK {
			return nil, fmt.Errorf("emulator: presets: %s", C.GoString(&e.message[0]))
		}
		if int(needed) <= size {
			return buf[:max(int(needed)-1, 0)], nil
		}
		size = int(needed)
	}
}
