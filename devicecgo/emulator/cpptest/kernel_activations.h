// kernel_activations.h: the activations in double precision.
#pragma once

#include <cmath>
#include <cstdint>

#include "meshrun_driver.h"

namespace meshrun::emu::test {

inline double activate(uint32_t kind, double x) {
  switch (kind) {
    case MR_ACT_GELU:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case MR_ACT_GELU_TANH:  // 1 + tanh u = 2 / (1 + e^-2u)
      return x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case MR_ACT_SILU:
      return x / (1 + std::exp(-x));
    case MR_ACT_RELU:
      return x < 0 ? 0 : x;
    case MR_ACT_SIGMOID:
      return 1 / (1 + std::exp(-x));
    case MR_ACT_TANH:
      return std::tanh(x);
    default:
      return x;
  }
}

}  // namespace meshrun::emu::test
