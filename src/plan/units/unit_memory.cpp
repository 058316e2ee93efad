// SPDX-License-Identifier: Apache-2.0
// The unit kinds once more, on paper: each mirrors its forward in model/*_units.cpp, line by line.
#include "zea/plan/units/unit_memory.hpp"

#include <algorithm>

#include "paper_functions.hpp"
#include "zea/core/error.hpp"
#include "zea/plan/model/param_cut.hpp"
#include "zea/plan/tokens/mask_word.hpp"

namespace zea {
namespace {

using namespace detail;

int64_t part_of(int64_t count, int64_t parts) {
  return (count + parts - 1) / parts;
}

/// A unit's parameters as this tp rank has them, taken one after the other; fused ones are one.
class PaperParameters {
 public:
  PaperParameters(const ModelSpec& model, const UnitSpec& unit, int tp)
      : model_(model), unit_(unit), tp_(tp) {}

  PaperWeight operator()() {
    const ParamSpec* spec = &take();
    const Shape shape = cut_of(*spec, tp_).shape;
    PaperWeight weight{shape[0], num_elements(shape) / shape[0], spec->trainable};
    while (spec->fused_with_next) {
      spec = &take();
      weight.out += cut_of(*spec, tp_).shape[0];
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
  int tp_;
  size_t position_ = 0;
};

class PaperUnit {
 public:
  PaperUnit(const ModelSpec& model, const UnitSpec& unit, const MicrobatchSizes& sizes,
            const UnitTypes& types, const UnitCall& call, const UnitShare& share)
      : model_(model),
        unit_(unit),
        sizes_(sizes),
        call_(call),
        share_(share),
        bytes_(types),
        next_(model, unit, share.tp),
        tape_(call.keeps_graph) {}

  UnitMemory run() {
    switch (unit_.kind) {
      case UnitKind::PatchEmbed:
        return tape_.finish(patch_embed());
      case UnitKind::VisionBlock:
        return tape_.finish(vision_block());
      case UnitKind::Projector:
        return tape_.finish(projector());
      case UnitKind::AudioEmbed:
        return tape_.finish(audio_embed());
      case UnitKind::AudioBlock:
        return tape_.finish(audio_block());
      case UnitKind::AudioProjector:
        return tape_.finish(audio_projector());
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
  PaperRows rows_of(int64_t tokens) const {
    const int64_t all = part_of(tokens, share_.cp);
    return {all, share_.sequence_parallel ? part_of(all, share_.tp) : all};
  }
  PaperRows text_rows() const { return rows_of(sizes_.tokens); }
  PaperRows item_rows(const std::string& encoder) const {
    return rows_of(sizes_.items.of(model_.encoder_index(encoder)) *
                   model_.item_shape(encoder).tokens);
  }
  PaperRows feature_rows(const std::string& encoder) const {
    return rows_of(sizes_.items.of(model_.encoder_index(encoder)) *
                   model_.item_shape(encoder).features);
  }

  int input(size_t i, int64_t rows, int64_t width) {
    const bool needs = i < call_.inputs_need_gradient.size() && call_.inputs_need_gradient[i];
    return tape_.input(rows * width * bytes_.param, needs);
  }
  bool present(size_t i) const { return call_.inputs_present.empty() || call_.inputs_present[i]; }
  int column(int x, const PaperRows& rows, const PaperWeight& weight) {
    return tape_.call(paper_column_linear(rows, weight, bytes_), {x});
  }
  int row(int x, const PaperRows& rows, const PaperWeight& weight) {
    return tape_.call(paper_row_linear(rows, weight, bytes_), {x});
  }
  int sum(int x, int y) {
    const int result = tape_.call(paper_sum(tape_.bytes(x)), {x, y});
    tape_.drop(y);
    return result;
  }
  /// The same of a local variable, which stays.
  int sum_of_local(int x, int y) { return tape_.call(paper_sum(tape_.bytes(x)), {x, y}); }
  int layer_norm(int x, int64_t rows) {
    const PaperWeight weight = next_();
    next_();
    return tape_.call(paper_layer_norm(rows, weight.out, weight.trains, bytes_), {x});
  }
  int rms_norm(int x, int64_t rows) {
    const PaperWeight weight = next_();
    return tape_.call(paper_rms_norm(rows, weight.out, weight.trains, bytes_), {x});
  }
  /// `heads`: of the model; `batches`: as the library attends where tokens are not dealt.
  int attention(int qkv, int64_t tokens, PaperHeads heads,
                const std::vector<AttentionSizes>& batches) {
    heads.query /= share_.tp;
    heads.key_value = std::max<int64_t>(1, heads.key_value / share_.tp);
    if (share_.cp == 1)
      return tape_.call(bytes_.on_device ? paper_library_attention(tokens, batches, heads, bytes_)
                                         : paper_attention(tokens, heads, bytes_),
                        {qkv});
    const int64_t own = part_of(tokens, share_.cp), group = own * share_.cp_inner;
    const bool is_all = share_.cp == share_.cp_inner;
    heads.query /= share_.cp_inner;
    heads.key_value = std::max<int64_t>(1, heads.key_value / share_.cp_inner);
    const int64_t keys = is_all ? 0 : share_.gathers_keys ? tokens : group;
    const bool passes_keys = !is_all && !share_.gathers_keys;
    return tape_.call(paper_context_attention({own, group, keys, passes_keys}, heads, bytes_),
                      {qkv});
  }
  /// activate(linear(x)): the linear's output is a temporary of the expression.
  int activated(int x, const PaperRows& rows, const PaperWeight& weight, Activation activation) {
    const int wide = column(x, rows, weight);
    const int y = tape_.call(paper_activation(rows.all, weight.out, activation, bytes_), {wide});
    tape_.drop(wide);
    return y;
  }

  int patch_embed() {
    const VisionConfig& vision = *model_.vision;
    const PaperRows rows = item_rows("vision");
    const int64_t patches_here = rows.here * vision.patches() / vision.tokens();
    const PaperWeight class_token = next_(), patch = next_(), positions = next_();
    const int x = tape_.input(0, false);
    const int patches = tape_.call(paper_linear(patches_here, patch, bytes_), {x});
    const int tokens = tape_.call(
        paper_class_and_positions(part_of(rows.here, vision.tokens()), vision.tokens(),
                                  vision.hidden, class_token.trains || positions.trains, bytes_),
        {patches});
    tape_.drop(patches);
    return layer_norm(tokens, rows.here);
  }

  int vision_block() {
    const VisionConfig& vision = *model_.vision;
    const PaperRows rows = item_rows("vision");
    const int x = input(0, rows.here, vision.hidden);
    const int normed = layer_norm(x, rows.here);
    const int qkv = column(normed, rows, next_());
    next_();
    const int attended = attention(qkv, sizes_.items.of(unit_.encoder) * vision.tokens(),
                                   {vision.heads, vision.heads, vision.hidden / vision.heads},
                                   sizes_.encoders[unit_.encoder]);
    return feed_forward(x, attended, rows, vision.activation);
  }

  /// The rest of an encoder's block, from what it attended to.
  int feed_forward(int x, int attended, const PaperRows& rows, Activation activation) {
    const PaperWeight out = next_();
    next_();
    const int y = sum_of_local(x, row(attended, rows, out));
    const int normed = layer_norm(y, rows.here);
    const PaperWeight first = next_();
    next_();
    const int inner = activated(normed, rows, first, activation);
    const PaperWeight second = next_();
    next_();
    return sum(y, row(inner, rows, second));
  }

  int projector() {
    const VisionConfig& vision = *model_.vision;
    const PaperRows rows = feature_rows("vision");
    std::vector<int> taps;
    for (size_t i = 0; i < unit_.inputs.size(); ++i)
      taps.push_back(input(i, item_rows("vision").here, vision.hidden));
    int x = taps[0];
    const bool copies = taps.size() > 1 || !vision.keep_class_token;
    if (copies)
      x = tape_.call(
          paper_rows(rows.here * vision.hidden * bytes_.param * static_cast<int64_t>(taps.size())),
          taps);
    return projected(x, rows);
  }

  int projected(int x, const PaperRows& rows) {
    const PaperWeight first = next_();
    next_.skip_if(model_.projector.bias);
    const int inner = activated(x, rows, first, model_.projector.activation);
    const PaperWeight second = next_();
    next_.skip_if(model_.projector.bias);
    return row(inner, rows, second);
  }

  /// gelu(linear(x)), as the convolutions are.
  int convolved(int x, int64_t rows) {
    const PaperWeight weight = next_();
    next_();
    const int wide = tape_.call(paper_linear(rows, weight, bytes_), {x});
    const int y = tape_.call(paper_activation(rows, weight.out, Activation::Gelu, bytes_), {wide});
    tape_.drop(wide);
    return y;
  }

  int audio_embed() {
    const int64_t rows = item_rows("audio").here;
    const int columns = convolved(tape_.input(0, false), 2 * rows);
    const int windows = tape_.call(paper_windows(rows, model_.audio->hidden, bytes_), {columns});
    const int tokens = convolved(windows, rows);
    tape_.drop(windows);
    return sum(tokens, tape_.call(paper_embedding(rows, next_(), bytes_), {}));
  }

  int audio_block() {
    const AudioConfig& audio = *model_.audio;
    const PaperRows rows = item_rows("audio");
    const int x = input(0, rows.here, audio.hidden);
    const int normed = layer_norm(x, rows.here);
    PaperWeight qkv_weight = next_();
    qkv_weight.has_bias = false;
    PaperFunction projection = paper_column_linear(rows, qkv_weight, bytes_);
    const PaperWeight query_bias = next_();
    next_();
    // Added in place, so there is no tensor more; their gradients are made before the matrix's.
    projection.backward_working =
        std::max(projection.backward_working, paper_biases_working(rows.all, query_bias, bytes_));
    const int qkv = tape_.call(projection, {normed});
    const int attended = attention(qkv, sizes_.items.of(unit_.encoder) * audio.positions,
                                   {audio.heads, audio.heads, audio.hidden / audio.heads},
                                   sizes_.encoders[unit_.encoder]);
    return feed_forward(x, attended, rows, audio.activation);
  }

  int audio_projector() {
    const PaperRows rows = feature_rows("audio");
    const int x = input(0, rows.here, model_.audio->hidden);
    return projected(layer_norm(x, rows.here), rows);
  }

  int token_embed() {
    const PaperRows rows = text_rows();
    const PaperWeight table = next_();
    PaperFunction f = paper_embedding(rows.here, table, bytes_);
    if (rows.are_dealt()) {
      const int64_t all = rows.all * table.in * bytes_.param;
      f.forward_peak = f.output + all;
      f.backward_working += all;
    }
    const int tokens = tape_.call(f, {});
    if (!model_.text.learned_positions) return tokens;
    return sum(tokens, tape_.call(paper_embedding(rows.here, next_(), bytes_), {}));
  }

  int merge() {
    const int text = input(0, text_rows().here, model_.text.hidden);
    int merged = text;
    for (size_t i = 1; i < unit_.inputs.size(); ++i) {
      if (!present(i)) continue;
      const std::string& encoder = model_.units[unit_.inputs[i].unit].module;
      const int features = input(i, feature_rows(encoder).here, model_.text.hidden);
      const int before = merged;
      merged = tape_.call(paper_rows(tape_.bytes(text)), {before, features});
      if (before != text) tape_.drop(before);
    }
    return merged == text ? tape_.call(paper_sum(tape_.bytes(text)), {text}) : merged;
  }

  int decoder_block() {
    const TextConfig& text = model_.text;
    const PaperRows rows = text_rows();
    const int x = input(0, rows.here, text.hidden);
    const int normed = rms_norm(x, rows.here);
    const PaperWeight qkv_weight = next_();
    next_.skip_if(text.attention_bias);
    const int qkv = column(normed, rows, qkv_weight);
    const int rotated = tape_.call(paper_rotary(rows.all, qkv_weight.out, bytes_), {qkv});
    const int attended =
        attention(rotated, sizes_.tokens, {text.heads, text.kv_heads, text.head_dim}, sizes_.text);
    const PaperWeight out = next_();
    next_.skip_if(text.attention_bias);
    const int y = sum_of_local(x, row(attended, rows, out));
    const int normed2 = rms_norm(y, rows.here);
    const PaperWeight gate_up = next_();
    next_.skip_if(text.mlp_bias);
    const int wide = column(normed2, rows, gate_up);
    const int inner = tape_.call(paper_swiglu(rows.all, gate_up.out / 2, bytes_), {wide});
    tape_.drop(wide);
    const PaperWeight down = next_();
    next_.skip_if(text.mlp_bias);
    return sum(y, row(inner, rows, down));
  }

  int gpt2_block() {
    const TextConfig& text = model_.text;
    const PaperRows rows = text_rows();
    const int x = input(0, rows.here, text.hidden);
    const int normed = layer_norm(x, rows.here);
    const int qkv = column(normed, rows, next_.in_out());
    next_();
    const int attended =
        attention(qkv, sizes_.tokens, {text.heads, text.heads, text.head_dim}, sizes_.text);
    const PaperWeight out = next_.in_out();
    next_();
    const int y = sum_of_local(x, row(attended, rows, out));
    const int normed2 = layer_norm(y, rows.here);
    const PaperWeight up = next_.in_out();
    next_();
    const int inner = activated(normed2, rows, up, text.activation);
    const PaperWeight down = next_.in_out();
    next_();
    return sum(y, row(inner, rows, down));
  }

  int head() {
    const TextConfig& text = model_.text;
    const PaperRows rows = rows_of(sizes_.targets);
    const int x = input(0, text_rows().here, text.hidden);
    const int asked = tape_.call(paper_rows(rows.here * text.hidden * bytes_.param), {x});
    const int normed = text.layer_norms ? layer_norm(asked, rows.here) : rms_norm(asked, rows.here);
    tape_.drop(asked);
    const PaperWeight vocabulary = next_();
    const bool has_backward =
        call_.keeps_graph && (vocabulary.trains || tape_.needs_gradient(normed));
    PaperFunction loss =
        paper_cross_entropy(rows.all, vocabulary, has_backward && share_.tp == 1, bytes_);
    if (rows.are_dealt()) {
      const int64_t gathered = rows.all * text.hidden * bytes_.param;
      loss.forward_peak += gathered;
      loss.backward_working += 2 * gathered;
      loss.gradient_working += 2 * gathered;
    }
    return tape_.call(loss, {normed});
  }

  const ModelSpec& model_;
  const UnitSpec& unit_;
  const MicrobatchSizes& sizes_;
  const UnitCall& call_;
  const UnitShare& share_;
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

/// The calls of so many items of an encoder that the model may not have.
std::vector<AttentionSizes> item_attention(const ModelSpec& model, const std::string& encoder,
                                           int64_t items) {
  if (items == 0) return {};
  const int64_t tokens = model.item_shape(encoder).tokens;
  std::vector<Segment> segments;
  for (int64_t item = 0; item < items; ++item) segments.push_back({item * tokens, tokens});
  return attention_sizes(segments);
}

}  // namespace

MicrobatchSizes with_items(const ModelSpec& model, const MicrobatchSizes& sizes,
                           const ItemCounts& items) {
  MicrobatchSizes other = sizes;
  other.items = items;
  other.encoders.clear();
  for (const std::string& encoder : model.encoders())
    other.encoders.push_back(
        item_attention(model, encoder, items.of(static_cast<int>(other.encoders.size()))));
  return other;
}

MicrobatchSizes microbatch_sizes(const ModelSpec& model, const std::vector<SampleIndex>& samples) {
  MicrobatchSizes sizes;
  ItemCounts items;
  std::vector<Segment> text;
  for (const SampleIndex& sample : samples) {
    text.push_back({sizes.tokens, sample.tokens});
    sizes.tokens += sample.tokens;
    sizes.targets += sample.targets;
    items += sample.items;
  }
  sizes.samples = static_cast<int64_t>(samples.size());
  sizes.text = attention_sizes(text);
  return with_items(model, sizes, items);
}

UnitMemory unit_memory(const ModelSpec& model, const UnitSpec& unit, const MicrobatchSizes& sizes,
                       const UnitTypes& types, const UnitCall& call, const UnitShare& share) {
  return PaperUnit(model, unit, sizes, types, call, share).run();
}

int64_t microbatch_bytes(const ModelSpec& model, const MicrobatchSizes& sizes,
                         const std::map<std::string, UnitTypes>& types_of_modules) {
  constexpr int64_t kIndex = 8;
  const auto rows_of = [](const std::vector<AttentionSizes>& batches) {
    int64_t rows = 0;
    for (const AttentionSizes& batch : batches)
      rows += batch.places() + (batch.padded() ? 2 : 1) * batch.tokens;
    return rows;
  };
  const auto element_bytes = [&](const std::string& module) {
    return ElementBytes(types_of_modules.at(module)).param;
  };
  int64_t bytes = 0;
  if (types_of_modules.contains(kDecoder)) {
    bytes += kIndex * (sizes.tokens + 2 * sizes.targets + sizes.samples + rows_of(sizes.text));
    bytes += model.text.learned_positions
                 ? kIndex * sizes.tokens
                 : sizes.tokens * model.text.head_dim * element_bytes(kDecoder);
  }
  const std::vector<std::string> encoders = model.encoders();
  for (size_t e = 0; e < encoders.size(); ++e) {
    if (!types_of_modules.contains(encoders[e])) continue;
    const int64_t items = sizes.items.of(static_cast<int>(e)), rows = rows_of(sizes.encoders[e]);
    const int64_t element = element_bytes(encoders[e]);
    if (const auto& v = model.vision; model.modality(encoders[e]) == Modality::Image)
      bytes += kIndex * (items * v->features() + rows) +
               items * v->patches() * v->channels * v->patch_size * v->patch_size * element;
    // Positions, features, placeholders and three columns of a row.
    if (const auto& a = model.audio; model.modality(encoders[e]) == Modality::Audio)
      bytes += kIndex * (6 * items * a->positions + rows) +
               items * a->columns() * 3 * a->mel_bins * element;
  }
  return bytes;
}

}  // namespace zea
