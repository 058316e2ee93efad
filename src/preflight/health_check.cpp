// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "comm/launch_order.hpp"
#include "preflight/health_check.hpp"

namespace zea {
namespace {

/// Shares of the median of the nodes; less is sick. Disks serve others, too, and vary more.
constexpr double kLeastLinkShare = 0.5, kLeastMemoryShare = 0.5, kLeastDiskShare = 0.25;
/// Share of the median that firmware and kernels may take of equal memory.
constexpr double kSameMemoryShare = 0.05;
/// NCCL and shared buffers need some times this.
constexpr int64_t kLeastSharedBytesOfRank = int64_t{32} << 20;
constexpr int64_t kLeastDiskBytes = int64_t{1} << 30;
constexpr double kMostClockSeconds = 1;
/// With fewer rates, nobody knows which of two nodes is as it should be.
constexpr size_t kFewestRates = 3;
constexpr int64_t kLeastOpenFiles = 1024;

class HealthCheck {
 public:
  explicit HealthCheck(const Measurements& measured)
      : measured_(measured), nodes_(views_of(measured)) {}

  std::vector<Finding> findings() {
    for (const NodeView& node : nodes_) {
      look_at_gpus(node);
      look_at_files(node);
      look_at_cores(node);
      look_at_limits(node);
    }
    compare_memory();
    compare_sizes();
    compare_rates();
    compare_clocks();
    check_sums();
    compare_builds();
    return std::move(findings_);
  }

 private:
  /// Nodes with the same finding share it.
  void add(const NodeView& node, const std::string& found, const std::string& remedy,
           bool is_sick) {
    for (Finding& before : findings_)
      if (before.found == found && before.remedy == remedy) {
        if (before.nodes.back() != node.name()) before.nodes.push_back(node.name());
        return;
      }
    findings_.push_back({{node.name()}, found, remedy, is_sick});
  }
  void sick(const NodeView& node, const std::string& found, const std::string& remedy) {
    add(node, found, remedy, true);
  }
  void note(const NodeView& node, const std::string& found, const std::string& remedy) {
    add(node, found, remedy, false);
  }

  void look_at_gpus(const NodeView& node);
  void look_at_link(const NodeView& node, const RankFacts& rank);
  void look_at_files(const NodeView& node);
  void look_at_cores(const NodeView& node);
  void look_at_limits(const NodeView& node);
  void compare_memory();
  void compare_sizes();
  void compare_rates();
  size_t usual_clock() const;
  void compare_clocks();
  void check_sums();
  void compare_builds();
  using Found = std::function<std::string(double value, double median)>;
  void compare_low(const std::vector<double>& values, double share, const Found& found,
                   const std::string& remedy, size_t fewest = 1);
  void compare_equal(const std::string& what,
                     const std::function<std::string(const RankFacts&)>& value,
                     const std::string& remedy, bool is_sick);

  const Measurements& measured_;
  const std::vector<NodeView> nodes_;
  std::vector<Finding> findings_;
};

std::string known(int version, std::string (*text)(int)) {
  return version == 0 ? "" : text(version);
}

/// A driver that is missing or too old explains all other faults.
void HealthCheck::look_at_gpus(const NodeView& node) {
  if (!measured_.on_gpus) return;
  const RankFacts& first = node.first();
  const bool knows_driver = first.cuda_runtime > 0;
  if (knows_driver && first.cuda_driver == 0)
    return sick(node, "there is no CUDA driver", "ask the administrators for one (nvidia-smi)");
  if (knows_driver && first.cuda_driver / 1000 < first.cuda_runtime / 1000)
    return sick(node,
                "its driver knows CUDA " + cuda_text(first.cuda_driver) +
                    ", and the CUDA runtime that is loaded is " + cuda_text(first.cuda_runtime),
                "ask the administrators for a newer driver");
  for (const RankFacts* rank : node.ranks) {
    if (!rank->gpu_fault.empty())
      sick(node, rank->gpu_fault, "ask the administrators to look at its GPUs (nvidia-smi)");
    else if (is_gpu_taken(*rank))
      sick(node,
           "of the " + gib_text(rank->gpu_bytes) + " of GPU " + rank->gpu_id + " " +
               gib_text(rank->gpu_free_bytes) + " are free",
           "ask the administrators to end what another job left on it (nvidia-smi)");
    look_at_link(node, *rank);
  }
  if (first.nccl < first.built_nccl)
    note(node,
         "NCCL " + nccl_text(first.nccl) + " is loaded, and zea was built with " +
             nccl_text(first.built_nccl),
         "look for an older one in LD_LIBRARY_PATH");
}

/// A missing lane of two halves the rate.
void HealthCheck::look_at_link(const NodeView& node, const RankFacts& rank) {
  const PciLink& link = rank.gpu_link;
  if (link.share() == 1) return;
  const auto text = [](double speed, int lanes) {
    return decimal_text(speed) + " GT/s x " + std::to_string(lanes);
  };
  add(node,
      "the PCIe link of GPU " + rank.gpu_id + " runs at " + text(link.speed, link.lanes) +
          ", and it can run at " + text(link.most_speed, link.most_lanes),
      "ask the administrators to look at its slot (nvidia-smi -q -d PERFORMANCE, lspci -vv)",
      link.share() <= kLeastLinkShare);
}

void HealthCheck::look_at_files(const NodeView& node) {
  const RankFacts& first = node.first();
  const int64_t needed = kLeastSharedBytesOfRank * static_cast<int64_t>(node.ranks.size());
  if (first.shared_free_bytes >= 0 && first.shared_free_bytes < needed)
    sick(node,
         "of the " + gib_text(first.shared_bytes) + " of /dev/shm " +
             gib_text(first.shared_free_bytes) + " are free, and its " +
             std::to_string(node.ranks.size()) + " ranks need " + gib_text(needed),
         "remove what earlier jobs left there, or make it larger (containers: --shm-size)");
  if (!first.disk_fault.empty())
    sick(node, measured_.directory + " cannot be written: " + first.disk_fault,
         "look at its mount");
  else if (first.disk_free_bytes >= 0 && first.disk_free_bytes < kLeastDiskBytes)
    sick(node,
         gib_text(first.disk_free_bytes) + " are free for " + measured_.directory + ", less than " +
             gib_text(kLeastDiskBytes),
         "make room");
}

/// Ranks may share cores that are enough for all of them.
void HealthCheck::look_at_cores(const NodeView& node) {
  std::map<std::vector<int>, int64_t> threads_on;
  std::map<int, int> sets_with;  // of each core
  for (const RankFacts* rank : node.ranks)
    if (!rank->cores.empty()) threads_on[rank->cores] += rank->threads;
  for (const auto& [cores, threads] : threads_on)
    for (const int core : cores) ++sets_with[core];
  const bool overlap =
      std::ranges::any_of(sets_with, [](const auto& entry) { return entry.second > 1; });
  for (const auto& [cores, threads] : threads_on)
    if (threads > static_cast<int64_t>(cores.size()))
      note(node,
           "ranks with " + std::to_string(threads) + " threads share " +
               std::to_string(cores.size()) + " cores (the first is core " +
               std::to_string(cores.front()) + ")",
           "start fewer ranks, set run.threads lower, or bind them otherwise (--cpu-bind, "
           "--bind-to)");
  if (overlap)
    note(node, "ranks are bound to different sets of cores that have some in common",
         "bind them otherwise (--cpu-bind, --bind-to)");
}

void HealthCheck::look_at_limits(const NodeView& node) {
  const RankFacts& first = node.first();
  if (first.open_files >= 0 && first.open_files < kLeastOpenFiles)
    note(node, "a process may open " + std::to_string(first.open_files) + " files",
         "raise ulimit -n");
  if (first.locked_bytes >= 0 && (measured_.on_gpus || nodes_.size() > 1))
    note(node, "a process may lock " + gib_text(first.locked_bytes) + " of memory",
         "fast networks need ulimit -l unlimited");
}

/// Compares a value of each node with the median; -1: not measured. With fewer values than `fewest`
/// a low one is only a note.
void HealthCheck::compare_low(const std::vector<double>& values, double share, const Found& found,
                              const std::string& remedy, size_t fewest) {
  const double median = median_of(values);
  const auto measured = std::ranges::count_if(values, [](double value) { return value > 0; });
  const bool is_sick = static_cast<size_t>(measured) >= fewest;
  for (size_t node = 0; node < nodes_.size(); ++node)
    if (values[node] >= 0 && values[node] < share * median)
      add(nodes_[node], found(values[node], median), remedy, is_sick);
}

/// Nodes may have memory of different sizes: free memory is compared as a share of all.
void HealthCheck::compare_memory() {
  std::vector<double> sizes, shares;
  for (const NodeView& node : nodes_) {
    const auto all = static_cast<double>(node.first().memory_bytes);
    const auto free = static_cast<double>(node.first().memory_free_bytes);
    sizes.push_back(all);
    shares.push_back(all > 0 && free >= 0 ? free / all : -1);
  }
  const double usual_size = median_of(sizes), usual_share = median_of(shares);
  const auto percent = [](double share) { return std::to_string(std::lround(100 * share)) + " %"; };
  for (size_t node = 0; node < nodes_.size(); ++node) {
    const RankFacts& facts = nodes_[node].first();
    if (shares[node] >= 0 && shares[node] < kLeastMemoryShare * usual_share)
      sick(nodes_[node],
           "of its " + gib_text(facts.memory_bytes) + " of memory " +
               gib_text(facts.memory_free_bytes) + " are free (" + percent(shares[node]) +
               "), and the median of the nodes is " + percent(usual_share),
           "ask the administrators to end what another job left there");
    if (sizes[node] > 0 && std::abs(sizes[node] - usual_size) > kSameMemoryShare * usual_size)
      note(nodes_[node],
           "its memory is " + gib_text(facts.memory_bytes) + ", and the median of the nodes is " +
               gib_text(static_cast<int64_t>(usual_size)),
           "ask for nodes of one kind (--constraint, --mem) if one has too little");
  }
}

void HealthCheck::compare_sizes() {
  if (!measured_.on_gpus) return;
  std::vector<double> visible;
  for (const NodeView& node : nodes_) {
    int most = 0;
    for (const RankFacts* rank : node.ranks) most = std::max(most, rank->visible_gpus);
    visible.push_back(most);
  }
  constexpr double kAll = 1;
  const auto found = [](double count, double median) {
    return "it shows a rank " + std::to_string(std::lround(count)) +
           " GPUs, the median of the nodes " + std::to_string(std::lround(median));
  };
  compare_low(visible, kAll, found, "ask the administrators to look at its GPUs (nvidia-smi)");
}

void HealthCheck::compare_rates() {
  const auto compare = [this](std::vector<double> rates, double share, const std::string& what,
                              const std::string& look_at) {
    for (double& rate : rates)
      if (rate <= 0) rate = -1;
    const auto found = [&](double rate, double median) {
      return what + rate_text(rate) + ", and the median of the nodes is " + rate_text(median);
    };
    compare_low(rates, share, found, "ask the administrators to look at " + look_at, kFewestRates);
  };
  compare(rates_inside(measured_), kLeastLinkShare, "its ranks sum at ",
          measured_.links_on_gpus ? "its GPUs and the links between them (nvidia-smi topo -m, "
                                    "nvidia-smi nvlink -s)"
                                  : "what else runs on it, and its memory");
  compare(rates_across(measured_), kLeastLinkShare, "with the better of its neighbours it sums at ",
          "its network (ibstat, ethtool)");
  std::vector<double> disks;
  for (const NodeView& node : nodes_) disks.push_back(node.first().disk_rate);
  compare(disks, kLeastDiskShare, "it writes " + measured_.directory + " at ", "its mount");
}

/// Clocks are measured against that of the first node, which is the reference, unless most others
/// show that it is the one which is off.
size_t HealthCheck::usual_clock() const {
  const std::vector<NodeClock>& clocks = measured_.clocks;
  std::vector<size_t> order(clocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t node) { return clocks[node].ahead_seconds; });
  if (order.size() < 3) return 0;
  const NodeClock& median = clocks[order[order.size() / 2]];
  const bool is_first_off =
      std::abs(median.ahead_seconds) - median.bound_seconds > kMostClockSeconds;
  return is_first_off ? order[order.size() / 2] : 0;
}

void HealthCheck::compare_clocks() {
  const size_t usual = measured_.clocks.empty() ? 0 : usual_clock();
  for (size_t node = 0; node < measured_.clocks.size(); ++node) {
    const NodeClock &clock = measured_.clocks[node], &other = measured_.clocks[usual];
    const double ahead = clock.ahead_seconds - other.ahead_seconds;
    const double bound = clock.bound_seconds + other.bound_seconds;
    if (std::abs(ahead) - bound <= kMostClockSeconds) continue;
    sick(nodes_[node],
         "its clock is " + decimal_text(std::abs(ahead)) + " s " +
             (ahead > 0 ? "ahead of" : "behind") + " that of node " + nodes_[usual].name() +
             " (known to " + decimal_text(bound) + " s)",
         "ask the administrators to look at its time service (chronyc tracking)");
  }
}

/// The smallest groups with a wrong sum tell which node is to blame.
void HealthCheck::check_sums() {
  const char* remedy = "ask the administrators to test its memory, GPUs and network";
  bool is_known = false;
  for (const LinkRate& link : measured_.inside)
    if (!link.is_right) {
      sick(nodes_[link.nodes.front()], "an all-reduce among its ranks gave a wrong sum", remedy);
      is_known = true;
    }
  if (is_known) return;
  std::vector<int> wrong(nodes_.size()), pairs(nodes_.size());
  for (const LinkRate& pair : measured_.pairs)
    for (const int node : pair.nodes) {
      ++pairs[node];
      if (!pair.is_right) ++wrong[node];
    }
  for (size_t node = 0; node < nodes_.size(); ++node)
    if (wrong[node] > 0 && wrong[node] == pairs[node]) {
      sick(nodes_[node], "every all-reduce with a neighbour gave a wrong sum", remedy);
      is_known = true;
    }
  if (!is_known && !measured_.everyone.is_right)
    findings_.push_back({{},
                         "an all-reduce of all ranks gave a wrong sum, and none of fewer nodes did",
                         "try again, and with fewer nodes, until one is found"});
}

void HealthCheck::compare_equal(const std::string& what,
                                const std::function<std::string(const RankFacts&)>& value,
                                const std::string& remedy, bool is_sick) {
  std::map<std::string, std::vector<const NodeView*>> nodes_with;
  for (const NodeView& node : nodes_)
    if (const std::string found = value(node.first()); !found.empty())  // it is known
      nodes_with[found].push_back(&node);
  const auto fewer = [](const auto& one, const auto& other) {
    return one.second.size() < other.second.size();
  };
  const auto most = std::ranges::max_element(nodes_with, fewer);
  for (const auto& [found, nodes] : nodes_with)
    for (const NodeView* node : nodes)
      if (found != most->first)
        add(*node,
            what + " is " + found + ", on node " + most->second.front()->name() +
                (most->second.size() > nodes.size() ? " and most others it is " : " it is ") +
                most->first,
            remedy, is_sick);
}

void HealthCheck::compare_builds() {
  const char* one_build = "start the same program on all nodes (is its folder the same there?)";
  const auto field = [](std::string RankFacts::*member) {
    return [member](const RankFacts& facts) { return facts.*member; };
  };
  compare_equal(
      "zea", [](const RankFacts& facts) { return facts.zea + " (build " + facts.build + ")"; },
      one_build, true);
  compare_equal("libtorch", field(&RankFacts::libtorch), one_build, true);
  compare_equal("the MPI library", field(&RankFacts::mpi), one_build, true);
  const char* same_kind = "ask for nodes of one kind (--constraint) if one is slower";
  compare_equal("the processor", field(&RankFacts::processor), same_kind, false);
  compare_equal("the kernel", field(&RankFacts::kernel), same_kind, false);
  if (!measured_.on_gpus) return;
  compare_equal("the GPU", field(&RankFacts::gpu_name), same_kind, false);
  compare_equal(
      "CUDA's driver", [](const RankFacts& facts) { return known(facts.cuda_driver, cuda_text); },
      same_kind, false);
  compare_equal(
      "NCCL", [](const RankFacts& facts) { return known(facts.nccl, nccl_text); }, one_build, true);
}

}  // namespace

std::vector<Finding> check_health(const Measurements& measured) {
  return HealthCheck(measured).findings();
}

bool has_sick(const std::vector<Finding>& findings) {
  return std::ranges::any_of(findings, [](const Finding& finding) { return finding.is_sick; });
}

}  // namespace zea
