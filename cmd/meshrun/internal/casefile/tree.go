package casefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// node is a JSON value that knows where it stands.
type node struct {
	offset  int64 // of its first byte
	where   string
	token   json.Token // of a scalar; nil for null and for lists and objects
	list    []*node
	members []member
	kind    nodeKind
}

type nodeKind uint8

const (
	null nodeKind = iota
	scalar
	list
	object
)

type member struct {
	key    string
	offset int64
	value  *node
}

// maxDepth bounds the nesting of a file; no valid case comes near it.
const maxDepth = 64

// parse reads one JSON value and nothing behind it.
func parse(data []byte) (*node, *Error) {
	p := &parser{data: data, dec: json.NewDecoder(bytes.NewReader(data))}
	p.dec.UseNumber()
	n, err := p.value("", 0)
	if err != nil {
		return nil, err
	}
	if at := p.next(); at < int64(len(data)) {
		return nil, p.fail(at, "", "something behind the end of the case")
	}
	return n, nil
}

type parser struct {
	data []byte
	dec  *json.Decoder
}

func (p *parser) fail(offset int64, where, format string, args ...any) *Error {
	line, col := position(p.data, offset)
	return &Error{Line: line, Col: col, Where: where, Text: fmt.Sprintf(format, args...)}
}

// next is the offset of the next token, behind what only separates.
func (p *parser) next() int64 {
	at := p.dec.InputOffset()
	for at < int64(len(p.data)) && bytes.IndexByte([]byte(" \t\r\n,:"), p.data[at]) >= 0 {
		at++
	}
	return at
}

func (p *parser) token(where string) (json.Token, int64, *Error) {
	at := p.next()
	t, err := p.dec.Token()
	if err == nil {
		return t, at, nil
	}
	var syntax *json.SyntaxError
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return nil, at, p.fail(int64(len(p.data)), where, "not JSON: the file ends too early")
	case errors.As(err, &syntax):
		// The decoder's offset counts from the end of its last token.
		return nil, at, p.fail(at, where, "not JSON: %v", syntax)
	}
	return nil, at, p.fail(at, where, "not JSON: %v", err)
}

func (p *parser) value(where string, depth int) (*node, *Error) {
	t, at, err := p.token(where)
	if err != nil {
		return nil, err
	}
	if depth > maxDepth {
		return nil, p.fail(at, where, "nested deeper than %d", maxDepth)
	}
	n := &node{offset: at, where: where}
	switch t {
	case nil:
		return n, nil
	case json.Delim('['):
		n.kind = list
		for p.dec.More() {
			v, err := p.value(where+"["+strconv.Itoa(len(n.list))+"]", depth+1)
			if err != nil {
				return nil, err
			}
			n.list = append(n.list, v)
		}
	case json.Delim('{'):
		n.kind = object
		for p.dec.More() {
			if err := p.member(n, depth); err != nil {
				return nil, err
			}
		}
	default:
		n.kind, n.token = scalar, t
		return n, nil
	}
	_, _, err = p.token(where) // the closing bracket
	return n, err
}

func (p *parser) member(n *node, depth int) *Error {
	t, at, err := p.token(n.where)
	if err != nil {
		return err
	}
	key := t.(string) // the decoder takes no other keys
	for _, m := range n.members {
		if m.key == key {
			return p.fail(at, n.where, "key %q stands twice", key)
		}
	}
	where := key
	if n.where != "" {
		where = n.where + "." + key
	}
	v, err := p.value(where, depth+1)
	n.members = append(n.members, member{key, at, v})
	return err
}

// position turns an offset into line and column, both from 1.
func position(data []byte, offset int64) (line, col int) {
	before := data[:min(offset, int64(len(data)))]
	return bytes.Count(before, []byte{'\n'}) + 1, len(before) - bytes.LastIndexByte(before, '\n')
}

// String is the value as a short text for messages.
func (n *node) String() string {
	switch n.kind {
	case null:
		return "null"
	case list:
		return fmt.Sprintf("a list of %d", len(n.list))
	case object:
		return "an object"
	}
	if s, ok := n.token.(string); ok {
		return strconv.Quote(s)
	}
	return fmt.Sprint(n.token)
}
