// SPDX-License-Identifier: Apache-2.0
#include "layout/token_sharding.hpp"

#include "layout/module_grid.hpp"

namespace zea::detail {
namespace {

/// What a token costs beside attention with the widest window, by which tokens are dealt, in tiles
/// of it: multiplications of a block over those of a tile. Blocks with narrower windows count as if
/// every token had all of its window; they are shared among those with the widest one.
double linear_tiles_per_token(const std::string& module, const ModelSpec& model, int64_t block) {
  const HeadShape heads = model.heads(module);
  const double tile = 2.0 * static_cast<double>(heads.query * heads.dim * block * block);
  const int64_t widest = model.block(module).widest_window();
  double of_block = 1, of_narrower = 0, blocks = 0;
  for (const UnitSpec& unit : model.units) {
    if (unit.module != module || unit.kind != UnitKind::Block) continue;
    double weights = 0;
    for (int param : unit.params)
      if (model.params[param].decays())
        weights += static_cast<double>(num_elements(model.params[param].shape));
    const int64_t window = model.attention(unit).window;
    const int64_t seen =
        unit.encoder < 0 ? window : model.encoders[unit.encoder].item_shape().most_seen(window);
    if (window == widest)
      of_block = weights / tile, ++blocks;
    else
      of_narrower +=
          weights / tile + static_cast<double>(seen) / static_cast<double>(block * block);
  }
  return blocks == 0 ? of_block : of_block + of_narrower / blocks;
}

ContextOptions make_context_options(const std::string& module, const ModuleMeshOptions& options,
                                    const ModelSpec& model) {
  ContextOptions context;
  context.ranks = static_cast<int>(options.cp);
  context.inner = inner_ranks(options);
  const bool rings = options.cp_mode == CpMode::Ring || options.cp_mode == CpMode::UlyssesRing;
  context.exchange = rings ? KeyExchange::Ring : KeyExchange::Gather;
  context.distribution.kind = options.cp_distribution;
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
