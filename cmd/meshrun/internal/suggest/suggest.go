// Package suggest finds the known word that a mistyped one was meant to be.
package suggest

import (
	"strings"
)

// Nearest returns the known word closest to the given one, or "" when none is close.
func Nearest(word string, known []string) string {
	best, least := "", len(word)/3+2
	for _, k := range known {
		if d := distance(strings.ToLower(word), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	return best
}

// Hint is the end of a sentence: "did you mean X" where a known word is close, else the list of all.
func Hint(word string, known []string) string {
	if n := Nearest(word, known); n != "" {
		return `did you mean "` + n + `"?`
	}
	if len(known) == 0 {
		return "there are none"
	}
	return "known are " + strings.Join(known, ", ")
}

// distance counts the insertions, deletions, replacements and swaps of neighbours that turn a into b.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
