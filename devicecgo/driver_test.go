package devicecgo_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/meshrun/meshrun/devicecgo"
	"github.com/meshrun/meshrun/devicecgo/null"
	"github.com/meshrun/meshrun/messages"
	"github.com/meshrun/meshrun/tests/testdriver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var shape = messages.MeshShape{Rows: 1, Cols: 2}

// onThread opens the test driver on an owner thread and runs fn there.
func onThread(t *testing.T, library string, config []devicecgo.Setting, fn func(m *devicecgo.Mesh)) {
	t.Helper()
	thread := devicecgo.NewThread()
	defer thread.Stop()
	var err error
	thread.Do(func() {
		var m *devicecgo.Mesh
		if m, err = devicecgo.Library(library).Open(devicecgo.Options{Shape: shape, Config: config}); err == nil {
			fn(m)
			_ = m.Close()
		}
	})
	require.NoError(t, err)
}

// TestLibraryLoads: a driver is a shared library given at run time.
func TestLibraryLoads(t *testing.T) {
	library := testdriver.Build(t)
	onThread(t, library, nil, func(m *devicecgo.Mesh) {
		assert.Equal(t, "test", m.Info().Name)
		assert.Equal(t, shape, m.Info().Shape)
		assert.Nil(t, m.Emulator(), "it has no such extension")
		spec := devicecgo.TensorSpec{Spec: messages.Spec{Shape: messages.ShapeOf(2, 3), DType: messages.UInt8, Layout: messages.Tile, Memory: messages.DRAM}}
		h, err := m.AllocTensor(spec)
		assert.NoError(t, err)
		data := make([]byte, 6)
		assert.NoError(t, m.ReadTensor(h, messages.Coord{}, data))
		assert.Equal(t, []byte{0, 1, 2, 3, 4, 5}, data)
		_, err = m.TensorSpec(h)
		assert.ErrorIs(t, err, messages.ErrUnsupported, "a function that is not in its table")
	})
}

// TestLibraryErrors: what cannot be loaded, has no entry, or speaks another version is a clear error.
func TestLibraryErrors(t *testing.T) {
	for _, c := range []struct {
		name, path string
		flags      []string
		want       string
	}{
		{name: "no file", path: "/nonexistent/driver.so", want: "cannot be loaded"},
		{name: "no symbol", path: "libm.so.6", want: "no symbol meshrun_driver"},
		{name: "other version", flags: []string{"-DTEST_ABI_VERSION=9"}, want: "version 9"},
		{name: "first version", flags: []string{"-DTEST_ABI_VERSION=1"}, want: "version 1"}, // its trace_execute took no launch number
		{name: "refuses ours", flags: []string{"-DTEST_REFUSE_VERSION"}, want: "does not speak version 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := c.path
			if path == "" {
				path = testdriver.Build(t, c.flags...)
			}
			_, err := devicecgo.Library(path).Open(devicecgo.Options{Shape: shape})
			var d *devicecgo.DriverError
			require.ErrorAs(t, err, &d)
			require.ErrorIs(t, err, messages.ErrUnsupported)
			assert.ErrorContains(t, err, c.want)
			assert.ErrorContains(t, err, path)
		})
	}
}

// TestErrorsAndExceptions: codes become typed errors with the driver's text; exceptions, std or not, become errors too, and the process
// lives (field case D1).
func TestErrorsAndExceptions(t *testing.T) {
	library := testdriver.Build(t)
	kinds := map[string]error{"1": messages.ErrInvalid, "2": messages.ErrReleased, "3": messages.ErrWrongThread, "4": messages.ErrOutOfMemory,
		"5": messages.ErrRejected, "6": messages.ErrTimeout, "7": messages.ErrDeviceLost, "8": messages.ErrUnsupported, "9": messages.ErrInternal, "77": messages.ErrInternal}
	for code, kind := range kinds {
		onThread(t, library, []devicecgo.Setting{{Key: "fail", Value: "enqueue:" + code}}, func(m *devicecgo.Mesh) {
			err := m.Launch(&devicecgo.AllGather{OpHeader: devicecgo.OpHeader{Op: devicecgo.OpAllGather}})
			assert.ErrorIs(t, err, kind)
			assert.ErrorContains(t, err, "told to fail")
			assert.ErrorContains(t, err, "enqueue")
		})
	}
	for _, call := range []string{"enqueue", "event_query", "semaphores_create", "tensor_read", "close"} {
		for kind, text := range map[string]string{"std": "told to throw", "int": "no std::exception"} {
			onThread(t, library, []devicecgo.Setting{{Key: "throw", Value: call + ":" + kind}}, func(m *devicecgo.Mesh) {
				var err error
				switch call {
				case "enqueue":
					err = m.Launch(&devicecgo.Rope{OpHeader: devicecgo.OpHeader{Op: devicecgo.OpRope}})
				case "event_query":
					_, err = m.QueryEvent(1)
				case "semaphores_create":
					err = m.CreateSemaphores(0, make([]devicecgo.Handle, 2))
				case "tensor_read":
					err = m.ReadTensor(1, messages.Coord{}, make([]byte, 1))
				case "close":
					err = m.Close()
				}
				assert.ErrorIs(t, err, messages.ErrInternal, "%s %s", call, kind)
				assert.ErrorContains(t, err, text)
			})
		}
	}
	for _, kind := range []string{"std", "int", "4"} {
		key := "throw"
		if kind == "4" {
			key = "fail"
		}
		_, err := devicecgo.Library(library).Open(devicecgo.Options{Shape: shape, Config: []devicecgo.Setting{{Key: key, Value: "open:" + kind}}})
		require.Error(t, err, "open %s", kind)
	}
}

// TestWrongThread: a call from a thread that does not own the mesh is an error, not undefined behaviour; the owner goes on.
func TestWrongThread(t *testing.T) {
	thread := devicecgo.NewThread()
	defer thread.Stop()
	var m *devicecgo.Mesh
	var err error
	thread.Do(func() { m, err = devicecgo.Library(testdriver.Build(t)).Open(devicecgo.Options{Shape: shape}) })
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				assert.ErrorIs(t, m.Launch(&devicecgo.Rope{OpHeader: devicecgo.OpHeader{Op: devicecgo.OpRope}}), messages.ErrWrongThread)
				_, err := m.RecordEvent(0)
				assert.ErrorIs(t, err, messages.ErrWrongThread)
				assert.ErrorIs(t, m.Close(), messages.ErrWrongThread)
			}
		})
	}
	thread.Do(func() {
		for range 100 {
			assert.NoError(t, m.Launch(&devicecgo.Rope{OpHeader: devicecgo.OpHeader{Op: devicecgo.OpRope}}))
		}
	})
	wg.Wait()
	thread.Do(func() {
		assert.NoError(t, m.Close())
		assert.NoError(t, m.Close(), "closing twice is harmless")
		_, err := m.RecordEvent(0)
		assert.ErrorIs(t, err, messages.ErrReleased, "a closed mesh is a stale handle")
	})
}

// TestAnyThread: a driver may declare that any thread will do.
func TestAnyThread(t *testing.T) {
	d, err := devicecgo.NewRegistry(null.Drivers()...).Lookup("null-unpinned")
	require.NoError(t, err)
	m, err := d.Open(devicecgo.Options{Shape: shape})
	require.NoError(t, err)
	assert.True(t, m.Info().AnyThread)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				_, err := m.AllocTensor(devicecgo.TensorSpec{Spec: messages.Spec{Shape: messages.ShapeOf(1), DType: messages.UInt8}})
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, m.Close())
}

// TestGoPointers: bulk data that live inside a larger struct with pointers may be passed (field case D5).
func TestGoPointers(t *testing.T) {
	onThread(t, testdriver.Build(t), nil, func(m *devicecgo.Mesh) {
		held := struct {
			name *string
			data [64]byte
			next *int
		}{name: new(string), next: new(int)}
		assert.NoError(t, m.WriteTensor(1, messages.Replicate, held.data[:], 0))
		assert.NoError(t, m.ReadTensor(1, messages.Coord{}, held.data[:]))
		assert.EqualValues(t, 63, held.data[63])
	})
}

// TestRegistry: names, paths and what is neither.
func TestRegistry(t *testing.T) {
	r := devicecgo.NewRegistry(null.Drivers()...)
	d, err := r.Lookup("null")
	require.NoError(t, err)
	assert.Equal(t, "null", d.Name())
	d, err = r.Lookup("./x.so")
	require.NoError(t, err)
	assert.Equal(t, "./x.so", d.Name())
	_, err = r.Lookup("nvlink")
	require.ErrorIs(t, err, messages.ErrInvalid)
	assert.True(t, strings.Contains(err.Error(), "null, null-unpinned"), err)
	assert.True(t, errors.Is(err, messages.ErrInvalid))
}

// TestThread: functions run one at a time, in order, on one thread; WhenIdle runs behind all that was scheduled.
func TestThread(t *testing.T) {
	th := devicecgo.NewThread()
	var order []int
	for i := range 100 {
		th.Schedule(func() {
			order = append(order, i)
			if i == 50 {
				th.Schedule(func() { order = append(order, 1000) })
			}
		})
	}
	idle := make(chan int, 1)
	require.True(t, th.WhenIdle(func() { idle <- len(order) }))
	assert.Equal(t, 101, <-idle)
	assert.Equal(t, 1000, order[100])
	th.Stop()
	th.Stop()
	assert.False(t, th.Schedule(func() {}))
	assert.False(t, th.Do(func() {}))
	assert.False(t, th.WhenIdle(func() {}))
	for i := range 100 {
		assert.Equal(t, i, order[i])
	}
}
