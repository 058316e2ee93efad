// SPDX-License-Identifier: Apache-2.0
#include "spec/operation_needs.hpp"

#include <algorithm>

#include "core/kernel_sizes.hpp"
#include "spec/attention_needs.hpp"
#include "spec/audio_needs.hpp"
#include "spec/expert_needs.hpp"
#include "spec/param_shard.hpp"

namespace zea::detail {
namespace {

using Kind = OperationKind;

class Declarations {
 public:
  Declarations(const ModelSpec& model, const UnitSpec& unit, const UnitPart& part)
      : model_(model),
        unit_(unit),
        part_(part),
        sizes_(part.sizes),
        share_(part.share),
        bytes_(part.types),
        block_(model.block(unit.module)),
        hidden_(block_.hidden),
        values_(static_cast<size_t>(unit.graph.values)) {}

  std::vector<OperationNeeds> run() {
    std::vector<OperationNeeds> all;
    for (const Operation& op : unit_.graph.operations) all.push_back(declared(op));
    return all;
  }

 private:
  struct Value {
    int64_t rows = 0, bytes = 0;
    bool has_gradient = false, is_present = true;
  };

  OperationNeeds declared(const Operation& op) {
    OperationNeeds needs;
    for (const int input : op.inputs)
      if (input >= 0) needs.input_has_gradient |= values_[input].has_gradient;
    for (const int role : op.params) needs.trains |= trains(role);
    needs.has_gradient = needs.trains || needs.input_has_gradient;
    if (!op.inputs.empty()) needs.rows = input(op).rows;
    needs.is_absent = !op.inputs.empty() && !input(op).is_present;
    if (!needs.is_absent) declare(op, needs);
    if (needs.is_view) needs.memory.output = input(op).bytes;
    if (op.kind == Kind::GatherExpertRows)
      for (size_t i = 0; i < op.others.size(); ++i)
        values_[op.others[i]] = values_[op.inputs[i + 1]];
    values_[op.output] = {needs.rows, needs.memory.output, needs.has_gradient, !needs.is_absent};
    if (op.kind == Kind::NormSum)
      values_[op.others[0]] = {needs.rows, input(op).bytes, needs.input_has_gradient};
    if (op.kind == Kind::SplitGates || op.kind == Kind::SplitColumns)
      values_[op.others[0]] = {needs.rows, input(op).bytes - needs.memory.output,
                               needs.has_gradient};
    return needs;
  }

  void declare(const Operation& op, OperationNeeds& needs) {
    const Value x = op.inputs.empty() ? Value() : input(op);
    FunctionMemory& memory = needs.memory;
    switch (op.kind) {
      case Kind::Input:
        return declare_input(op, needs);
      case Kind::Patches:
        needs.rows = sizes_.patches;
        return;
      case Kind::Columns:
      case Kind::Windows:
      case Kind::Sinusoids:
      case Kind::RelativeAttention:
      case Kind::CausalConvolution:
        return declare_audio(op, {model_, unit_, sizes_, bytes_, x.rows, x.bytes}, needs);
      case Kind::Vocabulary:
        needs.elements = sizes_.tokens.here * weight(op).in;
        needs.messages = {{MessageKind::SumRows, SentIn::Forward, weight(op).in},
                          {MessageKind::GatherRows, SentIn::Backward, weight(op).in}};
        return declare_table(weight(op), sizes_.tokens, needs);
      case Kind::Positions:
        return declare_positions(op, needs);
      case Kind::Linear:
        count_gemm(op, x.rows, needs);
        memory = (op.has_wide_outputs ? wide_linear_memory : linear_memory)(
            x.rows, weight(op), bias_trains(op), bytes_);
        return;
      case Kind::ColumnLinear:
        return declare_cut_linear(op, false, needs);
      case Kind::RowLinear:
        return declare_cut_linear(op, true, needs);
      case Kind::Activate: {
        const bool keeps_output = op.activation == Activation::Relu;
        scale_by(op, x.rows, needs);
        memory = {.output = x.bytes, .saves_input = !keeps_output, .saves_output = keeps_output};
        if (needs.trains) memory.backward_working = sums_bytes(x.rows, width(x), bytes_);
        return;
      }
      case Kind::Gate:
      case Kind::ClampedGate:
        memory = {.output = x.bytes / 2, .saves_input = true};
        return;
      case Kind::GatherRows:
      case Kind::SumRows:
        return declare_rows_of_all(op.kind, op.count > 0 ? op.count : hidden_, needs);
      case Kind::ScaleGates: {
        const int64_t all = needs.trains ? x.rows * elements_of(op.params[0]) * bytes_.wide : 0;
        memory = {.output = x.bytes, .saves_input = true, .backward_working = all + 2 * x.bytes};
        return;
      }
      case Kind::Route:
      case Kind::GatherExpertRows:
      case Kind::SumExpertRows:
      case Kind::Dispatch:
      case Kind::Combine:
        return declare_mixture(op.kind, mixture(), x.rows, x.bytes, needs);
      case Kind::ExpertLinear:
        return declare_expert_linear(op, x, needs);
      case Kind::SigmoidScale:
        needs.elements = x.rows * width(x);
        memory = {.output = x.bytes,
                  .saved = values_[op.inputs[1]].bytes,
                  .saves_input = true,
                  .backward_working = x.bytes - values_[op.inputs[1]].bytes};
        return;
      case Kind::Add:
      case Kind::AddAdapted:
        memory = {.output = x.bytes, .passes_gradient = true};
        memory.changes_input = op.kind == Kind::AddAdapted;
        return;
      case Kind::AddBiases:
        scale_by(op, x.rows, needs);
        memory = {.output = x.bytes, .changes_input = true};
        if (needs.trains) memory.backward_working = sums_bytes(x.rows, weight(op).out, bytes_);
        return;
      case Kind::Norm:
      case Kind::NormSum:
        return declare_norm(op, x, needs);
      case Kind::SplitGates:
        needs.elements = x.rows * width(x);
        memory.output = x.bytes - x.rows * query_width() * bytes_.param;
        return;
      case Kind::KeysAsValues:
        memory.output = 2 * x.bytes - x.rows * query_width() * bytes_.param;
        needs.elements = memory.output / bytes_.param;
        return;
      case Kind::SplitColumns:
        memory.output = x.rows * op.count * bytes_.param;
        needs.elements = x.bytes / bytes_.param;
        return;
      case Kind::LatentHeads:
        memory.backward_working =
            x.bytes + values_[op.inputs[1]].bytes + values_[op.inputs[2]].bytes;
        return declare_copied_heads(heads(), op.kind, needs);
      case Kind::ValueColumns:
        return declare_copied_heads(heads(), op.kind, needs);
      case Kind::HeadNorms:
        return declare_head_norms(op, x, needs);
      case Kind::Rotary:
        memory = {.output = x.bytes, .changes_input = true};
        return;
      case Kind::Attention:
        return declare_attention(heads(), op.params[0] >= 0, needs);
      case Kind::DeltaRule:
        needs.row_products = model_.delta_rule(unit_)->multiplications();
        needs.messages = {{MessageKind::Scan, SentIn::Forward},
                          {MessageKind::Scan, SentIn::Backward}};
        memory = scan_memory(*model_.delta_rule(unit_), sizes_, share_, x.rows, bytes_);
        return;
      case Kind::LayerScale:
        scale_by(op, x.rows, needs);
        memory = {.output = x.bytes, .saves_input = needs.trains};
        if (needs.trains) memory.backward_working = x.bytes + sums_bytes(x.rows, width(x), bytes_);
        return;
      case Kind::Clamp:
        needs.elements = x.bytes / bytes_.param;
        memory = {.output = x.bytes, .saves_input = true, .gradient_working = 3 * needs.elements};
        return;
      case Kind::Scale:
      case Kind::Standardize:
      case Kind::RowEnds:
        needs.elements = x.rows * width(x);
        memory = {.output = x.bytes};
        if (op.kind == Kind::Standardize) memory = standardized_memory(x.bytes, bytes_);
        return;
      case Kind::Dropout:  // the mask is drawn again in backward
        needs.elements =
            x.rows *
            (op.adapter < 0 ? hidden_ : model_.params[unit_.adapters[op.adapter].a].shape[1]);
        memory = {.output = x.bytes};
        return;
      case Kind::ImageTokens:
        return declare_image_tokens(needs);
      case Kind::Features:
        return declare_features(op, x, needs);
      case Kind::SideBySide:
      case Kind::SpaceToDepth:
      case Kind::Mean:
        needs.rows = x.rows / op.count;
        needs.is_view = op.kind == Kind::SideBySide;
        memory.output = x.bytes;
        if (op.kind == Kind::Mean) memory = mean_memory(x.bytes, op.count, bytes_);
        return;
      case Kind::FrameMeans:
        needs.rows = sizes_.projected.here * op.count;
        needs.is_view = needs.rows == x.rows;  // if no item has several frames
        if (!needs.is_view) memory = joined_memory(needs.rows, width(x), x.rows, bytes_);
        return;
      case Kind::Resample:
        needs.rows = sizes_.features.here;
        needs.elements = needs.rows * hidden_;
        needs.is_view = !sizes_.resamples;
        if (!needs.is_view)
          memory = joined_memory(needs.rows, model_.decoder.block.hidden, needs.rows, bytes_);
        return;
      case Kind::Merge:
        return declare_merge(op, x, needs);
      case Kind::AddFeatures:
        needs.elements = x.rows * hidden_ * (std::ssize(op.inputs) - 1);
        needs.is_view = others(op) == 0;
        memory = {.output = x.bytes,
                  .passes_gradient = true,
                  .forward_peak = std::min(others(op), 2) * x.bytes};
        return;
      case Kind::NextRows:
        return declare_next_rows(x, needs);
      case Kind::Concat:
        memory = {.output = x.bytes + values_[op.inputs[1]].bytes};
        needs.elements = memory.output / bytes_.param;
        return;
      case Kind::TargetRows:
        needs.rows = sizes_.targets.here;
        memory = {.output = needs.rows * hidden_ * bytes_.param};
        return;
      case Kind::Loss:
        return declare_loss(op, x, needs);
    }
  }

  void declare_input(const Operation& op, OperationNeeds& needs) {
    const auto number = static_cast<size_t>(op.count);
    const UnitSpec& source = model_.units[unit_.inputs[number].unit];
    const int64_t columns = model_.output_width(source, share_.tp);
    needs.is_absent = !part_.inputs_present.empty() && !part_.inputs_present[number];
    if (needs.is_absent) return;
    const int64_t usual = source.kind == UnitKind::Keys ? sizes_.tokens.all : sizes_.tokens.here;
    needs.rows = sizes_.inputs.empty() ? usual : sizes_.inputs[number];
    needs.has_gradient =
        number < part_.inputs_need_gradient.size() && part_.inputs_need_gradient[number];
    needs.memory.output = needs.rows * columns * bytes_.param;
  }

  /// Rows of a table, looked up for all rows and then distributed over tp ranks.
  void declare_table(const WeightSpec& table, const RowCounts& dealt, OperationNeeds& needs) {
    FunctionMemory& memory = needs.memory;
    needs.rows = sizes_.tokens.here;
    const int64_t elements = needs.rows * table.in;
    memory.output = elements * bytes_.param;
    if (bytes_.gradient != bytes_.param) memory.backward_working = elements * bytes_.gradient;
    if (!dealt.are_sharded()) return;
    const int64_t all = dealt.travelling * table.in * bytes_.param;
    memory.forward_peak = memory.output + all;
    // The rows of other ranks are zeroed in a copy.
    memory.backward_working = all + dealt.all * table.in * bytes_.gradient;
  }

  void declare_positions(const Operation& op, OperationNeeds& needs) {
    WeightSpec table = op.params.empty() ? WeightSpec() : weight(op);
    table.in = hidden_;  // the table may have a leading dim for axes
    declare_table(table, RowCounts::whole(0), needs);
    if (op.params.empty() || unit_.encoder < 0) return;
    const auto* patches = std::get_if<PatchInput>(&model_.encoders[unit_.encoder].input);
    if (!patches || patches->table_side == 0) return;
    needs.memory.forward_peak = 2 * needs.memory.output;  // interpolated
    needs.memory.backward_working += needs.memory.output;
  }

  /// A linear of which tp ranks have parts: of its inputs (RowLinear) or of its outputs.
  void declare_cut_linear(const Operation& op, bool cuts_inputs, OperationNeeds& needs) {
    const RowCounts& rows = rows_of(op.rows);
    count_gemm(op, rows.all, needs);
    needs.rows = cuts_inputs ? rows.here : rows.all;
    const ParamSpec& whole = first_param(op);
    const int64_t columns = whole.shape[(op.order == WeightOrder::OutIn) == cuts_inputs ? 0 : 1];
    const bool in_chunks = share_.tp_chunks.of(rows.all, columns) > 1;
    needs.memory = cuts_inputs
                       ? row_linear_memory(rows, weight(op), bias_trains(op), bytes_, in_chunks)
                       : column_linear_memory(rows, weight(op), bias_trains(op), bytes_);
    if (whole.tp_sharding.dim < 0) return;
    if (cuts_inputs)
      needs.messages = {{MessageKind::SumRows, SentIn::Forward, columns, op.rows, true},
                        {MessageKind::GatherRows, SentIn::Backward, columns, op.rows, true}};
    else
      needs.messages = {{MessageKind::GatherRows, SentIn::Forward, columns, op.rows, true},
                        {MessageKind::SumRows, SentIn::InputGradient, columns, op.rows, true},
                        {MessageKind::GatherRows, SentIn::WeightGradient, columns, op.rows}};
  }

  /// Rows that tp ranks gather before a mixture of experts, and sum after it.
  void declare_rows_of_all(Kind kind, int64_t columns, OperationNeeds& needs) const {
    const bool gathers = kind == Kind::GatherRows;
    const RowCounts& rows = sizes_.tokens;
    needs.messages = {
        {gathers ? MessageKind::GatherRows : MessageKind::SumRows, SentIn::Forward, columns},
        {gathers ? MessageKind::SumRows : MessageKind::GatherRows, SentIn::Backward, columns}};
    needs.rows = gathers ? rows.all : rows.here;
    needs.is_view = share_.tp == 1 || (gathers && !rows.are_sharded());
    if (needs.is_view) return;
    const int64_t row = columns * bytes_.param,
                  sent = rows.are_sharded() ? rows.travelling : rows.all;
    needs.memory = {.output = needs.rows * row,
                    .forward_peak = (needs.rows + sent) * row,
                    .gradient_working = sent * row};
  }

  /// If rows are distributed over tp ranks, these gather them first.
  void declare_next_rows(const Value& x, OperationNeeds& needs) const {
    if (share_.tp > 1 && share_.sequence_parallel)
      declare_rows_of_all(Kind::GatherRows, hidden_, needs);
    needs.rows = x.rows;
    needs.elements = x.rows * hidden_;
    needs.memory.output = x.bytes;
    needs.memory.forward_peak += x.bytes;
  }

  HeadsPart heads() const { return {model_, unit_, sizes_, share_, bytes_}; }
  MixturePart mixture() const {
    return {*model_.mlp(unit_).router, sizes_, hidden_, share_.ep, share_.ep_cp, share_.ep_tp,
            share_.ep_exchanges,       bytes_};
  }

  void declare_expert_linear(const Operation& op, const Value& x, OperationNeeds& needs) const {
    const MixturePart part = mixture();
    const LocalExperts here = part.local_experts();
    needs.gemms = model_.params_of(unit_, op.params[0]);
    const bool is_stacked = model_.params[needs.gemms.front()].stacks_experts;
    if (!is_stacked) needs.gemms.resize(needs.gemms.size() / static_cast<size_t>(share_.ep));
    needs.gemm_rows = part.usual_rows(x.rows);
    needs.gemm_parts = op.count / share_.ep;
    WeightSpec expert{.in = width(x), .trains = needs.trains};
    const int tp = share_.tp / share_.ep_tp;  // ranks that shard an expert
    for (const int param : needs.gemms)
      expert.out += num_elements(param_shard_of(model_.params[param], tp).shape);
    expert.out /= (is_stacked ? op.count : here.count) * std::max<int64_t>(1, expert.in);
    needs.memory = expert_linear_memory(x.rows, expert, here, bytes_);
    if (op.params[1] < 0) return;
    needs.elements = x.rows * expert.out;
    if (bytes_.on_device) needs.memory.forward_peak += needs.memory.output;
  }

  void declare_norm(const Operation& op, const Value& x, OperationNeeds& needs) {
    const int64_t kept = op.norm.kind == NormKind::Layer ? 2 : 1;  // elements of a row
    scale_by(op, x.rows, needs);
    needs.memory = {.output = x.bytes, .saved = kept * x.rows * bytes_.wide, .saves_input = true};
    if (needs.trains) needs.memory.backward_working = kept * sums_bytes(x.rows, width(x), bytes_);
  }

  void declare_head_norms(const Operation& op, const Value& x, OperationNeeds& needs) {
    const WeightSpec norm = weight(op);
    const HeadShape& heads = all_heads();
    const int64_t normed = model_.attention(unit_).norms_values ? 2 : 1;
    needs.elements = x.rows * heads.dim *
                     ((unit_.makes_queries() ? heads.query : 0) +
                      (unit_.makes_keys() ? normed * heads.key_value : 0));
    if (block_.query_key_norm)
      needs.messages = {{MessageKind::SumStatistics, SentIn::Forward, 2},
                        {MessageKind::SumStatistics, SentIn::InputGradient, 2}};
    if (block_.query_key_norm && share_.tp > 1) {
      needs.memory = joint_norms_memory(x.rows, norm.out, needs.trains, bytes_);
      return;
    }
    const int64_t step = rows_per_sum(width(x)), parts = (x.rows + step - 1) / step;
    needs.memory = {
        .output = x.bytes,
        .saved = x.rows * (width(x) / norm.out) * bytes_.wide,
        .saves_input = true,
        .backward_working = needs.trains ? 2 * (parts + 1) * norm.out * bytes_.wide : 0};
  }

  void declare_image_tokens(OperationNeeds& needs) {
    const PatchInput& input = model_.encoders[unit_.encoder].patches();
    needs.rows = sizes_.tokens.here;
    needs.elements = needs.rows * hidden_;
    const int64_t table = input.side() * input.side() + input.learned_tokens();
    const int64_t widened = bytes_.gradient != bytes_.param ? needs.rows : 0;
    needs.memory = {.output = needs.rows * hidden_ * bytes_.param,
                    .backward_working = (table + widened) * hidden_ * bytes_.gradient};
  }

  void declare_features(const Operation& op, const Value& x, OperationNeeds& needs) {
    const EncoderSpec& encoder = model_.encoders[unit_.encoder];
    const ItemShape usual = encoder.item_shape();
    needs.rows = encoder.averages_frames() ? sizes_.tokens.here
                                           : sizes_.projected.here * encoder.projector.merge;
    const bool in_order = usual.window == 0 && !usual.fitted;
    needs.is_view = in_order && op.inputs.size() == 1 && needs.rows == x.rows;
    needs.memory.output = needs.rows * hidden_ * bytes_.param * std::ssize(op.inputs);
  }

  void declare_merge(const Operation& op, const Value& x, OperationNeeds& needs) {
    const int present = others(op);
    needs.elements = x.rows * hidden_ * (std::ssize(op.inputs) - 1);
    needs.memory = {.output = x.bytes,
                    .passes_gradient = present == 0,
                    .forward_peak = std::min(present, 2) * x.bytes,
                    .gradient_working = present > 1 ? x.bytes : 0};
  }

  void declare_loss(const Operation& op, const Value& x, OperationNeeds& needs) {
    const RowCounts& rows = sizes_.targets;
    const WeightSpec vocabulary = weight(op);
    count_gemm(op, x.rows, needs);
    needs.messages = {{MessageKind::GatherRows, SentIn::Forward, hidden_, UnitRows::Features},
                      {MessageKind::GatherStatistics, SentIn::Forward, 2, UnitRows::Features},
                      {MessageKind::GatherRows, SentIn::Backward, hidden_, UnitRows::Features},
                      {MessageKind::SumRows, SentIn::Backward, hidden_, UnitRows::Features}};
    const bool has_backward = part_.keeps_graph && needs.has_gradient;
    needs.rows = rows.all;
    needs.memory = cross_entropy_memory(rows.all, vocabulary, has_backward && share_.tp == 1,
                                        model_.decoder.logit_softcap > 0, bytes_);
    if (!rows.are_sharded()) return;
    const int64_t gathered = rows.travelling * vocabulary.in * bytes_.param;
    needs.memory.forward_peak += gathered;
    needs.memory.backward_working += 2 * gathered;
    needs.memory.gradient_working += 2 * gathered;
  }

  const HeadShape& all_heads() const { return model_.attention(unit_).heads; }
  int64_t query_width() const {  // on this tp rank
    return unit_.makes_queries() ? all_heads().query / share_.tp * all_heads().dim : 0;
  }
  const Value& input(const Operation& op) const { return values_[op.inputs[0]]; }
  /// How many inputs beyond the first one this microbatch has.
  int others(const Operation& op) const {
    return static_cast<int>(std::count_if(op.inputs.begin() + 1, op.inputs.end(),
                                          [&](int value) { return values_[value].is_present; }));
  }
  int64_t width(const Value& x) const {
    return x.bytes / (std::max<int64_t>(1, x.rows) * bytes_.param);
  }
  const RowCounts& rows_of(UnitRows kind) const {
    return kind == UnitRows::Tokens ? sizes_.tokens : sizes_.projected;
  }

  bool trains(int role) const { return role >= 0 && model_.trains(model_.params_of(unit_, role)); }
  bool bias_trains(const Operation& op) const { return trains(op.params[1]); }
  const ParamSpec& first_param(const Operation& op) const {
    return model_.params[model_.params_of(unit_, op.params[0])[0]];
  }
  /// This tp rank's part of an operation's first parameter; fused ones are one.
  WeightSpec weight(const Operation& op) const {
    WeightSpec weight;
    for (const int param : model_.params_of(unit_, op.params[0])) {
      const Shape shape = param_shard_of(model_.params[param], share_.tp).shape;
      weight.out += shape[0];
      weight.in = num_elements(shape) / shape[0];
      weight.trains |= model_.params[param].trainable;
    }
    if (op.order == WeightOrder::InOut) std::swap(weight.out, weight.in);
    return weight;
  }
  /// A product with the first parameter; the others are vectors.
  void count_gemm(const Operation& op, int64_t rows, OperationNeeds& needs) const {
    needs.gemms = model_.params_of(unit_, op.params[0]);
    needs.gemm_rows = rows;
    for (size_t p = 1; p < op.params.size(); ++p)
      needs.elements += rows * elements_of(op.params[p]);
  }
  void scale_by(const Operation& op, int64_t rows, OperationNeeds& needs) const {
    for (const int role : op.params) needs.elements += rows * elements_of(role);
  }
  int64_t elements_of(int role) const {
    int64_t elements = 0;
    for (const int param : model_.params_of(unit_, role))
      elements += num_elements(model_.params[param].shape);
    return elements;
  }

  const ModelSpec& model_;
  const UnitSpec& unit_;
  const UnitPart& part_;
  const UnitSizes& sizes_;
  const UnitShare& share_;
  const ElementBytes bytes_;
  const BlockSpec& block_;
  const int64_t hidden_;
  std::vector<Value> values_;
};

}  // namespace

std::vector<OperationNeeds> operation_needs(const ModelSpec& model, const UnitSpec& unit,
                                            const UnitPart& part) {
  return Declarations(model, unit, part).run();
}

}  // namespace zea::detail
