// Package testdriver builds the tests' own mesh driver as a shared library: one that records what it is told and misbehaves on request. It
// is for tests only.
package testdriver

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// Build compiles the driver with the given compiler flags, such as -DTEST_ABI_VERSION=9, and returns the path of the library.
func Build(t testing.TB, flags ...string) string {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	here := filepath.Dir(file)
	out := filepath.Join(t.TempDir(), "driver.so")
	args := append([]string{"-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-I" + filepath.Join(here, "../../devicecgo"),
		"-o", out, filepath.Join(here, "src", "driver.cpp")}, flags...)
	cmd := exec.Command("g++", args...)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("g++: %v\n%s", err, text)
	}
	return out
}
