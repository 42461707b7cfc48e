package pools

// Joins keeps, for one queue, which launches joined which devices, and answers rule 4: may launch j use what launch i used last?
//
// A launch joins devices when none of them can finish it before all have begun it. If a launch strictly between i and j joined
// every pair (writer, target) of j, then every target has left i before any writer of j can begin: the bank is free.
type Joins struct {
	line [2]uint64 // the latest launch that joined every line of the axis
	// all is a fence: everything up to and including this launch has retired on every device, or nothing was in flight.
	fenced uint64
}

// Line records that launch n joined every line of the axis.
func (j *Joins) Line(axis int, n uint64) { j.line[axis] = n }

// Fence records that launch n and all before it have retired everywhere.
func (j *Joins) Fence(n uint64) { j.fenced = max(j.fenced, n) }

// SafeOnLine reports whether a launch that writes along the lines of the axis may use what launch `last` used last (0 = nobody).
func (j *Joins) SafeOnLine(axis int, last uint64) bool {
	return last == 0 || last <= j.fenced || j.line[axis] > last
}
