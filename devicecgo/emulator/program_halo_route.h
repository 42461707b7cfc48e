// program_halo_route.h: parcels on their way along lines, each from one device to one other, hop by hop. Devices between keep what
// passes in the relay and send it on. Over every link parcels go in one order: a device's own first, then the others as they came.
#pragma once

#include <vector>

#include "context.h"
#include "copy_region.h"
#include "request.h"
#include "slices.h"

namespace meshrun::emu {

struct Parcel {
  uint32_t from = 0, to = 0;  // positions on the line, different
  uint64_t source = 0;        // where it lies in the sender's input
  uint64_t target = 0;        // and in the receiver's output
  uint64_t bytes = 0;
};

class Route {
 public:
  // parcels[l] are those of line l: a column for axis 0, a row for axis 1.
  Route(const Machine& machine, const Collective& over, uint64_t unit, double wire, std::vector<std::vector<Parcel>> parcels);
  // Takes the operands of an operation whose data go this way, and returns its result, which is like `wanted`.
  Operand bind(Request& r, Plan& plan, const Operand& input, SemaphoreRef semaphore, mr_handle& output, const Spec& wanted);

  Program run(Context& ctx) const;

 private:
  // One hop of a parcel.
  struct Leg {
    uint32_t came = kOwn;  // its place among the legs into the sender, or none
    bool lands = false;    // in the output; otherwise in the relay
    uint64_t source = 0, target = 0, bytes = 0;
    static constexpr uint32_t kOwn = UINT32_MAX;
  };
  const std::vector<Leg>& out_of(uint32_t device, uint32_t way) const { return legs_[2 * device + way]; }
  Chunks chunks(const Context& ctx, const Leg& leg, uint32_t link) const;
  Program run_way(Context& ctx, uint32_t way, uint32_t link) const;

  Operand input_, output_, relay_;
  SemaphoreRef semaphore_;
  Collective over_;
  uint64_t unit_;
  double wire_;
  uint64_t relay_bytes_ = 0;
  std::vector<std::vector<Leg>> legs_;  // per device and way, those that leave it
};

}  // namespace meshrun::emu
