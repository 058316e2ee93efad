// SPDX-License-Identifier: Apache-2.0
// The plan of a run: everything that is decided before ranks communicate. A pure function of the
// resolved deck, the model's config and the number of ranks; it can be printed (`zea -n`) and
// tested without MPI, torch or a GPU.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "deck/options.hpp"
#include "layout/axis.hpp"
#include "layout/flat_layout.hpp"
#include "layout/optimizer_spec.hpp"
#include "layout/token_layout.hpp"
#include "schedule/pipeline.hpp"
#include "schedule/schedule.hpp"
#include "schedule/unit_cost.hpp"
#include "spec/model_spec.hpp"
#include "spec/param_rules.hpp"
#include "spec/precision.hpp"

namespace zea {

/// The part of a unit that backward recomputes.
enum class Recompute {
  None,
  Selective,  ///< outputs of norms and activations that linears read (spec/recomputed_values.hpp)
  Full,       ///< its whole forward: only its inputs are kept
};

struct Plan {
  Options options;
  std::string config_json;
  MeshShape mesh;
  Precision precision;  ///< of the language model; its master type is that of all
  Precisions precisions;
  ModelSpec model;
  OptimizerSpec optimizer;
  std::vector<ParamRule> param_rules;                    ///< of each parameter of the model
  ParamShards cuts;                                      ///< of each parameter, over tp
  std::map<std::string, TokenSharding> token_shardings;  ///< of each module
  std::vector<int> fsdp_units;                           ///< of each unit
  std::vector<FlatBuffer> buffers;
  std::vector<Sharding> shardings;    ///< of each buffer
  std::vector<Recompute> recomputed;  ///< of each unit
  Pipeline pipeline;
  std::vector<UnitCost> unit_costs;  ///< by which stages were cut; of a full microbatch
  bool has_measured_costs = false;   ///< these are seconds, else multiplications
  /// The blocks of the language model whose attention is bidirectional inside images.
  BidirectionalLayers bidirectional_images = BidirectionalLayers::None;
  StepPlanOptions dealing;         ///< how this run distributes and packs samples
  SampleCosts flops_of_samples;    ///< of a training step, by sample_cost()
  std::vector<SlotPlans> slots;    ///< of each stage group
  std::vector<std::string> notes;  ///< on deck settings without effect

  int world_size() const { return mesh.world_size(); }
  const Precision& precision_of(const std::string& module) const { return precisions.at(module); }
  /// The type in which a rank owns its shard of a buffer.
  DType owned_type(int buffer) const {
    const FlatBuffer& flat = buffers[buffer];
    return precision_of(flat.module).owned(flat.trainable, flat.is_computed_with());
  }
  /// The replica (row of StepPlan::replicas) that `world_rank` belongs to.
  int replica_of(int world_rank) const { return world_rank / mesh.ranks_per_replica(); }
  int rank_in_replica(int world_rank) const { return world_rank % mesh.ranks_per_replica(); }
  int group_of(int world_rank) const { return pipeline.group_of_rank(rank_in_replica(world_rank)); }
  /// The pp coordinate of a unit in its module.
  int stage_of_unit(int unit) const;
  /// The pp coordinates of a buffer in its module: those of the units that read it, and for carried
  /// parameters the first; ascending.
  std::vector<int> stages_of_buffer(int buffer) const;
  /// Whether this rank is at a pp coordinate of a buffer, and whether at the first one, which
  /// counts it in norms and writes it.
  bool holds(int world_rank, int buffer) const;
  bool counts(int world_rank, int buffer) const;
  std::vector<int> held_buffers(int world_rank) const;
  /// Returns which pieces of a buffer's parameters this rank has: its index among the ranks over
  /// which they are distributed.
  int piece_rank(int world_rank, int buffer) const;
  /// Returns how many tp ranks shard the parameters of a buffer.
  int tp_pieces(int buffer) const;
  /// This rank's part of a buffer: which of its shards.
  int shard_of(int world_rank, int buffer) const;
  /// Returns which of the copies of that shard this rank has.
  int copy_of(int world_rank, int buffer) const;
  /// A rank's part of a buffer for files and norms, which does not depend on the strategy: 1/N of
  /// it, N being the ranks that hold the same pieces. Parameters that several tp ranks replicate
  /// are in the parts of all of them.
  FlatRange own_range(int world_rank, int buffer) const;

  /// The losses that routers add to that of the targets in training.
  struct RouterLosses {
    double aux = 0, z = 0;  ///< coefficients
    bool by_layer = false;  ///< RouterLossScope::Layer
    bool are_there() const { return aux > 0 || z > 0; }
  };
  RouterLosses router_losses() const {
    if (options.run.mode != RunMode::Train) return {};
    return {.aux = options.llm.router_aux_loss_coef.value_or(model.decoder.router_aux_loss),
            .z = options.llm.router_z_loss_coef,
            .by_layer = options.llm.router_aux_loss_scope == RouterLossScope::Layer};
  }
  /// Returns whether steps update the states of the model, and whether they change a buffer.
  bool updates_states() const {
    return options.run.mode == RunMode::Train && options.optim.router_bias_update_rate > 0;
  }
  bool changes(int buffer) const {
    return buffers[buffer].trainable || (buffers[buffer].is_state && updates_states());
  }
  /// Returns whether a unit's whole forward is recomputed.
  bool recomputes(int unit) const { return recomputed[unit] == Recompute::Full; }
  /// Whether data.eval is evaluated at all, and whether texts are generated then.
  bool evaluates() const { return options.run.mode != RunMode::Train || options.eval.every > 0; }
  bool generates() const { return evaluates() && options.eval.generate_tokens > 0; }

  StepPlan step_plan(int64_t step, const std::vector<int64_t>& samples,
                     const SampleTable& index) const;
  /// The layout of tokens on this rank and the ranks that share its microbatches.
  ReplicaLayout replica_layout(int world_rank) const;
  ScheduleParts schedule_parts() const {
    return {model, buffers, fsdp_units, shardings, pipeline, dealing.expert_group > 1};
  }
  /// Returns the actions of `world_rank` in a step that is distributed as `step`.
  RankStep rank_step(const StepPlan& step, int world_rank, StepKind kind) const;
  RankStep rank_step(const StepPlan& step, int world_rank, bool forward_only = false) const {
    return rank_step(step, world_rank, forward_only ? StepKind::Evaluate : StepKind::Train);
  }
};

/// Returns the model of a config.json, with the modules trainable that the deck trains.
ModelSpec model_of(const Options& options, const std::string& config_json);

/// Throws PlanError with every fault, one per line: an impossible mesh with each factor of the
/// product, and settings that are not built yet by name. `profile`: the contents of the file of
/// mesh.profile; empty: costs are estimated.
Plan make_plan(const Options& options, const ModelSpec& model, const std::string& config_json,
               int world_size, const std::string& profile = {});
inline Plan make_plan(const Options& options, const std::string& config_json, int world_size,
                      const std::string& profile = {}) {
  return make_plan(options, model_of(options, config_json), config_json, world_size, profile);
}

/// Returns what model.activation_checkpointing recomputes of each unit; nothing where it is "auto".
std::vector<Recompute> recomputed_units(const ModelOptions& options, const ModelSpec& model);

/// The same without slots, for estimates of kernels and of what ranks own; faster where there are
/// many stages. No rank can run it.
Plan make_plan_without_slots(const Options& options, const ModelSpec& model,
                             const std::string& config_json, int world_size,
                             const std::string& profile = {});

/// Completes a plan without slots.
Plan with_slots(Plan plan);

/// Returns the same plan with the sharded buffers of `modules`, which are in a pipeline, gathered
/// once per step, or for each use.
Plan gathered_otherwise(Plan plan, const std::set<std::string>& modules, bool once_a_step);

}  // namespace zea

namespace zea::detail {

/// Whether the memory of a stage group without activations exceeds mesh.memory_mib.
bool is_beyond_memory(const Plan& plan, size_t group);

/// Returns the plan in which modules of a pipeline whose reshard_after_forward is auto are gathered
/// for each use at stage groups beyond a limit.
Plan gathered_within(Plan plan, const std::function<bool(const Plan&, size_t group)>& is_beyond);

}  // namespace zea::detail
