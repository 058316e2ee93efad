# SPDX-License-Identifier: Apache-2.0
"""Decoders that mix tokens by the gated delta rule in most layers, as in parity_cases.py."""

from parity_cases import BALANCED, MICROBATCHES, QWEN2_MOE, grid

# Layers with the gated delta rule around one with attention, of whose heads a half rotates.
HYBRID = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 16,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
}
HYBRID_MOE = {**HYBRID, **QWEN2_MOE}
HYBRIDS = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
FOUR_LAYERS = {**HYBRID_MOE, "num_hidden_layers": 4, "layer_types": None}

HYBRID_CASES = {
    "qwen3_next": {"only_text": True, "decoder": "qwen3_next", "text": HYBRID_MOE},
    "qwen3_next_options": {
        "only_text": True,
        "decoder": "qwen3_next",
        "text": {
            **HYBRID_MOE,
            **BALANCED,
            "num_hidden_layers": 4,
            "layer_types": None,
            "full_attention_interval": 2,
            "linear_num_value_heads": 12,
            "linear_conv_kernel_dim": 3,
            "attention_bias": True,
            "norm_topk_prob": False,
            "mlp_only_layers": [2],
        },
    },
    "qwen3_next_of_attention_alone": {
        "only_text": True,
        "decoder": "qwen3_next",
        "text": {**HYBRID_MOE, "layer_types": ["full_attention"] * 3, "decoder_sparse_step": 2},
    },
    "qwen3_5_text": {"only_text": True, "decoder": "qwen3_5_text", "text": HYBRID},
    "qwen3_5_text_options": {
        "only_text": True,
        "decoder": "qwen3_5_text",
        "text": {
            **HYBRID,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 3,
            "linear_conv_kernel_dim": 2,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    },
    "qwen3_5_text_long_samples": {
        "only_text": True,
        "decoder": "qwen3_5_text",
        "text": {**HYBRID, "max_position_embeddings": 1024},
        "deck": ["data.row_tokens=512"],
        "longer": 300,
    },
    "qwen3_5_text_mtp": {
        "only_text": True,
        "decoder": "qwen3_5_text",
        "text": HYBRID,
        "mtp": 0.3,
        "deck": ["model.llm.mtp_loss_coef=0.3"],
    },
    "qwen3_5_text_mtp_tp2": {
        "ranks": 2,
        "only_text": True,
        "decoder": "qwen3_5_text",
        "text": HYBRID,
        "mtp": 0.3,
        "deck": ["model.llm.mtp_loss_coef=0.3", *grid("llm", tp=2)],
    },
    "qwen3_5_moe_text": {"only_text": True, "decoder": "qwen3_5_moe_text", "text": HYBRID_MOE},
    "qwen3_next_tp2_pp2": {
        "ranks": 4,
        "only_text": True,
        "decoder": "qwen3_next",
        "text": {**FOUR_LAYERS, "full_attention_interval": 2},
        "deck": [*MICROBATCHES, *grid("llm", pp=2, tp=2)],
    },
    "qwen3_next_tp2_cp2": {
        "ranks": 4,
        "only_text": True,
        "decoder": "qwen3_next",
        "text": HYBRID_MOE,
        "deck": grid("llm", tp=2, cp=2, cp_mode="ring"),
    },
    "qwen3_5_text_cp4": {
        "ranks": 4,
        "only_text": True,
        "decoder": "qwen3_5_text",
        "text": HYBRID,
        "deck": grid("llm", cp=4, cp_mode="ring"),
    },
    "qwen3_5_text_tp2_cp2": {
        "ranks": 4,
        "only_text": True,
        "decoder": "qwen3_5_text",
        "text": HYBRID,
        "deck": grid("llm", tp=2, cp=2, cp_mode="ulysses"),
    },
    "qwen3_5_text_tp2_pp2": {
        "ranks": 4,
        "only_text": True,
        "decoder": "qwen3_5_text",
        "text": {**HYBRID, "num_hidden_layers": 4, "layer_types": None},
        "deck": [*MICROBATCHES, *grid("llm", pp=2, tp=2)],
    },
    "qwen3_5_moe_text_tp2_cp2": {
        "ranks": 4,
        "only_text": True,
        "decoder": "qwen3_5_moe_text",
        "text": HYBRID_MOE,
        "deck": grid("llm", tp=2, cp=2, cp_mode="ring"),
    },
    "qwen3_5_moe_text_aux_loss_pp2_tp2": {
        "ranks": 4,
        "only_text": True,
        "decoder": "qwen3_5_moe_text",
        "text": {**FOUR_LAYERS, **BALANCED, "full_attention_interval": 3},
        "deck": [*MICROBATCHES, *grid("llm", pp=2, tp=2)],
    },
}
