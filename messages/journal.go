package messages

import (
	"bytes"
	"encoding/json"
)

// Field is one named value of an Effect.
type Field struct {
	Name  string
	Value any
}

// Effect is one call of the driver as a log shows it. Fields keep their order.
type Effect struct {
	Call   string
	Fields []Field
}

// MarshalJSON writes {"call": ..., fields in order}.
func (e Effect) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(`{"call":`)
	if err := writeJSON(&b, e.Call); err != nil {
		return nil, err
	}
	for _, f := range e.Fields {
		b.WriteByte(',')
		if err := writeJSON(&b, f.Name); err != nil {
			return nil, err
		}
		b.WriteByte(':')
		if err := writeJSON(&b, f.Value); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func writeJSON(b *bytes.Buffer, v any) error {
	j, err := json.Marshal(v)
	b.Write(j)
	return err
}

// Get returns the value of a field, nil when there is none.
func (e Effect) Get(name string) any {
	for _, f := range e.Fields {
		if f.Name == name {
			return f.Value
		}
	}
	return nil
}

// Row is one step of a journal: what the runtime did for one call.
type Row struct {
	Step    string
	Stream  string
	Effects []Effect
	Returns any
	Launch  uint64       // 0: never launched
	Timed   bool         // StartNS and EndNS are known
	StartNS uint64       // virtual: first start over the devices
	EndNS   uint64       // virtual: last end
	Devices []DeviceTime // the same for each device, row by row; nil unless asked for
	Err     error
	Listed  bool // it is in the journal; a call that launches several times has one row
}

// DeviceTime is what one device took for a call, in virtual time. What it waited for others to begin is no cost of the operation.
type DeviceTime struct {
	At        Coord  `json:"at"`
	StartNS   uint64 `json:"start_ns"`
	EndNS     uint64 `json:"end_ns"`
	WaitingNS uint64 `json:"waiting_ns"`
}

// Returned describes a tensor that a call returned: its shape and the name of the buffer that holds it, "fresh" for memory that no
// pool owns.
type Returned struct {
	Shape  Shape  `json:"shape"`
	Buffer string `json:"buffer"`
}

// FreshName is how logs call memory that no pool owns.
const FreshName = "fresh"
