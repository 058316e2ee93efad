// SPDX-License-Identifier: Apache-2.0
#include "mesh_shape.hpp"

#include <algorithm>

#include "module_grid.hpp"
#include "module_sharding.hpp"

namespace zea::detail {
namespace {

void add_product_fault(Faults& faults, const MeshOptions& mesh, int replica_ranks, int world_size) {
  const std::string replicate = std::to_string(mesh.dp_replicate),
                    shard = std::to_string(mesh.dp_shard);
  faults.add("the mesh does not fit: dp_replicate (" + replicate + ") x dp_shard (" + shard +
             ") x ranks of a replica (" + std::to_string(replica_ranks) +
             ") must be the world size " + std::to_string(world_size) +
             "; set one of mesh.dp_replicate, mesh.dp_shard to -1 to let it take the rest, or "
             "start another number of ranks");
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

std::vector<std::string> modules_of(const ModelSpec& model) {
  if (model.vision) return {"vision", "llm"};
  return {"llm"};
}

}  // namespace

MeshShape make_mesh_shape(Faults& faults, const Options& options, const ModelSpec& model,
                          int world_size) {
  if (options.mesh.placement != "shared")
    faults.add("mesh.placement = \"" + options.mesh.placement +
               "\": modules on ranks of their own are not built yet; allowed: shared");
  for (const std::string& module : modules_of(model))
    check_degrees(module, mesh_of(options, module), model, faults);
  MeshShape shape;
  const auto replica_ranks = static_cast<int>(degrees_product(options.mesh_llm));
  resolve_replicas(faults, options.mesh, replica_ranks, world_size, shape);
  for (const std::string& module : modules_of(model)) {
    const ModuleMeshOptions& of_module = mesh_of(options, module);
    ModuleGrid grid = make_module_grid(module, of_module, model, replica_ranks, faults);
    check_sharding(of_module, shape, grid, options.run.device, faults);
    grid.shard_subgroup = make_sharding(of_module, shape, grid).subgroup;
    shape.modules.push_back(grid);
  }
  return shape;
}

}  // namespace zea::detail
