// SPDX-License-Identifier: Apache-2.0
// Phi-3 (arXiv:2404.14219) and Phi-4-mini: a Llama decoder whose files have queries, keys and
// values in one matrix, gate and up in another. Files leave out what equals the defaults of
// transformers' Phi3Config.
#include "spec/families.hpp"

namespace zea::detail {

Decoder read_phi3(const ConfigReader& config) {
  for (const char* bias : {"attention_bias", "lm_head_bias", "mlp_bias"})
    config.require_boolean(bias, false);
  config.pass_over({"embd_pdrop", "full_attn_mod", "interpolate_factor"});
  Decoder decoder = read_llama_like(config,
                                    {.hidden = 3072,
                                     .intermediate = 8192,
                                     .vocabulary = 32064,
                                     .positions = 4096,
                                     .end_token = 32000,
                                     .eps = 1e-5,
                                     .turns_all = false,
                                     .original_positions = 4096,
                                     .names_longrope_yarn = true},
                                    {});
  decoder.spec.block.dropout = config.rate("resid_pdrop", 0);
  if (config.has("sliding_window"))
    decoder.spec.block.attention.front().window = config.positive("sliding_window", 1);
  BlockNames& names = decoder.blocks.names;
  names.q = names.k = names.v = ".self_attn.qkv_proj";
  names.gate = names.up = ".mlp.gate_up_proj";
  return decoder;
}

}  // namespace zea::detail
