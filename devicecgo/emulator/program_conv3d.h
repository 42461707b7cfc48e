// program_conv3d.h: what the two convolutions check and count alike.
#pragma once

#include "kernel_conv3d.h"
#include "request.h"

namespace meshrun::emu {

struct Convolving {
  Operand input, weight, bias;
  Conv3d conv;
  Spec output;       // as the driver makes it
  uint64_t taps = 1;

  // Of that many output pixels.
  double flops(double pixels) const {
    return 2 * pixels * output.shape.back(0) * static_cast<double>(taps) * input.spec.shape.back(0) / conv.groups;
  }
  HaloSticks sticks() const;  // round the input
};

// Looks up and checks input, weight, bias and all numbers of mr_conv3d or mr_np_conv3d.
template <class Op>
Convolving convolving(Request& r, const Op& op);

}  // namespace meshrun::emu
