// SPDX-License-Identifier: Apache-2.0
// The keys from which dropout draws: a number for each row, of the run's seed, the step, the sample
// (and item) and the token's place in it. However tokens are packed and distributed, a row
// has the same key.
#include "batch/microbatch_parts.hpp"

#include "core/mixed_bits.hpp"
#include "model/index_tensor.hpp"

namespace zea::detail {
namespace {

int64_t key_at(uint64_t of_whole, int64_t place) {
  return static_cast<int64_t>(mixed(of_whole + static_cast<uint64_t>(place)));
}

/// Returns the keys of the tokens of `runs`.
template <class KeyOf>
at::Tensor token_keys(const TokenRuns& runs, KeyOf key_of) {
  Ids keys;
  for (const TokenRange& run : runs)
    for (int64_t token = run.begin; token < run.end; ++token) keys.push_back(key_of(token));
  return index_tensor(keys);
}

/// Returns the keys of a rank's tokens, and, if rows are distributed over tp ranks, of the tokens
/// of all of them.
template <class KeyOf>
RowKeys keys_of_tokens(const TokenLayout& layout, const Coordinate& coordinate, KeyOf key_of) {
  RowKeys keys;
  keys.here = token_keys(layout.held(coordinate.cp, coordinate.tp), key_of);
  const bool are_sharded = !layout.shares(coordinate.cp).empty();
  keys.of_cp = are_sharded ? token_keys(layout.owned()[coordinate.cp], key_of) : keys.here;
  return keys;
}

/// Appends the keys of the rows that a projector makes of the tokens `here`.
void append_feature_keys(Ids& keys, const TokenRuns& here, const ItemRow& row,
                         const std::vector<uint64_t>& item_keys) {
  for (const auto& [item, place] : projected_places(here, row))
    keys.push_back(key_at(item_keys[item], place));
}

RowKeys keys_of_features(const ItemRow& row, const Coordinate& coordinate,
                         const std::vector<uint64_t>& item_keys) {
  const TokenLayout& layout = row.layout();
  Ids here, of_cp;
  append_feature_keys(here, layout.held(coordinate.cp, coordinate.tp), row, item_keys);
  const auto tp = static_cast<int>(layout.shares(coordinate.cp).size());
  for (int t = 0; t < tp; ++t)
    append_feature_keys(of_cp, layout.held(coordinate.cp, t), row, item_keys);
  RowKeys keys{.here = index_tensor(here), .of_cp = {}};
  keys.of_cp = tp > 0 ? index_tensor(of_cp) : keys.here;
  return keys;
}

}  // namespace

ProjectedPlaces projected_places(const TokenRuns& here, const ItemRow& row) {
  ProjectedPlaces places;
  for (const TokenRange& run : here)
    for (int64_t token = run.begin; token < run.end; ++token) {
      const size_t item = row.item_of(token);
      const int64_t source = row.shape(item).source_of(row.position(token));
      if (source >= 0) places.insert({item, source});
    }
  return places;
}

void draw_keys(HostTokens& host, const LoadedMicrobatch& loaded, const MicrobatchOptions& options) {
  if (!options.trained_step) return;
  host.item_keys.resize(host.placeholders.size());
  const uint64_t step = mixed(mixed(options.seed) + static_cast<uint64_t>(*options.trained_step));
  for (const Sample& sample : loaded.samples) {
    host.sample_keys.push_back(mixed(step + static_cast<uint64_t>(sample.id)));
    uint64_t number = 0;
    for (const Item& item : sample.items)
      host.item_keys[static_cast<size_t>(item.kind)].push_back(
          mixed(host.sample_keys.back() ^ ++number));
  }
}

void fill_text_keys(Microbatch& out, const HostTokens& host, const TokenPlaces& places,
                    const TokenLayout& layout, const ModelSpec& model,
                    const Coordinate& coordinate) {
  if (host.sample_keys.empty() || !model.has_dropout(kDecoder)) return;
  out.text_keys = keys_of_tokens(layout, coordinate, [&](int64_t token) {
    return key_at(host.sample_keys[word_sample(host.words[token])], places.places[token]);
  });
}

void fill_item_keys(EncoderPart& part, const HostTokens& host, const ItemRow& row, const Ids& items,
                    const ModelSpec& model, int encoder, const MicrobatchOptions& options) {
  const EncoderSpec& spec = model.encoders[static_cast<size_t>(encoder)];
  if (host.item_keys.empty() || !model.has_dropout(spec.name)) return;
  std::vector<uint64_t> own;
  for (const int64_t item : items) own.push_back(host.item_keys[encoder][item]);
  const Coordinate coordinate = options.replica.coordinate(options.replica.rank, spec.name);
  part.keys = keys_of_tokens(row.layout(), coordinate, [&](int64_t token) {
    return key_at(own[row.item_of(token)], row.position(token));
  });
  part.feature_keys = keys_of_features(row, coordinate, own);
}

}  // namespace zea::detail
