// SPDX-License-Identifier: Apache-2.0
// A source of weights seen as the parameters of one model, whatever it is: names in the model's
// spelling, what no model learns left out, and initial values where the user wants them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "spec/adapters.hpp"
#include "zea/weights.hpp"

namespace zea {

/// How the tensors of a source fit a model.
struct TensorMatch {
  std::map<std::string, TensorInfo> found;  ///< by parameter; the tensor has the source's own name
  std::vector<std::string> missing, unexpected;  ///< names with shapes, for people
  std::vector<std::string> wrong;                ///< tensors with what is wrong about them

  /// A line for each fault; empty when all fits.
  std::string faults() const;
};

/// Returns the config of `model` with what the files of `source` show (kWeightsFiles).
std::string with_weights_files(const std::string& config_json, const ModelSpec& model,
                               const WeightsSource& source);

/// The part of a model, as users call it, that a parameter belongs to: a module, or "projector".
std::string load_module(const ModelSpec& model, int param);

/// Whether a tensor is a key or value projection of a block that reads another block's keys, which
/// some files have and no model uses.
bool is_of_shared_keys(const ModelSpec& model, const std::string& name);

/// Only parameters of `parts` count, or all. The head's matrix of a model with tied embeddings, and
/// buffers that are computed, may be there; they are passed over. Throws WeightsError when two
/// tensors are the same parameter.
TensorMatch match_tensors(const ModelSpec& model, const WeightsSource& source,
                          const std::optional<std::vector<std::string>>& parts = {});

/// Throws one WeightsError with every fault of the match of `source`, unless there is none.
void check_match(const TensorMatch& match, const ModelSpec& model, const WeightsSource& source);

/// Throws WeightsError if a head of multi-token prediction trains and `source` lacks it.
void check_head_that_trains(const ModelSpec& model, const WeightsSource& source);

/// The name of the parameter that a tied head is.
const std::string& embedding_of(const ModelSpec& model);

/// A head that `source` has besides the embedding that its config.json ties it to is a copy of
/// that, or one that was trained: transformers 5 keeps the latter, so that it must not be dropped.
/// Throws WeightsError where it is another, as its first rows tell.
void check_tied_head(const WeightsSource& source, const TensorInfo& embedding);

/// Adapters of a module that a model gets besides the weights that it has: drawn, or another's.
struct NewAdapters {
  std::string module;
  LoraOptions lora;  ///< with the targets, rank and scale of `source` where there is one
  std::shared_ptr<const WeightsSource> source = {};  ///< under the model's names; null: drawn
};

struct LoadOptions {
  std::optional<std::vector<std::string>> modules = {};  ///< to load, or all; others are drawn
  bool strict = true;                                    ///< false: what does not fit is drawn, too
  uint64_t seed = 0;                                     ///< of what is drawn
  std::string config_path = {};  ///< the file of a config that is not the source's, for messages
  /// Asked for of the model without any.
  std::function<std::vector<NewAdapters>(const ModelSpec&)> adapters = {};
};

class ModelSource : public WeightsSource {
 public:
  /// `source` may be null: then everything is drawn. An empty `config_json` means the source's own.
  /// Throws WeightsError when there is no config, when something does not fit and `strict` is set,
  /// when nothing fits at all, and for a tied head that differs from the embedding.
  ModelSource(std::unique_ptr<WeightsSource> source, const std::string& config_json,
              const LoadOptions& options = {});

  const ModelSpec& model() const { return model_; }
  /// Names the parameters that were not loaded, and why, for the log; empty when all were.
  std::string note() const override;
  bool has_weights() const override { return !source_ || source_->has_weights(); }

  std::string describe() const override;
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string config_json() const override { return config_; }
  std::string config_file(const std::string& key) const override;
  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override;
  std::vector<std::string> companions() const override;
  std::string companion(const std::string& name) const override;

 private:
  void load_matching(const LoadOptions& options);
  void add_adapters(const std::vector<NewAdapters>& all);
  void check_adapter(const ParamSpec& param, const std::vector<NewAdapters>& all) const;
  void init_missing(uint64_t seed);

  std::unique_ptr<WeightsSource> source_;
  std::string config_, config_path_, note_;
  ModelSpec model_;
  std::map<std::string, TensorInfo> loaded_;  ///< by parameter
  /// Parameters of adapters that are not drawn.
  std::map<std::string, std::shared_ptr<const WeightsSource>> adapters_;
  std::unique_ptr<WeightsSource> drawn_;  ///< null when all is loaded
  std::vector<TensorInfo> tensors_;
};

// Initial weights as a source: every element is a pure function of (seed, parameter name, index),
// so any rank can draw just its extents, at any layout, and all get the same model.

/// The parameters of a config.json, drawn as its model's specification says. Throws WeightsError
/// when the config is of no known family.
std::unique_ptr<WeightsSource> make_initial_weights(const std::string& config_json, uint64_t seed);

// A model with adapters (spec/adapters.hpp) as one without: W + scale B A in place of W.

/// `source` itself where its model has no adapters.
std::unique_ptr<WeightsSource> merge_adapters(std::unique_ptr<WeightsSource> source);

}  // namespace zea
