// spec.h: what a tensor is: data type, layout, memory, shape. The emulator keeps logical elements; padding to tiles exists in
// the bytes that are counted, and so in capacity and time.
#pragma once

#include <string>

#include "view.h"

namespace meshrun::emu {

struct Spec {
  DType dtype = DType::bfloat16;
  uint32_t layout = MR_TILE;
  uint32_t memory = MR_DRAM;
  Shape shape;
  uint32_t shard_rows = 0;  // L1 only, 0 = interleaved
  uint32_t shard_cols = 0;

  uint64_t bytes() const { return shape.elements() * element_bytes(dtype); }  // as kept
  uint64_t device_bytes() const;                                             // as counted
  uint64_t l1_bytes_per_core(uint32_t cores) const;                          // as counted, of a tensor in L1
};

// Throws MR_INVALID_ARGUMENT, naming the field.
Spec checked_spec(const mr_tensor_spec& abi, const char* what);
mr_tensor_spec to_abi(const Spec& spec);

Shape shape4(uint32_t a, uint32_t b, uint32_t c, uint32_t d);
bool fits_device(const Shape& shape);  // so many elements there may be
bool is_float(DType t);  // bfloat16, float32 or bfloat8_b
// The same, interleaved in DRAM: where results lie that the driver allocates.
Spec in_dram(Spec spec);
double counted_bytes(DType t);  // of one element on a device
const char* name_of(DType t);
std::string text(const Shape& shape);  // [1,1,32,64]
std::string text(const Spec& spec);    // [1,1,32,64] bfloat16 tile DRAM

}  // namespace meshrun::emu
