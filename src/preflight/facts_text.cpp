// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "preflight/rank_facts.hpp"

namespace zea {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PciLink, speed, most_speed, lanes, most_lanes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankFacts, node, name, zea, build, libtorch, mpi, kernel,
                                   processor, cores, threads, open_files, locked_bytes,
                                   memory_free_bytes, memory_bytes, shared_bytes, shared_free_bytes,
                                   disk_fault, disk_free_bytes, disk_rate, gpu_fault, gpu_id,
                                   gpu_name, visible_gpus, gpu_free_bytes, gpu_bytes, gpu_link,
                                   nccl, built_nccl, cuda_runtime, built_cuda, cuda_driver)

std::string text_of(const RankFacts& facts) {
  // What the system calls things need not be UTF-8.
  return nlohmann::json(facts).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RankFacts facts_of_text(const std::string& text) {
  return nlohmann::json::parse(text).get<RankFacts>();
}

}  // namespace zea
