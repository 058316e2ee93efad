// SPDX-License-Identifier: Apache-2.0
#include "layout/mesh_shape.hpp"

#include <algorithm>

#include "core/text.hpp"
#include "layout/module_sharding.hpp"

namespace zea::detail {
namespace {

void add_product_fault(Faults& faults, const MeshOptions& mesh, int replica_ranks, int world_size) {
  const std::string replicate = std::to_string(mesh.dp_replicate),
                    shard = std::to_string(mesh.dp_shard);
  faults.add("the mesh does not fit: dp_replicate (" + replicate + ") x dp_shard (" + shard +
             ") x ranks of a replica (" + std::to_string(replica_ranks) +
             ") must be the world size " + std::to_string(world_size) +
             "; set one of mesh.dp_replicate, mesh.dp_shard to -1 to let it take the rest, or "
             "start another number of ranks: " +
             nearest_world_sizes(replica_ranks, mesh.dp_replicate, mesh.dp_shard, world_size));
}

/// The data-parallel degrees, of which one may take the replicas that are left.
void resolve_replicas(Faults& faults, const MeshOptions& mesh, int replica_ranks, int world_size,
                      MeshShape& shape) {
  int64_t replicate = mesh.dp_replicate, shard = mesh.dp_shard;
  if (replicate == 0 || shard == 0 || (replicate == -1 && shard == -1)) {
    faults.add("mesh.dp_replicate = " + std::to_string(replicate) + ", mesh.dp_shard = " +
               std::to_string(shard) + ": each must be 1 or more, and one of them may be -1");
    return;
  }
  const int64_t replicas = world_size / replica_ranks;
  if (shard == -1) shard = std::max<int64_t>(1, replicas / replicate);
  if (replicate == -1) replicate = std::max<int64_t>(1, replicas / shard);
  if (replicate * shard * replica_ranks != world_size)
    add_product_fault(faults, mesh, replica_ranks, world_size);
  shape.dp_replicate = static_cast<int>(replicate);
  shape.dp_shard = static_cast<int>(shard);
}

void check_schedule(const Options& options, Faults& faults) {
  const MeshOptions& mesh = options.mesh;
  const bool interleaves = mesh.schedule == PipelineSchedule::Interleaved;
  const int64_t stages = options.meshes[kDecoder].virtual_stages;
  const std::string found = "mesh.schedule = \"" + mesh.schedule + "\"";
  if (interleaves && stages == 1)
    faults.add(found + " needs virtual stages; set mesh." + kDecoder +
               ".virtual_stages to 2 or more");
  if (!interleaves && stages > 1)
    faults.add("mesh." + kDecoder + ".virtual_stages = " + std::to_string(stages) + " with " +
               found + ", which has none; use \"interleaved_1f1b\"");
  if (interleaves && pipeline_ranks(options.meshes[kDecoder]) == 1)
    faults.add(found + " with mesh." + kDecoder +
               ".pp = 1: there are no ranks between which stages take turns; "
               "raise pp, or use \"1f1b\"");
  if (!is_pipelined(options) && mesh.schedule != MeshOptions{}.schedule)
    faults.note(found +
                " has no effect: all modules stand on the same ranks, which take one "
                "microbatch after the other");
}

/// Encoders that share ranks with the language model stand in its first stage.
void add_shared(MeshShape& shape, const Options& options, const ModelSpec& model, Faults& faults) {
  const int64_t stage_ranks = degrees_product(options.meshes[kDecoder]);
  const std::string whose =
      pipeline_ranks(options.meshes[kDecoder]) > 1
          ? "the first stage of [mesh." + kDecoder + "], which are its tp x cp"
          : "a replica, which are tp x cp of [mesh." + kDecoder + "]";
  for (const EncoderSpec& encoder : model.encoders) {
    const std::string& module = encoder.name;
    const ModuleMeshOptions& own = options.meshes[module];
    if (pipeline_ranks(own) > 1)
      faults.add("mesh." + module + " has " + std::to_string(pipeline_ranks(own)) +
                 " stages with mesh.placement = \"shared\", in which encoders stand in the first "
                 "stage of the language model; allowed: 1, or another placement");
    shape.modules.push_back(make_module_grid(module, own, model, stage_ranks, whose, faults));
  }
}

/// Whether the deck says on how many ranks an encoder stands that has ranks of its own.
bool gives_layout(const Options& options, const std::string& module) {
  const ModuleMeshOptions& own = options.meshes[module];
  return pipeline_ranks(own) > 1 || degrees_product(own) > 1 || own.encoder_dp > 0;
}

bool gives_layouts(const Options& options, const ModelSpec& model) {
  return options.mesh.placement == ModulePlacement::Shared ||
         std::ranges::all_of(model.encoders, [&](const EncoderSpec& encoder) {
           return gives_layout(options, encoder.name);
         });
}

void check_layout(const Options& options, const std::string& module, Faults& faults) {
  if (gives_layout(options, module)) return;
  faults.add("mesh.placement = \"" + options.mesh.placement + "\", but [mesh." + module +
             "] gives no layout: say on how many ranks it stands, by pp, tp, cp or encoder_dp "
             "(encoder_dp = 1: one rank)");
}

int64_t own_stage_ranks(const ModuleMeshOptions& options) {
  return degrees_product(options) * std::max<int64_t>(1, options.encoder_dp);
}

/// All encoders on the same ranks: the one with most decides how many.
int add_colocated(MeshShape& shape, const Options& options, const ModelSpec& model,
                  Faults& faults) {
  int64_t stage_ranks = 1, stages = 0;
  for (const EncoderSpec& encoder : model.encoders) {
    const std::string& module = encoder.name;
    const ModuleMeshOptions& own = options.meshes[module];
    check_layout(options, module, faults);
    stage_ranks = std::max(stage_ranks, own_stage_ranks(own));
    if (stages != 0 && pipeline_ranks(own) != stages)
      faults.add("mesh." + module + " has " + std::to_string(pipeline_ranks(own)) +
                 " stages and mesh." + model.encoders.front().name + " " + std::to_string(stages) +
                 "; with mesh.placement = \"colocated\" encoders have equally many");
    stages = pipeline_ranks(own);
  }
  for (const EncoderSpec& encoder : model.encoders)
    shape.modules.push_back(make_module_grid(encoder.name, options.meshes[encoder.name], model,
                                             stage_ranks, "a stage of the encoders", faults));
  return static_cast<int>(stage_ranks * stages);
}

int add_disjoint(MeshShape& shape, const Options& options, const ModelSpec& model, Faults& faults) {
  int first = 0;
  for (const EncoderSpec& encoder : model.encoders) {
    const std::string& module = encoder.name;
    const ModuleMeshOptions& own = options.meshes[module];
    check_layout(options, module, faults);
    ModuleGrid grid =
        make_module_grid(module, own, model, own_stage_ranks(own), "its stage", faults);
    grid.first_rank = first;
    first += grid.ranks();
    shape.modules.push_back(grid);
  }
  return first;
}

/// Whether grids have numbers that an int holds; each degree alone does.
bool has_countable_ranks(const Options& options, const ModelSpec& model, Faults& faults) {
  constexpr int64_t kMostRanks = int64_t{1} << 20;
  bool fits = true;
  for (const std::string& module : model.modules()) {
    const ModuleMeshOptions& own = options.meshes[module];
    const int64_t ranks = own_stage_ranks(own) * pipeline_ranks(own);
    if (ranks <= kMostRanks) continue;
    faults.add("mesh." + module + " asks for " + std::to_string(ranks) +
               " ranks, the product of its pp, encoder_dp, cp and tp; allowed: up to " +
               std::to_string(kMostRanks));
    fits = false;
  }
  return fits;
}

/// The grids of all modules in a replica; the language model's is the last.
void add_grids(MeshShape& shape, const Options& options, const ModelSpec& model, Faults& faults) {
  int first = 0;
  if (options.mesh.placement == ModulePlacement::Shared)
    add_shared(shape, options, model, faults);
  else if (model.encoders.empty())
    faults.add("mesh.placement = \"" + options.mesh.placement + "\", but the model (" +
               model.family + ") has no encoder to place; leave it out");
  else
    first = options.mesh.placement == ModulePlacement::Colocated
                ? add_colocated(shape, options, model, faults)
                : add_disjoint(shape, options, model, faults);
  if (options.meshes[kDecoder].encoder_dp > 1)
    faults.add("mesh." + kDecoder +
               ".encoder_dp = " + std::to_string(options.meshes[kDecoder].encoder_dp) +
               ": only encoders deal items to their ranks; allowed: 0, 1");
  ModuleMeshOptions own = options.meshes[kDecoder];
  own.encoder_dp = 0;
  ModuleGrid llm =
      make_module_grid(kDecoder, own, model, degrees_product(own), "its stage", faults);
  llm.first_rank = first;
  shape.modules.push_back(llm);
}

}  // namespace

bool is_pipelined(const Options& options) {
  return options.mesh.placement != ModulePlacement::Shared ||
         pipeline_ranks(options.meshes[kDecoder]) > 1;
}

namespace {

MeshShape shape_of(Faults& faults, const Options& options, const ModelSpec& model, int world_size) {
  for (const std::string& module : model.modules())
    check_degrees(module, options.meshes[module], model, faults);
  check_schedule(options, faults);
  MeshShape shape;
  if (!has_countable_ranks(options, model, faults)) return shape;
  add_grids(shape, options, model, faults);
  if (!gives_layouts(options, model)) return shape;  // so it is not known how many ranks are wanted
  resolve_replicas(faults, options.mesh, shape.ranks_per_replica(), world_size, shape);
  set_ep(shape, options.meshes[kDecoder], model, options.run.device, faults);
  const RunKind run{options.run.device, is_pipelined(options)};
  for (ModuleGrid& grid : shape.modules) {
    const ModuleMeshOptions& of_module = options.meshes[grid.module];
    check_sharding(of_module, shape, grid, run, faults);
    grid.tp_chunks = chosen_chunks(grid, options, model);
    grid.shard_subgroup = make_sharding(of_module, shape, grid, run.is_pipelined).subgroup;
  }
  return shape;
}

/// The overrides of a placement that fits so many ranks with the fewest for encoders; empty: none
/// does.
std::string overrides_that_fit(Options options, const ModelSpec& model, int world_size,
                               Choice<ModulePlacement> placement) {
  const bool is_shared = placement == ModulePlacement::Shared;
  options.mesh.placement = placement;
  const Options asked = options;
  for (int64_t ranks = is_shared ? 0 : 1; ranks < world_size; ++ranks) {
    std::string overrides = "mesh.placement=" + placement;
    bool is_first = true;
    for (const EncoderSpec& encoder : model.encoders) {
      const std::string& module = encoder.name;
      if (!is_shared && gives_layout(asked, module) && asked.meshes[module].encoder_dp == 0)
        continue;  // by its pp, tp or cp
      const bool is_alone = placement == ModulePlacement::Disjoint && !is_first;
      is_first = false;
      options.meshes[module].encoder_dp = is_alone ? 1 : ranks;
      overrides +=
          " mesh." + module + ".encoder_dp=" + std::to_string(options.meshes[module].encoder_dp);
    }
    Faults faults;
    shape_of(faults, options, model, world_size);
    if (faults.none()) return overrides;
    if (is_shared) break;
  }
  return "";
}

}  // namespace

MeshShape make_mesh_shape(Faults& faults, const Options& options, const ModelSpec& model,
                          int world_size) {
  Faults found;
  MeshShape shape = shape_of(found, options, model, world_size);
  faults.add(found);
  if (found.none() || options.mesh.placement == ModulePlacement::Shared || model.encoders.empty())
    return shape;
  std::vector<std::string> fitting;
  for (const ModulePlacement placement :
       {ModulePlacement::Disjoint, ModulePlacement::Colocated, ModulePlacement::Shared})
    if (std::string overrides = overrides_that_fit(options, model, world_size, placement);
        !overrides.empty())
      fitting.push_back(std::move(overrides));
  if (!fitting.empty())
    faults.add("what fits " + std::to_string(world_size) + " ranks: " + join(fitting, "; or ") +
               " (encoder_dp: ranks of an encoder that its items are dealt to)");
  return shape;
}

}  // namespace zea::detail

namespace zea {

std::vector<int64_t> fitting_world_sizes(int64_t replica_ranks, int64_t dp_replicate,
                                         int64_t dp_shard, int64_t world_size) {
  const bool is_free = dp_replicate == -1 || dp_shard == -1;
  int64_t step = replica_ranks;
  for (const int64_t degree : {dp_replicate, dp_shard})
    if (degree != -1) step *= degree;
  if (!is_free || world_size <= step) return {step};
  const int64_t below = world_size / step * step;
  if (below == world_size) return {below};
  return {below, below + step};
}

std::string nearest_world_sizes(int64_t replica_ranks, int64_t dp_replicate, int64_t dp_shard,
                                int64_t world_size) {
  const std::vector<int64_t> sizes =
      fitting_world_sizes(replica_ranks, dp_replicate, dp_shard, world_size);
  if (sizes.size() == 2)
    return "the nearest world sizes that fit are " + std::to_string(sizes[0]) + " and " +
           std::to_string(sizes[1]);
  const bool is_free = dp_replicate == -1 || dp_shard == -1;
  return std::string(is_free ? "the nearest world size that fits is "
                             : "the only world size that fits is ") +
         std::to_string(sizes[0]);
}

}  // namespace zea
