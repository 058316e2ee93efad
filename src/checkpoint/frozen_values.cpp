// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/frozen_values.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "checkpoint/held_boxes.hpp"
#include "core/dtype.hpp"
#include "core/error.hpp"
#include "io/shard_file.hpp"
#include "zea/copy.hpp"

namespace zea::detail {
namespace {

/// Reads values of a piece once more, in its type in files.
std::vector<char> read_again(const WeightsSource& source, const OwnPiece& piece, int64_t first,
                             int64_t count) {
  const Piece asked{piece.param->name, kStateParameter, piece.extent, piece.dtype, "", "", {}};
  std::vector<char> values(static_cast<size_t>(count) * element_bytes(piece.dtype));
  read_part(source, nullptr, asked, first, count, values.data());
  return values;
}

}  // namespace

bool keeps_values(DType from, DType to) {
  return from == to || element_bytes(from) < element_bytes(to);
}

FrozenOrigin::FrozenOrigin(const Plan& plan, const WeightsSource& source)
    : source_(source), master_(plan.precision.master) {}

DType FrozenOrigin::type_of(const std::string& param, DType held) const {
  const std::vector<TensorInfo>& tensors = source_.tensors();
  const auto given = std::ranges::lower_bound(tensors, param, {}, &TensorInfo::name);
  if (given == tensors.end() || given->name != param) return held;
  return element_bytes(given->dtype) > element_bytes(master_) ? master_ : given->dtype;
}

/// Others may have written to the source since: the values must still round to those held.
bool FrozenOrigin::restore(const OwnPiece& piece, int64_t first, int64_t count, const char* held,
                           char* target) const {
  const DType held_type = dtype_of(piece.values);
  convert_elements(held_type, held, piece.dtype, target, count);
  if (keeps_values(piece.dtype, held_type)) return true;
  try {
    const std::vector<char> given = read_again(source_, piece, first, count);
    std::vector<char> again(static_cast<size_t>(count) * element_bytes(held_type));
    convert_elements(piece.dtype, given.data(), held_type, again.data(), count);
    if (std::memcmp(again.data(), held, again.size()) != 0) return false;
    std::memcpy(target, given.data(), given.size());
    return true;
  } catch (const WeightsError&) {
    return false;
  }
}

int64_t FrozenShard::bytes() const {
  int64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += ShardWriter::piece_bytes(piece.extent, piece.dtype);
  return bytes;
}

std::optional<FrozenShard> find_frozen_shard(Engine& engine, const FrozenOrigin& origin,
                                             const CheckpointSource& read) {
  const std::string file = frozen_file_name(engine.world_rank());
  const std::string path = read.describe() + "/" + file;
  const std::optional<FileIdentity> identity = identity_of(path);
  // A manifest takes only files of its own version.
  if (!identity || read.manifest().version != kManifestVersion) return std::nullopt;
  FrozenShard shard{path, read.run_id(), *identity, {}, {}};
  for (const ManifestFile& entry : read.manifest().files)
    if (entry.name == file) shard.file = entry;
  for (const Piece& piece : read.manifest().pieces)
    if (piece.file == file) shard.pieces.push_back(piece);

  std::vector<OwnPiece> own = own_pieces(engine, &origin);
  std::erase_if(own, [](const OwnPiece& piece) { return piece.changes; });
  const bool same = std::equal(own.begin(), own.end(), shard.pieces.begin(), shard.pieces.end(),
                               [](const OwnPiece& mine, const Piece& theirs) {
                                 return mine.param->name == theirs.tensor &&
                                        mine.state == theirs.state &&
                                        mine.extent == theirs.extent && mine.dtype == theirs.dtype;
                               });
  return same ? std::optional(std::move(shard)) : std::nullopt;
}

}  // namespace zea::detail
