// ops.h: from an operation's struct to its plan, and the table of all.
#pragma once

#include <memory>
#include <string_view>

#include "request.h"

namespace meshrun::emu {

struct OpEntry {
  const char* name = nullptr;
  uint32_t size = 0;  // of the struct
  std::unique_ptr<Plan> (*plan)(Request&, void* op) = nullptr;
};

// Null for an operation that there is not.
const OpEntry* find_op(uint32_t op);
bool is_op(std::string_view name);

std::unique_ptr<Plan> plan_all_gather(Request& r, mr_all_gather& op);
std::unique_ptr<Plan> plan_reduce_scatter(Request& r, mr_reduce_scatter& op);
std::unique_ptr<Plan> plan_matmul(Request& r, mr_matmul& op);
std::unique_ptr<Plan> plan_norm(Request& r, mr_norm& op);
std::unique_ptr<Plan> plan_fused_distributed_norm(Request& r, mr_fused_distributed_norm& op);
std::unique_ptr<Plan> plan_rope(Request& r, mr_rope& op);
std::unique_ptr<Plan> plan_sdpa(Request& r, mr_sdpa& op);
std::unique_ptr<Plan> plan_ring_joint_sdpa(Request& r, mr_ring_joint_sdpa& op);
std::unique_ptr<Plan> plan_binary(Request& r, mr_binary& op);
std::unique_ptr<Plan> plan_addcmul(Request& r, mr_addcmul& op);
std::unique_ptr<Plan> plan_activation(Request& r, mr_activation& op);
std::unique_ptr<Plan> plan_slice(Request& r, mr_slice& op);
std::unique_ptr<Plan> plan_concat(Request& r, mr_concat& op);
std::unique_ptr<Plan> plan_reshape(Request& r, mr_reshape& op);
std::unique_ptr<Plan> plan_permute(Request& r, mr_permute& op);
std::unique_ptr<Plan> plan_convert(Request& r, mr_convert& op);
std::unique_ptr<Plan> plan_exp_ring_joint_sdpa(Request& r, mr_exp_ring_joint_sdpa& op);
std::unique_ptr<Plan> plan_strided_all_gather_matmul(Request& r, mr_strided_all_gather_matmul& op);
std::unique_ptr<Plan> plan_matmul_strided_reduce_scatter(Request& r, mr_matmul_strided_reduce_scatter& op);
std::unique_ptr<Plan> plan_conv3d(Request& r, mr_conv3d& op);
std::unique_ptr<Plan> plan_np_conv3d(Request& r, mr_np_conv3d& op);
std::unique_ptr<Plan> plan_group_norm(Request& r, mr_group_norm& op);
std::unique_ptr<Plan> plan_group_norm_stats(Request& r, mr_group_norm_stats& op);
std::unique_ptr<Plan> plan_neighbor_pad(Request& r, mr_neighbor_pad& op);
std::unique_ptr<Plan> plan_neighbor_pad_halo(Request& r, mr_neighbor_pad_halo& op);
std::unique_ptr<Plan> plan_halo_scatter(Request& r, mr_halo_scatter& op);
std::unique_ptr<Plan> plan_slice_reshard(Request& r, mr_slice_reshard& op);
std::unique_ptr<Plan> plan_point_to_point(Request& r, mr_point_to_point& op);

// The program that puts host data into a tensor. `staged` is the host's array, or empty where the data is there already.
std::unique_ptr<Plan> plan_write(const Config& config, const Operand& to, const mr_distribution& distribution, Block staged);
// The program that makes semaphores, or fills new memory with zeros, where devices do so late.
std::unique_ptr<Plan> plan_creation(std::vector<SemaphoreRef> semaphores, uint32_t initial, const Operand& zeroed, uint64_t serial);
// Copies one device's shard out of the host's array.
void scatter_shard(const Config& config, const Spec& spec, const mr_distribution& distribution, uint32_t device, const std::byte* array,
                   std::byte* shard);

}  // namespace meshrun::emu
