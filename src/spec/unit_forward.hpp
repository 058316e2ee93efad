// SPDX-License-Identifier: Apache-2.0
// The forward of every unit kind, written once, over operations that it is given: on tensors it is
// the forward (model/unit.cpp); estimated are what a unit holds (estimate/unit_memory.cpp),
// multiplies (schedule/unit_cost.cpp) and sends (estimate/unit_traffic.cpp). Parameters go by role;
// a bias, norm or class token is there where the unit has a parameter of that role.
//
// Ops::Value is a tensor of rows, or what stands for it; a default one is none. A value lives as
// long as a variable here holds it, which is what the estimate of memory counts. Ops has
//   input(i), has_input(i)              outputs of other units, in the order of UnitSpec::inputs
//   has(role)                           whether the unit has that parameter
//   patches(), columns()                what the unit reads of the microbatch, of images and sound
//   linear(x, role, order), activated_linear(x, role, activation)
//   column_linear(x, role, rows, order), row_linear(x, role, rows, order)
//                                       of layers that tp ranks share
//   unbiased_column_linear(x, role, rows, order), activated(y, role, activation)
//                                       the same without the bias, and activation(y + bias)
//   dropped(x, adapter, rows), dropped_columns(x, adapter, rows)
//                                       x as an adapter takes it while training; the second of
//                                       what a row linear takes
//   dropped_rows(x, rate, name)         x as training takes it: without a share `rate` of elements
//                                       that is drawn under the unit's name and `name`
//   adapters(), add_adapted(y, z, adapter)
//                                       of the unit; z times the adapter's scale added to its
//                                       columns of y, which is not used any more
//   query_value_biases(qkv)             adds "q.bias" and "v.bias"
//   head_norms(qkv, block)              of queries and keys, with "q_norm" and "k_norm"
//   rotary(qkv, block), attention(qkv, block), gated(x, activation), add(x, y)
//   layer_scaled(x, role)               columns times a vector
//   norm(x, role, spec), norm_sum(x, added, role, spec)           x + added, and its norm
//   windows(x)                          three rows side by side, of every other one
//   image_tokens(patches)               with "class_token", "registers" and "positions"
//   positions(), vocabulary()           rows of these tables, or what lies between them
//   scaled(x, factor)
//   features()                          of all inputs, the rows that become features
//   shrunk(x)                           features put together of several, of images in many tiles
//   with_row_ends(x)                    "row_end" in place of the features that end rows
//   side_by_side(x, count)              so many rows, each after the other, as one
//   by_channel(x, count)                ... their first numbers, their second ones, and so on
//   mean_of(x, count)                   of so many rows, each after the other
//   merged(text, i)                     input i in the places of its placeholders
//   added(text, i)                      input i added there
//   copy(x), asked_rows(x), loss(x)     rows with a target; their loss under "vocabulary"
#pragma once

#include "spec/model_spec.hpp"

namespace zea {

/// Which rows of its module a linear works on.
enum class UnitRows { Tokens, Features };

/// y, outputs of a linear of `role`, with what its adapters make of the same inputs: `product` of
/// each of them.
template <class Ops, class Product>
typename Ops::Value with_adapters(Ops& ops, typename Ops::Value y, const std::string& role,
                                  const Product& product) {
  for (const Adapter& adapter : ops.adapters())
    if (adapter.role == role) y = ops.add_adapted(y, product(adapter), adapter);
  return y;
}

/// What the first matrix of an adapter makes of x, which is whole here.
template <class Ops>
typename Ops::Value adapter_down(Ops& ops, const typename Ops::Value& x, const Adapter& adapter,
                                 UnitRows rows) {
  if (adapter.dropout == 0) return ops.linear(x, adapter.down);
  return ops.linear(ops.dropped(x, adapter, rows), adapter.down);
}

template <class Ops>
typename Ops::Value adapted_linear(Ops& ops, const typename Ops::Value& x, const std::string& role,
                                   UnitRows rows, WeightOrder order) {
  return with_adapters(ops, ops.linear(x, role, order), role, [&](const Adapter& adapter) {
    return ops.linear(adapter_down(ops, x, adapter, rows), adapter.up);
  });
}

/// Rows of `rank` numbers travel between tp ranks, not those of x once more.
template <class Ops>
typename Ops::Value adapted_columns(Ops& ops, typename Ops::Value y, const typename Ops::Value& x,
                                    const std::string& role, UnitRows rows) {
  return with_adapters(ops, y, role, [&](const Adapter& adapter) {
    return ops.column_linear(adapter_down(ops, x, adapter, rows), adapter.up, rows,
                             WeightOrder::OutIn);
  });
}

template <class Ops>
typename Ops::Value adapted_column_linear(Ops& ops, const typename Ops::Value& x,
                                          const std::string& role, UnitRows rows,
                                          WeightOrder order) {
  return adapted_columns(ops, ops.column_linear(x, role, rows, order), x, role, rows);
}

template <class Ops>
typename Ops::Value activated_column_linear(Ops& ops, const typename Ops::Value& x,
                                            const std::string& role, Activation activation,
                                            UnitRows rows, WeightOrder order) {
  return ops.activated(
      adapted_columns(ops, ops.unbiased_column_linear(x, role, rows, order), x, role, rows), role,
      activation);
}

template <class Ops>
typename Ops::Value adapted_row_linear(Ops& ops, const typename Ops::Value& x,
                                       const std::string& role, UnitRows rows, WeightOrder order) {
  constexpr WeightOrder kOrder = WeightOrder::OutIn;
  return with_adapters(
      ops, ops.row_linear(x, role, rows, order), role, [&](const Adapter& adapter) {
        const auto low =
            adapter.dropout == 0
                ? ops.row_linear(x, adapter.down, rows, kOrder)
                : ops.row_linear(ops.dropped_columns(x, adapter, rows), adapter.down, rows, kOrder);
        return ops.linear(low, adapter.up);
      });
}

template <class Ops>
typename Ops::Value normed_if_has(Ops& ops, typename Ops::Value x, const std::string& role,
                                  const NormSpec& norm) {
  return ops.has(role + ".weight") ? ops.norm(x, role, norm) : x;
}

/// What a half of a block adds to its residual path.
template <class Ops>
typename Ops::Value block_change(Ops& ops, typename Ops::Value x, const std::string& half,
                                 const BlockSpec& block) {
  auto y = normed_if_has(ops, x, half + "_post_norm", block.norm);
  const std::string scale = half + "_scale";
  if (ops.has(scale)) y = ops.layer_scaled(y, scale);
  return block.dropout == 0 ? y : ops.dropped_rows(y, block.dropout, half);
}

template <class Ops>
typename Ops::Value patch_embed(Ops& ops, const NormSpec& norm) {
  auto x = ops.linear(ops.patches(), "patch");
  if (ops.has("class_token"))
    x = ops.image_tokens(x);
  else if (ops.has("positions"))
    x = ops.add(x, ops.positions());
  return normed_if_has(ops, x, "norm", norm);
}

template <class Ops>
typename Ops::Value audio_embed(Ops& ops) {
  const auto columns = ops.activated_linear(ops.columns(), "conv1", Activation::Gelu);
  const auto x = ops.activated_linear(ops.windows(columns), "conv2", Activation::Gelu);
  return ops.add(x, ops.positions());
}

template <class Ops>
typename Ops::Value token_embed(Ops& ops, const DecoderSpec& decoder) {
  auto x = ops.vocabulary();
  if (decoder.embedding_scale != 1) x = ops.scaled(x, decoder.embedding_scale);
  if (ops.has("positions")) x = ops.add(x, ops.positions());
  const double rate = decoder.embedding_dropout;
  return rate == 0 ? x : ops.dropped_rows(x, rate, "embedding");
}

template <class Ops>
typename Ops::Value merge(Ops& ops, size_t num_inputs) {
  auto x = ops.input(0);
  bool is_copy = false;
  for (size_t i = 1; i < num_inputs; ++i) {
    if (!ops.has_input(i)) continue;
    x = ops.merged(x, i);
    is_copy = true;
  }
  return is_copy ? x : ops.copy(x);
}

/// Features of further depths of an encoder are added behind the block (DeepStack,
/// arXiv:2406.04334).
template <class Ops>
typename Ops::Value transformer_block(Ops& ops, const BlockSpec& block, size_t num_inputs) {
  constexpr UnitRows kRows = UnitRows::Tokens;
  const auto [x, normed] = ops.norm_sum(ops.input(0), {}, "attention_norm", block.norm);
  auto qkv = adapted_column_linear(ops, normed, "qkv", kRows, block.order);
  if (ops.has("q.bias")) qkv = ops.query_value_biases(qkv);
  if (ops.has("q_norm.weight")) qkv = ops.head_norms(qkv, block);
  if (block.rotary) qkv = ops.rotary(qkv, block);
  const auto attended = ops.attention(qkv, block);
  const auto change = block_change(
      ops, adapted_row_linear(ops, attended, "out", kRows, block.order), "attention", block);
  const auto [y, normed_again] = ops.norm_sum(x, change, "mlp_norm", block.norm);
  const auto inner =
      block.gated
          ? ops.gated(adapted_column_linear(ops, normed_again, "up", kRows, block.order),
                      block.activation)
          : activated_column_linear(ops, normed_again, "up", block.activation, kRows, block.order);
  auto z = ops.add(y, block_change(ops, adapted_row_linear(ops, inner, "down", kRows, block.order),
                                   "mlp", block));
  for (size_t i = 1; i < num_inputs; ++i)
    if (ops.has_input(i)) z = ops.added(z, i);
  return z;
}

template <class Ops>
typename Ops::Value merged_features(Ops& ops, typename Ops::Value x, const ProjectorSpec& spec) {
  if (spec.pools) return ops.mean_of(x, spec.merge);
  return spec.by_channel ? ops.by_channel(x, spec.merge) : ops.side_by_side(x, spec.merge);
}

template <class Ops>
typename Ops::Value projector(Ops& ops, const NormSpec& encoder_norm, const ProjectorSpec& spec) {
  constexpr UnitRows kRows = UnitRows::Features;
  constexpr WeightOrder kOrder = WeightOrder::OutIn;
  auto x = normed_if_has(ops, ops.features(), "encoder_norm", encoder_norm);
  if (spec.pools_first) x = ops.mean_of(x, spec.merge);
  x = normed_if_has(ops, x, "encoder_norm_of_means", encoder_norm);
  x = normed_if_has(ops, x, "norm", spec.norm);
  if (spec.merge > 1 && !spec.pools_first) x = merged_features(ops, x, spec);
  x = normed_if_has(ops, x, "merged_norm", spec.norm);
  if (ops.has("merger.weight")) x = adapted_linear(ops, x, "merger", kRows, kOrder);
  if (spec.is_linear) return adapted_linear(ops, x, "linear", kRows, spec.order);
  const auto inner = activated_column_linear(ops, x, "linear_1", spec.activation, kRows, kOrder);
  auto y = adapted_row_linear(ops, inner, "linear_2", kRows, kOrder);
  if (spec.shrinks) y = ops.shrunk(y);
  return ops.has("row_end") ? ops.with_row_ends(y) : y;
}

template <class Ops>
typename Ops::Value head(Ops& ops, const NormSpec& norm) {
  const auto x = ops.norm(ops.asked_rows(ops.input(0)), "norm", norm);
  return ops.loss(x);
}

template <class Ops>
typename Ops::Value unit_forward(Ops& ops, const ModelSpec& model, const UnitSpec& unit) {
  const BlockSpec& block = model.block(unit.module);
  switch (unit.kind) {
    case UnitKind::PatchEmbed:
      return patch_embed(ops, block.norm);
    case UnitKind::AudioEmbed:
      return audio_embed(ops);
    case UnitKind::Block:
      return transformer_block(ops, block, unit.inputs.size());
    case UnitKind::Projector:
      return projector(ops, block.norm, model.encoders[unit.encoder].projector);
    case UnitKind::TokenEmbed:
      return token_embed(ops, model.decoder);
    case UnitKind::Merge:
      return merge(ops, unit.inputs.size());
    case UnitKind::Head:
      return head(ops, block.norm);
  }
  return {};
}

}  // namespace zea
