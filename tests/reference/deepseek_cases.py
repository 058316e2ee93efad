# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V3, with multi-head latent attention and experts in groups, as in parity_cases.py."""

from parity_cases import MICROBATCHES, YARN_ROPE, grid

# Heads of queries and keys are wider than those of values; the first layer is dense.
DEEPSEEK_V3 = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 14,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 20,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "rope_parameters": {**YARN_ROPE, "mscale": 1.0, "mscale_all_dim": 0.7},
}
OF_DEEPSEEK_V3 = {"only_text": True, "decoder": "deepseek_v3", "text": DEEPSEEK_V3}

DEEPSEEK_CASES = {
    "deepseek_v3": OF_DEEPSEEK_V3,
    "deepseek_v3_options": {
        **OF_DEEPSEEK_V3,
        "text": {
            **DEEPSEEK_V3,
            "q_lora_rank": None,
            "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 4,
            "v_head_dim": 16,
            "rope_interleave": False,
            "attention_bias": True,
            "norm_topk_prob": False,
            "n_group": 1,
            "topk_group": 1,
            "n_shared_experts": 1,
            "first_k_dense_replace": 2,
            "routed_scaling_factor": 1.3,
            "rms_norm_eps": 1e-2,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    },
    "deepseek_v3_biased_latents": {
        **OF_DEEPSEEK_V3,
        "text": {**DEEPSEEK_V3, "attention_bias": True, "v_head_dim": 16, "first_k_dense_replace": 0},
    },
    "deepseek_v3_under_llava": {"decoder": "deepseek_v3", "text": DEEPSEEK_V3},
    "deepseek_v3_tp2_cp2": {
        **OF_DEEPSEEK_V3,
        "ranks": 4,
        "deck": [*MICROBATCHES, *grid("llm", tp=2, cp=2, cp_mode="ring")],
    },
    "deepseek_v3_ulysses": {**OF_DEEPSEEK_V3, "ranks": 2, "deck": grid("llm", cp=2, cp_mode="ulysses")},
    "deepseek_v3_tp4": {
        **OF_DEEPSEEK_V3,
        "ranks": 4,
        "deck": grid("llm", tp=4, sequence_parallel=False),
    },
    "deepseek_v3_recomputed_pp2_tp2": {
        **OF_DEEPSEEK_V3,
        "ranks": 4,
        "deck": ["model.activation_checkpointing=1", *MICROBATCHES, *grid("llm", pp=2, tp=2)],
    },
    "deepseek_v3_zero_bubble": {
        **OF_DEEPSEEK_V3,
        "ranks": 2,
        "deck": ['mesh.schedule="zero_bubble"', *MICROBATCHES, *grid("llm", pp=2)],
    },
}
