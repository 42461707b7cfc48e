// kernel_attention.h: softmax(q k^T * scale) v, with keys that come slice by slice.
#pragma once

#include <vector>

#include "parallel.h"
#include "view.h"

namespace meshrun::emu {

// Attention keeps, for every row of q, the largest score so far, the sum of exponentials and the weighted sum of values, in
// float32 ("online softmax"). The memory of q must stay until finish().
class Attention {
 public:
  Attention(ConstView q, float scale);  // q [B,H,Sq,D]
  // Attends to the first valid_keys keys of k and v [B,H,S,D]; 0 is allowed.
  void add(ConstView k, ConstView v, size_t valid_keys, Parallel& par);
  // out [B,H,Sq,D]; zeros if there never was a valid key. Once, and nothing may be added afterwards.
  void finish(View out, Parallel& par);

 private:
  void add_scores(size_t row, float* scores, size_t n);

  ConstView q_;
  float scale_;
  size_t heads_, rows_, width_, stride_;  // B*H, Sq, D, and D padded to whole panels
  bool any_key_ = false;
  std::vector<float> largest_, sum_, values_;  // [heads*rows], the same, [heads*rows][stride]
};

}  // namespace meshrun::emu
