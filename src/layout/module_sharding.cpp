// SPDX-License-Identifier: Apache-2.0
#include "layout/module_sharding.hpp"

#include <algorithm>

#include "layout/mesh_shape.hpp"
#include "layout/reduction.hpp"
#include "layout/scan_plan.hpp"

namespace zea {

void set_placement(Sharding& sharding, const MeshShape& mesh, const std::string& module,
                   const std::vector<Axis>& sharded_over, const std::vector<Axis>& summed_over) {
  sharding.sharded_over = sharded_over;
  sharding.summed_over = summed_over;
  sharding.shards = mesh.size_along(module, sharded_over);
  sharding.replicas = mesh.size_along(module, summed_over);
}

namespace detail {
namespace {

constexpr double kMebibyte = 1 << 20;

struct Strategy {
  bool shards = true;         ///< parameters, gradients and optimizer state are sharded
  bool reshards = true;       ///< by default, between forward and backward
  bool has_replicas = false;  ///< one copy per dp_replicate
};

Strategy strategy_of(ShardingStrategy asked) {
  using enum ShardingStrategy;
  return {.shards = asked != NoShard,
          .reshards = asked != ShardGradOp && asked != HybridShardZero2,
          .has_replicas = asked != FullShard && asked != ShardGradOp};
}

/// Faults of one module, each starting with the key's path.
class ModuleFaults {
 public:
  ModuleFaults(const std::string& module, Faults& faults)
      : section_("mesh." + module + "."), faults_(faults) {}

  void add_if(bool wrong, const char* key, const std::string& rest) {
    if (wrong) faults_.add(section_ + key + rest);
  }

 private:
  std::string section_;
  Faults& faults_;
};

/// Refuses settings that only gathered modules have a use for.
void check_not_gathered(const ModuleMeshOptions& options, ModuleFaults& faults) {
  const ModuleMeshOptions defaults;
  const std::string why = " has no meaning with strategy = \"no_shard\", which gathers nothing; ";
  const std::string leave = why + "leave it out or choose a strategy that shards";
  faults.add_if(!options.reshard_after_forward.is_auto(), "reshard_after_forward", leave);
  faults.add_if(options.forward_prefetch != defaults.forward_prefetch, "forward_prefetch", leave);
  faults.add_if(options.backward_prefetch != defaults.backward_prefetch, "backward_prefetch",
                leave);
  faults.add_if(options.prefetch_depth != defaults.prefetch_depth, "prefetch_depth", leave);
  faults.add_if(options.wrap_units != defaults.wrap_units, "wrap_units",
                why + "bucket_mib says how much is summed at once");
  faults.add_if(!options.flatten_parameters, "flatten_parameters = false",
                why + "its gradients are views of buckets; bucket_mib = 0 makes one per unit");
  faults.add_if(options.sync_grad_accum.is_yes(), "sync_grad_accum = true",
                " with strategy = \"no_shard\" would sum every microbatch over the ranks for "
                "nothing: gradients are added up first and summed once per step; leave it out");
}

void check_gathered(const ModuleMeshOptions& options, const MeshShape& mesh, const ModuleGrid& grid,
                    ModuleFaults& faults) {
  const ModuleMeshOptions defaults;
  const Strategy strategy = strategy_of(options.strategy);
  const std::string quoted = " with strategy = \"" + options.strategy + "\"";
  const AutoOption& reshard = options.reshard_after_forward;
  faults.add_if(!strategy.has_replicas && mesh.dp_replicate > 1, "strategy",
                " = \"" + options.strategy +
                    "\" has one copy over all data-parallel ranks, but "
                    "mesh.dp_replicate = " +
                    std::to_string(mesh.dp_replicate) + "; use \"" +
                    (strategy.reshards ? "hybrid_shard" : "hybrid_shard_zero2") +
                    "\" (one copy per dp_replicate), or dp_replicate = 1");
  faults.add_if(!strategy.reshards && (reshard.is_yes() || reshard.is_count()),
                "reshard_after_forward",
                quoted + ", which keeps parameters gathered until backward; use \"" +
                    (strategy.has_replicas ? "hybrid_shard" : "full_shard") + "\"");
  const int64_t group = reshard.count();
  const int shards = mesh.size_along(grid.module, shard_axes());
  faults.add_if(strategy.reshards && reshard.is_count() && (group >= shards || shards % group != 0),
                "reshard_after_forward",
                " = " + std::to_string(group) + " must divide the " + std::to_string(shards) +
                    " ranks that share a copy (mesh.dp_shard = " + std::to_string(mesh.dp_shard) +
                    (grid.encoder_dp * grid.cp > 1 ? ", times encoder_dp x cp of the module" : "") +
                    ") and be smaller; true reshards over all of it");
  const bool none =
      options.forward_prefetch == Prefetch::None && options.backward_prefetch == Prefetch::None;
  faults.add_if(none && options.prefetch_depth != 1, "prefetch_depth",
                " = " + std::to_string(options.prefetch_depth) +
                    " with forward_prefetch and backward_prefetch = \"none\"; set one of them");
  faults.add_if(
      options.forward_prefetch == Prefetch::Post && options.prefetch_depth == 1,
      "forward_prefetch = \"post\"",
      " with prefetch_depth = 1 gathers a unit when nothing but it is left to do, as \"none\" "
      "does; use \"pre\", or a prefetch_depth of 2 or more");
  faults.add_if(options.bucket_mib != defaults.bucket_mib, "bucket_mib",
                quoted + ": gradients are reduced by wrapped units; set wrap_units instead");
}

/// A smaller group holds what lies between a microbatch's forward and its backward.
void check_pipeline(const ModuleMeshOptions& options, ModuleFaults& faults) {
  const AutoOption& reshard = options.reshard_after_forward;
  faults.add_if(reshard.is_count(), "reshard_after_forward",
                " = " + std::to_string(reshard.count()) +
                    " where modules or stages have ranks of their own: other microbatches stand "
                    "between the forward and the backward of one; allowed: true (gathered for "
                    "each use), false (once a step), auto");
}

void check_offload(const ModuleMeshOptions& options, DeviceKind device, ModuleFaults& faults) {
  faults.add_if(options.cpu_offload && device == DeviceKind::Cpu, "cpu_offload = true",
                " with run.device = \"cpu\": parameters are in host memory already, there is no "
                "GPU to offload from; leave it out");
  faults.add_if(options.cpu_offload && !strategy_of(options.strategy).shards, "cpu_offload = true",
                " with strategy = \"no_shard\", whose whole copy computes where it lies; choose a "
                "strategy that shards");
  faults.add_if(!options.pin_memory.is_auto() && !options.cpu_offload, "pin_memory",
                " is set without cpu_offload, so there is no memory to pin; leave it out");
}

}  // namespace

void check_sharding(const ModuleMeshOptions& options, const MeshShape& mesh, const ModuleGrid& grid,
                    const RunKind& run, Faults& faults) {
  ModuleFaults of_module(grid.module, faults);
  if (strategy_of(options.strategy).shards)
    check_gathered(options, mesh, grid, of_module);
  else
    check_not_gathered(options, of_module);
  if (run.is_pipelined) check_pipeline(options, of_module);
  check_offload(options, run.device, of_module);
}

Sharding make_sharding(const ModuleMeshOptions& options, const MeshShape& mesh,
                       const ModuleGrid& grid, bool is_pipelined, bool is_over_ep) {
  Sharding sharding;
  if (is_over_ep) sharding.split_over = {Axis::EpDpShard, Axis::EpCp, Axis::Tp};
  const std::vector<Axis> shards = is_over_ep ? expert_shard_axes() : shard_axes();
  set_placement(sharding, mesh, grid.module, {}, is_over_ep ? expert_token_axes() : token_axes());
  if (!strategy_of(options.strategy).shards) return sharding;
  if (mesh.size_along(grid.module, shards) > 1 || options.cpu_offload)
    set_placement(sharding, mesh, grid.module, shards, {Axis::DpReplicate});
  const AutoOption& reshard = options.reshard_after_forward;
  sharding.subgroup = static_cast<int>(reshard.count());
  sharding.keeps_until_backward =
      !reshard.is_count() && !reshard.value_or(strategy_of(options.strategy).reshards);
  sharding.forward_prefetch = options.forward_prefetch;
  sharding.backward_prefetch = options.backward_prefetch;
  sharding.prefetch_depth = static_cast<int>(options.prefetch_depth);
  sharding.offloads = options.cpu_offload;
  sharding.pins_memory = options.cpu_offload && options.pin_memory.value_or(true);
  gather(sharding, options, is_pipelined && !reshard.value_or(false));
  return sharding;
}

Sharding sharding_of_states(const MeshShape& mesh, const std::string& module) {
  Sharding sharding;
  set_placement(sharding, mesh, module, {}, token_axes());
  return sharding;
}

void gather(Sharding& sharding, const ModuleMeshOptions& options, bool once_a_step) {
  sharding.keeps_for_step = once_a_step;
  sharding.reduces_each_microbatch = options.sync_grad_accum.value_or(!once_a_step);
}

bool may_gather_for_each_use(const ModuleMeshOptions& options) {
  const Strategy strategy = strategy_of(options.strategy);
  return strategy.shards && strategy.reshards && options.reshard_after_forward.is_auto();
}

WrapPolicy make_wrap_policy(const ModuleMeshOptions& options, int64_t gradient_bytes) {
  if (strategy_of(options.strategy).shards)
    return {.units = options.wrap_units, .each_parameter = !options.flatten_parameters};
  if (options.bucket_mib == 0) return {};
  return {.units = 0,
          .bucket_elements = std::max<int64_t>(
              1, static_cast<int64_t>(options.bucket_mib * kMebibyte) / gradient_bytes)};
}

}  // namespace detail
}  // namespace zea

namespace zea::detail {
namespace {

/// Returns the cost of a token without attention with the widest window, by which tokens are
/// distributed, in tiles of it: multiplications of a block over those of a tile. Blocks with
/// narrower windows count as if every token had all of its window; they and blocks without
/// attention are shared among those with the widest one.
double linear_tiles_per_token(const std::string& module, const ModelSpec& model, int64_t block) {
  const AttentionSpec widest = model.block(module).widest_attention();
  const auto pair_cost = [](const AttentionSpec& kind) {
    return 2.0 * static_cast<double>(kind.heads.query * kind.heads.dim);
  };
  const double tile = pair_cost(widest) * static_cast<double>(block * block);
  double of_block = 1, of_narrower = 0, blocks = 0;
  for (const UnitSpec& unit : model.units) {
    const bool makes_keys_alone = unit.kind == UnitKind::Keys;
    if (unit.module != module || (unit.kind != UnitKind::Block && !makes_keys_alone)) continue;
    double weights = 0;
    const std::vector<int> table = model.params_of(unit, "input_table");  // looked up, no GEMM
    for (int param : unit.params)
      if (model.params[param].decays() && std::ranges::count(table, param) == 0)
        weights += static_cast<double>(num_elements(model.params[param].shape));
    if (makes_keys_alone) {
      of_narrower += weights / tile;
      continue;
    }
    const DeltaRuleSpec* rule = model.delta_rule(unit);
    if (rule) {
      of_narrower += (weights + static_cast<double>(rule->multiplications())) / tile;
      continue;
    }
    const int64_t window = model.window(unit);
    const int64_t seen =
        unit.encoder < 0 ? window : model.encoders[unit.encoder].item_shape().most_seen(window);
    if (window == widest.window)
      of_block = weights / tile, ++blocks;
    else
      of_narrower +=
          (weights + static_cast<double>(seen) * pair_cost(model.attention(unit))) / tile;
  }
  return blocks == 0 ? of_block : of_block + of_narrower / blocks;
}

ContextOptions make_context_options(const std::string& module, const ModuleMeshOptions& options,
                                    const ModelSpec& model) {
  ContextOptions context;
  context.ranks = static_cast<int>(options.cp);
  context.inner = inner_ranks(options);
  const bool rings = options.cp_mode == CpMode::Ring || options.cp_mode == CpMode::UlyssesRing;
  context.exchange = rings ? KvExchange::Ring : KvExchange::Gather;
  context.distribution.kind = options.cp_distribution;
  context.distribution.block = options.cp_block;
  context.distribution.linear_tiles_per_token =
      linear_tiles_per_token(module, model, options.cp_block);
  context.distribution.counts_attention = context.inner < context.ranks;
  return context;
}

/// Returns whether states are fewer bytes than tokens that are exchanged for heads, where ranks own
/// runs of a microbatch of one sample. Counted is what a rank sends in forward, on average.
bool are_states_fewer(const DeltaRuleSpec& rule, double cp, const MicrobatchFormat& format) {
  const auto of_type = static_cast<double>(element_bytes(format.type));
  const double of_sum = format.type == DType::Float64 ? of_type : 4;
  const auto rows = [&](int64_t width) { return static_cast<double>(width) * of_type; };
  const auto states = static_cast<double>(rule.value_heads * rule.key_dim);
  const double of_heads = static_cast<double>(format.tokens) * (cp - 1) / (cp * cp) *
                          rows(rule.columns() + rule.values());
  const double of_states =
      rows((rule.taps - 1) * rule.columns()) +
      (cp - 1) / 2 * states * static_cast<double>(rule.key_dim + rule.value_dim) * of_sum;
  return of_states < of_heads;
}

bool passes_states(const ModuleMeshOptions& options, const BlockSpec& block,
                   const DistributionOptions& distribution, const MicrobatchFormat& format) {
  if (options.cp == 1 || !block.carries_state()) return false;
  if (options.cp_scan != CpScan::Auto) return options.cp_scan == CpScan::States;
  if (!can_scan_with_ulysses(block, options.tp, options.cp)) return true;
  // Rows that are redistributed are as many bytes as heads.
  const auto is_fewer = [&](const DeltaRuleSpec& rule) {
    return are_states_fewer(rule, static_cast<double>(options.cp), format);
  };
  return owns_runs(distribution) && std::ranges::all_of(block.delta_rules(), is_fewer);
}

}  // namespace

TokenSharding make_token_sharding(const std::string& module, const ModuleMeshOptions& options,
                                  const ModelSpec& model, const MicrobatchFormat& format) {
  const ContextOptions context = make_context_options(module, options, model);
  return {is_sequence_parallel(options), context,
          passes_states(options, model.block(module), context.distribution, format)};
}

}  // namespace zea::detail
