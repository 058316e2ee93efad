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

/// What every unit kind reads beside its inputs.
struct UnitContext {
  const ModelSpec& model;
  const Microbatch& microbatch;
  const Layers& layers;
  const EncoderPart* part;  ///< of the microbatch, in an encoder
};

at::Tensor patch_embed(const UnitContext& unit, ParameterList& next);
at::Tensor vision_block(const UnitContext& unit, ParameterList& next, const at::Tensor& x);
at::Tensor projector(const UnitContext& unit, ParameterList& next, const UnitInputs& taps);
at::Tensor audio_embed(const UnitContext& unit, ParameterList& next);
at::Tensor audio_block(const UnitContext& unit, ParameterList& next, const at::Tensor& x);
at::Tensor audio_projector(const UnitContext& unit, ParameterList& next, const at::Tensor& x);
/// What an encoder's blocks have of their own.
struct EncoderBlock {
  const EncoderPart& part;
  int64_t head_dim;
  double norm_eps;
  Activation activation;
};
/// The rest of an encoder's block, once queries, keys and values are made of its normed input:
/// attention, and the feed-forward part.
at::Tensor attend_and_feed_forward(const UnitContext& unit, ParameterList& next,
                                   const at::Tensor& x, const at::Tensor& qkv,
                                   const EncoderBlock& block);
/// A projector's linears, of x (features here, width).
at::Tensor projected(const UnitContext& unit, ParameterList& next, const at::Tensor& x,
                     const RowShares& shares);
at::Tensor token_embed(const UnitContext& unit, ParameterList& next);
at::Tensor merge(const UnitContext& unit, const UnitSpec& spec, const UnitInputs& inputs);
at::Tensor decoder_block(const UnitContext& unit, ParameterList& next, const at::Tensor& x);
at::Tensor gpt2_block(const UnitContext& unit, ParameterList& next, const at::Tensor& x);
at::Tensor head(const UnitContext& unit, ParameterList& next, const at::Tensor& x,
                HeadOutput output);

/// Heads of the parameters at hand, which may be a part of the model's.
struct HeadCounts {
  int64_t query, key_value;

  int64_t all() const { return query + 2 * key_value; }
};

/// `qkv_width` outputs of the fused projection, `attended_width` inputs of the one after attention.
inline HeadCounts count_heads(int64_t qkv_width, int64_t attended_width, int64_t head_dim) {
  const int64_t query = attended_width / head_dim;
  return {query, (qkv_width / head_dim - query) / 2};
}

/// (tokens, heads, head_dim) of (tokens, heads * head_dim).
inline at::Tensor split_heads(const at::Tensor& x, const HeadCounts& heads, int64_t head_dim) {
  return x.view({x.size(0), heads.all(), head_dim});
}

}  // namespace zea::detail
