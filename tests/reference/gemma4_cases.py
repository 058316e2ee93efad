# SPDX-License-Identifier: Apache-2.0
"""The text of Gemma 4, as in parity_cases.py."""

from parity_cases import MICROBATCHES, grid
from transformers_models import VOCABULARY

SLIDING, FULL = "sliding_attention", "full_attention"
# Layers without a window have larger heads, one KV head of which values are made, too, and heads of which 3 of 8 pairs
# rotate.
GEMMA4 = {
    "num_hidden_layers": 4,
    "layer_types": [SLIDING, FULL, SLIDING, FULL],
    "head_dim": 12,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "sliding_window": 4,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 4.0,
    "rope_parameters": {
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.4, "rope_theta": 500.0},
        SLIDING: {"rope_type": "default", "rope_theta": 100.0},
    },
}
# Experts beside the MLP of each layer; some get no token.
EXPERTS = {**GEMMA4, "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 20}
OF_TEXT = {"only_text": True, "decoder": "gemma4_text", "text": GEMMA4}
OF_EXPERTS = {**OF_TEXT, "text": EXPERTS}
# The last two layers read keys and values of the first two; each layer has an input of its own.
E4B = {
    **GEMMA4,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 6,
    "vocab_size_per_layer_input": VOCABULARY + 3,
}
OF_E4B = {**OF_TEXT, "text": E4B, "fp64": True}
OF_COMPOSITE = {**OF_TEXT, "decoder": "gemma4"}

GEMMA4_CASES = {
    "gemma4_text": OF_TEXT,
    "gemma4_text_experts": OF_EXPERTS,
    "gemma4_text_experts_tp2_cp2": {**OF_EXPERTS, "ranks": 4, "deck": grid("llm", tp=2, cp=2)},
    "gemma4_text_experts_zero_bubble": {
        **OF_EXPERTS,
        "ranks": 2,
        "deck": ['mesh.schedule="zero_bubble"', *MICROBATCHES, *grid("llm", pp=2)],
    },
    "gemma4": OF_COMPOSITE,
    "gemma4_tp2_cp2": {**OF_COMPOSITE, "ranks": 4, "deck": grid("llm", tp=2, cp=2)},
    "gemma4_pp2": {**OF_COMPOSITE, "ranks": 2, "deck": [*MICROBATCHES, *grid("llm", pp=2)]},
    "gemma4_text_options": {
        **OF_TEXT,
        "text": {
            **GEMMA4,
            "num_hidden_layers": 6,
            "layer_types": None,
            "attention_k_eq_v": False,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "final_logit_softcapping": None,
            "rms_norm_eps": 1e-2,
            "rope_parameters": {
                FULL: {"rope_type": "proportional", "factor": 2.5, "rope_theta": 500.0},
                SLIDING: {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 100.0},
            },
        },
    },
    "gemma4_text_usual_positions": {
        **OF_TEXT,
        "text": {
            **GEMMA4,
            "attention_bias": True,
            "rope_parameters": None,
            "num_hidden_layers": 2,
            "layer_types": None,
        },
    },
    "gemma4_text_without_windows": {**OF_TEXT, "text": {**GEMMA4, "layer_types": [FULL] * 4}},
    "gemma4_text_e4b": OF_E4B,
    "gemma4_text_e4b_options": {
        **OF_E4B,
        "text": {
            **E4B,
            "num_hidden_layers": 5,
            "layer_types": [FULL, SLIDING, SLIDING, SLIDING, FULL],
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": False,
            "attention_k_eq_v": True,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "rms_norm_eps": 1e-2,
        },
    },
    "gemma4_text_shared_keys": {**OF_E4B, "text": {**E4B, "hidden_size_per_layer_input": 0}},
    "gemma4_text_shared_keys_beside_experts": {
        **OF_E4B,
        "text": {
            **EXPERTS,
            "num_hidden_layers": 3,
            "layer_types": [SLIDING, FULL, FULL],
            "num_kv_shared_layers": 1,
            "use_double_wide_mlp": True,
        },
    },
    "gemma4_text_layer_inputs": {**OF_E4B, "text": {**E4B, "num_kv_shared_layers": 0}},
    "gemma4_e4b": {**OF_E4B, "decoder": "gemma4"},
    "gemma4_e4b_pp4": {**OF_E4B, "decoder": "gemma4", "ranks": 4, "deck": [*MICROBATCHES, *grid("llm", pp=4)]},
    "gemma4_text_e4b_tp2_cp2": {**OF_E4B, "ranks": 4, "deck": grid("llm", tp=2, cp=2)},
    "gemma4_text_e4b_tp4": {**OF_E4B, "ranks": 4, "deck": grid("llm", tp=4, sequence_parallel=False),
                            "text": {**E4B, "num_key_value_heads": 4}},
    "gemma4_text_e4b_tp2_ring": {**OF_E4B, "ranks": 4, "deck": grid("llm", tp=2, cp=2, cp_mode="ring")},
    "gemma4_text_e4b_ulysses": {**OF_E4B, "ranks": 2, "deck": grid("llm", cp=2, cp_mode="ulysses")},
    "gemma4_text_e4b_pp2": {**OF_E4B, "ranks": 2, "deck": [*MICROBATCHES, *grid("llm", pp=2)]},
    "gemma4_text_e4b_recomputed_pp2": {
        **OF_E4B,
        "ranks": 4,
        "deck": ["model.activation_checkpointing=1", *MICROBATCHES, *grid("llm", pp=2, tp=2)],
    },
    "gemma4_text_e4b_zero_bubble": {
        **OF_E4B,
        "ranks": 2,
        "deck": ['mesh.schedule="zero_bubble"', *MICROBATCHES, *grid("llm", pp=2)],
    },
    "gemma4_text_e4b_interleaved": {
        **OF_E4B,
        "ranks": 2,
        "deck": ['mesh.schedule="interleaved_1f1b"', *MICROBATCHES, *grid("llm", pp=2, virtual_stages=2)],
    },
    "gemma4_text_under_llava": {"decoder": "gemma4_text", "text": {**GEMMA4, "final_logit_softcapping": None}},
    "gemma4_text_tp2_cp2": {**OF_TEXT, "ranks": 4, "deck": grid("llm", tp=2, cp=2)},
    "gemma4_text_tp4": {**OF_TEXT, "ranks": 4, "deck": grid("llm", tp=4, sequence_parallel=False),
                        "text": {**GEMMA4, "num_key_value_heads": 4}},
    "gemma4_text_tp2_ring": {**OF_TEXT, "ranks": 4, "deck": grid("llm", tp=2, cp=2, cp_mode="ring")},
    "gemma4_text_ulysses": {**OF_TEXT, "ranks": 2, "deck": grid("llm", cp=2, cp_mode="ulysses")},
    "gemma4_text_recomputed_pp2": {
        **OF_TEXT,
        "ranks": 4,
        "deck": ["model.activation_checkpointing=1", *MICROBATCHES, *grid("llm", pp=2, tp=2)],
    },
    "gemma4_text_zero_bubble": {
        **OF_TEXT,
        "ranks": 2,
        "deck": ['mesh.schedule="zero_bubble"', *MICROBATCHES, *grid("llm", pp=2)],
    },
}
