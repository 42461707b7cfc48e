package casefile

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/meshrun/meshrun/cmd/meshrun/internal/suggest"
	"github.com/meshrun/meshrun/messages"
)

// mostErrors bounds how many problems are told at once.
const mostErrors = 20

// decoder turns nodes into values and collects what is wrong with them, so that a user sees all of it at once.
type decoder struct {
	data []byte
	errs Errors
}

func (d *decoder) fail(n *node, format string, args ...any) {
	d.failAt(n.offset, n.where, format, args...)
}

func (d *decoder) failAt(offset int64, where, format string, args ...any) {
	if len(d.errs) >= mostErrors {
		return
	}
	line, col := position(d.data, offset)
	d.errs = append(d.errs, &Error{Line: line, Col: col, Where: where, Text: fmt.Sprintf(format, args...)})
}

// fields reads the members of an object. It notes which keys are asked for: those are the keys that there are, and end refuses the rest.
type fields struct {
	*decoder
	n     *node
	what  string // for messages: "a case", "all_gather"
	noun  string // of a key: "key" or "argument"
	known []string
	later map[string]bool // refused as not supported yet; end does not list them
}

func (d *decoder) object(n *node, what, noun string) *fields {
	f := &fields{decoder: d, n: n, what: what, noun: noun, later: map[string]bool{}}
	if n.kind != object {
		d.fail(n, "%s: %s is an object", n, what)
		f.n = &node{offset: n.offset, where: n.where, kind: object}
	}
	return f
}

// take returns the value of a key, nil when it is absent or null, under any of its names.
func (f *fields) take(names ...string) *node {
	n := f.present(names...)
	if n != nil && n.kind == null {
		return nil
	}
	return n
}

// present is take for keys where null has a meaning.
func (f *fields) present(names ...string) *node {
	f.known = append(f.known, names...)
	var found *node
	for _, name := range names {
		for _, m := range f.n.members {
			if m.key != name {
				continue
			}
			if found != nil {
				f.fail(m.value, "another name for %q, which is given as well", names[0])
			}
			found = m.value
		}
	}
	return found
}

// required is take for keys that must be there.
func (f *fields) required(names ...string) *node {
	n := f.present(names...)
	if n == nil {
		f.fail(f.n, "%s needs %q", f.what, names[0])
	}
	return n
}

// notYet refuses a key of the format that this version does not know what to do with. Values that change nothing pass.
func (f *fields) notYet(key string, harmless ...string) {
	f.later[key] = true
	n := f.take(key)
	if n == nil || n.kind == list && len(n.list) == 0 {
		return
	}
	for _, h := range harmless {
		if n.String() == h {
			return
		}
	}
	f.fail(n, "%s: %q is not supported yet", n, key)
}

// end refuses the keys that nobody has asked for.
func (f *fields) end() {
	for _, m := range f.n.members {
		known := false
		for _, k := range f.known {
			known = known || k == m.key
		}
		if known {
			continue
		}
		var names []string
		for _, k := range f.known {
			if !f.later[k] && !slices.Contains(names, k) {
				names = append(names, k)
			}
		}
		f.failAt(m.offset, f.n.where, "unknown %s %q of %s: %s", f.noun, m.key, f.what, suggest.Hint(m.key, names))
	}
}

func (d *decoder) text(n *node) string {
	if n == nil {
		return ""
	}
	s, ok := n.token.(string)
	if !ok {
		d.fail(n, "%s: is a string", n)
	}
	return s
}

// name is a text that is not empty.
func (d *decoder) name(n *node) string {
	s := d.text(n)
	if s == "" && n != nil {
		if _, ok := n.token.(string); ok {
			d.fail(n, "is not empty")
		}
	}
	return s
}

func (d *decoder) boolean(n *node, otherwise bool) bool {
	if n == nil {
		return otherwise
	}
	b, ok := n.token.(bool)
	if !ok {
		d.fail(n, "%s: is true or false", n)
	}
	return b
}

func (d *decoder) whole(n *node, least, most int64) int {
	if n == nil {
		return 0
	}
	number, ok := n.token.(json.Number)
	i, err := strconv.ParseInt(string(number), 10, 64)
	switch {
	case !ok || err != nil:
		d.fail(n, "%s: is a whole number", n)
		return 0
	case i < least && most >= math.MaxInt32:
		d.fail(n, "%s: is at least %d", n, least)
		return 0
	case i < least || i > most:
		d.fail(n, "%s: is from %d to %d", n, least, most)
		return 0
	}
	return int(i)
}

// anyInt is a whole number that the rules of an operation check.
func (d *decoder) anyInt(n *node) int { return d.whole(n, math.MinInt32, math.MaxInt32) }

// count is a whole number from 1; 0 when absent.
func (d *decoder) count(n *node) int { return d.whole(n, 1, math.MaxInt32) }

func (d *decoder) seed(n *node) uint64 {
	if n == nil {
		return 0
	}
	number, ok := n.token.(json.Number)
	u, err := strconv.ParseUint(string(number), 10, 64)
	if !ok || err != nil {
		d.fail(n, "%s: is a whole number from 0 to 2^64-1", n)
	}
	return u
}

// number is a JSON number, or the text of one that JSON has no numeral for: NaN, Inf, -Inf.
func (d *decoder) number(n *node) float64 {
	if n == nil {
		return 0
	}
	switch t := n.token.(type) {
	case json.Number:
		f, err := t.Float64()
		if err == nil {
			return f
		}
	case string:
		switch strings.ToLower(strings.TrimPrefix(t, "+")) {
		case "nan":
			return math.NaN()
		case "inf", "infinity":
			return math.Inf(1)
		case "-inf", "-infinity":
			return math.Inf(-1)
		}
	}
	d.fail(n, "%s: is a number", n)
	return 0
}

// elements are the items of a list.
func (d *decoder) elements(n *node, of string) []*node {
	if n == nil {
		return nil
	}
	if n.kind != list {
		d.fail(n, "%s: is a list of %s", n, of)
	}
	return n.list
}

func (d *decoder) ints(n *node) []int {
	var out []int
	for _, e := range d.elements(n, "whole numbers") {
		out = append(out, d.anyInt(e))
	}
	return out
}

func (d *decoder) names(n *node) []string {
	var out []string
	for _, e := range d.elements(n, "names") {
		out = append(out, d.name(e))
	}
	return out
}

// pair is a list of two counts.
func (d *decoder) pair(n *node, of string) [2]int {
	var p [2]int
	if n == nil {
		return p
	}
	if len(n.list) != 2 {
		d.fail(n, "%s: is %s", n, of)
		return p
	}
	for i := range p {
		p[i] = d.count(n.list[i])
	}
	return p
}

func (d *decoder) shape(n *node) messages.Shape {
	if n == nil {
		return messages.Shape{}
	}
	before := len(d.errs)
	dims := d.ints(n)
	if len(d.errs) > before {
		return messages.Shape{}
	}
	s, err := messages.NewShape(dims...)
	if err == nil && len(dims) == 0 {
		err = messages.Invalid("", "shape", "[]", "has at least one dim")
	}
	if err != nil {
		d.fail(n, "%v", err)
	}
	return s
}

// word reads a string by one of the parsers of package messages, such as ParseDType.
func word[T any](d *decoder, n *node, parse func(string) (T, error), otherwise T) T {
	if n == nil {
		return otherwise
	}
	before := len(d.errs)
	s := d.text(n)
	if len(d.errs) > before {
		return otherwise
	}
	v, err := parse(s)
	if err != nil {
		d.fail(n, "%v", err)
		return otherwise
	}
	return v
}

// oneOf reads one of a few words.
func (d *decoder) oneOf(n *node, otherwise string, words ...string) string {
	return word(d, n, func(s string) (string, error) {
		for _, w := range words {
			if s == w {
				return w, nil
			}
		}
		return "", fmt.Errorf("%q: is %s", s, strings.Join(words, " or "))
	}, otherwise)
}
