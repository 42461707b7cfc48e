// program_creation.cpp: devices do what the host asks of them in their own time: a semaphore gets its first value, and memory its zeros,
// at some moment before the next fence. Only where devices are put apart on purpose; otherwise it is done at once.
#include <cstring>

#include "context.h"
#include "ops.h"

namespace meshrun::emu {
namespace {

class Creation final : public Plan {
 public:
  const char* name() const override { return "creation"; }

  Program run(Context& ctx) const override {
    co_await ctx.until(ctx.now() + ctx.creation_delay_ns(serial));
    for (const SemaphoreRef& s : semaphores) ctx.initialise(*s, initial);
    if (zeroed)
      ctx.work({zeroed.write(ctx.device())}, zeroed.spec.bytes(),
               [to = zeroed.at(ctx.device()).data, bytes = zeroed.spec.bytes()](Parallel&) { std::memset(to, 0, bytes); });
  }

  std::vector<SemaphoreRef> semaphores;
  uint32_t initial = 0;
  Operand zeroed;
  uint64_t serial = 0;
};

}  // namespace

std::unique_ptr<Plan> plan_creation(std::vector<SemaphoreRef> semaphores, uint32_t initial, const Operand& zeroed, uint64_t serial) {
  auto plan = std::make_unique<Creation>();
  plan->semaphores = std::move(semaphores);
  plan->initial = initial;
  plan->zeroed = zeroed;
  plan->serial = serial;
  plan->in_queue = bool(zeroed);  // the first value of a semaphore comes past the queue
  if (zeroed) plan->uses.push_back({zeroed.storage, true});
  return plan;
}

}  // namespace meshrun::emu
