// SPDX-License-Identifier: Apache-2.0
// What units read of a microbatch besides their inputs: one const struct per microbatch, made on
// the host from the loaded samples and moved to the device once. Tokens of all samples lie one
// after the other; there is no batch dim.
#pragma once

#include <vector>

#include "zea/data/loader.hpp"
#include "zea/model/functions.hpp"
#include "zea/plan/mask_word.hpp"
#include "zea/plan/model_spec.hpp"

namespace zea {

struct Microbatch {
  int64_t tokens = 0;
  int64_t items = 0;
  int64_t targets = 0;          ///< rows with a label here (bad items' samples have none)
  std::vector<MaskWord> words;  ///< (tokens)
  at::Tensor token_ids;         ///< (tokens) int64
  at::Tensor positions;         ///< (tokens) int64, in the sample: of models that learn positions
  at::Tensor rotary_cosines;    ///< (tokens, head_dim / 2), compute type: of the others
  at::Tensor rotary_sines;
  std::vector<AttentionBatch> text_attention;
  at::Tensor target_rows;       ///< (targets) int64: rows whose next token is predicted
  at::Tensor target_ids;        ///< (targets) int64: that next token
  at::Tensor placeholder_rows;  ///< (items * features) int64: rows that take features, in order
  at::Tensor patches;           ///< (items * patches, channels * patch^2), compute type
  std::vector<AttentionBatch> image_attention;
  at::Tensor last_rows;  ///< (samples) int64: the last token of each sample
};

struct MicrobatchOptions {
  at::ScalarType dtype = at::kFloat;         ///< the language model computes in
  at::ScalarType vision_dtype = at::kFloat;  ///< the vision encoder computes in
  at::Device device = at::kCPU;
};

/// Throws DataError where the placeholders of a sample do not match its items, or an id or a
/// position lies beyond the model's.
Microbatch make_microbatch(const LoadedMicrobatch& loaded, const ModelSpec& model,
                           const MicrobatchOptions& options);

}  // namespace zea
