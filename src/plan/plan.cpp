// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/plan.hpp"

#include <algorithm>
#include <iterator>
#include <set>

#include "faults.hpp"
#include "module_precision.hpp"
#include "plan/describe/idle_settings.hpp"
#include "plan/mesh/mesh_shape.hpp"
#include "plan/mesh/module_sharding.hpp"
#include "plan/schedule/make_pipeline.hpp"
#include "plan/tokens/token_sharding.hpp"

namespace zea {
namespace {

using detail::Faults;

/// A model takes no settings of an encoder that it does not have.
void check_absent_encoder(Faults& faults, const Options& options, const ModelSpec& model,
                          const std::string& encoder) {
  const bool hears = encoder == "audio";
  if (hears ? model.audio.has_value() : model.vision.has_value()) return;
  const auto add = [&](const char* section) {
    faults.add("[" + std::string(section) + encoder + "] is set, but the model (" + model.family +
               ") has no " + encoder + " encoder; leave the section out");
  };
  if (mesh_of(options, encoder) != ModuleMeshOptions{}) add("mesh.");
  if ((hears ? options.audio : options.vision) != EncoderOptions{}) add("model.");
  if ((hears ? options.precision_audio : options.precision_vision) != ModulePrecisionOptions{})
    add("precision.");
  if (!hears && options.llm.image_attention != LlmOptions{}.image_attention)
    faults.add("model.llm.image_attention = \"" + options.llm.image_attention +
               "\", but the model (" + model.family +
               ") has no vision encoder, so there are no images; leave it out");
}

/// What is said of weights has no meaning where there are none.
void note_no_weights(Faults& faults, const ModelOptions& model) {
  if (!model.weights.empty()) return;
  const std::string no_effect =
      " has no effect with model.weights = \"\": all modules begin with initial values";
  if (model.load_modules != ModelOptions{}.load_modules)
    faults.note("model.load_modules" + no_effect);
  if (!model.strict) faults.note("model.strict = false" + no_effect);
}

std::vector<Sharding> make_shardings(const Options& options, const MeshShape& mesh,
                                     const std::vector<FlatGroup>& groups) {
  std::vector<Sharding> shardings;
  for (const FlatGroup& group : groups)
    shardings.push_back(detail::make_sharding(mesh_of(options, group.module), mesh,
                                              mesh.grid(group.module),
                                              detail::is_pipelined(options)));
  return shardings;
}

Wrappings make_wrappings(const Plan& plan) {
  const auto bytes = static_cast<int64_t>(element_bytes(plan.precision.master));
  Wrappings wrappings;
  for (const ModuleGrid& grid : plan.mesh.modules)
    wrappings[grid.module] = detail::make_wrapping(mesh_of(plan.options, grid.module), bytes);
  return wrappings;
}

/// The replicas that a rank of `replica` meets along these axes, ascending.
std::vector<int> replicas_along(const MeshShape& mesh, int replica, const std::vector<Axis>& axes) {
  const auto same = [&](Axis axis, int here, int there) {
    return here == there || std::ranges::count(axes, axis) > 0;
  };
  std::vector<int> met;
  for (int other = 0; other < mesh.replicas(); ++other)
    if (same(Axis::DpReplicate, replica / mesh.dp_shard, other / mesh.dp_shard) &&
        same(Axis::DpShard, replica % mesh.dp_shard, other % mesh.dp_shard))
      met.push_back(other);
  return met;
}

}  // namespace

int Plan::piece_rank(int world_rank, int group) const {
  return mesh.place_along(world_rank, groups[group].module, shardings[group].cut_over);
}

int Plan::shard_of(int world_rank, int group) const {
  return mesh.place_along(world_rank, groups[group].module, shardings[group].sharded_over);
}

FlatRange Plan::own_cut(int world_rank, int group) const {
  // The owner of shard s in replica r takes the r-th part of it; so N ranks cut a buffer into N
  // parts either way.
  const Sharding& sharding = shardings[group];
  const FlatRange shard = shard_range(groups[group], shard_of(world_rank, group), sharding.shards);
  const int replica = mesh.place_along(world_rank, groups[group].module, sharding.summed_over);
  const int64_t length = shard.end - shard.begin;
  return {shard.begin + length * replica / sharding.replicas,
          shard.begin + length * (replica + 1) / sharding.replicas};
}

StepPlanOptions Plan::step_plan_options() const {
  StepPlanOptions step_options;
  step_options.replicas = mesh.replicas();
  step_options.row_tokens = options.data.row_tokens;
  step_options.rows_per_microbatch = options.data.rows_per_microbatch;
  step_options.packing = options.data.packing;
  step_options.balance = options.data.balance;
  step_options.costs = sample_costs(model, mesh, unit_costs,
                                    options.data.row_tokens * options.data.rows_per_microbatch);
  return step_options;
}

StepPlan Plan::step_plan(int64_t step, const std::vector<int64_t>& samples,
                         const std::vector<SampleIndex>& index) const {
  return make_step_plan(step, samples, index, step_plan_options());
}

int Plan::stage_of_unit(int unit) const {
  const ModuleGrid& grid = mesh.grid(model.units[unit].module);
  const PipelinePlace& place = pipeline.places[pipeline.place_of_unit(unit)];
  return grid.stage_at(place.first_rank);
}

std::vector<int> Plan::stages_of_group(int group) const {
  std::set<int> stages;
  for (int unit : groups[group].units) stages.insert(stage_of_unit(unit));
  if (stages.empty()) return {0};
  return {stages.begin(), stages.end()};
}

bool Plan::holds(int world_rank, int group) const {
  const std::string& module = groups[group].module;
  if (!mesh.has(world_rank, module)) return false;
  const std::vector<int> stages = stages_of_group(group);
  return std::count(stages.begin(), stages.end(), mesh.coordinate(world_rank, module).pp) > 0;
}

bool Plan::counts(int world_rank, int group) const {
  return holds(world_rank, group) &&
         mesh.coordinate(world_rank, groups[group].module).pp == stages_of_group(group).front();
}

bool Plan::recomputes(int unit) const {
  const int64_t every = options.model.activation_checkpointing;
  return every > 0 && unit % every == 0 && model.units[unit].kind != UnitKind::Head;
}

ReplicaLayout Plan::replica_layout(int world_rank) const {
  ReplicaLayout layout;
  layout.tokens = token_shardings;
  layout.grids.modules = mesh.modules;
  layout.rank = rank_in_replica(world_rank);
  for (size_t u = 0; u < model.units.size(); ++u) {
    const int unit = static_cast<int>(u);
    const UnitKind kind = model.units[u].kind;
    if (kind == UnitKind::Merge || model.makes_features(unit))
      layout.feature_stages[model.units[u].module] = stage_of_unit(unit);
    if (kind == UnitKind::Head) layout.head_stage = stage_of_unit(unit);
  }
  return layout;
}

ScheduleInput Plan::schedule_input(const StepPlan& step, int world_rank, bool forward_only) const {
  ScheduleInput input{.model = model,
                      .groups = groups,
                      .bundles = bundles,
                      .shardings = shardings,
                      .step = step,
                      .pipeline = pipeline,
                      .place = place_of(world_rank),
                      .replica = replica_of(world_rank),
                      .forward_only = forward_only};
  for (const Sharding& sharding : shardings) {
    std::vector<Axis> axes = sharding.sharded_over;
    input.shard_peers.push_back(replicas_along(mesh, input.replica, axes));
    axes.insert(axes.end(), sharding.summed_over.begin(), sharding.summed_over.end());
    input.all_peers.push_back(replicas_along(mesh, input.replica, axes));
  }
  input.moves_features = pipeline.places[input.place].ranks > 1;
  for (const ModuleGrid& grid : mesh.modules)
    if (grid.module != "llm" && mesh.has(world_rank, grid.module))
      input.item_shares[grid.module] = {grid.dp_module,
                                        mesh.coordinate(world_rank, grid.module).dp_module};
  return input;
}

std::vector<SlotPlans> make_slots(const Plan& plan) {
  std::vector<SlotBytes> bytes;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const Precision& precision = plan.precision_of(plan.groups[g].module);
    const int64_t elements = plan.groups[g].padded(plan.shardings[g].shards);
    const auto bytes_in = [&](DType dtype) {
      return elements * static_cast<int64_t>(element_bytes(dtype));
    };
    bytes.push_back({bytes_in(precision.param), bytes_in(precision.master),
                     precision.reduce == precision.master ? 0 : bytes_in(precision.reduce)});
  }
  std::vector<SlotPlans> slots;
  for (size_t place = 0; place < plan.pipeline.places.size(); ++place)
    slots.push_back(make_slot_plans(plan.model, plan.groups, plan.bundles, plan.shardings,
                                    plan.pipeline, static_cast<int>(place), bytes));
  return slots;
}

Plan make_plan(const Options& options, const std::string& config_json, int world_size,
               const std::string& profile) {
  Faults faults;
  Plan plan;
  plan.options = options;
  plan.config_json = config_json;
  plan.precision = detail::make_precision(options.precision, options.precision_llm);
  plan.precisions = {
      {"vision", detail::make_precision(options.precision, options.precision_vision)},
      {"audio", detail::make_precision(options.precision, options.precision_audio)},
      {"llm", plan.precision}};
  plan.model = make_model_spec(config_json, {.vision = options.vision.train,
                                             .vision_projector = options.vision.train_projector,
                                             .llm = options.llm.train,
                                             .audio = options.audio.train,
                                             .audio_projector = options.audio.train_projector});
  plan.mesh = detail::make_mesh_shape(faults, options, plan.model, world_size);
  if (options.run.device == "cuda" && options.precision.preset == "fp64")
    faults.add(
        "run.device = \"cuda\" with precision.preset = \"fp64\": the attention kernels of GPUs "
        "have "
        "no fp64; use fp32 or bf16, or the CPU");
  std::vector<std::string> rule_faults;
  plan.optimizer = make_optimizer_spec(options.optim, rule_faults);
  plan.param_rules = make_param_rules(plan.model, options.optim, rule_faults);
  for (const std::string& fault : rule_faults) faults.add(fault);
  for (const char* encoder : {"vision", "audio"})
    check_absent_encoder(faults, options, plan.model, encoder);
  const auto trainable = [](const ParamSpec& param) { return param.trainable; };
  if (options.run.mode == "train" &&
      std::none_of(plan.model.params.begin(), plan.model.params.end(), trainable))
    faults.add(
        "every module is frozen, so there is nothing to train; set one of model.vision.train, "
        "model.vision.train_projector, model.llm.train to true (or those of model.audio), or "
        "run.mode to evaluate");
  detail::check_precision(faults, options, plan.model);
  note_no_weights(faults, options.model);
  faults.throw_if_any();
  detail::make_pipeline(faults, plan, profile);
  faults.throw_if_any();
  const Wrappings wrappings = make_wrappings(plan);
  for (const ParamSpec& param : plan.model.params)
    plan.cuts.push_back(cut_of(param, plan.mesh.grid(param.module).tp));
  for (const ModuleGrid& grid : plan.mesh.modules)
    plan.token_shardings[grid.module] =
        detail::make_token_sharding(grid.module, mesh_of(options, grid.module), plan.model);
  plan.bundles = bundles_of_units(plan.model, wrappings, plan.cuts, plan.pipeline.stage_of_unit);
  plan.groups = make_flat_layout(plan.model, wrappings, plan.cuts, plan.pipeline.stage_of_unit);
  plan.shardings = make_shardings(options, plan.mesh, plan.groups);
  plan.slots = make_slots(plan);
  plan.notes = faults.notes();
  std::ranges::move(detail::idle_settings(plan), std::back_inserter(plan.notes));
  return plan;
}

}  // namespace zea
