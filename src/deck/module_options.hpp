// SPDX-License-Identifier: Apache-2.0
// The deck's sections that say how each module lies on the ranks and in which types it computes;
// see options.hpp for how declarations work.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deck/auto_option.hpp"
#include "deck/key_info.hpp"
#include "deck/named_values.hpp"

namespace zea {

/// Degrees of the whole mesh; -1 means all ranks that are left.
struct MeshOptions {
  Choice<ModulePlacement> placement = ModulePlacement::Shared;
  Choice<PipelineSchedule> schedule = PipelineSchedule::OneFOneB;
  std::string profile;
  double memory_mib = 0;
  double rank_memory_mib = 0;
  std::vector<std::string> order;
  int64_t dp_replicate = 1;
  int64_t dp_shard = -1;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(placement,
        {"placement",
         "which ranks of a replica hold which modules: encoders on those of the language model's "
         "first stage (shared), together on ranks of their own (colocated), or each on ranks of "
         "its "
         "own (disjoint: modality parallelism)",
         {}});
    key(schedule,
        {"schedule",
         "how the microbatches of a step follow each other where modules or stages have ranks of "
         "their own: all forwards first (gpipe), one forward and one backward in turn (1f1b), the "
         "same over virtual stages (interleaved_1f1b), or with weight gradients put off to where "
         "ranks would wait (zero_bubble)",
         {}});
    key(profile,
        {"profile",
         "file of measured costs of the units, as zea --profile writes it, by which pp cuts stages "
         "and images are dealt; empty: costs are estimated from shapes",
         {}});
    key(memory_mib,
        {"memory_mib",
         "MiB of parameters, gradients and optimizer state that a rank may hold: pp cuts stages "
         "within it, and gathers for each use where that is needed; 0: no limit",
         {},
         0,
         1e9});
    key(rank_memory_mib,
        {"rank_memory_mib",
         "MiB of all tensors that a rank may hold in a step of full rows, by the estimate, with "
         "the "
         "keys that generation keeps: a run that needs more is refused, or computes units again in "
         "backward (model.activation_checkpointing = \"auto\"), or gathers for each use in a "
         "pipeline; 0: no limit",
         {},
         0,
         1e9});
    key(order,
        {"order",
         "axes from the one whose neighbours stand closest to the one whose stand farthest: tp, "
         "cp, "
         "encoder_dp, pp, module, dp; empty: so that tp, then cp, then stages lie inside a node",
         {}});
    key(dp_replicate,
        {"dp_replicate", "data-parallel replicas; -1: the rest of the ranks", {}, -1, 1e6});
    key(dp_shard, {"dp_shard", "ranks that share one replica's shards; -1: the rest", {}, -1, 1e6});
  }
};

/// Degrees and sharding of one module: [mesh.vision], [mesh.llm] and the like.
struct ModuleMeshOptions {
  Choice<ShardingStrategy> strategy = ShardingStrategy::FullShard;
  AutoOption reshard_after_forward;
  Choice<Prefetch> forward_prefetch = Prefetch::Pre;
  Choice<Prefetch> backward_prefetch = Prefetch::Pre;
  int64_t prefetch_depth = 1;
  int64_t wrap_units = 1;
  bool flatten_parameters = true;
  double bucket_mib = 25;
  AutoOption sync_grad_accum;
  bool cpu_offload = false;
  AutoOption pin_memory;
  int64_t pp = 1;
  int64_t virtual_stages = 1;
  std::vector<std::vector<std::string>> stages;
  int64_t encoder_dp = 0;
  int64_t cp = 1;
  Choice<CpMode> cp_mode = CpMode::AllGatherKv;
  int64_t cp_ulysses_ranks = 0;
  Choice<TokenDistribution> cp_distribution = TokenDistribution::MakespanMin;
  int64_t cp_block = 128;
  int64_t tp = 1;
  AutoOption sequence_parallel;

  bool operator==(const ModuleMeshOptions&) const = default;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(strategy, {"strategy",
                   "how parameters lie on the data-parallel ranks: full_shard (ZeRO-3) and "
                   "shard_grad_op (ZeRO-2) have one copy over dp_shard, hybrid_shard and "
                   "hybrid_shard_zero2 one per dp_replicate, no_shard (DDP) one per rank",
                   {}});
    key(reshard_after_forward,
        {"reshard_after_forward",
         "drop gathered parameters between forward and backward: true; false keeps them; a number "
         "keeps them sharded over groups of so many neighbouring ranks; auto: as the strategy "
         "says. In a pipeline true gathers for each use, false once a step; auto: once, but where "
         "that would take more than mesh.memory_mib or mesh.rank_memory_mib",
         {},
         2,
         1e6});
    key(forward_prefetch,
        {"forward_prefetch",
         "gather the next unit before this one's forward (pre), after it (post), or when it is "
         "needed (none)",
         {}});
    key(backward_prefetch,
        {"backward_prefetch",
         "gather the next unit before this one's backward (pre), after it beside the reduction of "
         "its gradient (post), or when it is needed (none)",
         {}});
    key(prefetch_depth, {"prefetch_depth", "units to gather ahead", {}, 1, 64});
    key(wrap_units, {"wrap_units",
                     "units that are gathered and reduced as one; 0: the whole module",
                     {},
                     0,
                     1e6});
    key(flatten_parameters,
        {"flatten_parameters",
         "one flat buffer for the parameters of a wrapped unit; false: one for each parameter",
         {}});
    key(bucket_mib,
        {"bucket_mib", "MiB of gradients that no_shard sums at once, in whole units", {}, 0, 1e6});
    key(sync_grad_accum,
        {"sync_grad_accum",
         "reduce sharded gradients after every microbatch (true), or keep them whole and reduce "
         "once per step (false, no_sync); auto: true, but in a pipeline as often as units are "
         "gathered; no_shard always sums once per step",
         {}});
    key(cpu_offload, {"cpu_offload",
                      "keep parameters and optimizer state in host memory while a GPU computes",
                      {}});
    key(pin_memory,
        {"pin_memory", "whether the host memory of cpu_offload is pinned; auto: true", {}});
    key(pp, {"pp",
             "pipeline stages of the module, each on ranks of its own, cut so that the slowest is "
             "as fast as can be",
             {},
             1,
             4096});
    key(virtual_stages,
        {"virtual_stages",
         "stages that each of the pp ranks of the language model has in schedule interleaved_1f1b",
         {},
         1,
         64});
    key(stages, {"stages",
                 "template of the stages in place of pp: a list of lists of units (zea -n names "
                 "them), each "
                 "unit once and in order; \"a..b\" stands for a, b and all between them",
                 {}});
    key(encoder_dp,
        {"encoder_dp",
         "ranks (or groups of tp x cp ranks) of an encoder that its items are dealt to; "
         "0: one where "
         "it has ranks of its own, else what its tp x cp leave over",
         {},
         0,
         4096});
    key(cp, {"cp", "context-parallel ranks of the module", {}, 1, 4096});
    key(cp_mode,
        {"cp_mode",
         "how cp ranks attend to each other's tokens: keys and values gathered (allgather_kv) or "
         "passed around (ring), tokens exchanged for heads (ulysses), or ulysses inside groups of "
         "cp_ulysses_ranks and a ring between them",
         {}});
    key(cp_ulysses_ranks,
        {"cp_ulysses_ranks",
         "neighbouring cp ranks that exchange tokens for heads in cp_mode ulysses_ring: those of a "
         "node; 0 in the other modes",
         {},
         0,
         4096});
    key(cp_distribution,
        {"cp_distribution",
         "which cp rank owns which tokens: long samples (2 x cp x cp_block tokens or more; in "
         "cp_mode ulysses_ring groups count in place of cp ranks) from "
         "both ends and the rest in blocks by what they cost under the mask (makespan_min), one "
         "run from the front and one from the back (zigzag), or one run (uniform); where heads are "
         "exchanged, ranks share attention by heads, so makespan_min deals to groups of such "
         "ranks, and the members of each (ulysses: all) get runs of equal length",
         {}});
    key(cp_block, {"cp_block",
                   "tokens of a block that makespan_min deals; without effect, and refused, in "
                   "cp_mode ulysses and with zigzag or uniform",
                   {},
                   1,
                   1e6});
    key(tp, {"tp", "tensor-parallel ranks of the module", {}, 1, 4096});
    key(sequence_parallel,
        {"sequence_parallel",
         "tp ranks hold slices of the tokens between layers, in place of all of them; auto: with "
         "tp > 1",
         {}});
  }
};

struct PrecisionOptions {
  Choice<PrecisionPreset> preset = PrecisionPreset::Fp32;
  Choice<DTypeOption> master_dtype = DTypeOption::Preset;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(preset, {"preset",
                 "bf16: parameters and activations in bf16, masters, sums and moments in fp32",
                 {}});
    key(master_dtype,
        {"master_dtype",
         "type of master weights, moments and accumulated gradients (fp64 with preset fp64, else "
         "fp32)",
         {}});
  }
};

/// Element types of one module: [precision.vision], [precision.llm] and the
/// like.
struct ModulePrecisionOptions {
  Choice<DTypeOption> param_dtype = DTypeOption::Preset;
  Choice<DTypeOption> reduce_dtype = DTypeOption::Preset;
  Choice<DTypeOption> output_dtype = DTypeOption::Preset;
  bool cast_forward_inputs = true;

  bool operator==(const ModulePrecisionOptions&) const = default;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(param_dtype,
        {"param_dtype", "type of gathered parameters and of the module's computation", {}});
    key(reduce_dtype, {"reduce_dtype",
                       "type in which gradients travel between ranks; preset: that of the masters",
                       {}});
    key(output_dtype,
        {"output_dtype",
         "type of what the module gives to another: an encoder's features; preset: param_dtype",
         {}});
    key(cast_forward_inputs,
        {"cast_forward_inputs",
         "convert what comes from another module to param_dtype; false: it must have it",
         {}});
  }
};

}  // namespace zea
