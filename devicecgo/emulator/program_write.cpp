// program_write.cpp: the host's data come to a tensor.
#include <cstring>

#include "context.h"
#include "kernel_bfloat8.h"
#include "ops.h"

namespace meshrun::emu {
namespace {

class Write final : public Plan {
 public:
  const char* name() const override { return "tensor_write"; }

  Program run(Context& ctx) const override {
    if (staged)
      ctx.work({to.write(ctx.device())}, to.spec.bytes(), [this, device = ctx.device()](Parallel&) {
        scatter_shard(*config, to.spec, distribution, device, staged.data(), to.at(device).data);
      });
    co_await ctx.until(ctx.now() + ctx.cost().host_write_ns(to.spec.device_bytes() * ctx.devices()));
  }

  const Config* config = nullptr;
  Operand to;
  mr_distribution distribution{};
  Block staged;
};

}  // namespace

std::unique_ptr<Plan> plan_write(const Config& config, const Operand& to, const mr_distribution& distribution, Block staged) {
  auto plan = std::make_unique<Write>();
  plan->config = &config;
  plan->to = to;
  plan->distribution = distribution;
  plan->staged = std::move(staged);
  plan->uses.push_back({to.storage, true});
  return plan;
}

// The host's array has the shard's shape with each cut dim multiplied by the length of its axis. Where both axes cut one dim, axis 0
// cuts coarsely and axis 1 finely.
void scatter_shard(const Config& config, const Spec& spec, const mr_distribution& distribution, uint32_t device, const std::byte* array,
                   std::byte* shard) {
  const Machine& machine = config.machine;
  Shape whole = spec.shape;
  std::array<uint64_t, MR_MAX_RANK> begin{};
  const uint32_t place[2] = {device / machine.cols, device % machine.cols};
  for (const uint32_t a : {0u, 1u}) {
    if ((distribution.present >> a & 1u) == 0) continue;
    const uint32_t dim = distribution.dim[a];
    const bool both = a == 0 && (distribution.present >> 1 & 1u) != 0 && distribution.dim[1] == dim;
    begin[dim] += uint64_t{place[a]} * spec.shape.dims[dim] * (both ? machine.cols : 1);
    whole.dims[dim] *= machine.axis_length(a);
  }
  // Runs go from the last dim that is cut; in front of it, rows.
  uint32_t inner = 0;
  for (uint32_t i = 0; i < spec.shape.rank; ++i)
    if (whole.dims[i] != spec.shape.dims[i]) inner = i;
  const uint64_t unit = element_bytes(spec.dtype), run = spec.shape.product(inner, spec.shape.rank) * unit;
  const uint64_t rows = spec.shape.product(0, inner);
  std::array<uint32_t, MR_MAX_RANK> index{};
  for (uint64_t row = 0; row < rows; ++row) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < spec.shape.rank; ++i) at = at * whole.dims[i] + begin[i] + (i < inner ? index[i] : 0);
    std::memcpy(shard + row * run, array + at * unit, run);
    for (uint32_t i = inner; i-- > 0;) {
      if (++index[i] < spec.shape.dims[i]) break;
      index[i] = 0;
    }
  }
  Serial serial;
  round_blocks({shard, spec.dtype, spec.shape}, serial);
}

}  // namespace meshrun::emu
