// SPDX-License-Identifier: Apache-2.0
// Gemma (arXiv:2403.08295): a Llama decoder whose norms multiply by 1 + w, with GeGLU, a head that
// is the embedding, and embeddings times the root of their width. Files leave out what equals the
// defaults of transformers' GemmaConfig.
#include <cmath>

#include "families.hpp"

namespace zea::detail {

Decoder read_gemma(const ConfigReader& config) {
  const bool biases = config.boolean("attention_bias", false);
  Decoder decoder = read_llama_like(config,
                                    {.hidden = 3072,
                                     .intermediate = 24576,
                                     .layers = 28,
                                     .heads = 16,
                                     .head_dim = 256,
                                     .vocabulary = 256000,
                                     .positions = 8192,
                                     .end_token = 1,
                                     .activation = "gelu_pytorch_tanh",
                                     .tied = true},
                                    {biases, biases, biases, biases});
  config.require_boolean("use_bidirectional_attention", false);
  decoder.spec.block.norm.offset = 1;
  decoder.spec.embedding_scale = std::sqrt(static_cast<double>(decoder.spec.block.hidden));
  return decoder;
}

}  // namespace zea::detail
