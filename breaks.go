package meshrun

import (
	"strconv"
	"strings"

	"github.com/meshrun/meshrun/actors"
	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/messages"
)

// breaks are the rules that Config.Break switches off: those of the runtime, and those of the emulated programs.
type breaks struct {
	rules    actors.Break
	settings []devicecgo.Setting
}

func parseBreaks(names []string) (breaks, error) {
	var b breaks
	for _, name := range names {
		rule, what, _ := strings.Cut(name, " ")
		program := false
		switch {
		case rule == "one_bank":
			pool, axis, ok := messages.ParsePoolOnAxis(what)
			if !ok {
				return b, messages.Invalid("open", "break", strconv.Quote(name), "names a semaphore pool and an axis, such as one_bank ag[1]")
			}
			b.rules.OneBank = append(b.rules.OneBank, actors.PoolOnAxis{Pool: pool, Axis: axis})
		case what != "":
			return b, messages.Invalid("open", "break", strconv.Quote(name), "has nothing behind the rule")
		case rule == "no_creation_fence":
			b.rules.NoCreationFence = true
		case rule == "linear_intermediate":
			b.rules.LinearIntermediate, program = true, true
		case rule == "no_start_barrier" || rule == "ring_halo":
			program = true
		default:
			return b, messages.Invalid("open", "break", strconv.Quote(name),
				"is one of: one_bank POOL[AXIS], no_creation_fence, no_start_barrier, ring_halo, linear_intermediate")
		}
		if program {
			b.settings = append(b.settings, devicecgo.Setting{Key: "break", Value: rule})
		}
	}
	return b, nil
}
