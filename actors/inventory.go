package actors

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/meshrun/meshrun/messages"
)

// mostOwners is how many owners of memory an error lists.
const mostOwners = 8

// inventoried adds to an error that says that a device is full who has its memory, the most first: only the pools can be made smaller, by
// release_buffers, so it is they that are listed.
func (d *device) inventoried(err error) error {
	if !errors.Is(err, messages.ErrOutOfMemory) {
		return err
	}
	type owner struct {
		pool  string
		bytes int64
	}
	var owners []owner
	var total int64
	at := map[string]int{}
	for _, b := range d.banks[d.buffersPool()] {
		for i := range b.buffers {
			bytes := deviceBytes(b.buffers[i].spec)
			pool := b.buffers[i].name
			if end := strings.LastIndex(pool, ".bank"); end >= 0 {
				pool = pool[:end]
			}
			if _, known := at[pool]; !known {
				at[pool] = len(owners)
				owners = append(owners, owner{pool: pool})
			}
			owners[at[pool]].bytes += bytes
			total += bytes
		}
	}
	if len(owners) == 0 {
		return fmt.Errorf("%w; no persistent buffer is live", err)
	}
	slices.SortStableFunc(owners, func(a, b owner) int {
		return int(min(max(b.bytes-a.bytes, -1), 1))
	})
	var list []string
	for _, o := range owners[:min(len(owners), mostOwners)] {
		list = append(list, fmt.Sprintf("%s %d bytes", o.pool, o.bytes))
	}
	if more := len(owners) - mostOwners; more > 0 {
		list = append(list, fmt.Sprintf("%d more", more))
	}
	return fmt.Errorf("%w; %d bytes are persistent buffers, which release_buffers frees where no bank is lent: %s", err, total, strings.Join(list, ", "))
}

// deviceBytes is what a shard takes on its device: tiles are whole.
func deviceBytes(s messages.Spec) int64 {
	n := s.Shape.Elements()
	if s.Layout == messages.Tile {
		n = 1
		for i := range s.Shape.Rank() {
			dim := int64(s.Shape.Dim(i))
			if i >= s.Shape.Rank()-2 {
				dim = (dim + 31) / 32 * 32
			}
			n *= dim
		}
		if s.Shape.Rank() == 1 {
			n *= 32
		}
	}
	if s.DType == messages.BFloat8B {
		return n / 1024 * 1088 // a tile with its exponents
	}
	return n * int64(s.DType.HostBytes())
}
