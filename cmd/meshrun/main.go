// Command meshrun runs diffusion transformers on a mesh of devices, replays case files, and describes meshes. See docs/run.md, docs/exec.md.
package main

import (
	"os"

	"github.com/meshrun/meshrun/cmd/meshrun/internal/cli"
)

func main() {
	state, release := cli.FromProcess()
	code := cli.Main(state)
	release()
	os.Exit(code)
}
