// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "io/manifest.hpp"

namespace zea {
namespace {

class JoinedDataset : public Dataset {
 public:
  JoinedDataset(std::vector<std::unique_ptr<Dataset>> sets, std::string folder)
      : sets_(std::move(sets)), folder_(std::move(folder)) {
    for (const auto& set : sets_) {
      firsts_.push_back(static_cast<int64_t>(index_.size()));
      index_.append(set->index());
      max_token_ = std::max(max_token_, set->max_token());
    }
  }

  std::string describe() const override {
    if (!folder_.empty()) return folder_;
    return sets_[0]->describe() + " and " + std::to_string(sets_.size() - 1) + " more";
  }
  const SampleTable& index() const override { return index_; }
  std::vector<const Dataset*> sets() const override {
    if (!folder_.empty()) return Dataset::sets();
    std::vector<const Dataset*> sets;
    for (const auto& set : sets_) sets.push_back(set.get());
    return sets;
  }
  std::string hash() const override {
    std::string all;
    for (const auto& set : sets_) all += set->hash();
    return hash_bytes(all.data(), std::ssize(all));
  }
  std::string note() const override { return first_of(&Dataset::note); }
  std::string check_files() const override { return first_of(&Dataset::check_files); }
  Sample read(int64_t id) const override {
    const auto [set, number] = place_of(id);
    Sample sample = set->read(number);
    sample.id = id;
    return sample;
  }
  std::vector<int32_t> tokens(int64_t id) const override {
    const auto [set, number] = place_of(id);
    return set->tokens(number);
  }
  std::string source(int64_t id) const override {
    const auto [set, number] = place_of(id);
    return set->source(number);
  }
  const std::vector<ItemKind>& kinds() const override { return sets_[0]->kinds(); }
  int32_t max_token() const override { return max_token_; }
  const DatasetTexts& texts() const override { return sets_[0]->texts(); }

 private:
  struct Place {
    const Dataset* set;
    int64_t number;
  };

  Place place_of(int64_t id) const {
    ZEA_ASSERT(id >= 0 && id < static_cast<int64_t>(index_.size()));
    const auto set =
        static_cast<size_t>(std::ranges::upper_bound(firsts_, id) - firsts_.begin()) - 1;
    return {sets_[set].get(), id - firsts_[set]};
  }

  /// The note of one of the sets.
  std::string first_of(std::string (Dataset::*tell)() const) const {
    for (const auto& set : sets_)
      if (std::string told = ((*set).*tell)(); !told.empty()) return told;
    return "";
  }

  std::vector<std::unique_ptr<Dataset>> sets_;
  std::string folder_;  ///< empty: they are sets of their own
  std::vector<int64_t> firsts_;
  SampleTable index_;
  int32_t max_token_ = -1;
};

}  // namespace

std::unique_ptr<Dataset> join_datasets(std::vector<std::unique_ptr<Dataset>> sets,
                                       const std::string& folder) {
  ZEA_ASSERT(!sets.empty());
  if (sets.size() == 1) return std::move(sets[0]);
  return std::make_unique<JoinedDataset>(std::move(sets), folder);
}

}  // namespace zea
