# SPDX-License-Identifier: Apache-2.0
"""Families with Pixtral's encoder, as those of family_cases.py: text stands between the rows of an image."""

import numpy as np
from transformers import LlavaConfig, LlavaForConditionalGeneration, Mistral3Config, Mistral3ForConditionalGeneration
from transformers.models.pixtral.image_processing_pil_pixtral import (
    PixtralImageProcessorPil,
    get_resize_output_image_size,
)

from family_cases import BOTH_GRIDS, TEXT, resized
from parity_cases import grid
from transformers_models import file_name


class Mistral3:
    placeholder, row_end, image_end = 5, 2, 3
    frozen = {"vision": ("vision_tower.",), "llm": ("language_model.",)}
    deck = []
    # The longest side is not of whole squares of patches.
    longest, patch, merge = 28, 4, 2
    processor = PixtralImageProcessorPil(size={"longest_edge": longest}, patch_size={"height": 8, "width": 8})

    @classmethod
    def configs(cls, text, vision):
        rope = {"rope_type": "default", "rope_theta": 500.0}
        turned = {"rope_type": "axial", "rope_theta": 50.0}
        tower = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 2}
        sizes = {"patch_size": cls.patch, "image_size": cls.longest, "hidden_act": "silu"}
        return {
            "text_config": {"model_type": "mistral", **TEXT, "sliding_window": None, "rope_parameters": rope, **text},
            "vision_config": {"model_type": "pixtral", **tower, **sizes, "rope_parameters": turned, **vision},
        }

    @classmethod
    def model(cls, text=None, vision=None, **changes):
        keys = {"image_token_index": cls.placeholder, "tie_word_embeddings": False, **changes}
        return Mistral3ForConditionalGeneration(Mistral3Config(**cls.configs(text or {}, vision or {}), **keys))

    @classmethod
    def resized_to(cls, image):
        step = cls.patch * cls.merge
        return get_resize_output_image_size(image, cls.longest, step, "channels_last")

    @classmethod
    def spelled(cls, height, width):
        high, wide = (side // (cls.patch * cls.merge) for side in cls.resized_to(np.zeros((height, width, 3))))
        row = [cls.placeholder] * wide
        return (row + [cls.row_end]) * (high - 1) + row + [cls.image_end]

    @classmethod
    def inputs(cls, tokens, images):
        if not images:
            return {}
        images = [resized(image, *cls.resized_to(image)) for image in images]
        return cls.processor(images, return_tensors="pt", do_resize=False)

    @staticmethod
    def file_name(name):
        return file_name(name)


class PixtralLlava(Mistral3):
    patch, merge = 8, 1

    @classmethod
    def model(cls, text=None, vision=None, **changes):
        keys = {"image_token_index": cls.placeholder, "vision_feature_select_strategy": "full", **changes}
        keys.setdefault("vision_feature_layer", -1)
        return LlavaForConditionalGeneration(LlavaConfig(**cls.configs(text or {}, vision or {}), **keys))


# Two pictures of a sample may have more features than the rows of MICROBATCHES hold.
MICROBATCHES_OF_IMAGES = ["data.rows_per_microbatch=1"]
FOUR_HEADS = {"vision": {"num_attention_heads": 4, "hidden_size": 32}}
PIXTRAL_FAMILIES = {
    Mistral3: {
        "plain": {},
        "text_only": {"images": [0]},
        "images_in_every_sample": {"images": [2, 1, 3]},
        "tied": {"model": {"tie_word_embeddings": True}},
        "options": {
            "model": {
                "text": {"rms_norm_eps": 1e-2, "sliding_window": 7, "head_dim": 12},
                "vision": {"hidden_act": "gelu_pytorch_tanh", "num_attention_heads": 4},
                "vision_feature_layer": -2,
                "multimodal_projector_bias": True,
                "projector_hidden_act": "silu",
            }
        },
        "frozen_vision": {"frozen": ["vision"]},
        "frozen_llm": {"frozen": ["llm"]},
        "one_sample_per_row": {"deck": ["data.packing=false", "data.rows_per_microbatch=1"]},
        "recomputed": {"deck": ["model.activation_checkpointing=1"]},
        "tp2_cp2": {"ranks": 4, "model": FOUR_HEADS, "deck": BOTH_GRIDS},
        "tp2_all_tokens_frozen_llm": {
            "ranks": 2,
            "frozen": ["llm"],
            "deck": [*grid("llm", tp=2, sequence_parallel=False), *grid("vision", tp=2, sequence_parallel=False)],
        },
        "cp4_ring": {"ranks": 4, "deck": [*grid("llm", cp=4, cp_mode="ring"), *grid("vision", cp=2, cp_mode="ring")]},
        "pp2_tp2": {"ranks": 4, "deck": [*MICROBATCHES_OF_IMAGES, *grid("llm", pp=2, tp=2)]},
        "pp2_beside_vision": {
            "ranks": 4,
            "deck": [
                'mesh.placement="disjoint"',
                *MICROBATCHES_OF_IMAGES,
                *grid("llm", pp=2),
                *grid("vision", encoder_dp=2),
            ],
        },
    },
    PixtralLlava: {
        "plain": {},
        "text_only": {"images": [0]},
        "frozen_vision": {"frozen": ["vision"]},
        "images_in_every_sample": {"images": [2, 1, 3]},
        "options": {
            "model": {
                "text": {"model_type": "llama", "rms_norm_eps": 1e-2},
                "vision": {"num_attention_heads": 4, "intermediate_size": 20, "hidden_act": "gelu"},
                "vision_feature_layer": [0, -2, 1],
                "multimodal_projector_bias": False,
                "projector_hidden_act": "relu",
                "tie_word_embeddings": True,
            }
        },
        "tp2_cp2": {"ranks": 4, "model": FOUR_HEADS, "deck": BOTH_GRIDS},
        "pp2_cp2": {"ranks": 4, "deck": [*MICROBATCHES_OF_IMAGES, *grid("llm", pp=2, cp=2, cp_mode="ring")]},
    },
}
