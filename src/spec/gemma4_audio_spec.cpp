// SPDX-License-Identifier: Apache-2.0
// The audio encoder of Gemma 4 E2B and E4B: USM's conformer (arXiv:2303.01037) of log-mel columns
// every 10 ms, of which a subsampling makes a row every 40 ms. A linear, a norm without a weight,
// and another linear make features of the text's width. Files leave out values that equal the
// defaults of transformers' configs.
#include <cmath>

#include "spec/gemma4_audio.hpp"

namespace zea::detail {
namespace {

const std::string kAudioTower = "model.audio_tower.";
/// A clip of 30 s, which the processor cuts longer ones to.
constexpr int64_t kMostPositions = 750;

/// transformers attends in chunks with a context around each and masks all but a window per query,
/// so the chunk size only determines the position of each distance.
AttentionSpec read_relative_attention(const ConfigReader& config, int64_t hidden) {
  constexpr const char *kLeft = "attention_context_left", *kRight = "attention_context_right",
                       *kChunk = "attention_chunk_size",
                       *kInvalid = "attention_invalid_logits_value";
  constexpr int64_t kMost = 4096;
  const int64_t heads = config.positive("num_attention_heads", 8);
  config.require_divisor("num_attention_heads", heads, "hidden_size", hidden);
  const int64_t left = config.positive(kLeft, 13), right = config.integer(kRight, 0);
  const int64_t chunk = config.positive(kChunk, 12);
  if (left < 2 || left > kMost)
    config.refuse(kLeft, std::to_string(left),
                  "2 to " + std::to_string(kMost) + " (rows attend to themselves from 2 on)");
  if (right < 0 || right > kMost)
    config.refuse(kRight, std::to_string(right), "0 to " + std::to_string(kMost));
  if (chunk > kMost) config.refuse(kChunk, std::to_string(chunk), "1 to " + std::to_string(kMost));
  AttentionSpec attention{.heads = {heads, heads, hidden / heads}};
  const double cap = config.number("attention_logit_cap", 50);
  if (!(cap > 0) || !std::isfinite(cap))
    config.refuse("attention_logit_cap", config.dump("attention_logit_cap"), "a number above 0");
  // The exponential of a score that is lower by this is 0 in fp64, too.
  constexpr double kNothing = 800;
  if (config.number(kInvalid, -1e9) > -cap - kNothing)
    config.refuse(kInvalid, config.dump(kInvalid),
                  "at most " + formatted("%g", -cap - kNothing) +
                      ": a query must not attend to what lies outside its window");
  attention.scores.softcap = cap;
  attention.scores.scale = 1 / (std::sqrt(static_cast<double>(attention.heads.dim)) * std::log(2));
  // The first of a window of `left` - 1 rows has the second position of its chunk's context.
  attention.relative = RelativeSpec{.left = left - 2,
                                    .right = std::max<int64_t>(right - 1, 0),
                                    .first = (chunk + left - 1 + right) / 2 - 1};
  return attention;
}

MelInput read_subsampled_mels(const ConfigReader& config) {
  constexpr const char* kChannels = "subsampling_conv_channels";
  const std::vector<int64_t> channels =
      config.has(kChannels) ? config.integers(kChannels) : std::vector<int64_t>{128, 32};
  constexpr int64_t kQuarter = 4, kMost = 4096;
  if (channels.size() != 2 || channels[0] < kQuarter || channels[1] < 1 || channels[0] > kMost ||
      channels[1] > kMost)
    config.refuse(kChannels, config.dump(kChannels),
                  "two numbers of channels up to 4096, the first of 4 or more");
  // transformers takes a quarter of the first channels for the bins that remain.
  return {.mel_bins = kQuarter * (channels[0] / kQuarter),
          .positions = kMostPositions,
          .own_length = true,
          .subsampling = Subsampling{.channels = channels}};
}

/// Adds the parameters of one block of the conformer.
void add_conformer_block(SpecBuilder& builder, const BlockSpec& block, const std::string& layer,
                         double std, bool trains) {
  const int64_t hidden = block.hidden;
  const ConformerSpec& spec = *block.conformer;
  const auto add_norm = [&](const std::string& role, const std::string& name) {
    const bool is_of_convolution = role.starts_with("conv");
    builder.add_norm(role, layer + name, is_of_convolution ? spec.convolution_norm : block.norm,
                     hidden, trains);
  };
  const auto add_linear = [&](const std::string& role, const std::string& name, int64_t out,
                              int64_t in) {
    builder.add_linear(role, layer + name + ".linear", block, out, in, {}, false, trains, std);
  };
  for (const auto& [role, name] :
       {std::pair<std::string, std::string>("ff1", ".feed_forward1"), {"ff2", ".feed_forward2"}}) {
    add_norm(role + "_norm", name + ".pre_layer_norm");
    add_linear(role + ".up", name + ".ffw_layer_1", block.mlp().intermediate, hidden);
    add_linear(role + ".down", name + ".ffw_layer_2", hidden, block.mlp().intermediate);
    add_norm(role + "_post_norm", name + ".post_layer_norm");
  }
  add_norm("attention_norm", ".norm_pre_attn");
  const std::string attention = ".self_attn.";
  if (block.clips_linears) {
    for (const std::string part : {"q", "k", "v"})
      add_linear(part, attention + part + "_proj", hidden, hidden);
  } else {
    std::vector<SpecBuilder::Part> parts;
    for (const std::string part : {"q", "k", "v"})
      parts.push_back({layer + attention + part + "_proj.linear.weight", {hidden, hidden}, {}});
    builder.add_fused("qkv.weight", parts, trains, std);
  }
  builder.add("relative_k.weight", layer + attention + "relative_k_proj.weight", {hidden, hidden},
              trains, std);
  builder.add("query_scale", layer + attention + "per_dim_scale", {block.attention().heads.dim},
              trains, 0);
  add_linear("out", attention + "post", hidden, hidden);
  add_norm("attention_post_norm", ".norm_post_attn");
  add_norm("conv_start_norm", ".lconv1d.pre_layer_norm");
  add_linear("conv_start", ".lconv1d.linear_start", 2 * hidden, hidden);
  builder.add("conv.weight", layer + ".lconv1d.depthwise_conv1d.weight", {hidden, 1, spec.taps},
              trains, std);
  add_norm("conv_norm", ".lconv1d.conv_norm");
  add_linear("conv_end", ".lconv1d.linear_end", hidden, hidden);
  add_norm("norm", ".norm_out");
}

void add_subsampling(SpecBuilder& builder, const EncoderSpec& audio, double std, bool trains) {
  const MelInput& input = audio.mels();
  const std::vector<int64_t>& channels = input.subsampling->channels;
  const std::string root = kAudioTower + "subsample_conv_projection.";
  const NormSpec norm{NormKind::Layer, 0, 0, false};
  const auto add_layer = [&](const std::string& role, const std::string& name, int64_t in,
                             int64_t out) {
    builder.add(role + ".weight", root + name + ".conv.weight",
                {out, in, Subsampling::kSide, Subsampling::kSide}, trains, std);
    builder.add_norm(role + "_norm", root + name + ".norm", norm, out, trains);
  };
  builder.start(audio.name + ".embed", audio.name, UnitKind::AudioEmbed, {});
  add_layer("conv1", "layer0", 1, channels[0]);
  add_layer("conv2", "layer1", channels[0], channels[1]);
  builder.add("in.weight", root + "input_proj_linear.weight",
              {audio.block.hidden, input.subsampled_bins() * channels[1]}, trains, std);
}

}  // namespace

Gemma4Audio read_gemma4_audio(const ConfigReader& config) {
  config.require_text("model_type", "gemma4_audio");
  Gemma4Audio audio;
  BlockSpec& block = audio.spec.block;
  constexpr const char* kHidden = "hidden_size";
  constexpr int64_t kMostHidden = int64_t{1} << 20;
  block.hidden = config.positive(kHidden, 1024);
  if (block.hidden % 2 != 0 || block.hidden < 4 || block.hidden > kMostHidden)
    config.refuse(kHidden, std::to_string(block.hidden),
                  "an even number from 4 to 2^20 (sines and cosines of positions)");
  const double eps = config.number("rms_norm_eps", 1e-6);
  const double clip = config.number("gradient_clipping", 1e10);
  if (!(clip > 0)) config.refuse("gradient_clipping", config.dump("gradient_clipping"), "above 0");
  constexpr int64_t kMostTaps = 1024;
  const int64_t taps = config.positive("conv_kernel_size", 5);
  if (taps > kMostTaps)
    config.refuse("conv_kernel_size", std::to_string(taps), "1 to " + std::to_string(kMostTaps));
  block.norm = {NormKind::Rms, 1e-6};  // whatever rms_norm_eps is, as in transformers
  block.conformer = ConformerSpec{.taps = taps,
                                  .feed_forward = config.number("residual_weight", 0.5),
                                  .bound = clip,
                                  .convolution_norm = {NormKind::Rms, eps}};
  block.clips_linears = config.boolean("use_clipped_linears", true);
  block.mlp() = {.intermediate = 4 * block.hidden,
                 .activation = config.activation("hidden_act", "silu")};
  block.attention() = read_relative_attention(config, block.hidden);
  audio.std = config.number("initializer_range", 0.02);
  audio.out = config.positive("output_proj_dims", 1536);
  EncoderSpec& spec = audio.spec;
  spec.name = "audio";
  spec.layers = config.positive("num_hidden_layers", 12);
  spec.input = read_subsampled_mels(config);
  spec.projector = {.norm = {NormKind::Rms, eps}, .has_bare_norm = true, .is_linear = true};
  return audio;
}

void check_feature_extractor(const ConfigReader& config, const EncoderSpec& audio) {
  // Samples are mono at 16 kHz, and clips are not padded. Lengths in samples follow from those in
  // milliseconds.
  config.ignore_keys({"feature_extractor_type", "fft_length", "frame_length", "hop_length",
                      "padding_side", "padding_value", "preemphasis_htk_flavor", "processor_class",
                      "return_attention_mask"});
  const struct {
    const char* key;
    double only;
  } kNumbers[] = {{"feature_size", static_cast<double>(audio.mels().mel_bins)},
                  {"sampling_rate", 16000},
                  {"frame_length_ms", 20},
                  {"hop_length_ms", 10},
                  {"min_frequency", 0},
                  {"max_frequency", 8000},
                  {"preemphasis", 0},
                  {"dither", 0},
                  {"input_scale_factor", 1},
                  {"mel_floor", 1e-3}};
  for (const auto& [key, only] : kNumbers)
    if (config.number(key, only) != only)
      config.refuse(key, config.dump(key), formatted("%g (others are not built)", only));
  config.require_boolean("fft_overdrive", false);
  for (const char* key : {"per_bin_mean", "per_bin_stddev"})
    if (config.has(key)) config.refuse(key, config.dump(key), "null (others are not built)");
}

int add_gemma4_audio(SpecBuilder& builder, const Gemma4Audio& audio, int64_t hidden,
                     const Trainable::Encoder& trains) {
  const EncoderSpec& spec = audio.spec;
  add_subsampling(builder, spec, audio.std, trains.encoder);
  builder.add_each(spec.name, spec.layers, [&](const std::string& number) {
    add_conformer_block(builder, spec.block, kAudioTower + "layers." + number, audio.std,
                        trains.encoder);
  });
  builder.start(spec.name + ".projector", spec.name, UnitKind::Projector,
                {{builder.last_unit(), false}});
  builder.add("encoder_linear.weight", kAudioTower + "output_proj.weight",
              {audio.out, spec.block.hidden}, trains.encoder, audio.std);
  builder.add("encoder_linear.bias", kAudioTower + "output_proj.bias", {audio.out}, trains.encoder,
              0);
  add_projector_linear(builder, "linear", "model.embed_audio.embedding_projection",
                       {hidden, audio.out}, false, trains.projector);
  return builder.last_unit();
}

}  // namespace zea::detail
