#include "spec.h"

#include "errors.h"

namespace meshrun::emu {
namespace {

constexpr uint64_t kTile = 32;
constexpr uint64_t kBlockFloatTileBytes = 1088;       // bfloat8_b: 1024 mantissas and 64 exponents
constexpr uint64_t kMostElements = uint64_t{1} << 40;  // far more than any device holds; keeps products from overflowing

uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

}  // namespace

uint64_t Spec::device_bytes() const {
  if (layout == MR_ROW_MAJOR) return bytes();
  const uint64_t outer = shape.rank > 2 ? shape.product(0, shape.rank - 2) : 1;
  const uint64_t elements = outer * round_up(shape.back(1), kTile) * round_up(shape.back(0), kTile);
  return dtype == DType::bfloat8_b ? elements / (kTile * kTile) * kBlockFloatTileBytes : elements * element_bytes(dtype);
}

uint64_t Spec::l1_bytes_per_core(uint32_t cores) const {
  if (shard_rows != 0)
    return dtype == DType::bfloat8_b ? round_up(shard_rows, kTile) * round_up(shard_cols, kTile) / (kTile * kTile) * kBlockFloatTileBytes
                                     : uint64_t{shard_rows} * shard_cols * element_bytes(dtype);
  const uint64_t page = layout == MR_TILE ? (dtype == DType::bfloat8_b ? kBlockFloatTileBytes : kTile * kTile * element_bytes(dtype))
                                          : round_up(uint64_t{shape.back(0)} * element_bytes(dtype), 16);
  const uint64_t pages = (device_bytes() + page - 1) / page;
  return (pages + cores - 1) / cores * page;
}

Spec checked_spec(const mr_tensor_spec& abi, const char* what) {
  const auto bad = [&](const char* field, uint32_t value, const char* rule) {
    return error(MR_INVALID_ARGUMENT, "%s: %s is %u: %s", what, field, value, rule);
  };
  if (abi.size < sizeof(mr_tensor_spec)) throw bad("spec.size", abi.size, "smaller than mr_tensor_spec of this version");
  if (abi.dtype < MR_BFLOAT16 || abi.dtype > MR_BFLOAT8_B) throw bad("dtype", abi.dtype, "must be 1..7");
  if (abi.layout != MR_TILE && abi.layout != MR_ROW_MAJOR) throw bad("layout", abi.layout, "must be 1 (tile) or 2 (row major)");
  if (abi.memory != MR_DRAM && abi.memory != MR_L1) throw bad("memory", abi.memory, "must be 1 (DRAM) or 2 (L1)");
  if ((abi.flags & ~uint32_t{MR_ZEROED}) != 0) throw bad("flags", abi.flags, "unknown bits");
  if (abi.rank < 1 || abi.rank > MR_MAX_RANK) throw bad("rank", abi.rank, "must be 1..8");

  Spec spec;
  spec.dtype = static_cast<DType>(abi.dtype);
  spec.layout = abi.layout;
  spec.memory = abi.memory;
  spec.shape.rank = abi.rank;
  for (uint32_t i = 0; i < abi.rank; ++i) {
    spec.shape.dims[i] = abi.dims[i];
    if (abi.dims[i] == 0) throw error(MR_INVALID_ARGUMENT, "%s: dims[%u] is 0: every dim must be at least 1", what, i);
  }
  if (!fits_device(spec.shape)) throw error(MR_INVALID_ARGUMENT, "%s: shape %s is too large", what, text(spec.shape).c_str());
  if (spec.dtype == DType::bfloat8_b && spec.layout != MR_TILE)
    throw bad("layout", abi.layout, "bfloat8_b shares exponents within tiles and must be in tile layout");
  if ((abi.shard_rows != 0 || abi.shard_cols != 0) && spec.memory != MR_L1)
    throw bad("shard_rows", abi.shard_rows, "only a tensor in L1 can be height sharded");
  if ((abi.shard_rows == 0) != (abi.shard_cols == 0)) throw bad("shard_cols", abi.shard_cols, "give both shard_rows and shard_cols, or neither");
  spec.shard_rows = abi.shard_rows;
  spec.shard_cols = abi.shard_cols;
  return spec;
}

mr_tensor_spec to_abi(const Spec& spec) {
  mr_tensor_spec abi{};
  abi.size = sizeof abi;
  abi.dtype = static_cast<uint32_t>(spec.dtype);
  abi.layout = spec.layout;
  abi.memory = spec.memory;
  abi.rank = spec.shape.rank;
  for (uint32_t i = 0; i < spec.shape.rank; ++i) abi.dims[i] = spec.shape.dims[i];
  abi.shard_rows = spec.shard_rows;
  abi.shard_cols = spec.shard_cols;
  return abi;
}

Shape shape4(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  Shape s;
  s.rank = 4;
  s.dims = {a, b, c, d};
  return s;
}

Spec in_dram(Spec spec) {
  spec.memory = MR_DRAM;
  spec.shard_rows = spec.shard_cols = 0;
  return spec;
}

bool fits_device(const Shape& shape) {
  uint64_t elements = 1;
  for (uint32_t i = 0; i < shape.rank; ++i)
    if ((elements *= shape.dims[i]) > kMostElements) return false;
  return true;
}

bool is_float(DType t) { return t == DType::bfloat16 || t == DType::float32 || t == DType::bfloat8_b; }

double counted_bytes(DType t) {
  return t == DType::bfloat8_b ? static_cast<double>(kBlockFloatTileBytes) / (kTile * kTile) : static_cast<double>(element_bytes(t));
}

const char* name_of(DType t) {
  switch (t) {
    case DType::bfloat16:
      return "bfloat16";
    case DType::float32:
      return "float32";
    case DType::uint32:
      return "uint32";
    case DType::int32:
      return "int32";
    case DType::uint16:
      return "uint16";
    case DType::uint8:
      return "uint8";
    case DType::bfloat8_b:
      return "bfloat8_b";
  }
  return "unknown";
}

std::string text(const Shape& shape) {
  std::string s = "[";
  for (uint32_t i = 0; i < shape.rank; ++i) {
    if (i != 0) s += ',';
    s += std::to_string(shape.dims[i]);
  }
  return s + ']';
}

std::string text(const Spec& spec) {
  return text(spec.shape) + ' ' + name_of(spec.dtype) + (spec.layout == MR_TILE ? " tile" : " row major") +
         (spec.memory == MR_DRAM ? " DRAM" : " L1");
}

}  // namespace meshrun::emu
