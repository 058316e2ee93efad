# SPDX-License-Identifier: Apache-2.0
"""The families whose files are compared, and their tiny configs."""

from transformers import AutoConfig

TOWERS = ("siglip_vision_model", "vit", "dinov2", "dinov2_with_registers")  # of llava, besides CLIP
MOE = ("deepseek_v3", "glm4_moe", "gpt_oss", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "qwen3_next",
       "qwen3_5_moe_text")
# Besides Llama.
GEMMA = ("gemma", "gemma2", "gemma3_text", "gemma4_text", "gemma4")
GLM = {"n_routed_experts": 4, "moe_intermediate_size": 20}
OWN = {
    "gemma4_text": {"hidden_size_per_layer_input": 0, "attention_k_eq_v": True},
    "olmoe": {"num_experts": 4, "num_key_value_heads": 4},
    "glm4_moe": GLM,
    "deepseek_v3": {**GLM, "num_key_value_heads": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1},
    "gpt_oss": {"num_local_experts": 4, "head_dim": 12},
}
LIKE_E4B = {
    "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 160,
}
DECODERS = (*GEMMA, "mistral", "phi3", "qwen2", "qwen3", "qwen3_5_text", *MOE)


def text_config(tied=False, family="llama", own=None):
    if family == "gemma4":  # without towers
        text = text_config(tied, "gemma4_text", LIKE_E4B)
        return AutoConfig.for_model(family, text_config=text, tie_word_embeddings=tied)
    own = own or OWN.get(family, {"num_experts": 4} if family in MOE else {})
    experts = {"num_experts_per_tok": 2} if family in MOE else {}
    return AutoConfig.for_model(family, **{
        "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 160, "pad_token_id": 0, "tie_word_embeddings": tied, **experts, **own})
