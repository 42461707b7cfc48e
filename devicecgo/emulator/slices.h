// slices.h: how a tensor is cut: into slices along a dim, a slice into shares for links and ways, a share into chunks.
#pragma once

#include "region.h"
#include "spec.h"

namespace meshrun::emu {

// Span is bytes [from, to) of a slice, counted through its elements in row-major order.
struct Span {
  uint64_t from = 0;
  uint64_t to = 0;
  uint64_t bytes() const { return to - from; }
  bool empty() const { return from >= to; }
  // The i-th of n shares; no element of `unit` bytes is torn. Shares differ by one element at most and may be empty.
  Span share(uint64_t i, uint64_t n, uint64_t unit) const {
    const uint64_t elements = bytes() / unit;
    return {from + elements * i / n * unit, from + elements * (i + 1) / n * unit};
  }
};

// Chunks cuts a span into chunks, one increment of the receiver's semaphore each.
struct Chunks {
  Span span;
  uint64_t chunk = 1;

  uint32_t count() const { return static_cast<uint32_t>((span.bytes() + chunk - 1) / chunk); }
  Span operator[](uint32_t i) const { return {span.from + i * chunk, std::min(span.from + (i + 1) * chunk, span.to)}; }
  // How many chunks have to be there for all bytes before `to` to be.
  uint32_t until(uint64_t to) const { return static_cast<uint32_t>((to - span.from + chunk - 1) / chunk); }
};

// Slices says how n equal slices along a dim lie in a tensor.
struct Slices {
  uint64_t bytes = 0;  // of one slice
  uint64_t run = 1;    // contiguous bytes of a slice
  uint64_t stride = 1;

  static Slices along(const Spec& tensor, uint32_t dim, uint32_t n) {
    Slices s;
    s.stride = tensor.shape.product(dim, tensor.shape.rank) * element_bytes(tensor.dtype);
    s.run = s.stride / n;
    s.bytes = tensor.bytes() / n;
    return s;
  }
  Span all() const { return {0, bytes}; }
  Region part(uint64_t slice, Span span) const { return {slice * run, run, stride, span.from, span.to}; }
};

// The same bytes where the slice lies on its own.
inline Region alone(const Slices& s, Span span) { return Region::contiguous(0, s.bytes).part(span.from, span.to); }

}  // namespace meshrun::emu
