package messages

import (
	"fmt"
	"strconv"
	"strings"
)

// Pool names a kind of semaphore pool. Each mesh axis has one of each.
type Pool uint8

// The semaphore pools of the reference manager, in the order of their creation.
const (
	PoolRS Pool = iota
	PoolRSFused
	PoolAG
	PoolExpRing
	PoolNP
	PoolSR
	PoolBarrier
	PoolNPFused
	PoolBarrierFused
	PoolNPRegion
	PoolStridedAGMM
	PoolFSDP
	PoolCount
)

var poolNames = [PoolCount]string{"rs", "rs_fused", "ag", "exp_ring", "np", "sr", "barrier", "np_fused", "barrier_fused", "np_region", "strided_ag_mm", "fsdp"}

func (p Pool) String() string { return nameOf(poolNames[:], int(p), "pool") }

// ParsePoolOnAxis reads a pool with its axis, such as ag[1].
func ParsePoolOnAxis(s string) (p Pool, axis int, ok bool) {
	for p, name := range poolNames {
		for axis := range 2 {
			if s == name+"["+strconv.Itoa(axis)+"]" {
				return Pool(p), axis, true
			}
		}
	}
	return 0, 0, false
}

// BufferKind names a kind of persistent buffer.
type BufferKind uint8

// The buffer pools. Which fields of a BufferKey count depends on the kind.
const (
	BufferAG BufferKind = iota + 1
	BufferRS
	BufferNP
	BufferNPHalo
	BufferNormStats
	BufferMMProgress
	BufferMMCredit
	BufferFSDP
)

// SingleBank reports whether pools of this kind have one bank, which is never lent: the counters of the fused matmul.
func (k BufferKind) SingleBank() bool { return k == BufferMMProgress || k == BufferMMCredit }

// Parts says which buffers of a reduce-scatter pair a bank has.
type Parts uint8

// Both is the usual pair; a caller may ask for one of the two alone.
const (
	Both Parts = iota
	IntermediateOnly
	OutputOnly
)

// Role keeps buffers of equal shape apart that one operation uses at once: K and V of ring attention.
type Role uint8

// The roles of a gather buffer.
const (
	NoRole Role = iota
	RoleK
	RoleV
)

var roleNames = [...]string{"", "k", "v"}

// BufferKey names one pool of persistent buffers. A request gets a buffer of a pool only if its whole key is the same, so a
// buffer never serves a request that it does not fit.
type BufferKey struct {
	Kind     BufferKind
	Shape    Shape // of the input; of the padded tensor (np); of the buffer (norm stats)
	Dim      int   // counted from the front
	Axis     int
	DType    DType
	Parts    Parts
	Role     Role
	Capacity int    // gathers: length of the buffer's dim Dim where it is more than one shape needs; Shape has 1 there
	Pad      [2]int // halo: left and right pad of dim Dim
	HasW     bool   // halo: Dim2 is padded too
	Dim2     int
	Pad2     [2]int
	Text     string // norm stats: the caller's key
}

// String is the name by which logs and reports call the pool, such as "ag(shape=[1, 1, 32, 64],dim=3,axis=1,dtype=bfloat16)". What
// differs from a bfloat16 pair with both parts is appended.
func (k BufferKey) String() string {
	switch k.Kind {
	case BufferAG, BufferFSDP:
		name, more := "ag", ""
		if k.Kind == BufferFSDP {
			name = "fsdp"
		}
		if k.Role != NoRole {
			more = ",role=" + roleNames[k.Role]
		}
		if k.Capacity != 0 {
			more += ",capacity=" + strconv.Itoa(k.Capacity)
		}
		return fmt.Sprintf("%s(shape=%s,dim=%d,axis=%d,dtype=%s%s)", name, k.Shape, k.Dim, k.Axis, k.DType, more)
	case BufferRS:
		var more strings.Builder
		if k.DType != BFloat16 {
			more.WriteString(",dtype=" + k.DType.String())
		}
		switch k.Parts {
		case IntermediateOnly:
			more.WriteString(",parts=intermediate")
		case OutputOnly:
			more.WriteString(",parts=output")
		}
		return fmt.Sprintf("rs(shape=%s,dim=%d,axis=%d%s)", k.Shape, k.Dim, k.Axis, more.String())
	case BufferNP:
		return fmt.Sprintf("np(shape=%s,dtype=%s)", k.Shape, k.DType)
	case BufferNPHalo:
		dim2, pad2 := "None", "0"
		if k.HasW {
			dim2, pad2 = strconv.Itoa(k.Dim2), padText(k.Pad2)
		}
		return fmt.Sprintf("np_halo(shape=%s,dim=%d,pad=%s,dim2=%s,pad2=%s,dtype=%s)", k.Shape, k.Dim, padText(k.Pad), dim2, pad2, k.DType)
	case BufferNormStats:
		return "stats(" + k.Text + ")"
	case BufferMMProgress:
		return "mm_progress"
	case BufferMMCredit:
		return "mm_credit"
	}
	return "buffers(" + strconv.Itoa(int(k.Kind)) + ")"
}

// padText prints one number where left and right are the same.
func padText(p [2]int) string {
	if p[0] == p[1] {
		return strconv.Itoa(p[0])
	}
	return fmt.Sprintf("[%d,%d]", p[0], p[1])
}

// Part is one buffer of a bank.
type Part struct {
	Name   string // "", "intermediate", "output"
	Spec   Spec
	Zeroed bool
	// L1 only: height sharded over the grid, one shard of so many rows and columns per core; 0 = interleaved.
	ShardRows, ShardCols int
}

// BankName is the name of one buffer of a bank: the key, the bank, and the part where a bank has several.
func (k BufferKey) BankName(bank int, part string) string {
	s := k.String()
	if !k.Kind.SingleBank() {
		s += ".bank" + strconv.Itoa(bank)
	}
	if part != "" {
		s += "." + part
	}
	return s
}

// SemaphoreName is the name of semaphore i of a bank, such as "rs[0].bank1.2". One semaphore per bank has no last number; a
// pool with one bank names no bank; one for a number of workers names it beside the axis.
func SemaphoreName(pool Pool, axis, workers, bank, i, perBank, banks int) string {
	s := fmt.Sprintf("%s[%d]", pool, axis)
	if workers != 0 {
		s = fmt.Sprintf("%s[%d,%d]", pool, axis, workers)
	}
	if banks > 1 {
		s += ".bank" + strconv.Itoa(bank)
		if perBank == 1 {
			return s
		}
	}
	return s + "." + strconv.Itoa(i)
}
