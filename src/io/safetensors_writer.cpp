// SPDX-License-Identifier: Apache-2.0
// Writing safetensors: the header first, from the shapes alone; then any part of any tensor.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/text.hpp"
#include "files/durable_file.hpp"
#include "io/safetensors.hpp"
#include "zea/copy.hpp"

namespace zea {
namespace {

/// Tensors then mostly start at pages, which makes writing them fast; readers skip the spaces.
constexpr size_t kHeaderAlignment = 4096;

const char* safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::Float64:
      return "F64";
    case DType::Float32:
      return "F32";
    case DType::BFloat16:
      return "BF16";
    case DType::Float16:
      return "F16";
    case DType::Int64:
      return "I64";
    case DType::Int32:
      return "I32";
    case DType::UInt8:
      return "U8";
  }
  throw InternalError("unknown dtype");
}

int64_t bytes_of(const TensorInfo& tensor) {
  return num_elements(tensor.shape) * static_cast<int64_t>(element_bytes(tensor.dtype));
}

/// Wide elements first, so that each tensor is aligned to its own element.
std::vector<TensorInfo> in_file_order(std::vector<TensorInfo> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    const size_t a_bytes = element_bytes(a.dtype), b_bytes = element_bytes(b.dtype);
    return a_bytes != b_bytes ? a_bytes > b_bytes : a.name < b.name;
  });
  return tensors;
}

/// The length and the header, padded with spaces.
std::string header_bytes(const std::vector<TensorInfo>& tensors) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  int64_t offset = 0;
  for (const TensorInfo& tensor : tensors) {
    const int64_t end = offset + bytes_of(tensor);
    header[tensor.name] = {{"dtype", safetensors_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  constexpr size_t kLengthBytes = 8;
  const size_t pages = (kLengthBytes + text.size() + kHeaderAlignment - 1) / kHeaderAlignment;
  text.resize(pages * kHeaderAlignment - kLengthBytes, ' ');
  std::string length(kLengthBytes, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  return length + text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     const std::vector<TensorInfo>& tensors)
    : file_(path) {
  const std::vector<TensorInfo> ordered = in_file_order(tensors);
  const std::string header = header_bytes(ordered);
  auto offset = static_cast<int64_t>(header.size());
  file_.write(0, header.data(), offset);
  for (const TensorInfo& tensor : ordered) {
    const int64_t bytes = bytes_of(tensor);
    const auto size = static_cast<int64_t>(element_bytes(tensor.dtype));
    ZEA_ASSERT(spans_.try_emplace(tensor.name, offset, size, bytes).second);
    offset += bytes;
  }
}

void SafetensorsWriter::write(const std::string& name, int64_t first, int64_t count,
                              const void* data) {
  Span& span = spans_.at(name);
  const int64_t bytes = count * span.element_bytes;
  const int64_t missing = span.missing_bytes -= bytes;
  ZEA_ASSERT(missing >= 0);
  file_.write(span.offset + first * span.element_bytes, data, bytes);
}

void SafetensorsWriter::finish() {
  for (const auto& [name, span] : spans_) ZEA_ASSERT(span.missing_bytes == 0);
  file_.finish();
}

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
