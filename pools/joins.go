package pools

// Joins keeps, for one queue, which launches joined which devices, and answers rule 4: may launch j use what launch i used last?
//
// A launch joins devices when none of them can finish it before all have begun it. If a launch strictly between i and j joined
// every pair (writer, target) of j, then every target has left i before any writer of j can begin: the bank is free.
type Joins struct {
	line       [2]uint64 // the latest launch that joined every line of the axis
	neighbours [2]uint64 // ... that joined each device with the next one along the axis
	fenced     uint64    // everything up to this launch has retired on every device
}

// Line records that launch n joined every line of the axis.
func (j *Joins) Line(axis int, n uint64) { j.line[axis], j.neighbours[axis] = n, n }

// Neighbours records that launch n joined each device with the next one along the axis.
func (j *Joins) Neighbours(axis int, n uint64) { j.neighbours[axis] = n }

// Fence records that launch n and all before it have retired everywhere.
func (j *Joins) Fence(n uint64) { j.fenced = max(j.fenced, n) }

// SafeOnLine reports whether a launch that writes along the lines of the axis may use what launch `last` used last (0 = nobody).
func (j *Joins) SafeOnLine(axis int, last uint64) bool { return j.Retired(last) || j.line[axis] > last }

// SafeForNeighbours is SafeOnLine for a launch that writes to the next device along the axis only, and not across its ends.
func (j *Joins) SafeForNeighbours(axis int, last uint64) bool {
	return j.Retired(last) || j.neighbours[axis] > last
}

// Retired reports whether launch `last` has retired on every device, which is what a pool of one bank needs.
func (j *Joins) Retired(last uint64) bool { return last <= j.fenced }
