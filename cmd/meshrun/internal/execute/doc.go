// Package execute carries out a case on an emulated mesh in lockstep and describes what happened: the rows, the tensors at the end, the
// mesh's report. The same case gives the same description, byte for byte.
//
// It owns the order of the rows and what becomes of the tensors that a case names. It knows nothing of files (package casefile) or of
// the terminal.
package execute
