# SPDX-License-Identifier: Apache-2.0
"""gpt-oss, with attention sinks, windows and biased experts of clamped gates, as in parity_cases.py."""

from parity_cases import MICROBATCHES, YARN_ROPE, grid

SLIDING, FULL = "sliding_attention", "full_attention"
GPT_OSS = {
    "num_hidden_layers": 3,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "intermediate_size": 20,
    "head_dim": 12,
    "sliding_window": 4,
    "rope_parameters": {**YARN_ROPE, "truncate": False},
}
OF_GPT_OSS = {"only_text": True, "decoder": "gpt_oss", "attention": "eager", "text": GPT_OSS}

GPT_OSS_CASES = {
    "gpt_oss": OF_GPT_OSS,
    "gpt_oss_options": {
        **OF_GPT_OSS,
        "text": {
            **GPT_OSS,
            "num_hidden_layers": 4,
            "layer_types": [FULL, SLIDING, SLIDING, FULL],
            "attention_bias": False,
            "num_key_value_heads": 1,
            "num_experts_per_tok": 1,
            "head_dim": 8,
            "sliding_window": 7,
            "rms_norm_eps": 1e-2,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    },
    "gpt_oss_usual_positions": {**OF_GPT_OSS, "text": {**GPT_OSS, "rope_parameters": None}},
    "gpt_oss_router_loss": {
        **OF_GPT_OSS,
        "text": {**GPT_OSS, "output_router_logits": True, "router_aux_loss_coef": 0.5},
    },
    "gpt_oss_under_llava": {"decoder": "gpt_oss", "attention": "eager", "text": GPT_OSS},
    "gpt_oss_tp2_cp2": {
        **OF_GPT_OSS,
        "ranks": 4,
        "deck": [*MICROBATCHES, *grid("llm", tp=2, cp=2, cp_mode="ring")],
    },
    "gpt_oss_ulysses": {**OF_GPT_OSS, "ranks": 2, "deck": grid("llm", cp=2, cp_mode="ulysses")},
    "gpt_oss_tp4": {
        **OF_GPT_OSS,
        "ranks": 4,
        "deck": grid("llm", tp=4, sequence_parallel=False),
    },
    "gpt_oss_recomputed_pp2_tp2": {
        **OF_GPT_OSS,
        "ranks": 4,
        "deck": ["model.activation_checkpointing=1", *MICROBATCHES, *grid("llm", pp=2, tp=2)],
    },
    "gpt_oss_zero_bubble": {
        **OF_GPT_OSS,
        "ranks": 2,
        "deck": ['mesh.schedule="zero_bubble"', *MICROBATCHES, *grid("llm", pp=2)],
    },
}
