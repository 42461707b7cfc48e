package runfile

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Settings are what was given, by key; the parts of verify are "verify.pcc" and "verify.max_error".
type Settings map[string]Setting

// Read reads a file. Unknown keys, keys that stand twice and values that are no single values are problems.
func Read(name string, data []byte) (Settings, Problems) {
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		where, text := name, err.Error()
		var y yaml.Error
		if errors.As(err, &y) {
			where, text = at(name, y.GetToken()), y.GetMessage()
		}
		return nil, Problems{{where, "not YAML: " + text}}
	}
	r := &reader{name: name, settings: Settings{}}
	for i, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.NullType {
			continue
		}
		if i > 0 {
			r.fail(doc.Body, "a run file is one document")
			break
		}
		r.mapping(doc.Body, "a run file", Keys, "")
	}
	return r.settings, r.problems
}

type reader struct {
	name     string
	settings Settings
	problems Problems
}

func at(name string, t *token.Token) string {
	if t == nil || t.Position == nil {
		return name
	}
	return fmt.Sprintf("%s:%d:%d", name, t.Position.Line, t.Position.Column)
}

func (r *reader) fail(n ast.Node, format string, args ...any) {
	r.problems = append(r.problems, Problem{at(r.name, n.GetToken()), fmt.Sprintf(format, args...)})
}

func (r *reader) mapping(n ast.Node, of string, keys []Key, prefix string) {
	m, ok := n.(ast.MapNode)
	if !ok {
		r.fail(n, "%s is a list of keys and values", of)
		return
	}
	for pairs := m.MapRange(); pairs.Next(); {
		key, value := pairs.KeyValue().Key, pairs.Value()
		name := key.GetToken().Value
		if p := unknown(at(r.name, key.GetToken()), of, name, keys); p != nil {
			r.problems = append(r.problems, *p)
			continue
		}
		if prefix == "" && name == "verify" {
			r.mapping(value, "verify", VerifyKeys, "verify.")
			continue
		}
		scalar, ok := value.(ast.ScalarNode)
		if !ok || value.Type() == ast.NullType {
			r.fail(value, "%s%s is one value", prefix, name)
			continue
		}
		switch value.Type() {
		case ast.AnchorType, ast.AliasType, ast.TagType:
			r.fail(value, "%s%s is a plain value, without anchors, aliases and tags", prefix, name)
			continue
		}
		text := scalar.GetToken().Value
		if s, ok := value.(*ast.StringNode); ok {
			text = s.Value
		}
		r.settings[prefix+name] = Setting{Text: text, Where: at(r.name, value.GetToken()), Dir: filepath.Dir(r.name)}
	}
}
