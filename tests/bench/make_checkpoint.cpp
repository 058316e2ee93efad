// SPDX-License-Identifier: Apache-2.0
// make_checkpoint DIRECTORY MIB RANKS [moments]: a checkpoint of random float32 tensors, shaped as
// those of a Llama-style model and cut as ranks that shard them would, in so many MiB altogether.
// No training: for measuring tools.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "core/extent.hpp"
#include "io/checkpoint.hpp"
#include "io/shard_file.hpp"

namespace zea {
namespace {

constexpr int64_t kHidden = 2048, kIntermediate = 5504;
const char* const kConfig = R"({"model_type": "llama"})";

/// Layers until the bytes are there, and one odd tensor with the rest.
std::vector<ManifestTensor> make_tensors(int64_t elements, bool trained) {
  std::vector<ManifestTensor> tensors;
  const auto add = [&](const std::string& name, const Shape& shape) {
    if (num_elements(shape) > elements) return false;
    elements -= num_elements(shape);
    tensors.push_back({name, shape, DType::Float32, trained});
    return true;
  };
  for (int layer = 0;; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    bool whole = add(prefix + "input_layernorm.weight", {kHidden});
    for (const char* name : {"k_proj", "o_proj", "q_proj", "v_proj"})
      whole = add(prefix + "self_attn." + name + ".weight", {kHidden, kHidden}) && whole;
    for (const char* name : {"gate_proj", "up_proj"})
      whole = add(prefix + "mlp." + name + ".weight", {kIntermediate, kHidden}) && whole;
    if (!whole) break;
  }
  add("model.norm.weight", {elements});
  return tensors;
}

/// Numbers in [-1, 1), another sequence for each seed (xorshift64*, Vigna 2016).
void fill_random(std::vector<float>& values, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (float& value : values) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    const auto bits = static_cast<int32_t>((state * 0x2545f4914f6cdd1du) >> 32);
    value = static_cast<float>(bits >> 8) * 0x1p-23f;
  }
}

void write_shard(const std::string& directory, int64_t rank, int64_t ranks, Manifest& manifest) {
  ShardWriter writer(directory, shard_file_name(rank), manifest.run_id, manifest.position.step);
  std::vector<float> values(kHashBlockBytes / sizeof(float));
  for (const ManifestTensor& tensor : manifest.tensors)
    for (const char* state : {kStateParameter, "exp_avg", "exp_avg_sq"}) {
      if (!tensor.trained && state != std::string(kStateParameter)) continue;
      const int64_t elements = num_elements(tensor.shape);
      for (const Extent& box :
           boxes_of_range(tensor.shape, elements * rank / ranks, elements * (rank + 1) / ranks)) {
        Piece piece = writer.begin(tensor.name, state, tensor.shape, box, tensor.dtype);
        const auto most = static_cast<int64_t>(values.size());
        for (int64_t first = 0; first < box.elements(); first += most) {
          const int64_t count = std::min(most, box.elements() - first);
          fill_random(values, manifest.pieces.size() * 7919 + static_cast<uint64_t>(first));
          hash_part(piece, first, count, values.data());
          writer.write(piece, first, count, values.data());
        }
        manifest.pieces.push_back(std::move(piece));
      }
    }
  writer.finish();
  manifest.files.push_back(writer.file());
}

void make_checkpoint(const std::string& directory, int64_t mib, int64_t ranks, bool moments) {
  Manifest manifest;
  manifest.run_id = "benchmark";
  manifest.position = {.step = 100, .optimizer_step = 100};
  manifest.config = kConfig;
  manifest.mesh = "random tensors";
  manifest.world_size = ranks;
  manifest.tensors = make_tensors((mib << 18) / (moments ? 3 : 1), moments);
  std::filesystem::create_directories(directory);
  for (int64_t rank = 0; rank < ranks; ++rank) write_shard(directory, rank, ranks, manifest);
  complete_checkpoint(directory, std::move(manifest));
}

}  // namespace
}  // namespace zea

int main(int argc, char** argv) {
  if (argc < 4 || argc > 5 || (argc == 5 && std::strcmp(argv[4], "moments") != 0)) {
    std::fprintf(stderr, "usage: make_checkpoint DIRECTORY MIB RANKS [moments]\n");
    return 2;
  }
  try {
    zea::make_checkpoint(argv[1], std::atoll(argv[2]), std::atoll(argv[3]), argc == 5);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_checkpoint: %s\n", error.what());
    return 1;
  }
  return 0;
}
