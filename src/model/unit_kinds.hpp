// SPDX-License-Identifier: Apache-2.0
// The unit kinds. Each takes its parameters from the list in the order that the families in
// plan/*_spec.cpp add them.
#pragma once

#include <string>
#include <vector>

#include "zea/core/error.hpp"
#include "zea/model/unit.hpp"

namespace zea::detail {

/// A unit's parameters, taken one after the other.
class ParameterList {
 public:
  explicit ParameterList(const std::vector<Parameter*>& parameters) : parameters_(parameters) {}

  Parameter& operator()() {
    ZEA_ASSERT(position_ < parameters_.size());
    return *parameters_[position_++];
  }
  Parameter* only_if(bool present) { return present ? &(*this)() : nullptr; }
  void check_all_used(const std::string& unit) const {
    if (position_ != parameters_.size())
      throw InternalError(unit + " used " + std::to_string(position_) + " of " +
                          std::to_string(parameters_.size()) + " parameters");
  }

 private:
  const std::vector<Parameter*>& parameters_;
  size_t position_ = 0;
};

at::Tensor patch_embed(const VisionConfig& vision, ParameterList& next,
                       const Microbatch& microbatch);
at::Tensor vision_block(const VisionConfig& vision, ParameterList& next, const at::Tensor& x,
                        const Microbatch& microbatch);
at::Tensor projector(const ModelSpec& model, ParameterList& next, const UnitInputs& taps);
at::Tensor token_embed(const TextConfig& text, ParameterList& next, const Microbatch& microbatch);
at::Tensor merge(const at::Tensor& text, const std::optional<at::Tensor>& features,
                 const Microbatch& microbatch);
at::Tensor decoder_block(const TextConfig& text, ParameterList& next, const at::Tensor& x,
                         const Microbatch& microbatch);
at::Tensor gpt2_block(const TextConfig& text, ParameterList& next, const at::Tensor& x,
                      const Microbatch& microbatch);
at::Tensor head(const TextConfig& text, ParameterList& next, const at::Tensor& x,
                const Microbatch& microbatch, HeadOutput output);

}  // namespace zea::detail
