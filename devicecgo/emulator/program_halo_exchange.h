// program_halo_exchange.h: the halo exchange. Neighbour padding is nothing else; the fused convolution exchanges beside its own work.
//
// Two dims at most take part. H goes first; W carries the H-padded rows, so that corners come right. What a neighbour sends to the H
// halo goes to two places: to the halo itself, and, of the columns that W will pass on, to a static area of corner sticks, from which
// W takes them. That area belongs to the device, not to a launch: only the start barrier keeps a faster peer out of it.
//
// Semaphore lanes of a dim: 2 * link + way for data, and one per way for the handshake by which a receiver lets its writer in. Each
// lane is raised by one device, and cleared by the device whose lane it is.
#pragma once

#include <array>

#include "context.h"
#include "kernel_halo.h"
#include "request.h"
#include "slices.h"

namespace meshrun::emu {

// The parts of a halo, and their order in a compact buffer.
enum HaloRegion : uint32_t { kHaloTop, kHaloBottom, kHaloLeft, kHaloRight, kHaloRegions };

// HaloPlace is a box of a tensor that every device has.
struct HaloPlace {
  Operand tensor;
  Box box;

  HaloPlace cut(uint32_t dim, uint32_t from, uint32_t n) const { return {tensor, box.cut(dim, from, n)}; }
  HaloPlace repeat(uint32_t dim, uint32_t n) const { return {tensor, box.repeat(dim, n)}; }
};

// HaloProgress hears of a link's share of a region: it is there to the last byte at tail_ns. Each link reports each region with a pad
// once, also where nobody sends it (the borders of the mesh).
class HaloProgress {
 public:
  virtual void arrived(Context& ctx, uint32_t region, uint32_t link, uint64_t tail_ns) = 0;

 protected:
  ~HaloProgress() = default;
};

struct HaloJob {
  static constexpr uint32_t kMostLinks = 7;  // lanes for two ways, and two for handshakes

  struct Dim {
    uint32_t dim = 0;                  // of the interior's box
    std::array<uint32_t, 2> pad{};     // left, right; way w fills side w of the device ahead
    Collective over;                   // along lines
    SemaphoreRef semaphore;            // null on a line of one
    bool active() const { return pad[0] + pad[1] != 0; }
  };
  std::array<Dim, 2> dims;  // H, W; a dim without pads takes no part
  bool has_w = false;
  SemaphoreRef start;
  uint32_t shared = 0;  // the dim that is shared out over links
  bool replicate = false;
  bool masked = false;  // rows of the whole H at or past logical_h count as zeros
  uint32_t logical_h = 0;
  HaloPlace interior;                       // the device's own
  std::array<HaloPlace, kHaloRegions> regions;  // where the halo comes to lie
  std::array<std::array<HaloPlace, 2>, 2> corners;  // static area: [top, bottom][way of W that takes them]

  // The first dim that takes part: its lines are joined by the start barrier.
  uint32_t first() const { return dims[0].active() ? 0 : 1; }
  const Dim& h() const { return dims[0]; }
  const Dim& w() const { return dims[1]; }
  uint32_t extent(uint32_t i) const { return interior.box.extent[dims[i].dim]; }
  uint64_t halo_bytes() const;  // on one device

  // Copies rows of the interior, the first of them row `first`, to `to` on `device`; masked rows arrive as zeros.
  void put_rows(Context& ctx, const HaloPlace& rows, uint32_t first, const HaloPlace& to, uint32_t device) const;
};

// HaloArgs are the arguments that the operations with a halo exchange have in common, per dim: H, W.
struct HaloArgs {
  uint32_t count = 0;  // of dims
  std::array<uint32_t, 2> dims{}, axes{}, left{}, right{}, links{};
  std::array<mr_handle, 2> semaphores{};
  mr_handle barrier = 0;
  uint32_t mode = 0;
  std::array<const char*, 2> semaphore_fields{};
};

// Checks the arguments against an interior of this shape in row-major `input`, and fills in all but the places.
HaloJob halo_job(Request& r, const HaloArgs& args, const Operand& input, const Shape& interior);
// Sets the interior: `input` without `skip` elements on each side of H and W.
void set_interior(HaloJob& job, const Operand& input, const std::array<uint32_t, 2>& skip);
// Lets the halo lie in a compact buffer, which must be as compact_spec says.
void set_compact(HaloJob& job, const Operand& compact);
Spec compact_spec(const Request& r, const HaloJob& job, const Spec& like, const Shape& interior);
// Draws the static area; after set_interior.
void set_corners(Request& r, HaloJob& job);

// Joins the line, exchanges, and leaves all semaphores at rest. progress may be null.
Program exchange(Context& ctx, const HaloJob& job, HaloProgress* progress);

// Copies a box of this device to one of `device`; fills one with zeros.
void copy_box(Context& ctx, const HaloPlace& from, const HaloPlace& to, uint32_t device);
void zero_box(Context& ctx, const HaloPlace& to, uint32_t device);

}  // namespace meshrun::emu
