// SPDX-License-Identifier: Apache-2.0
// Whisper's encoder (arXiv:2212.04356) and its projector, also as Qwen2-Audio, Voxtral and
// Qwen-Omni have it.
// Keys have a bias only in Qwen3-Omni, so the biases of queries, keys and values are separate
// parameters, while their matrices are fused. Names follow transformers' WhisperEncoder.
#include "spec/families.hpp"

namespace zea::detail {
namespace {

constexpr double kStd = 0.02;  // WhisperConfig.init_std
constexpr int64_t kColumnsPerSecond = 100;
constexpr int64_t kMostWindow = 1000000;  ///< columns
/// The longest clip of Qwen-Omni's processors.
constexpr int64_t kOmniMaxClipSeconds = 300;
constexpr int64_t kSampleRate = 16000;

/// Returns the seconds of the longest clip by its feature extractor's config. Qwen3-Omni's
/// processor does not cut clips, so transformers' default of chunk_length does not limit them; its
/// published files have n_samples only.
int64_t read_longest_clip(const ConfigReader& config, bool is_cut) {
  constexpr int64_t kMostSeconds = 3600;
  const bool has_seconds = is_cut || config.has("chunk_length");
  const char* key = has_seconds ? "chunk_length" : "n_samples";
  const int64_t unit = has_seconds ? 1 : kSampleRate;
  const int64_t said = config.positive(key, has_seconds ? 30 : kOmniMaxClipSeconds * unit);
  if (said < unit || said > kMostSeconds * unit)
    config.refuse(key, std::to_string(said),
                  std::to_string(unit) + " to " + std::to_string(kMostSeconds * unit) +
                      (has_seconds ? " (seconds" : " (samples") + " of the longest clip)");
  return said / unit;
}

void add_embed(SpecBuilder& builder, const EncoderSpec& audio, const std::string& root,
               bool trainable) {
  builder.start(audio.name + ".embed", audio.name, UnitKind::AudioEmbed, {});
  const int64_t hidden = audio.block.hidden;
  if (const auto& subsampling = audio.mels().subsampling) {
    int64_t in = 1;
    for (size_t i = 0; i < subsampling->channels.size(); ++i) {
      const std::string number = std::to_string(i + 1), name = root + "conv2d" + number;
      const int64_t out = subsampling->channels[i];
      builder.add("conv" + number + ".weight", name + ".weight",
                  {out, in, Subsampling::kSide, Subsampling::kSide}, trainable, kStd);
      builder.add("conv" + number + ".bias", name + ".bias", {out}, trainable, 0);
      in = out;
    }
    builder.add("in.weight", root + "conv_out.weight",
                {hidden, in * audio.mels().subsampled_bins()}, trainable, kStd);
    return;
  }
  const auto convolution = [&](const std::string& name, int64_t channels) {
    builder.add(name + ".weight", root + name + ".weight", {hidden, channels, 3}, trainable, kStd);
    builder.add(name + ".bias", root + name + ".bias", {hidden}, trainable, 0);
  };
  convolution("conv1", audio.mels().mel_bins);
  convolution("conv2", hidden);
  if (audio.mels().chunk == 0)  // whose positions are in no file
    builder.add_sinusoids(root + "embed_positions.weight", audio.mels().positions, hidden);
}

struct WhisperDefaults {
  int64_t hidden, intermediate, layers, heads, mel_bins;
  const char *hidden_key = "d_model", *intermediate_key = "encoder_ffn_dim",
             *layers_key = "encoder_layers", *heads_key = "encoder_attention_heads";
};

void set_longest_clip(MelInput& input, int64_t seconds) {
  input.most_columns = seconds * kColumnsPerSecond;
  input.positions = input.positions_of(input.most_columns);
}

EncoderSpec read_whisper_like(const ConfigReader& config, const WhisperDefaults& defaults) {
  config.require_no_dropout(
      {"dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop", "layerdrop"});
  config.ignore_keys({"tie_word_embeddings"});  // transformers writes it into every config
  config.require_boolean("scale_embedding", false);
  EncoderSpec audio;
  BlockSpec& block = audio.block;
  block.hidden = config.positive(defaults.hidden_key, defaults.hidden);
  block.mlp().intermediate = config.positive(defaults.intermediate_key, defaults.intermediate);
  block.mlp().activation = config.activation("activation_function", "gelu");
  audio.layers = config.positive(defaults.layers_key, defaults.layers);
  audio.input = MelInput{.mel_bins = config.positive("num_mel_bins", defaults.mel_bins),
                         .positions = config.positive("max_source_positions", 1500)};
  const int64_t heads = config.positive(defaults.heads_key, defaults.heads);
  config.require_divisor(defaults.heads_key, heads, defaults.hidden_key, block.hidden);
  if (block.hidden % 2 != 0 || block.hidden < 4)
    config.refuse(defaults.hidden_key, std::to_string(block.hidden),
                  "an even number of 4 or more (sines and cosines of positions)");
  block.attention().heads = {heads, heads, block.hidden / heads};
  return audio;
}

}  // namespace

EncoderSpec read_whisper(const ConfigReader& config) {
  // Keys of its decoder and of its authors' training recipe.
  config.ignore_keys(
      {"apply_spec_augment", "classifier_proj_size", "decoder_attention_heads", "decoder_ffn_dim",
       "decoder_layerdrop", "decoder_layers", "forced_decoder_ids", "init_std",
       "mask_feature_length", "mask_feature_min_masks", "mask_feature_prob", "mask_time_length",
       "mask_time_min_masks", "mask_time_prob", "max_target_positions", "median_filter_width",
       "num_hidden_layers", "use_weighted_layer_sum", "vocab_size"});
  config.ignore_keys({"is_encoder_decoder"});  // all of Whisper is one
  return read_whisper_like(
      config, {.hidden = 384, .intermediate = 1536, .layers = 4, .heads = 6, .mel_bins = 80});
}

EncoderSpec read_qwen2_audio_encoder(const ConfigReader& config) {
  config.require_text("model_type", "qwen2_audio_encoder");
  config.ignore_keys({"init_std", "num_hidden_layers"});  // of new weights; encoder_layers again
  EncoderSpec audio = read_whisper_like(
      config, {.hidden = 1280, .intermediate = 5120, .layers = 32, .heads = 20, .mel_bins = 128});
  std::get<MelInput>(audio.input).own_length = true;
  audio.projector = {.merge = 2, .pools = true, .pools_first = true, .is_linear = true};
  return audio;
}

EncoderSpec read_omni_audio_encoder(const ConfigReader& config) {
  config.require_text("model_type", "qwen2_5_omni_audio_encoder");
  config.ignore_keys({"init_std", "num_hidden_layers"});  // of new weights; encoder_layers again
  EncoderSpec audio = read_whisper_like(
      config, {.hidden = 1280, .intermediate = 5120, .layers = 32, .heads = 20, .mel_bins = 128});
  MelInput& input = std::get<MelInput>(audio.input);
  const int64_t table = input.positions;
  input.own_length = true;
  const int64_t window = config.positive("n_window", 100);
  if (window > table)
    config.refuse("n_window", std::to_string(window),
                  "max_source_positions = " + std::to_string(table) + " or less");
  audio.block.attention().window = window;
  input.chunk = 2 * window;
  set_longest_clip(input, kOmniMaxClipSeconds);
  audio.projector = {.merge = 2, .pools = true, .pools_first = true, .is_linear = true};
  return audio;
}

EncoderSpec read_qwen3_omni_audio_encoder(const ConfigReader& config) {
  config.require_text("model_type", "qwen3_omni_moe_audio_encoder");
  // Chunks per convolution call; standard deviation of new weights; a copy of encoder_layers.
  config.ignore_keys({"conv_chunksize", "init_std", "num_hidden_layers"});
  EncoderSpec audio = read_whisper_like(
      config, {.hidden = 1280, .intermediate = 5120, .layers = 32, .heads = 20, .mel_bins = 128});
  MelInput& input = std::get<MelInput>(audio.input);
  const int64_t table = input.positions;
  constexpr int64_t kMostChannels = 4096;
  const int64_t channels = config.positive("downsample_hidden_size", 480);
  if (channels > kMostChannels)
    config.refuse("downsample_hidden_size", std::to_string(channels),
                  "1 to " + std::to_string(kMostChannels));
  input.own_length = true;
  input.subsampling = {
      .channels = {channels, channels, channels}, .has_norms = false, .bins_first = true};
  // transformers assumes 13 features per chunk for any chunk length.
  constexpr int64_t kFeatures = 13;
  const int64_t window = config.positive("n_window", 50);
  input.chunk = 2 * window;
  if (window > kMostWindow || input.chunk_positions() != kFeatures)
    config.refuse("n_window", std::to_string(window),
                  "49 to 52, so that a chunk of 2 n_window columns has 13 features");
  if (table < kFeatures)
    config.refuse("max_source_positions", std::to_string(table),
                  "13 (features of a chunk) or more");
  const int64_t seen = config.positive("n_window_infer", 800);
  if (seen < input.chunk || seen > kMostWindow)
    config.refuse("n_window_infer", std::to_string(seen),
                  "2 n_window = " + std::to_string(input.chunk) + " to " +
                      std::to_string(kMostWindow) + " (columns that attend to each other)");
  audio.block.attention().window = seen / input.chunk * kFeatures;
  set_longest_clip(input, kOmniMaxClipSeconds);
  audio.projector = {.activation = audio.block.mlp().activation};
  return audio;
}

void read_audio_processor(const ConfigReader& config, EncoderSpec& encoder) {
  MelInput& input = std::get<MelInput>(encoder.input);
  config.ignore_keys({"feature_extractor_type", "image_processor_type", "n_samples",
                      "nb_max_frames", "padding_side", "processor_class", "return_attention_mask"});
  for (const char* key : {"dither", "padding_value"})
    if (config.number(key, 0) != 0)
      config.refuse(key, config.dump(key), "0 (others are not built)");
  const auto require = [&](const char* key, int64_t value) {
    const int64_t found = config.positive(key, value);
    if (found != value) config.refuse(key, std::to_string(found), std::to_string(value));
  };
  require("feature_size", input.mel_bins);
  require("hop_length", 160);
  require("n_fft", 400);
  require("sampling_rate", kSampleRate);
  set_longest_clip(input, read_longest_clip(config, !input.subsampling));
}

/// Concatenates as many positions as make the width of the MLP.
EncoderSpec read_voxtral_encoder(const ConfigReader& config) {
  config.require_text("model_type", "voxtral_encoder");
  config.ignore_keys({"head_dim", "num_key_value_heads", "vocab_size"});  // transformers reads none
  EncoderSpec audio = read_whisper_like(config, {.hidden = 1280,
                                                 .intermediate = 5120,
                                                 .layers = 32,
                                                 .heads = 20,
                                                 .mel_bins = 128,
                                                 .hidden_key = "hidden_size",
                                                 .intermediate_key = "intermediate_size",
                                                 .layers_key = "num_hidden_layers",
                                                 .heads_key = "num_attention_heads"});
  const int64_t hidden = audio.block.hidden, intermediate = audio.block.mlp().intermediate;
  config.require_divisor("hidden_size", hidden, "intermediate_size", intermediate);
  audio.projector = {.merge = intermediate / hidden, .bias = false};
  if (audio.mels().positions % audio.projector.merge != 0)
    config.refuse(
        "max_source_positions", std::to_string(audio.mels().positions),
        "a multiple of intermediate_size / hidden_size = " + std::to_string(audio.projector.merge));
  return audio;
}

void add_audio_encoder(SpecBuilder& builder, const EncoderSpec& audio, const EncoderNames& names,
                       int64_t hidden, const Trainable& trainable) {
  const auto [trains, projector_trains] = trainable.of(audio.name);
  add_embed(builder, audio, names.root, trains);
  BlockFamily blocks = image_transformer_blocks({kStd, kStd, kStd, kStd});
  blocks.names.attention_norm = ".self_attn_layer_norm";
  blocks.names.mlp_norm = ".final_layer_norm";
  blocks.names.up = ".fc1";
  blocks.names.down = ".fc2";
  blocks.biases.k = names.has_key_biases;
  builder.add_blocks(audio.name, audio.layers, audio.block, blocks, names.root + "layers.", trains);
  builder.start(audio.name + ".projector", audio.name, UnitKind::Projector,
                {{builder.last_unit(), false}});
  builder.add_norm(audio.projector.pools_first ? "encoder_norm_of_means" : "encoder_norm",
                   names.root + names.norm, audio.block.norm, audio.block.hidden, trains);
  const int64_t side_by_side = audio.projector.pools ? 1 : audio.projector.merge;
  const int64_t width = audio.block.hidden * side_by_side;
  if (!names.linears.empty()) {
    const std::string& first = names.linears.front();
    if (audio.projector.is_linear)
      return add_projector_linear(builder, "linear", first, {hidden, width}, true,
                                  projector_trains);
    add_projector_linear(builder, "linear_1", first, {width, width}, true, projector_trains);
    return add_projector_linear(builder, "linear_2", names.linears.back(), {hidden, width}, true,
                                projector_trains);
  }
  add_projector_linears(builder, audio.projector, names.projector_root, width, hidden,
                        projector_trains);
}

}  // namespace zea::detail
