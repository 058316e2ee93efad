// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors_shards.hpp"

#include <nlohmann/json.hpp>

#include "core/text.hpp"
#include "files/durable_file.hpp"
#include "io/piece_copy.hpp"

namespace zea {
namespace {

/// In the given order, a new shard where the next tensor would make one too large.
std::vector<std::vector<TensorInfo>> split(const std::vector<TensorInfo>& tensors,
                                           int64_t max_bytes) {
  std::vector<std::vector<TensorInfo>> shards(1);
  int64_t bytes = 0;
  for (const TensorInfo& tensor : tensors) {
    const int64_t more = total_bytes({tensor});
    if (!shards.back().empty() && bytes + more > max_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(tensor);
    bytes += more;
  }
  return shards;
}

std::string shard_name(size_t number, size_t count) {
  if (count == 1) return "model.safetensors";
  return formatted("model-%05zu-of-%05zu.safetensors", number + 1, count);
}

}  // namespace

SafetensorsShards::SafetensorsShards(const std::string& directory,
                                     const std::vector<TensorInfo>& tensors, int64_t max_bytes)
    : directory_(directory), bytes_(total_bytes(tensors)) {
  const std::vector<std::vector<TensorInfo>> shards = split(tensors, max_bytes);
  for (size_t s = 0; s < shards.size(); ++s) {
    names_.push_back(shard_name(s, shards.size()));
    files_.push_back(
        std::make_unique<SafetensorsWriter>(directory + "/" + names_.back(), shards[s]));
    for (const TensorInfo& tensor : shards[s]) file_of_[tensor.name] = s;
  }
}

void SafetensorsShards::write(const std::string& name, int64_t first, int64_t count,
                              const void* data) {
  files_[file_of_.at(name)]->write(name, first, count, data);
}

void SafetensorsShards::finish() {
  for (const auto& file : files_) file->finish();
  if (files_.size() == 1) return;
  nlohmann::ordered_json index;
  index["metadata"] = {{"total_size", bytes_}};
  for (const auto& [name, file] : file_of_) index["weight_map"][name] = names_[file];
  write_text_durably(directory_ + "/model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace zea
