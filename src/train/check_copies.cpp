// SPDX-License-Identifier: Apache-2.0
#include "train/check_copies.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "core/error.hpp"
#include "core/mixed_bits.hpp"
#include "core/text.hpp"
#include "layout/reduction.hpp"
#include "schedule/replicated_ranges.hpp"
#include "train/tensor_hash.hpp"

namespace zea {
namespace {

/// A module, and a group of its ranks that replicate parameters.
using ModuleHolders = std::pair<std::string, ReplicationGroup>;

std::vector<ModuleHolders> all_holders(const MeshShape& mesh) {
  std::vector<ModuleHolders> all;
  for (const ModuleGrid& grid : mesh.modules)
    for (const ReplicationGroup& holders : replication_groups(grid))
      all.emplace_back(grid.module, holders);
  return all;
}

void add_to_hash(int64_t& hash, const at::Tensor& values) {
  hash = static_cast<int64_t>(
      mixed(static_cast<uint64_t>(hash) ^ static_cast<uint64_t>(hash_of(values).item<int64_t>())));
}

/// Returns the hashes of this rank's copies: one of each buffer, and one of the parameters that
/// each replication group of each module has in common. 0: the rank has none.
std::vector<int64_t> own_hashes(Engine& engine) {
  const Plan& plan = engine.plan();
  const auto& buffers = engine.buffers();
  const size_t num_buffers = buffers.size();
  const std::vector<ModuleHolders> holders = all_holders(plan.mesh);
  std::vector<int64_t> hashes(num_buffers + holders.size());
  for (size_t b = 0; b < num_buffers; ++b)
    if (buffers[b] && plan.shardings[b].replicas > 1) add_to_hash(hashes[b], buffers[b]->master());
  for (const ReplicatedRanges& held : replicated_ranges(plan, engine.world_rank())) {
    const auto found = std::ranges::find(holders, ModuleHolders(held.module, held.holders));
    const auto number = static_cast<size_t>(found - holders.begin());
    for (const ReplicatedRange& range : held.ranges)
      add_to_hash(hashes[num_buffers + number],
                  buffers[range.buffer]->master().narrow(0, range.begin, range.elements));
  }
  return hashes;
}

std::vector<int> holders_of(const MeshShape& mesh, int rank, const ModuleGrid& grid,
                            const ReplicationGroup& holders) {
  switch (holders.group) {
    case ReplicationKind::Tp:
      return mesh.group(rank, grid.module, {Axis::Tp});
    case ReplicationKind::Kv:
      return piece_holders(mesh, rank, grid.module, std::max(1, grid.kv_holders));
    case ReplicationKind::Tied:
      return tied_group(mesh, rank, grid.module, holders.tied);
  }
  throw InternalError("unknown kind of replication group");
}

/// Ranks whose values must be the same.
struct Copies {
  std::string name;
  size_t hash;  ///< which of their hashes
  std::vector<int> ranks;
};

std::vector<Copies> all_copies(const Plan& plan) {
  std::vector<Copies> all;
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    if (plan.shardings[b].replicas == 1) continue;
    const int buffer = static_cast<int>(b);
    std::map<std::pair<int, int>, std::vector<int>> ranks;  // by the part that they have
    for (int rank = 0; rank < plan.world_size(); ++rank)
      if (plan.holds(rank, buffer))
        ranks[{plan.piece_rank(rank, buffer), plan.shard_of(rank, buffer)}].push_back(rank);
    for (auto& [part, of_part] : ranks)
      all.push_back({plan.buffers[b].name, b, std::move(of_part)});
  }
  size_t hash = plan.buffers.size();
  for (const auto& [module, holders] : all_holders(plan.mesh)) {
    for (int rank = 0; rank < plan.world_size(); ++rank) {
      if (!plan.mesh.has(rank, module)) continue;
      std::vector<int> ranks = holders_of(plan.mesh, rank, plan.mesh.grid(module), holders);
      if (ranks.size() > 1 && ranks.front() == rank)
        all.push_back({"what " + module + " ranks hold in common", hash, std::move(ranks)});
    }
    ++hash;
  }
  return all;
}

/// Returns the ranks whose hash is not that of most; all ranks if no hash is that of most.
std::vector<int> different(const Copies& copies, const std::vector<int64_t>& hashes,
                           size_t hashes_of_rank) {
  std::map<int64_t, std::vector<int>> ranks;
  for (const int rank : copies.ranks)
    ranks[hashes[static_cast<size_t>(rank) * hashes_of_rank + copies.hash]].push_back(rank);
  if (ranks.size() == 1) return {};
  std::vector<int> found;
  for (const auto& [hash, same] : ranks)
    if (2 * same.size() <= copies.ranks.size()) found.insert(found.end(), same.begin(), same.end());
  std::ranges::sort(found);
  return found;
}

}  // namespace

void check_copies(Engine& engine, Collectives& control) {
  if (control.size() == 1) return;
  constexpr size_t kMostNamed = 4;
  const std::vector<int64_t> own = own_hashes(engine);
  std::vector<int64_t> all(own.size() * static_cast<size_t>(control.size()));
  control.all_gather(own.data(), all.data(), Counts(control.size(), std::ssize(own)), DType::Int64)
      .wait();
  std::vector<std::string> found;
  for (const Copies& copies : all_copies(engine.plan()))
    if (const std::vector<int> ranks = different(copies, all, own.size()); !ranks.empty())
      found.push_back(copies.name + " on rank" + (ranks.size() > 1 ? "s " : " ") +
                      join(ranks, ", ", [](int rank) { return std::to_string(rank); }));
  if (found.empty()) return;
  const size_t more = found.size() - std::min(found.size(), kMostNamed);
  found.resize(found.size() - more);
  throw Error(ExitCode::SickNode,
              "copies of parameters differ: " + join(found, "; ") +
                  (more > 0 ? "; and " + std::to_string(more) + " more" : "") +
                  "; a bit has flipped in the memory of a rank's node or on its way. No checkpoint "
                  "was written: go on with -r from the newest one, whose copies were the same, on "
                  "other nodes; zea --check-node may name the faulty one");
}

}  // namespace zea
