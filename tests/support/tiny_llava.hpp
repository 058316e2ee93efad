// SPDX-License-Identifier: Apache-2.0
// The tiny multimodal model of the engine's tests, and weights for it that are a pure function of
// seed, name and element.
#pragma once

#include <string>
#include <vector>

#include "zea/io/weights_source.hpp"
#include "zea/plan/model_spec.hpp"

namespace zea::testing {

struct TinyLlava {
  bool tied = false;
  int64_t kv_heads = 2;
  int64_t layers = 2;
  int64_t vision_layers = 3;
  std::string feature_layer = "-2";
  std::string select = "default";
};

/// config.json of a LlavaForConditionalGeneration: 8x8 images of 4 patches, vocabulary 40,
/// placeholder id 3.
std::string tiny_llava_config(const TinyLlava& options = {});

/// Small values around the initial ones: 1 for norms, 0 for the rest.
class FilledSource : public WeightsSource {
 public:
  FilledSource(const ModelSpec& model, std::string config_json, uint64_t seed);

  std::string describe() const override { return "filled weights"; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string config_json() const override { return config_json_; }
  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override;

 private:
  const ModelSpec& model_;
  std::string config_json_;
  uint64_t seed_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace zea::testing
