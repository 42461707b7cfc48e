package workload

import (
	"github.com/meshrun/meshrun"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/workload/nn"
)

// Factor is a degree of parallelism and the mesh axis that it lies on, written "4@1". A factor of 1 means serial; the zero Factor is
// serial too.
type Factor = nn.Factor

// ParseFactor reads "4@1": degree 4 on axis 1. "1" is serial.
func ParseFactor(text string) (Factor, error) { return nn.ParseFactor(text) }

// Tolerance bounds the difference from what is expected. Both figures must hold.
type Tolerance struct {
	PCC      float64 `json:"pcc" yaml:"pcc"`             // smallest Pearson correlation
	MaxError float64 `json:"max_error" yaml:"max_error"` // largest absolute difference, in standard deviations of what is expected
}

// Config is one run: the keys of a run file (docs/run.md), resolved.
type Config struct {
	Model    string // folder of a checkpoint, or a name of the Catalogue
	Mesh     meshrun.MeshShape
	Preset   string // instead of Mesh
	TP, SP   Factor
	Topology meshrun.Topology
	NumLinks int
	DType    meshrun.DType // BFloat16 or Float32
	Mode     meshrun.Mode
	Streams  int
	Inputs   string // "varied" or "same"
	Steps    int    // 0: the model's default
	Queues   int
	Seed     uint64
	Halo     nn.Halo // of decoders: nn.HaloFull, the default, or nn.HaloCompact
	Frames   string  // folder for the pictures of every stream; "": none are written
	SkewUS   int     // seeded delays of devices and links, at most
	// NoProgressUS makes an operation a hang that waits, and of which nothing moves for so long; 0: none.
	NoProgressUS int
	Verify       *Tolerance // nil: by model and dtype
}

// Progress tells how far a run is. It is called from several goroutines, one at a time.
type Progress struct {
	Phase  string        // "load", "open", "place", "reference", "run", "verify", in this order
	Mesh   *meshrun.Info // of "open": the mesh that is open now
	Stream string        // of "run" and "verify"
	Done   int           // tensors of "load" and "place", operations of "reference" and "run"
	Total  int           // 0: not known
	Ended  bool          // of the stream or phase
}

// Verification is how a stream's output compares with what is expected.
type Verification struct {
	Against  string  `json:"against"` // "stored" or "1x1"
	PCC      float64 `json:"pcc"`
	MaxError float64 `json:"max_error"`
	OK       bool    `json:"ok"`
}

// StreamResult is what became of one stream.
type StreamResult struct {
	Name       string        `json:"name"`
	OK         bool          `json:"ok"`
	WallMS     float64       `json:"wall_ms"`
	VirtualMS  float64       `json:"virtual_ms"`
	Operations int           `json:"operations"`
	Verify     *Verification `json:"verify"`
	Error      string        `json:"error,omitempty"`

	Err    error     `json:"-"`
	Output []float32 `json:"-"` // the model's answer
	shape  []int     // of Output
}

// OperationTime is what all launches of one operation took.
type OperationTime struct {
	Name      string  `json:"name"`
	Launches  int     `json:"launches"`
	VirtualMS float64 `json:"virtual_ms"` // from the first device's start to the last device's end, summed
	WaitingMS float64 `json:"waiting_ms"` // of it, the most that one device waited for others to begin
}

// LateDevice is the device that others waited for most.
type LateDevice struct {
	At        messages.Coord `json:"at"`
	Launches  int            `json:"launches"`   // in which somebody waited for it
	WaitingMS float64        `json:"waiting_ms"` // the most that one device waited for it, summed over launches
	Share     float64        `json:"share"`      // of the virtual time
}

// Result is what became of a run.
type Result struct {
	OK      bool           `json:"ok"`
	Model   string         `json:"model"`
	Mesh    string         `json:"mesh"`
	Streams []StreamResult `json:"streams"`
	Hazards []any          `json:"hazards"`
	Hang    any            `json:"hang,omitempty"`
	Stats   any            `json:"stats"`
	// LinkBytes is what has crossed links, of all streams; Forwards is how many forward passes that was.
	LinkBytes int64 `json:"link_bytes"`
	Forwards  int   `json:"forwards"`

	Times []OperationTime `json:"times,omitempty"` // by operation, the longest first
	Late  *LateDevice     `json:"late,omitempty"`  // nil: nobody was late by much
}
