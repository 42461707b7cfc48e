package devicecgo

/*
#cgo CXXFLAGS: -std=c++20 -O2 -Wall -Wextra
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
#include "calls.h"
*/
import "C"

import (
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"unsafe"

	"github.com/meshrun/meshrun/messages"
)

// Mesh is an open mesh behind the C ABI.
type Mesh struct {
	mu   sync.Mutex // taken only when the driver accepts any thread
	ref  *C.mr_ref
	info MeshInfo
	emu  *emulator
}

var _ Device = (*Mesh)(nil)

// open makes the call that fixes the owner thread.
func open(driver *C.mr_driver, o Options) (*Mesh, error) {
	if driver.open == nil || driver.close == nil || driver.info == nil || driver.enqueue == nil {
		return nil, &DriverError{Name: C.GoString(driver.name), Err: fmt.Errorf("%w: its table lacks open, close, info or enqueue", messages.ErrUnsupported)}
	}
	var config []byte
	for _, s := range o.Config {
		config = append(config, s.Key+"="+s.Value+"\n"...)
	}
	text := C.CString(string(config))
	defer C.free(unsafe.Pointer(text))
	// The options hold a C pointer, so they live in C memory: no rule about Go pointers applies to them.
	options := (*C.mr_open_options)(C.calloc(1, C.sizeof_mr_open_options))
	defer C.free(unsafe.Pointer(options))
	*options = C.mr_open_options{size: C.sizeof_mr_open_options, rows: C.uint32_t(o.Shape.Rows), cols: C.uint32_t(o.Shape.Cols),
		queues: C.uint32_t(max(o.Queues, 1)), config: text}

	m := &Mesh{ref: (*C.mr_ref)(C.calloc(1, C.sizeof_mr_ref))}
	runtime.AddCleanup(m, func(r *C.mr_ref) { C.free(unsafe.Pointer(r)) }, m.ref)
	m.ref.driver = driver
	if err := m.check("open", C.mr_open_ref(m.ref, options)); err != nil {
		return nil, err
	}
	info := C.mr_mesh_info{size: C.sizeof_mr_mesh_info}
	if err := m.check("info", C.mr_info(m.ref, &info)); err != nil {
		_ = m.Close()
		return nil, err
	}
	m.info = MeshInfo{
		Name: C.GoString(&info.name[0]), Arch: C.GoString(&info.arch[0]),
		Shape: messages.MeshShape{Rows: int(info.rows), Cols: int(info.cols)},
		GridX: int(info.grid_x), GridY: int(info.grid_y), Queues: int(info.queues),
		Links:     [2]int{int(info.links[0]), int(info.links[1])},
		Wrap:      [2]bool{info.wrap[0] != 0, info.wrap[1] != 0},
		DRAMBytes: int64(info.dram_bytes), L1Bytes: int64(info.l1_bytes),
		ExclusiveCores: info.flags&C.MR_MESH_EXCLUSIVE_CORES != 0,
		AnyThread:      driver.flags&C.MR_DRIVER_ANY_THREAD != 0,
	}
	if m.ref.emulator != nil {
		m.emu = &emulator{m}
	}
	return m, nil
}

// lock serialises calls where the driver allows them from any thread; elsewhere only one thread gets as far.
func (m *Mesh) lock() func() {
	if !m.info.AnyThread {
		return func() {}
	}
	m.mu.Lock()
	return m.mu.Unlock
}

// check turns the code of a call into an error. A foreign thread must not read the text, which belongs to the owner.
func (m *Mesh) check(call string, code C.int32_t) error {
	if code == C.MR_OK {
		return nil
	}
	text := ""
	if C.mr_foreign(m.ref) == 0 {
		text = C.GoString(C.mr_message(m.ref))
	}
	return toError(call, int(code), text)
}

// Info returns what the driver told at open.
func (m *Mesh) Info() MeshInfo { return m.info }

// Emulator returns the extension of an emulated mesh, or nil.
func (m *Mesh) Emulator() Emulator {
	if m.emu == nil {
		return nil
	}
	return m.emu
}

// AllocTensor implements Device.
func (m *Mesh) AllocTensor(spec TensorSpec) (Handle, error) {
	defer m.lock()()
	s := C.mr_tensor_spec{size: C.sizeof_mr_tensor_spec, dtype: C.uint32_t(ABIDType(spec.DType)), layout: C.uint32_t(ABILayout(spec.Layout)),
		memory: C.uint32_t(ABIMemory(spec.Memory)), rank: C.uint32_t(spec.Shape.Rank()),
		shard_rows: C.uint32_t(spec.ShardRows), shard_cols: C.uint32_t(spec.ShardCols)}
	if spec.Zeroed {
		s.flags = C.MR_ZEROED
	}
	for i := range spec.Shape.Rank() {
		s.dims[i] = C.uint32_t(spec.Shape.Dim(i))
	}
	var h C.mr_handle
	err := m.check("tensor_alloc", C.mr_tensor_alloc(m.ref, &s, &h))
	return Handle(h), err
}

// ViewTensor implements Device.
func (m *Mesh) ViewTensor(tensor Handle, shape messages.Shape) (Handle, error) {
	defer m.lock()()
	var dims [messages.MaxRank]C.uint32_t
	for i := range shape.Rank() {
		dims[i] = C.uint32_t(shape.Dim(i))
	}
	var h C.mr_handle
	err := m.check("tensor_view", C.mr_tensor_view(m.ref, C.mr_handle(tensor), C.uint32_t(shape.Rank()), &dims[0], &h))
	return Handle(h), err
}

// WriteTensor implements Device.
func (m *Mesh) WriteTensor(tensor Handle, dist messages.Distribution, data []byte, queue int) error {
	defer m.lock()()
	d := C.mr_distribution{size: C.sizeof_mr_distribution}
	for a, dim := range dist {
		if dim != messages.Replicated {
			d.present |= 1 << a
			d.dim[a] = C.uint32_t(dim)
		}
	}
	if len(data) == 0 {
		return m.check("tensor_write", C.mr_tensor_write(m.ref, C.mr_handle(tensor), &d, nil, 0, C.uint32_t(queue)))
	}
	return m.check("tensor_write", C.mr_tensor_write(m.ref, C.mr_handle(tensor), &d, unsafe.Pointer(&data[0]), C.uint64_t(len(data)), C.uint32_t(queue)))
}

// ReadTensor implements Device.
func (m *Mesh) ReadTensor(tensor Handle, at messages.Coord, data []byte) error {
	defer m.lock()()
	if len(data) == 0 {
		return nil
	}
	return m.check("tensor_read", C.mr_tensor_read(m.ref, C.mr_handle(tensor), C.uint32_t(at.Row), C.uint32_t(at.Col), unsafe.Pointer(&data[0]), C.uint64_t(len(data))))
}

// TensorSpec implements Device.
func (m *Mesh) TensorSpec(tensor Handle) (messages.Spec, error) {
	defer m.lock()()
	s := C.mr_tensor_spec{size: C.sizeof_mr_tensor_spec}
	if err := m.check("tensor_info", C.mr_tensor_info(m.ref, C.mr_handle(tensor), &s)); err != nil {
		return messages.Spec{}, err
	}
	dims := make([]int, s.rank)
	for i := range dims {
		dims[i] = int(s.dims[i])
	}
	shape, err := messages.NewShape(dims...)
	return messages.Spec{Shape: shape, DType: DTypeOf(uint32(s.dtype)), Layout: LayoutOf(uint32(s.layout)), Memory: MemoryOf(uint32(s.memory))}, err
}

func handles(h []Handle) (*C.mr_handle, C.uint32_t) {
	if len(h) == 0 {
		return nil, 0
	}
	return (*C.mr_handle)(unsafe.Pointer(&h[0])), C.uint32_t(len(h))
}

// FreeTensors implements Device.
func (m *Mesh) FreeTensors(tensors ...Handle) error {
	defer m.lock()()
	p, n := handles(tensors)
	return m.check("tensor_free", C.mr_tensor_free(m.ref, p, n))
}

// CreateSemaphores implements Device.
func (m *Mesh) CreateSemaphores(initial uint32, out []Handle) error {
	defer m.lock()()
	p, n := handles(out)
	return m.check("semaphores_create", C.mr_semaphores_create(m.ref, n, C.uint32_t(initial), p))
}

// ResetSemaphores implements Device.
func (m *Mesh) ResetSemaphores(value uint32, semaphores []Handle) error {
	defer m.lock()()
	p, n := handles(semaphores)
	return m.check("semaphores_reset", C.mr_semaphores_reset(m.ref, p, n, C.uint32_t(value)))
}

// FreeSemaphores implements Device.
func (m *Mesh) FreeSemaphores(semaphores []Handle) error {
	defer m.lock()()
	p, n := handles(semaphores)
	return m.check("semaphores_free", C.mr_semaphores_free(m.ref, p, n))
}

// RecordEvent implements Device.
func (m *Mesh) RecordEvent(queue int) (Handle, error) {
	defer m.lock()()
	var h C.mr_handle
	err := m.check("event_record", C.mr_event_record(m.ref, C.uint32_t(queue), &h))
	return Handle(h), err
}

// QueryEvent implements Device.
func (m *Mesh) QueryEvent(event Handle) (bool, error) {
	defer m.lock()()
	s := C.mr_event_status{size: C.sizeof_mr_event_status}
	err := m.check("event_query", C.mr_event_query(m.ref, C.mr_handle(event), &s))
	return s.done != 0, err
}

// WaitOnEvent implements Device.
func (m *Mesh) WaitOnEvent(queue int, event Handle) error {
	defer m.lock()()
	return m.check("event_wait_on", C.mr_event_wait_on(m.ref, C.uint32_t(queue), C.mr_handle(event)))
}

// FreeEvent implements Device.
func (m *Mesh) FreeEvent(event Handle) error {
	defer m.lock()()
	return m.check("event_free", C.mr_event_free(m.ref, C.mr_handle(event)))
}

// BeginTrace implements Device.
func (m *Mesh) BeginTrace(queue int) (Handle, error) {
	defer m.lock()()
	var h C.mr_handle
	err := m.check("trace_begin", C.mr_trace_begin(m.ref, C.uint32_t(queue), &h))
	return Handle(h), err
}

// EndTrace implements Device.
func (m *Mesh) EndTrace(trace Handle) error {
	defer m.lock()()
	return m.check("trace_end", C.mr_trace_end(m.ref, C.mr_handle(trace)))
}

// ExecuteTrace implements Device.
func (m *Mesh) ExecuteTrace(trace Handle, queue int, first uint64) error {
	defer m.lock()()
	return m.check("trace_execute", C.mr_trace_execute(m.ref, C.mr_handle(trace), C.uint32_t(queue), C.uint64_t(first)))
}

// FreeTrace implements Device.
func (m *Mesh) FreeTrace(trace Handle) error {
	defer m.lock()()
	return m.check("trace_free", C.mr_trace_free(m.ref, C.mr_handle(trace)))
}

// Launch implements Device.
func (m *Mesh) Launch(args Args) error {
	defer m.lock()()
	h := args.Header()
	return m.check("enqueue", C.mr_enqueue(m.ref, unsafe.Pointer(h)))
}

// NextFailure implements Device.
func (m *Mesh) NextFailure() (uint64, error, error) { //nolint:staticcheck // two errors: the failure found, and that of the call
	defer m.lock()()
	var launch C.uint64_t
	if err := m.check("failure_next", C.mr_failure_next(m.ref, &launch)); err != nil || launch == 0 {
		return 0, nil, err
	}
	return uint64(launch), toError("launch", int(m.ref.failure.code), C.GoString(C.mr_text(&m.ref.failure))), nil
}

// Close implements Device.
func (m *Mesh) Close() error {
	defer m.lock()()
	return m.check("close", C.mr_close_ref(m.ref))
}

type emulator struct{ *Mesh }

func (e *emulator) Now() (uint64, error) {
	var ns C.uint64_t
	err := e.check("clock_now", C.mr_clock_now(e.ref, &ns))
	return uint64(ns), err
}

func (e *emulator) Advance(untilNS uint64, maxWaitUS int) (ClockState, error) {
	var state C.int32_t
	err := e.check("clock_advance", C.mr_clock_advance(e.ref, C.uint64_t(untilNS), C.uint32_t(maxWaitUS), &state))
	return ClockState(state), err
}

func (e *emulator) LaunchTimes(launch uint64) (start, end uint64, err error) {
	p := C.mr_launch_profile{size: C.sizeof_mr_launch_profile}
	err = e.check("launch_profile", C.mr_profile(e.ref, C.uint64_t(launch), &p))
	return uint64(p.start_ns), uint64(p.end_ns), err
}

func (e *emulator) LaunchDevices(launch uint64) ([]messages.DeviceTime, error) {
	all := make([]C.mr_device_profile, e.info.Shape.Devices())
	var count C.uint32_t
	if err := e.check("launch_devices", C.mr_profile_devices(e.ref, C.uint64_t(launch), &all[0], C.uint32_t(len(all)), &count)); err != nil {
		return nil, err
	}
	out := make([]messages.DeviceTime, min(int(count), len(all)))
	for i := range out {
		out[i] = messages.DeviceTime{At: messages.Coord{Row: i / e.info.Shape.Cols, Col: i % e.info.Shape.Cols},
			StartNS: uint64(all[i].start_ns), EndNS: uint64(all[i].end_ns), WaitingNS: uint64(all[i].waiting_ns)}
	}
	return out, nil
}

func (e *emulator) Fault(line string) error {
	text := C.CString(line)
	defer C.free(unsafe.Pointer(text))
	return e.check("fault", C.mr_fault(e.ref, text))
}

func (e *emulator) Report() ([]byte, error) {
	return sized(func(p *C.char, n C.uint64_t, needed *C.uint64_t) error {
		return e.check("report", C.mr_report(e.ref, p, n, needed))
	})
}

// sized calls a function that writes text into a buffer and tells how long it is, until the buffer is long enough.
func sized(call func(*C.char, C.uint64_t, *C.uint64_t) error) ([]byte, error) {
	for size := 4096; ; {
		buf := make([]byte, size)
		var needed C.uint64_t
		if err := call((*C.char)(unsafe.Pointer(&buf[0])), C.uint64_t(size), &needed); err != nil {
			return nil, err
		}
		if int(needed) <= size {
			return buf[:max(int(needed)-1, 0)], nil
		}
		size = int(needed)
	}
}

func (e *emulator) SemaphoreValue(semaphore Handle, at messages.Coord) (uint32, error) {
	var v C.uint32_t
	err := e.check("semaphore_value", C.mr_semaphore_value(e.ref, C.mr_handle(semaphore), C.uint32_t(at.Row), C.uint32_t(at.Col), &v))
	return uint32(v), err
}

func (e *emulator) Name(object Handle, name string) error {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	return e.check("name", C.mr_name(e.ref, C.mr_handle(object), text))
}

func (e *emulator) NameStream(stream uint32, name string) error {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	return e.check("name_stream", C.mr_name_stream(e.ref, C.uint32_t(stream), text))
}

// load opens a shared library and returns its driver table.
func load(path string) (*C.mr_driver, error) {
	if path != filepath.Base(path) {
		abs, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		path = abs
	}
	file := C.CString(path)
	defer C.free(unsafe.Pointer(file))
	symbol := C.CString("meshrun_driver")
	defer C.free(unsafe.Pointer(symbol))
	// dlerror speaks of the last call on this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	library := C.dlopen(file, C.RTLD_NOW|C.RTLD_LOCAL)
	if library == nil {
		return nil, &DriverError{Name: path, Err: fmt.Errorf("%w: cannot be loaded: %s", messages.ErrUnsupported, C.GoString(C.mr_dlerror()))}
	}
	entry := C.dlsym(library, symbol)
	if entry == nil {
		return nil, &DriverError{Name: path, Err: fmt.Errorf("%w: has no symbol meshrun_driver: %s", messages.ErrUnsupported, C.GoString(C.mr_dlerror()))}
	}
	return enter(path, entry)
}

// enter asks a driver's entry for its table and checks that both sides speak the same version.
func enter(name string, entry unsafe.Pointer) (*C.mr_driver, error) {
	d := C.mr_enter(entry)
	if d == nil {
		return nil, &DriverError{Name: name, Err: fmt.Errorf("%w: does not speak version %d of the driver ABI", messages.ErrUnsupported, C.MR_ABI_VERSION)}
	}
	if d.abi_version != C.MR_ABI_VERSION || d.size < C.sizeof_mr_driver {
		return nil, &DriverError{Name: name, Err: fmt.Errorf("%w: its table is of version %d and %d bytes; version %d and at least %d bytes are needed; build it against this meshrun_driver.h",
			messages.ErrUnsupported, d.abi_version, d.size, C.MR_ABI_VERSION, C.sizeof_mr_driver)}
	}
	return d, nil
}
