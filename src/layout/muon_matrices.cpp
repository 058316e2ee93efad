// SPDX-License-Identifier: Apache-2.0
#include "layout/muon_matrices.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <utility>

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

/// Calls visit(run) for what lies of a matrix in each shard of its buffer, in the matrix's order.
void each_run(const MuonMatrix& matrix, const FlatBuffer& buffer, int shards, const auto& visit) {
  int64_t held = 0;
  for (const FlatPart& member : matrix.members)
    for (int64_t at = member.flat_begin, end = at + member.elements; at < end;) {
      const int shard = static_cast<int>(at / (buffer.padded(shards) / shards));
      const FlatRange range = shard_range(buffer, shard, shards);
      const int64_t count = std::min(end, range.end) - at;
      visit(MuonRun{matrix.buffer, member.param, shard, at - range.begin, count, held});
      at += count;
      held += count;
    }
}

std::vector<int64_t> held_by_shards(const MuonMatrix& matrix, const FlatBuffer& buffer,
                                    int shards) {
  std::vector<int64_t> held(static_cast<size_t>(shards), 0);
  each_run(matrix, buffer, shards,
           [&](const MuonRun& run) { held[static_cast<size_t>(run.shard)] += run.elements; });
  return held;
}

int shard_with_most(const MuonMatrix& matrix, const FlatBuffer& buffer, int shards) {
  const std::vector<int64_t> held = held_by_shards(matrix, buffer, shards);
  return static_cast<int>(std::ranges::max_element(held) - held.begin());
}

bool lies_in(const MuonMatrix& matrix, const FlatBuffer& buffer, int shards, int shard) {
  return held_by_shards(matrix, buffer, shards)[static_cast<size_t>(shard)] ==
         matrix.held_elements();
}

/// The ranks that share the work, replica by replica.
class Loads {
 public:
  Loads(const MuonPart& part, const Sharding& sharding)
      : shards_(sharding.shards),
        loads_(static_cast<size_t>(shards_) * static_cast<size_t>(sharding.replicas), 0) {
    for (const MuonMatrix& matrix : part.matrices) all_ += multiplications(matrix);
  }

  /// Whoever takes it: one of those with the shard, or where all of them have their part, any.
  int take(int64_t load, int shard) {
    int least = least_of(shard, shards_);
    if ((at(least) + load) * std::ssize(loads_) > all_) least = least_of(0, 1);
    at(least) += load;
    return least;
  }

 private:
  int64_t& at(int rank) { return loads_[static_cast<size_t>(rank)]; }
  int least_of(int first, int step) {
    int least = first;
    for (int rank = first; rank < std::ssize(loads_); rank += step)
      if (at(rank) < at(least)) least = rank;
    return least;
  }

  int shards_;
  std::vector<int64_t> loads_;
  int64_t all_ = 0;
};

void deal(MuonPart& part, const std::vector<FlatBuffer>& buffers, const Sharding& sharding) {
  std::vector<size_t> order(part.matrices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    return multiplications(part.matrices[a]) > multiplications(part.matrices[b]);
  });
  Loads loads(part, sharding);
  for (const size_t m : order) {
    MuonMatrix& matrix = part.matrices[m];
    const FlatBuffer& buffer = buffers[static_cast<size_t>(matrix.buffer)];
    matrix.owner =
        loads.take(multiplications(matrix), shard_with_most(matrix, buffer, sharding.shards));
  }
  std::ranges::stable_sort(part.matrices, {}, &MuonMatrix::owner);
  part.counts.assign(static_cast<size_t>(sharding.shards) * static_cast<size_t>(sharding.replicas),
                     0);
  for (const MuonMatrix& matrix : part.matrices)
    part.counts[static_cast<size_t>(matrix.owner)] += matrix.held_elements();
}

/// Matrices by the replica of their owner, and last those whose owner has this shard.
std::vector<int> own_last(const MuonPart& part, int shards, int shard) {
  std::vector<int> order(part.matrices.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int m) {
    const int owner = part.matrices[static_cast<size_t>(m)].owner;
    return std::pair(owner / shards, owner % shards == shard);
  });
  return order;
}

std::vector<MuonMatrix> matrices_of(const ModelSpec& model, const std::vector<FlatBuffer>& buffers,
                                    const ParamShards& cuts, const std::vector<ParamRule>& rules,
                                    int g) {
  std::vector<MuonMatrix> matrices;
  std::map<std::pair<std::string, int64_t>, size_t> of_tensor;  // and expert
  const FlatBuffer& buffer = buffers[static_cast<size_t>(g)];
  if (!buffer.trainable) return matrices;
  for (const FlatParam& member : buffer.params) {
    const ParamSpec& param = model.params[member.param];
    const ParamRule& rule = rules[member.param];
    if (!rule.orthogonalizes) continue;
    const Shape shape = param.tensor_shape();
    const int64_t experts = param.stacks_experts ? cuts[member.param].shape[0] : 1;
    for (int64_t e = 0, each = member.elements / experts; e < experts; ++e) {
      const auto [found, is_new] = of_tensor.emplace(std::pair(param.name, e), matrices.size());
      if (is_new) matrices.push_back({{shape.end() - 2, shape.end()}, g, {}});
      matrices[found->second].members.push_back(
          {member.param, e * each, member.offset + e * each, each});
    }
  }
  return matrices;
}

bool lie_alike(const Sharding& a, const Sharding& b) {
  return a.split_over == b.split_over && a.sharded_over == b.sharded_over &&
         a.summed_over == b.summed_over && a.shards == b.shards && a.replicas == b.replicas;
}

/// Memory that the iterations of a rank take at once.
class Iterations {
 public:
  void add(const MuonMatrix& matrix) {
    const int64_t least = std::min(matrix.shape[0], matrix.shape[1]);
    const int64_t elements = 4 * matrix.elements() + 4 * least * least;
    if (matrix.is_small())
      side_by_side_.push_back(elements);
    else
      alone_ = std::max(alone_, elements);
  }
  int64_t most(int64_t threads) {
    const auto first = side_by_side_.begin();
    const int64_t count = std::min<int64_t>(threads, std::ssize(side_by_side_));
    std::partial_sort(first, first + count, side_by_side_.end(), std::greater());
    return std::max(alone_, std::reduce(first, first + count));
  }

 private:
  int64_t alone_ = 0;
  std::vector<int64_t> side_by_side_;
};

}  // namespace

int64_t MuonMatrix::held_elements() const {
  int64_t sum = 0;
  for (const FlatPart& member : members) sum += member.elements;
  return sum;
}

std::vector<MuonPart> muon_parts(const ModelSpec& model, const std::vector<FlatBuffer>& buffers,
                                 const std::vector<Sharding>& shardings, const ParamShards& cuts,
                                 const std::vector<ParamRule>& rules,
                                 const std::vector<int>& held) {
  std::vector<MuonPart> parts;
  int64_t elements = 0;  // of the last part
  for (const int g : held) {
    const std::vector<MuonMatrix> matrices = matrices_of(model, buffers, cuts, rules, g);
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
    deal(part, buffers, sharding);
  }
  return parts;
}

MuonShare muon_share(const MuonPart& part, const std::vector<FlatBuffer>& buffers,
                     const Sharding& sharding, int shard, int replica, bool joins_all) {
  const int shards = sharding.shards;
  MuonShare share;
  share.rank = replica * shards + shard;
  share.of_replicas.assign(static_cast<size_t>(sharding.replicas), 0);
  share.sent.assign(static_cast<size_t>(shards), 0);
  share.received = share.sent;
  for (const int m : own_last(part, shards, shard)) {
    const MuonMatrix& matrix = part.matrices[static_cast<size_t>(m)];
    const FlatBuffer& buffer = buffers[static_cast<size_t>(matrix.buffer)];
    const int to_shard = matrix.owner % shards, to_replica = matrix.owner / shards;
    const bool is_own = matrix.owner == share.rank;
    const bool is_joined = shards > 1 && (joins_all || !lies_in(matrix, buffer, shards, to_shard));
    int64_t& end = share.of_replicas[static_cast<size_t>(to_replica)];
    const int64_t begin = is_joined ? share.joined_elements : end;
    if (is_own) share.made.push_back({m, is_joined, begin});
    each_run(matrix, buffer, shards, [&](const MuonRun& run) {
      if (is_own && is_joined)
        share.joins.push_back({run.shard, end, share.joined_elements + run.held, run.elements});
      if (run.shard != shard) return;
      share.runs.push_back(run);
      end += run.elements;
      if (to_replica == replica && to_shard != shard)
        share.sent[static_cast<size_t>(to_shard)] += run.elements;
    });
    if (is_own && is_joined) share.joined_elements += matrix.held_elements();
  }
  std::ranges::stable_sort(share.joins, {}, &MuonJoin::shard);
  int64_t received = 0;
  for (MuonJoin& join : share.joins) {
    if (join.shard == shard) continue;
    join.from = std::exchange(received, received + join.elements);
    share.received[static_cast<size_t>(join.shard)] += join.elements;
  }
  return share;
}

std::vector<MuonElements> muon_elements(const MuonPart& part,
                                        const std::vector<FlatBuffer>& buffers,
                                        const Sharding& sharding, int tp, int64_t threads) {
  const int shards = sharding.shards;
  std::vector<int64_t> in_shard(static_cast<size_t>(shards), 0);
  std::vector<MuonElements> of_ranks(part.counts.size());
  std::vector<Iterations> iterations(part.counts.size());
  for (const MuonMatrix& matrix : part.matrices) {
    const auto owner = static_cast<size_t>(matrix.owner);
    const int64_t held = matrix.held_elements();
    int64_t there = 0;
    each_run(matrix, buffers[static_cast<size_t>(matrix.buffer)], shards, [&](const MuonRun& run) {
      in_shard[static_cast<size_t>(run.shard)] += run.elements;
      if (run.shard == matrix.owner % shards) there += run.elements;
    });
    of_ranks[owner].moved += held - there;
    if (shards > 1 && (tp > 1 || there < held)) of_ranks[owner].made += held;
    iterations[owner].add(matrix);
  }
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    of_ranks[rank].moved += in_shard[rank % static_cast<size_t>(shards)];
    of_ranks[rank].made += (tp > 1 ? tp * part.counts[rank] : 0) + iterations[rank].most(threads);
  }
  return of_ranks;
}

}  // namespace zea
