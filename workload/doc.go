// Package workload holds DiT and VAE models as operation graphs over a mesh: checkpoints in the diffusers layout, their sharding, the
// models, and the runner that drives streams of them and verifies their results.
//
// Run does it all for a Config: it loads the model, lays it over an emulated mesh once, runs every stream in a goroutine of its own, each
// with its own input, and holds what they give against the stored answer or against the same model on one device. The parts are packages of
// their own:
//
//	safetensors   the file format
//	checkpoint    the folder of a model: config.json, weights, inputs, outputs
//	nn            how models lie on a mesh, and the layers that they are built from
//	wan           the Wan video transformer
//	vae           decoders of latents: Wan, KL, TAESD
//	pipeline      from prompt embeddings to frames
//	film          pictures as PNG and GIF
//
// A further model is a package beside wan that implements nn.Model, and a line in the table of models.go.
//
// It is an embedding program like any other: it uses package meshrun (and the values of package messages) and must never import actors,
// pools, axis or devicecgo.
package workload
