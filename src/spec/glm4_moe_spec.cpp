// SPDX-License-Identifier: Apache-2.0
// GLM-4.5 and GLM-4.5-Air (arXiv:2508.06471), text: Llama's blocks, whose heads rotate half of
// their coordinates. Experts are chosen as in DeepSeek-V3 (arXiv:2412.19437): sigmoids of scores,
// with a bias for the choice alone, and shared experts without a gate. The first layers are dense.
#include "spec/families.hpp"

namespace zea::detail {
namespace {

void read_groups(const ConfigReader& config, RouterSpec& router) {
  router.groups = config.positive("n_group", 1);
  router.chosen_groups = config.positive("topk_group", 1);
  config.require_divisor("n_group", router.groups, "n_routed_experts", router.experts);
  const int64_t of_group = router.experts / router.groups;
  if (router.groups > 1 && of_group < 2)
    config.refuse("n_group", std::to_string(router.groups),
                  "groups of 2 of the " + std::to_string(router.experts) + " experts, or more");
  if (router.chosen_groups > router.groups)
    config.refuse("topk_group", std::to_string(router.chosen_groups),
                  "1 to n_group = " + std::to_string(router.groups));
  if (router.chosen > router.chosen_groups * of_group)
    config.refuse("num_experts_per_tok", std::to_string(router.chosen),
                  "at most the experts of topk_group groups, " +
                      std::to_string(router.chosen_groups * of_group));
}

RouterSpec read_router(const ConfigReader& config, int64_t layers) {
  RouterSpec router{.experts = read_experts(config, "n_routed_experts", 128, layers),
                    .renormalizes = config.boolean("norm_topk_prob", true),
                    .scores = RouterScores::Sigmoid,
                    .has_choice_bias = true,
                    .min_sum = 1e-20,
                    .factor = config.number("routed_scaling_factor", 1)};
  router.chosen = read_chosen(config, 8, router.experts);
  read_groups(config, router);
  return router;
}

}  // namespace

Decoder read_glm4_moe(const ConfigReader& config) {
  const bool biases = config.boolean("attention_bias", false);
  Decoder decoder = read_llama_like(config,
                                    {.intermediate = 10944,
                                     .layers = 46,
                                     .heads = 96,
                                     .key_value_heads = 8,
                                     .vocabulary = 151552,
                                     .positions = 131072,
                                     .end_token = -1,
                                     .eps = 1e-5,
                                     .rotary_share = 0.5,
                                     .turns_all = false},
                                    {.q = biases, .k = biases, .v = biases});
  if (config.boolean("use_qk_norm", false)) add_head_norms(decoder);
  // The layers of multi-token prediction are carried where files have them.
  config.pass_over({"num_mtp_layers", "num_nextn_predict_layers"});
  const int64_t layers = decoder.spec.layers, dense = config.integer("first_k_dense_replace", 1);
  MlpSpec mixture = decoder.spec.block.mlp();
  mixture.router = read_router(config, layers);
  mixture.intermediate = config.positive("moe_intermediate_size", 1408);
  mixture.shared_intermediate = mixture.intermediate * config.positive("n_shared_experts", 1);
  ExpertNames names = qwen_expert_names(false);
  names.shared = ".mlp.shared_experts";
  names.choice_bias = ".mlp.gate.e_score_correction_bias";
  std::vector<bool> sparse;
  for (int64_t layer = 0; layer < layers; ++layer) sparse.push_back(layer >= dense);
  set_mixture(decoder, sparse, mixture, names);
  return decoder;
}

}  // namespace zea::detail
