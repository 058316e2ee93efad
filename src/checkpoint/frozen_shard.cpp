// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/frozen_shard.hpp"

#include <algorithm>

#include "checkpoint/held_boxes.hpp"
#include "io/shard_file.hpp"

namespace zea::detail {

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
  // A manifest takes files of its own version alone.
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
