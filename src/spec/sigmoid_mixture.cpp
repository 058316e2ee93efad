// SPDX-License-Identifier: Apache-2.0
// Experts as DeepSeek-V3 has them (arXiv:2412.19437): chosen by sigmoids of scores, with a bias for
// the choice alone, among the best groups, beside shared experts without a gate. The first layers
// are dense.
#include "spec/families.hpp"

namespace zea::detail {
namespace {

void read_groups(const ConfigReader& config, const SigmoidDefaults& defaults, RouterSpec& router) {
  router.groups = config.positive("n_group", defaults.groups);
  router.topk_groups = config.positive("topk_group", defaults.topk_groups);
  config.require_divisor("n_group", router.groups, "n_routed_experts", router.experts);
  const int64_t of_group = router.experts / router.groups;
  if (router.groups > 1 && of_group < 2)
    config.refuse("n_group", std::to_string(router.groups),
                  "groups of 2 of the " + std::to_string(router.experts) + " experts, or more");
  if (router.topk_groups > router.groups)
    config.refuse("topk_group", std::to_string(router.topk_groups),
                  "1 to n_group = " + std::to_string(router.groups));
  if (router.chosen > router.topk_groups * of_group)
    config.refuse("num_experts_per_tok", std::to_string(router.chosen),
                  "at most the experts of topk_group groups, " +
                      std::to_string(router.topk_groups * of_group));
}

}  // namespace

void add_sigmoid_mixture(const ConfigReader& config, Decoder& decoder,
                         const SigmoidDefaults& defaults) {
  const int64_t layers = decoder.spec.layers;
  const int64_t dense = config.integer("first_k_dense_replace", defaults.dense);
  RouterSpec router{.experts = read_experts(config, "n_routed_experts", defaults.experts, layers),
                    .norm_topk_prob = config.boolean("norm_topk_prob", true),
                    .scores = RouterScores::Sigmoid,
                    .has_correction_bias = true,
                    .min_sum = 1e-20,
                    .factor = config.number("routed_scaling_factor", defaults.factor),
                    .has_wide_outputs = true};
  router.chosen = read_top_k(config, defaults.chosen, router.experts);
  read_groups(config, defaults, router);
  MlpSpec mixture = decoder.spec.block.mlp();
  mixture.router = router;
  mixture.intermediate = config.positive("moe_intermediate_size", defaults.intermediate);
  mixture.shared_intermediate = mixture.intermediate * config.positive("n_shared_experts", 1);
  ExpertNames names = qwen_expert_names(false);
  names.shared = ".mlp.shared_experts";
  names.correction_bias = ".mlp.gate.e_score_correction_bias";
  std::vector<bool> sparse;
  for (int64_t layer = 0; layer < layers; ++layer) sparse.push_back(layer >= dense);
  set_mixture(config, decoder, sparse, mixture, names);
}

}  // namespace zea::detail
