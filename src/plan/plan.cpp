// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/plan.hpp"

#include <algorithm>

#include "faults.hpp"
#include "module_sharding.hpp"

namespace zea {
namespace {

using detail::Faults;
using detail::mesh_of;

void refuse_axis(Faults& faults, const std::string& key, int64_t degree, const char* what) {
  if (degree > 1)
    faults.add(key + " = " + std::to_string(degree) + ": " + what +
               " is not built yet; allowed: 1");
}

void check_module_mesh(Faults& faults, const std::string& module, const ModuleMeshOptions& mesh) {
  refuse_axis(faults, "mesh." + module + ".pp", mesh.pp, "pipeline parallelism");
  refuse_axis(faults, "mesh." + module + ".cp", mesh.cp, "context parallelism");
  refuse_axis(faults, "mesh." + module + ".tp", mesh.tp, "tensor parallelism");
}

/// A text-only model takes no settings of a vision encoder.
void check_absent_vision(Faults& faults, const Options& options, const ModelSpec& model) {
  if (model.vision) return;
  const auto add = [&](const char* section) {
    faults.add(std::string(section) + " is set, but the model (" + model.family +
               ") has no vision encoder; leave the section out");
  };
  if (options.mesh_vision != ModuleMeshOptions{}) add("[mesh.vision]");
  if (options.vision != VisionOptions{}) add("[model.vision]");
  if (options.precision_vision != ModulePrecisionOptions{}) add("[precision.vision]");
}

void add_product_fault(Faults& faults, const MeshOptions& mesh, int world_size) {
  const std::string replicate = std::to_string(mesh.dp_replicate),
                    shard = std::to_string(mesh.dp_shard);
  faults.add(
      "the mesh does not fit: dp_replicate (" + replicate + ") x dp_shard (" + shard +
      ") x ranks of a replica (1) must be the world size " + std::to_string(world_size) +
      "; set one of mesh.dp_replicate, mesh.dp_shard to -1 to let it take the rest, or start " +
      "another number of ranks");
}

MeshShape make_mesh_shape(Faults& faults, const Options& options, const ModelSpec& model,
                          int world_size) {
  const MeshOptions& mesh = options.mesh;
  if (mesh.placement != "shared")
    faults.add("mesh.placement = \"" + mesh.placement +
               "\": modules on ranks of their own are not built yet; allowed: shared");
  if (model.vision) check_module_mesh(faults, "vision", options.mesh_vision);
  check_module_mesh(faults, "llm", options.mesh_llm);
  int64_t replicate = mesh.dp_replicate, shard = mesh.dp_shard;
  if (replicate == 0 || shard == 0 || (replicate == -1 && shard == -1)) {
    faults.add("mesh.dp_replicate = " + std::to_string(replicate) + ", mesh.dp_shard = " +
               std::to_string(shard) + ": each must be 1 or more, and one of them may be -1");
    return {};
  }
  if (shard == -1) shard = std::max<int64_t>(1, world_size / replicate);
  if (replicate == -1) replicate = std::max<int64_t>(1, world_size / shard);
  if (replicate * shard != world_size) add_product_fault(faults, mesh, world_size);
  MeshShape shape;
  shape.dp_replicate = static_cast<int>(replicate);
  shape.dp_shard = static_cast<int>(shard);
  const auto add_module = [&](const std::string& module, const ModuleMeshOptions& of_module) {
    detail::check_sharding(module, of_module, shape, options.run.device, faults);
    ModuleGrid grid{.module = module};
    grid.shard_subgroup = detail::make_sharding(of_module, shape).subgroup;
    shape.modules.push_back(grid);
  };
  if (model.vision) add_module("vision", options.mesh_vision);
  add_module("llm", options.mesh_llm);
  return shape;
}

DType named_dtype(const std::string& name, DType preset) {
  if (name == "preset") return preset;
  return name == "bf16" ? DType::BFloat16 : DType::Float32;
}

Precision make_precision(const PrecisionOptions& all, const ModulePrecisionOptions& module) {
  const bool is_fp64 = all.preset == "fp64";
  Precision precision;
  precision.master = is_fp64 ? DType::Float64 : DType::Float32;
  precision.param =
      named_dtype(module.param_dtype, all.preset == "bf16" ? DType::BFloat16 : precision.master);
  precision.reduce = named_dtype(module.reduce_dtype, precision.master);
  precision.output = named_dtype(module.output_dtype, precision.param);
  return precision;
}

void check_precision(Faults& faults, const Options& options, const ModelSpec& model) {
  if (options.precision.master_dtype == "bf16")
    faults.add(
        "precision.master_dtype = \"bf16\": masters in bf16 lose every update smaller than 1/256 "
        "of a weight, so training stalls; allowed: \"preset\", \"fp32\" (precision.*.param_dtype = "
        "\"bf16\" computes in bf16)");
  const auto check_preset = [&](const std::string& key, const std::string& found) {
    if (options.precision.preset == "fp64" && found != "preset")
      faults.add("precision." + key + " = \"" + found +
                 "\" with precision.preset = \"fp64\", in which everything is fp64; leave it out");
  };
  check_preset("master_dtype", options.precision.master_dtype);
  const auto check_module = [&](const std::string& name, const ModulePrecisionOptions& module) {
    check_preset(name + ".param_dtype", module.param_dtype);
    check_preset(name + ".reduce_dtype", module.reduce_dtype);
    check_preset(name + ".output_dtype", module.output_dtype);
  };
  if (model.vision) check_module("vision", options.precision_vision);
  check_module("llm", options.precision_llm);
  const auto refuse_uncast = [&](const std::string& name) {
    faults.add(
        "precision." + name +
        ".cast_forward_inputs = false: nothing comes to it from another module; leave it out");
  };
  if (!options.precision_vision.cast_forward_inputs && model.vision) refuse_uncast("vision");
  if (!options.precision_llm.cast_forward_inputs && !model.vision) refuse_uncast("llm");
  const DType features = make_precision(options.precision, options.precision_vision).output;
  const DType wanted = make_precision(options.precision, options.precision_llm).param;
  if (model.vision && !options.precision_llm.cast_forward_inputs && features != wanted)
    faults.add(std::string("precision.llm.cast_forward_inputs = false, but the vision module gives "
                           "out ") +
               dtype_name(features) + " and the language model computes in " + dtype_name(wanted) +
               "; set it to true, or precision.vision.output_dtype to the same type");
}

std::vector<Sharding> make_shardings(const Options& options, const MeshShape& mesh,
                                     const std::vector<FlatGroup>& groups) {
  std::vector<Sharding> shardings;
  for (const FlatGroup& group : groups)
    shardings.push_back(detail::make_sharding(mesh_of(options, group.module), mesh));
  return shardings;
}

Wrappings make_wrappings(const Plan& plan) {
  const auto bytes = static_cast<int64_t>(element_bytes(plan.precision.master));
  Wrappings wrappings;
  for (const ModuleGrid& grid : plan.mesh.modules)
    wrappings[grid.module] = detail::make_wrapping(mesh_of(plan.options, grid.module), bytes);
  return wrappings;
}

}  // namespace

int Plan::shard_of(int world_rank, int group) const {
  return shardings[group].gathered() ? replica_of(world_rank) % mesh.dp_shard : 0;
}

FlatRange Plan::own_cut(int world_rank, int group) const {
  // The owner of shard s in replica r takes the r-th part of it; so N ranks cut a buffer into N
  // parts either way.
  const Sharding& sharding = shardings[group];
  const FlatRange shard = shard_range(groups[group], shard_of(world_rank, group), sharding.shards);
  const int replica =
      sharding.gathered() ? replica_of(world_rank) / mesh.dp_shard : replica_of(world_rank);
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
  return step_options;
}

StepPlan Plan::step_plan(int64_t step, const std::vector<int64_t>& samples,
                         const std::vector<SampleIndex>& index) const {
  return make_step_plan(step, samples, index, step_plan_options());
}

ScheduleInput Plan::schedule_input(const StepPlan& step, int world_rank, bool forward_only) const {
  ScheduleInput input{model,       groups, bundles, shardings, step, {}, {}, replica_of(world_rank),
                      forward_only};
  std::vector<int> everyone(mesh.replicas());
  for (int replica = 0; replica < mesh.replicas(); ++replica) everyone[replica] = replica;
  const int first = replica_of(world_rank) / mesh.dp_shard * mesh.dp_shard;
  const std::vector<int> shard_group(everyone.begin() + first,
                                     everyone.begin() + first + mesh.dp_shard);
  for (const Sharding& sharding : shardings) {
    input.shard_peers.push_back(sharding.gathered() ? shard_group
                                                    : std::vector<int>{replica_of(world_rank)});
    input.all_peers.push_back(everyone);
  }
  return input;
}

SlotPlans make_slots(const Plan& plan) {
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
  return make_slot_plans(plan.model, plan.groups, plan.bundles, plan.shardings, bytes);
}

Plan make_plan(const Options& options, const std::string& config_json, int world_size) {
  Faults faults;
  Plan plan;
  plan.options = options;
  plan.config_json = config_json;
  plan.precision = make_precision(options.precision, options.precision_llm);
  plan.vision_precision = make_precision(options.precision, options.precision_vision);
  plan.model = make_model_spec(config_json, {.vision = options.vision.train,
                                             .vision_projector = options.vision.train_projector,
                                             .llm = options.llm.train});
  plan.mesh = make_mesh_shape(faults, options, plan.model, world_size);
  if (options.run.device == "cuda" && options.precision.preset == "fp64")
    faults.add(
        "run.device = \"cuda\" with precision.preset = \"fp64\": the attention kernels of GPUs "
        "have "
        "no fp64; use fp32 or bf16, or the CPU");
  std::vector<std::string> rule_faults;
  plan.param_rules = make_param_rules(plan.model, options.optim, rule_faults);
  for (const std::string& fault : rule_faults) faults.add(fault);
  check_absent_vision(faults, options, plan.model);
  const auto trainable = [](const ParamSpec& param) { return param.trainable; };
  if (options.run.mode == "train" &&
      std::none_of(plan.model.params.begin(), plan.model.params.end(), trainable))
    faults.add(
        "every module is frozen, so there is nothing to train; set one of model.vision.train, "
        "model.vision.train_projector, model.llm.train to true, or run.mode to evaluate");
  check_precision(faults, options, plan.model);
  faults.throw_if_any();
  const Wrappings wrappings = make_wrappings(plan);
  plan.bundles = bundles_of_units(plan.model, wrappings);
  plan.groups = make_flat_layout(plan.model, wrappings);
  plan.shardings = make_shardings(options, plan.mesh, plan.groups);
  plan.slots = make_slots(plan);
  return plan;
}

}  // namespace zea
