// SPDX-License-Identifier: Apache-2.0
#include "preflight/measure_nodes.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "comm/recorded_collectives.hpp"
#include "core/system.hpp"
#include "parallel/device.hpp"

namespace zea {
namespace {

constexpr int kFewestRepeats = 1, kMostRepeats = 5;
constexpr double kRepeatSeconds = 2;
constexpr int64_t kHostBytes = int64_t{8} << 20;

/// The result of one rank.
struct Timed {
  double rate = 0;
  double is_right = 1;
};

/// Small whole numbers, of which fp32 holds every sum.
struct Summands {
  static constexpr int64_t kDifferent = 251, kRanks = 16;

  at::Tensor base;  ///< (elements)

  Summands(int64_t elements, at::Device device)
      : base(at::arange(elements, at::TensorOptions(device).dtype(at::kFloat))
                 .remainder_(kDifferent)) {}
  at::Tensor of_rank(int rank) const { return base + static_cast<double>(rank % kRanks); }
  at::Tensor sum_of(int size) const {
    double added = 0;
    for (int rank = 0; rank < size; ++rank) added += static_cast<double>(rank % kRanks);
    return base * static_cast<double>(size) + added;
  }
};

/// Returns the best of a few, when nothing else uses the link.
double best_seconds(Collectives& group, at::Tensor& memory, int repeats) {
  double best = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat < repeats; ++repeat) {
    group.barrier();
    const Stopwatch watch;
    group.all_reduce(memory.data_ptr(), memory.numel(), DType::Float32, ReduceOp::Sum).wait();
    memory[0].item();  // a device has then done it
    best = std::min(best, watch.seconds());
  }
  return best;
}

Timed time_all_reduce(const Communicator& ranks, const LinkEnds& ends, ActionRecord& record,
                      const std::string& name) {
  if (ranks.size() <= 1) return {};
  const ActionRecord::Action action(record, "all-reduce of " + name);
  const std::unique_ptr<Collectives> real = ends.make(ranks);
  const std::unique_ptr<Collectives> group = make_recorded_collectives(*real, record, name);
  const Summands summands(ends.bytes / static_cast<int64_t>(sizeof(float)), ends.device);
  at::Tensor memory = summands.of_rank(ranks.rank());
  group->barrier();
  const Stopwatch first;
  group->all_reduce(memory.data_ptr(), memory.numel(), DType::Float32, ReduceOp::Sum).wait();
  const bool is_right = at::equal(memory, summands.sum_of(ranks.size()));
  const int repeats =
      repeats_of(longest_of(*group, first.seconds(), ends.device), kFewestRepeats, kMostRepeats);
  memory.zero_();
  const double through_link = 2.0 * static_cast<double>(ends.bytes) *
                              static_cast<double>(ranks.size() - 1) /
                              static_cast<double>(ranks.size());
  return {through_link / best_seconds(*group, memory, repeats), is_right ? 1.0 : 0.0};
}

/// Returns this node's pair of a round; -1: none.
int pair_of(const std::vector<std::pair<int, int>>& round, int node) {
  for (size_t pair = 0; pair < round.size(); ++pair)
    if (round[pair].first == node || round[pair].second == node) return static_cast<int>(pair);
  return -1;
}

/// The results of all ranks, a row of each.
class Seen {
 public:
  Seen(Collectives& control, const std::vector<Timed>& own, const std::vector<int>& node_of_rank)
      : width_(own.size()), all_(control.size() * own.size()), node_of_rank_(node_of_rank) {
    const auto numbers = static_cast<int64_t>(2 * width_);
    control.all_gather(own.data(), all_.data(), Counts(control.size(), numbers), DType::Float64)
        .wait();
  }

  /// Joins the results of that column of the ranks of these nodes; `names`: the lowest rank of each
  /// node.
  LinkRate of(size_t column, const std::vector<int>& nodes, const std::vector<int>& names) const {
    LinkRate link{.nodes = nodes};
    for (size_t rank = 0; rank < node_of_rank_.size(); ++rank) {
      const bool is_in =
          std::ranges::any_of(nodes, [&](int node) { return names[node] == node_of_rank_[rank]; });
      if (!is_in) continue;
      const Timed& seen = all_[rank * width_ + column];
      if (link.rate == 0) link.rate = seen.rate;
      link.is_right = link.is_right && seen.is_right == 1;
    }
    return link;
  }

 private:
  size_t width_;
  std::vector<Timed> all_;
  const std::vector<int>& node_of_rank_;
};

}  // namespace

LinkEnds LinkEnds::of(at::Device device) {
  return {device, collectives_of(device), device.is_cpu() ? kHostBytes : kSummedGpuBytes};
}

int repeats_of(double seconds, int fewest, int most) {
  return seconds * most <= kRepeatSeconds
             ? most
             : std::max(fewest, static_cast<int>(kRepeatSeconds / seconds));
}

double longest_of(Collectives& group, double seconds, at::Device device) {
  at::Tensor all = at::full({1}, seconds, at::TensorOptions(device).dtype(at::kDouble));
  group.all_reduce(all.data_ptr(), 1, DType::Float64, ReduceOp::Max).wait();
  return all.item<double>();
}

void measure_links(const World& world, Collectives& control, const LinkEnds& ends,
                   ActionRecord& record, Measurements& measured) {
  const std::vector<int>& nodes = measured.nodes;
  const int num_nodes = static_cast<int>(nodes.size());
  const int own_name = world.node_of_rank()[world.rank()];
  const int own_node = static_cast<int>(std::ranges::find(nodes, own_name) - nodes.begin());
  const Communicator all = world.communicator();
  std::vector<Timed> own = {time_all_reduce(all.split(own_node, "node"), ends, record, "a node")};
  const auto rounds = pair_rounds(num_nodes);
  for (const auto& round : rounds) {
    const int pair = pair_of(round, own_node);
    const Communicator both = all.split(pair < 0 ? Communicator::kNoColor : pair, "two nodes");
    own.push_back(time_all_reduce(both, ends, record, "two nodes"));
    control.barrier();
  }
  // All ranks of one or two nodes were among those.
  if (num_nodes > 2) own.push_back(time_all_reduce(all, ends, record, "all ranks"));

  const Seen seen(control, own, world.node_of_rank());
  std::vector<int> every_node;
  for (int node = 0; node < num_nodes; ++node) {
    measured.inside.push_back(seen.of(0, {node}, nodes));
    every_node.push_back(node);
  }
  for (size_t round = 0; round < rounds.size(); ++round)
    for (const auto& [one, other] : rounds[round])
      measured.pairs.push_back(seen.of(1 + round, {one, other}, nodes));
  measured.everyone = seen.of(own.size() - 1, every_node, nodes);
}

}  // namespace zea
