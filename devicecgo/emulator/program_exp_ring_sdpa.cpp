// program_exp_ring_sdpa.cpp: ring attention with one semaphore per link. It counts what the link brings from both ways: the workers of the two
// ways run on two cores, and each counts on its own core's word, since a sum of both would not tell which of them is behind.
#include "ops.h"
#include "program_ring_sdpa.h"

namespace meshrun::emu {

std::unique_ptr<Plan> plan_exp_ring_joint_sdpa(Request& r, mr_exp_ring_joint_sdpa& op) {
  return plan_ring_sdpa(r, op, [&](GatherJob& job) {
    const uint32_t links = job.over.links;
    if (links > MR_MAX_LINKS) throw r.reject("num_links is %u: must be 1..%d", links, MR_MAX_LINKS);
    job.channels.resize(2 * size_t{links});
    for (uint32_t link = 0; link < links; ++link) {
      for (uint32_t other = 0; other < link; ++other)
        if (op.semaphores[other] == op.semaphores[link]) throw r.reject("semaphores[%u] and [%u] are the same: one is needed for each link", other, link);
      for (const uint32_t way : {0u, 1u}) job.channels[way * links + link] = {r.semaphore("semaphores", op.semaphores[link]), way};
    }
  });
}

}  // namespace meshrun::emu
