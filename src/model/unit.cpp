// SPDX-License-Identifier: Apache-2.0
// The operations of a unit's forward on tensors: functions of its parameters, its inputs and the
// microbatch.
#include "model/unit.hpp"

#include "core/error.hpp"
#include "core/mixed_bits.hpp"
#include "spec/unit_forward.hpp"

namespace zea {
namespace {

class TensorOps {
 public:
  using Value = at::Tensor;
  using NormedSum = zea::NormedSum;

  TensorOps(const ModelSpec& model, const UnitSpec& unit, const std::vector<Parameter*>& parameters,
            const UnitInputs& inputs, const Microbatch& microbatch, HeadOutput head,
            const Layers& layers)
      : model_(model),
        unit_(unit),
        parameters_(parameters),
        inputs_(inputs),
        microbatch_(microbatch),
        head_(head),
        layers_(layers),
        part_(unit.encoder < 0 ? nullptr : &microbatch.encoder(unit)) {
    ZEA_ASSERT(parameters.size() == unit.roles.size());
  }

  at::Tensor input(size_t i) const { return *inputs_[i]; }
  bool has_input(size_t i) const { return inputs_[i].has_value(); }
  bool has(const std::string& role) const { return unit_.has(role); }
  at::Tensor patches() const { return part_->patches; }
  at::Tensor columns() const { return part_->columns; }

  at::Tensor linear(const at::Tensor& x, const std::string& role,
                    WeightOrder order = WeightOrder::OutIn) const {
    return zea::linear(x, weight(role), bias(role), order);
  }
  at::Tensor activated_linear(const at::Tensor& x, const std::string& role,
                              Activation activation) const {
    return activate_biased(zea::linear(x, weight(role), nullptr), bias(role), activation);
  }
  at::Tensor column_linear(const at::Tensor& x, const std::string& role, UnitRows rows,
                           WeightOrder order) const {
    return layers_.column_linear(x, weight(role), bias(role), shares(rows), order);
  }
  at::Tensor unbiased_column_linear(const at::Tensor& x, const std::string& role, UnitRows rows,
                                    WeightOrder order) const {
    return layers_.column_linear(x, weight(role), nullptr, shares(rows), order);
  }
  at::Tensor activated(const at::Tensor& y, const std::string& role, Activation activation) const {
    return activate_biased(y, bias(role), activation);
  }
  const std::vector<Adapter>& adapters() const { return unit_.adapters; }
  at::Tensor dropped(const at::Tensor& x, const Adapter& adapter, UnitRows rows) const {
    return dropped(x, adapter, keys(rows).here, 0);
  }
  at::Tensor dropped_columns(const at::Tensor& x, const Adapter& adapter, UnitRows rows) const {
    return dropped(x, adapter, keys(rows).of_cp, layers_.first_column(x.size(1)));
  }
  /// The parts of a linear behind its first are equally wide.
  at::Tensor add_adapted(const at::Tensor& y, const at::Tensor& z, const Adapter& adapter) const {
    const int64_t behind = adapter.parts - adapter.part;
    return add_to_columns(y, z, adapter.part == 0 ? 0 : y.size(1) - behind * z.size(1),
                          adapter.scale);
  }
  at::Tensor row_linear(const at::Tensor& x, const std::string& role, UnitRows rows,
                        WeightOrder order) const {
    return layers_.row_linear(x, weight(role), bias(role), shares(rows), order);
  }
  at::Tensor query_value_biases(const at::Tensor& qkv) const {
    return add_query_value_biases(qkv, parameter("q.bias"), parameter("v.bias"));
  }
  at::Tensor head_norms(const at::Tensor& qkv, const BlockSpec& block) const {
    const HeadShape heads = heads_here(qkv, block);
    if (block.query_key_norm)
      return layers_.joint_head_norms(by_head(qkv, {1, 1, heads.query * heads.dim}),
                                      weight("q_norm"), weight("k_norm"), *block.query_key_norm);
    return zea::head_norms(by_head(qkv, heads), weight("q_norm"), weight("k_norm"), heads.query,
                           heads.key_value, block.norm);
  }
  at::Tensor rotary(const at::Tensor& qkv, const BlockSpec& block) const {
    const HeadShape heads = heads_here(qkv, block);
    const TokenAttention& tokens = microbatch_.attention(unit_);
    return zea::rotary(qkv, tokens.rotary_cosines, tokens.rotary_sines,
                       heads.query + heads.key_value, heads.dim);
  }
  at::Tensor attention(const at::Tensor& qkv, const BlockSpec& block) const {
    const HeadShape heads = heads_here(qkv, block);
    const at::Tensor all = by_head(qkv, heads);
    const TokenAttention& tokens = microbatch_.attention(unit_);
    const ScoreSpec& scores = model_.attention(unit_).scores;
    if (!part_ && microbatch_.cached) {
      const CachedTokens& cached = *microbatch_.cached;
      const at::Tensor& kv = cached.cache->write(unit_.name, cached.rows,
                                                 all.narrow(1, heads.query, 2 * heads.key_value));
      if (!cached.is_prompt)
        return layers_.cached_attention(all.narrow(1, 0, heads.query), kv, tokens.mask.slices(),
                                        cached.cp_tokens, scores);
    }
    return layers_.attention(all, tokens, heads.query, heads.key_value, scores);
  }
  at::Tensor gated(const at::Tensor& x, Activation activation) const {
    return zea::gated(x, activation);
  }
  at::Tensor add(const at::Tensor& x, const at::Tensor& y) const { return x + y; }
  at::Tensor layer_scaled(const at::Tensor& x, const std::string& role) const {
    return layer_scale(x, parameter(role));
  }
  at::Tensor norm(const at::Tensor& x, const std::string& role, const NormSpec& spec) const {
    return zea::norm(x, weight(role), bias(role), spec);
  }
  NormedSum norm_sum(const at::Tensor& x, const at::Tensor& added, const std::string& role,
                     const NormSpec& spec) const {
    return zea::norm_sum(x, added, weight(role), bias(role), spec);
  }
  at::Tensor windows(const at::Tensor& columns) const {
    return windows_of(columns, part_->windows);
  }
  at::Tensor image_tokens(const at::Tensor& patches) const {
    return zea::image_tokens(patches, {part_->patch_rows, part_->positions},
                             {parameter("class_token"), parameter("positions"),
                              has("registers") ? &parameter("registers") : nullptr});
  }
  at::Tensor positions() const {
    if (part_ && part_->corner_shares.defined())
      return interpolated_rows(part_->corners, part_->corner_shares, parameter("positions"));
    return embedding(part_ ? part_->positions : microbatch_.positions, parameter("positions"));
  }
  /// By a factor of the rows' type, as transformers has it.
  at::Tensor scaled(const at::Tensor& x, double factor) const {
    return x * at::scalar_tensor(factor, at::dtype(x.scalar_type())).to(at::kDouble).item<double>();
  }
  at::Tensor vocabulary() const {
    return layers_.embedding(microbatch_.token_ids, parameter("vocabulary"),
                             model_.decoder.vocabulary, microbatch_.text_shares);
  }
  at::Tensor features() const {
    std::vector<at::Tensor> states;
    for (const auto& input : inputs_) states.push_back(*input);
    return joined_rows(states, part_->feature_rows);
  }
  at::Tensor shrunk(const at::Tensor& x) const {
    if (!part_->feature_shares_of.defined()) return x;
    return mixed_rows(x, part_->feature_corners, part_->feature_shares_of);
  }
  at::Tensor with_row_ends(const at::Tensor& x) const {
    return zea::with_row_ends(x, part_->row_ends, parameter("row_end"));
  }
  at::Tensor side_by_side(const at::Tensor& x, int64_t count) const {
    return x.view({x.size(0) / count, count * x.size(1)});
  }
  at::Tensor by_channel(const at::Tensor& x, int64_t count) const {
    const int64_t rows = x.size(0) / count;
    return x.view({rows, count, x.size(1)}).transpose(1, 2).reshape({rows, count * x.size(1)});
  }
  at::Tensor mean_of(const at::Tensor& x, int64_t count) const {
    return x.view({x.size(0) / count, count, x.size(1)}).mean(1);
  }
  at::Tensor merged(const at::Tensor& text, size_t i) const {
    return text.index_copy(0, placeholder_rows(i), *inputs_[i]);
  }
  at::Tensor added(const at::Tensor& text, size_t i) const {
    return text.index_add(0, placeholder_rows(i), *inputs_[i]);
  }
  at::Tensor copy(const at::Tensor& x) const { return x.clone(); }
  /// Only rows that something is asked of go through the norm and the vocabulary.
  at::Tensor asked_rows(const at::Tensor& x) const {
    return x.index_select(0, of_last() ? microbatch_.last_rows : microbatch_.target_rows);
  }
  at::Tensor loss(const at::Tensor& x) const {
    const RowShares& shares = of_last() ? microbatch_.last_shares : microbatch_.target_shares;
    Parameter& vocabulary = parameter("vocabulary");
    const LogitSpec spec{model_.decoder.vocabulary, model_.decoder.logit_softcap};
    if (head_ == HeadOutput::Loss)
      return layers_.cross_entropy(x, vocabulary, microbatch_.target_ids, spec, shares);
    return layers_.logits(x, vocabulary, spec, shares);
  }

 private:
  Parameter& parameter(const std::string& role) const {
    const int index = unit_.index_of(role);
    if (index < 0) throw InternalError(unit_.name + " has no parameter \"" + role + "\"");
    return *parameters_[index];
  }
  Parameter& weight(const std::string& role) const { return parameter(role + ".weight"); }
  Parameter* bias(const std::string& role) const {
    const int index = unit_.index_of(role + ".bias");
    return index < 0 ? nullptr : parameters_[index];
  }
  const RowKeys& keys(UnitRows rows) const {
    if (!part_) return microbatch_.text_keys;
    return rows == UnitRows::Tokens ? part_->keys : part_->feature_keys;
  }
  /// Without keys nothing is: the model is not trained.
  at::Tensor dropped(const at::Tensor& x, const Adapter& adapter, const at::Tensor& keys,
                     int64_t first_column) const {
    if (!keys.defined()) return x;
    const uint64_t stream = mixed_name(0, weight(adapter.down).name());
    return zea::dropped(x, keys, {adapter.dropout, stream, first_column});
  }
  const RowShares& shares(UnitRows rows) const {
    if (!part_) return microbatch_.text_shares;
    return rows == UnitRows::Tokens ? part_->shares : part_->feature_shares;
  }
  /// Of the features that are the i-th input.
  const at::Tensor& placeholder_rows(size_t i) const {
    return microbatch_.encoder(model_.units[unit_.inputs[i].unit]).placeholder_rows;
  }
  bool of_last() const { return head_ == HeadOutput::LastLogits; }

  /// Heads of the parameters at hand, which may be a part of the model's.
  HeadShape heads_here(const at::Tensor& qkv, const BlockSpec& block) const {
    const std::vector<int64_t>& out = weight("out").shape();
    const int64_t attended = block.order == WeightOrder::OutIn ? out[1] : out[0];
    const int64_t query = attended / block.heads.dim;
    const int64_t all = qkv.flatten(1).size(1) / block.heads.dim;
    return {query, (all - query) / 2, block.heads.dim};
  }
  /// (tokens, heads, head_dim) of what rows of as many numbers are.
  static at::Tensor by_head(const at::Tensor& x, const HeadShape& heads) {
    return x.view({x.size(0), heads.query + 2 * heads.key_value, heads.dim});
  }

  const ModelSpec& model_;
  const UnitSpec& unit_;
  const std::vector<Parameter*>& parameters_;
  const UnitInputs& inputs_;
  const Microbatch& microbatch_;
  const HeadOutput head_;
  const Layers& layers_;
  const EncoderPart* const part_;  ///< of the microbatch; null: the unit is the decoder's
};

}  // namespace

UnitOutput run_unit(const ModelSpec& model, const UnitSpec& unit,
                    const std::vector<Parameter*>& parameters, const UnitInputs& inputs,
                    const Microbatch& microbatch, HeadOutput head, const Layers& layers) {
  TensorOps ops(model, unit, parameters, inputs, microbatch, head, layers);
  const at::Tensor output = unit_forward(ops, model, unit);
  if (unit.kind == UnitKind::Head && head == HeadOutput::Loss) return {{}, output};
  return {output, {}};
}

}  // namespace zea
