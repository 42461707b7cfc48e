// Package workload holds DiT and VAE models as operation graphs over a mesh: checkpoints in the diffusers layout, their sharding, the
// models, and the runner that drives streams of them and verifies their results.
//
// It is an embedding program like any other: it uses package meshrun (and the values of package messages) and must never import actors,
// pools, axis or devicecgo.
package workload
