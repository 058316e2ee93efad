// SPDX-License-Identifier: Apache-2.0
#include "spec/families.hpp"

#include <cmath>
#include <limits>
#include <map>

namespace zea::detail {
namespace {

constexpr int64_t kMaxLayers = 1024;                ///< of a module
constexpr int64_t kMaxElements = int64_t{1} << 40;  ///< of a parameter
constexpr const char* kKeysSuffix = ".keys";        ///< after the name of a block

/// Refuses sizes of an untrusted config that would take all memory or overflow in sums.
void check_size(const std::string& name, const Shape& shape) {
  int64_t elements = 1;
  for (int64_t length : shape)
    if (__builtin_mul_overflow(elements, length, &elements) || elements > kMaxElements)
      throw ConfigError("parameter " + name, " has more than 2^40 elements; no model is as large");
}

void check_layers(const std::string& module, int64_t count) {
  if (count > kMaxLayers)
    throw ConfigError(std::to_string(count) + " layers of " + module,
                      "; allowed: 1 to " + std::to_string(kMaxLayers));
}

}  // namespace

void SpecBuilder::start(const std::string& name, const std::string& module, UnitKind kind,
                        std::vector<UnitInput> inputs) {
  model_.units.push_back({name, module, kind, {}, std::move(inputs)});
}

int SpecBuilder::add(const std::string& role, const std::string& name, Shape shape, bool trainable,
                     double std, const TpSharding& cut) {
  check_size(name, shape);
  ParamSpec param;
  param.name = name;
  param.module = model_.units.back().module;
  param.shape = std::move(shape);
  param.trainable = trainable;
  param.std = std;
  param.tp_sharding = cut;
  if (param.shape.size() == 1) param.init = Init::Zeros;
  if (role.ends_with("norm.weight")) param.init = Init::Ones;
  model_.params.push_back(std::move(param));
  const int index = static_cast<int>(model_.params.size()) - 1;
  use(role, index);
  return index;
}

void SpecBuilder::add_state(const std::string& role, const std::string& name, const Shape& shape) {
  model_.params[add(role, name, shape, false, 0)].is_state = true;
}

void SpecBuilder::add_ones(const std::string& role, const std::string& name, const Shape& shape) {
  model_.params[add(role, name, shape, false, 0)].init = Init::Ones;
}

void SpecBuilder::use(const std::string& role, int param) {
  model_.units.back().params.push_back(param);
  model_.units.back().roles.push_back(role);
}

void SpecBuilder::add_fused(const std::string& role, const std::vector<Part>& parts, bool trainable,
                            double std) {
  std::map<std::string, int64_t> rows;  // of each tensor
  for (const Part& part : parts) rows[part.name] += part.shape[0];
  std::map<std::string, int64_t> begins;
  for (const Part& part : parts) {
    ParamSpec& param = model_.params[add(role, part.name, part.shape, trainable, std, part.cut)];
    param.fused_with_next = &part != &parts.back();
    if (param.fused_with_next) model_.units.back().roles.pop_back();
    if (rows[part.name] == part.shape[0]) continue;
    param.part = {.dim = 0, .begin = begins[part.name], .length = rows[part.name]};
    begins[part.name] += part.shape[0];
  }
}

int SpecBuilder::add_norm(const std::string& role, const std::string& name, const NormSpec& norm,
                          int64_t width, bool trainable, const TpSharding& cut) {
  const int weight = add(role + ".weight", name + ".weight", {width}, trainable, 0, cut);
  if (norm.offset == 1) model_.params[weight].init = Init::Zeros;
  if (norm.kind == NormKind::Layer && norm.has_bias)
    add(role + ".bias", name + ".bias", {width}, trainable, 0);
  return weight;
}

void SpecBuilder::add_class_token(const std::string& name, const Shape& shape, bool trainable,
                                  double std) {
  model_.params[add("class_token", name, shape, trainable, std)].init = Init::Normal;
}

void SpecBuilder::add_normal_vector(const std::string& role, const std::string& name, int64_t width,
                                    bool trainable) {
  const double std = 1 / std::sqrt(static_cast<double>(width));
  model_.params[add(role, name, {width}, trainable, std)].init = Init::Normal;
}

void SpecBuilder::add_sinusoids(const std::string& name, int64_t positions, int64_t width) {
  model_.params[add("positions", name, {positions, width}, false, 0)].init = Init::Sinusoids;
}

void SpecBuilder::add_each(const std::string& module, int64_t count,
                           const std::function<void(const std::string&)>& add) {
  check_layers(module, count);
  for (int64_t i = 0; i < count; ++i) {
    const std::string number = std::to_string(i);
    start(module + ".layers." + number, module, UnitKind::Block, {{last_unit(), false}});
    add(number);
  }
}

void SpecBuilder::add_blocks(const std::string& module, int64_t count, const BlockSpec& block,
                             const BlockFamily& family, const std::string& layers, bool trainable) {
  check_layers(module, count);
  const int embedded = last_unit();
  int context_norm = -1;
  std::vector<int> keys_units(static_cast<size_t>(count), -1);
  for (int64_t i = 0; i < count; ++i) {
    const std::string number = std::to_string(i), name = module + ".layers." + number;
    const int keys = family.keys.empty() ? -1 : family.keys.at(i);
    std::vector<UnitInput> inputs{{last_unit(), false}};
    const auto set_kinds = [&] {
      if (!family.mixer.empty()) unit().mixer = family.mixer.at(i);
      if (!family.mlp.empty()) unit().mlp = family.mlp.at(i);
    };
    if (keys == i) {
      start(name + kKeysSuffix, module, UnitKind::Keys, inputs);
      set_kinds();
      keys_units[i] = last_unit();
      add_attention_norm(block, family, layers + number, trainable);
      add_attention(block, family, layers + number, trainable);
    }
    if (keys >= 0) inputs.push_back({keys_units.at(keys), false, UnitReads::Keys});
    if (block.layer_input.width > 0) inputs.push_back({embedded, false, UnitReads::Embedded});
    start(name, module, UnitKind::Block, std::move(inputs));
    set_kinds();
    add_block(block, family, layers + number, trainable);
    if (block.layer_input.width > 0)
      add_layer_input(block, family, layers + number, i, count, context_norm, trainable);
  }
}

void SpecBuilder::add_attention_norm(const BlockSpec& block, const BlockFamily& family,
                                     const std::string& layer, bool trainable) {
  const std::string& name = family.names.attention_norm;
  if (name.empty()) return;
  const UnitSpec& keys = model_.keys_of(unit());
  if (keys.name == unit().name + kKeysSuffix)
    use("attention_norm.weight", keys.params.front());
  else
    add_norm("attention_norm", layer + name, block.norm, block.hidden, trainable);
}

void SpecBuilder::add_layer_input(const BlockSpec& block, const BlockFamily& family,
                                  const std::string& layer, int64_t number, int64_t count,
                                  int& context_norm, bool trainable) {
  const LayerInputNames& names = family.names.layer_input;
  const auto& [width, vocabulary, placeholder] = block.layer_input;
  add("input_gate.weight", layer + names.gate + ".weight", {width, block.hidden}, trainable,
      family.init.up);
  add("input_projection.weight", layer + names.projection + ".weight", {block.hidden, width},
      trainable, family.init.down);
  add_norm("input_post_norm", layer + names.post_norm, block.norm, block.hidden, trainable);
  const auto add_part = [&](const std::string& role, const std::string& name, Shape shape, int dim,
                            const TpSharding& cut) {
    const int64_t length = shape[dim];
    ParamSpec& param = model_.params[add(role, names.root + name + ".weight", std::move(shape),
                                         trainable, family.init.up, cut)];
    if (count > 1) param.part = {dim, number * length, count * length};
  };
  add_part("input_table", names.table, {vocabulary, width}, 1, vocab_parallel());
  add_part("input_context.weight", names.context, {width, block.hidden}, 0, {});
  if (context_norm < 0)
    context_norm =
        add_norm("input_norm", names.root + names.context_norm, block.norm, width, trainable);
  else
    use("input_norm.weight", context_norm);
}

void SpecBuilder::add_block(const BlockSpec& block, const BlockFamily& family,
                            const std::string& layer, bool trainable) {
  const BlockNames& names = family.names;
  const auto add_norm_if = [&](const std::string& role, const std::string& name, int64_t width) {
    if (!name.empty()) add_norm(role, layer + name, block.norm, width, trainable);
  };
  const auto add_scale_if = [&](const std::string& role, const std::string& name) {
    if (name.empty()) return;
    const double value = family.init.scale;
    model_.params[add(role, layer + name, {block.hidden}, trainable, value)].init = Init::Constant;
  };
  add_attention_norm(block, family, layer, trainable);
  if (const auto* rule = std::get_if<DeltaRuleSpec>(&block.mixers.at(model_.units.back().mixer)))
    add_delta_rule(block, *rule, family, layer, trainable);
  else
    add_attention(block, family, layer, trainable);
  add_norm_if("attention_post_norm", names.attention_post_norm, block.hidden);
  add_scale_if("attention_scale", names.attention_scale);
  add_norm_if("mlp_norm", names.mlp_norm, block.hidden);
  add_feed_forward(block, family, layer, trainable);
  add_norm_if("mlp_post_norm", names.mlp_post_norm, block.hidden);
  add_scale_if("mlp_scale", names.mlp_scale);
  if (!names.output_scale.empty()) add_ones("output_scale", layer + names.output_scale, {1});
}

void SpecBuilder::add_attention(const BlockSpec& block, const BlockFamily& family,
                                const std::string& layer, bool trainable) {
  const BlockNames& names = family.names;
  const BlockBiases& biases = family.biases;
  const auto& attention = std::get<AttentionSpec>(block.mixers.at(model_.units.back().mixer));
  const auto& [query_heads, key_heads, dim] = attention.heads;
  const int64_t q = query_heads * dim, kv = key_heads * dim;
  const int64_t made = attention.gates_output ? 2 * q : q;
  if (attention.latent) {
    add_latent_heads(block, family, layer, trainable);
  } else if (block.clips_linears) {
    TpSharding kv_heads = column_parallel(key_heads);
    kv_heads.replicates_kv = key_heads < query_heads;
    add_linear("q", layer + names.q, block, q, block.hidden, column_parallel(query_heads), false,
               trainable, family.init.qkv);
    for (const auto& [role, name] : {std::pair("k", names.k), std::pair("v", names.v)})
      add_linear(role, layer + name, block, kv, block.hidden, kv_heads, false, trainable,
                 family.init.qkv);
  } else if (names.qkv.empty()) {
    const TpSharding heads = column_parallel(query_heads);
    TpSharding kv_heads = column_parallel(key_heads);
    kv_heads.replicates_kv = key_heads < query_heads;
    const std::string query = layer + names.q, key = layer + names.k, value = layer + names.v;
    std::vector<Part> weights, all_biases;
    const auto add_part = [&](const std::string& name, int64_t rows, const TpSharding& cut) {
      weights.push_back({name + ".weight", {rows, block.hidden}, cut});
      all_biases.push_back({name + ".bias", {rows}, cut});
    };
    if (unit().makes_queries()) add_part(query, made, heads);
    if (unit().makes_keys()) add_part(key, kv, kv_heads);
    if (unit().makes_keys() && !attention.keys_are_values) add_part(value, kv, kv_heads);
    add_fused("qkv.weight", weights, trainable, family.init.qkv);
    if (biases.k) {
      add_fused("qkv.bias", all_biases, trainable, 0);
    } else {
      if (biases.q) add("q.bias", query + ".bias", {made}, trainable, 0, heads);
      if (biases.v) add("v.bias", value + ".bias", {kv}, trainable, 0, kv_heads);
    }
  } else {
    ZEA_ASSERT(q == kv);  // fused sections are equal
    TpSharding heads = column_parallel(query_heads);
    heads.fused_sections = 3;
    add_linear("qkv", layer + names.qkv, block, 3 * q, block.hidden, heads, biases.q, trainable,
               family.init.qkv);
  }
  if (unit().makes_queries())
    add_linear("out", layer + names.out, block, block.hidden, query_heads * attention.value_dim(),
               row_parallel(query_heads), biases.out, trainable, family.init.out);
  if (unit().makes_queries() && attention.has_sinks) {
    const int sinks = add("sinks", layer + names.sinks, {query_heads}, trainable, family.init.qkv,
                          column_parallel(query_heads));
    model_.params[sinks].init = Init::Normal;
  }
  const int64_t norm_width = dim * (block.query_key_norm ? query_heads : 1);
  const TpSharding norm_cut =
      block.query_key_norm ? column_parallel(query_heads) : TpSharding{.of_heads = true};
  for (const auto& [role, name, is_made] :
       {std::tuple("q_norm", names.q_norm, unit().makes_queries()),
        std::tuple("k_norm", names.k_norm, unit().makes_keys())})
    if (is_made && !name.empty())
      add_norm(role, layer + name, block.query_key_norm.value_or(block.norm), norm_width, trainable,
               norm_cut);
}

/// Tp ranks have the latents of all heads, and the linears that make their own ones of these.
void SpecBuilder::add_latent_heads(const BlockSpec& block, const BlockFamily& family,
                                   const std::string& layer, bool trainable) {
  const auto& attention = std::get<AttentionSpec>(block.mixers.at(model_.units.back().mixer));
  const LatentSpec& latent = *attention.latent;
  const LatentNames& names = family.names.latent;
  const int64_t heads = attention.heads.query;
  const auto add_latent = [&](const std::string& role, const std::string& name, int64_t width) {
    add_linear(role, layer + name, block, width, block.hidden, {}, family.biases.latents, trainable,
               family.init.qkv);
  };
  const auto add_heads = [&](const std::string& role, const std::string& name, int64_t dim,
                             int64_t in) {
    add_linear(role, layer + name, block, heads * dim, in, column_parallel(heads), false, trainable,
               family.init.qkv);
  };
  if (latent.query_rank > 0) {
    add_latent("latent_q", names.q_a, latent.query_rank);
    add_norm("latent_q_norm", layer + names.q_norm, latent.norm, latent.query_rank, trainable);
  }
  add_heads("query", names.q_b, latent.plain + latent.rotary,
            latent.query_rank > 0 ? latent.query_rank : block.hidden);
  add_latent("latent_kv", names.kv_a, latent.rank + latent.rotary);
  add_norm("latent_kv_norm", layer + names.kv_norm, latent.norm, latent.rank, trainable);
  add_heads("key_value", names.kv_b, latent.plain + latent.value, latent.rank);
}

/// The linears' rows are the columns of one product, so that tp ranks gather their inputs once.
void SpecBuilder::add_delta_rule(const BlockSpec& block, const DeltaRuleSpec& rule,
                                 const BlockFamily& family, const std::string& layer,
                                 bool trainable) {
  const DeltaNames& names = family.names.delta;
  const TpSharding by_key = column_parallel(rule.key_heads),
                   by_value = column_parallel(rule.value_heads);
  const int64_t keys = rule.keys(), values = rule.values(), heads = rule.value_heads;
  const auto rows = [&](const std::string& name, int64_t count, const TpSharding& cut) {
    return Part{layer + name + ".weight", {count, block.hidden}, cut};
  };
  const auto channels = [&](int64_t count, const TpSharding& cut) {
    return Part{layer + names.conv + ".weight", {count, 1, rule.taps}, cut};
  };
  if (rule.by_key_head)
    add_fused("delta.weight",
              {rows(names.qkv, 2 * (keys + values), by_key), rows(names.b, 2 * heads, by_key)},
              trainable, family.init.qkv);
  else
    add_fused("delta.weight",
              {rows(names.qkv, keys, by_key), rows(names.qkv, keys, by_key),
               rows(names.qkv, values, by_value), rows(names.z, values, by_value),
               rows(names.b, heads, by_value), rows(names.a, heads, by_value)},
              trainable, family.init.qkv);
  add_fused("conv.weight",
            {channels(keys, by_key), channels(keys, by_key), channels(values, by_value)}, trainable,
            family.init.qkv);
  constexpr double kLargestDecay = 16;
  const int decay = add("decay", layer + names.decay, {heads}, trainable, kLargestDecay, by_value);
  model_.params[decay].init = Init::LogUniform;
  const int step = add("step", layer + names.step, {heads}, trainable, 0, by_value);
  model_.params[step].init = Init::Ones;
  add_norm("delta_norm", layer + names.norm, {NormKind::Rms, rule.eps}, rule.value_dim, trainable,
           {.of_heads = true});
  add_linear("out", layer + names.out, block, block.hidden, values, row_parallel(rule.value_heads),
             false, trainable, family.init.out);
}

void SpecBuilder::add_feed_forward(const BlockSpec& block, const BlockFamily& family,
                                   const std::string& layer, bool trainable) {
  const MlpSpec& mlp = block.mlps.at(model_.units.back().mlp);
  if (mlp.router) add_experts(block, family, layer, trainable);
  if (mlp.router && mlp.plain_intermediate == 0) return;
  const BlockNames& names = family.names;
  const bool bias = family.biases.mlp;
  const int64_t inner = mlp.router ? mlp.plain_intermediate : mlp.intermediate;
  const TpSharding cut = column_parallel(inner);
  if (block.clips_linears) {
    ZEA_ASSERT(mlp.gated && !bias);
    for (const auto& [role, name] : {std::pair("gate", names.gate), std::pair("up", names.up)})
      add_linear(role, layer + name, block, inner, block.hidden, cut, false, trainable,
                 family.init.up);
  } else if (mlp.gated) {
    const std::string gate = layer + names.gate, up = layer + names.up;
    const Shape shape{inner, block.hidden};
    add_fused("up.weight", {{gate + ".weight", shape, cut}, {up + ".weight", shape, cut}},
              trainable, family.init.up);
    if (bias)
      add_fused("up.bias", {{gate + ".bias", {inner}, cut}, {up + ".bias", {inner}, cut}},
                trainable, 0);
  } else {
    add_linear("up", layer + names.up, block, inner, block.hidden, cut, bias, trainable,
               family.init.up);
  }
  add_linear("down", layer + names.down, block, block.hidden, inner, row_parallel(inner), bias,
             trainable, family.init.down);
}

/// The weights of all experts lie in one buffer, each whole.
void SpecBuilder::add_experts(const BlockSpec& block, const BlockFamily& family,
                              const std::string& layer, bool trainable) {
  const MlpSpec& mlp = block.mlps.at(model_.units.back().mlp);
  const ExpertNames& names = family.names.experts;
  ZEA_ASSERT(mlp.gated);
  const TpSharding whole{.of_heads = true};  // tp ranks have parts of each expert's output
  const auto add_mlps = [&](const std::string& role, const std::vector<std::string>& experts,
                            int64_t inner) {
    std::vector<Part> up, down;
    for (const std::string& expert : experts) {
      for (const std::string& name : {names.gate, names.up})
        up.push_back({expert + name + ".weight", {inner, block.hidden}, column_parallel(inner)});
      down.push_back({expert + names.down + ".weight", {block.hidden, inner}, row_parallel(inner)});
    }
    add_fused(role + ".up.weight", up, trainable, family.init.up);
    add_fused(role + ".down.weight", down, trainable, family.init.down);
  };
  add("router.weight", layer + names.router + ".weight", {mlp.router->experts, block.hidden},
      trainable, family.init.up, whole);
  if (family.biases.experts) {
    const int bias = add("router.bias", layer + names.router + ".bias", {mlp.router->experts},
                         trainable, family.init.up, whole);
    model_.params[bias].init = Init::Normal;
  }
  if (mlp.router->has_correction_bias)
    add_state("correction_bias", layer + names.correction_bias, {mlp.router->experts});
  add_gate_parts(block, names, layer, trainable);
  if (mlp.stack) {
    const int64_t count = mlp.router->experts, inner = mlp.intermediate;
    // Gate and up are sections of the outputs.
    const auto add_stack = [&](const std::string& role, const std::string& name, int64_t out,
                               int64_t in, bool cuts_outputs, double std) {
      const bool is_out_in = *mlp.stack == WeightOrder::OutIn;
      TpSharding cut{.dim = is_out_in == cuts_outputs ? 1 : 2, .blocks = inner};
      if (cuts_outputs && !mlp.clamped_gate) cut.fused_sections = 2;
      const int param =
          add(role, layer + names.experts + name,
              is_out_in ? Shape{count, out, in} : Shape{count, in, out}, trainable, std, cut);
      model_.params[param].stacks_experts = true;
      if (!family.biases.experts) return;
      // Biases of the sum over tp ranks are whole on each, and one of them adds them.
      const int bias = add(role.substr(0, role.rfind('.')) + ".bias",
                           layer + names.experts + name + "_bias", {count, out}, trainable, 0,
                           cuts_outputs ? TpSharding{.dim = 1, .blocks = inner} : whole);
      model_.params[bias].stacks_experts = true;
      model_.params[bias].init = Init::Zeros;
    };
    add_stack("experts.up.weight", names.stacked_up, 2 * inner, block.hidden, true, family.init.up);
    add_stack("experts.down.weight", names.stacked_down, block.hidden, inner, false,
              family.init.down);
  } else {
    std::vector<std::string> experts;
    for (int64_t e = 0; e < mlp.router->experts; ++e)
      experts.push_back(layer + names.experts + std::to_string(e));
    add_mlps("experts", experts, mlp.intermediate);
  }
  if (mlp.shared_intermediate == 0) return;
  add_mlps("shared", {layer + names.shared}, mlp.shared_intermediate);
  if (!names.shared_gate.empty())
    add("shared_gate.weight", layer + names.shared_gate + ".weight", {1, block.hidden}, trainable,
        family.init.up, whole);
}

/// Adds the norms and gate scales of a mixture. Tp ranks norm the rows of all, of whose gradients
/// each has a part.
void SpecBuilder::add_gate_parts(const BlockSpec& block, const ExpertNames& names,
                                 const std::string& layer, bool trainable) {
  const TpSharding whole{.of_heads = true};
  const auto add_norm_if = [&](const std::string& role, const std::string& name,
                               const TpSharding& cut) {
    if (!name.empty()) add_norm(role, layer + name, block.norm, block.hidden, trainable, cut);
  };
  if (!names.router_norm.empty()) {
    const std::string name = layer + names.router_norm;
    add("router_norm.weight", name, {block.hidden}, trainable, 0, whole);
  }
  if (!names.gate_scale.empty()) {
    const int64_t experts = block.mlps.at(model_.units.back().mlp).router->experts;
    const int scale = add("gate_scale", layer + names.gate_scale, {experts}, trainable, 0, whole);
    model_.params[scale].init = Init::Ones;
  }
  add_norm_if("experts_norm", names.norm, whole);
  add_norm_if("experts_post_norm", names.post_norm, {});
  add_norm_if("plain_post_norm", names.plain_post_norm, {});
}

/// `cut` shards a weight (out, in). The bounds of a clipped linear belong to the module around its
/// weight's module, and are infinite at first.
void SpecBuilder::add_linear(const std::string& role, const std::string& name,
                             const BlockSpec& block, int64_t out, int64_t in, const TpSharding& cut,
                             bool bias, bool trainable, double std) {
  const bool out_in = block.order == WeightOrder::OutIn;
  add(role + ".weight", name + ".weight", out_in ? Shape{out, in} : Shape{in, out}, trainable, std,
      out_in ? cut : other_order(cut));
  if (bias)
    add(role + ".bias", name + ".bias", {out}, trainable, 0, cut.dim == 0 ? cut : TpSharding{});
  if (!block.clips_linears) return;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const char* side : {".input", ".output"})
    for (const auto& [end, value] : {std::pair("_min", -kInfinity), std::pair("_max", kInfinity)}) {
      const int bound =
          add(role + side + end, name.substr(0, name.rfind('.')) + side + end, {}, false, value);
      model_.params[bound].init = Init::Constant;
    }
}

}  // namespace zea::detail
