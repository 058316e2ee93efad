// SPDX-License-Identifier: Apache-2.0
// The data of a microbatch that units read besides their inputs: one const struct per microbatch,
// which batch/ makes from the loaded samples. Tokens of all samples lie one after the other; there
// is no batch dim. If several ranks share a microbatch, it holds this rank's part: "cp tokens" are
// the tokens of its cp share, "rows here" the rows that it holds between layers (a slice of the cp
// tokens under sequence parallel, else all of them).
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "layout/sample_index.hpp"
#include "layout/visibility.hpp"
#include "model/layers.hpp"

namespace zea {

// Keys, values and states that decoding goes on from, so that each token goes through the decoder
// once.

/// The keys and values of each decoder block, for the tokens and heads that this rank has; the
/// inputs and states of one without attention.
class KvCache {
 public:
  explicit KvCache(int64_t rows) : rows_(rows) {}

  /// Writes kv (tokens, 2 kv_heads, head_dim), keys first, into `rows` (int64) of the entry
  /// `block`: a block's name, or the name of the unit whose keys several blocks read. Returns the
  /// entry (rows of the cache, 2 kv_heads, head_dim), zero where nothing was written.
  const at::Tensor& write(const std::string& block, const at::Tensor& rows, const at::Tensor& kv);
  /// Returns what a block whose mixer carries a state has of the samples.
  DeltaMemory& memory(const std::string& block) { return memories_[block]; }
  int64_t bytes() const;  ///< of keys and values
  int64_t state_bytes() const;

 private:
  int64_t rows_;
  std::map<std::string, at::Tensor> blocks_;
  std::map<std::string, DeltaMemory> memories_;
};

/// The cache into which the decoder blocks of a microbatch write.
struct CachedTokens {
  std::shared_ptr<KvCache> cache;
  at::Tensor rows;  ///< (cp tokens) int64: of the cache, where their keys are written
  /// A prompt's tokens attend as in training. Later tokens attend to the cache, by the mask of
  /// their TokenAttention, whose queries are those of all cp ranks and whose keys are rows of this
  /// rank's cache.
  bool is_prompt = true;
  std::vector<int64_t> cp_tokens;  ///< tokens of each cp rank, after the prompt
  at::Tensor samples;              ///< int64, of the tokens of all cp ranks, after the prompt
};

/// Rows that ranks of a replica exchange, as this rank's indices (all_to_all).
struct RowTransfer {
  at::Tensor sent_rows;  ///< int64, of the rows held, in order of the rank that takes them
  std::vector<int64_t> sent_counts;
  /// int64, of the rows needed, in order of the rank that gave them; what several gave is added up
  at::Tensor received_rows;
  std::vector<int64_t> received_counts;
  int64_t needed = 0;
};

/// A 64-bit key for each row, from its step, sample, item and token, from which dropout draws its
/// mask. No keys: nothing is dropped.
struct RowKeys {
  at::Tensor here;   ///< (rows here) int64
  at::Tensor of_cp;  ///< (cp tokens, or their features)
};

/// An encoder's part in a microbatch.
struct EncoderPart {
  int64_t local_items = 0;    ///< encoded by this rank, with its tp and cp ranks
  at::Tensor positions;       ///< (rows here) int64: of each row's token in its item or tile
  at::Tensor position_table;  ///< (positions, hidden), compute type: of encoders without parameters
                              ///< for them
  /// For interpolated tables of positions: (rows here, n) the table's rows that a row lies between,
  /// int64, and their weights, compute type.
  at::Tensor corners, corner_shares;
  std::vector<TokenAttention> attention;  ///< for each of BlockSpec::mixers
  RowsPerTpRank shares;                   ///< shares of the cp tokens
  at::Tensor feature_rows;  ///< int64: rows here that become features, in order of these; none:
                            ///< all, as they stand
  /// For resampled image features: (features made here, 4) the rows behind the projector that each
  /// feature is interpolated from, int64, and their weights, compute type. Rows on other ranks
  /// count there: parts of a feature are summed by the rank that takes it.
  at::Tensor feature_corners, feature_shares_of;
  std::vector<FrameRun> frames;   ///< runs of local features that are means over frames
  at::Tensor row_ends;            ///< int64: of the features made here those that end a row
  RowsPerTpRank feature_shares;   ///< shares of the cp tokens' features
  RowKeys keys, feature_keys;     ///< keys of tokens, and of the projector's rows
  at::Tensor placeholder_rows;    ///< int64: rows here of the text that take features, ascending
  RowTransfer features;           ///< the exchange to the placeholders' ranks
  RowTransfer feature_gradients;  ///< the exchange of gradients, back

  at::Tensor patches;     ///< images: (patches here, values of a patch), compute type
  at::Tensor patch_rows;  ///< int64: the rows here that they become; others are learned

  /// Clips: (columns here, mel_bins * 3) columns with neighbors, compute type; with a subsampling
  /// (columns * bins of its first convolution, 9).
  at::Tensor columns;
  /// For each further convolution (rows, 3) int64: the input columns of each row, -1: padding; with
  /// a subsampling (columns * bins, 9): the rows of the previous convolution.
  std::vector<at::Tensor> windows;

  /// Cached outputs that are read with the samples in place of the items: (rows here, hidden) of
  /// each unit that projectors read (ModelSpec::read_by_projectors), compute type.
  std::vector<at::Tensor> states;

  /// Rows that this rank holds between layers.
  int64_t local_rows() const { return positions.defined() ? positions.numel() : 0; }
};

/// For multi-token prediction: the tokens after the next ones that are targets, as are the next
/// ones of the tokens that Microbatch::target_rows has.
struct MtpTargets {
  at::Tensor rows;       ///< int64: rows here
  at::Tensor ids;        ///< int64: of all cp tokens
  RowsPerTpRank shares;  ///< of these
};

struct Microbatch {
  int64_t tokens = 0;   ///< in the whole microbatch
  ItemList items;       ///< all of the microbatch's
  int64_t targets = 0;  ///< cp tokens with a label (bad items' samples have none)
  bool counts = false;  ///< has the head, and is the first of the tp ranks, whose losses and
                        ///< targets are equal

  std::vector<MaskWord> words;  ///< (tokens), of the whole microbatch
  at::Tensor token_ids;         ///< (cp tokens) int64
  at::Tensor positions;         ///< (rows here) int64: of models that learn positions
  std::vector<TokenAttention> text_attention;  ///< for each of BlockSpec::mixers
  TokenScan text_scan;                         ///< of mixers that carry a state
  RowsPerTpRank text_shares;                   ///< of the cp tokens
  ExpertRows expert_rows;                      ///< of the ranks that share experts with this one
  RowKeys text_keys;
  at::Tensor target_rows;        ///< int64: rows here whose next token is predicted
  at::Tensor target_ids;         ///< (targets) int64: that next token, of all cp tokens
  RowsPerTpRank target_shares;   ///< shares of the targets
  MtpTargets further;            ///< undefined: the model does not predict them
  at::Tensor next_rows;          ///< likewise; (rows here) int64: the cp token after each row's, or
                                 ///< its own where its sample ends
  at::Tensor last_rows;          ///< int64: rows here that end a sample
  RowsPerTpRank last_shares;     ///< shares of the last rows among the cp tokens
  std::vector<int64_t> samples;  ///< samples that end in the cp tokens

  int64_t text_rows = 0;  ///< rows here of the text

  std::optional<CachedTokens> cached;  ///< in decoding

  /// The block that holds all tensors on a device; undefined on the host.
  at::Tensor block;

  std::vector<EncoderPart> encoders;  ///< as in ModelSpec::encoders
  /// The part of a unit's module, which is an encoder.
  const EncoderPart& encoder(const UnitSpec& unit) const { return encoders.at(unit.encoder); }
  /// How the tokens of a block's module attend in its way.
  const TokenAttention& attention(const UnitSpec& block) const {
    return (block.encoder < 0 ? text_attention : encoder(block).attention).at(block.mixer);
  }
  /// Returns the rows of a unit's output that this rank holds: its part of the sequence, or for a
  /// unit of kind Keys, whose heads tp shards, the rows of all tp ranks.
  int64_t local_rows(const UnitSpec& unit) const {
    if (unit.kind == UnitKind::Keys) return token_ids.numel();
    return unit.encoder < 0 ? text_rows : encoder(unit).local_rows();
  }
};

}  // namespace zea
