// SPDX-License-Identifier: Apache-2.0
// The safetensors format: an 8-byte length, a JSON header, then the tensors' bytes without holes.
// Headers come from strangers, so every rule of the format is checked by us before a byte of data
// is read: sizes, signs, ranges, duplicate names, overlaps, holes, and that files named by an index
// are plain names next to it.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "files/durable_file.hpp"
#include "zea/weights.hpp"

namespace zea {

/// A tensor of a safetensors file and where its bytes start, counted from the end of the header.
struct SafetensorsEntry {
  TensorInfo tensor;
  int64_t begin = 0;
  /// False: a buffer that models compute, of a type that zea lacks; `tensor` has one of its width.
  bool is_readable = true;
  bool is_float8 = false;  ///< E4M3 codes of a quantized tensor; `tensor` has type UInt8
};

/// Checks header text against the `data_bytes` that follow it in `where`; entries in name order.
/// Throws WeightsError.
std::vector<SafetensorsEntry> parse_safetensors_header(const std::string& header,
                                                       int64_t data_bytes,
                                                       const std::string& where);

/// Opens one *.safetensors file, or a Hugging Face directory with model.safetensors or
/// model.safetensors.index.json (and its config.json). Throws WeightsError naming the file at
/// fault.
std::unique_ptr<WeightsSource> open_safetensors(const std::string& path);

/// Streams one safetensors file: the header first, then each tensor in any order. Named `path`.tmp
/// until finish().
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, const std::vector<TensorInfo>& tensors);
  /// Writes row-major elements [first, first + count) of a tensor; several threads may.
  void write(const std::string& name, int64_t first, int64_t count, const void* data);
  /// Throws InternalError unless every tensor was written in full.
  void finish();

 private:
  struct Span {
    Span(int64_t offset, int64_t element_bytes, int64_t bytes)
        : offset(offset), element_bytes(element_bytes), missing_bytes(bytes) {}
    int64_t offset, element_bytes;
    std::atomic<int64_t> missing_bytes;
  };
  DurableFile file_;
  std::map<std::string, Span> spans_;
};

// A model as transformers saves it: one model.safetensors, or model-00001-of-00003.safetensors ...
// with an index that says which tensor lies where.

class SafetensorsShards {
 public:
  /// Begins the files in `directory`. None has more than `max_bytes` of tensors, but for one that
  /// holds a single larger tensor.
  SafetensorsShards(const std::string& directory, const std::vector<TensorInfo>& tensors,
                    int64_t max_bytes);
  /// Writes row-major elements [first, first + count) of a tensor; several threads may.
  void write(const std::string& name, int64_t first, int64_t count, const void* data);
  /// Finishes the files, then the index. Throws InternalError unless every tensor was written in
  /// full.
  void finish();

 private:
  std::string directory_;
  int64_t bytes_ = 0;
  std::vector<std::unique_ptr<SafetensorsWriter>> files_;
  std::vector<std::string> names_;         ///< of the files
  std::map<std::string, size_t> file_of_;  ///< of each tensor
};

}  // namespace zea
