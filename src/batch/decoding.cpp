// SPDX-License-Identifier: Apache-2.0
#include "batch/decoding.hpp"

#include <algorithm>

#include "batch/microbatch_parts.hpp"
#include "core/error.hpp"
#include "model/index_tensor.hpp"

namespace zea {
namespace {

using namespace detail;

/// Returns the words of a microbatch with one more text token after each sample.
std::vector<MaskWord> grown(const std::vector<MaskWord>& words) {
  std::vector<MaskWord> longer;
  for (const Segment& sample : segments_of(words)) {
    const auto first = words.begin() + sample.start;
    longer.insert(longer.end(), first, first + sample.length);
    longer.push_back(make_mask_word(word_sample(*first), kModalityText, 0));
  }
  return longer;
}

/// Returns how far the rotary positions after each sample are ahead of its token count.
std::vector<TokenPosition> rope_delta(const Microbatch& prompts, const ModelSpec& model,
                                      std::vector<int64_t> prompt_lengths) {
  const std::vector<MaskWord> words = grown(prompts.words);
  TokenPlaces of = places_of(words, prompts.items, model);
  if (prompt_lengths.empty())
    for (const Segment& sample : segments_of(words)) prompt_lengths.push_back(sample.length - 1);
  continue_prompts(words, prompt_lengths, of);
  std::vector<TokenPosition> ahead;
  for (const Segment& sample : segments_of(words)) {
    const int64_t next = sample.start + sample.length - 1;
    TokenPosition& turned = ahead.emplace_back(of.positions[next]);
    for (float& axis : turned) axis -= static_cast<float>(of.places[next]);
  }
  return ahead;
}

int64_t cp_rank(const MicrobatchOptions& options) {
  return options.replica.coordinate(options.replica.rank, kDecoder).cp;
}

/// Returns the rows of this rank's cache that each query sees, the last ones of its sample; queries
/// are in order of cp rank.
std::vector<AttentionSlice> seen_keys(const std::vector<NextToken>& next,
                                      const std::vector<TokenRuns>& owned, const KvCacheState& keys,
                                      int64_t window) {
  std::vector<AttentionSlice> slices;
  int64_t query = 0;
  for (const TokenRuns& runs : owned)
    for (const TokenRange& run : runs)
      for (int64_t token = run.begin; token < run.end; ++token, ++query) {
        const CachedSample& sample = keys.samples[next[token].sample];
        const auto& places = sample.places;
        const int64_t first_seen = window > 0 ? next[token].place - window + 1 : 0;
        const int64_t hidden = std::ranges::lower_bound(places, first_seen) - places.begin();
        const int64_t seen = std::ssize(places) - hidden;
        if (seen > 0)
          slices.push_back({query, 1, sample.first_row + hidden, seen, SliceMask::None});
      }
  return slices;
}

HostTokens host_tokens(const std::vector<NextToken>& next, const ModelSpec& model) {
  HostTokens host;
  host.placeholders.resize(model.encoders.size());
  for (size_t t = 0; t < next.size(); ++t) {
    host.ids.push_back(next[t].id);
    host.targets.push_back(-1);
    host.lasts.push_back(static_cast<int64_t>(t));
    host.words.push_back(make_mask_word(static_cast<int64_t>(t), kModalityText, 0));
  }
  return host;
}

TokenPlaces places_of_next(const std::vector<NextToken>& next, const KvCacheState& keys) {
  TokenPlaces of;
  for (const NextToken& token : next) {
    of.places.push_back(token.place);
    of.lengths.push_back(token.place + 1);
    TokenPosition& position = of.positions.emplace_back(keys.samples[token.sample].rope_delta);
    for (float& axis : position) axis += static_cast<float>(token.place);
  }
  return of;
}

/// Gives the keys of the prompts' tokens rows of a cache that has room for `more` of each sample.
void keep_prompts(Microbatch& out, const ModelSpec& model, const MicrobatchOptions& options,
                  int64_t more, KvCacheState& keys) {
  const std::vector<TokenPosition> ahead = rope_delta(out, model, options.prompt_lengths);
  const TokenLayout layout = text_layout(out.words, model, options);
  // Each rank keeps states of its heads, so prompts are not scanned in runs.
  fill_row_scan(out, out.words, model, layout);
  const TokenRuns& own = layout.owned()[cp_rank(options)];
  const std::vector<Segment> segments = segments_of(out.words);
  ZEA_ASSERT(segments.size() == keys.samples.size());
  Ids rows;
  int64_t next_row = 0;
  for (size_t s = 0; s < segments.size(); ++s) {
    CachedSample& sample = keys.samples[s];
    sample.first_row = next_row;
    sample.rope_delta = ahead[s];
    const int64_t begin = segments[s].start, end = begin + segments[s].length;
    for (const TokenRange& run : own)
      for (int64_t token = std::max(run.begin, begin); token < std::min(run.end, end); ++token) {
        rows.push_back(next_row++);
        sample.places.push_back(token - begin);
      }
    next_row += more;
  }
  keys.cache = std::make_shared<KvCache>(next_row);
  out.cached = {.cache = keys.cache, .rows = index_tensor(rows), .cp_tokens = {}, .samples = {}};
}

}  // namespace

Microbatch make_prompt_microbatch(const LoadedMicrobatch& loaded, const ModelSpec& model,
                                  const MicrobatchOptions& options, int64_t more,
                                  KvCacheState& keys) {
  Microbatch out = make_on_host(loaded, model, options);
  keys.samples.assign(loaded.samples.size(), {});
  if (options.replica.has(options.replica.rank, kDecoder))
    keep_prompts(out, model, options, more, keys);
  return move_to(options.device, pack(std::move(out), options.device));
}

Microbatch make_next_microbatch(const std::vector<NextToken>& next, const ModelSpec& model,
                                const MicrobatchOptions& options, KvCacheState& keys) {
  Microbatch out;
  out.tokens = std::ssize(next);
  out.encoders.resize(model.encoders.size());
  HostTokens host = host_tokens(next, model);
  if (options.replica.has(options.replica.rank, kDecoder)) {
    const TokenLayout layout = text_layout(host.words, model, options);
    const std::vector<TokenRuns>& owned = layout.owned();
    fill_text_at(out, host, places_of_next(next, keys), layout, model, options);
    fill_row_scan(out, host.words, model, layout);
    for (int64_t& sample : out.samples) sample = next[sample].sample;
    out.cached = {
        .cache = keys.cache, .rows = {}, .is_prompt = false, .cp_tokens = {}, .samples = {}};
    Ids rows;
    for (const TokenRange& run : owned[cp_rank(options)])
      for (int64_t token = run.begin; token < run.end; ++token) {
        CachedSample& sample = keys.samples[next[token].sample];
        rows.push_back(sample.first_row + std::ssize(sample.places));
        sample.places.push_back(next[token].place);
      }
    out.cached->rows = index_tensor(rows);
    Ids samples;
    for (const NextToken& token : next) samples.push_back(token.sample);
    out.cached->samples = index_tensor(samples);
    for (const TokenRuns& runs : owned) out.cached->cp_tokens.push_back(count_tokens(runs));
    const std::vector<MixerSpec>& mixers = model.decoder.block.mixers;
    for (size_t way = 0; way < mixers.size(); ++way)
      if (const auto* attention = std::get_if<AttentionSpec>(&mixers[way]))
        out.text_attention[way].mask =
            AttentionMask(seen_keys(next, owned, keys, attention->window));
  }
  out.words = std::move(host.words);
  return move_to(options.device, pack(std::move(out), options.device));
}

bool invalidates_kv_cache(const ModelSpec& model, int64_t before, int64_t after) {
  return std::ranges::any_of(model.decoder.block.attentions(), [&](const AttentionSpec& each) {
    const double original = each.rope.original_max_positions;
    return each.rope.type == RopeType::LongRope && static_cast<double>(before) <= original &&
           static_cast<double>(after) > original;
  });
}

}  // namespace zea
