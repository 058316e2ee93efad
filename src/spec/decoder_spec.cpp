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

namespace {

/// Adds the block of multi-token prediction after the last block, with the final norm, which the
/// head reads as well. `embedded`: the unit that makes the inputs of the first block. Returns the
/// index of the norm's weight.
int add_mtp(SpecBuilder& builder, const Decoder& decoder, const std::string& norm_name,
            int embedded, bool trainable) {
  const BlockSpec& block = decoder.spec.block;
  const std::string& root = decoder.names.mtp;
  const int64_t hidden = block.hidden;
  builder.start("llm.mtp", "llm", UnitKind::Block,
                {{builder.last_unit(), false}, {embedded, false}});
  builder.unit().is_mtp = true;
  const int norm = builder.add_norm("final_norm", norm_name, block.norm, hidden, trainable);
  builder.add_norm("state_norm", root + "pre_fc_norm_hidden", block.norm, hidden, trainable);
  builder.add_norm("next_norm", root + "pre_fc_norm_embedding", block.norm, hidden, trainable);
  builder.add("fc.weight", root + "fc.weight", {hidden, 2 * hidden}, trainable,
              decoder.spec.init_std);
  builder.add_block(block, decoder.blocks, root + "layers.0", trainable);
  builder.add_norm("norm", root + "norm", block.norm, hidden, trainable);
  return norm;
}

}  // namespace

void add_decoder(SpecBuilder& builder, const Decoder& decoder, const std::string& prefix,
                 const std::vector<int>& features, bool trainable) {
  const DecoderSpec& text = decoder.spec;
  const Decoder::Names& names = decoder.names;
  const std::string root = prefix + names.root;
  const int64_t hidden = text.block.hidden;
  builder.start("llm.embed", "llm", UnitKind::TokenEmbed, {});
  const int embed =
      builder.add("vocabulary", root + names.embed + ".weight", {text.vocabulary, hidden},
                  trainable, text.init_std, vocab_parallel());
  if (!names.positions.empty())
    builder.add("positions", root + names.positions + ".weight", {text.max_positions, hidden},
                trainable, text.init_std);
  if (!features.empty()) {
    std::vector<UnitInput> merged{{builder.last_unit(), false}};
    for (int unit : features) merged.push_back({unit, true});
    builder.start("llm.merge", "llm", UnitKind::Merge, std::move(merged));
  }
  const int embedded = builder.last_unit();
  BlockFamily blocks = decoder.blocks;
  blocks.names.layer_input.root = root;
  builder.add_blocks("llm", text.layers, text.block, blocks, root + names.layers, trainable);
  std::vector<UnitInput> states{{builder.last_unit(), false}};
  if (text.mtp_loss > 0) {
    const int norm = add_mtp(builder, decoder, root + names.norm, embedded, trainable);
    states.push_back({builder.last_unit(), true});
    builder.start("llm.head", "llm", UnitKind::Head, std::move(states));
    builder.use("norm.weight", norm);
  } else {
    builder.start("llm.head", "llm", UnitKind::Head, std::move(states));
    builder.add_norm("norm", root + names.norm, text.block.norm, hidden, trainable);
  }
  if (text.tied_embeddings)
    builder.use("vocabulary", embed);
  else
    builder.add("vocabulary", prefix + names.head + ".weight", {text.vocabulary, hidden}, trainable,
                text.init_std, vocab_parallel());
}

}  // namespace zea::detail
