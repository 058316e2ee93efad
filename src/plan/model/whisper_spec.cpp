// SPDX-License-Identifier: Apache-2.0
// Whisper's encoder (arXiv:2212.04356) and its projector. Keys have no bias, so the biases of
// queries and values stand apart from the fused matrix. Names are those of transformers'
// WhisperEncoder.
#include "families.hpp"

namespace zea::detail {
namespace {

constexpr double kStd = 0.02;  // WhisperConfig.init_std

void add_embed(SpecBuilder& builder, const AudioConfig& audio, bool trainable) {
  builder.start("audio.embed", "audio", UnitKind::AudioEmbed, {});
  const std::string root = "audio_tower.";
  builder.add(root + "conv1.weight", {audio.hidden, audio.mel_bins, 3}, trainable, kStd);
  builder.add(root + "conv1.bias", {audio.hidden}, trainable, 0);
  builder.add(root + "conv2.weight", {audio.hidden, audio.hidden, 3}, trainable, kStd);
  builder.add(root + "conv2.bias", {audio.hidden}, trainable, 0);
  builder.add_sinusoids(root + "embed_positions.weight", audio.positions, audio.hidden);
}

void add_block(SpecBuilder& builder, const AudioConfig& audio, const std::string& layer,
               bool trainable) {
  const Shape square{audio.hidden, audio.hidden};
  const TpCut heads = cut_outputs(audio.heads), inner = cut_outputs(audio.intermediate);
  builder.add_norm(layer + ".self_attn_layer_norm", audio.hidden, trainable, true);
  for (const char* part : {"q_proj", "k_proj", "v_proj"})
    builder.add(layer + ".self_attn." + part + ".weight", square, trainable, kStd, heads,
                part[0] != 'v');
  for (const char* part : {"q_proj", "v_proj"})
    builder.add(layer + ".self_attn." + part + ".bias", {audio.hidden}, trainable, 0, heads);
  builder.add(layer + ".self_attn.out_proj.weight", square, trainable, kStd,
              cut_inputs(audio.heads));
  builder.add(layer + ".self_attn.out_proj.bias", {audio.hidden}, trainable, 0);
  builder.add_norm(layer + ".final_layer_norm", audio.hidden, trainable, true);
  builder.add(layer + ".fc1.weight", {audio.intermediate, audio.hidden}, trainable, kStd, inner);
  builder.add(layer + ".fc1.bias", {audio.intermediate}, trainable, 0, inner);
  builder.add(layer + ".fc2.weight", {audio.hidden, audio.intermediate}, trainable, kStd,
              cut_inputs(audio.intermediate));
  builder.add(layer + ".fc2.bias", {audio.hidden}, trainable, 0);
}

}  // namespace

void add_audio_encoder(SpecBuilder& builder, const ModelSpec& model, const Trainable& trainable) {
  const AudioConfig& audio = *model.audio;
  add_embed(builder, audio, trainable.of("audio").encoder);
  for (int64_t layer = 0; layer < audio.layers; ++layer) {
    const std::string number = std::to_string(layer);
    builder.start("audio.layers." + number, "audio", UnitKind::AudioBlock,
                  {{builder.last_unit(), false}});
    add_block(builder, audio, "audio_tower.layers." + number, trainable.of("audio").encoder);
  }
  builder.start("audio.projector", "audio", UnitKind::AudioProjector,
                {{builder.last_unit(), false}});
  builder.add_norm("audio_tower.layer_norm", audio.hidden, trainable.of("audio").encoder, true);
  add_projector_linears(builder, model, "audio_projector.", audio.hidden,
                        trainable.of("audio").projector);
}

}  // namespace zea::detail
