// SPDX-License-Identifier: Apache-2.0
// Mistral (arXiv:2310.06825): a Llama decoder whose tokens see a window of what precedes them.
// Later ones have none: "sliding_window": null. Files leave out what equals the defaults of
// transformers' MistralConfig.
#include "spec/families.hpp"

namespace zea::detail {

Decoder read_mistral(const ConfigReader& config) {
  Decoder decoder = read_llama_like(config,
                                    {.intermediate = 14336,
                                     .key_value_heads = 8,
                                     .vocabulary = 32000,
                                     .positions = 131072,
                                     .end_token = 2},
                                    {});
  if (!config.is_null("sliding_window"))
    decoder.spec.block.attention.front().window = config.positive("sliding_window", 4096);
  return decoder;
}

}  // namespace zea::detail
