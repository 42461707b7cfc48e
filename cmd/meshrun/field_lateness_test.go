package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/meshrun/meshrun/cmd/meshrun/internal/cli"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/workload"
)

// executeWith runs a case that is given as text, with flags.
func executeWith(text string, flags ...string) program { return executeWithin(0, text, flags...) }

// executeWithin gives the command of --on-hang so long; 0 is the usual.
func executeWithin(hook time.Duration, text string, flags ...string) program {
	s, stdout, stderr := state(append([]string{"exec", "-"}, flags...)...)
	s.Stdin, s.HookWithin = strings.NewReader(text), hook
	code := cli.Main(s)
	return program{code, stdout.String(), stderr.String()}
}

type deviceTime struct {
	At      [2]int `json:"at"`
	Start   uint64 `json:"start_ns"`
	End     uint64 `json:"end_ns"`
	Waiting uint64 `json:"waiting_ns"`
}

// timedLog is what exec --devices prints of times.
type timedLog struct {
	Rows []struct {
		Step string
		Time *struct {
			Start   uint64 `json:"start_ns"`
			End     uint64 `json:"end_ns"`
			Devices []deviceTime
		}
	}
	Report struct {
		Stats struct {
			PerDevice  []uint64 `json:"waiting_for_peers_ns_per_device"`
			Operations []struct {
				Name    string
				Span    uint64 `json:"span_ns"`
				Waiting uint64 `json:"waiting_for_peers_ns"`
				Late    []struct {
					At       [2]int
					Launches int
					NS       uint64
				}
			}
		}
		Virtual uint64 `json:"virtual_ns"`
	}
}

func timed(t *testing.T, text string) timedLog {
	t.Helper()
	p := executeWith(text, "--devices")
	require.Equal(t, 0, p.code, p.stderr)
	var l timedLog
	require.NoError(t, json.Unmarshal([]byte(p.stdout), &l))
	return l
}

// E3: a device that is late before each gather is named, and what the others wait for it is no cost of the gather.
func TestFieldE3WhichDeviceWasLate(t *testing.T) {
	const gathers, late, us = 4, 3_000_000, 1000
	text := `{"mesh":[1,4],"faults":[%s],"tensors":{"x":{"shape":[1,1,32,64],"fill":{"iota":true}}},"calls":[` +
		strings.TrimSuffix(strings.Repeat(`{"op":"all_gather","in":"x","dim":3,"mesh_axis":1,"out":"y"},`, gathers), ",") + `]}`
	usual, slow := timed(t, fmt.Sprintf(text, "")), timed(t, fmt.Sprintf(text, `"device 0,2 delay 3ms"`))
	rows := 0
	for i, row := range slow.Rows {
		if row.Time == nil || row.Step != "all_gather" {
			continue
		}
		rows++
		require.Len(t, row.Time.Devices, 4)
		plain := usual.Rows[i].Time
		first, last := row.Time.Devices[0].Start, uint64(0)
		for c, d := range row.Time.Devices {
			require.Equal(t, [2]int{0, c}, d.At)
			first, last = min(first, d.Start), max(last, d.End)
			want := uint64(late)
			if c == 2 {
				want = 0
			}
			require.InDelta(t, want, d.Waiting, 5*us, "device %d waits for 0,2 alone", c)
			require.InDelta(t, plain.Devices[c].End-plain.Devices[c].Start, d.End-d.Start-d.Waiting, 5*us, "and what is left is what the gather costs")
			require.InDelta(t, 0, plain.Devices[c].Waiting, 5*us)
		}
		require.Equal(t, [2]uint64{first, last}, [2]uint64{row.Time.Start, row.Time.End})
	}
	require.Equal(t, gathers, rows)
	o, plain := slow.Report.Stats.Operations[0], usual.Report.Stats.Operations[0]
	require.Equal(t, "all_gather", o.Name)
	require.InDelta(t, gathers*late, o.Waiting, gathers*5*us)
	require.InDelta(t, plain.Span, o.Span-o.Waiting, gathers*5*us)
	require.NotEmpty(t, o.Late)
	require.Equal(t, [2]int{0, 2}, o.Late[0].At)
	require.Equal(t, gathers, o.Late[0].Launches)
	require.InDelta(t, gathers*late, o.Late[0].NS, gathers*5*us)
	require.InDelta(t, 0, plain.Waiting, gathers*5*us)
	for c, ns := range slow.Report.Stats.PerDevice {
		require.InDelta(t, map[bool]int{false: gathers * late}[c == 2], ns, gathers*5*us)
	}

	// Without the flag rows are what they were.
	with, without := executeWith(fmt.Sprintf(text, ""), "--devices"), execute(fmt.Sprintf(text, ""))
	require.Contains(t, with.stdout, `"devices":[{"at":[0,0],"start_ns":`)
	for _, row := range readLog(t, without.stdout).Rows {
		if row.Time != nil {
			require.Contains(t, without.stdout, fmt.Sprintf(`"time":{"start_ns":%d,"end_ns":%d}`, row.Time.Start, row.Time.End))
		}
	}
}

// A run says who was late where that took a considerable part of the time, and nothing where nobody was.
func TestFieldE3TheSummaryNamesTheLateDevice(t *testing.T) {
	args := []string{"run", "--quiet", "--model", "wan2.2-14b-720p", "--preset", "bh-galaxy-4x8", "--tp", "4@0", "--sp", "8@1", "--topology", "ring", "--mode", "timing", "--steps", "1"}
	p := meshrunProgram(args...)
	require.Equal(t, 0, p.code, p.stderr)
	require.NotContains(t, p.stdout, "late")
	require.NotContains(t, p.stdout, "waiting")
	p = meshrunProgram(append(args, "--skew_us", "3000")...)
	require.Equal(t, 0, p.code, p.stderr)
	require.Regexp(t, `(?m)^device \d,\d was late: others waited [\d.]+ m?s for it to begin, \d+ % of the virtual time$`, p.stdout)
	require.Contains(t, p.stdout, "waiting for peers")

	p = meshrunProgram("run", example, "--quiet", "--streams", "1")
	require.Equal(t, 0, p.code, p.stderr)
	require.NotContains(t, p.stdout, "late")
	r := runJSON(t, meshrunProgram("run", example, "--quiet", "--json", "--streams", "1", "--skew_us", "3000"))
	require.Contains(t, r.Stats, "late")

	p = stub(given(&workload.Result{OK: true, Streams: []workload.StreamResult{{Name: "s0", OK: true}},
		Late: &workload.LateDevice{At: messages.Coord{Row: 0, Col: 2}, Launches: 4, WaitingMS: 12, Share: 0.25}}, nil))
	require.Contains(t, p.stdout, "\ndevice 0,2 was late: others waited 12 ms for it to begin, 25 % of the virtual time\n")
}

const slowGather = `{"mesh":[2,4],"faults":["device 1,2 delay 8s at launch 1"],%s"calls":[{"op":"all_gather","shape":[1,1,32,32],"dim":3,"mesh_axis":1}]}`

// E2 (a): an operation of more than eight seconds of which something moves now and then is no hang.
func TestFieldE2AHealthyOperationThatIsSlow(t *testing.T) {
	for kind, text := range map[string]string{
		// Every entry, link and look is late by up to 2.5 s.
		"semaphores move": `{"mesh":[1,8],"topology":"linear","seed":%d,"skew_us":2500000,"limits":{"no_progress_us":5000000},"calls":[
			{"op":"all_gather","shape":[1,1,32,32],"dim":3,"mesh_axis":1}]}`,
		// A step of attention takes seconds.
		"devices compute": `{"mesh":[1,4],"mode":"timing","seed":%d,"skew_us":100,"limits":{"no_progress_us":1000000},"calls":[
			{"op":"ring_joint_sdpa","in":["q","q","q"],"mesh_axis":1}],"tensors":{"q":{"shape":[1,8,262144,128]}}}`,
	} {
		longest := uint64(0)
		for seed := range 5 {
			l := ok(t, fmt.Sprintf(text, seed))
			for _, row := range l.Rows {
				if row.Time != nil {
					longest = max(longest, row.Time.End-row.Time.Start)
				}
			}
		}
		require.Greater(t, longest, uint64(8_000_000_000), kind)
	}
}

// E2 (b): one of which nothing moves for five seconds is a hang, of its class, although it would have gone on after eight.
func TestFieldE2AnOperationOfWhichNothingMoves(t *testing.T) {
	p := execute(fmt.Sprintf(slowGather, `"limits":{"no_progress_us":5000000},`))
	require.Equal(t, 5, p.code, p.stderr)
	require.Contains(t, p.stderr, "has made no progress for 5000000 us")
	l := readLog(t, p.stdout)
	hang := l.Report["hang"].(map[string]any)
	require.Equal(t, "never_entered", hang["class"])
	require.Equal(t, []any{1.0, 2.0}, hang["device"])
	require.Equal(t, 5e6, hang["no_progress_us"])
	require.InDelta(t, 5e9, l.Report["virtual_ns"], 10e6)
	require.Equal(t, p, execute(fmt.Sprintf(slowGather, `"limits":{"no_progress_us":5000000},`)), "the same bytes")

	// A limit that does not pass changes nothing, not even a time.
	plain := execute(fmt.Sprintf(slowGather, ""))
	require.Equal(t, 0, plain.code, plain.stderr)
	require.Equal(t, plain, execute(fmt.Sprintf(slowGather, `"limits":{"no_progress_us":9000000},`)))
}

// E2 (c): each operation may have its own.
func TestFieldE2LimitsByOperation(t *testing.T) {
	for limits, code := range map[string]int{
		`{"all_gather":5000000}`:                     5,
		`{"all_gather":9000000}`:                     0,
		`{"default":5000000}`:                        5,
		`{"default":1000,"all_gather":9000000}`:      0,
		`{"default":1000,"all_gather":0}`:            0,
		`{"reduce_scatter":1000}`:                    0,
		`{"default":9000000,"all_gather":5000000}`:   5,
		`{"reduce_scatter":1000,"default":10000000}`: 0,
	} {
		p := execute(fmt.Sprintf(slowGather, `"limits":{"no_progress_us":`+limits+`},`))
		require.Equal(t, code, p.code, "%s: %s", limits, p.stderr)
	}
	for limits, want := range map[string]string{
		`{"all_gathers":1}`:  `case:1:88: limits.no_progress_us: unknown operation "all_gathers" of no_progress_us: did you mean "all_gather"?`,
		`{"all_gather":-1}`:  "limits.no_progress_us.all_gather: -1: is at least 0",
		`"soon"`:             `limits.no_progress_us: "soon": is a whole number`,
		`[1]`:                "limits.no_progress_us: a list of 1: is a whole number",
		`{"all_gather":"5"}`: `limits.no_progress_us.all_gather: "5": is a whole number`,
	} {
		p := execute(fmt.Sprintf(slowGather, `"limits":{"no_progress_us":`+limits+`},`))
		require.Equal(t, 2, p.code, limits)
		require.Contains(t, strings.Replace(p.stderr, "standard input:", "case:", 1), want)
	}
	// For a run it is one number.
	p := meshrunProgram("run", example, "--quiet", "--streams", "1", "--skew_us", "3000", "--no_progress_us", "100")
	require.Equal(t, 5, p.code, p.stderr)
	require.Contains(t, p.stderr, "has made no progress for 100 us")
	p = meshrunProgram("run", example, "--quiet", "--streams", "1", "--skew_us", "3000", "--no_progress_us", "100000")
	require.Equal(t, 0, p.code, p.stderr)
}

// E2 (d): a command runs once on a hang, with the report, and whatever it does the exit code is that of the hang.
func TestFieldE2AHookRunsOnceOnAHang(t *testing.T) {
	stuck := fmt.Sprintf(slowGather, `"limits":{"no_progress_us":5000000},`)
	path := filepath.Join(t.TempDir(), "seen")
	p := executeWith(stuck, "--on-hang", "cat >> "+path+"; echo told; echo more >&2")
	require.Equal(t, 5, p.code, p.stderr)
	require.Contains(t, p.stderr, "told\nmore\n")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), "\n"))
	var report map[string]any
	require.NoError(t, json.Unmarshal(text, &report))
	require.Equal(t, readLog(t, p.stdout).Report, report)
	require.Equal(t, executeWith(stuck, "--on-hang", "true").stdout, execute(stuck).stdout)

	// Nothing is run where nothing hangs.
	require.NoError(t, os.Remove(path))
	require.Equal(t, 0, executeWith(fmt.Sprintf(slowGather, ""), "--on-hang", "touch "+path).code)
	require.Equal(t, 2, executeWith("{}", "--on-hang", "touch "+path).code)
	require.NoFileExists(t, path)

	// It fails, takes too long, or leaves others behind that do: a line, and no more.
	for _, c := range []struct {
		command string
		within  time.Duration
		want    string
	}{
		{"exit 7", 0, "exit status 7"},
		{"no-such-command", 0, "exit status 127"},
		{"sleep 1000", time.Second, "took longer than 1s"},
		{"sleep 1000 & exec sleep 1000", time.Second, "took longer than 1s"},
		{"sleep 1000 &", 0, "what it left in the background was ended"}, // it holds the output
	} {
		p = executeWithin(c.within, stuck, "--on-hang", c.command)
		require.Equal(t, 5, p.code)
		require.Regexp(t, `(?m)^meshrun: --on-hang "`+c.command+`": .*`+c.want+`$`, p.stderr)
	}

	// A run has it too, and a lost device is enough.
	hang := func(context.Context, workload.Config, func(workload.Progress)) (*workload.Result, error) {
		return &workload.Result{Hang: map[string]any{"class": "never_left", "text": "hang at 5 ns"}}, nil
	}
	p = stub(hang, "--on-hang", "cat")
	require.Equal(t, 5, p.code)
	require.Contains(t, p.stderr, `"hang":{"class":"never_left","text":"hang at 5 ns"}`)
	p = stub(given(nil, messages.ErrDeviceLost), "--on-hang", "cat")
	require.Equal(t, 5, p.code)
	require.Contains(t, p.stderr, `"hang":null`)
}

// What the command has left in the background ends with it, also when nothing is wrong.
func TestFieldE2AHookLeavesNothingBehind(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	said := make(chan string, 1)
	go func() { // until nobody holds the other end
		text, err := os.ReadFile(pipe)
		said <- fmt.Sprint(string(text), err)
	}()
	p := executeWith(fmt.Sprintf(slowGather, `"limits":{"no_progress_us":5000000},`), "--on-hang",
		"exec 3>"+pipe+"; echo begun >&3; (sleep 30; echo survived >&3) >/dev/null 2>&1 &")
	require.Equal(t, 5, p.code, p.stderr)
	require.NotContains(t, p.stderr, "on-hang")
	require.Equal(t, "begun\n<nil>", <-said)
}

// A hang of many calls is told once, and then which calls it has ended.
func TestFieldE2AHangIsToldOnce(t *testing.T) {
	const gather = `{"op":"all_gather","shape":[1,1,32,32],"dim":3,"mesh_axis":1}`
	p := execute(`{"mesh":[1,4],"faults":["device 0,2 stop at launch 1"],"streams":[{"name":"a","calls":[` + gather + `,` + gather + `]},{"name":"b","calls":[` + gather + `]}]}`)
	require.Equal(t, 5, p.code, p.stderr)
	lines := strings.Split(strings.TrimSpace(p.stderr), "\n")
	require.Len(t, lines, 2, p.stderr)
	require.Contains(t, lines[0], "hang at ")
	require.Contains(t, lines[1], "calls that this ended: streams[0].calls[0] (stream a) all_gather, streams[0].calls[1] (stream a) all_gather, streams[1].calls[0] (stream b) all_gather")
}
