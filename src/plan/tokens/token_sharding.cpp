// SPDX-License-Identifier: Apache-2.0
#include "token_sharding.hpp"

#include "plan/mesh/module_grid.hpp"

namespace zea::detail {
namespace {

TokenDistribution distribution_of(const std::string& name) {
  if (name == "uniform") return TokenDistribution::Uniform;
  return name == "zigzag" ? TokenDistribution::Zigzag : TokenDistribution::MakespanMin;
}

/// What a token's linear layers cost, in tiles of attention: multiplications of a block over those
/// of a tile.
double linear_tiles_per_token(const std::string& module, const ModelSpec& model, int64_t block) {
  const HeadShape heads = model.heads(module);
  const double tile = 2.0 * static_cast<double>(heads.query * heads.dim * block * block);
  for (const UnitSpec& unit : model.units) {
    const bool is_block = unit.kind == UnitKind::VisionBlock || unit.kind == UnitKind::AudioBlock ||
                          unit.kind == UnitKind::DecoderBlock || unit.kind == UnitKind::Gpt2Block;
    if (unit.module != module || !is_block) continue;
    double weights = 0;
    for (int param : unit.params)
      if (model.params[param].decays())
        weights += static_cast<double>(num_elements(model.params[param].shape));
    return weights / tile;
  }
  return 1;
}

ContextOptions make_context_options(const std::string& module, const ModuleMeshOptions& options,
                                    const ModelSpec& model) {
  ContextOptions context;
  context.ranks = static_cast<int>(options.cp);
  context.inner = inner_ranks(options);
  const bool rings = options.cp_mode == "ring" || options.cp_mode == "ulysses_ring";
  context.exchange = rings ? KeyExchange::Ring : KeyExchange::Gather;
  context.distribution.kind = distribution_of(options.cp_distribution);
  context.distribution.block = options.cp_block;
  context.distribution.linear_tiles_per_token =
      linear_tiles_per_token(module, model, options.cp_block);
  context.distribution.counts_attention = context.inner < context.ranks;
  return context;
}

}  // namespace

TokenSharding make_token_sharding(const std::string& module, const ModuleMeshOptions& options,
                                  const ModelSpec& model) {
  return {is_sequence_parallel(options), make_context_options(module, options, model)};
}

}  // namespace zea::detail
