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
    t[MR_OP_MATMUL] = entry<mr_matmul, plan_matmul>("matmul");
    t[MR_OP_NORM] = entry<mr_norm, plan_norm>("norm");
    t[MR_OP_ROPE] = entry<mr_rope, plan_rope>("rope");
    t[MR_OP_SDPA] = entry<mr_sdpa, plan_sdpa>("sdpa");
    t[MR_OP_BINARY] = entry<mr_binary, plan_binary>("binary");
    t[MR_OP_ADDCMUL] = entry<mr_addcmul, plan_addcmul>("addcmul");
    t[MR_OP_ACTIVATION] = entry<mr_activation, plan_activation>("activation");
    t[MR_OP_SLICE] = entry<mr_slice, plan_slice>("slice");
    t[MR_OP_CONCAT] = entry<mr_concat, plan_concat>("concat");
    t[MR_OP_RESHAPE] = entry<mr_reshape, plan_reshape>("reshape");
    t[MR_OP_PERMUTE] = entry<mr_permute, plan_permute>("permute");
    t[MR_OP_CONVERT] = entry<mr_convert, plan_convert>("convert");
    t[MR_OP_FUSED_DISTRIBUTED_NORM] = entry<mr_fused_distributed_norm, plan_fused_distributed_norm>("fused_distributed_norm");
    t[MR_OP_RING_JOINT_SDPA] = entry<mr_ring_joint_sdpa, plan_ring_joint_sdpa>("ring_joint_sdpa");
    t[MR_OP_CONV3D] = entry<mr_conv3d, plan_conv3d>("conv3d");
    t[MR_OP_NP_CONV3D] = entry<mr_np_conv3d, plan_np_conv3d>("np_conv3d");
    t[MR_OP_GROUP_NORM] = entry<mr_group_norm, plan_group_norm>("group_norm");
    t[MR_OP_GROUP_NORM_STATS] = entry<mr_group_norm_stats, plan_group_norm_stats>("group_norm_stats");
    t[MR_OP_NEIGHBOR_PAD] = entry<mr_neighbor_pad, plan_neighbor_pad>("neighbor_pad");
    t[MR_OP_NEIGHBOR_PAD_HALO] = entry<mr_neighbor_pad_halo, plan_neighbor_pad_halo>("neighbor_pad_halo");
    t[MR_OP_HALO_SCATTER] = entry<mr_halo_scatter, plan_halo_scatter>("halo_scatter");
    t[MR_OP_EXP_RING_JOINT_SDPA] = entry<mr_exp_ring_joint_sdpa, plan_exp_ring_joint_sdpa>("exp_ring_joint_sdpa");
    t[MR_OP_STRIDED_ALL_GATHER_MATMUL] =
        entry<mr_strided_all_gather_matmul, plan_strided_all_gather_matmul>("strided_all_gather_minimal_matmul");
    t[MR_OP_MATMUL_STRIDED_REDUCE_SCATTER] =
        entry<mr_matmul_strided_reduce_scatter, plan_matmul_strided_reduce_scatter>("matmul_strided_reduce_scatter");
    t[MR_OP_SLICE_RESHARD] = entry<mr_slice_reshard, plan_slice_reshard>("slice_reshard");
    t[MR_OP_POINT_TO_POINT] = entry<mr_point_to_point, plan_point_to_point>("point_to_point");
    return t;
  }();
  return op < table.size() && table[op].plan != nullptr ? &table[op] : nullptr;
}

bool is_op(std::string_view name) {
  for (uint32_t op = 0; op < MR_OP_END; ++op)
    if (const OpEntry* entry = find_op(op); entry != nullptr && name == entry->name) return true;
  return false;
}

}  // namespace meshrun::emu
