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
	PoolCount
)

var poolNames = [PoolCount]string{"rs", "rs_fused", "ag", "exp_ring", "np", "sr", "barrier", "np_fused", "barrier_fused", "np_region", "strided_ag_mm"}

func (p Pool) String() string { return nameOf(poolNames[:], int(p), "pool") }

// BufferKind names a kind of persistent buffer.
type BufferKind uint8

// The buffer pools. Which fields of a BufferKey count depends on the kind.
const (
	BufferAG BufferKind = iota + 1
	BufferRS
	BufferNormStats
)

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
	Kind  BufferKind
	Shape Shape // of the input
	Dim   int   // counted from the front
	Axis  int
	DType DType
	Parts Parts
	Role  Role
	Text  string // norm stats: the caller's key
}

// String is the name by which logs and reports call the pool, such as "ag(shape=[1, 1, 32, 64],dim=3,axis=1,dtype=bfloat16)". What
// differs from a bfloat16 pair with both parts is appended.
func (k BufferKey) String() string {
	switch k.Kind {
	case BufferAG:
		role := ""
		if k.Role != NoRole {
			role = ",role=" + roleNames[k.Role]
		}
		return fmt.Sprintf("ag(shape=%s,dim=%d,axis=%d,dtype=%s%s)", k.Shape, k.Dim, k.Axis, k.DType, role)
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
	case BufferNormStats:
		return "stats(" + k.Text + ")"
	}
	return "buffers(" + strconv.Itoa(int(k.Kind)) + ")"
}

// Part is one buffer of a bank.
type Part struct {
	Name   string // "", "intermediate", "output"
	Spec   Spec
	Zeroed bool
}

// BankName is the name of one buffer of a bank: the key, the bank, and the part where a bank has several.
func (k BufferKey) BankName(bank int, part string) string {
	s := k.String() + ".bank" + strconv.Itoa(bank)
	if part != "" {
		s += "." + part
	}
	return s
}

// SemaphoreName is the name of semaphore i of a bank, such as "rs[0].bank1.2". One semaphore per bank has no last number; a
// pool with one bank names no bank.
func SemaphoreName(pool Pool, axis, bank, i, perBank, banks int) string {
	s := fmt.Sprintf("%s[%d]", pool, axis)
	if banks > 1 {
		s += ".bank" + strconv.Itoa(bank)
		if perBank == 1 {
			return s
		}
	}
	return s + "." + strconv.Itoa(i)
}
