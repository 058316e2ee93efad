// SPDX-License-Identifier: Apache-2.0
#include "zea/comm/visible_gpus.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "zea/comm/gathered_texts.hpp"
#include "zea/comm/world.hpp"

namespace zea {
namespace {

std::string text_of(const std::vector<VisibleGpu>& gpus) {
  std::string text;
  for (const VisibleGpu& gpu : gpus)
    text += gpu.id + "\t" + gpu.name + "\t" + (gpu.is_near ? "near" : "far") + "\n";
  return text;
}

std::vector<VisibleGpu> gpus_of_text(const std::string& text) {
  std::vector<VisibleGpu> gpus;
  std::istringstream lines(text);
  for (std::string id, name, distance; std::getline(lines, id, '\t') &&
                                       std::getline(lines, name, '\t') &&
                                       std::getline(lines, distance);)
    gpus.push_back({id, name, distance == "near"});
  return gpus;
}

/// Finds every rank a GPU by moving others to another one of theirs where that makes room.
class Dealer {
 public:
  explicit Dealer(const std::vector<std::vector<VisibleGpu>>& seen)
      : seen_(seen), taken_(seen.size(), -1) {}

  void deal(bool only_near) {
    only_near_ = only_near;
    for (size_t rank = 0; rank < seen_.size(); ++rank) {
      visited_.clear();
      if (taken_[rank] < 0) find(static_cast<int>(rank));
    }
  }
  const std::vector<int>& taken() const { return taken_; }

 private:
  bool suits(const VisibleGpu& gpu) const { return gpu.is_near || !only_near_; }

  bool find(int rank) {
    const std::vector<VisibleGpu>& gpus = seen_[rank];
    for (size_t index = 0; index < gpus.size(); ++index)
      if (suits(gpus[index]) && !owner_.contains(gpus[index].id)) return take(rank, index);
    for (size_t index = 0; index < gpus.size(); ++index)
      if (suits(gpus[index]) && visited_.insert(gpus[index].id).second &&
          find(owner_.at(gpus[index].id)))
        return take(rank, index);
    return false;
  }

  bool take(int rank, size_t index) {
    owner_[seen_[rank][index].id] = rank;
    taken_[rank] = static_cast<int>(index);
    return true;
  }

  const std::vector<std::vector<VisibleGpu>>& seen_;
  std::vector<int> taken_;
  std::map<std::string, int> owner_;
  std::set<std::string> visited_;
  bool only_near_ = false;
};

}  // namespace

std::vector<std::vector<VisibleGpu>> gpus_on_node(const World& world,
                                                  const std::vector<VisibleGpu>& own) {
  const std::unique_ptr<Collectives> all = make_mpi_collectives(world.communicator());
  const std::vector<std::string> texts = all_gather_texts(*all, text_of(own));
  const std::vector<int>& nodes = world.node_of_rank();
  std::vector<std::vector<VisibleGpu>> seen;
  for (size_t rank = 0; rank < texts.size(); ++rank)
    if (nodes[rank] == nodes[world.rank()]) seen.push_back(gpus_of_text(texts[rank]));
  return seen;
}

std::vector<int> deal_gpus(const std::vector<std::vector<VisibleGpu>>& seen_by_rank,
                           int64_t ranks_per_gpu) {
  std::vector<std::vector<VisibleGpu>> shares(seen_by_rank.size());
  for (size_t rank = 0; rank < seen_by_rank.size(); ++rank)
    for (int64_t share = 0; share < ranks_per_gpu; ++share)
      for (VisibleGpu gpu : seen_by_rank[rank]) {
        gpu.id += " " + std::to_string(share);
        shares[rank].push_back(gpu);
      }
  Dealer dealer(shares);
  dealer.deal(true);
  dealer.deal(false);
  std::vector<int> taken = dealer.taken();
  for (size_t rank = 0; rank < taken.size(); ++rank)
    if (taken[rank] >= 0) taken[rank] %= static_cast<int>(seen_by_rank[rank].size());
  return taken;
}

}  // namespace zea
