# SPDX-License-Identifier: Apache-2.0
"""The models and decks under which zea is compared with transformers."""

import json

VOCABULARY, PATCHES = 96, 9
LINEAR_ROPE = {"rope_type": "linear", "factor": 2.5, "rope_theta": 10000.0}
# The context is so short that frequencies are kept, interpolated and scaled.
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 500.0,
}

# An original length that some samples are longer than, and heads of enough pairs for all three parts.
YARN_ROPE = {
    "rope_type": "yarn",
    "factor": 4.0,
    "beta_fast": 2.0,
    "beta_slow": 0.2,
    "original_max_position_embeddings": 16,
    "rope_theta": 500.0,
}
LONGROPE = {
    "rope_type": "longrope",
    "factor": 8.0,
    "short_factor": [1.0, 1.1, 1.3, 1.7],
    "long_factor": [1.0, 1.5, 3.0, 7.0],
    "original_max_position_embeddings": 16,
    "rope_theta": 500.0,
}
# Three of the four pairs of a head are rotated; the config has the length from which positions are scaled.
PHI3_ROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.2, 1.5],
    "long_factor": [1.0, 2.0, 5.0],
    "partial_rotary_factor": 0.75,
    "rope_theta": 500.0,
}
PHI3 = {"original_max_position_embeddings": 16, "rope_parameters": PHI3_ROPE}


GEMMA2 = {
    "head_dim": 12,
    "query_pre_attn_scalar": 7,
    "sliding_window": 5,
    "attn_logit_softcapping": 1.5,
    "final_logit_softcapping": 2.0,
}
GEMMA3 = {
    "head_dim": 12,
    "query_pre_attn_scalar": 7,
    "sliding_window": 4,
    "layer_types": None,
    "num_hidden_layers": 3,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 2.5, "rope_theta": 500.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
    "sliding_window_pattern": 2,
}
# The tokens are so few that some experts get none.
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3}
BALANCED = {"output_router_logits": True, "router_aux_loss_coef": 0.3}
QWEN2_MOE = {**EXPERTS, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 36}
QWEN3_MOE = {**EXPERTS, "moe_intermediate_size": 20, "norm_topk_prob": True}
OLMOE = {**EXPERTS, "intermediate_size": 20, "num_key_value_heads": 4}
MIXTRAL = {"num_local_experts": 6, "num_experts_per_tok": 2}


def grid(module, **keys):
    """Overrides of [mesh.<module>], with blocks so short that every rank has some."""
    deals_blocks = keys.get("cp_distribution", "makespan_min") == "makespan_min"
    if keys.get("cp", 1) > 1 and keys.get("cp_mode") != "ulysses" and deals_blocks:
        keys["cp_block"] = 8
    return [f"mesh.{module}.{key}={json.dumps(value)}" for key, value in keys.items()]


# So many that a pipeline fills.
MICROBATCHES = ["data.row_tokens=48", "data.rows_per_microbatch=1"]
FULL = {"vision_feature_select_strategy": "full"}

# Differences from the plain model, a CLIP tower and a Llama decoder: families ("tower", "decoder"), their configs
# ("text", "vision", "llava"), transformers' attention (eager knows caps), whether config.json is spelled as in
# transformers 4, the deck, images per sample, frozen modules, ranks, whether image attention is bidirectional, and by
# how many tokens one sample is longer.
CASES = {
    "plain": {},
    "tied": {"text": {"tie_word_embeddings": True}},
    "padding_tokens_in_the_text": {"text": {"pad_token_id": 22}},
    "tied_by_the_outer_config": {"llava": {"tie_word_embeddings": True}},
    "one_kv_head": {"text": {"num_key_value_heads": 1}},
    "all_kv_heads": {"text": {"num_key_value_heads": 4}},
    "wide_heads": {"text": {"head_dim": 16}},
    "class_token_kept": {"llava": {"vision_feature_select_strategy": "full"}},
    "last_vision_layer": {"llava": {"vision_feature_layer": -1}},
    "counted_vision_layer": {"llava": {"vision_feature_layer": 1}},
    "several_vision_layers_full": {
        "llava": {"vision_feature_layer": [0, 3, 1], "vision_feature_select_strategy": "full"}
    },
    "decoder_biases": {"text": {"attention_bias": True, "mlp_bias": True}},
    "no_projector_bias": {"llava": {"multimodal_projector_bias": False}},
    "linear_rope": {"text": {"rope_parameters": LINEAR_ROPE}},
    "llama3_rope": {"text": {"rope_parameters": LLAMA3_ROPE}},
    "yarn_rope": {"text": {"head_dim": 16, "rope_parameters": YARN_ROPE}},
    "yarn_rope_mscale": {
        "text": {
            "rope_parameters": {**YARN_ROPE, "mscale": 0.7, "mscale_all_dim": 0.3, "truncate": False}
        }
    },
    "yarn_rope_attention_factor": {
        "only_text": True,
        "text": {"rope_parameters": {**YARN_ROPE, "attention_factor": 1.3}},
    },
    "dynamic_rope": {"text": {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}},
    "longrope": {"text": {"rope_parameters": LONGROPE}},
    "longrope_cp2_one_sample_per_row": {
        "ranks": 2,
        "decoder": "qwen2",
        "text": {"rope_parameters": {**LONGROPE, "attention_factor": 1.2}},
        "deck": ["data.packing=false", *grid("llm", cp=2, cp_mode="ring")],
    },
    "rope_of_an_older_config": {"text": {"rope_parameters": LLAMA3_ROPE}, "older": True},
    "norm_eps": {"text": {"rms_norm_eps": 1e-2}, "vision": {"layer_norm_eps": 1e-2}},
    "vision_gelu": {"vision": {"hidden_act": "gelu"}},
    "vision_gelu_tanh": {"vision": {"hidden_act": "gelu_pytorch_tanh"}},
    "projector_quick_gelu": {"llava": {"projector_hidden_act": "quick_gelu"}},
    "projector_gelu_tanh": {"llava": {"projector_hidden_act": "gelu_pytorch_tanh"}},
    "projector_relu": {"llava": {"projector_hidden_act": "relu"}},
    "projector_silu": {"llava": {"projector_hidden_act": "silu"}},
    "no_images": {"images": [0]},
    "images_in_every_sample": {"images": [2, 1, 3]},
    "frozen_vision": {"frozen": ["vision"]},
    "frozen_llm": {"frozen": ["llm"]},
    "frozen_llm_and_vision": {"frozen": ["llm", "vision"]},
    # So large that the head takes its rows in several chunks.
    "large_vocabulary": {"text": {"vocab_size": 131072}, "deck": ["data.row_tokens=4096"]},
    "one_sample_per_row": {"deck": ["data.packing=false", "data.rows_per_microbatch=1"]},
    "recomputed": {"deck": ["model.activation_checkpointing=1"]},
    "llama": {"only_text": True},
    "llama_long_positions": {
        "only_text": True,
        "text": {"max_position_embeddings": 2048, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
        "deck": ["data.row_tokens=2048"],
        "longer": 1500,
    },
    "qwen2": {"only_text": True, "decoder": "qwen2"},
    "qwen2_under_llava": {"decoder": "qwen2", "text": {"rms_norm_eps": 1e-2}},
    "qwen2_tp2_cp2": {
        "ranks": 4,
        "decoder": "qwen2",
        "deck": grid("llm", tp=2, cp=2, cp_mode="ring"),
    },
    "qwen3": {"only_text": True, "decoder": "qwen3", "text": {"head_dim": 12}},
    "qwen3_under_llava": {
        "decoder": "qwen3",
        "text": {"rms_norm_eps": 1e-2, "tie_word_embeddings": True},
    },
    # Norms of heads, of which each tp rank has some, with slices of rows and without.
    "qwen3_tp2_cp2": {
        "ranks": 4,
        "decoder": "qwen3",
        "deck": grid("llm", tp=2, cp=2, cp_mode="ring"),
    },
    "qwen3_tp4_one_kv_head": {
        "ranks": 4,
        "decoder": "qwen3",
        "text": {"num_key_value_heads": 1},
        "deck": grid("llm", tp=4, sequence_parallel=False),
    },
    "qwen3_pp2_ulysses": {
        "ranks": 4,
        "decoder": "qwen3",
        "deck": [*MICROBATCHES, *grid("llm", pp=2, cp=2, cp_mode="ulysses")],
    },
    "qwen3_moe": {"only_text": True, "decoder": "qwen3_moe", "text": QWEN3_MOE},
    "qwen3_moe_under_llava": {
        "decoder": "qwen3_moe",
        "text": {**QWEN3_MOE, "norm_topk_prob": False, "head_dim": 12, "attention_bias": True},
    },
    "qwen3_moe_of_some_layers": {
        "only_text": True,
        "decoder": "qwen3_moe",
        "text": {**QWEN3_MOE, "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
    },
    "qwen3_moe_aux_loss": {
        "only_text": True,
        "decoder": "qwen3_moe",
        "text": {
            **QWEN3_MOE,
            **BALANCED,
            "num_hidden_layers": 3,
            "mlp_only_layers": [1],
        },
    },
    "mixtral_aux_loss_pp2_cp2": {
        "ranks": 4,
        "only_text": True,
        "decoder": "mixtral",
        "text": {**MIXTRAL, **BALANCED},
        "deck": [*MICROBATCHES, *grid("llm", pp=2, cp=2, cp_mode="ring")],
    },
    "qwen3_moe_of_one_expert": {
        "only_text": True,
        "decoder": "qwen3_moe",
        "text": {**QWEN3_MOE, "num_experts_per_tok": 1, "norm_topk_prob": False},
    },
    "qwen3_moe_tp2_cp2": {
        "ranks": 4,
        "decoder": "qwen3_moe",
        "text": QWEN3_MOE,
        "deck": grid("llm", tp=2, cp=2, cp_mode="ring"),
    },
    "qwen3_moe_tp4_no_slices": {
        "ranks": 4,
        "only_text": True,
        "decoder": "qwen3_moe",
        "text": QWEN3_MOE,
        "deck": grid("llm", tp=4, sequence_parallel=False),
    },
    "qwen3_moe_pp2_ulysses": {
        "ranks": 4,
        "decoder": "qwen3_moe",
        "text": {**QWEN3_MOE, "mlp_only_layers": [0]},
        "deck": [*MICROBATCHES, *grid("llm", pp=2, cp=2, cp_mode="ulysses")],
    },
    "qwen2_moe": {"only_text": True, "decoder": "qwen2_moe", "text": QWEN2_MOE},
    "qwen2_moe_aux_loss_windows_without_biases": {
        "only_text": True,
        "decoder": "qwen2_moe",
        "text": {
            **QWEN2_MOE,
            **BALANCED,
            "qkv_bias": False,
            "norm_topk_prob": True,
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 2,
        },
    },
    "qwen2_moe_tp2_cp2": {
        "ranks": 4,
        "decoder": "qwen2_moe",
        "text": QWEN2_MOE,
        "deck": grid("llm", tp=2, cp=2, cp_mode="ring"),
    },
    "qwen2_moe_pp2_tp2": {
        "ranks": 4,
        "only_text": True,
        "decoder": "qwen2_moe",
        "text": {**QWEN2_MOE, "decoder_sparse_step": 2},
        "deck": [*MICROBATCHES, *grid("llm", pp=2, tp=2)],
    },
    "mixtral": {"only_text": True, "decoder": "mixtral", "text": MIXTRAL},
    "mixtral_windows_under_llava": {"decoder": "mixtral", "text": {**MIXTRAL, "sliding_window": 5}},
    "mixtral_tp2_cp2": {
        "ranks": 4,
        "decoder": "mixtral",
        "text": MIXTRAL,
        "deck": grid("llm", tp=2, cp=2, cp_mode="ring"),
    },
    "mixtral_pp2_tp2": {
        "ranks": 4,
        "only_text": True,
        "decoder": "mixtral",
        "text": MIXTRAL,
        "deck": [*MICROBATCHES, *grid("llm", pp=2, tp=2)],
    },
    "olmoe": {"only_text": True, "decoder": "olmoe", "text": OLMOE},
    "olmoe_aux_loss_tp2_cp2": {
        "ranks": 4,
        "only_text": True,
        "decoder": "olmoe",
        "text": {**OLMOE, **BALANCED, "norm_topk_prob": True},
        "deck": grid("llm", tp=2, cp=2, cp_mode="ring"),
    },
    "olmoe_pp2_tp2": {
        "ranks": 4,
        "only_text": True,
        "decoder": "olmoe",
        "text": OLMOE,
        "deck": [*MICROBATCHES, *grid("llm", pp=2, tp=2)],
    },
    "gemma": {"only_text": True, "decoder": "gemma", "text": {"head_dim": 12}},
    "gemma_untied_biases": {
        "only_text": True,
        "decoder": "gemma",
        "text": {"tie_word_embeddings": False, "attention_bias": True, "hidden_act": "gelu"},
    },
    "gemma_cp2_ring": {
        "ranks": 2,
        "only_text": True,
        "decoder": "gemma",
        "deck": grid("llm", cp=2, cp_mode="ring"),
    },
    "gemma_tp2_pp2": {
        "ranks": 4,
        "only_text": True,
        "decoder": "gemma",
        "deck": [*MICROBATCHES, *grid("llm", tp=2, pp=2)],
    },
    "gemma2": {
        "only_text": True,
        "decoder": "gemma2",
        "attention": "eager",
        "text": GEMMA2,
    },
    "gemma2_without_caps": {
        "only_text": True,
        "decoder": "gemma2",
        "attention": "eager",
        "text": {**GEMMA2, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    },
    "gemma2_tp2_cp2": {
        "ranks": 4,
        "only_text": True,
        "decoder": "gemma2",
        "attention": "eager",
        "text": GEMMA2,
        "deck": grid("llm", tp=2, cp=2, cp_mode="ring"),
    },
    "gemma2_pp2_ulysses": {
        "ranks": 4,
        "only_text": True,
        "decoder": "gemma2",
        "attention": "eager",
        "text": {**GEMMA2, "num_hidden_layers": 4},
        "deck": [*MICROBATCHES, *grid("llm", pp=2, cp=2, cp_mode="ulysses")],
    },
    "gemma2_under_llava": {
        "decoder": "gemma2",
        "attention": "eager",
        "text": {**GEMMA2, "final_logit_softcapping": None},
    },
    "gemma3_text": {"only_text": True, "decoder": "gemma3_text", "text": GEMMA3},
    "gemma3_text_under_llava": {"decoder": "gemma3_text", "text": GEMMA3},
    "gemma3_text_tp2_cp2": {
        "ranks": 4,
        "decoder": "gemma3_text",
        "text": GEMMA3,
        "deck": grid("llm", tp=2, cp=2),
    },
    "gemma3_text_recomputed_pp2": {
        "ranks": 2,
        "only_text": True,
        "decoder": "gemma3_text",
        "text": {**GEMMA3, "num_hidden_layers": 4},
        "deck": ["model.activation_checkpointing=1", *MICROBATCHES, *grid("llm", pp=2)],
    },
    "phi3": {"only_text": True, "decoder": "phi3", "text": PHI3},
    "phi3_of_plain_rotation": {"only_text": True, "decoder": "phi3"},
    "phi3_under_llava": {"decoder": "phi3", "text": PHI3},
    "phi3_tp2_cp2": {
        "ranks": 4,
        "decoder": "phi3",
        "text": PHI3,
        "deck": grid("llm", tp=2, cp=2, cp_mode="ring"),
    },
    "phi3_tp4_one_kv_head": {
        "ranks": 4,
        "only_text": True,
        "decoder": "phi3",
        "text": {**PHI3, "num_key_value_heads": 1},
        "deck": grid("llm", tp=4),
    },
    "phi3_windows": {"only_text": True, "decoder": "phi3", "text": {**PHI3, "sliding_window": 5}},
    "phi3_pp2_ulysses": {
        "ranks": 4,
        "decoder": "phi3",
        "text": {**PHI3, "sliding_window": 6},
        "deck": [*MICROBATCHES, *grid("llm", pp=2, cp=2, cp_mode="ulysses")],
    },
    "mistral": {"only_text": True, "decoder": "mistral", "text": {"sliding_window": 5}},
    "mistral_without_window": {
        "only_text": True,
        "decoder": "mistral",
        "text": {"sliding_window": None},
    },
    "mistral_under_llava": {"decoder": "mistral", "text": {"sliding_window": 6}},
    "mistral_tp2_cp2": {
        "ranks": 4,
        "decoder": "mistral",
        "text": {"sliding_window": 6},
        "deck": grid("llm", tp=2, cp=2, cp_mode="ring"),
    },
    "mistral_cp4_two_levels": {
        "ranks": 4,
        "decoder": "mistral",
        "text": {"sliding_window": 9},
        "deck": grid("llm", cp=4, cp_mode="ulysses_ring", cp_ulysses_ranks=2),
    },
    "mistral_pp2_ulysses": {
        "ranks": 4,
        "decoder": "mistral",
        "text": {"sliding_window": 4},
        "deck": [*MICROBATCHES, *grid("llm", pp=2, cp=2, cp_mode="ulysses")],
    },
    "qwen2_windows": {
        "only_text": True,
        "decoder": "qwen2",
        "text": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    },
    "qwen2_layer_types": {
        "decoder": "qwen2",
        "text": {
            "use_sliding_window": True,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    },
    "qwen3_windows_pp2_cp2": {
        "ranks": 4,
        "decoder": "qwen3",
        "text": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
        "deck": [*MICROBATCHES, *grid("llm", pp=2, cp=2, cp_mode="ring")],
    },
    "gpt2": {"gpt2": {}},
    "gpt2_untied": {"gpt2": {"tie_word_embeddings": False}},
    "gpt2_narrow_mlp": {"gpt2": {"n_inner": 40}},
    "gpt2_gelu": {"gpt2": {"activation_function": "gelu"}},
    "gpt2_norm_eps": {"gpt2": {"layer_norm_epsilon": 1e-2}},
    "both_ways": {"both_ways": True},
    "tp2_cp2": {"ranks": 4, "deck": grid("llm", tp=2, cp=2)},
    "tp2_cp2_of_both_modules": {
        "ranks": 4,
        "deck": [
            *grid("llm", tp=2, cp=2, cp_mode="ulysses", cp_distribution="zigzag"),
            *grid("vision", tp=2, cp=2, cp_mode="ring", cp_distribution="uniform"),
        ],
    },
    "tp4_padded_vocabulary": {
        "ranks": 4,
        "text": {"num_key_value_heads": 1, "vocab_size": VOCABULARY + 1},
        "deck": [*grid("llm", tp=4), *grid("vision", tp=2)],
    },
    "tp2_cp2_tied_biases": {
        "ranks": 4,
        "text": {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
        "deck": [*grid("llm", tp=2, cp=2, sequence_parallel=False), *grid("vision", cp=2)],
    },
    "both_ways_tp2_cp2": {
        "ranks": 4,
        "both_ways": True,
        "deck": grid("llm", tp=2, cp=2, cp_mode="ring"),
    },
    "two_replicas_of_cp2": {"ranks": 4, "deck": grid("llm", cp=2)},
    "pp2_tp2": {"ranks": 4, "deck": [*MICROBATCHES, *grid("llm", pp=2, tp=2)]},
    "pp2_cp2_frozen_vision": {
        "ranks": 4,
        "frozen": ["vision"],
        "deck": [*MICROBATCHES, *grid("llm", pp=2, cp=2, cp_mode="ring")],
    },
    "pp2_of_two_replicas_zero_bubble": {
        "ranks": 4,
        "deck": ['mesh.schedule="zero_bubble"', *MICROBATCHES, *grid("llm", pp=2)],
    },
    "pp3_beside_vision": {
        "ranks": 4,
        "text": {"num_hidden_layers": 4},
        "deck": ['mesh.placement="disjoint"', *MICROBATCHES, *grid("llm", pp=3), *grid("vision", encoder_dp=1)],
    },
    # The embedding is on the first stage and, as the head, on the last.
    "llama_tied_pp4": {
        "ranks": 4,
        "only_text": True,
        "text": {"num_hidden_layers": 4, "tie_word_embeddings": True},
        "deck": ['mesh.schedule="gpipe"', *MICROBATCHES, *grid("llm", pp=4)],
    },
    "qwen2_pp2_interleaved": {
        "ranks": 2,
        "decoder": "qwen2",
        "text": {"num_hidden_layers": 4},
        "deck": [
            'mesh.schedule="interleaved_1f1b"',
            *MICROBATCHES,
            *grid("llm", pp=2, virtual_stages=2),
        ],
    },
    "gpt2_pp2": {"ranks": 2, "gpt2": {}, "deck": [*MICROBATCHES, *grid("llm", pp=2)]},
    "gpt2_tp2": {"ranks": 2, "gpt2": {}, "deck": grid("llm", tp=2)},
    "gpt2_cp4": {"ranks": 4, "gpt2": {}, "deck": grid("llm", cp=4, cp_mode="ring")},
}
# The first case of each family, for which the tokens after prompts are compared, too.
PROMPTED = [
    *["plain", "siglip", "vit", "dinov2", "dinov2_with_registers"],
    *["llama", "mistral", "qwen2", "qwen2_windows", "qwen3"],
    *["gemma", "gemma2", "gemma3_text", "gemma4_text", "phi3", "phi3_windows", "gpt2"],
    *["deepseek_v3", "glm4_moe", "gpt_oss", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe"],
    *["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"],
]
for case in CASES.values():
    if case.get("both_ways"):
        case["deck"] = [*case.get("deck", []), 'model.llm.image_attention="bidirectional"']
