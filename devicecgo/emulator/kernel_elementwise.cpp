#include "kernel_elementwise.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "bf16.h"
#include "kernel_copy.h"
#include "kernel_floats.h"
#include "kernel_runs.h"

namespace meshrun::emu {
namespace {

// One operand of an elementwise operation, read in chunks. A number that broadcasts over a run is spread over a chunk.
class Operand {
 public:
  Operand(ConstView view, size_t step) : reader_(view), spread_(step == 0) {}

  // n <= kChunk elements for element `first` and following of the run that begins at `place`
  const float* chunk(size_t place, size_t first, size_t n) {
    if (!spread_) return reader_.read(place + first, n, buffer_);
    if (place != spread_place_) {
      std::fill_n(buffer_, kChunk, reader_.one(place));
      spread_place_ = place;
    }
    return buffer_;
  }

 private:
  FloatReader reader_;
  bool spread_;
  size_t spread_place_ = ~size_t{0};
  float buffer_[kChunk];
};

// Computes out, a chunk at a time, from operands that broadcast against it: step(chunks of the operands, to, n).
template <class Step, class... Views>
void over_chunks(View out, Parallel& par, Step step, Views... operands) {
  constexpr size_t N = sizeof...(Views);
  const Walk<N> walk = broadcast<N>(out.shape, {operands.shape...});
  const size_t run = walk.run();
  const size_t chunks = (run + kChunk - 1) / kChunk;  // in a run
  const size_t grain = std::max<size_t>(1, 32 * kChunk / std::min(run, kChunk));
  const FloatWriter writer(out);
  par.run(walk.runs() * chunks, grain, [&](size_t begin, size_t end) {
    size_t number = 0;
    Operand read[N] = {Operand(operands, walk.step(number++))...};
    float buffer[kChunk];
    for (size_t i = begin; i < end; ++i) {
      const auto places = walk.at(i / chunks);
      const size_t first = i % chunks * kChunk, n = std::min(kChunk, run - first);
      std::array<const float*, N> at;
      for (size_t k = 0; k < N; ++k) at[k] = read[k].chunk(places[k], first, n);
      const size_t place = i / chunks * run + first;
      float* to = writer.begin(place, buffer);
      step(at, to, n);
      writer.finish(place, n, to);
    }
  });
}

}  // namespace

void binary(uint32_t kind, ConstView a, ConstView b, View out, Parallel& par) {
  over_chunks(
      out, par, [=](const auto& at, float* to, size_t n) { run::binary(kind, at[0], at[1], to, n); }, a, b);
}

void binary_scalar(uint32_t kind, ConstView a, float scalar, View out, Parallel& par) {
  binary(kind, a, {&scalar, DType::float32, {}}, out, par);
}

void addcmul(ConstView in, ConstView x, ConstView y, View out, Parallel& par) {
  over_chunks(
      out, par, [](const auto& at, float* to, size_t n) { run::multiply_add(at[1], at[2], at[0], to, n); }, in, x, y);
}

void activation(uint32_t kind, ConstView in, View out, Parallel& par) {
  in.shape = out.shape;
  over_chunks(
      out, par, [=](const auto& at, float* to, size_t n) { run::activation(kind, at[0], to, n); }, in);
}

// ---- conversion ----

namespace {

struct Bfloat16 {
  uint16_t bits;
};

// What a value is on its way: float for both kinds of floating point, itself for an integer.
float value(Bfloat16 x) { return to_float(x.bits); }
template <class T>
T value(T x) {
  return x;
}

template <class To, class From>
To converted(From x) {
  if constexpr (std::is_same_v<To, Bfloat16>) {
    if constexpr (std::is_integral_v<From>) {
      // Rounding to float32 and then to bfloat16 could round twice. From 2^24 on, the low 8 bits only matter as "something".
      const bool minus = x < 0;
      uint32_t size = minus ? 0u - static_cast<uint32_t>(x) : static_cast<uint32_t>(x);
      if (size >= 1u << 24) size = (size & ~0xffu) | ((size & 0xffu) != 0 ? 0x100u : 0u);
      const float f = static_cast<float>(size);
      return {to_bf16(minus ? -f : f)};
    } else {
      return {to_bf16(x)};
    }
  } else if constexpr (std::is_floating_point_v<To>) {
    return static_cast<To>(x);
  } else {
    // float64 holds every float32 and every integer here.
    const double limit_low = static_cast<double>(std::numeric_limits<To>::lowest());
    const double limit_high = static_cast<double>(std::numeric_limits<To>::max());
    const double v = static_cast<double>(x);
    if (v != v) return 0;
    return static_cast<To>(v < limit_low ? limit_low : v > limit_high ? limit_high : v);
  }
}

template <class Fn>
void with_type(DType t, Fn fn) {
  switch (t) {
    case DType::bfloat16:
      return fn(Bfloat16{});
    case DType::float32:
    case DType::bfloat8_b:  // kept as float32
      return fn(float{});
    case DType::uint32:
      return fn(uint32_t{});
    case DType::int32:
      return fn(int32_t{});
    case DType::uint16:
      return fn(uint16_t{});
    case DType::uint8:
      return fn(uint8_t{});
  }
  throw std::invalid_argument("convert: unknown data type");
}

bool is_float32(DType t) { return t == DType::float32 || t == DType::bfloat8_b; }

}  // namespace

void convert(ConstView in, View out, Parallel& par) {
  const size_t n = out.shape.elements();
  constexpr size_t kGrain = 65536;
  if (in.dtype == out.dtype || (is_float32(in.dtype) && is_float32(out.dtype)))
    return copy(out.data, in.data, n * element_bytes(in.dtype), par);
  if (in.dtype == DType::bfloat16 && is_float32(out.dtype))
    return par.run(n, kGrain, [&](size_t begin, size_t end) {
      widen_bf16(out.as<float>() + begin, in.as<uint16_t>() + begin, end - begin);
    });
  if (is_float32(in.dtype) && out.dtype == DType::bfloat16)
    return par.run(n, kGrain, [&](size_t begin, size_t end) {
      round_bf16(out.as<uint16_t>() + begin, in.as<float>() + begin, end - begin);
    });
  with_type(in.dtype, [&](auto from) {
    with_type(out.dtype, [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      const From* source = in.as<From>();
      To* target = out.as<To>();
      par.run(n, kGrain, [=](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) target[i] = converted<To>(value(source[i]));
      });
    });
  });
}

}  // namespace meshrun::emu
