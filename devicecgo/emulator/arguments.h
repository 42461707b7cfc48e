// arguments.h: what an operation was asked for, as reports tell it. A plan carries it, so that a launch has nothing more to keep.
#pragma once

#include <array>
#include <string>

#include "errors.h"
#include "spec.h"

namespace meshrun::emu {

struct Arguments {
  // A few numbers in the order in which the operation named them.
  struct Few {
    std::array<uint32_t, 2> values{};
    uint32_t count = 0;
    void add(uint32_t v) {
      if (count == values.size()) throw error(MR_INTERNAL, "an operation names more than %zu dims or axes, which is all that reports have room for", values.size());
      values[count++] = v;
    }
  };
  Spec input;  // the first
  Few dims, axes;
};

// shape [1,1,32,64], dtype bfloat16, dim 3, axis 1
inline std::string text(const Arguments& a) {
  std::string s = "shape " + text(a.input.shape) + ", dtype " + name_of(a.input.dtype);
  const auto few = [&](const char* one, const char* two, const Arguments::Few& f) {
    for (uint32_t i = 0; i < f.count; ++i) s += (i != 0 ? " and " : f.count == 1 ? one : two) + std::to_string(f.values[i]);
  };
  few(", dim ", ", dims ", a.dims);
  few(", axis ", ", axes ", a.axes);
  return s;
}

}  // namespace meshrun::emu
