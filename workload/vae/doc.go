// Package vae is the decoders that make pictures of latents, over a mesh: those of Wan (diffusers: AutoencoderKLWan), of Flux and Stable
// Diffusion 3 (AutoencoderKL), and the small trained one of TAESD (taesd.Decoder).
//
// A picture is cut over the mesh, rows over tp and columns over sp; every device has all channels and all weights. So a convolution needs
// the pixels round its shard from the neighbours (nn.Halo says how they come), group norms need each other's sums, and attention needs the
// whole picture; nothing else communicates. Where an axis does not divide a side, shards are as large as the largest: what lies past the picture
// is set to zero before anybody sees it, and cut off at the end.
package vae
