package meshrun_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"

	"github.com/meshrun/meshrun"
)

// Each device of a line of four starts with one slice; all end with the whole.
func Example() {
	ctx := context.Background()
	mesh, err := meshrun.Open(ctx, meshrun.Config{Mesh: meshrun.MeshShape{Rows: 1, Cols: 4}})
	if err != nil {
		log.Fatal(err)
	}
	defer mesh.Close(ctx)
	s, err := mesh.Stream("main")
	if err != nil {
		log.Fatal(err)
	}
	array, err := meshrun.Floats(meshrun.ShapeOf(1, 8), meshrun.BFloat16, []float32{0, 1, 2, 3, 4, 5, 6, 7})
	if err != nil {
		log.Fatal(err)
	}
	x, err := s.Upload(ctx, array, meshrun.ShardOn(1, 1))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Release()
	y, err := s.AllGather(ctx, x, meshrun.AllGather{Dim: 1, MeshAxis: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer y.Release()
	values, err := s.ReadFloats(ctx, y, meshrun.Coord{Row: 0, Col: 2})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(x.Shape(), y.Shape(), values)
	// Output: [1, 2] [1, 8] [0 1 2 3 4 5 6 7]
}

// Any number of goroutines submit at once; each has its stream.
func ExampleMesh_Stream() {
	ctx := context.Background()
	mesh, err := meshrun.Open(ctx, meshrun.Config{Mesh: meshrun.MeshShape{Rows: 2, Cols: 2}})
	if err != nil {
		log.Fatal(err)
	}
	defer mesh.Close(ctx)
	sums := make([]float32, 3)
	var wg sync.WaitGroup
	for i := range sums {
		wg.Go(func() {
			s, err := mesh.Stream(fmt.Sprintf("caller%d", i))
			if err != nil {
				log.Fatal(err)
			}
			defer s.Close()
			array, _ := meshrun.Floats(meshrun.ShapeOf(1, 2), meshrun.Float32, []float32{float32(i), float32(i)})
			x, err := s.Upload(ctx, array, meshrun.Replicate)
			if err != nil {
				log.Fatal(err)
			}
			y, err := s.ReduceScatter(ctx, x, meshrun.ReduceScatter{Dim: 1, MeshAxis: 0})
			if err != nil {
				log.Fatal(err)
			}
			v, err := s.ReadFloats(ctx, y, meshrun.Coord{})
			if err != nil {
				log.Fatal(err)
			}
			sums[i] = v[0]
		})
	}
	wg.Wait()
	fmt.Println(sums)
	// Output: [0 2 4]
}

// A sequence that is captured once runs again with one call, on what has been written into its inputs meanwhile.
func ExampleTrace() {
	ctx := context.Background()
	mesh, err := meshrun.Open(ctx, meshrun.Config{Mesh: meshrun.MeshShape{Rows: 1, Cols: 2}})
	if err != nil {
		log.Fatal(err)
	}
	defer mesh.Close(ctx)
	s, _ := mesh.Stream("main")
	array := func(v ...float32) meshrun.Array {
		a, _ := meshrun.Floats(meshrun.ShapeOf(1, 2), meshrun.Float32, v)
		return a
	}
	x, err := s.Upload(ctx, array(0, 0), meshrun.ShardOn(1, 1))
	if err != nil {
		log.Fatal(err)
	}
	if err := s.BeginTrace(ctx); err != nil {
		log.Fatal(err)
	}
	y, _ := s.AllGather(ctx, x, meshrun.AllGather{Dim: 1, MeshAxis: 1})
	z, _ := s.Mul(ctx, y, y)
	trace, err := s.EndTrace(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer trace.Release()
	for i := range 3 {
		if err := s.Write(ctx, x, array(float32(i), 3), meshrun.ShardOn(1, 1)); err != nil {
			log.Fatal(err)
		}
		if err := trace.Execute(ctx); err != nil {
			log.Fatal(err)
		}
		values, err := s.ReadFloats(ctx, z, meshrun.Coord{})
		fmt.Println(values, err)
	}
	// Output:
	// [0 9] <nil>
	// [1 9] <nil>
	// [4 9] <nil>
}

// A request that breaks a rule is refused where it is submitted, and changes nothing.
func ExampleStream_ReduceScatter_invalid() {
	ctx := context.Background()
	mesh, err := meshrun.Open(ctx, meshrun.Config{Mesh: meshrun.MeshShape{Rows: 1, Cols: 2}})
	if err != nil {
		log.Fatal(err)
	}
	defer mesh.Close(ctx)
	s, _ := mesh.Stream("main")
	x, _ := s.Zeros(ctx, meshrun.Spec{Shape: meshrun.ShapeOf(1, 1, 64, 131), DType: meshrun.BFloat16})
	_, err = s.ReduceScatter(ctx, x, meshrun.ReduceScatter{Dim: 3, MeshAxis: 1})
	fmt.Println(err)
	fmt.Println(errors.Is(err, meshrun.ErrInvalid))
	// Output:
	// reduce_scatter: input dim 3 131: divides by the length 2 of axis 1
	// true
}
