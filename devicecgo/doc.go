// Package devicecgo is the line between Go and the driver of a mesh: the C ABI (meshrun_driver.h), its Go face (Device and
// the args structs), the registry and the loader of drivers, and the owner thread.
//
// It is the only package that uses cgo, with its children emulator and null, which bring drivers of their own. It knows no
// pool, no rule of an operation and no actor, and must never import packages pools, axis or actors.
//
// # Rules of the line
//
// Pointers. An args struct holds handles and numbers, never a Go pointer, and C keeps no pointer after a call returns. Bulk
// data are copied by the driver during the call.
//
// Threads. A mesh belongs to the OS thread that opened it; every call from another thread returns ErrWrongThread before it
// reaches the driver. Thread gives such an owner. A driver may declare that any thread will do; then calls are serialised by
// a lock.
//
// Errors. One function, toError, turns a code and a text into a typed Go error (messages.Err...). C++ exceptions never cross:
// drivers must catch them, and the tests load one that throws.
package devicecgo
