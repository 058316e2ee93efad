// SPDX-License-Identifier: Apache-2.0
// The unit kinds once more, on paper: each mirrors its forward in model/*_units.cpp, line by line.
#include "zea/plan/unit_memory.hpp"

#include "paper_functions.hpp"
#include "zea/core/error.hpp"
#include "zea/plan/mask_word.hpp"

namespace zea {
namespace {

using namespace detail;

/// A unit's parameters, taken one after the other; fused ones are one.
class PaperParameters {
 public:
  PaperParameters(const ModelSpec& model, const UnitSpec& unit) : model_(model), unit_(unit) {}

  PaperWeight operator()() {
    const ParamSpec* spec = &take();
    PaperWeight weight{spec->shape[0], num_elements(spec->shape) / spec->shape[0], spec->trainable};
    while (spec->fused_with_next) {
      spec = &take();
      weight.out += spec->shape[0];
    }
    weight.has_bias = position_ < unit_.params.size() &&
                      model_.params[unit_.params[position_]].name.ends_with(".bias");
    return weight;
  }
  /// A weight of (in, out).
  PaperWeight in_out() {
    const PaperWeight weight = (*this)();
    return {weight.in, weight.out, weight.trains, weight.has_bias};
  }
  void skip_if(bool present) {
    if (present) (*this)();
  }

 private:
  const ParamSpec& take() {
    ZEA_ASSERT(position_ < unit_.params.size());
    return model_.params[unit_.params[position_++]];
  }

  const ModelSpec& model_;
  const UnitSpec& unit_;
  size_t position_ = 0;
};

class PaperUnit {
 public:
  PaperUnit(const ModelSpec& model, const UnitSpec& unit, const MicrobatchSizes& sizes,
            const UnitTypes& types, const UnitCall& call)
      : model_(model),
        unit_(unit),
        sizes_(sizes),
        threads_(types.threads),
        call_(call),
        bytes_(types),
        next_(model, unit),
        tape_(call.keeps_graph) {}

  UnitMemory run() {
    switch (unit_.kind) {
      case UnitKind::PatchEmbed:
        return tape_.finish(patch_embed());
      case UnitKind::VisionBlock:
        return tape_.finish(vision_block());
      case UnitKind::Projector:
        return tape_.finish(projector());
      case UnitKind::TokenEmbed:
        return tape_.finish(token_embed());
      case UnitKind::Merge:
        return tape_.finish(merge());
      case UnitKind::DecoderBlock:
        return tape_.finish(decoder_block());
      case UnitKind::Gpt2Block:
        return tape_.finish(gpt2_block());
      case UnitKind::Head:
        return tape_.finish(head());
    }
    throw InternalError("unknown unit kind");
  }

 private:
  int64_t image_rows() const { return sizes_.items * model_.vision->tokens(); }

  int input(size_t i, int64_t rows, int64_t width) {
    const bool needs = i < call_.inputs_need_gradient.size() && call_.inputs_need_gradient[i];
    return tape_.input(rows * width * bytes_.param, needs);
  }
  bool present(size_t i) const { return call_.inputs_present.empty() || call_.inputs_present[i]; }
  int linear(int x, int64_t rows, const PaperWeight& weight) {
    return tape_.call(paper_linear(rows, weight, bytes_), {x});
  }
  int sum(int x, int y) {
    const int result = tape_.call(paper_sum(tape_.bytes(x)), {x, y});
    tape_.drop(y);
    return result;
  }
  int layer_norm(int x, int64_t rows) {
    const PaperWeight weight = next_();
    next_();
    return tape_.call(paper_layer_norm(rows, weight.out, weight.trains, bytes_), {x});
  }
  int rms_norm(int x, int64_t rows) {
    const PaperWeight weight = next_();
    return tape_.call(paper_rms_norm(rows, weight.out, weight.trains, bytes_), {x});
  }
  int attention(int qkv, int64_t rows, const std::vector<AttentionSizes>& batches,
                const PaperHeads& heads) {
    return tape_.call(paper_attention(rows, batches, heads, threads_, bytes_), {qkv});
  }
  /// activate(linear(x)): the linear's output is a temporary of the expression.
  int activated(int x, int64_t rows, const PaperWeight& weight, Activation activation) {
    const int wide = linear(x, rows, weight);
    const int y = tape_.call(paper_activation(rows, weight.out, activation, bytes_), {wide});
    tape_.drop(wide);
    return y;
  }

  int patch_embed() {
    const VisionConfig& vision = *model_.vision;
    const int64_t rows = sizes_.items * vision.patches();
    const PaperWeight class_token = next_(), patch = next_(), positions = next_();
    const int x = tape_.input(0, false);
    PaperFunction embed = paper_linear(rows, patch, bytes_);
    // The gradient without class tokens is made contiguous.
    embed.backward_working += embed.output;
    const int patches = tape_.call(embed, {x});
    const int tokens =
        tape_.call(paper_class_and_positions(sizes_.items, vision.tokens(), vision.hidden,
                                             class_token.trains || positions.trains, bytes_),
                   {patches});
    return layer_norm(tokens, image_rows());
  }

  int vision_block() {
    const VisionConfig& vision = *model_.vision;
    const int64_t rows = image_rows();
    const int x = input(0, rows, vision.hidden);
    const int normed = layer_norm(x, rows);
    const int qkv = linear(normed, rows, next_());
    next_();
    const int attended = attention(qkv, rows, sizes_.images,
                                   {vision.heads, vision.heads, vision.hidden / vision.heads});
    const PaperWeight out = next_();
    next_();
    const int y = sum(x, linear(attended, rows, out));
    const int normed2 = layer_norm(y, rows);
    const PaperWeight first = next_();
    next_();
    const int inner = activated(normed2, rows, first, vision.activation);
    const PaperWeight second = next_();
    next_();
    return sum(y, linear(inner, rows, second));
  }

  int projector() {
    const VisionConfig& vision = *model_.vision;
    const int64_t rows = sizes_.items * vision.features();
    std::vector<int> taps;
    for (size_t i = 0; i < unit_.inputs.size(); ++i)
      taps.push_back(input(i, image_rows(), vision.hidden));
    int x = taps[0];
    const bool copies = taps.size() > 1 || !vision.keep_class_token;
    if (copies)
      x = tape_.call(
          paper_rows(rows * vision.hidden * bytes_.param * static_cast<int64_t>(taps.size())),
          taps);
    const PaperWeight first = next_();
    next_.skip_if(model_.projector.bias);
    const int inner = activated(x, rows, first, model_.projector.activation);
    const PaperWeight second = next_();
    next_.skip_if(model_.projector.bias);
    return linear(inner, rows, second);
  }

  int token_embed() {
    const int tokens = tape_.call(paper_embedding(sizes_.tokens, next_(), bytes_), {});
    if (!model_.text.learned_positions) return tokens;
    return sum(tokens, tape_.call(paper_embedding(sizes_.tokens, next_(), bytes_), {}));
  }

  int merge() {
    const int text = input(0, sizes_.tokens, model_.text.hidden);
    if (unit_.inputs.size() < 2 || !present(1))
      return tape_.call(paper_sum(tape_.bytes(text)), {text});
    const int features = input(1, sizes_.items * model_.vision->features(), model_.text.hidden);
    return tape_.call(paper_rows(tape_.bytes(text)), {text, features});
  }

  int decoder_block() {
    const TextConfig& text = model_.text;
    const int64_t rows = sizes_.tokens;
    const int x = input(0, rows, text.hidden);
    const int normed = rms_norm(x, rows);
    const PaperWeight qkv_weight = next_();
    next_.skip_if(text.attention_bias);
    const int qkv = linear(normed, rows, qkv_weight);
    const int rotated = tape_.call(paper_rotary(rows, qkv_weight.out, bytes_), {qkv});
    const int attended =
        attention(rotated, rows, sizes_.text, {text.heads, text.kv_heads, text.head_dim});
    const PaperWeight out = next_();
    next_.skip_if(text.attention_bias);
    const int y = sum(x, linear(attended, rows, out));
    const int normed2 = rms_norm(y, rows);
    const PaperWeight gate_up = next_();
    next_.skip_if(text.mlp_bias);
    const int wide = linear(normed2, rows, gate_up);
    const int inner = tape_.call(paper_swiglu(rows, gate_up.out / 2, bytes_), {wide});
    tape_.drop(wide);
    const PaperWeight down = next_();
    next_.skip_if(text.mlp_bias);
    return sum(y, linear(inner, rows, down));
  }

  int gpt2_block() {
    const TextConfig& text = model_.text;
    const int64_t rows = sizes_.tokens;
    const int x = input(0, rows, text.hidden);
    const int normed = layer_norm(x, rows);
    const int qkv = linear(normed, rows, next_.in_out());
    next_();
    const int attended = attention(qkv, rows, sizes_.text, {text.heads, text.heads, text.head_dim});
    const PaperWeight out = next_.in_out();
    next_();
    const int y = sum(x, linear(attended, rows, out));
    const int normed2 = layer_norm(y, rows);
    const PaperWeight up = next_.in_out();
    next_();
    const int inner = activated(normed2, rows, up, text.activation);
    const PaperWeight down = next_.in_out();
    next_();
    return sum(y, linear(inner, rows, down));
  }

  int head() {
    const TextConfig& text = model_.text;
    const int64_t rows = sizes_.targets;
    const int x = input(0, sizes_.tokens, text.hidden);
    const int asked = tape_.call(paper_rows(rows * text.hidden * bytes_.param), {x});
    const int normed = text.layer_norms ? layer_norm(asked, rows) : rms_norm(asked, rows);
    tape_.drop(asked);
    return tape_.call(paper_cross_entropy(rows, next_(), bytes_), {normed});
  }

  const ModelSpec& model_;
  const UnitSpec& unit_;
  const MicrobatchSizes& sizes_;
  int64_t threads_;
  const UnitCall& call_;
  ElementBytes bytes_;
  PaperParameters next_;
  PaperTape tape_;
};

std::vector<AttentionSizes> attention_sizes(const std::vector<Segment>& segments) {
  std::vector<AttentionSizes> sizes;
  for (const SegmentBatch& batch : batch_segments(segments)) {
    sizes.push_back({static_cast<int64_t>(batch.segments.size()), batch.length, 0});
    for (const Segment& segment : batch.segments) sizes.back().tokens += segment.length;
  }
  return sizes;
}

}  // namespace

MicrobatchSizes microbatch_sizes(const ModelSpec& model, const std::vector<SampleIndex>& samples) {
  MicrobatchSizes sizes;
  std::vector<Segment> text, images;
  for (const SampleIndex& sample : samples) {
    text.push_back({sizes.tokens, sample.tokens});
    sizes.tokens += sample.tokens;
    sizes.targets += sample.targets;
    sizes.items += sample.items;
  }
  sizes.samples = static_cast<int64_t>(samples.size());
  for (int64_t item = 0; model.vision && item < sizes.items; ++item)
    images.push_back({item * model.vision->tokens(), model.vision->tokens()});
  sizes.text = attention_sizes(text);
  sizes.images = attention_sizes(images);
  return sizes;
}

UnitMemory unit_memory(const ModelSpec& model, const UnitSpec& unit, const MicrobatchSizes& sizes,
                       const UnitTypes& types, const UnitCall& call) {
  return PaperUnit(model, unit, sizes, types, call).run();
}

int64_t microbatch_bytes(const ModelSpec& model, const MicrobatchSizes& sizes,
                         const UnitTypes& text, const UnitTypes& vision) {
  constexpr int64_t kIndex = 8;
  const auto rows_of = [](const std::vector<AttentionSizes>& batches) {
    int64_t rows = 0;
    for (const AttentionSizes& batch : batches)
      rows += batch.places() + (batch.padded() ? 2 : 1) * batch.tokens;
    return rows;
  };
  int64_t bytes = kIndex * (sizes.tokens + 2 * sizes.targets + sizes.samples + rows_of(sizes.text));
  bytes += model.text.learned_positions
               ? kIndex * sizes.tokens
               : sizes.tokens * model.text.head_dim * ElementBytes(text).param;
  if (!model.vision) return bytes;
  const VisionConfig& v = *model.vision;
  return bytes + kIndex * (sizes.items * v.features() + rows_of(sizes.images)) +
         sizes.items * v.patches() * v.channels * v.patch_size * v.patch_size *
             ElementBytes(vision).param;
}

}  // namespace zea
