package checkpoint

import (
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/meshrun/meshrun/messages"
)

// Config is a config.json: the arguments of a model's class. A class reads the keys that it knows, each with its default; other keys
// are ignored, as diffusers ignores them. The getters remember the first error, which Err returns.
type Config struct {
	path   string
	values map[string]json.RawMessage
	parts  map[string]*Config // of a pipeline, where each has a file of its own
	err    error
}

// ReadConfig reads the file at path.
func ReadConfig(path string) (*Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, messages.Invalid(path, "file", "missing", "can be read (%v)", reason(err))
	}
	return ParseConfig(path, text)
}

// ParseConfig reads the text of a config.json; the path stands in errors.
func ParseConfig(path string, text []byte) (*Config, error) {
	c := &Config{path: path}
	if err := json.Unmarshal(text, &c.values); err != nil {
		return nil, messages.Invalid(path, "file", "damaged", "is a JSON object (%v)", err)
	}
	if c.values == nil {
		return nil, messages.Invalid(path, "file", "null", "is a JSON object")
	}
	return c, nil
}

// Err is the first error that a getter met.
func (c *Config) Err() error { return c.err }

// Fail remembers that the value of a key breaks a rule, unless an error has been met before.
func (c *Config) Fail(key, rule string, args ...any) {
	if c.err == nil {
		value := strings.Join(strings.Fields(string(c.values[key])), " ")
		if value == "" {
			value = "missing"
		}
		c.err = messages.Invalid(c.path, key, value, rule, args...)
	}
}

// get decodes the value of a key and says whether there is one of the right type.
func (c *Config) get(key string, to any, rule string) bool {
	text, ok := c.values[key]
	if !ok {
		return false
	}
	if string(text) == "null" || json.Unmarshal(text, to) != nil {
		c.Fail(key, "%s", rule)
		return false
	}
	return true
}

// ClassName is the name of the model's class.
func (c *Config) ClassName() string {
	const key = "_class_name"
	var s string
	if !c.get(key, &s, "is the name of a class") {
		c.Fail(key, "is the name of a class")
	}
	return s
}

// most bounds whole numbers: more than any model has, and little enough to multiply a few.
const most = 1 << 24

// Positive is a whole number of at least 1.
func (c *Config) Positive(key string, def int) int {
	const rule = "is a whole number of at least 1 and at most 16777216"
	n := def
	if c.get(key, &n, rule) && (n < 1 || n > most) {
		c.Fail(key, rule)
	}
	return n
}

// PositiveOr is Positive, where null stands for another value.
func (c *Config) PositiveOr(key string, def, null int) int {
	if c.isNull(key) {
		return null
	}
	return c.Positive(key, def)
}

// Triple is a list of three whole numbers of at least 1.
func (c *Config) Triple(key string, def [3]int) [3]int {
	const rule = "is a list of three whole numbers of at least 1 and at most 16777216"
	var n []int
	if !c.get(key, &n, rule) {
		return def
	}
	if len(n) != 3 || slices.Min(n) < 1 || slices.Max(n) > most {
		c.Fail(key, rule)
		return def
	}
	return [3]int(n)
}

// Float is a number that is not negative.
func (c *Config) Float(key string, def float64) float64 {
	const rule = "is a number that is not negative"
	v := def
	if c.get(key, &v, rule) && v < 0 {
		c.Fail(key, rule)
	}
	return v
}

// Floats is a list of n numbers, or nil where the key is absent or null.
func (c *Config) Floats(key string, n int) []float64 {
	rule := "is a list of " + strconv.Itoa(n) + " numbers"
	var v []float64
	if c.isNull(key) || !c.get(key, &v, rule) {
		return nil
	}
	if len(v) != n {
		c.Fail(key, "%s", rule)
	}
	return v
}

// Numbers is a list of whole numbers of at least 1.
func (c *Config) Numbers(key string, def []int) []int {
	const rule = "is a list of whole numbers of at least 1 and at most 16777216"
	n := def
	if c.get(key, &n, rule) && (len(n) == 0 || slices.Min(n) < 1 || slices.Max(n) > most) {
		c.Fail(key, rule)
	}
	return n
}

// Bools is a list of n truths.
func (c *Config) Bools(key string, def []bool, n int) []bool {
	rule := "is a list of " + strconv.Itoa(n) + " times true or false"
	b := def
	if c.get(key, &b, rule) && len(b) != n {
		c.Fail(key, "%s", rule)
	}
	return b
}

// Strings is a list of words.
func (c *Config) Strings(key string, def []string) []string {
	s := def
	c.get(key, &s, "is a list of names")
	return s
}

// Sub is the configuration under a key: of a part of a model. Its errors name the key; the caller asks for them.
func (c *Config) Sub(key string) *Config {
	if part, ok := c.parts[key]; ok {
		return part
	}
	sub := &Config{path: c.path + " " + key}
	rule := "is an object: the configuration of the " + key
	if c.isNull(key) || !c.get(key, &sub.values, rule) {
		c.Fail(key, "%s", rule)
	}
	return sub
}

// Bool is true or false.
func (c *Config) Bool(key string, def bool) bool {
	c.get(key, &def, "is true or false")
	return def
}

// Is holds a key to the one value that is supported, which is also its default.
func (c *Config) Is(key, only string) {
	var s string
	if c.get(key, &s, "is "+strconv.Quote(only)) && s != only {
		c.Fail(key, "is %q", only)
	}
}

// IsBool holds a key to the one value that is supported, which is also its default; why says what the other would ask for.
func (c *Config) IsBool(key string, only bool, why string) {
	if c.Bool(key, only) != only {
		c.Fail(key, "is %t: %s", only, why)
	}
}

// Empty holds a key to an empty list, null or absence; why says what its value would ask for.
func (c *Config) Empty(key, why string) {
	var list []json.RawMessage
	if !c.isNull(key) && c.get(key, &list, "is a list") && len(list) > 0 {
		c.Fail(key, "is empty: %s", why)
	}
}

// Null holds a key to null or absence; why says what its value would ask for.
func (c *Config) Null(key, why string) {
	if _, ok := c.values[key]; ok && !c.isNull(key) {
		c.Fail(key, "is null: %s", why)
	}
}

func (c *Config) isNull(key string) bool { return string(c.values[key]) == "null" }
