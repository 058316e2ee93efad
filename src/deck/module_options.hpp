// SPDX-License-Identifier: Apache-2.0
// The deck's sections that say how each module lies on the ranks and in which types it computes;
// see options.hpp for how declarations work.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deck/key_types.hpp"

namespace zea {

/// Degrees of the whole mesh; -1 means all ranks that are left.
struct MeshOptions {
  Choice<LayoutSource> layout = LayoutSource::Deck;
  std::string hardware;
  int64_t searched_ranks = 0;
  std::vector<std::string> searched_keys;
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
    key(layout,
        {"layout",
         "layout of the modules on the ranks: as this deck says (deck), or the fastest that zea "
         "--plan finds at the start for the ranks of the run (auto), which keeps the mesh keys "
         "that the deck sets; mesh = \"auto\" is short for the latter"});
    key(hardware, {"hardware",
                   "hardware file (inputs/hardware) for the search of layout = \"auto\"; empty: "
                   "rough figures of processor cores; required with run.device = \"cuda\""});
    key(searched_ranks, {"searched_ranks",
                         "set by zea in the decks of run directories and checkpoints: number of "
                         "ranks for which layout = \"auto\" has chosen searched_keys; a run with "
                         "as many ranks keeps them; 0: none yet",
                         {0, 1 << 24}});
    key(searched_keys, {"searched_keys",
                        "set by zea: keys that layout = \"auto\" has chosen (see searched_ranks)"});
    key(placement,
        {"placement",
         "ranks of encoders and language model in a replica: encoders share the ranks of the "
         "language model's first stage (shared), have ranks of their own together (colocated), "
         "or each its own ranks (disjoint: modality parallelism)"});
    key(schedule,
        {"schedule",
         "pipeline schedule, where modules or stages have ranks of their own: all forwards "
         "first (gpipe), one forward, one backward (1f1b), the same over virtual stages "
         "(interleaved_1f1b), or with deferred weight gradients that fill idle time "
         "(zero_bubble)"});
    key(profile,
        {"profile",
         "file of measured unit costs from zea --profile, by which pp splits stages and images "
         "are distributed; empty: costs are estimated from shapes"});
    key(memory_mib,
        {"memory_mib",
         "limit in MiB of parameters, gradients and optimizer state of a rank: pp splits "
         "stages within it, and gathers parameters for each use where needed; 0: none",
         {0, 1e9}});
    key(rank_memory_mib,
        {"rank_memory_mib",
         "limit in MiB of the estimated peak memory of a rank in a step of full rows, with the "
         "KV cache of generation: a run that needs more is refused, recomputes activations "
         "(model.activation_checkpointing = \"auto\"), or gathers parameters for each use in a "
         "pipeline; 0: none",
         {0, 1e9}});
    key(order, {"order",
                "rank order: mesh axes from the one with the closest neighbors to the one with the "
                "farthest: tp, cp, encoder_dp, pp, module, dp; empty: tp, then cp, then stages lie "
                "inside a node"});
    key(dp_replicate,
        {"dp_replicate", "number of data-parallel replicas; -1: the remaining ranks", {-1, 1e6}});
    key(dp_shard, {"dp_shard",
                   "number of ranks that shard a replica (FSDP); -1: the remaining ranks",
                   {-1, 1e6}});
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
  Choice<CpScan> cp_scan = CpScan::Auto;
  Choice<TokenDistribution> cp_distribution = TokenDistribution::MakespanMin;
  int64_t cp_block = 128;
  int64_t tp = 1;
  AutoOption sequence_parallel;
  int64_t tp_chunks = 0;
  int64_t ep = 1;
  Choice<EpDispatch> ep_dispatch = EpDispatch::Auto;
  int64_t etp = 0;

  bool operator==(const ModuleMeshOptions&) const = default;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(strategy,
        {"strategy",
         "sharding strategy on the data-parallel ranks: full_shard (ZeRO-3) and shard_grad_op "
         "(ZeRO-2) shard one copy over dp_shard, hybrid_shard and hybrid_shard_zero2 one copy "
         "per dp_replicate, no_shard (DDP) keeps a copy on each rank"});
    key(reshard_after_forward,
        {"reshard_after_forward",
         "free gathered parameters between forward and backward: true; false keeps them; a number "
         "keeps them sharded over groups of that many neighboring ranks; auto: by the strategy. In "
         "a pipeline, true gathers for each use, false once per step; auto: once, unless that "
         "exceeds mesh.memory_mib or mesh.rank_memory_mib",
         {2, 1e6}});
    key(forward_prefetch,
        {"forward_prefetch",
         "prefetch in forward: gather the next unit before the forward of the current one "
         "(pre), after it (post), or when it is needed (none)"});
    key(backward_prefetch,
        {"backward_prefetch",
         "prefetch in backward: gather the next unit before the backward of the current one "
         "(pre), after it, during the reduction of its gradients (post), or when it is needed "
         "(none)"});
    key(prefetch_depth, {"prefetch_depth", "number of units to gather ahead", {1, 64}});
    key(wrap_units,
        {"wrap_units",
         "wrap policy: number of units that form one FSDP unit, gathered and reduced together; "
         "0: the whole module",
         {0, 1e6}});
    key(flatten_parameters,
        {"flatten_parameters",
         "one flat buffer for the parameters of an FSDP unit; false: one for each parameter"});
    key(bucket_mib,
        {"bucket_mib", "gradient bucket of no_shard (DDP) in MiB, in whole units", {0, 1e6}});
    key(sync_grad_accum,
        {"sync_grad_accum",
         "gradient accumulation of sharded gradients: reduce them after every microbatch "
         "(true), or accumulate them unsharded and reduce once per step (false, no_sync); "
         "auto: true, but in a pipeline as often as units are gathered; no_shard always "
         "reduces once per step"});
    key(cpu_offload,
        {"cpu_offload",
         "CPU offload: keep parameters and optimizer state in host memory while a GPU computes"});
    key(pin_memory, {"pin_memory", "pin the host memory of cpu_offload; auto: true"});
    key(pp, {"pp",
             "pipeline-parallel stages of the module, each on ranks of its own, split so that the "
             "slowest stage is fastest",
             {1, 4096}});
    key(virtual_stages,
        {"virtual_stages",
         "virtual stages (model chunks) of each pp rank of the language model with schedule "
         "interleaved_1f1b",
         {1, 64}});
    key(stages,
        {"stages",
         "pipeline template, which replaces pp: a list of lists of units (zea -n names them), "
         "each unit once and in order; \"a..b\" means a, b and all between them"});
    key(encoder_dp, {"encoder_dp",
                     "data parallelism of an encoder: number of ranks (or groups of tp x cp ranks) "
                     "to which its items are distributed; 0: one if it has separate ranks, else "
                     "the ranks of a replica over its tp x cp",
                     {0, 4096}});
    key(cp, {"cp", "context-parallel ranks of the module", {1, 4096}});
    key(cp_mode,
        {"cp_mode",
         "attention among cp ranks: all-gather of keys and values (allgather_kv), ring "
         "attention (ring), all-to-all of tokens and heads (ulysses), or ulysses inside groups "
         "of cp_ulysses_ranks and a ring between them (ulysses_ring)"});
    key(cp_ulysses_ranks, {"cp_ulysses_ranks",
                           "size of a ulysses group in cp_mode ulysses_ring, in neighboring cp "
                           "ranks, such as those of a node; 0 in the other modes",
                           {0, 4096}});
    key(cp_scan,
        {"cp_scan",
         "Gated DeltaNet among cp ranks: all-to-all of tokens and heads (ulysses), or states "
         "passed between ranks that scan runs of neighboring tokens (states); auto: ulysses if "
         "cp divides the heads, unless states are fewer bytes"});
    key(cp_distribution,
        {"cp_distribution",
         "distribution of a row's tokens to cp ranks: by cost under the mask (makespan_min: long "
         "samples, of 2 x cp x cp_block tokens or more, from both ends, the rest in blocks); one "
         "run from the front and one from the back (zigzag); or one contiguous run (uniform). With "
         "cp_mode ulysses_ring, makespan_min distributes to ulysses groups, whose members get runs "
         "of equal length, as all cp ranks do with ulysses"});
    key(cp_block, {"cp_block",
                   "tokens per block of makespan_min; refused where it has no effect: in cp_mode "
                   "ulysses, and with zigzag or uniform",
                   {1, 1e6}});
    key(tp, {"tp", "tensor-parallel ranks of the module", {1, 4096}});
    key(sequence_parallel, {"sequence_parallel",
                            "sequence parallelism: between layers, each tp rank holds only a slice "
                            "of the tokens; auto: if tp > 1"});
    key(tp_chunks,
        {"tp_chunks",
         "overlap of tp collectives and GEMMs: number of chunks into which linears split their "
         "rows, so that one chunk is sent while another is multiplied; 1: no overlap; 0: up to 4 "
         "chunks of at least 1,024 rows and 4 million elements in the language model on GPUs, "
         "else 1",
         {0, 4}});
    key(ep,
        {"ep",
         "expert parallelism: ranks of the language model that share the experts of every layer, "
         "neighbors along cp, then dp_shard (with etp = 1 along tp first); each rank computes its "
         "experts for the tokens of the whole group",
         {1, 65536}});
    key(ep_dispatch,
        {"ep_dispatch",
         "dispatch of tokens among ep ranks: all-gather and reduce-scatter of all tokens "
         "(allgather), or all-to-all of each token to the ranks of its experts, for whose counts "
         "the host waits (alltoall); auto: alltoall if it is expected to send less than half the "
         "bytes, on GPUs only if more than 8 ranks exchange tokens"});
    key(etp, {"etp",
              "expert tensor parallelism of the language model: number of tp ranks that shard each "
              "expert; 0: all tp ranks; 1: each tp rank holds whole experts, and ep counts the tp "
              "ranks, too, so it is a multiple of tp",
              {0, 4096}});
  }
};

struct PrecisionOptions {
  Choice<PrecisionPreset> preset = PrecisionPreset::Fp32;
  Choice<DTypeOption> master_dtype = DTypeOption::Preset;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(preset,
        {"preset",
         "precision: fp32, fp64, or bf16 with parameters and activations in bf16 and masters, "
         "gradient sums and moments in fp32"});
    key(master_dtype,
        {"master_dtype",
         "type of master weights, moments and accumulated gradients (fp64 with preset fp64, "
         "else fp32)"});
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
        {"param_dtype", "type of gathered parameters and of the module's computation"});
    key(reduce_dtype, {"reduce_dtype",
                       "type of gradients in reductions between ranks; preset: the masters' type"});
    key(output_dtype,
        {"output_dtype",
         "type of the module's output to another module, such as an encoder's features; "
         "preset: param_dtype"});
    key(cast_forward_inputs,
        {"cast_forward_inputs",
         "cast inputs from another module to param_dtype; false: they must have it"});
  }
};

}  // namespace zea
