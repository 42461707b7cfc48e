package actors

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/messages"
)

// A row of several launches of which some are no longer kept has the times of the rest.
func TestTimesOfLaunchesThatAreNotKept(t *testing.T) {
	launch := func(begin uint64) []messages.DeviceTime {
		return []messages.DeviceTime{{At: messages.Coord{Col: 0}, StartNS: begin, EndNS: begin + 10, WaitingNS: 1}, {At: messages.Coord{Col: 1}, StartNS: begin + 1, EndNS: begin + 9, WaitingNS: 2}}
	}
	sum := []messages.DeviceTime{{At: messages.Coord{Col: 0}, StartNS: 100, EndNS: 210, WaitingNS: 2}, {At: messages.Coord{Col: 1}, StartNS: 101, EndNS: 209, WaitingNS: 4}}
	for _, launches := range [][][]messages.DeviceTime{
		{launch(100), launch(200)},
		{{}, launch(100), launch(200)},
		{launch(100), nil, launch(200)},
		{launch(100), launch(200), {}},
	} {
		var row []messages.DeviceTime
		for _, l := range launches {
			row = withTimes(row, l)
		}
		require.Equal(t, sum, row)
	}
}
