// program_local.h: operations of one device alone: operands, a kernel, a cost.
#pragma once

#include <utility>
#include <vector>

#include "context.h"
#include "kernel_bfloat8.h"
#include "request.h"

namespace meshrun::emu {

// Local runs kernel(inputs, output, parallel) on every device. An absent input is an empty view.
template <class Kernel>
class Local final : public Plan {
 public:
  Local(const char* name, std::vector<Operand> inputs, Operand output, double flops, Kernel kernel)
      : name_(name), inputs_(std::move(inputs)), output_(std::move(output)), kernel_(std::move(kernel)) {
    cost_.flops = flops;
    cost_.bytes = static_cast<double>(output_.spec.device_bytes());
    for (const Operand& in : inputs_)
      if (in) cost_.bytes += static_cast<double>(in.spec.device_bytes());
  }

  void set_bytes(double bytes) { cost_.bytes = bytes; }
  const char* name() const override { return name_; }

  Program run(Context& ctx) const override {
    std::array<Access, Task::kAccesses> accesses;
    size_t n = 0;
    for (const Operand& in : inputs_)
      if (in) accesses[n++] = in.read(ctx.device());
    accesses[n++] = output_.write(ctx.device());
    ctx.work(std::span<const Access>(accesses.data(), n), static_cast<uint64_t>(cost_.bytes + cost_.flops / 8),
             [this, device = ctx.device()](Parallel& parallel) {
               std::array<ConstView, Task::kAccesses> in;
               for (size_t i = 0; i < inputs_.size(); ++i) in[i] = inputs_[i].view(device);
               kernel_(in.data(), output_.view(device), parallel);
               round_blocks(output_.view(device), parallel);
             });
    co_await ctx.compute(cost_);
  }

 private:
  const char* name_;
  std::vector<Operand> inputs_;
  Operand output_;
  Kernel kernel_;
  Cost cost_;
};

// in_place: the output may be one of the inputs. bytes: to and from DRAM, where that is not all of the operands.
template <class Kernel>
std::unique_ptr<Plan> local(Request& r, std::vector<Operand> inputs, Operand output, double flops, Kernel kernel, bool in_place = false,
                            double bytes = 0) {
  std::vector<Operand> kept = inputs;
  auto plan = std::make_unique<Local<Kernel>>(r.op(), std::move(inputs), output, flops, std::move(kernel));
  if (bytes != 0) plan->set_bytes(bytes);
  for (const Operand& in : kept) r.reads(*plan, in);
  r.writes(*plan, output, in_place);
  return plan;
}

}  // namespace meshrun::emu
