// SPDX-License-Identifier: Apache-2.0
#include "schedule/plan.hpp"

#include <algorithm>
#include <set>

#include "core/error.hpp"
#include "core/text.hpp"
#include "layout/mesh_shape.hpp"
#include "layout/module_sharding.hpp"
#include "schedule/plan_parts.hpp"
#include "spec/adapters.hpp"
#include "spec/precision.hpp"

namespace zea {
namespace {

using detail::Faults;

/// A model takes no settings of a module that it does not have. Every deck has the sections that
/// `defaults` has; others the user has written.
template <class Settings>
void check_absent(Faults& faults, const ModelSpec& model, const std::string& prefix,
                  const ByModule<Settings>& sections, const ByModule<Settings>& defaults) {
  for (const auto& [module, settings] : sections) {
    if (model.has(module) || (settings == Settings{} && defaults.has(module))) continue;
    faults.add("[" + prefix + module + "] is set, but the model (" + model.family + ") has no " +
               module + " encoder; leave the section out (its modules are " + model.module_names() +
               ")");
  }
}

void check_absent_modules(Faults& faults, const Options& options, const ModelSpec& model) {
  const Options defaults;
  check_absent(faults, model, "mesh.", options.meshes, defaults.meshes);
  check_absent(faults, model, "model.", options.encoders, defaults.encoders);
  check_absent(faults, model, "precision.", options.precisions, defaults.precisions);
  const auto sees = [](const EncoderSpec& encoder) {
    return encoder.modality() == Modality::Image;
  };
  if (options.llm.image_attention == ImageAttention::Bidirectional &&
      std::ranges::none_of(model.encoders, sees))
    faults.add("model." + kDecoder + ".image_attention = \"" + options.llm.image_attention +
               "\", but the model (" + model.family +
               ") has no encoder of images, so there are none; leave it out");
}

Trainable trainable_of(const Options& options) {
  if (options.run.mode != RunMode::Train) return {.llm = false, .all_frozen = true};
  Trainable trainable{.llm = options.llm.train,
                      .dropout = options.llm.dropout,
                      .mtp_loss = options.llm.mtp_loss_coef};
  for (const auto& [encoder, section] : options.encoders)
    trainable.encoders[encoder] = {section.train, section.train_projector};
  return trainable;
}

/// Settings for weights have no meaning without weights.
void note_no_weights(Faults& faults, const Options& options) {
  const ModelOptions& model = options.model;
  if (!options.llm.weights.empty() && !model.strict)
    faults.note("model.strict = false has no effect with model." + kDecoder +
                ".weights: what such parts lack is refused, but for projectors");
  if (!model.weights.empty() || !options.llm.weights.empty()) return;
  const std::string no_effect =
      " has no effect with model.weights = \"\": all modules begin with initial values";
  if (model.load_modules != ModelOptions{}.load_modules)
    faults.note("model.load_modules" + no_effect);
  if (!model.strict) faults.note("model.strict = false" + no_effect);
}

/// The deck says which modules are frozen; the model knows the linears of its projectors.
void check_frozen_projectors(Faults& faults, const Options& options, const ModelSpec& model) {
  for (const auto& [encoder, section] : options.encoders) {
    if (section.train_projector || section.lora.targets.empty()) continue;
    for (const UnitSpec& unit : model.units)
      if (unit.module == encoder && std::ranges::any_of(unit.adapters, [&](const Adapter& adapter) {
            return unit.is_of_projector(adapter.role);
          }))
        faults.add("model." + encoder + ".train_projector = false, but model." + encoder +
                   ".lora.targets name " + unit.name +
                   ", which would get adapters to train; leave one of the two out");
  }
}

void check_decoding(Faults& faults, const DataOptions& data, const ModelSpec& model) {
  if (data.decoding_threads > 0 && model.encoders.empty())
    faults.add("data.decoding_threads = " + std::to_string(data.decoding_threads) +
               ", but the model (" + model.family +
               ") has no encoder, so there is nothing to decode; leave it out");
}

void check_device(Faults& faults, const Options& options) {
  const RunOptions& run = options.run;
  if (run.device == DeviceKind::Cpu && run.ranks_per_gpu > 1)
    faults.add("run.ranks_per_gpu = " + std::to_string(run.ranks_per_gpu) +
               " with run.device = \"cpu\": there is no GPU to share; leave it out");
  if (run.device == DeviceKind::Cpu && run.cuda_graphs > 0)
    faults.add("run.cuda_graphs = " + std::to_string(run.cuda_graphs) +
               " with run.device = \"cpu\": a host has no graphs; leave it out");
  if (run.device != DeviceKind::Cpu && run.collective_checksums)
    faults.add(
        "run.collective_checksums = true with run.device = \"cuda\": checksums are taken of host "
        "memory; leave it out");
  if (run.device == DeviceKind::Cpu && run.deterministic)
    faults.add(
        "run.deterministic = true with run.device = \"cpu\": a run on CPUs gives the same bits "
        "each time anyway; leave it out");
  if (run.device == DeviceKind::Cuda && options.precision.preset == PrecisionPreset::Fp64)
    faults.add(
        "run.device = \"cuda\" with precision.preset = \"fp64\": the attention kernels of GPUs "
        "have "
        "no fp64; use fp32 or bf16, or the CPU");
}

/// Buffers list the experts of the first ep rank for all of them, so what is set for one expert is
/// set for all.
void check_experts_alike(Faults& faults, const Options& options, const ModelSpec& model,
                         const MeshShape& mesh, const std::vector<ParamRule>& rules) {
  if (mesh.modules.empty()) return;  // a mesh that does not fit is refused already
  const int ep = mesh.grid(kDecoder).ep();
  if (ep == 1) return;
  for (const UnitSpec& unit : model.units)
    for (const std::vector<int>& experts : model.expert_params(unit))
      for (const int param : experts) {
        const int first = experts.front();
        if (model.params[param].trainable == model.params[first].trainable &&
            rules[param] == rules[first])
          continue;
        faults.add("mesh." + kDecoder + ".ep = " + std::to_string(ep) +
                   ", but the patterns of optim give " + model.params[param].name +
                   " other rules than " + model.params[first].name +
                   "; with expert parallelism all experts of a layer have the same: name "
                   "experts.*, or leave ep and etp out");
        return;
      }
  if (options.eval.generate_tokens > 0 &&
      (options.run.mode != RunMode::Train || options.eval.every > 0) &&
      mesh.grid(kDecoder).ep_dp_shard > 1)
    faults.add("mesh." + kDecoder + ".ep = " + std::to_string(ep) +
               " with eval.generate_tokens = " + std::to_string(options.eval.generate_tokens) +
               ": how many texts go on is not known to other replicas, so generation is built for "
               "ep that divides cp, or tp x cp with etp = 1; allowed: eval.generate_tokens = 0, or "
               "such an ep");
}

/// Graphs replay launches, and where the library has no grouped products the host asks how many
/// rows each expert has.
void check_experts(Faults& faults, const Options& options, const ModelSpec& model) {
  if (options.run.cuda_graphs == 0 || !model.has_experts()) return;
  faults.add("run.cuda_graphs = " + std::to_string(options.run.cuda_graphs) + ", but the model (" +
             model.family +
             ") has mixtures of experts, whose steps are not captured yet; leave it out");
}

void check_scores(Faults& faults, const Options& options, const ModelSpec& model) {
  if (options.run.device != DeviceKind::Cuda) return;
  for (const std::string& module : model.modules())
    for (const AttentionSpec& attention : model.block(module).attentions())
      if (attention.scores.softcap != 0 && !attention.relative) {
        faults.add("run.device = \"cuda\" with the scores of attention of " + module +
                   " capped: the attention kernels of GPUs have no cap; use the CPU");
        break;
      }
}

/// Optimizers run where the masters lie.
void note_offloaded_optimizers(Faults& faults, const Options& options, const ModelSpec& model) {
  const RunOptions& run = options.run;
  if (run.device == DeviceKind::Cpu || run.mode != RunMode::Train || run.threads > 1) return;
  std::set<std::string> modules;
  for (const ParamSpec& param : model.params)
    if (param.trainable && options.meshes[param.module].cpu_offload) modules.insert(param.module);
  for (const std::string& module : modules)
    faults.note("mesh." + module +
                ".cpu_offload = true: its optimizer runs on the host, on run.threads = 1 thread of "
                "each rank; a rank's share of the node's cores makes it faster");
}

void check_model_options(Faults& faults, const Options& options, const ModelSpec& model) {
  check_absent_modules(faults, options, model);
  detail::check_item_limits(faults, options.data, model);
  check_decoding(faults, options.data, model);
  check_scores(faults, options, model);
  check_experts(faults, options, model);
  detail::check_routers(faults, options, model);
  detail::check_mtp(faults, options, model);
  const auto trainable = [](const ParamSpec& param) { return param.trainable; };
  const auto train_keys = [](const std::string& module) {
    const std::string key = "model." + module + ".train";
    return module == kDecoder ? key : key + ", " + key + "_projector";
  };
  if (options.run.mode == RunMode::Train && std::ranges::none_of(model.params, trainable))
    faults.add("every module is frozen, so there is nothing to train; set one of " +
               join(model.modules(), ", ", train_keys) + " to true, or run.mode to evaluate" +
               (options.optim.frozen.empty() ? "" : ", or take patterns out of optim.frozen"));
  for (const double id : options.eval.stop_tokens)
    if (id >= static_cast<double>(model.decoder.vocabulary))
      faults.add("eval.stop_tokens holds " + std::to_string(static_cast<int64_t>(id)) +
                 ", outside the model's vocabulary of " + std::to_string(model.decoder.vocabulary));
  if (options.run.mode == RunMode::Train) check_frozen_projectors(faults, options, model);
  if (options.model.activation_checkpointing.is_auto() && options.mesh.rank_memory_mib == 0)
    faults.add(
        "model.activation_checkpointing = \"auto\" recomputes what mesh.rank_memory_mib asks for, "
        "which is 0 (no limit): set that to what a rank has, or say which units (0, 1, ...)");
  detail::check_precision(faults, options, model);
  for (const std::string& note : options.notes) faults.note(note);
  note_no_weights(faults, options);
  note_offloaded_optimizers(faults, options, model);
}

OptimizerSpec optimizer_of(Faults& faults, const OptimOptions& options) {
  std::vector<std::string> sentences;
  OptimizerSpec optimizer = make_optimizer_spec(options, sentences);
  for (const std::string& sentence : sentences) faults.add(sentence);
  return optimizer;
}

std::vector<ParamRule> rules_of(Faults& faults, const Options& options, const ModelSpec& model) {
  std::vector<std::string> sentences;
  std::vector<ParamRule> rules = make_param_rules(model, options.optim, sentences);
  for (const std::string& sentence : sentences) faults.add(sentence);
  return rules;
}

ParamShards make_cuts(const ModelSpec& model, const MeshShape& mesh) {
  ParamShards cuts;
  const int expert_tp = mesh.grid(kDecoder).expert_tp();
  const std::set<int> experts = model.expert_params();
  for (size_t p = 0; p < model.params.size(); ++p) {
    const int tp = mesh.grid(model.params[p].module).tp;
    cuts.push_back(
        param_shard_of(model.params[p], experts.contains(static_cast<int>(p)) ? expert_tp : tp));
  }
  shard_experts(model, mesh.grid(kDecoder).ep(), expert_tp, cuts);
  return cuts;
}

std::vector<ParamRule> with_state_blocks(std::vector<ParamRule> rules, const ModelSpec& model,
                                         const ParamShards& cuts) {
  for (size_t p = 0; p < rules.size(); ++p)
    rules[p].state_block = state_block(model.params[p], cuts[p]);
  return rules;
}

std::map<std::string, TokenSharding> make_token_shardings(const Options& options,
                                                          const ModelSpec& model,
                                                          const MeshShape& mesh,
                                                          const Precisions& precisions) {
  const int64_t tokens = options.data.row_tokens * options.data.rows_per_microbatch;
  std::map<std::string, TokenSharding> shardings;
  for (const ModuleGrid& grid : mesh.modules)
    shardings[grid.module] =
        detail::make_token_sharding(grid.module, options.meshes[grid.module], model,
                                    {tokens, precisions.at(grid.module).param});
  return shardings;
}

WrapPolicies make_wrap_policies(const Options& options, const MeshShape& mesh, DType master) {
  const auto bytes = static_cast<int64_t>(element_bytes(master));
  WrapPolicies wrappings;
  for (const ModuleGrid& grid : mesh.modules)
    wrappings[grid.module] = detail::make_wrap_policy(options.meshes[grid.module], bytes);
  return wrappings;
}

std::vector<Sharding> make_shardings(const Options& options, const MeshShape& mesh,
                                     const std::vector<FlatBuffer>& buffers) {
  std::vector<Sharding> shardings;
  for (const FlatBuffer& buffer : buffers)
    shardings.push_back(
        buffer.is_state
            ? detail::sharding_of_states(mesh, buffer.module)
            : detail::make_sharding(options.meshes[buffer.module], mesh, mesh.grid(buffer.module),
                                    detail::is_pipelined(options), buffer.is_over_ep));
  return shardings;
}

BidirectionalLayers bidirectional_images_in(const Options& options, const ModelSpec& model) {
  const auto& asked = options.llm.image_attention;
  if (asked == ImageAttention::Auto) return model.decoder.bidirectional_images;
  return asked == ImageAttention::Bidirectional ? BidirectionalLayers::All
                                                : BidirectionalLayers::None;
}

StepPlanOptions make_dealing(const DataOptions& data, const ModelSpec& model, const MeshShape& mesh,
                             const std::vector<UnitCost>& unit_costs) {
  StepPlanOptions dealing;
  dealing.replicas = mesh.replicas();
  dealing.shard_group = mesh.dp_shard;
  dealing.expert_group = mesh.grid(kDecoder).ep_dp_shard;
  dealing.row_tokens = data.row_tokens;
  dealing.rows_per_microbatch = data.rows_per_microbatch;
  dealing.packing = data.packing;
  dealing.balance = data.balance;
  dealing.costs = sample_costs(model, mesh, unit_costs, data.row_tokens, data.rows_per_microbatch);
  return dealing;
}

}  // namespace

int Plan::piece_rank(int world_rank, int buffer) const {
  return mesh.rank_along(world_rank, buffers[buffer].module, shardings[buffer].split_over);
}

int Plan::tp_pieces(int buffer) const {
  const ModuleGrid& grid = mesh.grid(buffers[buffer].module);
  return buffers[buffer].is_over_ep ? grid.expert_tp() : grid.tp;
}

int Plan::shard_of(int world_rank, int buffer) const {
  return mesh.rank_along(world_rank, buffers[buffer].module, shardings[buffer].sharded_over);
}

int Plan::copy_of(int world_rank, int buffer) const {
  return mesh.rank_along(world_rank, buffers[buffer].module, shardings[buffer].summed_over);
}

FlatRange Plan::own_range(int world_rank, int buffer) const {
  // The owner of shard s in replica r takes the r-th part of it; so N ranks cut a buffer into N
  // parts either way; of whole blocks, where states are in blocks.
  const Sharding& sharding = shardings[buffer];
  const FlatRange shard =
      shard_range(buffers[buffer], shard_of(world_rank, buffer), sharding.shards);
  const int replica = copy_of(world_rank, buffer);
  const int64_t length = shard.end - shard.begin;
  const int64_t step = optimizer.has_blocks() ? kFlatAlignment : 1;
  const auto begin_of = [&](int part) {
    return shard.begin + length * part / sharding.replicas / step * step;
  };
  return {begin_of(replica), begin_of(replica + 1)};
}

StepPlan Plan::step_plan(int64_t step, const std::vector<int64_t>& samples,
                         const SampleTable& index) const {
  StepPlan planned = make_step_plan(step, samples, index, dealing);
  for (const int64_t id : samples) {
    planned.model_flops += sample_cost(index[id], flops_of_samples);
    planned.unmasked_flops += unmasked_cost(index[id], flops_of_samples);
  }
  if (options.run.cuda_graphs > 0) planned.shape = shape_of(planned, index);
  return planned;
}

int Plan::stage_of_unit(int unit) const {
  return pipeline.stage_in_module(unit, mesh.grid(model.units[unit].module));
}

std::vector<int> Plan::stages_of_buffer(int buffer) const {
  std::set<int> stages;
  for (int unit : buffers[buffer].units) stages.insert(stage_of_unit(unit));
  if (stages.empty()) return {0};
  return {stages.begin(), stages.end()};
}

bool Plan::holds(int world_rank, int buffer) const {
  const std::string& module = buffers[buffer].module;
  if (!mesh.has(world_rank, module)) return false;
  const std::vector<int> stages = stages_of_buffer(buffer);
  return std::count(stages.begin(), stages.end(), mesh.coordinate(world_rank, module).pp) > 0;
}

std::vector<int> Plan::held_buffers(int world_rank) const {
  std::vector<int> held;
  for (size_t g = 0; g < buffers.size(); ++g)
    if (holds(world_rank, static_cast<int>(g))) held.push_back(static_cast<int>(g));
  return held;
}

bool Plan::counts(int world_rank, int buffer) const {
  return holds(world_rank, buffer) &&
         mesh.coordinate(world_rank, buffers[buffer].module).pp == stages_of_buffer(buffer).front();
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

RankStep Plan::rank_step(const StepPlan& step, int world_rank, StepKind kind) const {
  const int replica = replica_of(world_rank);
  const std::vector<MicrobatchPlan>& microbatches = step.replicas[replica];
  ScheduleInput input{schedule_parts(), microbatches, step.group_kinds[replica / step.shard_group],
                      step.kinds};
  input.group = group_of(world_rank);
  input.kind = kind;
  input.moves_features = pipeline.stage_groups[input.group].ranks > 1;
  for (const ModuleGrid& grid : mesh.modules)
    if (grid.module != kDecoder && mesh.has(world_rank, grid.module))
      input.item_shares[grid.module] = {grid.encoder_dp,
                                        mesh.coordinate(world_rank, grid.module).encoder_dp};
  RankStep made{step.step,    step.samples,         step.tokens,
                step.targets, step.model_flops,     step.unmasked_flops,
                microbatches, make_schedule(input), step.shape};
  if (kind == StepKind::Train && router_losses().aux > 0) {
    input.kind = StepKind::Count;
    made.counting = make_schedule(input);
  }
  return made;
}

/// The head's backward follows its forward at once: keeping its graph costs nothing.
std::vector<Recompute> recomputed_units(const ModelOptions& options, const ModelSpec& model) {
  const AutoOption& asked = options.activation_checkpointing;
  const int64_t every = asked.is_count() ? asked.count() : asked.is_yes();
  std::vector<Recompute> recomputed(model.units.size(),
                                    asked.is_selective() ? Recompute::Selective : Recompute::None);
  for (size_t u = 0; u < model.units.size(); ++u)
    if (every > 0 && static_cast<int64_t>(u) % every == 0 && model.units[u].kind != UnitKind::Head)
      recomputed[u] = Recompute::Full;
  return recomputed;
}

ModelSpec model_of(const Options& options, const std::string& config_json) {
  ModelSpec model = make_model_spec(with_adapters(config_json, options), trainable_of(options));
  freeze_params(options.optim, model);
  detail::mark_cached_encoders(options, model);
  detail::set_item_limits(options.data, model);
  return model;
}

Plan make_plan_without_slots(const Options& options, const ModelSpec& model,
                             const std::string& config_json, int world_size,
                             const std::string& profile) {
  Faults faults;
  if (options.mesh.layout == LayoutSource::Auto && options.mesh.searched_ranks != world_size)
    faults.add("mesh.layout = \"auto\" has no layout for " + std::to_string(world_size) +
               " ranks yet (mesh.searched_ranks = " + std::to_string(options.mesh.searched_ranks) +
               "); a run and zea -n search one, zea --plan finds several");
  const MeshShape unlinked = detail::make_mesh_shape(faults, options, model, world_size);
  check_device(faults, options);
  detail::check_replay(faults, options, unlinked);
  const OptimizerSpec optimizer = optimizer_of(faults, options.optim);
  const std::vector<ParamRule> rules = rules_of(faults, options, model);
  check_model_options(faults, options, model);
  detail::check_cached_encoders(faults, options, model, rules);
  check_experts_alike(faults, options, model, unlinked, rules);
  faults.throw_if_any();
  const Precisions precisions = detail::make_precisions(options, model);
  detail::note_waits_for_routers(faults, options, model, precisions.at(kDecoder).param);
  const auto [unit_costs, pipeline, mesh] =
      detail::make_pipeline(faults, {options, model, unlinked, precisions, optimizer, profile});
  detail::check_cached_stages(faults, model, pipeline);
  faults.throw_if_any();
  const Precision& precision = precisions.at(kDecoder);
  const ParamShards cuts = make_cuts(model, mesh);
  const WrapPolicies wrappings = make_wrap_policies(options, mesh, precision.master);
  const std::vector<int> fsdp_units = fsdp_units_of(model, wrappings, cuts, pipeline.stage_of_unit);
  const std::vector<FlatBuffer> buffers =
      make_flat_layout(model, wrappings, cuts, pipeline.stage_of_unit);
  const std::vector<Sharding> shardings = make_shardings(options, mesh, buffers);
  const BidirectionalLayers bidirectional_images = bidirectional_images_in(options, model);
  detail::check_message_order(faults, options, {model, buffers, fsdp_units, shardings, pipeline});
  detail::check_graphs(faults, {options, model, mesh, shardings, bidirectional_images});
  faults.throw_if_any();
  return {.options = options,
          .config_json = with_carried_head(with_adapters(config_json, options), model),
          .mesh = mesh,
          .precision = precision,
          .precisions = precisions,
          .model = model,
          .optimizer = optimizer,
          .param_rules = optimizer.has_blocks() ? with_state_blocks(rules, model, cuts) : rules,
          .cuts = cuts,
          .token_shardings = make_token_shardings(options, model, mesh, precisions),
          .fsdp_units = fsdp_units,
          .buffers = buffers,
          .shardings = shardings,
          .recomputed = recomputed_units(options.model, model),
          .pipeline = pipeline,
          .unit_costs = unit_costs,
          .has_measured_costs = !profile.empty(),
          .bidirectional_images = bidirectional_images,
          .dealing = make_dealing(options.data, model, mesh, unit_costs),
          .flops_of_samples = model_flops(model, bidirectional_images),
          .slots = {},
          .notes = faults.notes()};
}

Plan with_slots(Plan plan) {
  plan.slots = make_slots(plan.schedule_parts(), plan.precisions);
  return detail::gathered_within(std::move(plan), detail::is_beyond_memory);
}

Plan make_plan(const Options& options, const ModelSpec& model, const std::string& config_json,
               int world_size, const std::string& profile) {
  return with_slots(make_plan_without_slots(options, model, config_json, world_size, profile));
}

}  // namespace zea
