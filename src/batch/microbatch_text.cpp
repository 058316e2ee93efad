// SPDX-License-Identifier: Apache-2.0
// The language model's part of a microbatch: which tokens this rank holds, their targets, and how
// they attend.
#include <algorithm>

#include "batch/microbatch_parts.hpp"
#include "model/index_tensor.hpp"

namespace zea::detail {
namespace {

/// values[t] for the tokens of `runs`.
template <class Value>
std::vector<Value> pick(const std::vector<Value>& values, const TokenRuns& runs) {
  std::vector<Value> picked;
  for (const TokenRange& run : runs)
    picked.insert(picked.end(), values.begin() + run.begin, values.begin() + run.end);
  return picked;
}

/// The indices in `runs` of the tokens that `is_wanted` takes.
template <class Predicate>
Ids indices_where(const TokenRuns& runs, Predicate is_wanted) {
  Ids indices;
  int64_t index = 0;
  for (const TokenRange& run : runs)
    for (int64_t token = run.begin; token < run.end; ++token, ++index)
      if (is_wanted(token)) indices.push_back(index);
  return indices;
}

/// How many of these each tp rank of a cp rank has; empty where each has all.
template <class Predicate>
RowsPerTpRank shares_where(const TokenLayout& layout, int cp_rank, Predicate is_wanted) {
  RowsPerTpRank shares;
  for (size_t t = 0; t < layout.shares(cp_rank).size(); ++t)
    shares.push_back(static_cast<int64_t>(
        indices_where(layout.held(cp_rank, static_cast<int>(t)), is_wanted).size()));
  return shares;
}

bool is_image(MaskWord word) {
  return word_modality(word) == kModalityImage;
}

/// The mask of a kind of block: the tokens to which a token attends.
struct Sight {
  int64_t window;  ///< sliding window in tokens; 0: none
  bool both_ways;  ///< features of adjacent images attend to each other

  bool operator==(const Sight&) const = default;
};

/// Returns the attention of a kind of block.
TokenAttention text_attention(const HostTokens& host, const Sight& sight, const TokenLayout& layout,
                              int cp_rank, const MicrobatchOptions& options) {
  TokenAttention attention;
  const int64_t window = sight.window;
  const auto row = [&] { return visible_text(host.words, sight.both_ways, window); };
  const ContextOptions context = options.replica.sharding(kDecoder).context;
  if (context.ranks > 1)
    attention.context.emplace(make_context_plan(row(), layout.owned(), context, cp_rank));
  if (context.inner < context.ranks) return attention;
  std::vector<TokenRange> all;
  if (!host.words.empty()) all.push_back({0, std::ssize(host.words)});
  const auto slices = [&] { return attention_slices(row(), all, all); };
  const bool both_ways = sight.both_ways && std::ranges::any_of(host.words, is_image);
  const std::vector<Segment> samples = segments_of(host.words);
  AttentionMask& mask = attention.context ? attention.context->masks.at(0) : attention.mask;
  if (both_ways)
    mask = AttentionMask(slices());
  else
    mask = window > 0 ? AttentionMask(samples, window, slices()) : AttentionMask(samples, true);
  return attention;
}

/// Fills the attention of each kind of block; a window that holds the longest sample is none.
void fill_attention(Microbatch& out, const HostTokens& host, const ModelSpec& model,
                    const TokenLayout& layout, int cp_rank, const MicrobatchOptions& options) {
  int64_t longest = 0;
  for (const Segment& sample : segments_of(host.words)) longest = std::max(longest, sample.length);
  std::vector<Sight> kinds;
  for (const MixerSpec& mixer : model.decoder.block.mixers) {
    const auto* spec = std::get_if<AttentionSpec>(&mixer);
    if (!spec) {
      kinds.push_back({-1, false});
      out.text_attention.emplace_back();
      continue;
    }
    const Sight sight{spec->window < longest ? spec->window : 0,
                      is_bidirectional(options.bidirectional_images, spec->window)};
    const auto same = std::ranges::find(kinds, sight) - kinds.begin();
    const bool is_made = same < std::ssize(kinds);
    kinds.push_back(sight);
    out.text_attention.push_back(is_made ? out.text_attention[same]
                                         : text_attention(host, sight, layout, cp_rank, options));
  }
}

/// Fills the order of tokens for mixers that carry a state.
void fill_scan(Microbatch& out, const HostTokens& host, const ModelSpec& model,
               const TokenLayout& layout, const MicrobatchOptions& options) {
  if (!options.replica.sharding(kDecoder).passes_states) {
    fill_row_scan(out, host.words, model, layout);
    return;
  }
  const int cp_rank = options.replica.coordinate(options.replica.rank, kDecoder).cp;
  out.text_scan.passed.emplace(make_scan_plan(segments_of(host.words), layout.owned(),
                                              model.decoder.block.most_taps(), cp_rank));
}

/// Returns the length of each token's sample.
Ids lengths_of(const Ids& places) {
  Ids lengths(places.size());
  for (size_t t = lengths.size(); t-- > 0;) {
    const bool goes_on = t + 1 < lengths.size() && places[t + 1] > 0;
    lengths[t] = goes_on ? lengths[t + 1] : places[t] + 1;
  }
  return lengths;
}

void fill_positions(Microbatch& out, const TokenPlaces& places, const TokenRuns& cp_tokens,
                    const TokenRuns& here, const ModelSpec& model,
                    const MicrobatchOptions& options) {
  if (model.decoder.learned_positions)
    out.positions = index_tensor(pick(places.places, here));
  else
    fill_rotary_tables(out.text_attention, model.decoder.block, pick(places.positions, cp_tokens),
                       pick(places.lengths, cp_tokens), options.dtype);
}

void fill_targets(Microbatch& out, const HostTokens& host, const TokenLayout& layout,
                  const Coordinate& coordinate) {
  const auto is_target = [&](int64_t token) { return host.targets[token] >= 0; };
  Ids ids = pick(host.targets, layout.owned()[coordinate.cp]);
  std::erase(ids, -1);
  out.targets = static_cast<int64_t>(ids.size());
  out.target_ids = index_tensor(ids);
  out.target_rows =
      index_tensor(indices_where(layout.held(coordinate.cp, coordinate.tp), is_target));
  out.target_shares = shares_where(layout, coordinate.cp, is_target);
}

/// Fills what multi-token prediction reads; all tokens are of one cp rank.
void fill_mtp_targets(Microbatch& out, const HostTokens& host, const TokenLayout& layout,
                      const Coordinate& coordinate) {
  Ids next, targets;
  for (const Segment& sample : segments_of(host.words))
    for (int64_t token = sample.start; token < sample.start + sample.length; ++token) {
      const bool is_last = token + 1 == sample.start + sample.length;
      next.push_back(is_last ? token : token + 1);
      targets.push_back(is_last ? -1 : host.targets[token + 1]);
    }
  const auto is_target = [&](int64_t token) { return targets[token] >= 0; };
  const TokenRuns here = layout.held(coordinate.cp, coordinate.tp);
  out.next_rows = index_tensor(pick(next, here));
  out.further.rows = index_tensor(indices_where(here, is_target));
  out.further.shares = shares_where(layout, coordinate.cp, is_target);
  std::erase(targets, -1);
  out.further.ids = index_tensor(targets);
}

void fill_lasts(Microbatch& out, const HostTokens& host, const TokenLayout& layout,
                const Coordinate& coordinate) {
  const auto is_last = [&](int64_t token) {
    return std::binary_search(host.lasts.begin(), host.lasts.end(), token);
  };
  out.last_rows = index_tensor(indices_where(layout.held(coordinate.cp, coordinate.tp), is_last));
  out.last_shares = shares_where(layout, coordinate.cp, is_last);
  for (const TokenRange& run : layout.owned()[coordinate.cp])
    for (size_t s = 0; s < host.lasts.size(); ++s)
      if (host.lasts[s] >= run.begin && host.lasts[s] < run.end)
        out.samples.push_back(static_cast<int64_t>(s));
}

}  // namespace

TokenLayout text_layout(const std::vector<MaskWord>& words, const ModelSpec& model,
                        const MicrobatchOptions& options) {
  // Dealt by what those with the widest window see.
  const int64_t window = model.decoder.block.widest_attention().window;
  const Visibility row =
      visible_text(words, is_bidirectional(options.bidirectional_images, window), window);
  return {row, options.replica.sharding(kDecoder), options.replica.grid(kDecoder).tp};
}

void fill_row_scan(Microbatch& out, const std::vector<MaskWord>& words, const ModelSpec& model,
                   const TokenLayout& layout) {
  if (!model.decoder.block.carries_state()) return;
  out.text_scan = TokenScan(segments_of(words));
  if (layout.owned().size() > 1) out.text_scan.cp.emplace(group_tokens(layout.owned()));
}

TokenPlaces places_of(const std::vector<MaskWord>& words, const ItemList& items,
                      const ModelSpec& model) {
  TokenPlaces of;
  for (const Segment& sample : segments_of(words))
    for (int64_t place = 0; place < sample.length; ++place) of.places.push_back(place);
  of.lengths = lengths_of(of.places);
  const auto has_grid = [](const AttentionSpec& each) { return !each.rope.rotary_pairs.empty(); };
  if (std::ranges::any_of(model.decoder.block.attentions(), has_grid)) {
    std::vector<std::vector<ItemShape>> shapes;
    for (size_t e = 0; e < model.encoders.size(); ++e)
      shapes.push_back(items.shapes(static_cast<int>(e), model.encoders[e]));
    of.positions = grid_positions(words, shapes);
  } else {
    for (const int64_t place : of.places) {
      const auto position = static_cast<float>(place);
      of.positions.push_back({position, position, position});
    }
  }
  return of;
}

void continue_prompts(const std::vector<MaskWord>& words, const std::vector<int64_t>& prompts,
                      TokenPlaces& of) {
  const std::vector<Segment> samples = segments_of(words);
  ZEA_ASSERT(samples.size() == prompts.size());
  for (size_t s = 0; s < samples.size(); ++s) {
    const auto first = of.positions.begin() + samples[s].start, end = first + prompts[s];
    float next = 0;
    for (auto position = first; position < end; ++position)
      next = std::max(next, std::ranges::max(*position) + 1);
    for (int64_t i = 0; i < samples[s].length - prompts[s]; ++i)
      end[i].fill(next + static_cast<float>(i));
  }
}

void fill_text_at(Microbatch& out, const HostTokens& host, const TokenPlaces& places,
                  const TokenLayout& layout, const ModelSpec& model,
                  const MicrobatchOptions& options) {
  const Coordinate coordinate = options.replica.coordinate(options.replica.rank, kDecoder);
  const TokenRuns& cp_tokens = layout.owned()[coordinate.cp];
  const TokenRuns here = layout.held(coordinate.cp, coordinate.tp);
  out.counts = coordinate.tp == 0 && options.replica.has_head(options.replica.rank);
  out.token_ids = index_tensor(pick(host.ids, cp_tokens));
  out.text_shares = layout.shares(coordinate.cp);
  out.expert_rows.cp = layout.expert_rows(coordinate.cp, options.replica.grid(kDecoder).ep_cp);
  out.text_rows = count_tokens(here);
  for (size_t encoder = 0; encoder < out.encoders.size(); ++encoder) {
    const Ids& tokens = host.placeholders[encoder];
    if (tokens.empty()) continue;
    const auto takes_feature = [&](int64_t token) {
      return std::binary_search(tokens.begin(), tokens.end(), token);
    };
    out.encoders[encoder].placeholder_rows = index_tensor(indices_where(here, takes_feature));
  }
  out.text_attention.resize(model.decoder.block.mixers.size());
  fill_scan(out, host, model, layout, options);
  fill_positions(out, places, cp_tokens, here, model, options);
  fill_text_keys(out, host, places, layout, model, coordinate);
  fill_targets(out, host, layout, coordinate);
  fill_lasts(out, host, layout, coordinate);
}

void fill_text(Microbatch& out, const HostTokens& host, const ModelSpec& model,
               const MicrobatchOptions& options) {
  const TokenLayout layout = text_layout(host.words, model, options);
  const Coordinate coordinate = options.replica.coordinate(options.replica.rank, kDecoder);
  fill_attention(out, host, model, layout, coordinate.cp, options);
  TokenPlaces places = places_of(host.words, out.items, model);
  if (!options.prompt_lengths.empty()) continue_prompts(host.words, options.prompt_lengths, places);
  fill_text_at(out, host, places, layout, model, options);
  if (model.decoder.mtp_loss > 0) fill_mtp_targets(out, host, layout, coordinate);
}

std::vector<TokenRuns> taken_features(const HostTokens& host, const Ids& placeholders,
                                      const ModelSpec& model, const MicrobatchOptions& options) {
  const TokenLayout layout = text_layout(host.words, model, options);
  std::vector<TokenRuns> taken;
  for (int rank = 0; rank < options.replica.ranks(); ++rank) {
    TokenRuns features;
    if (!options.replica.has_features(rank, kDecoder)) {
      taken.push_back(features);
      continue;
    }
    const Coordinate coordinate = options.replica.coordinate(rank, kDecoder);
    for (const TokenRange& run : layout.held(coordinate.cp, coordinate.tp)) {
      const auto first = std::lower_bound(placeholders.begin(), placeholders.end(), run.begin);
      const auto last = std::lower_bound(first, placeholders.end(), run.end);
      if (first < last)
        features.push_back({first - placeholders.begin(), last - placeholders.begin()});
    }
    taken.push_back(std::move(features));
  }
  return taken;
}

}  // namespace zea::detail
