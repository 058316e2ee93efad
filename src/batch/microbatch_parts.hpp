// SPDX-License-Identifier: Apache-2.0
// The steps that fill a microbatch, all of them on the host.
#pragma once

#include <ATen/ATen.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "batch/make_microbatch.hpp"
#include "layout/item_row.hpp"
#include "layout/visibility.hpp"

namespace zea::detail {

using Ids = std::vector<int64_t>;

/// All samples of a microbatch, one after the other, on the host.
struct HostTokens {
  Ids ids;
  Ids targets;                    ///< the id to predict after each token, or -1
  std::vector<Ids> placeholders;  ///< tokens that take each encoder's features, ascending
  Ids lasts;                      ///< the last token of each sample, ascending
  std::vector<MaskWord> words;
  std::vector<uint64_t> sample_keys;             ///< keys for dropout; empty: nothing is dropped
  std::vector<std::vector<uint64_t>> item_keys;  ///< by encoder
};

/// Positions of each token of a microbatch.
struct TokenPlaces {
  Ids places;                            ///< positions in their samples
  std::vector<TokenPosition> positions;  ///< rotary positions
  Ids lengths;                           ///< lengths of their samples
};

/// Returns the positions of samples that begin with their first token.
TokenPlaces places_of(const std::vector<MaskWord>& words, const ItemList& items,
                      const ModelSpec& model);

/// Gives the tokens behind each prompt the rotary positions of generated ones
/// (MicrobatchOptions::prompt_lengths).
void continue_prompts(const std::vector<MaskWord>& words, const std::vector<int64_t>& prompts,
                      TokenPlaces& of);

/// make_microbatch, on the host whatever the device of `options` is.
Microbatch make_on_host(const LoadedMicrobatch& loaded, const ModelSpec& model,
                        const MicrobatchOptions& options);

/// Returns the layout of the language model's tokens.
TokenLayout text_layout(const std::vector<MaskWord>& words, const ModelSpec& model,
                        const MicrobatchOptions& options);

/// The rows that a projector makes of the tokens `here`, in its order: the item's index in `row`
/// and the row's place in the item (ItemShape::source_of).
using ProjectedPlaces = std::set<std::pair<size_t, int64_t>>;
ProjectedPlaces projected_places(const TokenRuns& here, const ItemRow& row);

/// Draws the keys of samples and items for dropout; the functions below make keys of rows from
/// them.
void draw_keys(HostTokens& host, const LoadedMicrobatch& loaded, const MicrobatchOptions& options);
void fill_text_keys(Microbatch& out, const HostTokens& host, const TokenPlaces& places,
                    const TokenLayout& layout, const ModelSpec& model,
                    const Coordinate& coordinate);
/// `items`: by number among the encoder's those that `row` has.
void fill_item_keys(EncoderPart& part, const HostTokens& host, const ItemRow& row, const Ids& items,
                    const ModelSpec& model, int encoder, const MicrobatchOptions& options);

/// The language model's tokens and attention on this rank.
void fill_text(Microbatch& out, const HostTokens& host, const ModelSpec& model,
               const MicrobatchOptions& options);
/// Fills all but the attention, for tokens at `places`.
void fill_text_at(Microbatch& out, const HostTokens& host, const TokenPlaces& places,
                  const TokenLayout& layout, const ModelSpec& model,
                  const MicrobatchOptions& options);
/// Fills the order of tokens for mixers that carry a state: cp ranks exchange tokens for heads.
void fill_row_scan(Microbatch& out, const std::vector<MaskWord>& words, const ModelSpec& model,
                   const TokenLayout& layout);
/// The items of an encoder that this rank encodes.
struct OwnItems {
  const ItemRow& row;     ///< the row of its items, which other ranks may share
  const TokenRuns& here;  ///< the tokens that it holds
  const Ids& held;        ///< indices in the row of these tokens' items
  at::ScalarType dtype;
};
/// `values`: of the items held, one after the other.
void fill_images(EncoderPart& part, const std::vector<float>& values, const OwnItems& own,
                 const EncoderSpec& encoder);
void fill_clips(EncoderPart& part, const std::vector<float>& values, const OwnItems& own,
                const EncoderSpec& encoder);
/// Fills the rows here of `states` cached outputs, given those of the items held, `kept`.
void fill_states(EncoderPart& part, const std::vector<uint8_t>& kept, const OwnItems& own,
                 int64_t states);

/// This rank's part of the exchange after which every rank has the rows that it needs; `parts` as
/// plan_row_exchange takes them.
RowTransfer make_transfer(const std::vector<TokenRuns>& held, const std::vector<TokenRuns>& needed,
                          int rank, const std::vector<int>& parts = {});

/// Fills an encoder's part: which items this rank encodes, their tokens and attention, the way of
/// its features, and its inputs by the functions above.
void fill_encoder(EncoderPart& part, const LoadedMicrobatch& loaded, const HostTokens& host,
                  const ModelSpec& model, int encoder, const MicrobatchOptions& options);

/// Returns the features that each rank of the replica puts in place of `placeholders`.
std::vector<TokenRuns> taken_features(const HostTokens& host, const Ids& placeholders,
                                      const ModelSpec& model, const MicrobatchOptions& options);

// The tables of rotary position embedding (RoFormer, arXiv:2104.09864), whose angles are taken in
// double.

/// (tokens, pairs of coordinates that turn) double on the host: cosines and sines of their angles,
/// times the attention factor.
struct RotaryTables {
  at::Tensor cosines, sines;
};

/// Returns the tables of tokens at `positions` of samples that have `lengths` tokens.
RotaryTables rotary_tables(const RopeConfig& rope, int64_t head_dim,
                           const std::vector<TokenPosition>& positions,
                           const std::vector<int64_t>& lengths);
/// Fills the tables of each kind of attention, in `dtype`.
void fill_rotary_tables(std::vector<TokenAttention>& attention, const BlockSpec& block,
                        const std::vector<TokenPosition>& positions,
                        const std::vector<int64_t>& lengths, at::ScalarType dtype);

}  // namespace zea::detail
