// Package meshrun runs diffusion-transformer and VAE work on a two-axis mesh of devices, for any number of goroutines at once.
//
// It owns the public face: Open a Mesh, make a Stream per caller, submit operations, wait for tensors, release them, Close. It does the job of
// tt-metal's Python CCLManager — ping-pong semaphores, persistent buffers, the collectives that use them — and the results are the same
// as if each stream had the mesh to itself.
//
//	mesh, err := meshrun.Open(ctx, meshrun.Config{Mesh: meshrun.MeshShape{Rows: 2, Cols: 4}})
//	s, err := mesh.Stream("denoise")
//	x, err := s.Upload(ctx, meshrun.Array{...}, meshrun.ShardOn(1, 3))
//	y, err := s.AllGather(ctx, x, meshrun.AllGather{Dim: 3, MeshAxis: 1, UsePersistentBuffer: true})
//	values, err := s.ReadFloats(ctx, y, meshrun.Coord{})
//	y.Release()
//
// # What to know
//
// A submitted operation returns at once with the handles of its results: their specs are known, their data come later. The next
// operation can name them at once, on any stream. A request that breaks a rule is refused where it is submitted, with an error that says what,
// where, the value and the rule, and changes nothing.
//
// A result belongs to the caller until he releases it (policy Hold): its memory is not written again before. So release what you do
// not need any more, or memory grows.
//
// The default driver is an emulated mesh. Other drivers are shared libraries behind the C ABI of devicecgo/meshrun_driver.h.
//
// Errors wrap one of the kinds ErrInvalid, ErrClosed, ErrTimeout and so on; test with errors.Is.
//
// The package must not hold rules (package axis), pools (package pools) or actors (package actors) of its own.
package meshrun
