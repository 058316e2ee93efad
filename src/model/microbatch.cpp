// SPDX-License-Identifier: Apache-2.0
#include "zea/model/microbatch.hpp"

#include <cmath>
#include <numbers>

#include "zea/core/error.hpp"

namespace zea {
namespace {

using Ids = std::vector<int64_t>;

at::Tensor to_tensor(const Ids& values, at::Device device) {
  return at::tensor(values, at::TensorOptions().dtype(at::kLong)).to(device);
}

/// Inverse frequency of each pair of coordinates, in double.
std::vector<double> rotary_frequencies(const TextConfig& text) {
  const RopeConfig& rope = text.rope;
  std::vector<double> frequencies(text.head_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double frequency =
        std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(text.head_dim));
    if (rope.type == "linear") frequency /= rope.factor;
    if (rope.type == "llama3") {
      // Long waves are stretched by `factor`, short ones kept, those between interpolated
      // (Llama 3.1's rule).
      const double turns = rope.original_max_positions * frequency / (2 * std::numbers::pi);
      const double smooth = std::clamp(
          (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0,
          1.0);
      frequency = (1 - smooth) * frequency / rope.factor + smooth * frequency;
    }
    frequencies[i] = frequency;
  }
  return frequencies;
}

void fill_rotary(Microbatch& out, const std::vector<Segment>& segments, const ModelSpec& model,
                 const MicrobatchOptions& options) {
  const std::vector<double> frequencies = rotary_frequencies(model.text);
  const int64_t half = static_cast<int64_t>(frequencies.size());
  at::Tensor angles = at::empty({out.tokens, half}, at::kDouble);
  double* angle = angles.data_ptr<double>();
  for (const Segment& segment : segments)
    for (int64_t position = 0; position < segment.length; ++position)
      for (double frequency : frequencies) *angle++ = static_cast<double>(position) * frequency;
  out.rotary_cosines = angles.cos().to(options.dtype).to(options.device);
  out.rotary_sines = angles.sin().to(options.dtype).to(options.device);
}

void fill_positions(Microbatch& out, const std::vector<Segment>& segments,
                    const MicrobatchOptions& options) {
  Ids positions;
  for (const Segment& segment : segments)
    for (int64_t position = 0; position < segment.length; ++position) positions.push_back(position);
  out.positions = to_tensor(positions, options.device);
}

AttentionBatch make_attention_batch(const SegmentBatch& batch, at::Device device) {
  Ids rows, places, place_rows;
  bool padded = false;
  for (const Segment& segment : batch.segments)
    for (int64_t i = 0; i < batch.length; ++i) {
      if (i >= segment.length) {
        rows.push_back(0);
        padded = true;
        continue;
      }
      places.push_back(static_cast<int64_t>(rows.size()));
      place_rows.push_back(segment.start + i);
      rows.push_back(segment.start + i);
    }
  AttentionBatch result;
  result.segments = static_cast<int64_t>(batch.segments.size());
  result.length = batch.length;
  result.rows = to_tensor(rows, device);
  if (padded) result.places = to_tensor(places, device);
  result.place_rows = to_tensor(place_rows, device);
  return result;
}

std::vector<AttentionBatch> make_attention(const std::vector<Segment>& segments,
                                           at::Device device) {
  std::vector<AttentionBatch> batches;
  for (const SegmentBatch& batch : batch_segments(segments))
    batches.push_back(make_attention_batch(batch, device));
  return batches;
}

/// Token ids, words, labels and placeholders of all samples, gathered on the host.
struct HostTokens {
  Ids ids, target_rows, target_ids, placeholder_rows, last_rows;
  std::vector<MaskWord> words;
};

void check_sample(const Sample& sample, int64_t placeholders, const ModelSpec& model) {
  for (int32_t id : sample.tokens)
    if (id < 0 || id >= model.text.vocabulary)
      throw DataError("sample " + std::to_string(sample.id) + ": token id " + std::to_string(id) +
                      " is outside the model's vocabulary of " +
                      std::to_string(model.text.vocabulary) +
                      "; pack the data with the model's tokenizer");
  const int64_t tokens = static_cast<int64_t>(sample.tokens.size());
  if (model.text.learned_positions && tokens > model.text.max_positions)
    throw DataError("sample " + std::to_string(sample.id) + " has " + std::to_string(tokens) +
                    " tokens, more than the model's " + std::to_string(model.text.max_positions) +
                    " learned positions (n_positions); cut samples shorter when packing, or "
                    "generate fewer with eval.generate_tokens");
  const int64_t features = model.vision ? model.vision->features() : 0;
  const int64_t items = static_cast<int64_t>(sample.items.size());
  if (placeholders != items * features)
    throw DataError("sample " + std::to_string(sample.id) +
                    ", modality image: " + std::to_string(placeholders) +
                    " placeholder tokens (id " + std::to_string(model.image_token) + ") for " +
                    std::to_string(items) + " images x " + std::to_string(features) +
                    " features of the vision encoder; pack the data with " +
                    std::to_string(features) + " placeholders per image");
}

void append_sample(HostTokens& host, const Sample& sample, int64_t position,
                   const ModelSpec& model) {
  const int64_t features = model.vision ? model.vision->features() : 0;
  const int64_t start = static_cast<int64_t>(host.ids.size());
  int64_t placeholders = 0;
  for (size_t i = 0; i < sample.tokens.size(); ++i) {
    const int64_t row = start + static_cast<int64_t>(i), id = sample.tokens[i];
    host.ids.push_back(id);
    if (model.vision && id == model.image_token) {
      host.words.push_back(make_mask_word(position, kModalityImage, 1 + placeholders / features));
      host.placeholder_rows.push_back(row);
      ++placeholders;
    } else {
      host.words.push_back(make_mask_word(position, kModalityText, 0));
    }
    if (i > 0 && sample.loss_mask[i]) {
      host.target_rows.push_back(row - 1);
      host.target_ids.push_back(id);
    }
  }
  check_sample(sample, placeholders, model);
  host.last_rows.push_back(static_cast<int64_t>(host.ids.size()) - 1);
}

/// (items * patches, channels * patch^2) of (items, channels, size, size).
at::Tensor extract_patches(const at::Tensor& pixels, const VisionConfig& vision) {
  const int64_t side = vision.image_size / vision.patch_size, patch = vision.patch_size;
  return pixels.view({-1, vision.channels, side, patch, side, patch})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({-1, vision.channels * patch * patch});
}

void fill_images(Microbatch& out, const LoadedMicrobatch& loaded, const VisionConfig& vision,
                 const MicrobatchOptions& options) {
  const at::Tensor pixels =
      at::from_blob(const_cast<float*>(loaded.pixels.data()),
                    {out.items, vision.channels, vision.image_size, vision.image_size}, at::kFloat);
  out.patches = extract_patches(pixels, vision).to(options.vision_dtype).to(options.device);
  std::vector<Segment> segments;
  for (int64_t item = 0; item < out.items; ++item)
    segments.push_back({item * vision.tokens(), vision.tokens()});
  out.image_attention = make_attention(segments, options.device);
}

}  // namespace

Microbatch make_microbatch(const LoadedMicrobatch& loaded, const ModelSpec& model,
                           const MicrobatchOptions& options) {
  HostTokens host;
  for (size_t s = 0; s < loaded.samples.size(); ++s)
    append_sample(host, loaded.samples[s], static_cast<int64_t>(s), model);
  Microbatch out;
  out.tokens = static_cast<int64_t>(host.ids.size());
  out.items = loaded.items;
  out.targets = static_cast<int64_t>(host.target_rows.size());
  out.words = std::move(host.words);
  out.token_ids = to_tensor(host.ids, options.device);
  out.target_rows = to_tensor(host.target_rows, options.device);
  out.target_ids = to_tensor(host.target_ids, options.device);
  out.placeholder_rows = to_tensor(host.placeholder_rows, options.device);
  out.last_rows = to_tensor(host.last_rows, options.device);
  const std::vector<Segment> segments = segments_of(out.words);
  if (model.text.learned_positions)
    fill_positions(out, segments, options);
  else
    fill_rotary(out, segments, model, options);
  out.text_attention = make_attention(segments, options.device);
  if (out.items > 0) fill_images(out, loaded, *model.vision, options);
  return out;
}

}  // namespace zea
