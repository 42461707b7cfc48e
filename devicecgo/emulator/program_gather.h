// program_gather.h: slices on their way round a ring or along a line. All_gather is nothing else; the distributed norm and ring
// attention gather beside their own work.
#pragma once

#include <array>
#include <vector>

#include "context.h"
#include "copy_region.h"
#include "request.h"
#include "slices.h"

namespace meshrun::emu {

// GatherJob is what goes round: one or two tensors, their slices one behind the other.
struct GatherJob {
  struct Item {
    Operand from;      // the device's own slice
    Operand to;        // where all slices come to lie, in order of position
    Slices slices;     // of `to`
    uint64_t chunk = 1;
    double wire = 1;   // bytes on the wire for a byte kept: padding, block formats
    bool streaming = false;
  };
  // Where a worker counts what has come to it.
  struct Channel {
    SemaphoreRef semaphore;
    uint32_t lane = 0;
  };
  Collective over;
  uint32_t workers = 1;  // per way and link
  std::array<Item, 2> items;
  uint32_t count = 0;
  std::array<SemaphoreRef, 2> semaphores;  // one per way, a lane for each worker
  std::vector<Channel> channels;           // instead of these: one per worker, those of way 0 first

  uint32_t workers_per_way() const { return over.links * workers; }
  Channel channel(uint32_t way, uint32_t worker) const {
    return channels.empty() ? Channel{semaphores[way], worker} : channels[way * workers_per_way() + worker];
  }

  void add(const Config& config, const Operand& from, const Operand& to, uint32_t dim);

  // How many hops a slice makes towards way `way`, seen from a position: slices received from the device behind, and slices sent
  // on to the device ahead, the own one included.
  struct Reach {
    uint32_t receives = 0;
    uint32_t sends = 0;
  };
  Reach reach(const Line& line, uint32_t way) const;
  // What travels by this way and worker of a slice that has made `hops` hops.
  Span portion(const Item& item, uint32_t way, uint32_t worker, uint32_t hops) const;
  // Workers that bring the slice of the device `offset` positions away.
  uint32_t parts(const Line& line, uint32_t position) const;
};

// Runs all workers. Where `arrived` is given, arrived[p] is raised once by each of parts(p) workers; with per_way, arrived[p] by those of
// way 0 and arrived[length + p] by those of way 1.
Program gather(Context& ctx, const GatherJob& job, Word* arrived, bool per_way = false);

// Refuses to gather bfloat8_b where blocks would come to hold values of two devices: a gather is bit exact.
void check_whole_blocks(const Request& r, const char* field, const Operand& operand, uint32_t dim);

// Puts the device's own slice in its place.
void copy_own_slice(Context& ctx, const GatherJob::Item& item, uint32_t position);

// Waits until all others of the line are here.
Program barrier(Context& ctx, const Collective& over, Semaphore& semaphore);

}  // namespace meshrun::emu
