// SPDX-License-Identifier: Apache-2.0
// The forward of every unit kind, written once. It names parameters by role; a bias, norm or class
// token takes part where the unit has a parameter of that role.
#include <cmath>
#include <utility>

#include "core/error.hpp"
#include "spec/layer_recorder.hpp"

namespace zea {
namespace {

class Forward : LayerRecorder {
 public:
  Forward(const ModelSpec& model, const UnitSpec& unit) : LayerRecorder(model, unit) {}

  UnitGraph run() { return ops_.finish(output()); }

 private:
  Value output() {
    switch (unit_.kind) {
      case UnitKind::PatchEmbed:
        return patch_embed();
      case UnitKind::AudioEmbed:
        return audio_embed();
      case UnitKind::Keys:
        return keys(norm(input(0), "attention_norm", block_.norm));
      case UnitKind::Block:
        return transformer_block();
      case UnitKind::Projector:
        return projector(model_.encoders[unit_.encoder].projector);
      case UnitKind::TokenEmbed:
        return token_embed();
      case UnitKind::Merge:
        return with_other_inputs(Kind::Merge, input(0));
      case UnitKind::Head:
        return head();
    }
    return {};
  }

  Value positions() {
    if (!has("positions")) return ops_.record({.kind = Kind::Positions});
    return ops_.record({.kind = Kind::Positions, .params = ops_.roles({"positions"})});
  }

  Value patch_embed() {
    auto x = norm_if_has(adapted_linear(ops_.record({.kind = Kind::Patches}), "patch"),
                         "patch_norm", block_.norm);
    if (has("class_token")) {
      std::vector<int> params = ops_.roles({"class_token", "positions"});
      params.push_back(ops_.optional("registers"));
      x = ops_.record({.kind = Kind::ImageTokens, .params = params}, {x});
    } else if (has("positions")) {
      x = add(x, positions());
    }
    if (model_.encoders[unit_.encoder].averages_frames())
      x = add(x, ops_.record({.kind = Kind::Positions}));
    return norm_if_has(x, "norm", block_.norm);
  }

  Value audio_embed() {
    if (model_.encoders[unit_.encoder].mels().subsampling) return subsampled();
    const auto columns = activated_linear(ops_.record({.kind = Kind::Columns}), "conv1");
    const auto x = activated_linear(ops_.record({.kind = Kind::Windows}, {columns}), "conv2");
    return add(x, positions());
  }

  /// A row is a bin of a column, until the bins of a column lie side by side.
  Value subsampled() {
    const MelInput& input = model_.encoders[unit_.encoder].mels();
    const Subsampling& subsampling = *input.subsampling;
    auto x = ops_.record({.kind = Kind::Columns});
    for (int64_t i = 0; i < subsampling.convolutions(); ++i) {
      const std::string name = "conv" + std::to_string(i + 1);
      if (i > 0) x = ops_.record({.kind = Kind::Windows, .count = i - 1}, {x});
      x = subsampling.has_norms ? normed_convolution(x, name) : activated_linear(x, name);
    }
    const Kind joins = subsampling.bins_first ? Kind::SpaceToDepth : Kind::SideBySide;
    x = adapted_linear(ops_.record({.kind = joins, .count = input.subsampled_bins()}, {x}), "in");
    return input.chunk > 0 ? add(x, positions()) : x;
  }

  Value normed_convolution(const Value& x, const std::string& name) {
    const NormSpec spec{NormKind::Layer, block_.conformer->convolution_norm.eps, 0, false};
    return activate(norm(linear(x, name), name + "_norm", spec), name, Activation::Relu);
  }

  Value token_embed() {
    auto x = ops_.record({.kind = Kind::Vocabulary, .params = ops_.roles({"vocabulary"})});
    if (model_.decoder.embedding_scale != 1) x = scale(x, model_.decoder.embedding_scale);
    if (has("positions")) x = add(x, positions());
    return dropped_rows(x, model_.decoder.embedding_dropout, "embedding");
  }

  Value dropped_rows(const Value& x, double rate, const std::string& name) {
    if (rate == 0) return x;
    return ops_.record({.kind = Kind::Dropout, .seed = unit_.name + "." + name, .factor = rate},
                       {x});
  }

  /// Adds the inputs with features, which are the unit's last ones.
  Value with_other_inputs(Kind kind, const Value& x) {
    int64_t first = 1;
    while (first < std::ssize(unit_.inputs) && unit_.inputs[first].reads != UnitReads::Rows)
      ++first;
    std::vector<Value> all{x};
    for (int64_t i = first; i < std::ssize(unit_.inputs); ++i) all.push_back(input(i));
    return ops_.record({.kind = kind, .count = first - 1}, all);
  }

  /// Returns what a half of a block adds to the residual path.
  Value block_change(const Value& x, const std::string& half) {
    auto y = norm_if_has(x, half + "_post_norm", block_.norm);
    const std::string scale = half + "_scale";
    if (has(scale)) y = ops_.record({.kind = Kind::LayerScale, .params = ops_.roles({scale})}, {y});
    return dropped_rows(y, block_.dropout, half);
  }

  /// Features of further depths of an encoder are added after the block (DeepStack,
  /// arXiv:2406.04334).
  Value transformer_block() {
    if (block_.conformer) return conformer_block(*block_.conformer);
    const auto [x, normed] =
        norm_sum(unit_.is_mtp ? joined_states() : input(0), {}, "attention_norm");
    const auto mixed = model_.delta_rule(unit_) ? delta_rule(normed) : attended(normed);
    const auto change =
        block_change(adapted_row_linear(mixed, "out", UnitRows::Tokens, block_.order), "attention");
    const auto [y, normed_again] = norm_sum(x, change, "mlp_norm");
    auto z = add(y, block_change(mlp_change(y, normed_again, model_.mlp(unit_)), "mlp"));
    if (has("input_table")) z = with_layer_input(z);
    if (has("output_scale"))
      z = ops_.record({.kind = Kind::LayerScale, .params = ops_.roles({"output_scale"})}, {z});
    if (unit_.is_mtp) return norm(z, "norm", block_.norm);
    const bool has_features =
        unit_.inputs.size() > 1 && unit_.inputs.back().reads == UnitReads::Rows;
    return has_features ? with_other_inputs(Kind::AddFeatures, z) : z;
  }

  Value conformer_block(const ConformerSpec& spec) {
    const auto bounded = [&](const Value& x) {
      return ops_.record({.kind = Kind::Clamp, .factor = spec.bound}, {x});
    };
    const auto with_feed_forward = [&](const Value& x, const std::string& name) {
      auto y = norm(bounded(x), name + "_norm", block_.norm);
      y = adapted_column_linear(y, name + ".up", UnitRows::Tokens, kOrder);
      y = activate(y, name, block_.mlp().activation);
      y = adapted_row_linear(y, name + ".down", UnitRows::Tokens, kOrder);
      return add(x, scale(norm(bounded(y), name + "_post_norm", block_.norm), spec.feed_forward));
    };
    auto x = with_feed_forward(input(0), "ff1");
    const auto mixed = relative_attention(norm(bounded(x), "attention_norm", block_.norm));
    x = add(x, norm(bounded(mixed), "attention_post_norm", block_.norm));
    auto y = gated_columns(norm(x, "conv_start_norm", spec.convolution_norm));
    y = ops_.record({.kind = Kind::CausalConvolution, .params = ops_.roles({"conv.weight"})}, {y});
    y = activate(norm(bounded(y), "conv_norm", spec.convolution_norm), "conv",
                 block_.mlp().activation);
    x = add(x, adapted_row_linear(y, "conv_end", UnitRows::Tokens, kOrder));
    return norm(bounded(with_feed_forward(x, "ff2")), "norm", block_.norm);
  }

  /// A gated linear unit (arXiv:1612.08083).
  Value gated_columns(const Value& x) {
    const auto both = adapted_column_linear(x, "conv_start", UnitRows::Tokens, kOrder);
    const auto y = ops_.record({.kind = Kind::SplitColumns, .count = block_.hidden}, {both});
    return ops_.record({.kind = Kind::SigmoidScale}, {y, ops_.record_other()});
  }

  Value relative_attention(const Value& x) {
    const auto qkv = block_columns(x, "qkv", {"q", "k", "v"});
    const auto keys = adapted_linear(ops_.record({.kind = Kind::Sinusoids}), "relative_k");
    const auto attended = ops_.record(
        {.kind = Kind::RelativeAttention, .params = ops_.roles({"query_scale"})}, {qkv, keys});
    return adapted_row_linear(attended, "out", UnitRows::Tokens, kOrder);
  }

  Value with_layer_input(const Value& z) {
    const LayerInputSpec& spec = block_.layer_input;
    const auto width = static_cast<double>(spec.width), hidden = static_cast<double>(block_.hidden);
    const auto context = norm(
        scale(adapted_linear(input(UnitReads::Embedded), "input_context"), 1 / std::sqrt(hidden)),
        "input_norm", block_.norm);
    const auto of_id = ops_.record({.kind = Kind::Vocabulary,
                                    .params = ops_.roles({"input_table"}),
                                    .count = spec.vocabulary});
    const auto layer_input = scale(add(context, scale(of_id, std::sqrt(width))), std::sqrt(0.5));
    const auto gated =
        gate(concat(adapted_linear(z, "input_gate"), layer_input), model_.mlp(unit_));
    return add(z, norm(adapted_linear(gated, "input_projection"), "input_post_norm", block_.norm));
  }

  /// A block of multi-token prediction reads a token's state after the final norm, and the input
  /// that the first block reads of the next token (arXiv:2412.19437).
  Value joined_states() {
    const auto next =
        norm(ops_.record({.kind = Kind::NextRows}, {input(1)}), "next_norm", block_.norm);
    const auto state = norm(norm(input(0), "final_norm", block_.norm), "state_norm", block_.norm);
    return linear(concat(next, state), "fc");
  }

  Value delta_rule(const Value& x) {
    return ops_.record(
        {.kind = Kind::DeltaRule,
         .params = ops_.roles({"conv.weight", "decay", "step", "delta_norm.weight"})},
        {adapted_column_linear(x, "delta", UnitRows::Tokens, block_.order)});
  }

  /// The inputs of attention; latents of keys and values where it has them.
  struct Heads {
    Value qkv, latents;
  };
  Heads latent_heads(const Value& x, const LatentSpec& latent) {
    constexpr UnitRows kRows = UnitRows::Tokens;
    Value queries = x;
    if (latent.query_rank > 0)
      queries = norm(adapted_linear(x, "latent_q", kRows, kOrder), "latent_q_norm", latent.norm);
    queries = adapted_column_linear(queries, "query", kRows, kOrder);
    auto keys = ops_.record({.kind = Kind::SplitColumns, .count = latent.rank},
                            {adapted_linear(x, "latent_kv", kRows, kOrder)});
    auto rotary = ops_.record_other();
    rotary = ops_.record({.kind = Kind::GatherRows, .count = latent.rotary}, {rotary});
    const auto latents = norm(keys, "latent_kv_norm", latent.norm);
    keys = adapted_column_linear(latents, "key_value", kRows, kOrder);
    return {ops_.record({.kind = Kind::LatentHeads, .known_by = ops_.optional("out.weight")},
                        {queries, keys, rotary}),
            latents};
  }

  /// Returns the unit's heads after norms and RoPE.
  Value positioned_heads(Value heads, const AttentionSpec& spec, int out) {
    if (unit_.makes_keys() && spec.keys_are_values)
      heads = ops_.record({.kind = Kind::KeysAsValues, .known_by = out}, {heads});
    if (has("q_norm.weight") || has("k_norm.weight")) {
      const std::string query = unit_.makes_queries() ? "q_norm.weight" : "k_norm.weight",
                        key = unit_.makes_keys() ? "k_norm.weight" : "q_norm.weight";
      heads = ops_.record(
          {.kind = Kind::HeadNorms, .params = ops_.roles({query, key}), .known_by = out}, {heads});
    }
    return block_.rotary ? ops_.record({.kind = Kind::Rotary, .known_by = out}, {heads}) : heads;
  }

  /// Returns the output of a unit of kind Keys; `x`: normed rows.
  Value keys(const Value& x) {
    return positioned_heads(adapted_column_linear(x, "qkv", UnitRows::Tokens, block_.order),
                            model_.attention(unit_), -1);
  }

  Value attended(const Value& x) {
    const AttentionSpec& spec = model_.attention(unit_);
    auto [qkv, latents] = spec.latent ? latent_heads(x, *spec.latent)
                                      : Heads{block_columns(x, "qkv", {"q", "k", "v"}), {}};
    if (has("q.bias"))
      qkv =
          ops_.record({.kind = Kind::AddBiases, .params = ops_.roles({"q.bias", "v.bias"})}, {qkv});
    const int out = ops_.optional("out.weight");
    Value gates;
    if (spec.gates_output) {
      qkv = ops_.record({.kind = Kind::SplitGates, .known_by = out}, {qkv});
      gates = ops_.record_other();
    }
    qkv = positioned_heads(qkv, spec, out);
    if (!unit_.makes_keys()) qkv = concat(qkv, input(UnitReads::Keys));
    auto attended =
        ops_.record({.kind = Kind::Attention,
                     .params = {ops_.optional("sinks"), ops_.optional("key_value.weight")},
                     .known_by = out},
                    {qkv, latents});
    if (spec.value_dim() < spec.heads.dim)
      attended = ops_.record({.kind = Kind::ValueColumns}, {attended});
    return gates ? ops_.record({.kind = Kind::SigmoidScale}, {attended, gates}) : attended;
  }

  /// `normed`: the norm of y, the residual path.
  Value mlp_change(const Value& y, const Value& normed, const MlpSpec& spec) {
    if (!spec.router) return mlp(normed, spec);
    if (spec.plain_intermediate == 0) return mixture(normed, spec);
    const auto plain = norm(mlp(normed, spec), "plain_post_norm", block_.norm);
    return add(plain, norm(mixture(y, spec), "experts_post_norm", block_.norm));
  }
  Value mlp(const Value& x, const MlpSpec& spec) {
    constexpr UnitRows kRows = UnitRows::Tokens;
    const WeightOrder order = block_.order;
    const Value inner = spec.gated
                            ? gate(block_columns(x, "up", {"gate", "up"}), spec)
                            : activated_column_linear(x, "up", spec.activation, kRows, order);
    return adapted_row_linear(inner, "down", kRows, order);
  }
  Value gate(const Value& x, const MlpSpec& spec) {
    if (spec.clamped_gate) return ops_.record({.kind = Kind::ClampedGate}, {x});
    return ops_.record({.kind = Kind::Gate, .activation = spec.activation}, {x});
  }

  /// A mixture of experts: tp ranks route the rows of all, and each has a part of the columns of
  /// every expert; ranks that share experts compute theirs for the rows of all. So all that a rank
  /// computes is its part of a sum.
  Value mixture(const Value& x, const MlpSpec& spec) {
    const auto rows = ops_.record({.kind = Kind::GatherRows}, {x});
    auto y = routed(rows, *spec.router, spec);
    if (spec.shared_intermediate > 0) y = add(y, shared(rows, spec));
    return ops_.record({.kind = Kind::SumRows}, {y});
  }
  Value routed(const Value& rows, const RouterSpec& router, const MlpSpec& spec) {
    auto own_gates =
        ops_.record({.kind = Kind::Route, .params = {ops_.optional("correction_bias")}},
                    {router_outputs(routed_by(rows), router.has_wide_outputs)});
    auto own_chosen = ops_.record_other();
    if (has("gate_scale"))
      own_gates = ops_.record({.kind = Kind::ScaleGates, .params = ops_.roles({"gate_scale"})},
                              {own_gates, own_chosen});
    auto all = ops_.record({.kind = Kind::GatherExpertRows},
                           {norm_if_has(rows, "experts_norm", block_.norm), own_gates, own_chosen});
    const auto gates = ops_.record_other(), chosen = ops_.record_other();
    own_gates.reset();
    own_chosen.reset();
    auto sent = ops_.record({.kind = Kind::Dispatch}, {all, chosen});
    const auto places = ops_.record_other(), ends = ops_.record_other();
    all.reset();
    const auto linear_of_each = [&](const Value& inputs, const std::string& role, WeightOrder order,
                                    bool reads_columns) {
      return ops_.record(
          {.kind = Kind::ExpertLinear,
           .params = {ops_.roles({role + ".weight"})[0], ops_.optional(role + ".bias")},
           .order = order,
           .count = router.experts,
           .reads_columns = reads_columns},
          {inputs, ends});
    };
    const auto of_each = [&](const Value& inputs, const std::string& role) {
      const bool reads_columns = role == "experts.down";
      auto y = linear_of_each(inputs, role, spec.stack.value_or(kOrder), reads_columns);
      return with_adapters(std::move(y), role, [&](int adapter) {
        const auto z = linear_of_each(inputs, unit_.adapters[adapter].down, kOrder, reads_columns);
        return linear_of_each(z, unit_.adapters[adapter].up, kOrder, false);
      });
    };
    auto inner = of_each(sent, "experts.up");
    sent.reset();
    inner = gate(inner, spec);
    auto outputs = of_each(inner, "experts.down");
    inner.reset();
    outputs = ops_.record({.kind = Kind::Combine}, {outputs, gates, places});
    return ops_.record({.kind = Kind::SumExpertRows}, {outputs});
  }
  /// Returns what the router reads: a norm over the root of the width, where it has one.
  Value routed_by(const Value& rows) {
    if (!has("router_norm.weight")) return rows;
    const double factor = 1 / std::sqrt(static_cast<double>(block_.hidden));
    return ops_.record({.kind = Kind::Scale, .factor = factor},
                       {norm(rows, "router_norm", block_.norm)});
  }
  Value router_outputs(const Value& x, bool are_wide) {
    const auto outputs = [&](const Value& inputs, const std::string& role) {
      return ops_.record(
          {.kind = Kind::Linear,
           .params = {ops_.roles({role + ".weight"})[0], ops_.optional(role + ".bias")},
           .has_wide_outputs = are_wide},
          {inputs});
    };
    return with_adapters(outputs(x, "router"), "router", [&](int adapter) {
      return outputs(adapter_down(x, adapter, UnitRows::Tokens), unit_.adapters[adapter].up);
    });
  }
  Value shared(const Value& rows, const MlpSpec& spec) {
    auto y = adapted_linear(gate(adapted_linear(rows, "shared.up"), spec), "shared.down");
    if (!has("shared_gate.weight")) return y;
    return ops_.record({.kind = Kind::SigmoidScale}, {y, adapted_linear(rows, "shared_gate")});
  }

  Value features() {
    std::vector<Value> states;
    for (size_t i = 0; i < unit_.inputs.size(); ++i)
      states.push_back(input(static_cast<int64_t>(i)));
    return ops_.record({.kind = Kind::Features}, states);
  }

  Value merged_features(const Value& x, const ProjectorSpec& spec) {
    const Kind kind = spec.pools            ? Kind::Mean
                      : spec.space_to_depth ? Kind::SpaceToDepth
                                            : Kind::SideBySide;
    return ops_.record({.kind = kind, .count = spec.merge}, {x});
  }

  Value standardized(const Value& x, double factor) {
    const int shift = ops_.optional("encoder_norm_shift");
    if (factor == 1 && shift < 0) return x;
    return ops_.record({.kind = Kind::Standardize,
                        .params = {shift, ops_.optional("encoder_norm_scale")},
                        .factor = factor},
                       {x});
  }

  Value projector(const ProjectorSpec& spec) {
    constexpr UnitRows kRows = UnitRows::Features;
    auto x = norm_if_has(features(), "encoder_norm", block_.norm);
    if (has("encoder_linear.weight")) x = adapted_linear(x, "encoder_linear", kRows, kOrder);
    if (spec.pools_first) x = ops_.record({.kind = Kind::Mean, .count = spec.merge}, {x});
    if (model_.encoders[unit_.encoder].averages_frames())
      x = ops_.record({.kind = Kind::FrameMeans, .count = spec.merge}, {x});
    x = standardized(x, spec.mean_scale);
    x = norm_if_has(x, "encoder_norm_of_means", block_.norm);
    if (spec.has_bare_norm)
      x = ops_.record({.kind = Kind::Norm, .params = {-1, -1}, .norm = spec.norm}, {x});
    x = norm_if_has(x, "norm", spec.norm);
    if (spec.merge > 1 && !spec.pools_first) x = merged_features(x, spec);
    x = norm_if_has(x, "merged_norm", spec.norm);
    if (has("downsample.weight"))
      return adapted_row_linear(gated_of_squares(x, spec), "linear_2", kRows, kOrder);
    if (has("merger.weight")) x = adapted_linear(x, "merger", kRows, kOrder);
    if (spec.is_linear) return adapted_linear(x, "linear", kRows, spec.order);
    const auto inner = activated_column_linear(x, "linear_1", spec.activation, kRows, kOrder);
    auto y = adapted_row_linear(inner, "linear_2", kRows, kOrder);
    if (spec.shrinks) y = ops_.record({.kind = Kind::Resample}, {y});
    if (!has("row_end")) return y;
    return ops_.record({.kind = Kind::RowEnds, .params = ops_.roles({"row_end"})}, {y});
  }

  /// GLM-4.5V's merger without its last linear: a strided convolution of squares of patches, a
  /// linear with norm and GELU, and a gated MLP.
  Value gated_of_squares(const Value& x, const ProjectorSpec& spec) {
    const auto normed =
        norm(adapted_linear(linear(x, "downsample"), "merger", UnitRows::Features, kOrder),
             "projected_norm", spec.norm);
    const auto inner = adapted_column_linear(activate(normed, "projected", Activation::Gelu),
                                             "linear_1", UnitRows::Features, kOrder);
    return ops_.record({.kind = Kind::Gate, .activation = spec.activation}, {inner});
  }

  Value head() {
    const auto vocabulary = ops_.roles({"vocabulary"});
    auto loss = ops_.record(
        {.kind = Kind::Loss, .params = vocabulary},
        {norm(ops_.record({.kind = Kind::TargetRows}, {input(0)}), "norm", block_.norm)});
    if (unit_.inputs.size() == 1) return loss;
    const auto further = ops_.record({.kind = Kind::TargetRows, .count = 1}, {input(1)});
    return ops_.record(
        {.kind = Kind::Loss, .params = vocabulary, .count = 1, .factor = model_.decoder.mtp_loss},
        {further, loss});
  }
};

}  // namespace

UnitGraph record_graph(const ModelSpec& model, const UnitSpec& unit) {
  return Forward(model, unit).run();
}

void record_graphs(ModelSpec& model) {
  for (UnitSpec& unit : model.units) unit.graph = record_graph(model, unit);
}

std::vector<bool> linear_weights(const ModelSpec& model) {
  std::vector<bool> weights(model.params.size(), false);
  for (const UnitSpec& unit : model.units)
    for (const Operation& op : unit.graph.operations)
      if (op.kind == OperationKind::Linear || op.kind == OperationKind::ColumnLinear ||
          op.kind == OperationKind::RowLinear)
        for (const int param : model.params_of(unit, op.params[0])) weights[param] = true;
  return weights;
}

}  // namespace zea
