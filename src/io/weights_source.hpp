// SPDX-License-Identifier: Apache-2.0
// Where parameter values come from: a weights file, a checkpoint, or a test. A rank asks only for
// its extents.
#pragma once

#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/extent.hpp"

namespace zea {

/// A named global tensor of a source.
struct TensorInfo {
  std::string name;
  Shape shape;
  DType dtype;
};

class WeightsSource {
 public:
  virtual ~WeightsSource() = default;
  /// For messages: the file or directory.
  virtual std::string describe() const = 0;
  /// All tensors, in name order.
  virtual const std::vector<TensorInfo>& tensors() const = 0;
  /// The model's config (Hugging Face config.json text); empty when the source has none.
  virtual std::string config_json() const = 0;
  /// The file that a key of it came from, for messages; `key` as ConfigError has it.
  virtual std::string config_file(const std::string& key) const;
  /// False: a config without weights, of which a run can be planned.
  virtual bool has_weights() const { return true; }
  /// A note for whoever loads from it; empty: none.
  virtual std::string note() const { return ""; }
  /// Reads box `extent` of `name` into packed `target` as `dtype` (converted when the source's
  /// differs). Throws WeightsError when the tensor is missing, its shape differs from `shape`, or a
  /// value is not finite.
  virtual void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
                    void* target) const = 0;
  /// Names of the text files that belong to the model (tokenizer.json, preprocessor_config.json,
  /// ...).
  virtual std::vector<std::string> companions() const { return {}; }
  /// The text of one of them. Throws WeightsError when there is none of that name.
  virtual std::string companion(const std::string& name) const;
};

}  // namespace zea
