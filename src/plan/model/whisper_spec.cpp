// SPDX-License-Identifier: Apache-2.0
// Whisper's encoder (arXiv:2212.04356) and its projector. Keys have no bias, so the biases of
// queries and values stand apart from the fused matrix. Names are those of transformers'
// WhisperEncoder.
#include "families.hpp"

namespace zea::detail {
namespace {

constexpr double kStd = 0.02;  // WhisperConfig.init_std

void add_embed(SpecBuilder& builder, const EncoderSpec& audio, const std::string& root,
               bool trainable) {
  builder.start(audio.name + ".embed", audio.name, UnitKind::AudioEmbed, {});
  const int64_t hidden = audio.block.hidden;
  const auto convolution = [&](const std::string& name, int64_t channels) {
    builder.add(name + ".weight", root + name + ".weight", {hidden, channels, 3}, trainable, kStd);
    builder.add(name + ".bias", root + name + ".bias", {hidden}, trainable, 0);
  };
  convolution("conv1", audio.mels().mel_bins);
  convolution("conv2", hidden);
  builder.add_sinusoids(root + "embed_positions.weight", audio.mels().positions, hidden);
}

}  // namespace

EncoderSpec read_whisper(const ConfigReader& config) {
  config.require_no_dropout(
      {"dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop"});
  config.require_boolean("scale_embedding", false);
  // Of its decoder and of training by its authors' recipe.
  config.pass_over({"apply_spec_augment", "classifier_proj_size", "decoder_attention_heads",
                    "decoder_ffn_dim", "decoder_layerdrop", "decoder_layers", "init_std",
                    "mask_feature_length", "mask_feature_min_masks", "mask_feature_prob",
                    "mask_time_length", "mask_time_min_masks", "mask_time_prob",
                    "max_target_positions", "median_filter_width", "num_hidden_layers",
                    "tie_word_embeddings", "use_weighted_layer_sum", "vocab_size"});
  EncoderSpec audio;
  BlockSpec& block = audio.block;
  block.hidden = config.positive("d_model", 384);
  block.intermediate = config.positive("encoder_ffn_dim", 1536);
  block.activation = config.activation("activation_function", "gelu");
  audio.layers = config.positive("encoder_layers", 4);
  audio.input = MelInput{.mel_bins = config.positive("num_mel_bins", 80),
                         .positions = config.positive("max_source_positions", 1500)};
  const int64_t heads = config.positive("encoder_attention_heads", 6);
  config.require_divisor("encoder_attention_heads", heads, "d_model", block.hidden);
  if (block.hidden % 2 != 0 || block.hidden < 4)
    config.refuse("d_model", std::to_string(block.hidden),
                  "an even number of 4 or more (sines and cosines of positions)");
  block.heads = {heads, heads, block.hidden / heads};
  return audio;
}

void add_audio_encoder(SpecBuilder& builder, const EncoderSpec& audio, const EncoderPlace& place,
                       int64_t hidden, const Trainable& trainable) {
  const auto [trains, projector_trains] = trainable.of(audio.name);
  add_embed(builder, audio, place.root, trains);
  const BlockFamily blocks{.names = {.attention_norm = ".self_attn_layer_norm",
                                     .q = ".self_attn.q_proj",
                                     .k = ".self_attn.k_proj",
                                     .v = ".self_attn.v_proj",
                                     .out = ".self_attn.out_proj",
                                     .mlp_norm = ".final_layer_norm",
                                     .up = ".fc1",
                                     .down = ".fc2"},
                           .biases = {.q = true, .v = true, .out = true, .mlp = true},
                           .init = {kStd, kStd, kStd, kStd}};
  builder.add_blocks(audio.name, audio.layers, audio.block, blocks, place.root + "layers.", trains);
  builder.start(audio.name + ".projector", audio.name, UnitKind::Projector,
                {{builder.last_unit(), false}});
  builder.add_norm("norm", place.root + "layer_norm", audio.block.norm, audio.block.hidden, trains);
  add_projector_linears(builder, audio.projector, place.projector_root, audio.block.hidden, hidden,
                        projector_trains);
}

}  // namespace zea::detail
