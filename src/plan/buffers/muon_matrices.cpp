// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/buffers/muon_matrices.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

namespace zea {
namespace {

/// Five steps of three products, of the short side with itself and with the matrix; of long ones
/// two times two with the matrix, and 14 of the short side; half of what is symmetric.
int64_t multiplications(const MuonMatrix& matrix) {
  const int64_t least = std::min(matrix.shape[0], matrix.shape[1]), square = least * least;
  const bool is_long = matrix.elements() >= kMuonLong * square;
  return least *
         (is_long ? 6 * matrix.elements() + 14 * square : 5 * (3 * matrix.elements() + square));
}

void deal(MuonPart& part, int ranks) {
  std::vector<size_t> order(part.matrices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    return multiplications(part.matrices[a]) > multiplications(part.matrices[b]);
  });
  std::vector<int64_t> loads(static_cast<size_t>(ranks), 0);
  for (const size_t m : order) {
    const auto least = std::ranges::min_element(loads);
    *least += multiplications(part.matrices[m]);
    part.matrices[m].owner = static_cast<int>(least - loads.begin());
  }
  std::ranges::stable_sort(part.matrices, {}, &MuonMatrix::owner);
  part.counts.assign(static_cast<size_t>(ranks), 0);
  int64_t end = 0;
  for (MuonMatrix& matrix : part.matrices) {
    matrix.begin = end;
    end += matrix.held_elements();
    part.counts[static_cast<size_t>(matrix.owner)] += matrix.held_elements();
  }
}

std::vector<MuonMatrix> matrices_of(const ModelSpec& model, const std::vector<FlatBuffer>& buffers,
                                    const std::vector<ParamRule>& rules, int g) {
  std::vector<MuonMatrix> matrices;
  std::map<std::string, size_t> of_tensor;
  const FlatBuffer& buffer = buffers[static_cast<size_t>(g)];
  if (!buffer.trainable) return matrices;
  for (const FlatParam& member : buffer.params) {
    const ParamSpec& param = model.params[member.param];
    const ParamRule& rule = rules[member.param];
    if (!rule.orthogonalises) continue;
    const auto [found, is_new] = of_tensor.emplace(param.name, matrices.size());
    if (is_new) matrices.push_back({param.tensor_shape(), g, {}});
    matrices[found->second].members.push_back(member);
  }
  return matrices;
}

bool lie_alike(const Sharding& a, const Sharding& b) {
  return a.cut_over == b.cut_over && a.sharded_over == b.sharded_over &&
         a.summed_over == b.summed_over && a.shards == b.shards && a.replicas == b.replicas;
}

std::vector<MuonRun> runs_of_shard(const MuonPart& part, const std::vector<FlatBuffer>& buffers,
                                   int shard, int shards) {
  std::map<int, std::pair<int64_t, int>> made;  // of a parameter: where its buffer would begin
  for (const MuonMatrix& matrix : part.matrices)
    for (int64_t begin = matrix.begin; const FlatParam& member : matrix.members) {
      made[member.param] = {begin - member.offset, matrix.owner};
      begin += member.elements;
    }
  std::vector<MuonRun> runs;
  for (const int g : part.buffers) {
    const FlatBuffer& buffer = buffers[static_cast<size_t>(g)];
    const FlatRange range = shard_range(buffer, shard, shards);
    for (const FlatPart& own : parts_in_range(buffer, range))
      if (const auto found = made.find(own.param); found != made.end())
        runs.push_back({g, own.param, own.flat_begin - range.begin, own.elements,
                        found->second.first + own.flat_begin, found->second.second});
  }
  std::ranges::sort(runs, {}, &MuonRun::made);
  return runs;
}

}  // namespace

int64_t MuonMatrix::held_elements() const {
  int64_t sum = 0;
  for (const FlatParam& member : members) sum += member.elements;
  return sum;
}

int64_t MuonPart::first_made(int rank) const {
  return std::reduce(counts.begin(), counts.begin() + rank);
}

std::vector<MuonPart> muon_parts(const ModelSpec& model, const std::vector<FlatBuffer>& buffers,
                                 const std::vector<Sharding>& shardings,
                                 const std::vector<ParamRule>& rules,
                                 const std::vector<int>& held) {
  std::vector<MuonPart> parts;
  int64_t elements = 0;  // of the last part
  for (const int g : held) {
    const std::vector<MuonMatrix> matrices = matrices_of(model, buffers, rules, g);
    if (matrices.empty()) continue;
    const FlatBuffer& buffer = buffers[static_cast<size_t>(g)];
    const auto goes_with = [&](int other) {
      return buffers[static_cast<size_t>(other)].module == buffer.module &&
             lie_alike(shardings[static_cast<size_t>(other)], shardings[static_cast<size_t>(g)]);
    };
    elements += buffer.elements;
    if (parts.empty() || elements > kMuonElements || !goes_with(parts.back().buffers.back())) {
      parts.emplace_back();
      elements = buffer.elements;
    }
    parts.back().buffers.push_back(g);
    std::ranges::copy(matrices, std::back_inserter(parts.back().matrices));
  }
  for (MuonPart& part : parts) {
    const Sharding& sharding = shardings[static_cast<size_t>(part.buffers.front())];
    deal(part, sharding.shards * sharding.replicas);
  }
  return parts;
}

MuonShare muon_share(const MuonPart& part, const std::vector<FlatBuffer>& buffers,
                     const Sharding& sharding, int shard, int replica) {
  const auto shards = static_cast<size_t>(sharding.shards);
  MuonShare share;
  share.of_replicas.assign(static_cast<size_t>(sharding.replicas), 0);
  share.sent.assign(shards, 0);
  share.received.assign(shards, 0);
  for (int s = 0; s < sharding.shards; ++s)
    for (const MuonRun& run : runs_of_shard(part, buffers, s, sharding.shards)) {
      const int to_shard = run.owner % sharding.shards, to_replica = run.owner / sharding.shards;
      if (s == shard) {
        share.runs.push_back(run);
        share.of_replicas[static_cast<size_t>(to_replica)] += run.elements;
        if (to_replica == replica) share.sent[static_cast<size_t>(to_shard)] += run.elements;
      }
      if (to_shard != shard || to_replica != replica) continue;
      share.owned.push_back(run);
      share.received[static_cast<size_t>(s)] += run.elements;
    }
  return share;
}

}  // namespace zea
