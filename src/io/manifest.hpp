// SPDX-License-Identifier: Apache-2.0
// The manifest of a checkpoint: what makes a directory of shard files one checkpoint. It names
// every piece (file, dataset, box of the global tensor, element type, hashes per block), every file
// with a hash of the rest of it, the run's state, and its own digest last. A directory
// `step-00000200` with a manifest inside is complete; anything else is not a checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/extent.hpp"

namespace zea {

/// What a piece holds of its parameter: the master value, or one of its optimizer's states.
inline constexpr const char* kStateParameter = "parameter";

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kViewFile = "model.h5";
inline constexpr const char* kManifestFormat = "zea.checkpoint";
inline constexpr const char* kManifestVersion = "2";
/// Read, no longer written: its files have no rest_hash.
inline constexpr const char* kFirstManifestVersion = "1";

inline constexpr int64_t kHashBlockBytes = 4 << 20;

/// One box of one tensor's state, stored packed and contiguous in one dataset of one shard file.
struct Piece {
  std::string tensor;
  std::string state;
  Extent extent;
  DType dtype = DType::Float32;
  std::string file;     ///< plain name beside the manifest, never a path
  std::string dataset;  ///< name inside the file
  std::vector<std::string>
      block_hashes;  ///< XXH3-128 (hex) of each kHashBlockBytes of the packed data
  /// Elements along the tensor's last dim that have one of these: `extent` is of in_blocks().
  int64_t elements_of_each = 1;
};

struct ManifestFile {
  std::string name;  ///< plain, beside the manifest
  /// Of all its bytes that are no piece's data (check_shard_rest()); empty in a manifest that lies
  /// in the file itself, or is of kFirstManifestVersion.
  std::string rest_hash;

  bool operator==(const ManifestFile&) const = default;
};

struct ManifestTensor {
  std::string name;
  Shape shape;
  DType dtype = DType::Float32;  ///< of the parameter's pieces
  bool trained = false;          ///< has optimizer state
};

/// What the next step is judged by (train/step_guard.hpp).
struct StepHistory {
  std::vector<double> losses, grad_norms;  ///< of the last accepted steps, oldest first
  int64_t skipped_in_a_row = 0;            ///< by the guard, up to now

  bool operator==(const StepHistory&) const = default;
};

/// All that resume needs beyond tensors.
struct TrainPosition {
  int64_t step = 0;            ///< optimizer steps done
  int64_t optimizer_step = 0;  ///< the optimizer's own count: steps that were not skipped
  int64_t samples = 0;         ///< samples consumed (the position of the data)
  int64_t tokens = 0;          ///< tokens that went through the language model
  int64_t target_tokens = 0;
  StepHistory history = {};  ///< empty in files of runs without a guard
  int64_t data_samples = 0;  ///< of the data set; 0 in files that do not say it
  /// One for each set of data.train, in their order (Dataset::set_hashes()); empty in files that do
  /// not say it.
  std::vector<std::string> data_hashes = {};

  bool operator==(const TrainPosition&) const = default;
};

struct Manifest {
  std::string version = kManifestVersion;  ///< of the text that was read
  std::string run_id;  ///< made when a run starts; every shard carries it and the step
  TrainPosition position;
  std::string deck;    ///< resolved TOML
  std::string config;  ///< the model's config.json
  std::string mesh;    ///< one line for people
  int64_t world_size = 0;
  std::vector<ManifestTensor> tensors;
  std::vector<Piece> pieces;
  std::vector<ManifestFile> files;
  std::string view_hash;  ///< of all of kViewFile; empty where none was made
};

/// JSON text of kManifestVersion, its last member "digest" being the XXH3-128 of all before it.
std::string manifest_text(const Manifest& manifest);

/// Reads and checks text: digest, version, types, ranges, plain file names. `where` is for
/// messages. WeightsError.
Manifest parse_manifest(const std::string& text, const std::string& where);

/// Reads `directory`/manifest.json; refuses symbolic links. Throws WeightsError.
Manifest read_manifest(const std::string& directory);

/// Throws WeightsError naming the tensor unless the parameter pieces of every tensor cover it
/// exactly once, and so does each state of every trained one that its optimizer keeps.
void check_coverage(const Manifest& manifest);

/// Elements of `dtype` in one hashed block.
int64_t block_elements(DType dtype);

/// XXH3-128 of `bytes`, as 32 hexadecimal digits.
std::string hash_bytes(const void* data, int64_t bytes);

/// XXH3-128 of each block of `bytes`.
std::vector<std::string> hash_blocks(const void* data, int64_t bytes);

/// Hashed blocks of a piece.
int64_t num_blocks(const Piece& piece);

/// Makes room for the hashes of a piece that is to be written in parts.
void size_hashes(Piece& piece);

/// Fills in the hashes of the blocks of elements [first, first + count); `first` starts a block.
void hash_part(Piece& piece, int64_t first, int64_t count, const void* data);

}  // namespace zea
