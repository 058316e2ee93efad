// SPDX-License-Identifier: Apache-2.0
#include "batch/row_names.hpp"

#include <algorithm>
#include <utility>

#include "batch/microbatch_parts.hpp"
#include "layout/item_row.hpp"

namespace zea {
namespace {

/// An item of an encoder: its sample, and its index there.
using ItemName = std::pair<int64_t, int32_t>;

std::vector<ItemName> items_of_encoder(const std::vector<Sample>& samples, int encoder) {
  std::vector<ItemName> names;
  for (const Sample& sample : samples)
    for (size_t i = 0; i < sample.items.size(); ++i)
      if (sample.items[i].kind == encoder) names.emplace_back(sample.id, static_cast<int32_t>(i));
  return names;
}

std::vector<RowName> text_names(const LoadedMicrobatch& loaded, const std::vector<MaskWord>& words,
                                const ModelSpec& model, const MicrobatchOptions& options) {
  const ReplicaLayout& replica = options.replica;
  std::vector<RowName> names;
  if (!replica.has(replica.rank, kDecoder) || words.empty()) return names;
  const Coordinate coordinate = replica.coordinate(replica.rank, kDecoder);
  const TokenLayout layout = detail::text_layout(words, model, options);
  int64_t first = 0, sample = -1;  // the token with which a sample begins
  std::vector<int64_t> starts(words.size());
  for (size_t token = 0; token < words.size(); ++token) {
    if (word_sample(words[token]) != sample) first = static_cast<int64_t>(token);
    sample = word_sample(words[token]);
    starts[token] = first;
  }
  for (const int64_t token : numbers_of(layout.held(coordinate.cp, coordinate.tp)))
    names.push_back({.sample = loaded.samples[word_sample(words[token])].id,
                     .position = static_cast<int32_t>(token - starts[token])});
  return names;
}

RowName name_in(const ItemName& item, int64_t position) {
  return {item.first, item.second, static_cast<int32_t>(position)};
}

RowNames::Encoder encoder_names(const LoadedMicrobatch& loaded, const ModelSpec& model, int encoder,
                                const MicrobatchOptions& options) {
  const EncoderSpec& spec = model.encoders[static_cast<size_t>(encoder)];
  const ReplicaLayout& replica = options.replica;
  if (loaded.items.of(encoder) == 0 || !replica.has(replica.rank, spec.name)) return {};
  const std::vector<ItemShape> shapes = loaded.items.shapes(encoder, spec);
  const Coordinate coordinate = replica.coordinate(replica.rank, spec.name);
  const std::vector<int64_t> own = distribute_items(
      shapes, model, encoder, replica.grid(spec.name).encoder_dp)[coordinate.encoder_dp];
  if (own.empty()) return {};
  const std::vector<ItemName> all = items_of_encoder(loaded.samples, encoder);
  std::vector<ItemName> names;
  for (const int64_t item : own) names.push_back(all.at(item));
  const ItemRow row(shapes, own, spec.name, replica);
  const TokenRuns here = row.layout().held(coordinate.cp, coordinate.tp);
  RowNames::Encoder rows;
  for (const int64_t token : numbers_of(here))
    rows.tokens.push_back(name_in(names[row.item_of(token)], row.position(token)));
  for (const auto& [item, place] : detail::projected_places(here, row))
    rows.features.push_back(name_in(names[item], place));
  return rows;
}

}  // namespace

RowNames names_of_rows(const LoadedMicrobatch& loaded, const std::vector<MaskWord>& words,
                       const ModelSpec& model, const MicrobatchOptions& options) {
  RowNames names;
  names.text = text_names(loaded, words, model, options);
  for (size_t encoder = 0; encoder < model.encoders.size(); ++encoder)
    names.encoders.push_back(encoder_names(loaded, model, static_cast<int>(encoder), options));
  return names;
}

}  // namespace zea
