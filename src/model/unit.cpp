// SPDX-License-Identifier: Apache-2.0
// Runs the operations of a unit's forward on tensors: functions of its parameters, its inputs and
// the microbatch.
#include "model/unit.hpp"

#include "core/error.hpp"
#include "core/mixed_bits.hpp"
#include "model/recomputed_output.hpp"
#include "spec/recomputed_values.hpp"

namespace zea {
namespace {

class UnitRun {
 public:
  explicit UnitRun(const UnitArguments& call)
      : call_(call),
        model_(call.model),
        unit_(call.unit),
        block_(model_.block(unit_.module)),
        microbatch_(call.microbatch),
        layers_(call.layers),
        part_(unit_.encoder < 0 ? nullptr : &microbatch_.encoder(unit_)),
        values_(static_cast<size_t>(unit_.graph.values)) {
    ZEA_ASSERT(call.parameters.size() == unit_.roles.size());
  }

  UnitOutput run() {
    const std::vector<Operation>& operations = unit_.graph.operations;
    if (call_.is_selective) {
      last_readers_ = last_readers_of_recomputed(model_, unit_);
      recomputed_.resize(values_.size());
    }
    for (size_t i = 0; i < operations.size(); ++i) {
      const Operation& op = operations[i];
      for (const int value : op.dropped) values_[value].reset();
      values_[op.output] = output(op);
      if (call_.is_selective) free_recomputed(op, static_cast<int>(i));
    }
    const at::Tensor& made = values_[unit_.graph.output];
    if (unit_.kind == UnitKind::Head && call_.head == HeadOutput::Loss)
      return {{}, made, {}, mtp_loss_};
    if (unit_.kind == UnitKind::Keys) return {made.flatten(1), {}};  // (rows, columns)
    return {made, loss_, expert_ends_};
  }

 private:
  using Kind = OperationKind;

  at::Tensor output(const Operation& op) {
    const at::Tensor& x = input(op, 0);
    switch (op.kind) {
      case Kind::Input:
        return call_.inputs[op.count].value_or(at::Tensor());
      case Kind::Patches:
        return part_->patches;
      case Kind::Columns:
        return part_->columns;
      case Kind::Vocabulary:
        return embedded(op);
      case Kind::Positions:
        if (op.params.empty()) return part_->position_table.index_select(0, part_->positions);
        return positions(parameter(op, 0));
      case Kind::Sinusoids:
        return relative_sinusoids(*model_.attention(unit_).relative, block_.hidden,
                                  call_.inputs[0]->options());
      case Kind::Linear:
        return linear(x, parameter(op, 0), optional(op, 1), op.order, TpLinear::None, {},
                      op.has_wide_outputs);
      case Kind::ColumnLinear:
        return layers_.column_linear(x, parameter(op, 0), optional(op, 1), shares(op.rows),
                                     op.order);
      case Kind::RowLinear:
        return layers_.row_linear(x, parameter(op, 0), optional(op, 1), shares(op.rows), op.order);
      case Kind::Activate:
        return activate_biased(x, optional(op, 0), op.activation);
      case Kind::Gate:
        return gated(x, op.activation);
      case Kind::ClampedGate:
        return clamped_gated(x, *model_.mlp(unit_).clamped_gate);
      case Kind::GatherRows:
        return layers_.gathered_rows(x, shares(op.rows));
      case Kind::SumRows:
        return layers_.summed_rows(x, shares(op.rows));
      case Kind::ScaleGates:
        return scaled_gates(x, input(op, 1), parameter(op, 0));
      case Kind::GatherExpertRows: {
        const ExpertTokens all =
            layers_.expert_tokens({x, input(op, 1), input(op, 2)},
                                  model_.mlp(unit_).router->experts, microbatch_.expert_rows);
        values_[op.others[0]] = all.gates;
        values_[op.others[1]] = all.chosen;
        expert_dispatches_ = all.ways;
        return all.rows;
      }
      case Kind::SumExpertRows:
        return layers_.summed_expert_rows(x, microbatch_.expert_rows, expert_dispatches_.get());
      case Kind::Route: {
        if (const RouterLossesOfUnits* losses = layers_.router_losses())
          loss_ = router_loss(x, losses->at(unit_.name));
        const Parameter* bias = optional(op, 0);
        const Routing made =
            route(x, *model_.mlp(unit_).router, bias ? bias->value() : at::Tensor());
        values_[op.others[0]] = made.chosen;
        return made.gates;
      }
      case Kind::Dispatch: {
        const DispatchedRows sent = dispatch_to_experts(
            x, input(op, 1), layers_.local_experts(model_.mlp(unit_).router->experts));
        values_[op.others[0]] = sent.places;
        values_[op.others[1]] = expert_ends_ = sent.ends;
        return sent.rows;
      }
      case Kind::ExpertLinear:
        return expert_linear(x, parameter(op, 0), input(op, 1), op.order, expert_bias(op));
      case Kind::Combine:
        return combined(x, input(op, 1), input(op, 2));
      case Kind::SigmoidScale:
        return x * input(op, 1).sigmoid();
      case Kind::Add:
        return x + input(op, 1);
      case Kind::AddAdapted:
        return add_adapted(x, input(op, 1), unit_.adapters[op.adapter]);
      case Kind::AddBiases:
        return add_query_value_biases(x, parameter(op, 0), parameter(op, 1));
      case Kind::Norm:
        return norm(x, optional(op, 0), optional(op, 1), op.norm);
      case Kind::NormSum: {
        const NormedSum made =
            norm_sum(x, input(op, 1), parameter(op, 0), optional(op, 1), op.norm);
        values_[op.others[0]] = made.sum;
        return made.normed;
      }
      case Kind::SplitGates: {
        const GatedHeads made = split_gates(x, local_heads(x, op).query, all_heads().dim);
        values_[op.others[0]] = made.gates;
        return made.qkv;
      }
      case Kind::KeysAsValues:
        return with_keys_as_values(x, local_heads(x, op).query * all_heads().dim);
      case Kind::SplitColumns: {
        const SplitRows made = split_columns(x, op.count);
        values_[op.others[0]] = made.rest;
        return made.first;
      }
      case Kind::LatentHeads:
        return latent_heads(x, input(op, 1), input(op, 2), *model_.attention(unit_).latent,
                            all_heads().dim);
      case Kind::ValueColumns:
        return first_of_heads(x, all_heads().dim, model_.attention(unit_).value_dim());
      case Kind::HeadNorms:
        return normed_heads(x, local_heads(x, op), parameter(op, 0), parameter(op, 1));
      case Kind::Rotary:
        return rotated(x, local_heads(x, op));
      case Kind::Attention:
        return attended(x, local_heads(x, op), op);
      case Kind::RelativeAttention:
        return relative_attention(x, input(op, 1), part_->positions, parameter(op, 0),
                                  model_.attention(unit_));
      case Kind::CausalConvolution:
        return causal_convolution(x, part_->positions, parameter(op, 0));
      case Kind::DeltaRule:
        return scanned(x, op);
      case Kind::Clamp:
        return op.params.empty() ? clamped(x, op.factor)
                                 : clamped(x, parameter(op, 0), parameter(op, 1));
      case Kind::LayerScale:
        return layer_scale(x, parameter(op, 0));
      case Kind::Standardize:
        return standardized(x, op.factor, optional(op, 0), optional(op, 1));
      case Kind::Scale:  // by a factor of the rows' type, as transformers has it
        return x * at::scalar_tensor(op.factor, at::dtype(x.scalar_type()))
                       .to(at::kDouble)
                       .item<double>();
      case Kind::Dropout:
        return with_dropout(x, op);
      case Kind::Windows:
        return windows_of(x, part_->windows[static_cast<size_t>(op.count)]);
      case Kind::ImageTokens:
        return image_tokens(x, {part_->patch_rows, part_->positions},
                            {parameter(op, 0), parameter(op, 1), optional(op, 2)});
      case Kind::Features:
        return joined_rows(states(op), part_->feature_rows);
      case Kind::SideBySide:
        return x.view({x.size(0) / op.count, op.count * x.size(1)});
      case Kind::SpaceToDepth:
        return x.view({x.size(0) / op.count, op.count, x.size(1)})
            .transpose(1, 2)
            .reshape({x.size(0) / op.count, op.count * x.size(1)});
      case Kind::Mean:
        return x.view({x.size(0) / op.count, op.count, x.size(1)}).mean(1);
      case Kind::FrameMeans:
        return frame_means(x, part_->frames, op.count);
      case Kind::Resample:
        if (!part_->feature_shares_of.defined()) return x;
        return mixed_rows(x, part_->feature_corners, part_->feature_shares_of);
      case Kind::RowEnds:
        return with_row_ends(x, part_->row_ends, parameter(op, 0));
      case Kind::Merge:
        return merged(x, op);
      case Kind::AddFeatures:
        return with_features_added(x, op);
      case Kind::NextRows: {  // all tokens are on the tp ranks together
        const RowsPerTpRank& dealt = shares(op.rows);
        const at::Tensor all = dealt.empty() ? x : layers_.gathered_rows(x, dealt);
        return all.index_select(0, microbatch_.next_rows);
      }
      case Kind::Concat:
        return joined_columns(x.flatten(1), input(op, 1));
      case Kind::TargetRows:  // only these go through the norm and the vocabulary
        if (op.count == 1) return x.defined() ? x.index_select(0, microbatch_.further.rows) : x;
        return x.index_select(0, of_last() ? microbatch_.last_rows : microbatch_.target_rows);
      case Kind::Loss:
        return op.count == 1 ? with_mtp_loss(x, op) : loss(x, parameter(op, 0));
    }
    return {};
  }

  /// Frees each input whose last reader is `op`. Every linear that saves such an input gets a hook;
  /// the first of these backwards recomputes it.
  void free_recomputed(const Operation& op, int number) {
    if (last_readers_[op.output] >= 0 && values_[op.output].requires_grad())
      recomputed_[op.output] =
          std::make_shared<RecomputedOutput>(values_[op.output], recompute_of(op));
    for (const int value : op.inputs) {
      if (value < 0 || !recomputed_[value]) continue;
      if (parameter(op, 0).trainable()) recomputed_[value]->recompute_before(values_[op.output]);
      if (last_readers_[value] != number) continue;
      recomputed_[value]->free();
      values_[value].reset();
    }
  }

  /// Returns a function that computes the output of `op` once more from tensors that its backward
  /// keeps.
  std::function<at::Tensor()> recompute_of(const Operation& op) const {
    const at::Tensor x = (op.kind == Kind::NormSum ? values_[op.others[0]] : input(op, 0)).detach();
    const Operation* const made = &op;  // the model outlives the graph
    if (op.kind == Kind::Gate) return [=] { return gated(x, made->activation); };
    if (op.kind == Kind::ClampedGate)
      return [=, gate = &*model_.mlp(unit_).clamped_gate] { return clamped_gated(x, *gate); };
    Parameter* const first = optional(op, 0);
    if (op.kind == Kind::Activate)
      return [=] { return activate_biased(x, first, made->activation); };
    return [=, bias = optional(op, 1)] { return norm(x, first, bias, made->norm); };
  }

  const at::Tensor& input(const Operation& op, size_t number) const {
    static const at::Tensor kAbsent;
    const bool is_absent = number >= op.inputs.size() || op.inputs[number] < 0;
    return is_absent ? kAbsent : values_[op.inputs[number]];
  }
  Parameter& parameter(const Operation& op, size_t number) const {
    return *call_.parameters[op.params[number]];
  }
  Parameter* optional(const Operation& op, size_t number) const {
    return op.params[number] < 0 ? nullptr : call_.parameters[op.params[number]];
  }

  /// Returns rows of a vocabulary. Placeholders read the per-layer inputs of the padding token, and
  /// do not train this row, as in transformers.
  at::Tensor embedded(const Operation& op) const {
    const at::Tensor rows = layers_.embedding(ids(op), parameter(op, 0),
                                              op.count > 0 ? op.count : model_.decoder.vocabulary,
                                              microbatch_.text_shares);
    if (op.count == 0 || !rows.requires_grad()) return rows;
    for (const EncoderPart& part : microbatch_.encoders)
      if (part.placeholder_rows.defined())
        rows.register_hook([placeholders = part.placeholder_rows](const at::Tensor& gradient) {
          return gradient.index_fill(0, placeholders, 0);
        });
    return rows;
  }
  /// Returns the ids to look up; the table of per-layer inputs has one id for all placeholders.
  at::Tensor ids(const Operation& op) const {
    at::Tensor ids = microbatch_.token_ids;
    if (op.count == 0) return ids;
    for (const EncoderSpec& encoder : model_.encoders)
      for (const int64_t placeholder : {encoder.placeholder, encoder.video_placeholder})
        if (placeholder >= 0)
          ids = ids.masked_fill(ids.eq(placeholder), block_.layer_input.placeholder_id);
    return ids;
  }
  at::Tensor positions(Parameter& table) const {
    if (part_ && part_->corner_shares.defined())
      return interpolated_rows(part_->corners, part_->corner_shares, table);
    return embedding(part_ ? part_->positions : microbatch_.positions, table);
  }
  /// Ranks have equal shares of the parts of a linear, but perhaps of its first.
  static at::Tensor add_adapted(const at::Tensor& y, const at::Tensor& z, const Adapter& adapter) {
    const int64_t left = z.size(1) * adapter.outputs_left / adapter.outputs;
    return add_to_columns(y, z, adapter.part == 0 ? 0 : y.size(1) - left, adapter.scale);
  }
  at::Tensor normed_heads(const at::Tensor& qkv, const HeadShape& heads, Parameter& query,
                          Parameter& key) const {
    if (block_.query_key_norm)
      return layers_.joint_head_norms(by_head(qkv, {1, 1, heads.query * heads.dim}), query, key,
                                      *block_.query_key_norm);
    return head_norms(by_head(qkv, heads), query, key,
                      {heads.query, heads.key_value, model_.attention(unit_).norms_values},
                      block_.norm);
  }
  at::Tensor rotated(const at::Tensor& qkv, const HeadShape& heads) const {
    const TokenAttention& tokens = microbatch_.attention(unit_);
    const RopeConfig& rope = model_.attention(unit_).rope;
    return rotary(qkv, tokens.rotary_cosines, tokens.rotary_sines,
                  rope.parts * (heads.query + heads.key_value), heads.dim / rope.parts,
                  rope.of_neighbors);
  }
  /// If tp ranks shard experts, they have parts of a sum to which one of them adds the bias.
  Parameter* expert_bias(const Operation& op) const {
    const int64_t experts = model_.mlp(unit_).router->experts;
    const bool adds = !op.reads_columns || layers_.local_experts(experts).adds_biases;
    return adds ? optional(op, 1) : nullptr;
  }
  at::Tensor attended(const at::Tensor& qkv, const HeadShape& heads, const Operation& op) const {
    const at::Tensor all = by_head(qkv, heads);
    const TokenAttention& tokens = microbatch_.attention(unit_);
    const AttentionScores scores(model_.attention(unit_).scores, optional(op, 0));
    if (!part_ && microbatch_.cached) {
      const CachedTokens& cached = *microbatch_.cached;
      const bool keeps_latents = model_.caches_latents(unit_);
      const at::Tensor& kept =
          cached.cache->write(model_.keys_of(unit_).name, cached.rows,
                              keeps_latents ? latents_of(all, heads, op)
                                            : all.narrow(1, heads.query, 2 * heads.key_value));
      const auto attend = [&](const at::Tensor& q, const at::Tensor& kv) {
        return layers_.cached_attention(q, kv, tokens.mask.slices(), cached.cp_tokens, scores);
      };
      const at::Tensor q = all.narrow(1, 0, heads.query);
      if (!cached.is_prompt && !keeps_latents) return attend(q, kept);
      if (!cached.is_prompt) {
        const LatentSpec& latent = *model_.attention(unit_).latent;
        const at::Tensor weight = parameter(op, 1).value();
        return values_of_latents(
            attend(queries_of_latents(q, weight, latent), kept.expand({-1, 2, -1})), weight, latent,
            heads);
      }
    }
    return layers_.attention(all, tokens, heads.query, heads.key_value, scores);
  }
  /// Rows of a cache, (tokens of all tp ranks, 1, rotary + rank): what keys of all heads share.
  at::Tensor latents_of(const at::Tensor& all, const HeadShape& heads, const Operation& op) const {
    const at::Tensor rotary =
        all.select(1, heads.query).narrow(1, 0, model_.attention(unit_).latent->rotary);
    return at::cat({rotary, layers_.gathered_rows(input(op, 1), shares(UnitRows::Tokens))}, 1)
        .unsqueeze(1);
  }
  at::Tensor scanned(const at::Tensor& x, const Operation& op) const {
    const DeltaParameters parameters{parameter(op, 0), parameter(op, 1), parameter(op, 2),
                                     parameter(op, 3)};
    const DeltaRuleSpec rule = delta_rule_here(op);
    if (!microbatch_.cached)
      return layers_.delta_rule(x, microbatch_.text_scan, parameters, rule, nullptr);
    const DeltaDecoding decoding{microbatch_.cached->cache->memory(unit_.name),
                                 microbatch_.cached->samples};
    return layers_.delta_rule(x, microbatch_.text_scan, parameters, rule, &decoding);
  }
  /// Without keys nothing is dropped: the model is not trained.
  at::Tensor with_dropout(const at::Tensor& x, const Operation& op) const {
    const RowKeys& rows = keys(op.rows);
    const at::Tensor& drawn_by = op.reads_columns ? rows.of_cp : rows.here;
    if (!drawn_by.defined()) return x;
    const std::string& seed = op.known_by < 0 ? op.seed : call_.parameters[op.known_by]->name();
    const int64_t first_column = op.reads_columns ? layers_.first_column(x.size(1)) : 0;
    return dropped(x, drawn_by, {op.factor, mixed_name(0, seed), first_column});
  }
  std::vector<at::Tensor> states(const Operation& op) const {
    std::vector<at::Tensor> all;
    for (const int value : op.inputs) all.push_back(values_[value]);
    return all;
  }
  at::Tensor merged(const at::Tensor& text, const Operation& op) const {
    at::Tensor rows;
    for (size_t i = 1; i < op.inputs.size(); ++i)
      if (const at::Tensor& features = input(op, i); features.defined())
        rows = (rows.defined() ? rows : text).index_copy(0, placeholder_rows(i), features);
    return rows.defined() ? rows : text.clone();
  }
  at::Tensor with_features_added(const at::Tensor& x, const Operation& op) const {
    at::Tensor rows = x;
    for (size_t i = 1; i < op.inputs.size(); ++i)
      if (const at::Tensor& features = input(op, i); features.defined())
        rows = rows.index_add(0, placeholder_rows(i + static_cast<size_t>(op.count)), features);
    return rows;
  }
  at::Tensor loss(const at::Tensor& x, Parameter& vocabulary) const {
    const RowsPerTpRank& shares = of_last() ? microbatch_.last_shares : microbatch_.target_shares;
    const LogitSpec spec{model_.decoder.vocabulary, model_.decoder.logit_softcap};
    if (call_.head == HeadOutput::Loss)
      return layers_.cross_entropy(x, vocabulary, microbatch_.target_ids, spec, shares);
    return layers_.logits(x, vocabulary, spec, shares);
  }

  /// Without training the block of multi-token prediction has made nothing.
  at::Tensor with_mtp_loss(const at::Tensor& x, const Operation& op) {
    const at::Tensor& loss = input(op, 1);
    if (!x.defined()) return loss;
    const MtpTargets& targets = microbatch_.further;
    const LogitSpec spec{model_.decoder.vocabulary, model_.decoder.logit_softcap};
    const at::Tensor added =
        layers_.cross_entropy(x, parameter(op, 0), targets.ids, spec, targets.shares);
    mtp_loss_ = added.detach();
    return loss + op.factor * added;
  }

  const RowKeys& keys(UnitRows rows) const {
    if (!part_) return microbatch_.text_keys;
    return rows == UnitRows::Tokens ? part_->keys : part_->feature_keys;
  }
  const RowsPerTpRank& shares(UnitRows rows) const {
    if (!part_) return microbatch_.text_shares;
    return rows == UnitRows::Tokens ? part_->shares : part_->feature_shares;
  }
  /// Where the features of the unit's i-th input go.
  const at::Tensor& placeholder_rows(size_t i) const {
    return microbatch_.encoder(model_.units[unit_.inputs[i].unit]).placeholder_rows;
  }
  bool of_last() const { return call_.head == HeadOutput::LastLogits; }

  const HeadShape& all_heads() const { return model_.attention(unit_).heads; }
  /// Returns the heads of this rank's parameters, which may be a tp shard. The output projection's
  /// shape gives the number of query heads; a unit without it has none.
  HeadShape local_heads(const at::Tensor& qkv, const Operation& op) const {
    int64_t attended = 0;
    if (op.known_by >= 0) {
      const std::vector<int64_t>& out = call_.parameters[op.known_by]->shape();
      attended = block_.order == WeightOrder::OutIn ? out[1] : out[0];
    }
    const int64_t query = attended / model_.attention(unit_).value_dim();
    const int64_t all = qkv.flatten(1).size(1) / all_heads().dim;
    return {query, (all - query) / 2, all_heads().dim};
  }
  /// The gated delta rule of the heads whose A_log is at hand.
  DeltaRuleSpec delta_rule_here(const Operation& op) const {
    const DeltaRuleSpec& rule = *model_.delta_rule(unit_);
    return rule.share(rule.value_heads / parameter(op, 1).shape()[0]);
  }
  /// Views rows as (tokens, heads, head_dim).
  static at::Tensor by_head(const at::Tensor& x, const HeadShape& heads) {
    return x.view({x.size(0), heads.query + 2 * heads.key_value, heads.dim});
  }

  const UnitArguments& call_;
  const ModelSpec& model_;
  const UnitSpec& unit_;
  const BlockSpec& block_;
  const Microbatch& microbatch_;
  const Layers& layers_;
  const EncoderPart* const part_;  ///< of the microbatch; null: the unit is the decoder's
  std::vector<at::Tensor> values_;
  std::vector<int> last_readers_;  ///< as last_readers_of_recomputed() returns them
  std::vector<std::shared_ptr<RecomputedOutput>> recomputed_;  ///< by value
  at::Tensor loss_, expert_ends_, mtp_loss_;                   ///< as in UnitOutput
  std::shared_ptr<const ExpertDispatches> expert_dispatches_;
};

}  // namespace

UnitOutput run_unit(const UnitArguments& call) {
  return UnitRun(call).run();
}

LoneUnit::LoneUnit(const ModelSpec& model, const UnitSpec& unit, const at::TensorOptions& options,
                   at::ScalarType gradient)
    : model_(model), unit_(unit) {
  constexpr double kDeviation = 0.02;
  for (size_t i = 0; i < unit.params.size(); ++i) {
    const ParamSpec* spec = &model.params[unit.params[i]];
    Shape shape = spec->shape;
    for (; spec->fused_with_next; spec = &model.params[unit.params[i]])
      shape[0] += model.params[unit.params[++i]].shape[0];
    owned_.push_back(
        std::make_unique<Parameter>(spec->name, shape, spec->trainable, options.device()));
    parameters_.push_back(owned_.back().get());
    at::Tensor value = at::randn(shape, options.dtype(at::kFloat)) * kDeviation;
    if (spec->init == Init::Ones) value += 1;
    parameters_.back()->set_value(value.to(c10::typeMetaToScalarType(options.dtype())));
    if (spec->trainable)
      parameters_.back()->set_gradient(at::zeros(shape, options.dtype(gradient)));
  }
}

at::Tensor LoneUnit::output(const UnitInputs& inputs, const Microbatch& microbatch,
                            bool is_selective) const {
  const UnitOutput made = run_unit(
      {model_, unit_, parameters_, inputs, microbatch, HeadOutput::Loss, Layers(), is_selective});
  return made.loss.defined() ? made.loss : made.value;
}

}  // namespace zea
