// SPDX-License-Identifier: Apache-2.0
#include "layout/microbatch_rows.hpp"

#include <numeric>

#include "layout/item_row.hpp"

namespace zea {
namespace {

using Ids = std::vector<int64_t>;

/// Rows that come of the tokens that each tp rank of `cp_rank` holds.
template <class RowsOf>
TpRows tp_rows(const TokenLayout& layout, int cp_rank, RowsOf rows_of) {
  TpRows rows;
  rows.dealt = !layout.shares(cp_rank).empty();
  const size_t parts = rows.dealt ? layout.shares(cp_rank).size() : 1;
  for (size_t t = 0; t < parts; ++t)
    rows.shares.push_back(count_tokens(rows_of(layout.held(cp_rank, static_cast<int>(t)))));
  return rows;
}

/// Pairs of the queries that a cp rank has.
double pairs_on(const Visibility& visible, const TokenLayout& layout, int inner, int cp_rank) {
  double pairs = 0;
  for (int member = 0, first = cp_rank - cp_rank % inner; member < inner; ++member)
    for (const TokenRange& run : layout.owned()[first + member])
      for (int64_t token = run.begin; token < run.end; ++token)
        pairs += static_cast<double>(visible.ends[token] - visible.begins[token]);
  return pairs / inner;
}

/// `visible_in` says what tokens see under a window (0: without one).
template <class VisibleIn, class RowsOf>
ModuleRows module_rows(const BlockSpec& block, VisibleIn visible_in, const TokenLayout& layout,
                       const ContextOptions& context, int cp_rank, RowsOf reads) {
  ModuleRows rows;
  rows.held = tp_rows(layout, cp_rank, [](const TokenRuns& tokens) { return tokens; });
  rows.read = tp_rows(layout, cp_rank, reads);
  if (context.ranks > 1)
    rows.context = make_context_plan(visible_in(block.widest_attention().window), layout.owned(),
                                     context, cp_rank);
  for (const AttentionSpec& way : block.attentions())
    if (!rows.pairs.contains(way.window))
      rows.pairs[way.window] = pairs_on(visible_in(way.window), layout, context.inner, cp_rank);
  return rows;
}

Ids rows_sent(const std::vector<TokenRuns>& held, const std::vector<TokenRuns>& needed, int rank,
              const std::vector<int>& parts = {}) {
  Ids rows;
  for (const TokenRuns& runs : plan_row_exchange(held, needed, rank, parts).sends)
    rows.push_back(count_tokens(runs));
  return rows;
}

/// For each placeholder of an encoder its number among them; -1 for the other tokens.
Ids placeholder_numbers(const std::vector<MaskWord>& words, int encoder) {
  Ids numbers;
  int64_t next = 0;
  for (MaskWord word : words) {
    const bool is_it = word_modality(word) != kModalityText && word_encoder(word) == encoder;
    numbers.push_back(is_it ? next++ : -1);
  }
  return numbers;
}

EncoderRows encoder_rows(const EncoderSpec& spec, const MicrobatchTokens& tokens,
                         const TokenLayout& text, const ModelSpec& model,
                         const ReplicaLayout& replica) {
  const std::string& encoder = spec.name;
  const int index = model.encoder_index(encoder);
  const std::vector<ItemShape> all = tokens.items.shapes(index, spec);
  const std::vector<Ids> dealt =
      distribute_items(all, model, index, replica.grid(encoder).encoder_dp);
  const Ids placeholders = placeholder_numbers(tokens.words, index);
  EncoderRows rows;
  std::vector<TokenRuns> made, taken;
  for (int rank = 0; rank < replica.ranks(); ++rank) {
    made.emplace_back();
    taken.emplace_back();
    if (replica.has_features(rank, kDecoder)) {
      const Coordinate taker = replica.coordinate(rank, kDecoder);
      taken.back() = numbered(text.held(taker.cp, taker.tp),
                              [&](int64_t token) { return placeholders[token]; });
    }
    if (!replica.has(rank, encoder)) continue;
    const Coordinate coordinate = replica.coordinate(rank, encoder);
    const Ids& items = dealt[coordinate.encoder_dp];
    const ItemRow row(all, items, encoder, replica);
    if (replica.has_features(rank, encoder))
      made.back() = row.features(row.layout().held(coordinate.cp, coordinate.tp));
    if (rank == replica.rank && !items.empty())
      rows.items = module_rows(
          spec.block, [&](int64_t window) { return row.visible(window > 0); }, row.layout(),
          replica.sharding(encoder).context, coordinate.cp,
          [&](const TokenRuns& tokens) { return row.projected(tokens); });
  }
  rows.features = rows_sent(made, taken, replica.rank, feature_parts(spec, replica));
  rows.feature_gradients = rows_sent(taken, made, replica.rank);
  return rows;
}

}  // namespace

int64_t TpRows::all() const {
  return std::accumulate(shares.begin(), shares.end(), int64_t{0});
}

const ModuleRows& MicrobatchRows::of(const std::string& module) const {
  static const ModuleRows kNone;
  if (module == kDecoder) return text;
  const auto found = encoders.find(module);
  return found == encoders.end() ? kNone : found->second.items;
}

void append_sample(MicrobatchTokens& tokens, const MicrobatchTokens& sample, int64_t number) {
  for (const MaskWord word : sample.words)
    tokens.words.push_back(word + make_mask_word(number, kModalityText, 0));
  tokens.is_target.insert(tokens.is_target.end(), sample.is_target.begin(), sample.is_target.end());
  tokens.items += sample.items;
}

MicrobatchRows rows_of_microbatch(const MicrobatchTokens& tokens, const ModelSpec& model,
                                  const ReplicaLayout& replica,
                                  BidirectionalLayers bidirectional_images) {
  const BlockSpec& block = model.decoder.block;
  const auto visible = [&](int64_t window) {
    return visible_text(tokens.words, is_bidirectional(bidirectional_images, window), window);
  };
  const TokenLayout text(visible(block.widest_attention().window), replica.sharding(kDecoder),
                         replica.grid(kDecoder).tp);
  MicrobatchRows rows;
  const auto targets = [&](const TokenRuns& held) {
    return numbered(held, [&](int64_t token) { return tokens.is_target[token] ? token : -1; });
  };
  if (replica.has(replica.rank, kDecoder)) {
    const int cp_rank = replica.coordinate(replica.rank, kDecoder).cp;
    rows.text =
        module_rows(block, visible, text, replica.sharding(kDecoder).context, cp_rank, targets);
    if (replica.sharding(kDecoder).passes_states)
      rows.text.scan =
          make_scan_plan(segments_of(tokens.words), text.owned(), block.most_taps(), cp_rank);
    rows.text.experts.cp = text.expert_rows(cp_rank, replica.grid(kDecoder).ep_cp);
  }
  for (const EncoderSpec& encoder : model.encoders)
    if (tokens.items.of(model.encoder_index(encoder.name)) > 0)
      rows.encoders[encoder.name] = encoder_rows(encoder, tokens, text, model, replica);
  return rows;
}

}  // namespace zea
