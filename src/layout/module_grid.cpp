// SPDX-License-Identifier: Apache-2.0
#include "layout/mesh_shape.hpp"

#include <algorithm>
#include <functional>
#include <set>

#include "spec/expert_needs.hpp"
#include "spec/param_shard.hpp"
#include "spec/stage_template.hpp"

namespace zea::detail {
namespace {

/// "1, 2, 4": the numbers up to `most` that `fits` takes.
std::string allowed_values(int64_t most, const std::function<bool(int64_t)>& fits) {
  std::string values;
  for (int64_t value = 1; value <= most; ++value)
    if (fits(value)) values += (values.empty() ? "" : ", ") + std::to_string(value);
  return values;
}

/// The first parameter of the module that `tp` ranks cannot share, of experts if tp shards them;
/// null: none.
const ParamSpec* uncuttable(const std::string& module, const ModuleMeshOptions& options,
                            const ModelSpec& model, int64_t tp) {
  const std::set<int> experts = options.etp == 1 ? model.expert_params() : std::set<int>();
  for (size_t p = 0; p < model.params.size(); ++p) {
    const ParamSpec& param = model.params[p];
    if (param.module == module && !experts.contains(static_cast<int>(p)) &&
        !can_shard(param, static_cast<int>(tp)))
      return &param;
  }
  return nullptr;
}

/// Tp ranks that hold the same KV head form groups, of one size in a module.
void check_key_heads(const std::string& key, const std::string& module,
                     const ModuleMeshOptions& options, const ModelSpec& model, Faults& faults) {
  const auto repeated = [&](int64_t tp) {
    std::set<int64_t> counts;
    for (const AttentionSpec& kind : model.block(module).attentions())
      if (kind.heads.key_value < tp) counts.insert(kind.heads.key_value);
    return counts;
  };
  const std::set<int64_t> counts = repeated(options.tp);
  if (counts.size() < 2) return;
  faults.add(key + "tp = " + std::to_string(options.tp) + ": layers differ in their KV heads (" +
             std::to_string(*counts.begin()) + ", " + std::to_string(*counts.rbegin()) +
             "), and tp ranks repeat the heads of one kind of layer only; allowed: " +
             allowed_values(options.tp, [&](int64_t tp) {
               return repeated(tp).size() < 2 && !uncuttable(module, options, model, tp);
             }));
}

void check_tp(const std::string& key, const std::string& module, const ModuleMeshOptions& options,
              const ModelSpec& model, Faults& faults) {
  if (options.tp == 1) {
    if (options.sequence_parallel.is_yes())
      faults.note(key +
                  "sequence_parallel = true has no effect with tp = 1: there are no tp ranks to "
                  "deal tokens to");
    if (options.tp_chunks > 1)
      faults.note(key + "tp_chunks = " + std::to_string(options.tp_chunks) +
                  " has no effect with tp = 1: there are no tp ranks to send rows to");
    return;
  }
  const std::string found = key + "tp = " + std::to_string(options.tp);
  const ParamSpec* param = uncuttable(module, options, model, options.tp);
  if (param == nullptr) return check_key_heads(key, module, options, model, faults);
  const int64_t most = std::max(model.block(module).attention().heads.query, options.tp);
  faults.add(found + " does not divide the " + std::to_string(param->tp_sharding.blocks) +
             " heads or rows of " + param->name +
             "; allowed: " + allowed_values(most, [&](int64_t tp) {
               return !uncuttable(module, options, model, tp);
             }));
}

/// Checks ep, ep_dispatch and etp, except against the model and the ranks of the mesh.
void check_ep(const std::string& key, const std::string& module, const ModuleMeshOptions& options,
              Faults& faults) {
  if (options.ep > 1 && module != kDecoder)
    faults.add(key + "ep = " + std::to_string(options.ep) +
               ": only the language model has experts; leave it out");
  const std::string etp = key + "etp = " + std::to_string(options.etp);
  if (options.etp > 0 && module != kDecoder)
    faults.add(etp + ": only the language model has experts; leave it out");
  else if (options.etp > 1 && options.etp != options.tp)
    faults.add(etp + " with tp = " + std::to_string(options.tp) +
               ": experts are sharded over all tp ranks, or each tp rank holds whole ones; "
               "allowed: " +
               std::to_string(options.tp) + ", 1");
  else if (options.etp > 0 && options.tp == 1)
    faults.note(etp + " has no effect with tp = 1: there are no tp ranks to shard experts over");
  if (options.ep_dispatch == EpDispatch::Auto) return;
  const std::string no_effect = key + "ep_dispatch = \"" + options.ep_dispatch +
                                "\" has no effect with ep = " + std::to_string(options.ep);
  if (options.ep == 1)
    faults.note(no_effect + ": there are no ranks that share experts");
  else if (options.ep == ep_tp(options))
    faults.note(no_effect + " = tp and etp = 1: all tp ranks have the same tokens");
}

/// Refuses settings that only several ranks have a use for.
void note_one_rank(const std::string& key, const BlockSpec& block, const ModuleMeshOptions& options,
                   Faults& faults) {
  const ModuleMeshOptions defaults;
  const std::string no_effect = " has no effect with cp = 1";
  if (options.cp_mode != defaults.cp_mode)
    faults.note(key + "cp_mode = \"" + options.cp_mode + "\"" + no_effect +
                ": there are no cp ranks to exchange keys with");
  if (options.cp_distribution != defaults.cp_distribution)
    faults.note(key + "cp_distribution = \"" + options.cp_distribution + "\"" + no_effect +
                ": there are no cp ranks to deal tokens to");
  if (options.cp_block != defaults.cp_block)
    faults.note(key + "cp_block = " + std::to_string(options.cp_block) + no_effect +
                ": there are no cp ranks to deal blocks to");
  if (options.cp_scan != defaults.cp_scan && block.carries_state())
    faults.note(key + "cp_scan = \"" + options.cp_scan + "\"" + no_effect +
                ": there are no cp ranks to scan with");
  if (options.cp_ulysses_ranks != defaults.cp_ulysses_ranks)
    faults.note(key + "cp_ulysses_ranks = " + std::to_string(options.cp_ulysses_ranks) + no_effect +
                ": there are no cp ranks to exchange heads with");
}

void check_block(const std::string& key, const ModuleMeshOptions& options, Faults& faults) {
  if (options.cp_block == ModuleMeshOptions{}.cp_block) return;
  const std::string found = key + "cp_block = " + std::to_string(options.cp_block);
  if (options.cp_mode == CpMode::Ulysses)
    faults.add(found +
               " with cp_mode = \"ulysses\", in which ranks share attention by heads and hold "
               "runs of equal length, not blocks; leave it out (a run that goes on: " +
               key + "cp_block=" + std::to_string(ModuleMeshOptions{}.cp_block) + ")");
  else if (options.cp_distribution != TokenDistribution::MakespanMin)
    faults.add(found + " with cp_distribution = \"" + options.cp_distribution +
               "\", which deals no blocks; leave it out, or use \"makespan_min\"");
}

/// Checks cp_scan, whatever cp_mode says of attention.
void check_scans(const std::string& key, const std::string& module,
                 const ModuleMeshOptions& options, const ModelSpec& model, Faults& faults) {
  if (options.cp_scan == CpScan::Auto) return;
  const BlockSpec& block = model.block(module);
  const std::string found = key + "cp_scan = \"" + options.cp_scan + "\"";
  if (!block.carries_state()) {
    faults.add(found + ", but no block of the module has a gated delta rule; leave it out, or " +
               "use \"auto\"");
    return;
  }
  if (options.cp_scan != CpScan::Ulysses || can_scan_with_ulysses(block, options.tp, options.cp))
    return;
  const int64_t heads =
      std::ranges::min(block.delta_rules(), {}, &DeltaRuleSpec::key_heads).key_heads;
  const auto fits = [&](int64_t n) { return can_scan_with_ulysses(block, options.tp, n); };
  faults.add(found + " with cp = " + std::to_string(options.cp) +
             ": each cp rank takes an equal part of the " + std::to_string(heads) +
             " key heads of " + std::to_string(options.tp) + " tp ranks; allowed: cp = " +
             allowed_values(heads, fits) + ", or cp_scan = \"states\"");
}

void check_cp(const std::string& key, const std::string& module, const ModuleMeshOptions& options,
              const ModelSpec& model, Faults& faults) {
  const bool two_level = options.cp_mode == CpMode::UlyssesRing;
  const int64_t inner = options.cp_ulysses_ranks;
  if (!two_level && inner != 0)
    faults.add(key + "cp_ulysses_ranks = " + std::to_string(inner) + " with cp_mode = \"" +
               options.cp_mode + "\", which has one level; leave it out, or use \"ulysses_ring\"");
  if (two_level && (inner < 2 || inner >= options.cp || options.cp % inner != 0)) {
    faults.add(
        key + "cp_mode = \"ulysses_ring\" with cp = " + std::to_string(options.cp) +
        " and cp_ulysses_ranks = " + std::to_string(inner) +
        ": groups of 2 or more must divide cp and be smaller; for one group use \"ulysses\"");
    return;
  }
  const bool exchanges = two_level || options.cp_mode == CpMode::Ulysses;
  const BlockSpec& block = model.block(module);
  const int64_t ranks = two_level ? inner : options.cp, heads = block.attention().heads.query;
  if (!exchanges || can_use_ulysses(block, options.tp, ranks)) return;
  faults.add(
      key + (two_level ? "cp_ulysses_ranks = " : "cp = ") + std::to_string(ranks) +
      " with cp_mode = \"" + options.cp_mode + "\": each rank takes an equal part of the " +
      std::to_string(heads) + " heads (" + std::to_string(block.fewest_key_heads()) +
      " KV heads) of " + std::to_string(options.tp) + " tp ranks; allowed: " +
      allowed_values(heads, [&](int64_t n) { return can_use_ulysses(block, options.tp, n); }) +
      ", or cp_mode = \"allgather_kv\" or \"ring\"");
}

void check_stages(const std::string& module, const ModuleMeshOptions& options,
                  const ModelSpec& model, Faults& faults) {
  const std::string key = "mesh." + module + ".";
  const auto stages = static_cast<int64_t>(options.stages.size());
  const auto units = std::count_if(model.units.begin(), model.units.end(),
                                   [&](const UnitSpec& unit) { return unit.module == module; });
  if (options.virtual_stages > 1 && module != kDecoder)
    faults.add(key + "virtual_stages = " + std::to_string(options.virtual_stages) +
               ": only the language model has virtual stages; leave it out");
  if (stages == 0) {
    if (const int64_t asked = options.pp * options.virtual_stages; asked > units)
      faults.add(key + "pp = " + std::to_string(options.pp) +
                 " with virtual_stages = " + std::to_string(options.virtual_stages) + " asks for " +
                 std::to_string(asked) + " stages, but the module has " + std::to_string(units) +
                 " units; allowed: up to " + std::to_string(units / options.virtual_stages));
    return;
  }
  if (stages % options.virtual_stages != 0)
    faults.add(key + "stages has " + std::to_string(stages) + " stages, which virtual_stages = " +
               std::to_string(options.virtual_stages) + " must divide");
  else if (options.pp > 1 && options.pp != pipeline_ranks(options))
    faults.add(key + "pp = " + std::to_string(options.pp) + ", but " + key + "stages has " +
               std::to_string(stages) + " stages; leave pp out");
  std::vector<std::string> sentences;
  stages_of_template(model, module, options.stages, sentences);
  for (const std::string& sentence : sentences) faults.add(sentence);
}

}  // namespace

bool can_use_ulysses(const BlockSpec& block, int64_t tp, int64_t ranks) {
  return std::ranges::all_of(block.attentions(), [&](const AttentionSpec& kind) {
    const int64_t kv_here = std::max<int64_t>(1, kind.heads.key_value / tp);
    return kind.heads.query / tp % ranks == 0 && (kv_here % ranks == 0 || ranks % kv_here == 0);
  });
}

bool can_scan_with_ulysses(const BlockSpec& block, int64_t tp, int64_t ranks) {
  return std::ranges::all_of(block.delta_rules(), [&](const DeltaRuleSpec& rule) {
    return rule.key_heads / tp % ranks == 0;
  });
}

int inner_ranks(const ModuleMeshOptions& options) {
  if (options.cp == 1) return 1;  // cp_ulysses_ranks has no effect then, and is not checked
  if (options.cp_mode == CpMode::Ulysses) return static_cast<int>(options.cp);
  return options.cp_mode == CpMode::UlyssesRing ? static_cast<int>(options.cp_ulysses_ranks) : 1;
}

int64_t degrees_product(const ModuleMeshOptions& options) {
  return options.cp * options.tp;
}

int64_t pipeline_ranks(const ModuleMeshOptions& options) {
  if (options.stages.empty()) return options.pp;
  const auto stages = static_cast<int64_t>(options.stages.size());
  return std::max<int64_t>(1, stages / options.virtual_stages);  // check_stages() refuses less
}

/// Refuses tp and cp in a conformer: its rows read neighboring rows, which must be on their rank.
void check_conformer(const std::string& key, const ModuleMeshOptions& options, Faults& faults) {
  for (const auto& [name, degree] : {std::pair("tp", options.tp), std::pair("cp", options.cp)})
    if (degree > 1)
      faults.add(key + name + " = " + std::to_string(degree) +
                 ": the blocks of a conformer are not built for several " + name +
                 " ranks; leave it out (the module's clips are then distributed over the ranks of "
                 "the language model)");
}

void check_degrees(const std::string& module, const ModuleMeshOptions& options,
                   const ModelSpec& model, Faults& faults) {
  const std::string key = "mesh." + module + ".";
  if (model.block(module).conformer) check_conformer(key, options, faults);
  check_tp(key, module, options, model, faults);
  check_scans(key, module, options, model, faults);
  if (options.cp == 1) {
    note_one_rank(key, model.block(module), options, faults);
  } else {
    check_block(key, options, faults);
    check_cp(key, module, options, model, faults);
  }
  check_stages(module, options, model, faults);
  check_ep(key, module, options, faults);
}

bool divides_experts(const ModelSpec& model, int64_t ep) {
  return std::ranges::all_of(model.decoder.block.mlps, [&](const MlpSpec& mlp) {
    return !mlp.router || mlp.router->experts % ep == 0;
  });
}

int64_t ep_tp(const ModuleMeshOptions& options) {
  return options.etp == 1 ? options.tp : 1;
}

bool divides_ranks(int64_t tp, int64_t cp, int64_t dp_shard, int64_t ep) {
  if (ep % tp != 0) return false;
  const int64_t token_ranks = ep / tp;
  if (cp % token_ranks == 0) return true;
  return token_ranks % cp == 0 && dp_shard % (token_ranks / cp) == 0;
}

namespace {

/// Whether `ep` ranks dispatch tokens by all-to-all rather than all-gather. An all-to-all sends a
/// token only to the ranks of its experts, an all-gather to all ranks. An all-to-all also needs an
/// exchange of counts and, on a device, a wait of the host; few ranks save too little for that.
bool exchanges_tokens(const Choice<EpDispatch>& asked, const ModelSpec& model,
                      const ModuleGrid& grid, DeviceKind device) {
  constexpr double kMostShare = 0.5;
  constexpr int64_t kFewRanks = 8;
  if (grid.ep_token_ranks() == 1) return false;
  if (asked != EpDispatch::Auto) return asked == EpDispatch::AllToAll;
  if (device == DeviceKind::Cuda && grid.ep_token_ranks() <= kFewRanks) return false;
  return dispatch_ratio(model, grid.ep_cp, grid.ep_dp_shard, grid.ep_tp) < kMostShare;
}

}  // namespace

void set_ep(MeshShape& shape, const ModuleMeshOptions& options, const ModelSpec& model,
            DeviceKind device, Faults& faults) {
  ModuleGrid& grid = shape.modules.back();
  const int64_t ep = options.ep, over_tp = ep_tp(options);
  if (options.etp > 0 && grid.tp > 1 && !model.has_experts())
    return faults.add("mesh." + grid.module + ".etp = " + std::to_string(options.etp) +
                      ", but the model (" + model.family +
                      ") has no mixtures of experts; leave it out");
  if (ep == 1 && over_tp == 1) return;
  const std::string found =
      "mesh." + grid.module + ".ep = " + std::to_string(ep) + (over_tp > 1 ? " with etp = 1" : "");
  if (!model.has_experts())
    return faults.add(found + ", but the model (" + model.family +
                      ") has no mixtures of experts; leave it out");
  const auto fits = [&](int64_t value) {
    return divides_experts(model, value) && divides_ranks(over_tp, grid.cp, shape.dp_shard, value);
  };
  if (!fits(ep)) {
    const std::string allowed = allowed_values(over_tp * grid.cp * shape.dp_shard, fits);
    return faults.add(
        found + " must divide the experts of each layer, and " +
        (over_tp > 1 ? "be tp (" + std::to_string(over_tp) + ") x a number that divides " : "") +
        "the ranks of cp (" + std::to_string(grid.cp) + ") or cp x a part of dp_shard (" +
        std::to_string(shape.dp_shard) +
        "); allowed: " + (allowed.empty() ? "none, leave etp out" : allowed));
  }
  const int64_t token_ranks = ep / over_tp;
  if (options.reshard_after_forward.is_count() && token_ranks > 1)
    return faults.add(found + " with reshard_after_forward = " +
                      std::to_string(options.reshard_after_forward.count()) +
                      ": groups of a shard group would have other experts; allowed: true, false");
  grid.ep_tp = static_cast<int>(over_tp);
  grid.ep_cp = static_cast<int>(std::min<int64_t>(token_ranks, grid.cp));
  grid.ep_dp_shard = static_cast<int>(token_ranks / grid.ep_cp);
  grid.ep_exchanges = exchanges_tokens(options.ep_dispatch, model, grid, device);
}

ModuleGrid make_module_grid(const std::string& module, const ModuleMeshOptions& options,
                            const ModelSpec& model, int64_t stage_ranks, const std::string& whose,
                            Faults& faults) {
  ModuleGrid grid{.module = module};
  const int64_t own = degrees_product(options);
  if (stage_ranks % own != 0) {
    faults.add("mesh." + module + ": tp (" + std::to_string(options.tp) + ") x cp (" +
               std::to_string(options.cp) + ") must divide the " + std::to_string(stage_ranks) +
               " ranks of " + whose + "; its items are dealt to what is left over");
    return grid;
  }
  if (options.encoder_dp != 0 && options.encoder_dp != stage_ranks / own)
    faults.add("mesh." + module + ".encoder_dp = " + std::to_string(options.encoder_dp) +
               ", but its tp x cp leaves " + std::to_string(stage_ranks / own) + " of the " +
               std::to_string(stage_ranks) + " ranks of " + whose + "; leave it out");
  grid.tp = static_cast<int>(options.tp);
  grid.cp = static_cast<int>(options.cp);
  grid.encoder_dp = static_cast<int>(stage_ranks / own);
  grid.pp = static_cast<int>(pipeline_ranks(options));
  grid.cp_inner = inner_ranks(options);
  const int64_t kv_heads = model.block(module).fewest_key_heads();
  if (options.tp > kv_heads && options.tp % kv_heads == 0)
    grid.kv_holders = static_cast<int>(options.tp / kv_heads);
  return grid;
}

bool is_sequence_parallel(const ModuleMeshOptions& options) {
  return options.tp > 1 && options.sequence_parallel.value_or(true);
}

RowChunks chosen_chunks(const ModuleGrid& grid, const Options& options, const ModelSpec& model) {
  // Smaller chunks are dominated by latency and do not fill a GPU's multiprocessors.
  constexpr int64_t kLeastElements = int64_t{4} << 20, kLeastRows = 1024, kMost = 4;
  if (grid.tp == 1) return {};
  RowChunks chunks{.least_width = model.block(grid.module).hidden};
  chunks.most = options.meshes[grid.module].tp_chunks;
  if (chunks.most > 0) return chunks;
  if (options.run.device != DeviceKind::Cuda || grid.module != kDecoder) return {};
  chunks.most = kMost;
  chunks.least_rows = std::max(kLeastRows, kLeastElements / chunks.least_width);
  const int64_t rows = options.data.row_tokens * options.data.rows_per_microbatch / grid.cp;
  chunks.most = chunks.of(rows, chunks.least_width);
  return chunks;
}

}  // namespace zea::detail
