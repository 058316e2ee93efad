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

/// Calls visit(run) for what lies of a matrix in each shard of its buffer, in the matrix's order.
void each_run(const MuonMatrix& matrix, const FlatBuffer& buffer, int shards, const auto& visit) {
  int64_t made = matrix.begin;
  for (const FlatParam& member : matrix.members)
    for (int64_t at = member.offset, end = at + member.elements; at < end;) {
      const int shard = static_cast<int>(at / (buffer.padded(shards) / shards));
      const FlatRange range = shard_range(buffer, shard, shards);
      const int64_t count = std::min(end, range.end) - at;
      visit(
          MuonRun{matrix.buffer, member.param, shard, at - range.begin, count, made, matrix.owner});
      at += count;
      made += count;
    }
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
  share.rank = replica * sharding.shards + shard;
  share.of_replicas.assign(static_cast<size_t>(sharding.replicas), 0);
  share.sent.assign(shards, 0);
  share.received.assign(shards, 0);
  const auto take = [&](const MuonRun& run) {
    const int to_shard = run.owner % sharding.shards, to_replica = run.owner / sharding.shards;
    if (run.shard == shard) {
      share.runs.push_back(run);
      share.of_replicas[static_cast<size_t>(to_replica)] += run.elements;
      if (to_replica == replica) share.sent[static_cast<size_t>(to_shard)] += run.elements;
    }
    if (run.owner != share.rank) return;
    share.owned.push_back(run);
    share.received[static_cast<size_t>(run.shard)] += run.elements;
  };
  for (const MuonMatrix& matrix : part.matrices)
    each_run(matrix, buffers[static_cast<size_t>(matrix.buffer)], sharding.shards, take);
  std::ranges::stable_sort(share.owned, {}, &MuonRun::shard);
  return share;
}

}  // namespace zea
