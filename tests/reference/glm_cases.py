# SPDX-License-Identifier: Apache-2.0
"""GLM-4.5's decoder, whose experts are chosen by sigmoids of scores with a bias, as in parity_cases.py."""

from parity_cases import MICROBATCHES, grid

GLM4_MOE = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
}
GLM4_MOE_IN_GROUPS = {**GLM4_MOE, "n_group": 4, "topk_group": 2, "use_qk_norm": True, "attention_bias": True}

GLM_CASES = {
    "glm4_moe": {"only_text": True, "decoder": "glm4_moe", "text": GLM4_MOE},
    "glm4_moe_in_groups": {"only_text": True, "decoder": "glm4_moe", "text": GLM4_MOE_IN_GROUPS},
    "glm4_moe_options": {
        "only_text": True,
        "decoder": "glm4_moe",
        "text": {
            **GLM4_MOE,
            "num_hidden_layers": 3,
            "first_k_dense_replace": 2,
            "norm_topk_prob": False,
            "head_dim": 12,
            "n_shared_experts": 1,
            "rms_norm_eps": 1e-2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
            "tie_word_embeddings": True,
        },
    },
    "glm4_moe_tp2_cp2": {
        "ranks": 4,
        "only_text": True,
        "decoder": "glm4_moe",
        "text": GLM4_MOE_IN_GROUPS,
        "deck": [*MICROBATCHES, *grid("llm", tp=2, cp=2, cp_mode="ring")],
    },
    "glm4_moe_pp2_tp2": {
        "ranks": 4,
        "only_text": True,
        "decoder": "glm4_moe",
        "text": GLM4_MOE_IN_GROUPS,
        "deck": [*MICROBATCHES, *grid("llm", pp=2, tp=2)],
    },
}
