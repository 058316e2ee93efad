// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/save_manifest.hpp"

#include <map>
#include <numeric>
#include <set>

namespace zea::detail {
namespace {

std::string describe_module(const Plan& plan, const ModuleGrid& grid) {
  std::string text = grid.module + " " + plan.options.meshes[grid.module].strategy;
  if (grid.pp > 1) text += " pp " + std::to_string(grid.pp);
  if (grid.tp > 1) text += " tp " + std::to_string(grid.tp);
  if (grid.cp > 1) text += " cp " + std::to_string(grid.cp);
  return text;
}

std::string describe_mesh(const Plan& plan) {
  std::string text = "dp_replicate " + std::to_string(plan.mesh.dp_replicate) + " x dp_shard " +
                     std::to_string(plan.mesh.dp_shard);
  for (const ModuleGrid& grid : plan.mesh.modules) text += ", " + describe_module(plan, grid);
  return text;
}

/// A rank's pieces travel as a manifest of their own, so the root reads them with the checks of a
/// manifest.
std::string text_of_part(const ModelSpec& model, Manifest part) {
  std::map<std::string, Shape> shapes;
  for (const ParamSpec& param : model.params) shapes[param.name] = param.tensor_shape();
  std::set<std::string> named;
  for (const Piece& piece : part.pieces)
    if (named.insert(piece.tensor).second)
      part.tensors.push_back({piece.tensor, shapes.at(piece.tensor), piece.dtype, false});
  return manifest_text(part);
}

}  // namespace

std::vector<std::string> gather_parts(Collectives& control, const ModelSpec& model,
                                      const Manifest& part) {
  const std::string own = text_of_part(model, part);
  const auto own_bytes = static_cast<int64_t>(own.size());
  Counts counts(control.size());
  control.all_gather(&own_bytes, counts.data(), Counts(control.size(), 1), DType::Int64).wait();
  const bool root = control.rank() == 0;
  std::string all(root ? std::accumulate(counts.begin(), counts.end(), int64_t{0}) : 0, '\0');
  control.gather(own.data(), all.data(), counts, DType::UInt8, 0).wait();
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t rank = 0; root && rank < counts.size(); ++rank) {
    parts.push_back(all.substr(begin, counts[rank]));
    begin += counts[rank];
  }
  return parts;
}

Manifest join_parts(const Plan& plan, const std::vector<std::string>& parts) {
  Manifest manifest;
  manifest.config = plan.config_json;
  manifest.mesh = describe_mesh(plan);
  manifest.world_size = static_cast<int>(parts.size());
  std::vector<bool> trained(plan.model.params.size(), false);
  for (const FlatBuffer& buffer : plan.buffers)
    for (const FlatParam& member : buffer.params) trained[member.param] = buffer.trainable;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const Manifest part = parse_manifest(parts[rank], "pieces of rank " + std::to_string(rank));
    manifest.files.insert(manifest.files.end(), part.files.begin(), part.files.end());
    manifest.pieces.insert(manifest.pieces.end(), part.pieces.begin(), part.pieces.end());
  }
  std::map<std::string, DType> types;
  for (const Piece& piece : manifest.pieces)
    if (piece.state == kStateParameter) types[piece.tensor] = piece.dtype;
  for (size_t p = 0; p < plan.model.params.size(); ++p) {
    const ParamSpec& param = plan.model.params[p];
    if (param.begins_tensor())
      manifest.tensors.push_back({param.name, param.tensor_shape(), types[param.name], trained[p]});
  }
  return manifest;
}

}  // namespace zea::detail
