# SPDX-License-Identifier: Apache-2.0
"""The cases under which the families of images and videos are compared with transformers: those of every family, and
what a family has of its own. A case says what differs from the family's plain model: arguments of model(), the deck,
items per sample, whether they are adjacent, frozen modules, ranks, whether config.json is flat (as transformers 4 wrote
it, without text_config) or as the family was published, and by how many tokens one sample is longer."""

from cropped_cases import Gemma3WithCrops, LlavaNextOfSiglip, LlavaOneVision, LlavaOneVisionOfUnevenPatches
from family_cases import Gemma3, Qwen2VL, Qwen3VL, Qwen3VLMoe, Qwen25VL, Qwen35, Qwen35Moe, Qwen35MoeStacked
from gemma4_audio import Gemma4Audio, Gemma4AudioAlone
from gemma4_images import Gemma4, Gemma4Clipped, Gemma4E4B, Gemma4Moe, Gemma4Videos
from glm4v_cases import Glm4v, Glm4vMoe, Glm46V, Glm46VMoe
from idefics3_cases import Idefics3, SmolVLM, SmolVLMOfOneTile, SmolVLMOfUnevenPatches
from kimi_k25_cases import KimiK25, KimiK25Running, KimiK25Videos
from omni_cases import Qwen25Omni, Qwen25OmniTalking, Qwen25OmniWhole
from parity_cases import grid
from pixtral_cases import Mistral3, PixtralLlava
from qwen3_omni_cases import Qwen3Omni, Qwen3OmniTalking, Qwen3OmniWhole
from tiled_families import (
    InternVL,
    InternVLOfLargeSquares,
    InternVLOfExperts,
    InternVLOfLlama,
    InternVLOfPatches,
    InternVLOfQwen3,
    LlavaNext,
)
from video_cases import (
    Glm4vMoeVideos,
    Glm4vVideos,
    Glm46VMoeVideos,
    InternVLVideos,
    InternVLVideosOfPatches,
    LlavaOneVisionVideos,
    LlavaOneVisionVideosOfUnevenPatches,
    Qwen2VLVideos,
    Qwen3VLVideos,
    Qwen25VLVideos,
    Qwen35Videos,
    SmolVLMVideos,
)

ONE_ROW = ["data.rows_per_microbatch=1"]
OWN_RANKS = ['mesh.placement="disjoint"', *ONE_ROW]
TIED, UNTIED = ({"model": {"tie_word_embeddings": is_tied}} for is_tied in (True, False))
CP4_OF_BOTH = {"ranks": 4, "deck": [*grid("llm", cp=4), *grid("vision", cp=4, cp_mode="ring")]}
CP3_RING = {"ranks": 3, "deck": [*grid("llm", cp=3, cp_mode="ring"), *grid("vision", cp=3)]}
TP2_FROZEN_VISION = {"ranks": 2, "frozen": ["vision"], "deck": [*grid("llm", tp=2), *grid("vision", tp=2)]}
TWO_STAGES_OF_VISION = {"ranks": 4, "deck": [*OWN_RANKS, *grid("llm", pp=2), *grid("vision", pp=2)]}
TP2_CP2_OF_SOUND = {
    "ranks": 4,
    "deck": [*ONE_ROW, *grid("llm", tp=2, cp=2), *grid("audio", tp=2, cp=2, cp_mode="ring", cp_block=4)],
}
PP2_BESIDE_BOTH = {
    "ranks": 4,
    "deck": [*OWN_RANKS, *grid("llm", pp=2), *grid("vision", encoder_dp=1), *grid("audio", encoder_dp=1)],
}

# Every family has these; they hold the axes of the table in inputs/README.md.
OF_ALL = {
    "plain": {},
    "tp2_cp2": {
        "ranks": 4,
        "deck": [*ONE_ROW, *grid("llm", tp=2, cp=2, cp_mode="ring"), *grid("vision", tp=2, cp=2, cp_mode="ulysses")],
    },
    "pp2_tp2": {"ranks": 4, "deck": [*ONE_ROW, *grid("llm", pp=2, tp=2)]},
}
# Families that have cases of their own have one of these in turn; with ZEA_ALL_CASES all have all.
IN_TURN = {
    "text_only": {"images": [0]},
    "images_in_every_sample": {"images": [2, 1, 3]},
    "frozen_vision": {"frozen": ["vision"]},
    "frozen_llm": {"frozen": ["llm"]},
    "one_sample_per_row": {"deck": ["data.packing=false", *ONE_ROW]},
    "recomputed": {"deck": ["model.activation_checkpointing=1"]},
    "dealt_to_4": {"ranks": 4, "deck": grid("llm", cp=4, cp_mode="ring")},
    "pp2_beside_vision": {"ranks": 4, "deck": [*OWN_RANKS, *grid("llm", pp=2), *grid("vision", encoder_dp=2)]},
}
OF_ONE = {
    InternVL: {
        "untied": UNTIED,
        "options": {
            "model": {
                "text": {"rms_norm_eps": 1e-2, "num_key_value_heads": 1},
                "vision": {
                    "attention_bias": True,
                    "hidden_act": "relu",
                    "layer_norm_eps": 1e-2,
                    "norm_type": "rms_norm",
                    "use_mask_token": True,
                    "use_qk_norm": True,
                },
                "projector_hidden_act": "silu",
            }
        },
        "last_norm": {"model": {"vision": {"use_mean_pooling": False}}},
        "earlier_layer": {"model": {"vision": {"use_mean_pooling": False}, "vision_feature_layer": -2}},
        "tp2_cp2_in_step": {
            "ranks": 4,
            "model": {"vision": {"use_mean_pooling": False, "use_qk_norm": True}},
            "deck": [
                *grid("llm", tp=2, cp=2),
                *grid("vision", tp=2, cp=2, cp_mode="ring", sequence_parallel=False),
            ],
        },
        "cp4_of_vision": {**CP4_OF_BOTH, "model": {"vision": {"use_mean_pooling": False, "use_qk_norm": True}}},
    },
    InternVLOfQwen3: {},
    InternVLOfExperts: {"options": {"model": InternVLOfExperts.unusual}},
    InternVLOfLlama: {},
    LlavaNext: {
        "tied": TIED,
        "options": {
            "model": {
                "text": {"model_type": "mistral", "sliding_window": 30},
                "vision": {"hidden_act": "gelu", "layer_norm_eps": 1e-2},
                "vision_feature_layer": [-1, 1],
                "multimodal_projector_bias": False,
                "projector_hidden_act": "relu",
            }
        },
    },
    LlavaNextOfSiglip: {},
    LlavaOneVision: {
        "tied": TIED,
        "images_alone": {"images": [1, 0, 1]},
        "options": {
            "model": {
                "text": {"model_type": "llama", "rms_norm_eps": 1e-2},
                "vision": {"model_type": "siglip_vision_model", "hidden_act": "relu", "layer_norm_eps": 1e-2},
                "vision_feature_layer": [-2, 1],
                "multimodal_projector_bias": False,
                "projector_hidden_act": "relu",
            }
        },
        "clip": {
            "model": {
                "vision": {"model_type": "clip_vision_model"},
                "vision_feature_select_strategy": "default",
            }
        },
        "cp4_of_both": CP4_OF_BOTH,
        "pp2_beside_vision_of_two_stages": TWO_STAGES_OF_VISION,
    },
    Qwen2VL: {
        "tied": TIED,
        "flat_config": {"flat": True},
        "options": {
            "model": {
                "text": {"rms_norm_eps": 1e-2, "num_key_value_heads": 1},
                "vision": {"hidden_act": "gelu", "mlp_ratio": 3, "num_heads": 2},
            }
        },
    },
    Qwen25VL: {
        "flat_config": {"flat": True},
        "options": {
            "model": {
                "text": {"rms_norm_eps": 1e-2, "num_key_value_heads": 1, "tie_word_embeddings": True},
                "vision": {
                    "depth": 4,
                    "fullatt_block_indexes": [0, 3],
                    "intermediate_size": 20,
                    "num_heads": 2,
                    "window_size": 24,
                },
                "tie_word_embeddings": True,
            }
        },
        "long_positions": {
            "model": {"text": {"max_position_embeddings": 2048}},
            "deck": ["data.row_tokens=2048"],
            "longer": 1500,
        },
        "all_in_windows_of_one": {"model": {"vision": {"fullatt_block_indexes": [], "window_size": 8}}},
        "cp4_of_both": CP4_OF_BOTH,
        "cp3_gathered": {"ranks": 3, "deck": [*grid("llm", cp=3), *grid("vision", cp=3)]},
    },
    Qwen25Omni: {
        "tied": TIED,
        "tp2_cp2_of_sound": TP2_CP2_OF_SOUND,
        "options": {
            "model": {
                "text": {"rms_norm_eps": 1e-2, "num_key_value_heads": 1, "tie_word_embeddings": False},
                "vision": {"depth": 4, "fullatt_block_indexes": [0, 3], "num_heads": 2, "window_size": 24},
                "audio": {"activation_function": "relu", "encoder_attention_heads": 2, "n_window": 4},
                "position_id_per_seconds": 13,
            }
        },
        "one_chunk": {"model": {"audio": {"n_window": 40, "max_source_positions": 40}}},
        "frozen_audio": {"frozen": ["audio"]},
        "cp4_of_both": CP4_OF_BOTH,
        "tp2_frozen_vision": TP2_FROZEN_VISION,
        "pp2_beside_vision": PP2_BESIDE_BOTH,
    },
    Qwen25OmniTalking: {},
    Qwen25OmniWhole: {},
    Qwen3Omni: {
        "tied": TIED,
        "options": {
            "model": {
                "text": {"num_hidden_layers": 3, "attention_bias": True, "mlp_only_layers": [1], "rms_norm_eps": 1e-2,
                         "norm_topk_prob": False, "num_experts_per_tok": 2, "output_router_logits": True,
                         "router_aux_loss_coef": 0.3},
                "vision": {"deepstack_visual_indexes": [2, 0], "hidden_act": "gelu", "num_heads": 2},
                "audio": {"activation_function": "relu", "downsample_hidden_size": 5, "encoder_attention_heads": 2,
                          "max_source_positions": 13, "n_window_infer": 130},
                "position_id_per_seconds": 13,
            }
        },
        "frozen_audio": {"frozen": ["audio"]},
        "tp2_cp2_of_sound": TP2_CP2_OF_SOUND,
        "pp2_beside_vision": PP2_BESIDE_BOTH,
    },
    Qwen3OmniTalking: {},
    Qwen3OmniWhole: {},
    Qwen3VL: {
        "tied": TIED,
        "three_depths": {
            "model": {
                "text": {"num_hidden_layers": 3, "attention_bias": True, "rms_norm_eps": 1e-2},
                "vision": {"deepstack_visual_indexes": [2, 0, 1], "hidden_act": "gelu"},
            }
        },
        "pp2_beside_vision_of_two_stages": {**TWO_STAGES_OF_VISION, "model": {"text": {"num_hidden_layers": 4}}},
    },
    Qwen3VLMoe: {
        "tied": TIED,
        "of_some_layers": {
            "model": {
                "text": {
                    "num_hidden_layers": 3,
                    "attention_bias": True,
                    "mlp_only_layers": [1],
                    "num_experts_per_tok": 1,
                }
            }
        },
        "tp4_no_slices": {"ranks": 4, "deck": grid("llm", tp=4, sequence_parallel=False)},
    },
    Glm46VMoe: {"options": {"model": Glm46VMoe.unusual}},
    Glm4vMoe: {
        "tied": TIED,
        "options": {
            "model": {
                "text": {
                    "num_hidden_layers": 3,
                    "first_k_dense_replace": 2,
                    "attention_bias": False,
                    "n_group": 4,
                    "topk_group": 2,
                    "norm_topk_prob": False,
                    "rms_norm_eps": 1e-2,
                    "num_key_value_heads": 1,
                },
                "vision": {
                    "attention_bias": True,
                    "image_size": 13,
                    "num_heads": 2,
                    "rms_norm_eps": 1e-2,
                    "rope_parameters": {"rope_type": "axial", "rope_theta": 300.0},
                },
            }
        },
        "cp4_of_both": CP4_OF_BOTH,
        "tp2_frozen_vision": TP2_FROZEN_VISION,
        "pp2_beside_vision_of_two_stages": TWO_STAGES_OF_VISION,
    },
    Qwen35: {
        "tied": TIED,
        "mtp": {"mtp": 0.3, "deck": ["model.llm.mtp_loss_coef=0.3"], "model": {"has_head": True}},
        "options": {
            "model": {
                "text": {
                    "attention_bias": True,
                    "linear_num_key_heads": 1,
                    "linear_num_value_heads": 3,
                    "linear_conv_kernel_dim": 2,
                    "rms_norm_eps": 1e-2,
                },
                "vision": {"hidden_act": "gelu"},
            }
        },
        "of_attention_alone": {"model": {"text": {"layer_types": ["full_attention"] * 3}}},
    },
    Qwen35Moe: {
        "options": {
            "model": {
                "text": {
                    "layer_types": ["full_attention", "linear_attention", "linear_attention"],
                    "num_experts_per_tok": 1,
                    "linear_num_value_heads": 4,
                }
            }
        },
    },
    Qwen35MoeStacked: {},
    # Windows are shorter than images, but for one case.
    Gemma3: {
        "untied": UNTIED,
        "as_published": {"published": True},
        "tower_with_a_head": {"model": {"vision": {"vision_use_head": True}}},
        "wide_windows": {"model": {"text": {"sliding_window": 21}}},
        "options": {
            "model": {
                "text": {"rms_norm_eps": 1e-2, "num_key_value_heads": 1, "attention_bias": True},
                "vision": {"hidden_act": "relu", "layer_norm_eps": 1e-2, "patch_size": 2},
            }
        },
        "tp2_frozen_vision": TP2_FROZEN_VISION,
        "cp4_gathered": {"ranks": 4, "deck": grid("llm", cp=4)},
        "adjacent_images": {"adjacent": True, "images": [2, 0, 3], "ranks": 2, "deck": grid("llm", cp=2)},
        "cp2_ulysses": {"ranks": 2, "deck": grid("llm", cp=2, cp_mode="ulysses")},
    },
    Gemma3WithCrops: {},
    Gemma4: {
        "untied": UNTIED,
        "wide_windows": {"model": {"text": {"sliding_window": 21}}},
        "options": {
            "model": {
                "text": {"rms_norm_eps": 1e-2, "num_key_value_heads": 1, "attention_bias": True},
                "vision": {
                    "hidden_activation": "silu",
                    "rms_norm_eps": 1e-2,
                    "head_dim": 12,
                    "num_key_value_heads": 1,
                    "standardize": False,
                    "attention_bias": True,
                    "rope_parameters": None,
                },
            }
        },
        "tp2_frozen_vision": TP2_FROZEN_VISION,
        "cp4_gathered": {"ranks": 4, "deck": grid("llm", cp=4)},
        "adjacent_images": {"adjacent": True, "images": [2, 0, 3], "ranks": 2, "deck": grid("llm", cp=2)},
        "cp2_ulysses": {"ranks": 2, "deck": grid("llm", cp=2, cp_mode="ulysses")},
        "cp4_of_both": CP4_OF_BOTH,
        "tp2_all_tokens_frozen_llm": {
            "ranks": 2,
            "frozen": ["llm"],
            "deck": [*grid("llm", tp=2, sequence_parallel=False), *grid("vision", tp=2, sequence_parallel=False)],
        },
        "pp2_beside_vision_of_two_stages": TWO_STAGES_OF_VISION,
    },
    Gemma4Moe: {},
    Gemma4Clipped: {
        "options": {"model": {"vision": {"hidden_activation": "gelu", "rms_norm_eps": 1e-2}}},
        "tp4_of_vision": {"ranks": 4, "deck": [*grid("llm", tp=2, cp=2), *grid("vision", tp=4)]},
        "pp2_beside_vision_of_two_stages": TWO_STAGES_OF_VISION,
    },
    SmolVLM: {
        "tied": TIED,
        "images_in_every_sample": {"images": [2, 1, 3], "deck": ["data.row_tokens=112"]},
        "options": {
            "model": {
                "text": {"rms_norm_eps": 1e-2, "head_dim": 12, "attention_bias": True},
                "vision": {"hidden_act": "relu", "layer_norm_eps": 1e-2},
            }
        },
        "published": {
            "deck": ["data.max_tiles=0"],
            "model": {
                "text": {"neftune_noise_alpha": 0.0, "qk_layer_norms": False, "use_resampler": False},
                "vision": {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16},
                           "use_base_siglip": False},
            },
        },
    },
    Idefics3: {},
    Mistral3: {
        "tied": TIED,
        "options": {
            "model": {
                "text": {"rms_norm_eps": 1e-2, "sliding_window": 7, "head_dim": 12},
                "vision": {"hidden_act": "gelu_pytorch_tanh"},
                "vision_feature_layer": -2,
                "multimodal_projector_bias": True,
                "projector_hidden_act": "silu",
            }
        },
        "tp2_all_tokens_frozen_llm": {
            "ranks": 2,
            "frozen": ["llm"],
            "deck": [*grid("llm", tp=2, sequence_parallel=False), *grid("vision", tp=2, sequence_parallel=False)],
        },
    },
    PixtralLlava: {
        "options": {
            "model": {
                "text": {"model_type": "llama", "rms_norm_eps": 1e-2},
                "vision": {"intermediate_size": 20, "hidden_act": "gelu"},
                "vision_feature_layer": [0, -2, 1],
                "multimodal_projector_bias": False,
                "projector_hidden_act": "relu",
                "tie_word_embeddings": True,
            }
        },
        "pp2_cp2": {"ranks": 4, "deck": [*ONE_ROW, *grid("llm", pp=2, cp=2, cp_mode="ring")]},
    },
    InternVLVideos: {},
    LlavaOneVisionVideos: {"cp3_ring": CP3_RING},
    SmolVLMVideos: {},
    Qwen2VLVideos: {},
    Qwen25VLVideos: {"cp3_ring": CP3_RING},
    Qwen3VLVideos: {},
    Qwen35Videos: {},
    Glm4vVideos: {},
    Gemma4Videos: {"cp3_ring": CP3_RING},
    Glm4v: {
        "options": {
            "model": {
                "text": {
                    "num_attention_heads": 2,
                    "num_key_value_heads": 1,
                    "rms_norm_eps": 1e-2,
                    "rope_parameters": {**Glm4vMoe.rope, "rope_type": "linear", "factor": 2.5},
                },
                "vision": {"attention_bias": True, "image_size": 13, "out_hidden_size": 32, "intermediate_size": 24},
                "tie_word_embeddings": True,
            }
        },
        "tp2_frozen_vision": TP2_FROZEN_VISION,
        "pp2_beside_vision_of_two_stages": TWO_STAGES_OF_VISION,
    },
    KimiK25: {
        "options": {
            "model": {
                "text": {
                    "attention_bias": True,
                    "v_head_dim": 16,
                    "n_group": 4,
                    "topk_group": 2,
                    "norm_topk_prob": False,
                    "rms_norm_eps": 1e-2,
                    "rope_interleave": False,
                },
                "vision": {
                    "hidden_act": "relu",
                    "pos_emb_height": 9,
                    "pos_emb_width": 9,
                    "pos_emb_time": 2,
                    "rope_parameters": {"rope_type": "axial", "rope_theta": 20.0},
                },
                "projection_layer_norm_eps": 1e-2,
                "tie_word_embeddings": True,
            }
        },
        "published": {"published": True},
        "tp2_frozen_vision": TP2_FROZEN_VISION,
        "pp2_beside_vision_of_two_stages": TWO_STAGES_OF_VISION,
    },
    KimiK25Running: {"options": {"model": KimiK25Running.unusual}},
    KimiK25Videos: {"cp3_ring": CP3_RING},
    Gemma4E4B: {
        "pp4": {"ranks": 4, "deck": [*ONE_ROW, *grid("llm", pp=4)]},
        "tp2_all_tokens_frozen_vision": {
            "ranks": 2,
            "frozen": ["vision"],
            "deck": [*grid("llm", tp=2, sequence_parallel=False), *grid("vision", tp=2)],
        },
    },
    Gemma4Audio: {
        "frozen_audio": {"frozen": ["audio"]},
        "pp2_beside_vision": PP2_BESIDE_BOTH,
    },
}
# Cases of other images, by the plain model of each family, and of audio.
VARIANTS = {
    Gemma4AudioAlone: {
        "plain": {},
        "recomputed_stages_beside": {
            "ranks": 4,
            "deck": [*OWN_RANKS, "model.activation_checkpointing=1", *grid("llm", pp=2), *grid("audio", pp=2)],
        },
    },
    InternVLOfPatches: {"plain": {}},
    InternVLVideosOfPatches: {"plain": {}},
    InternVLOfLargeSquares: {"cp2": {"ranks": 2, "deck": [*grid("llm", cp=2), *grid("vision", cp=2)]}},
    LlavaOneVisionOfUnevenPatches: {"plain": {}},
    LlavaOneVisionVideosOfUnevenPatches: {"plain": {}},
    SmolVLMOfUnevenPatches: {"plain": {}},
    Glm46V: {"plain": {}},
    Glm4vMoeVideos: {"plain": {}},
    Glm46VMoeVideos: {"plain": {}},
    SmolVLMOfOneTile: {
        "plain": {},
        "published": {"deck": ["data.max_tiles=0"], "model": {"vision": {"size": {"longest_edge": 16}}}},
    },
}


def cases(takes_all):
    """By family, then by name."""
    table, turns = {}, [*IN_TURN.items()]
    for family, own in OF_ONE.items():
        some = turns if takes_all else turns[: bool(own)]
        turns = turns[1:] + turns[:1] if own else turns
        table[family] = {**OF_ALL, **dict(some), **own}
    return {**table, **VARIANTS}
