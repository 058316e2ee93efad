// SPDX-License-Identifier: Apache-2.0
// The tensors of a model in any source: a weights file (HDF5), a safetensors file, a Hugging Face
// directory, a checkpoint of any layout, or a run directory.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "zea/error.hpp"
#include "zea/tensor.hpp"

namespace zea {

/// A source of tensors, read box by box. Several threads may read from one source.
class WeightsSource {
 public:
  virtual ~WeightsSource() = default;
  /// Returns the file or directory, for messages.
  virtual std::string describe() const = 0;
  /// Returns all tensors, in name order.
  virtual const std::vector<TensorInfo>& tensors() const = 0;
  /// Returns the text of the model's config.json; empty if the source has none.
  virtual std::string config_json() const = 0;
  /// Returns the file that a key of the config came from, for messages.
  virtual std::string config_file(const std::string& key) const;
  /// Returns false for a config without weights, which is enough to plan a run.
  virtual bool has_weights() const { return true; }
  /// Returns a note for users who load the weights; empty: none.
  virtual std::string note() const { return ""; }
  /// Reads box `extent` of tensor `name` into packed `target` as elements of `dtype`; floating
  /// types are converted. Throws WeightsError if the tensor is missing, its shape is not `shape`,
  /// or a value is not finite.
  virtual void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
                    void* target) const = 0;
  /// Returns the names of the text files that belong to the model (tokenizer.json,
  /// preprocessor_config.json, ...).
  virtual std::vector<std::string> companions() const { return {}; }
  /// Returns the text of the companion `name`. Throws WeightsError if there is none of that name.
  virtual std::string companion(const std::string& name) const;
};

/// A source that answers as another one; classes derived from it change a part of the answers.
class SourceOver : public WeightsSource {
 public:
  /// `below` must exist as long as this.
  explicit SourceOver(const WeightsSource& below) : below_(below) {}

  std::string describe() const override { return below_.describe(); }
  const std::vector<TensorInfo>& tensors() const override { return below_.tensors(); }
  std::string config_json() const override { return below_.config_json(); }
  std::string config_file(const std::string& key) const override { return below_.config_file(key); }
  bool has_weights() const override { return below_.has_weights(); }
  std::string note() const override { return below_.note(); }
  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override {
    below_.read(name, shape, extent, dtype, target);
  }
  std::vector<std::string> companions() const override { return below_.companions(); }
  std::string companion(const std::string& name) const override { return below_.companion(name); }

 protected:
  const WeightsSource& below() const { return below_; }

 private:
  const WeightsSource& below_;
};

/// Opens the tensors at `path`; for a run directory, those of its newest complete checkpoint.
/// Throws WeightsError with what was found at `path` and what is allowed.
std::unique_ptr<WeightsSource> open_weights(const std::string& path);

/// Returns the tensor called `name`. Throws WeightsError with the nearest names.
const TensorInfo& find_tensor(const WeightsSource& source, const std::string& name);

/// Returns a box of a floating tensor as packed float or double.
template <class T>
std::vector<T> read_tensor(const WeightsSource& source, const std::string& name,
                           const Extent& extent) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>);
  constexpr DType dtype = std::is_same_v<T, float> ? DType::Float32 : DType::Float64;
  std::vector<T> values(static_cast<size_t>(extent.elements()));
  source.read(name, find_tensor(source, name).shape, extent, dtype, values.data());
  return values;
}

/// Returns all of a floating tensor as packed float or double.
template <class T>
std::vector<T> read_tensor(const WeightsSource& source, const std::string& name) {
  return read_tensor<T>(source, name, whole(find_tensor(source, name).shape));
}

}  // namespace zea
