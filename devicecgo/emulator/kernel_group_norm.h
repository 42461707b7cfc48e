// kernel_group_norm.h: group norm over row-major [N, .., C]: each sample and each group of C/groups channels by itself.
#pragma once

#include "parallel.h"
#include "view.h"

namespace meshrun::emu {

// Moments of some elements. Two disjoint sets combine to those of both (Chan et al.).
struct Moments {
  double count = 0, mean = 0, m2 = 0;  // m2: sum of squared distances from the mean

  void add(const Moments& o) {
    if (o.count == 0) return;
    const double n = count + o.count, delta = o.mean - mean;
    mean += delta * (o.count / n);
    m2 += o.m2 + delta * delta * (count * o.count / n);
    count = n;
  }
};

constexpr size_t kGroupStats = 3;  // count, mean, m2

// Which rows and columns of [N, .., H, W, C] count; where a tensor has no such dim it is 1 long.
struct Window {
  size_t h = 0, w = 0;
  static Window whole(const Shape& x) { return {x.rank > 3 ? x.back(2) : 1, x.rank > 2 ? x.back(1) : 1}; }
};

// moments[N][groups] of the window of x, in an order that depends on its extents only.
void group_moments(ConstView x, uint32_t groups, const Window& window, Moments* moments, Parallel& par);

// out = act((x - mean) / sqrt(m2 / count + eps) * weight + bias)
void group_norm(ConstView x, const Moments* moments, uint32_t groups, ConstView weight, ConstView bias, float eps, uint32_t activation, View out, Parallel& par);

}  // namespace meshrun::emu
