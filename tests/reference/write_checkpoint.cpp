// SPDX-License-Identifier: Apache-2.0
// write_checkpoint WEIGHTS DIRECTORY SHARDS: cuts a weights file into a checkpoint, for tests of
// those who read one.
#include <cstdio>
#include <filesystem>
#include <vector>

#include "core/error.hpp"
#include "core/extent.hpp"
#include "io/checkpoint.hpp"
#include "io/shard_file.hpp"
#include "io/weights_file.hpp"

namespace zea {
namespace {

/// Each tensor lies in uneven flat ranges over the shards, starting at another shard each time.
void write_tensor(const WeightsSource& source, const TensorInfo& tensor,
                  std::vector<ShardWriter>& writers, size_t first_shard) {
  const int64_t elements = num_elements(tensor.shape);
  const auto shards = static_cast<int64_t>(writers.size());
  std::vector<char> values;
  for (int64_t k = 0; k < shards; ++k) {
    const int64_t begin = elements * k * k / (shards * shards);
    const int64_t end = elements * (k + 1) * (k + 1) / (shards * shards);
    for (const Extent& box : boxes_of_range(tensor.shape, begin, end)) {
      values.resize(static_cast<size_t>(ShardWriter::piece_bytes(box, tensor.dtype)));
      source.read(tensor.name, tensor.shape, box, tensor.dtype, values.data());
      writers[(first_shard + static_cast<size_t>(k)) % writers.size()].add(
          tensor.name, kStateParameter, tensor.shape, box, tensor.dtype, values.data());
    }
  }
}

void write_checkpoint(const std::string& weights, const std::string& directory, size_t shards) {
  const auto source = open_weights_file(weights);
  std::filesystem::create_directories(directory);
  Manifest manifest;
  manifest.run_id = "test";
  manifest.position.step = 7;
  manifest.config = source->config_json();
  manifest.world_size = static_cast<int64_t>(shards);
  std::vector<ShardWriter> writers;
  for (size_t k = 0; k < shards; ++k)
    writers.emplace_back(directory, shard_file_name(static_cast<int64_t>(k)), manifest.run_id, 7);
  size_t first_shard = 0;
  for (const TensorInfo& tensor : source->tensors()) {
    manifest.tensors.push_back({tensor.name, tensor.shape, tensor.dtype, false});
    write_tensor(*source, tensor, writers, first_shard++);
  }
  for (ShardWriter& writer : writers) {
    for (Piece& piece : writer.finish()) manifest.pieces.push_back(std::move(piece));
    manifest.files.push_back(writer.file());
  }
  complete_checkpoint(directory, std::move(manifest));
}

}  // namespace
}  // namespace zea

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    zea::write_checkpoint(argv[1], argv[2], std::stoul(argv[3]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "write_checkpoint: %s\n", error.what());
    return 1;
  }
  return 0;
}
