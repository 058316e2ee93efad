// SPDX-License-Identifier: Apache-2.0
// The parts that a microbatch is made of. Private to model/.
#pragma once

#include <vector>

#include "zea/model/microbatch.hpp"

namespace zea::detail {

using Ids = std::vector<int64_t>;

/// All samples of a microbatch, one after the other, on the host.
struct HostTokens {
  Ids ids;
  Ids targets;       ///< of each token: the id to predict after it, or -1
  Ids placeholders;  ///< tokens that take features, ascending
  Ids lasts;         ///< the last token of each sample, ascending
  std::vector<MaskWord> words;
};

/// One batched call for segments of similar length.
std::vector<AttentionBatch> make_attention_batches(const std::vector<Segment>& segments,
                                                   at::Device device);

/// The language model's tokens and attention on this rank.
void fill_text(Microbatch& out, const HostTokens& host, const ModelSpec& model,
               const MicrobatchOptions& options);
/// The vision encoder's.
void fill_images(Microbatch& out, const LoadedMicrobatch& loaded, const VisionConfig& vision,
                 const MicrobatchOptions& options);

/// The features that each rank of the replica makes, and those whose placeholders it holds.
std::vector<RowRuns> made_features(int64_t items, const VisionConfig& vision,
                                   const ReplicaLayout& replica);
std::vector<RowRuns> taken_features(const HostTokens& host, const MicrobatchOptions& options);

}  // namespace zea::detail
