// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/plan.hpp"

#include <algorithm>

#include "zea/core/error.hpp"

namespace zea {
namespace {

class Faults {
 public:
  void add(const std::string& fault) { text_ += (text_.empty() ? "" : "\n") + fault; }
  void throw_if_any() const {
    if (!text_.empty()) throw PlanError(text_);
  }

 private:
  std::string text_;
};

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
  const ModuleMeshOptions& mesh = options.mesh_vision;
  const ModuleMeshOptions defaults;
  if (model.vision) return;
  if (mesh.strategy != defaults.strategy || mesh.pp != 1 || mesh.cp != 1 || mesh.tp != 1)
    faults.add("[mesh.vision] is set, but the model (" + model.family +
               ") has no vision encoder; leave the section out");
  if (!options.vision.train || !options.vision.train_projector)
    faults.add("[model.vision] is set, but the model (" + model.family +
               ") has no vision encoder; leave the section out");
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
  if (model.vision) shape.modules.push_back({.module = "vision"});
  shape.modules.push_back({.module = "llm"});
  return shape;
}

Precision make_precision(const std::string& preset) {
  if (preset == "fp64") return {DType::Float64, DType::Float64};
  if (preset == "bf16") return {DType::BFloat16, DType::Float32};
  return {DType::Float32, DType::Float32};
}

std::vector<Sharding> make_shardings(const Options& options, const MeshShape& mesh,
                                     const std::vector<FlatGroup>& groups) {
  std::vector<Sharding> shardings;
  for (const FlatGroup& group : groups) {
    const auto& module = group.module == "vision" ? options.mesh_vision : options.mesh_llm;
    if (module.strategy == "no_shard")
      shardings.push_back({.shards = 1, .replicas = mesh.replicas()});
    else
      shardings.push_back({.shards = mesh.dp_shard, .replicas = mesh.dp_replicate});
  }
  return shardings;
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
  ScheduleInput input{model, groups, shardings, step, {}, {}, replica_of(world_rank), forward_only};
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

Plan make_plan(const Options& options, const std::string& config_json, int world_size) {
  Faults faults;
  Plan plan;
  plan.options = options;
  plan.config_json = config_json;
  plan.precision = make_precision(options.precision.preset);
  plan.model = make_model_spec(config_json, {.vision = options.vision.train,
                                             .vision_projector = options.vision.train_projector,
                                             .llm = options.llm.train});
  plan.mesh = make_mesh_shape(faults, options, plan.model, world_size);
  if (options.run.device != "cpu")
    faults.add("run.device = \"" + options.run.device +
               "\": training on a GPU is not built yet; allowed: cpu");
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
  faults.throw_if_any();
  plan.groups = make_flat_layout(plan.model);
  plan.shardings = make_shardings(options, plan.mesh, plan.groups);
  return plan;
}

}  // namespace zea
