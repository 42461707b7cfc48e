// Package runfile reads what `meshrun run` is told: a YAML file and flags, both through one table of keys (docs/run.md).
//
// It owns the keys, their checks, and where a wrong value stands. It opens nothing.
package runfile
