// SPDX-License-Identifier: Apache-2.0
// The memory of units in microbatches of one size, for estimates of many plans of one model.
#pragma once

#include <map>
#include <vector>

#include "estimate/unit_memory.hpp"
#include "schedule/plan.hpp"

namespace zea {

/// Returns a class for each unit: units of one class have the same operations on parameters of the
/// same shapes, so that they take the same time and memory for equal rows.
std::vector<int> unit_classes(const ModelSpec& model);

class UnitMemoryCache {
 public:
  /// `microbatch`: the sizes of every microbatch. All plans have the model, types and data options
  /// of `plan`, which need not outlive this.
  UnitMemoryCache(const Plan& plan, MicrobatchSizes microbatch)
      : classes_(unit_classes(plan.model)), microbatch_(std::move(microbatch)) {}

  const MicrobatchSizes& microbatch() const { return microbatch_; }

  /// Returns the result of `declare` for a unit, which is called once for units that are alike, on
  /// ranks that share them alike.
  template <class Declare>
  const UnitMemory& of(size_t unit, const UnitShare& share, int encoder_dp, const UnitCall& call,
                       const Declare& declare) {
    std::vector<int64_t> key{classes_[unit],
                             share.tp,
                             share.sequence_parallel,
                             share.ep,
                             share.ep_cp,
                             share.ep_tp,
                             share.ep_exchanges,
                             share.cp,
                             share.cp_inner,
                             share.gathers_kv,
                             share.passes_states,
                             share.scans_prompts,
                             share.owns_runs,
                             share.tp_chunks.most,
                             encoder_dp,
                             call.keeps_graph,
                             call.is_selective};
    for (const std::vector<bool>* flags : {&call.inputs_need_gradient, &call.inputs_present})
      for (const bool flag : *flags) key.push_back(flag);
    const auto found = known_.find(key);
    return found != known_.end() ? found->second : known_[std::move(key)] = declare();
  }

 private:
  std::vector<int> classes_;
  MicrobatchSizes microbatch_;
  std::map<std::vector<int64_t>, UnitMemory> known_;
};

}  // namespace zea
