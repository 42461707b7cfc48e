// Package casefile reads the case files of `meshrun exec` (docs/exec.md): strictly, with the line and column of what is wrong, and
// without a mesh.
//
// It owns the format: its keys, the table of its operations, the ways to fill a tensor. It runs nothing.
package casefile
