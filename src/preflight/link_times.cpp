// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "comm/recorded_collectives.hpp"
#include "core/system.hpp"
#include "preflight/measure_nodes.hpp"

namespace zea {
namespace {

constexpr int kFewestRounds = 3, kMostRounds = 20;
constexpr int64_t kSmallBytes = 4096;
constexpr double kGiga = 1e9, kMicro = 1e-6;
constexpr int kKinds = 5;

/// A group as one of its ranks measures it: its ranks, the seconds of a small all-gather of all of
/// them and of two, and bytes a second by CollectiveKind. All 0: not measured.
using GroupTimes = std::array<double, 3 + kKinds>;
constexpr size_t kRanks = 0, kSmall = 1, kSmallPair = 2, kRates = 3;

/// Collectives of one group over memory of its own, as the engine has it.
class TimedGroup {
 public:
  TimedGroup(const Communicator& ranks, const LinkEnds& ends, ActionRecord& record)
      : real_(ends.make(ranks)),
        group_(make_recorded_collectives(*real_, record, "measured links")),
        size_(group_->size()),
        bytes_(ends.bytes / size_ / kElement * size_ * kElement),
        from_(memory(ends.device)),
        to_(memory(ends.device)) {}

  double small_seconds() {
    return seconds(CollectiveKind::AllGather, std::max<int64_t>(kSmallBytes, size_ * kElement));
  }

  double rate(CollectiveKind kind) {
    const int64_t few = std::max<int64_t>(kSmallBytes, size_ * kElement);
    const double large = seconds(kind, bytes_), small = seconds(kind, few);
    const double sent = sent_share(kind) * static_cast<double>(bytes_ - few);
    return sent / std::max(large - small, large / 2);  // a busy machine may slow the small one more
  }

 private:
  static constexpr int64_t kElement = sizeof(float);

  at::Tensor memory(at::Device device) {
    const at::TensorOptions options = at::TensorOptions(device).dtype(at::kFloat);
    if (!device.is_cpu()) return at::zeros({bytes_ / kElement}, options);
    held_.push_back(group_->allocate(bytes_));
    return at::from_blob(held_.back().get(), {bytes_ / kElement}, options);
  }

  double sent_share(CollectiveKind kind) const {
    const double others = static_cast<double>(size_ - 1) / size_;
    if (kind == CollectiveKind::Send) return 1;
    return kind == CollectiveKind::AllReduce ? 2 * others : others;
  }

  /// Calls once with buffers of so many bytes in all. Neighbors send to each other in pairs.
  void call(CollectiveKind kind, int64_t bytes) {
    const int64_t count = bytes / kElement, each = count / size_;
    const Counts counts(static_cast<size_t>(size_), each);
    float* from = from_.data_ptr<float>();
    float* to = to_.data_ptr<float>();
    const int rank = group_->rank(), peer = rank ^ 1;
    switch (kind) {
      case CollectiveKind::AllGather:
        return group_->all_gather(from + rank * each, from, counts, DType::Float32).wait();
      case CollectiveKind::ReduceScatter:
        return group_->reduce_scatter(from, to, counts, DType::Float32).wait();
      case CollectiveKind::AllReduce:
        return group_->all_reduce(from, count, DType::Float32, ReduceOp::Sum).wait();
      case CollectiveKind::AllToAll:
        return group_->all_to_all(from, counts, to, counts, DType::Float32).wait();
      case CollectiveKind::Send:
        if (peer >= size_) return;
        if (rank < peer) return group_->send(from, count, DType::Float32, peer).wait();
        return group_->recv(to, count, DType::Float32, peer).wait();
    }
  }

  double seconds_once(CollectiveKind kind, int64_t bytes) {
    group_->barrier();
    const Stopwatch watch;
    call(kind, bytes);
    from_[0].item();  // waits until a device has finished the call
    to_[0].item();
    return watch.seconds();
  }

  /// The best of a few, of the rank that takes longest.
  double seconds(CollectiveKind kind, int64_t bytes) {
    double best = seconds_once(kind, bytes);
    const int repeats =
        repeats_of(longest_of(*group_, best, from_.device()), kFewestRounds, kMostRounds);
    for (int repeat = 1; repeat < repeats; ++repeat)
      best = std::min(best, seconds_once(kind, bytes));
    return longest_of(*group_, best, from_.device());
  }

  std::unique_ptr<Collectives> real_, group_;
  int size_;
  int64_t bytes_;
  std::vector<std::shared_ptr<void>> held_;
  at::Tensor from_, to_;
};

GroupTimes times_of(const Communicator& ranks, const LinkEnds& ends, ActionRecord& record) {
  GroupTimes times{};
  if (ranks.size() < 2) return times;
  const ActionRecord::Action action(record, "measure links");
  times[kRanks] = ranks.size();
  TimedGroup group(ranks, ends, record);
  times[kSmall] = group.small_seconds();
  for (int kind = 0; kind < kKinds; ++kind)
    times[kRates + static_cast<size_t>(kind)] = group.rate(static_cast<CollectiveKind>(kind));
  const Communicator pair = ranks.split(ranks.rank() / 2, "pair");
  if (pair.size() == 2) times[kSmallPair] = TimedGroup(pair, ends, record).small_seconds();
  return times;
}

/// The medians over the ranks, each number by itself.
GroupTimes medians_of(Collectives& control, const GroupTimes& own) {
  std::vector<GroupTimes> all(static_cast<size_t>(control.size()));
  control.all_gather(own.data(), all.data(), Counts(all.size(), std::ssize(own)), DType::Float64)
      .wait();
  GroupTimes medians{};
  for (size_t i = 0; i < medians.size(); ++i) {
    std::vector<double> values;
    for (const GroupTimes& times : all) values.push_back(times[i]);
    medians[i] = median_of(std::move(values));
  }
  return medians;
}

/// A ring adds a hop for each rank beyond two; with two ranks the first hop is not told apart from
/// the start.
std::optional<LinkRates> rates_of(const GroupTimes& times) {
  if (times[kRanks] < 2) return {};
  LinkRates rates;
  double hop = 0;
  if (times[kRanks] > 2)
    hop = std::max(0.0, (times[kSmall] - times[kSmallPair]) / (times[kRanks] - 2));
  rates.hop_us = hop / kMicro;
  rates.latency_us = std::max(0.0, times[kSmallPair] - hop) / kMicro;
  const auto rate = [&](CollectiveKind kind) {
    return times[kRates + static_cast<size_t>(kind)] / kGiga;
  };
  rates.all_gather_gb_per_s = rate(CollectiveKind::AllGather);
  rates.reduce_scatter_gb_per_s = rate(CollectiveKind::ReduceScatter);
  rates.all_reduce_gb_per_s = rate(CollectiveKind::AllReduce);
  rates.all_to_all_gb_per_s = rate(CollectiveKind::AllToAll);
  rates.send_gb_per_s = rate(CollectiveKind::Send);
  rates.gb_per_s = rates.all_gather_gb_per_s;
  return rates;
}

}  // namespace

MeasuredLinks measure_link_rates(const World& world, Collectives& control, const LinkEnds& ends,
                                 ActionRecord& record) {
  const Communicator all = world.communicator();
  const int node = world.node_of_rank()[static_cast<size_t>(world.rank())];
  const GroupTimes inside = times_of(all.split(node, "node"), ends, record);
  control.barrier();
  // The ranks of a node use its links together.
  const GroupTimes between = times_of(all.split(world.local_rank(), "across"), ends, record);
  return {rates_of(medians_of(control, inside)), rates_of(medians_of(control, between))};
}

}  // namespace zea
