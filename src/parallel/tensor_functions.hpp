// SPDX-License-Identifier: Apache-2.0
// The autograd functions of layers that tp ranks share. What they keep of their input is the rows
// here; the others come again in backward.
#pragma once

#include "model/parameter_function.hpp"
#include "parallel/tensor_rows.hpp"

namespace zea::detail {

at::Tensor tensor_column_linear(const TensorRows& rows, const at::Tensor& x, Parameter& weight,
                                Parameter* bias, WeightOrder order);
at::Tensor tensor_row_linear(const TensorRows& rows, const at::Tensor& x, Parameter& weight,
                             Parameter* bias, WeightOrder order);
at::Tensor tensor_joint_head_norms(const TensorRows& rows, const at::Tensor& qkv, Parameter& query,
                                   Parameter& key, const NormSpec& spec);
at::Tensor tensor_embedding(const TensorRows& rows, const at::Tensor& ids, Parameter& weight,
                            int64_t vocabulary);
at::Tensor tensor_cross_entropy(const TensorRows& rows, const at::Tensor& x, Parameter& weight,
                                const at::Tensor& targets, const LogitSpec& spec);
at::Tensor tensor_logits(const TensorRows& rows, const at::Tensor& x, Parameter& weight,
                         const LogitSpec& spec);

/// The rows of a vocabulary's matrix that a tp rank has, padding apart.
struct VocabularyRange {
  int64_t begin, count;
};

inline VocabularyRange vocabulary_range(const Collectives& tp, const Parameter& weight,
                                        int64_t vocabulary) {
  const int64_t rows = weight.shape()[0], begin = std::min(vocabulary, tp.rank() * rows);
  return {begin, std::min(vocabulary - begin, rows)};
}

inline void remember_rows(Context* ctx, const TensorRows& rows) {
  ctx->saved_data["buffers"] = reinterpret_cast<int64_t>(&rows.buffers());
  ctx->saved_data["shares"] = rows.shares();
}

inline TensorRows recall_rows(Context* ctx) {
  return {*reinterpret_cast<TensorBuffers*>(ctx->saved_data.at("buffers").toInt()),
          ctx->saved_data.at("shares").toIntVector()};
}

}  // namespace zea::detail
