// SPDX-License-Identifier: Apache-2.0
// One rank's file of a checkpoint: packed pieces as contiguous datasets, with global shape, extent
// and element type as attributes. bf16 is an HDF5 float of 8 exponent and 7 mantissa bits, which
// h5py reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/extent.hpp"
#include "h5/h5.hpp"
#include "io/manifest.hpp"

namespace zea {

/// The step of a shard of frozen values: checkpoints of later steps share it by hard links.
inline constexpr int64_t kEveryStep = -1;

/// "rank-00003.h5".
std::string shard_file_name(int64_t rank);

/// "frozen-00003.h5": what of a rank's values no step changes. Its step is kEveryStep.
std::string frozen_file_name(int64_t rank);

/// Whether it looks like a name of either kind.
bool is_shard_name(const std::string& name);

class ShardWriter {
 public:
  /// Creates `directory`/`file`. Throws StorageError.
  ShardWriter(const std::string& directory, const std::string& file, const std::string& run_id,
              int64_t step);
  /// Writes one piece and hashes it while it is in memory.
  void add(const std::string& tensor, const std::string& state, const Shape& shape,
           const Extent& extent, DType dtype, const void* data);
  /// Begins a piece that write() fills in parts, maybe by several threads. Its hashes are the
  /// caller's (hash_part), and so is the piece: finish() does not return it.
  /// `shape` and `extent` are in_blocks(elements_of_each).
  Piece begin(const std::string& tensor, const std::string& state, const Shape& shape,
              const Extent& extent, DType dtype, int64_t elements_of_each = 1);
  void write(const Piece& piece, int64_t first, int64_t count, const void* data);
  /// Syncs and closes; returns the pieces that add() wrote, for the manifest.
  std::vector<Piece> finish();
  /// Returns the manifest's entry for the file, once it is finished.
  const ManifestFile& file() const;
  /// Room that a piece takes, for a check of the free space before the first byte is written.
  static int64_t piece_bytes(const Extent& extent, DType dtype);

 private:
  H5File file_;
  ManifestFile entry_;
  std::vector<std::string> datasets_;  ///< begun
  std::vector<Piece> pieces_;
};

/// Opens a shard for reading and checks that it is the file `file` of the manifest's version, run
/// and step, frozen values of every step. Throws WeightsError naming it.
H5File open_shard(const std::string& directory, const std::string& file, const Manifest& manifest);

/// Throws WeightsError unless what the shard holds besides `pieces`, which are all of it, is what
/// it was when it was written.
void check_shard_rest(const H5File& shard, const std::vector<const Piece*>& pieces,
                      const ManifestFile& file);

/// Throws WeightsError unless the dataset of `piece` in its shard has the piece's shape and element
/// type.
void check_shard_piece(const H5File& shard, const Piece& piece);

// Bytes of a shard that belong to no tensor: HDF5's structures, and gaps. Blocks of tensors have
// hashes of their own; with a hash of the rest every byte of the file is covered.

/// Bytes [begin, end) of a file.
struct FileRange {
  int64_t begin = 0;
  int64_t end = 0;
};

/// XXH3-128 of all bytes of `path` outside of `data`, in their order, chained from part to part.
/// Throws the error that `code` selects where the file cannot be read, and where the ranges overlap
/// or leave it.
std::string hash_rest(const std::string& path, std::vector<FileRange> data, ExitCode code);

}  // namespace zea
