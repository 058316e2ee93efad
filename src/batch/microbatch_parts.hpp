// SPDX-License-Identifier: Apache-2.0
// The parts that a microbatch is made of. Private to batch/.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "zea/batch/make_microbatch.hpp"

namespace zea::detail {

using Ids = std::vector<int64_t>;

/// All samples of a microbatch, one after the other, on the host.
struct HostTokens {
  Ids ids;
  Ids targets;                              ///< of each token: the id to predict after it, or -1
  std::map<std::string, Ids> placeholders;  ///< tokens that take an encoder's features, ascending
  Ids lasts;                                ///< the last token of each sample, ascending
  std::vector<MaskWord> words;
};

/// One batched call for segments of similar length.
std::vector<AttentionBatch> make_attention_batches(const std::vector<Segment>& segments,
                                                   at::Device device);

/// The language model's tokens and attention on this rank.
void fill_text(Microbatch& out, const HostTokens& host, const ModelSpec& model,
               const MicrobatchOptions& options);
/// What the vision encoder, and the audio encoder, are given. `items`, by number in the microbatch,
/// are those that this rank encodes, of which it holds the tokens `here`.
void fill_images(Microbatch& out, const LoadedMicrobatch& loaded, const VisionConfig& vision,
                 const Ids& items, const RowRuns& here, const MicrobatchOptions& options);
void fill_clips(Microbatch& out, const LoadedMicrobatch& loaded, const AudioConfig& audio,
                const Ids& items, const RowRuns& here, const MicrobatchOptions& options);

/// Which items of an encoder this rank encodes, its tokens and their attention, and what becomes of
/// its features; then the above.
void fill_encoder(Microbatch& out, const LoadedMicrobatch& loaded, const HostTokens& host,
                  const ModelSpec& model, const std::string& encoder,
                  const MicrobatchOptions& options);

/// The features of an encoder that each rank of the replica takes.
std::vector<RowRuns> taken_features(const HostTokens& host, const std::string& encoder,
                                    const MicrobatchOptions& options);

}  // namespace zea::detail
