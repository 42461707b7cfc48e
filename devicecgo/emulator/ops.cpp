#include "ops.h"

namespace meshrun::emu {
namespace {

template <class Op, std::unique_ptr<Plan> (*plan)(Request&, Op&)>
constexpr OpEntry entry(const char* name) {
  return {name, sizeof(Op), [](Request& r, void* op) { return plan(r, *static_cast<Op*>(op)); }};
}

}  // namespace

const OpEntry* find_op(uint32_t op) {
  static const std::array<OpEntry, MR_OP_END> table = [] {
    std::array<OpEntry, MR_OP_END> t{};
    t[MR_OP_ALL_GATHER] = entry<mr_all_gather, plan_all_gather>("all_gather");
    t[MR_OP_REDUCE_SCATTER] = entry<mr_reduce_scatter, plan_reduce_scatter>("reduce_scatter");
    return t;
  }();
  return op < table.size() && table[op].plan != nullptr ? &table[op] : nullptr;
}

}  // namespace meshrun::emu
