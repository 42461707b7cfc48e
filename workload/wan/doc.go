// Package wan is the Wan video transformer (diffusers: WanTransformer3DModel) over a mesh.
//
// A latent [B, C, F, H, W] is cut into patches, one token each; every token is embedded, passes the blocks, and is turned back into the
// pixels of its patch. A block is modulated by the time step (shift, scale and gate of self-attention and feed-forward) and attends to the
// text:
//
//	x += gate  * self_attention(norm1(x) * (1 + scale) + shift)      queries and keys turned by frame, row and column
//	x +=         cross_attention(norm2(x), text)
//	x += gate' * feed_forward(norm3(x) * (1 + scale') + shift')
//
// Activations are [B, 1, tokens, width] with tokens cut over sp and width over tp; self-attention, norms and every linear layer that needs
// the whole width communicate as package nn describes. The path of the time step stays float32 in every run.
package wan
