// SPDX-License-Identifier: Apache-2.0
// The estimate of a unit's memory: its forward (unit_forward.hpp) over operations that declare
// their bytes, and then its backward.
#include "estimate/unit_memory.hpp"
#include "core/kernel_sizes.hpp"

#include <algorithm>
#include <memory>

#include "estimate/function_memory.hpp"
#include "spec/param_cut.hpp"
#include "spec/unit_forward.hpp"

namespace zea {
namespace {

using namespace detail;

int64_t part_of(int64_t count, int64_t parts) {
  return (count + parts - 1) / parts;
}

int64_t num_segments(const std::vector<AttentionSizes>& batches) {
  int64_t segments = 0;
  for (const AttentionSizes& batch : batches) segments += batch.segments;
  return segments;
}

/// The window that hides something of the longest segment; 0: none does.
int64_t window_here(const AttentionSpec& spec, const std::vector<AttentionSizes>& batches) {
  int64_t longest = 0;
  for (const AttentionSizes& batch : batches) longest = std::max(longest, batch.length);
  return spec.window < longest ? spec.window : 0;
}

/// A tensor of rows on the tape, which lets go of it when nobody holds it.
class TapeTensor {
 public:
  TapeTensor() = default;
  TapeTensor(MemoryTape& tape, int tensor, int64_t rows)
      : held_(std::make_shared<const Held>(tape, tensor)), rows_(rows) {}

  bool is_none() const { return held_ == nullptr; }
  int tensor() const { return held_->tensor; }
  int64_t rows() const { return rows_; }
  /// A view.
  TapeTensor with_rows(int64_t rows) const {
    TapeTensor view = *this;
    view.rows_ = rows;
    return view;
  }

 private:
  struct Held {
    Held(MemoryTape& on, int which) : tape(on), tensor(which) {}
    ~Held() { tape.drop(tensor); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

    MemoryTape& tape;
    const int tensor;
  };

  std::shared_ptr<const Held> held_;
  int64_t rows_ = 0;
};

/// The operations of a unit's forward as calls of functions that declare their bytes.
class MemoryOps {
 public:
  using Value = TapeTensor;
  struct NormedSum {
    TapeTensor sum, normed;
  };

  MemoryOps(const ModelSpec& model, const UnitSpec& unit, const MicrobatchSizes& sizes,
            const UnitTypes& types, const UnitCall& call, const UnitShare& share)
      : model_(model),
        unit_(unit),
        sizes_(sizes),
        call_(call),
        share_(share),
        bytes_(types),
        tape_(call.keeps_graph) {}

  UnitMemory run() {
    const TapeTensor output = unit_forward(*this, model_, unit_);
    return tape_.finish(output.tensor());
  }

  TapeTensor input(size_t i) {
    const UnitSpec& source = model_.units[unit_.inputs[i].unit];
    const bool is_feature = model_.makes_features(unit_.inputs[i].unit);
    const int64_t rows = is_feature ? features_of(source).here : tokens_of(source).here;
    const int64_t width = is_feature ? model_.decoder.block.hidden : model_.hidden(source.module);
    const bool needs = i < call_.inputs_need_gradient.size() && call_.inputs_need_gradient[i];
    return {tape_, tape_.input(rows * width * bytes_.param, needs), rows};
  }
  bool has_input(size_t i) const { return call_.inputs_present.empty() || call_.inputs_present[i]; }
  bool has(const std::string& role) const { return unit_.has(role); }
  /// The microbatch's, which are not counted here; two columns of sound for each row.
  TapeTensor patches() {
    const EncoderSizes& items = sizes_.encoders[unit_.encoder];
    return {tape_, tape_.input(0, false), tokens().here * items.patches / items.tokens};
  }
  TapeTensor columns() { return {tape_, tape_.input(0, false), 2 * tokens().here}; }

  TapeTensor linear(const TapeTensor& x, const std::string& role,
                    WeightOrder order = WeightOrder::OutIn) {
    return call(linear_memory(x.rows(), weight(role, order), bytes_), {x}, x.rows());
  }
  TapeTensor activated_linear(const TapeTensor& x, const std::string& role, Activation activation) {
    return activated(linear(x, role), weight(role).out, activation);
  }
  TapeTensor column_linear(const TapeTensor& x, const std::string& role, UnitRows kind,
                           WeightOrder order) {
    const RowCounts rows = rows_of(kind);
    FunctionMemory f = column_linear_memory(rows, weight(role, order), bytes_);
    // These are added in place; their gradients are made before the matrix's.
    if (has("q.bias"))
      f.backward_working =
          std::max(f.backward_working, biases_working(rows.all, weight("q", order), bytes_));
    return call(f, {x}, rows.all);
  }
  TapeTensor unbiased_column_linear(const TapeTensor& x, const std::string& role, UnitRows kind,
                                    WeightOrder order) {
    return column_linear(x, role, kind, order);
  }
  TapeTensor activated(const TapeTensor& y, const std::string&, Activation activation) {
    return activated(y, tape_.bytes(y.tensor()) / (std::max<int64_t>(1, y.rows()) * bytes_.param),
                     activation);
  }
  const std::vector<Adapter>& adapters() const { return unit_.adapters; }
  /// The mask is drawn again in backward.
  TapeTensor dropped_rows(const TapeTensor& x, double, const std::string&) {
    return call(rows_memory(tape_.bytes(x.tensor())), {x}, x.rows());
  }
  TapeTensor dropped(const TapeTensor& x, const Adapter& adapter, UnitRows) {
    return dropped_rows(x, adapter.dropout, adapter.down);
  }
  TapeTensor dropped_columns(const TapeTensor& x, const Adapter& adapter, UnitRows rows) {
    return dropped(x, adapter, rows);
  }
  TapeTensor add_adapted(const TapeTensor& y, const TapeTensor& z, const Adapter&) {
    FunctionMemory f = sum_memory(tape_.bytes(y.tensor()));
    f.changes_input = true;
    return call(f, {y, z}, y.rows());
  }
  TapeTensor row_linear(const TapeTensor& x, const std::string& role, UnitRows kind,
                        WeightOrder order) {
    const RowCounts rows = rows_of(kind);
    return call(row_linear_memory(rows, weight(role, order), bytes_), {x}, rows.here);
  }
  TapeTensor query_value_biases(const TapeTensor& qkv) { return qkv; }
  TapeTensor head_norms(const TapeTensor& qkv, const BlockSpec& block) {
    const int64_t width = weight("qkv").out;
    const WeightSpec norm = weight("q_norm");
    const FunctionMemory f =
        block.query_key_norm && share_.tp > 1
            ? joint_norms_memory(qkv.rows(), norm.out, norm.trains, bytes_)
            : head_norms_memory(qkv.rows(), width, norm.out, norm.trains, bytes_);
    return call(f, {qkv}, qkv.rows());
  }
  TapeTensor rotary(const TapeTensor& qkv, const BlockSpec&) {
    return call(rotary_memory(qkv.rows(), weight("qkv").out, bytes_), {qkv}, qkv.rows());
  }
  TapeTensor attention(const TapeTensor& qkv, const BlockSpec& block) {
    return call(attention_function(block.heads), {qkv}, qkv.rows());
  }
  TapeTensor gated(const TapeTensor& x, Activation) {
    return call(gated_memory(x.rows(), weight("up").out / 2, bytes_), {x}, x.rows());
  }
  TapeTensor add(const TapeTensor& x, const TapeTensor& y) {
    return call(sum_memory(tape_.bytes(x.tensor())), {x, y}, x.rows());
  }
  TapeTensor layer_scaled(const TapeTensor& x, const std::string& role) {
    const WeightSpec of = weight(role);
    return call(layer_scale_memory(x.rows(), of.out, of.trains, bytes_), {x}, x.rows());
  }
  TapeTensor norm(const TapeTensor& x, const std::string& role, const NormSpec& spec) {
    const WeightSpec of = weight(role);
    const int64_t numbers = spec.kind == NormKind::Layer ? 2 : 1;
    return call(norm_memory(x.rows(), of.out, numbers, of.trains, bytes_), {x}, x.rows());
  }
  NormedSum norm_sum(const TapeTensor& x, const TapeTensor& added, const std::string& role,
                     const NormSpec& spec) {
    const TapeTensor sum = added.is_none() ? x : add(x, added);
    return {sum, norm(sum, role, spec)};
  }
  TapeTensor windows(const TapeTensor& columns) {
    const int64_t rows = columns.rows() / 2;
    return call(windows_memory(rows, model_.hidden(unit_.module), bytes_), {columns}, rows);
  }
  TapeTensor image_tokens(const TapeTensor& patches) {
    const PatchInput& input = encoder_of(unit_).patches();
    const int64_t rows = tokens().here;
    const int64_t table = input.side() * input.side() + input.learned_tokens();
    const bool trains = weight("class_token").trains || weight("positions").trains;
    return call(image_tokens_memory(rows, table, model_.hidden(unit_.module), trains, bytes_),
                {patches}, rows);
  }
  TapeTensor scaled(const TapeTensor& x, double) {
    return call(rows_memory(tape_.bytes(x.tensor())), {x}, x.rows());
  }
  TapeTensor positions() {
    const EncoderSpec* encoder = unit_.encoder < 0 ? nullptr : &encoder_of(unit_);
    if (!encoder || encoder->modality() != Modality::Image || encoder->patches().table_side == 0)
      return table("positions", {});
    const int64_t rows = tokens().here;
    return call(interpolated_rows_memory(rows, weight("positions"), bytes_), {}, rows);
  }
  TapeTensor vocabulary() { return table("vocabulary", tokens()); }
  TapeTensor features() {
    std::vector<TapeTensor> states;
    for (size_t i = 0; i < unit_.inputs.size(); ++i) states.push_back(input(i));
    const RowCounts rows = rows_of(UnitRows::Features);
    const int64_t merge = encoder_of(unit_).projector.merge, tokens = rows.here * merge;
    const ItemShape usual = encoder_of(unit_).item_shape();
    const bool in_order = usual.window == 0 && !usual.fitted;
    if (in_order && states.size() == 1 && tokens == states[0].rows()) return states[0];
    return call(rows_memory(tokens * model_.hidden(unit_.module) * bytes_.param *
                            static_cast<int64_t>(states.size())),
                states, tokens);
  }
  TapeTensor shrunk(const TapeTensor& x) {
    if (sizes_.encoders[unit_.encoder].beyond == 0) return x;
    const int64_t rows = features_of(unit_).here;
    return call(mixed_rows_memory(rows * model_.decoder.block.hidden * bytes_.param), {x}, rows);
  }
  TapeTensor with_row_ends(const TapeTensor& x) {
    return call(rows_memory(tape_.bytes(x.tensor())), {x}, x.rows());
  }
  TapeTensor side_by_side(const TapeTensor& x, int64_t count) {
    return x.with_rows(x.rows() / count);
  }
  TapeTensor by_channel(const TapeTensor& x, int64_t count) {
    return call(rows_memory(tape_.bytes(x.tensor())), {x}, x.rows() / count);
  }
  TapeTensor mean_of(const TapeTensor& x, int64_t count) {
    const int64_t bytes = tape_.bytes(x.tensor());
    FunctionMemory f = rows_memory(bytes / count);
    // The library adds up narrow ones in a wide copy, into wide sums.
    const int64_t wide = bytes / bytes_.param * bytes_.wide;
    if (bytes_.is_narrow()) f.forward_peak = f.output + wide + wide / count;
    return call(f, {x}, x.rows() / count);
  }
  TapeTensor merged(const TapeTensor& text, size_t i) {
    return call(rows_memory(tape_.bytes(text.tensor())), {text, input(i)}, text.rows());
  }
  TapeTensor added(const TapeTensor& text, size_t i) {
    return call(sum_memory(tape_.bytes(text.tensor())), {text, input(i)}, text.rows());
  }
  TapeTensor copy(const TapeTensor& x) {
    return call(sum_memory(tape_.bytes(x.tensor())), {x}, x.rows());
  }
  TapeTensor asked_rows(const TapeTensor& x) {
    const int64_t rows = targets().here;
    return call(rows_memory(rows * model_.hidden(unit_.module) * bytes_.param), {x}, rows);
  }
  TapeTensor loss(const TapeTensor& x) {
    const RowCounts rows = targets();
    const WeightSpec vocabulary = weight("vocabulary");
    const bool has_backward =
        call_.keeps_graph && (vocabulary.trains || tape_.needs_gradient(x.tensor()));
    FunctionMemory f = cross_entropy_memory(rows.all, vocabulary, has_backward && share_.tp == 1,
                                            model_.decoder.logit_softcap > 0, bytes_);
    if (rows.are_dealt()) {
      const int64_t gathered = rows.travelling * vocabulary.in * bytes_.param;
      f.forward_peak += gathered;
      f.backward_working += 2 * gathered;
      f.gradient_working += 2 * gathered;
    }
    return call(f, {x}, rows.all);
  }

 private:
  RowCounts share_of(int64_t rows) const {
    const int64_t all = part_of(rows, share_.cp);
    if (!share_.sequence_parallel) return {all, all, all};
    const int64_t here = part_of(all, share_.tp);
    return {all, here, here * share_.tp};
  }
  const EncoderSpec& encoder_of(const UnitSpec& unit) const {
    return model_.encoders[unit.encoder];
  }
  /// Of all ranks that share them.
  int64_t all_tokens_of(const UnitSpec& unit) const {
    if (unit.encoder < 0) return sizes_.tokens;
    return sizes_.encoders[unit.encoder].tokens;
  }
  RowCounts tokens_of(const UnitSpec& unit) const { return share_of(all_tokens_of(unit)); }
  RowCounts features_of(const UnitSpec& unit) const {
    return share_of(sizes_.encoders[unit.encoder].features);
  }
  RowCounts tokens() const { return tokens_of(unit_); }
  RowCounts targets() const { return share_of(sizes_.targets); }
  RowCounts rows_of(UnitRows kind) const {
    if (kind == UnitRows::Tokens) return tokens();
    const EncoderSizes& items = sizes_.encoders[unit_.encoder];
    return share_of(items.features + items.beyond);
  }

  /// The part of a weight, or of the vector of that role, that this tp rank has; fused ones are
  /// one.
  WeightSpec weight(const std::string& role, WeightOrder order = WeightOrder::OutIn) const {
    const bool is_matrix = unit_.has(role + ".weight");
    const bool has_bias = unit_.has(role + ".bias");
    const std::vector<int> params = model_.params_of(unit_, is_matrix  ? role + ".weight"
                                                            : has_bias ? role + ".bias"
                                                                       : role);
    WeightSpec weight{.trains = model_.params[params[0]].trainable,
                      .has_bias = is_matrix && has_bias};
    for (int param : params) {
      const Shape shape = cut_of(model_.params[param], share_.tp).shape;
      weight.out += shape[0];
      weight.in = num_elements(shape) / shape[0];
    }
    if (order == WeightOrder::InOut && is_matrix) std::swap(weight.out, weight.in);
    return weight;
  }

  /// Rows of a table, looked up for all rows and then dealt.
  TapeTensor table(const std::string& role, const RowCounts& dealt) {
    const WeightSpec of = weight(role);
    const int64_t rows = tokens().here;
    FunctionMemory f = embedding_memory(rows, of, bytes_);
    if (dealt.are_dealt()) {
      const int64_t all = dealt.travelling * of.in * bytes_.param;
      f.forward_peak = f.output + all;
      // What other ranks have the rows of is made zero in a copy.
      f.backward_working = all + dealt.all * of.in * bytes_.gradient;
    }
    return call(f, {}, rows);
  }

  TapeTensor activated(const TapeTensor& wide, int64_t width, Activation activation) {
    return call(activation_memory(wide.rows(), width, activation, bytes_), {wide}, wide.rows());
  }

  FunctionMemory attention_function(HeadShape of_model) const {
    HeadSizes heads{of_model.query / share_.tp,
                    std::max<int64_t>(1, of_model.key_value / share_.tp), of_model.dim};
    const int64_t rows = all_tokens_of(unit_);
    if (share_.cp == 1) {
      if (!bytes_.on_device) return attention_memory(rows, heads, bytes_);
      const AttentionSpec& spec = model_.attention(unit_);
      const int64_t window = unit_.encoder < 0 ? window_here(spec, batches()) : 0;
      const bool takes_bounds =
          bytes_.is_narrow() && takes_ragged_heads(heads.dim) && spec.scores.softcap == 0;
      if (takes_bounds && (window == 0 || !model_.decoder.images_both_ways))
        return ragged_attention_memory(rows, num_segments(batches()), heads, bytes_);
      return window > 0 ? window_attention_memory(rows, window, heads, bytes_)
                        : context_attention_memory({rows, rows, 0, false}, heads, bytes_);
    }
    const int64_t own = part_of(rows, share_.cp), group = own * share_.cp_inner;
    const bool is_all = share_.cp == share_.cp_inner;
    heads.query /= share_.cp_inner;
    heads.key_value = std::max<int64_t>(1, heads.key_value / share_.cp_inner);
    const int64_t keys = is_all ? 0 : share_.gathers_keys ? rows : group;
    const bool passes_keys = !is_all && !share_.gathers_keys;
    return context_attention_memory({own, group, keys, passes_keys}, heads, bytes_);
  }
  const std::vector<AttentionSizes>& batches() const {
    return unit_.encoder < 0 ? sizes_.text
                             : sizes_.encoders[unit_.encoder].attention.at(unit_.attention);
  }

  TapeTensor call(const FunctionMemory& function, const std::vector<TapeTensor>& inputs,
                  int64_t rows) {
    std::vector<int> tensors;
    for (const TapeTensor& input : inputs) tensors.push_back(input.tensor());
    return {tape_, tape_.call(function, tensors), rows};
  }

  const ModelSpec& model_;
  const UnitSpec& unit_;
  const MicrobatchSizes& sizes_;
  const UnitCall& call_;
  const UnitShare& share_;
  ElementBytes bytes_;
  MemoryTape tape_;
};

}  // namespace

UnitMemory unit_memory(const ModelSpec& model, const UnitSpec& unit, const MicrobatchSizes& sizes,
                       const UnitTypes& types, const UnitCall& call, const UnitShare& share) {
  return MemoryOps(model, unit, sizes, types, call, share).run();
}

int64_t microbatch_bytes(const ModelSpec& model, const MicrobatchSizes& sizes,
                         const std::map<std::string, UnitTypes>& types_of_modules) {
  constexpr int64_t kIndex = 8;
  const auto rows_of = [](const std::vector<AttentionSizes>& batches) {
    int64_t rows = 0;
    for (const AttentionSizes& batch : batches)
      rows += batch.padded_tokens() + (batch.padded() ? 2 : 1) * batch.tokens;
    return rows;
  };
  const auto element_bytes = [&](const std::string& module) {
    return ElementBytes(types_of_modules.at(module)).param;
  };
  int64_t bytes = 0;
  if (types_of_modules.contains(kDecoder)) {
    const BlockSpec& block = model.decoder.block;
    int64_t tables = 0;  // elements of a token
    for (const AttentionSpec& kind : block.attention)
      tables += 2 * kind.rope.pairs(block.heads.dim);
    const bool are_batched = std::ranges::any_of(block.attention, [&](const AttentionSpec& spec) {
      return window_here(spec, sizes.text) == 0;
    });
    bytes += kIndex * (sizes.tokens + 2 * sizes.targets + sizes.samples);
    if (are_batched) bytes += kIndex * rows_of(sizes.text);
    if (model.has_dropout(kDecoder)) bytes += kIndex * sizes.tokens;
    bytes += model.decoder.learned_positions ? kIndex * sizes.tokens
                                             : tables * sizes.tokens * element_bytes(kDecoder);
  }
  for (size_t e = 0; e < model.encoders.size(); ++e) {
    const EncoderSpec& encoder = model.encoders[e];
    if (!types_of_modules.contains(encoder.name)) continue;
    const EncoderSizes& items = sizes.encoders[e];
    int64_t rows = 0;
    for (const auto& batches : items.attention) rows += rows_of(batches);
    const int64_t element = element_bytes(encoder.name);
    if (model.has_dropout(encoder.name)) bytes += kIndex * (items.tokens + items.features);
    if (encoder.is_cached) {
      bytes += kIndex * (items.features + items.tokens) +
               items.tokens * model.feature_width(static_cast<int>(e)) * element;
    } else if (encoder.modality() == Modality::Image) {
      const PatchInput& input = encoder.patches();
      const BlockSpec& block = encoder.block;
      const auto tables = block.rotary ? static_cast<int64_t>(block.attention.size()) : 0;
      bytes += kIndex * (items.features + rows) + items.patches * input.values() * element +
               items.tokens * tables * block.heads.dim * element;
      if (input.table_side > 0)
        bytes += items.tokens * input.most_table_shares() * (kIndex + element);
    } else {
      // Positions, features, placeholders and three columns of a row.
      const MelInput& input = encoder.mels();
      bytes += kIndex * (6 * items.tokens + rows) +
               items.items * input.columns() * 3 * input.mel_bins * element;
    }
  }
  return bytes;
}

}  // namespace zea
