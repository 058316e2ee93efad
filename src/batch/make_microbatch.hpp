// SPDX-License-Identifier: Apache-2.0
// Microbatches from loaded samples: filled on the host, then moved to the device by one copy. If
// several ranks share a microbatch, each makes its part.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "data/dataset.hpp"
#include "data/loader.hpp"
#include "layout/microbatch_rows.hpp"
#include "layout/token_layout.hpp"
#include "model/microbatch.hpp"
#include "spec/model_spec.hpp"

namespace zea {

// A microbatch on its way to the device: made on the host, all that units read of it in one block
// of pinned memory, so that one copy moves it, for which the host does not wait.

struct PackedMicrobatch {
  Microbatch made;   ///< its tensors lie in the block, where that is there
  at::Tensor block;  ///< bytes in pinned memory; undefined where units read `made` as it is
};

/// Packs a microbatch of the host for `device`, without using the device. Any thread may call it.
PackedMicrobatch pack(Microbatch made, at::Device device);

/// Starts the copy to the device, which ends before later work there begins: in the stream
/// `copies`, concurrently with earlier work, or in the current stream.
Microbatch move_to(at::Device device, PackedMicrobatch packed,
                   std::optional<c10::Stream> copies = {});

/// A microbatch like one on a device, in a block that is its own: the blocks of later ones that are
/// laid out alike may be copied into it.
Microbatch with_own_block(Microbatch on_device);

/// Returns whether units compute the same with both, on a device, and their blocks have the same
/// tensors at the same offsets.
bool is_laid_out_alike(Microbatch a, Microbatch b);

struct MicrobatchOptions {
  at::ScalarType dtype = at::kFloat;  ///< the language model computes in
  /// Each encoder computes in; those beyond in that of the language model.
  std::vector<at::ScalarType> encoder_dtypes = {};
  at::Device device = at::kCPU;
  /// The blocks of the language model whose attention is bidirectional inside images.
  BidirectionalLayers bidirectional_images = BidirectionalLayers::None;
  ReplicaLayout replica = {};                ///< the ranks that share the microbatch
  uint64_t seed = 0;                         ///< run.seed
  std::optional<int64_t> trained_step = {};  ///< for which dropout draws; none: it drops nothing
  /// Tokens of each sample's prompt, behind which the sample's tokens were generated; empty: none
  /// were. As in transformers, generated tokens follow the largest rotary position of the prompt: a
  /// video's last moment may have a larger one than the text after it.
  std::vector<int64_t> prompt_lengths = {};
};

/// Makes this rank's part. Throws DataError if the placeholders of a sample do not match its items,
/// or if a token id or a position exceeds the model's.
Microbatch make_microbatch(const LoadedMicrobatch& loaded, const ModelSpec& model,
                           const MicrobatchOptions& options);

/// The same, not yet on the device: any thread may make it. On the host it may refer to `loaded`.
PackedMicrobatch make_packed_microbatch(const LoadedMicrobatch& loaded, const ModelSpec& model,
                                        const MicrobatchOptions& options);

// An encoder's outputs for the items of a microbatch, from the ranks that hold parts of them to one
// rank.

/// Ranks that encode the items of a microbatch together, at one stage.
struct GatheringRanks {
  std::vector<int> in_replica;  ///< their places in the replica
  int rank = 0;                 ///< which of these this one is
  int taker = 0;                ///< which of these gets all rows
};

/// The exchange between `ranks` after which the taker has the rows of all `items` of an encoder,
/// one item after the other.
RowTransfer gather_rows(const ItemList& items, const ModelSpec& model, int encoder,
                        const ReplicaLayout& replica, const GatheringRanks& ranks,
                        at::Device device);

// Plans read these of samples: whose tokens they are, and which are predicted.

/// Samples one after the other; their items' contents are not needed. Throws as make_microbatch()
/// does.
MicrobatchTokens tokens_of(const std::vector<Sample>& samples, const ModelSpec& model);

}  // namespace zea
