// SPDX-License-Identifier: Apache-2.0
// How many rows of a microbatch each rank works on: what decides how much ranks that share it send
// each other.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "layout/sample_index.hpp"
#include "layout/scan_plan.hpp"
#include "layout/token_layout.hpp"
#include "spec/model_spec.hpp"

namespace zea {

/// Rows that the tp ranks of one cp rank hold.
struct TpRows {
  std::vector<int64_t> shares;  ///< of each tp rank, where rows are dealt to them; else one entry
  bool dealt = false;

  int64_t all() const;
};

/// The rows of a module's tokens on the tp ranks of this rank, and its part of their attention.
struct ModuleRows {
  TpRows held;
  TpRows read;  ///< of these, what the module's last unit reads: targets, or features before they
                ///< are resampled
  ExpertRows experts;                  ///< those of replicas are for the caller to fill in
  std::optional<ContextPlan> context;  ///< of the widest windows: all exchange the same rows
  std::optional<ScanPlan> scan;        ///< if cp ranks pass states
  /// By window (AttentionSpec): pairs of a query and a key that it sees, on this cp rank with its
  /// tp ranks. Cp ranks that exchange heads have equal shares of the pairs of their inner group.
  std::map<int64_t, double> pairs;
};

/// An encoder's part.
struct EncoderRows {
  ModuleRows items;
  /// Features that this rank sends to each rank of its replica, and gradients of features.
  std::vector<int64_t> features, feature_gradients;
};

struct MicrobatchRows {
  ModuleRows text;
  std::map<std::string, EncoderRows> encoders;  ///< those that have items

  /// Returns the rows of a module; none where an encoder has no items.
  const ModuleRows& of(const std::string& module) const;
};

/// The tokens of a microbatch, of all samples one after the other.
struct MicrobatchTokens {
  std::vector<MaskWord> words;  ///< of each token
  std::vector<bool> is_target;  ///< whether the token after it is predicted
  ItemList items;
};

/// Adds the tokens of one sample, which becomes the microbatch's sample number `number`.
void append_sample(MicrobatchTokens& tokens, const MicrobatchTokens& sample, int64_t number);

/// The part of rank `layout.rank`. `bidirectional_images` as model.llm.image_attention says.
MicrobatchRows rows_of_microbatch(const MicrobatchTokens& tokens, const ModelSpec& model,
                                  const ReplicaLayout& layout,
                                  BidirectionalLayers bidirectional_images);

}  // namespace zea
