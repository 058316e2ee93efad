// SPDX-License-Identifier: Apache-2.0
// The units of a decoder: embedding, the merge of features into the text, blocks, head.
#include <algorithm>

#include "spec/families.hpp"

namespace zea::detail {

void add_windows(Decoder& decoder, const std::vector<bool>& narrow, int64_t window) {
  BlockSpec& block = decoder.spec.block;
  if (std::ranges::count(narrow, true) == 0) return;
  if (std::ranges::count(narrow, false) == 0) {
    block.attention().window = window;
    return;
  }
  AttentionSpec of_window = block.attention();
  of_window.window = window;
  block.mixers.emplace_back(of_window);
  decoder.blocks.mixer.assign(narrow.begin(), narrow.end());
}

void add_decoder(SpecBuilder& builder, const Decoder& decoder, const std::string& prefix,
                 const std::vector<int>& features, bool trainable) {
  const DecoderSpec& text = decoder.spec;
  const Decoder::Names& names = decoder.names;
  const std::string root = prefix + names.root;
  const int64_t hidden = text.block.hidden;
  builder.start("llm.embed", "llm", UnitKind::TokenEmbed, {});
  const int embed =
      builder.add("vocabulary", root + names.embed + ".weight", {text.vocabulary, hidden},
                  trainable, text.init_std, cut_vocabulary());
  if (!names.positions.empty())
    builder.add("positions", root + names.positions + ".weight", {text.max_positions, hidden},
                trainable, text.init_std);
  if (!features.empty()) {
    std::vector<UnitInput> merged{{builder.last_unit(), false}};
    for (int unit : features) merged.push_back({unit, true});
    builder.start("llm.merge", "llm", UnitKind::Merge, std::move(merged));
  }
  builder.add_blocks("llm", text.layers, text.block, decoder.blocks, root + names.layers,
                     trainable);
  builder.start("llm.head", "llm", UnitKind::Head, {{builder.last_unit(), false}});
  builder.add_norm("norm", root + names.norm, text.block.norm, hidden, trainable);
  if (text.tied_embeddings)
    builder.use("vocabulary", embed);
  else
    builder.add("vocabulary", prefix + names.head + ".weight", {text.vocabulary, hidden}, trainable,
                text.init_std, cut_vocabulary());
}

}  // namespace zea::detail
