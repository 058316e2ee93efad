// SPDX-License-Identifier: Apache-2.0
#include "spec/module_spec.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace zea {

std::vector<RotaryPair> chunked_pairs(const std::vector<int64_t>& sections) {
  std::vector<RotaryPair> pairs;
  for (size_t axis = 0; axis < sections.size(); ++axis)
    for (int64_t i = 0; i < sections[axis]; ++i)
      pairs.push_back({static_cast<int64_t>(axis), static_cast<int64_t>(pairs.size())});
  return pairs;
}

std::vector<RotaryPair> interleaved_pairs(const std::vector<int64_t>& sections) {
  const auto axes = static_cast<int64_t>(sections.size());
  std::vector<RotaryPair> pairs(std::accumulate(sections.begin(), sections.end(), int64_t{0}));
  for (int64_t i = 0; i < std::ssize(pairs); ++i)
    pairs[i] = {i / axes < sections[i % axes] ? i % axes : 0, i};
  return pairs;
}

std::vector<RotaryPair> axial_pairs(int64_t pairs, int64_t first_of_columns) {
  std::vector<RotaryPair> axial;
  for (int64_t i = 0; i < (pairs + 1) / 2; ++i) axial.push_back({1, 2 * i});
  for (int64_t i = 0; i < pairs / 2; ++i) axial.push_back({2, 2 * i + first_of_columns});
  return axial;
}

bool DecoderSpec::limits_positions() const {
  const auto is_dynamic = [](const AttentionSpec& kind) {
    return kind.rope.type == RopeType::Dynamic;
  };
  return learned_positions || (block.rotary && std::ranges::any_of(block.attentions(), is_dynamic));
}

std::string DecoderSpec::limit_name() const {
  return learned_positions ? "learned positions (n_positions)"
                           : "positions (max_position_embeddings), beyond which dynamic rotary "
                             "scaling depends on the longest sample";
}

DeltaRuleSpec DeltaRuleSpec::share(int64_t parts) const {
  DeltaRuleSpec part = *this;
  part.key_heads /= parts;
  part.value_heads /= parts;
  return part;
}

std::vector<AttentionSpec> BlockSpec::attentions() const {
  std::vector<AttentionSpec> kinds;
  for (const MixerSpec& mixer : mixers)
    if (const auto* attention = std::get_if<AttentionSpec>(&mixer)) kinds.push_back(*attention);
  return kinds;
}

int64_t BlockSpec::fewest_key_heads() const {
  int64_t fewest = attention().heads.key_value;
  for (const AttentionSpec& kind : attentions()) fewest = std::min(fewest, kind.heads.key_value);
  return fewest;
}

std::vector<DeltaRuleSpec> BlockSpec::delta_rules() const {
  std::vector<DeltaRuleSpec> kinds;
  for (const MixerSpec& mixer : mixers)
    if (const auto* rule = std::get_if<DeltaRuleSpec>(&mixer)) kinds.push_back(*rule);
  return kinds;
}

int64_t BlockSpec::most_taps() const {
  int64_t most = 0;
  for (const DeltaRuleSpec& rule : delta_rules()) most = std::max(most, rule.taps);
  return most;
}

AttentionSpec BlockSpec::widest_attention() const {
  const std::vector<AttentionSpec> kinds = attentions();
  if (kinds.empty()) return {};
  const auto width = [](const AttentionSpec& spec) {
    return spec.window == 0 ? std::numeric_limits<int64_t>::max() : spec.window;
  };
  return std::ranges::max(kinds, {}, width);
}

}  // namespace zea
