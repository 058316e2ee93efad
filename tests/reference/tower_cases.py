# SPDX-License-Identifier: Apache-2.0
"""LLaVA of other towers than CLIP, as the cases of parity_cases.py."""

from parity_cases import FULL, MICROBATCHES, grid

# Class tokens and registers of the towers.
EXTRA_TOKENS = {
    "clip_vision_model": 1,
    "siglip_vision_model": 0,
    "vit": 1,
    "dinov2": 1,
    "dinov2_with_registers": 3,
}
SCALED = {"layerscale_value": 0.4, "mlp_ratio": 2}
REGISTERS = {**SCALED, "num_register_tokens": 2}

TOWER_CASES = {
    "siglip": {"tower": "siglip_vision_model", "llava": FULL},
    # transformers drops the first token of any tower, also where it is a patch.
    "siglip_without_its_first_patch": {"tower": "siglip_vision_model"},
    "siglip_relu_and_eps": {
        "tower": "siglip_vision_model",
        "vision": {"hidden_act": "relu", "layer_norm_eps": 1e-2},
        "llava": {**FULL, "vision_feature_layer": [0, -1]},
    },
    # As in published ones: nothing sees the pixels after the last whole patch.
    "siglip_of_uneven_patches": {"tower": "siglip_vision_model", "vision": {"patch_size": 7}, "llava": FULL},
    "siglip_tp2_cp2_qwen2": {
        "ranks": 4,
        "tower": "siglip_vision_model",
        "decoder": "qwen2",
        "llava": FULL,
        "deck": [
            *grid("llm", tp=2, cp=2, cp_mode="ulysses"),
            *grid("vision", tp=2, cp=2, cp_mode="ring"),
        ],
    },
    "vit": {"tower": "vit"},
    "vit_without_biases": {
        "tower": "vit",
        "vision": {"qkv_bias": False, "hidden_act": "relu", "layer_norm_eps": 1e-2, "pooler_output_size": 5},
        "llava": {**FULL, "vision_feature_layer": [0, -1]},
    },
    "vit_of_two_sides_qwen2": {
        "tower": "vit",
        "decoder": "qwen2",
        "vision": {"image_size": [24, 24], "patch_size": [8, 8]},
    },
    "dinov2": {"tower": "dinov2", "vision": SCALED},
    "dinov2_gated": {
        "tower": "dinov2",
        "vision": {**SCALED, "use_swiglu_ffn": True, "use_mask_token": False},
        "llava": {"vision_feature_layer": -1},
    },
    "dinov2_with_registers": {"tower": "dinov2_with_registers", "vision": REGISTERS},
    "dinov2_with_registers_full": {
        "tower": "dinov2_with_registers",
        "vision": {**REGISTERS, "use_swiglu_ffn": True},
        "llava": FULL,
    },
    "dinov2_tp2_cp2": {
        "ranks": 4,
        "tower": "dinov2",
        "vision": {**SCALED},
        "deck": [*grid("llm", tp=2, cp=2), *grid("vision", tp=2, cp=2, cp_mode="ring")],
    },
    "dinov2_with_registers_tp2_cp2": {
        "ranks": 4,
        "tower": "dinov2_with_registers",
        "vision": {**REGISTERS, "use_swiglu_ffn": True},
        "deck": [
            *grid("llm", tp=2, cp=2, cp_mode="ulysses"),
            *grid("vision", tp=2, cp=2, cp_mode="ulysses", sequence_parallel=False),
        ],
    },
    "dinov2_with_registers_pp2": {
        "ranks": 4,
        "tower": "dinov2_with_registers",
        "vision": {**REGISTERS, "num_hidden_layers": 4},
        "deck": ['mesh.placement="colocated"', *MICROBATCHES, *grid("llm", pp=2), *grid("vision", pp=2)],
    },
    "dinov2_zero_bubble": {
        "ranks": 2,
        "tower": "dinov2",
        "vision": SCALED,
        "deck": ['mesh.schedule="zero_bubble"', *MICROBATCHES, *grid("llm", pp=2)],
    },
    "vit_tp2_cp2": {
        "ranks": 4,
        "tower": "vit",
        "deck": [*grid("llm", tp=2, cp=2), *grid("vision", tp=2, cp=2, cp_mode="ring")],
    },
    "vit_pp2": {
        "ranks": 4,
        "tower": "vit",
        "vision": {"num_hidden_layers": 4},
        "deck": ['mesh.placement="disjoint"', *MICROBATCHES, *grid("llm", pp=2), *grid("vision", pp=2)],
    },
    "siglip_pp2": {
        "ranks": 4,
        "tower": "siglip_vision_model",
        "llava": FULL,
        "vision": {"num_hidden_layers": 4},
        "deck": ['mesh.placement="colocated"', *MICROBATCHES, *grid("llm", pp=2), *grid("vision", pp=2)],
    },
}
